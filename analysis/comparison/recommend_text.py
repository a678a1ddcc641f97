"""Recommendations as text, Markdown, a page and JSON."""

import json
from collections.abc import Sequence
from typing import Any

from inferload.escaping import markdown as plain
from inferload.numbers import number
from inferload.text_table import align, piped

from .page import Part, html
from .recommend import THROUGHPUT, TPOT, TTFT, BestVariant, Recommendation
from .tables import matrix

TITLE = "Best variant for each aim"
NOT_MEASURED = "not measured"
NO_DIFFERENCE = "no significant difference"
_NOT_VALID = "NO VALID MEASUREMENT"
DECISIONS = ("aim", "variant", "measured", "gain", "trade-offs", "remarks")
STANDINGS = (
    *("variant", "runs", "TTFT, median, ms", "TPOT, ms", "output, tok/s"),
    *("tok/s per user", "tok/s per GPU", "memory, MB", "cost"),
)


def decision(advice: BestVariant) -> tuple[str, ...]:
    """Return the cells of DECISIONS of one aim."""
    certainty = {"not certain": "not significant", "not tested": "not tested"}
    remarks = "; ".join(filter(None, (certainty.get(advice.certainty, ""), advice.why)))
    least = "at least " if advice.variant is None else ""
    measured = NOT_MEASURED
    if advice.value is not None:
        measured = f"{advice.figure}: {least}{number(advice.value)} {advice.unit}".strip()
    if advice.undecided:
        return (advice.aim, NO_DIFFERENCE, f"best value: {advice.variant}, {measured}", _gain(advice), "", remarks)
    price = ", ".join(f"{name} {change:+.1%}" for name, change in advice.prices)
    if not price and advice.change is not None:
        price = "none"
    return (advice.aim, advice.variant or NOT_MEASURED, measured, _gain(advice), price, remarks)


def _gain(advice: BestVariant) -> str:
    if advice.change is None:
        return ""
    interval = (
        "" if advice.low is None or advice.high is None else f" (95 % CI {advice.low:+.1%} to {advice.high:+.1%})"
    )
    return f"{advice.change:+.1%}{interval}"


def details(row: Sequence[str]) -> list[str]:
    """Return the cells after the variant as a list of phrases, without empty ones."""
    _, variant, measured, gain, price, remarks = row
    phrases = ["" if variant == NOT_MEASURED else measured, gain, f"trade-offs: {price}" if price else "", remarks]
    return [phrase for phrase in phrases if phrase and phrase != NOT_MEASURED]


def standings(recommended: Recommendation) -> list[tuple[str, ...]]:
    """Return the figures of all variants, below STANDINGS."""
    rows: list[tuple[str, ...]] = [STANDINGS]
    for one in recommended.standings:
        values = [one.values[TTFT.name], one.values[TPOT.name], one.values[THROUGHPUT.name]]
        values += [one.tok_per_s_per_user, one.tok_per_s_per_gpu, one.memory_mb, one.cost]
        cells = [NOT_MEASURED if value is None else number(value) for value in values]
        rows.append((one.side.heading, str(len(one.side.runs)), *cells))
    return rows


def notes(recommended: Recommendation) -> list[str]:
    """Return remarks on the whole recommendation."""
    base = recommended.baseline
    front = ", ".join(recommended.front) or NOT_MEASURED
    lines = [f"Pareto front of TTFT, TPOT and output (means, not tested): {front}."]
    lines += [f"Left out, not comparable with {base.label}: {line}." for line in recommended.refusals]
    lines += [f"{one.candidate.label}: {one.conditional}." for one in recommended.comparisons if one.conditional]
    lines += [f"{line}." for line in _validity(recommended)]
    if len(recommended.standings) < 2:
        lines.append("Only one variant: name others besides the baseline.")
    if "simulator" in str(base.runs[0].server.get("engine") or ""):
        lines.append("The server was the embedded simulator: its latencies and memory are not those of a model.")
    lines.append(
        f"Gains: pairs of runs against {base.label}; significant at p < 0.05 (paired t-test, Holm's correction over the "
        "variants). Output is measured at this load; at a fixed rate it is not the capacity of the server."
    )
    return lines


def _validity(recommended: Recommendation) -> list[str]:
    """Return remarks on the validity of the runs."""
    lines = dict.fromkeys(line for one in recommended.comparisons for line in one.differences.warnings)
    for one in recommended.standings:
        invalid = [run.label for run in one.side.runs if run.level == "invalid"]
        if len(invalid) == len(one.side.runs):
            lines[f"{one.side.label}: {_NOT_VALID}, the figures do not describe the server"] = None
        elif invalid:
            lines[f"{one.side.label}: left out with their pairs, measurement not valid: {', '.join(invalid)}"] = None
    return list(lines)


def text(recommended: Recommendation) -> str:
    """Return the recommendation for a terminal."""
    lines = [f"{recommended.scenario}: {TITLE.lower()}, against {recommended.baseline.label}"]
    lines += [*(f"  {line}" for line in _validity(recommended) if _NOT_VALID in line), ""]
    for row in map(decision, recommended.advice):
        lines += [f"  {row[0]}: {row[1]}", *(f"      {phrase}" for phrase in details(row))]
    tables = (standings(recommended), matrix([one.side for one in recommended.standings]))
    lines += ["", align(tables[0], "l" + "r" * (len(STANDINGS) - 1)), "", align(tables[1], "lll" + "r" * 5), ""]
    return "\n".join([*lines, *notes(recommended)]) + "\n"


def markdown(recommended: Recommendation) -> str:
    """Return the recommendation as Markdown."""
    parts = [
        f"## {plain(recommended.scenario)}: {TITLE.lower()}",
        piped([DECISIONS, *map(decision, recommended.advice)], right=False),
        "\n".join(f"* {plain(line)}" for line in notes(recommended)),
        piped(standings(recommended)),
        piped(matrix([one.side for one in recommended.standings])),
    ]
    return "\n\n".join(parts) + "\n"


def section(recommended: Recommendation) -> dict[str, Any]:
    """Return the recommendation for the template of the page. `certain`: significant in a test."""
    rows = [
        {"aim": row[0], "variant": row[1], "certain": advice.certainty == "certain", "details": details(row)}
        for advice, row in ((advice, decision(advice)) for advice in recommended.advice)
    ]
    return {"title": TITLE, "rows": rows, "notes": notes(recommended)}


def page(all_recommended: Sequence[Recommendation]) -> str:
    """Return recommendation.html: a page of comparisons with the recommendations."""
    parts = [
        Part(one.scenario, tuple(standing.side for standing in one.standings), recommendation=section(one))
        for one in all_recommended
    ]
    return html(TITLE, TITLE, parts)


def json_text(all_recommended: Sequence[Recommendation]) -> str:
    """Return recommendation.json; null: not measured."""
    document = {"format": 1, "scenarios": [_document(one) for one in all_recommended]}
    return json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _document(recommended: Recommendation) -> dict[str, Any]:
    return {
        "scenario": recommended.scenario,
        "baseline": recommended.baseline.label,
        "decisions": [
            {
                "aim": one.aim,
                "variant": None if one.undecided else one.variant,
                "best_value": one.variant,
                **{name: getattr(one, name) for name in ("figure", "value", "unit", "change", "low", "high")},
                "certainty": one.certainty,
                "price": dict(one.prices),
                "why": one.why or None,
            }
            for one in recommended.advice
        ],
        "variants": [
            {
                "variant": one.side.label,
                "runs": len(one.side.runs),
                **one.values,
                "tok_per_s_per_user": one.tok_per_s_per_user,
                "tok_per_s_per_gpu": one.tok_per_s_per_gpu,
                "gpus": one.gpus,
                "memory_mb": one.memory_mb,
                "memory_of": one.memory_of if one.memory_mb is not None else None,
                "cost_per_million_output_tokens": one.cost,
                "held": {
                    name: {"load": held.load, "unit": held.unit, "broken_above": held.broken_above}
                    for name, held in one.held.items()
                },
            }
            for one in recommended.standings
        ],
        "front": list(recommended.front),
        "left_out": list(recommended.refusals),
    }
