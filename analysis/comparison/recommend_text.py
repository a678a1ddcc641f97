"""Recommendations as text, Markdown, a page and JSON."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from inferload.escaping import markdown as plain
from inferload.numbers import NOT_MEASURED, listed, number
from inferload.text_table import align, piped

from .compare import table_rows
from .page import Part, html
from .recommend import AimResult, Recommendation
from .sides import Side, TableRow
from .tables import matrix
from .text import change_interval
from .variant_figures import THROUGHPUT, TPOT, TTFT, VariantFigures

TITLE = "Best variant for each aim"
NO_DIFFERENCE = "no significant difference"
NOT_TESTED = "not tested"
_NOT_VALID = "NO VALID MEASUREMENT"
DECISIONS = ("aim", "variant", "measured", "gain", "trade-offs", "remarks")
VARIANT_COLUMNS = (
    *("variant", "runs", "TTFT, median, ms", "TPOT, ms", "output, tok/s"),
    *("tok/s per user", "tok/s per GPU", "memory, MB", "cost"),
)


def decision(result: AimResult) -> tuple[str, ...]:
    """Return the cells of DECISIONS of one aim."""
    least = "at least " if result.variant is None else ""
    measured = NOT_MEASURED
    if result.value is not None:
        measured = f"{result.figure}: {least}{number(result.value)} {result.unit}".strip()
    worse = [f"{name} {change:+.1%}" for name, change in result.trade_offs]
    worse += [f"figures not tested: {result.untested}"] if result.untested else []
    trade_offs = ", ".join(worse) or ("none" if result.change is not None else "")
    if result.undecided:
        measured = f"best value: {result.variant}, {measured}"
    return (result.aim, _named(result), measured, _gain(result), trade_offs, result.remark)


def _named(result: AimResult) -> str:
    """Return the variant of a result with the figures on which it is worse, or why there is none."""
    if result.certainty == "tie":
        return f"tie of {listed([result.variant or '', *result.tied])}"
    if result.undecided:
        return NO_DIFFERENCE if result.certainty == "no difference found" else NOT_TESTED
    return result.variant or NOT_MEASURED


def worse(result: AimResult) -> str:
    """Return the trade-offs of the variants that a headline names, for this headline; empty without any."""
    named = result.certainty == "tie" or not result.undecided
    return f", worse: {', '.join(name for name, _ in result.trade_offs)}" if named and result.trade_offs else ""


def _gain(result: AimResult) -> str:
    if result.change is None:
        return ""
    interval = change_interval(result.low, result.high)
    return f"{result.change:+.1%}{f' (95 % CI {interval})' if interval else ''}"


def details(row: Sequence[str]) -> list[str]:
    """Return the cells after the variant as a list of phrases, without empty ones."""
    _, variant, measured, gain, trade_offs, remarks = row
    phrases = ["" if variant == NOT_MEASURED else measured, gain]
    phrases += [f"trade-offs: {trade_offs}" if trade_offs else "", remarks]
    return [phrase for phrase in phrases if phrase and phrase != NOT_MEASURED]


def variant_rows(recommendation: Recommendation) -> list[tuple[str, ...]]:
    """Return the figures of all variants, below VARIANT_COLUMNS."""
    rows: list[tuple[str, ...]] = [VARIANT_COLUMNS]
    for variant in _listed(recommendation):
        values = [variant.values[axis.name] for axis in (TTFT, TPOT, THROUGHPUT)]
        values += [variant.tok_per_s_per_user, variant.tok_per_s_per_gpu, variant.memory_mb, variant.cost]
        cells = [NOT_MEASURED if value is None else number(value) for value in values]
        rows.append((variant.paired.heading, str(len(variant.paired.counted)), *cells))
    return rows


def notes(recommendation: Recommendation) -> list[str]:
    """Return remarks on the whole recommendation."""
    base = recommendation.baseline
    front = ", ".join(recommendation.front) or NOT_MEASURED
    lines = [f"Pareto front of TTFT, TPOT and output (means, not tested): {front}."]
    lines += [f"Left out, not comparable with {base.label}: {line}." for line in recommendation.refusals]
    lines += [
        f"{comparison.candidate.label}: holds for {comparison.condition.holds_for} ({comparison.condition.reason})."
        for comparison in recommendation.comparisons
        if comparison.condition
    ]
    lines += [f"{line}." for line in _validity(recommendation)]
    if _pairs_differ(recommendation):
        lines.append(
            "Means are over the pairs of each variant, which differ between the variants: compare each variant with the row of "
            f"{base.label} over the same pairs."
        )
    if len(recommendation.variants) < 2:
        lines.append("Only one variant: name others besides the baseline.")
    if "simulator" in str(base.runs[0].server.get("engine") or ""):
        lines.append("The server was the embedded simulator: its latencies and memory are not those of a model.")
    lines.append(
        f"Gains: pairs of runs against {base.label}. The best value is tested against each other variant at p < 0.05 (paired "
        f"t-test, Holm's correction). Trade-offs: figures that the comparison with {base.label} calls worse. Output is measured at "
        "this load; at a fixed rate it is not the capacity of the server."
    )
    return lines


def _validity(recommendation: Recommendation) -> list[str]:
    """Return remarks on the validity of the runs."""
    lines = dict.fromkeys(line for comparison in recommendation.comparisons for line in comparison.differences.warnings)
    for side in (variant.side for variant in recommendation.variants):
        invalid = [run.label for run in side.runs if run.level == "invalid"]
        if len(invalid) == len(side.runs):
            lines[f"{side.label}: {_NOT_VALID}, the figures do not describe the server"] = None
        elif invalid:
            lines[f"{side.label}: left out with their pairs, measurement not valid: {', '.join(invalid)}"] = None
    return list(lines)


def _sides(recommendation: Recommendation) -> tuple[Side, ...]:
    return tuple(variant.paired for variant in _listed(recommendation))


def _listed(recommendation: Recommendation) -> list[VariantFigures]:
    """Return the variants of the tables; if their pairs differ, the baseline over the same pairs before each variant."""
    listed = []
    for variant in recommendation.variants:
        if variant.base is not None and _pairs_differ(recommendation):
            label = f"{variant.base.side.label}, pairs of {variant.side.label}"
            listed.append(replace(variant.base, paired=replace(variant.base.paired, label=label)))
        listed.append(variant)
    return listed


def _pairs_differ(recommendation: Recommendation) -> bool:
    pairs_of = [comparison.paired[0].runs for comparison in recommendation.comparisons]
    return any(runs != pairs_of[0] for runs in pairs_of)


def _rows(recommendation: Recommendation) -> tuple[TableRow, ...]:
    comparisons = recommendation.comparisons
    return tuple(table_rows(comparisons)) if comparisons else ((recommendation.baseline, None),)


def text(recommendation: Recommendation) -> str:
    """Return the recommendation for a terminal."""
    lines = [f"{recommendation.scenario}: {TITLE.lower()}, against {recommendation.baseline.label}"]
    lines += [*(f"  {line}" for line in _validity(recommendation) if _NOT_VALID in line), ""]
    for result in recommendation.aims:
        row = decision(result)
        lines += [f"  {row[0]}: {row[1]}{worse(result)}", *(f"      {phrase}" for phrase in details(row))]
    tables = (variant_rows(recommendation), matrix(_sides(recommendation)))
    lines += ["", align(tables[0]), "", align(tables[1], left=3), ""]
    return "\n".join([*lines, *notes(recommendation)]) + "\n"


def markdown(recommendation: Recommendation) -> str:
    """Return the recommendation as Markdown."""
    parts = [
        f"## {plain(recommendation.scenario)}: {TITLE.lower()}",
        piped([DECISIONS, *map(decision, recommendation.aims)], right=False),
        "\n".join(f"* {plain(line)}" for line in notes(recommendation)),
        piped(variant_rows(recommendation)),
        piped(matrix(_sides(recommendation))),
    ]
    return "\n\n".join(parts) + "\n"


def section(recommendation: Recommendation) -> dict[str, Any]:
    """Return the recommendation for the template of the page. `certain`: significant in a test."""
    rows = [
        {
            "aim": row[0],
            "variant": row[1],
            "worse": worse(result),
            "certain": result.certainty == "certain",
            "details": details(row),
        }
        for result, row in ((result, decision(result)) for result in recommendation.aims)
    ]
    return {"title": TITLE, "rows": rows, "notes": notes(recommendation)}


def page(recommendations: Sequence[Recommendation]) -> str:
    """Return recommendation.html: a page of comparisons with the recommendations."""
    parts = [Part(entry.scenario, _rows(entry), recommendation=section(entry)) for entry in recommendations]
    return html(TITLE, TITLE, parts)


def json_text(recommendations: Sequence[Recommendation]) -> str:
    """Return recommendation.json; null: not measured."""
    document = {"format": 1, "scenarios": [_document(entry) for entry in recommendations]}
    return json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _document(recommendation: Recommendation) -> dict[str, Any]:
    return {
        "scenario": recommendation.scenario,
        "baseline": recommendation.baseline.label,
        "decisions": [_decision_document(result) for result in recommendation.aims],
        "variants": [_variant_document(variant) for variant in recommendation.variants],
        "front": list(recommendation.front),
        "left_out": list(recommendation.refusals),
    }


def _decision_document(result: AimResult) -> dict[str, Any]:
    return {
        "aim": result.aim,
        "variant": None if result.undecided else result.variant,
        "best_value": result.variant,
        **{name: getattr(result, name) for name in ("figure", "value", "unit", "change", "low", "high")},
        "certainty": result.certainty,
        "tied": list(result.tied),
        "trade_offs": dict(result.trade_offs),
        "untested": result.untested or None,
        "remarks": result.remark or None,
    }


def _variant_document(variant: VariantFigures) -> dict[str, Any]:
    return {
        "variant": variant.side.label,
        "runs": len(variant.paired.counted),
        **variant.values,
        "tok_per_s_per_user": variant.tok_per_s_per_user,
        "tok_per_s_per_gpu": variant.tok_per_s_per_gpu,
        "gpus": variant.gpus,
        "memory_mb": variant.memory_mb,
        "memory_of": variant.memory_of if variant.memory_mb is not None else None,
        "cost_per_million_output_tokens": variant.cost,
        "held": {
            name: {"load": maximum.load, "unit": maximum.unit, "broken_above": maximum.missed_above}
            for name, maximum in variant.max_load.items()
        },
    }
