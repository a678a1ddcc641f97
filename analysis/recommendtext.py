"""A recommendation in words and tables: for a terminal, as Markdown, for a machine."""

import json
from collections.abc import Sequence
from typing import Any

from inferload.measure.texttable import align, piped
from inferload.measure.untrusted import markdown as plain
from inferload.numbers import number

from .comparison.tables import matrix
from .recommend import THROUGHPUT, TPOT, TTFT, Advice, Recommendation

NOT_MEASURED = "not measured"
NO_DIFFERENCE = "no difference shown"
_NOT_VALID = "NO VALID MEASUREMENT"
DECISIONS = ("aim", "variant", "measured", "gain", "price", "to know")
_CERTAIN = {
    "certain": "",
    "not certain": "not certain: the test does not tell it from the others",
    "not tested": "not tested",
    "counted": "",
    "none": "",
}


def decisions(found: Recommendation) -> list[tuple[str, ...]]:
    """The matrix: a row for each aim."""
    return [_decision(one) for one in found.advice]


def _decision(one: Advice) -> tuple[str, ...]:
    know = "; ".join(part for part in (_CERTAIN[one.certainty], one.why) if part)
    least = "at least " if one.variant is None else ""
    measured = NOT_MEASURED if one.value is None else f"{one.figure}: {least}{number(one.value)} {one.unit}".strip()
    if one.undecided:
        return (one.aim, NO_DIFFERENCE, f"best value: {one.variant}, {measured}", gain(one), "", know)
    price = ", ".join(f"{name} {change:+.1%}" for name, change in one.prices) or (
        "none seen" if one.change is not None else ""
    )
    return (one.aim, one.variant or NOT_MEASURED, measured, gain(one), price, know)


def gain(one: Advice) -> str:
    """The change of the aim's figure against the baseline, with its interval where pairs have one."""
    if one.change is None:
        return ""
    interval = "" if one.low is None or one.high is None else f" (95 %: {one.low:+.1%} to {one.high:+.1%})"
    return f"{one.change:+.1%}{interval}"


def fronts(found: Recommendation) -> list[str]:
    """Who is beaten by nobody, a sentence each."""
    front = ", ".join(found.front) or NOT_MEASURED
    lines = [f"Beaten by no other on TTFT, TPOT and output at once (means, not tested): {front}."]
    if found.front_per_gpu is None:
        lines.append(
            "Output per user against output per GPU: not measured, as the number of GPUs is not known of each."
        )
    else:
        lines.append(
            f"Beaten by no other on output per user and per GPU (means, not tested): {', '.join(found.front_per_gpu)}."
        )
    return lines


def standings(found: Recommendation) -> list[tuple[str, ...]]:
    """Every variant on every axis."""
    head = (
        "variant",
        "runs",
        "TTFT, median, ms",
        "TPOT, ms",
        "output, tok/s",
        "tok/s per user",
        "tok/s per GPU",
        "memory, MB",
        "cost",
    )
    rows: list[tuple[str, ...]] = [head]
    for one in found.standings:
        cells = [one.values[TTFT.name], one.values[TPOT.name], one.values[THROUGHPUT.name]]
        cells += [one.tok_per_s_per_user, one.tok_per_s_per_gpu, one.memory_mb, one.cost]
        shown = [NOT_MEASURED if value is None else number(value) for value in cells]
        rows.append((one.side.heading, str(len(one.side.runs)), *shown))
    return rows


def notes(found: Recommendation) -> list[str]:
    """What a reader has to know of the whole."""
    lines = [f"Not comparable with {found.baseline.label}, and left out: {line}." for line in found.refusals]
    lines += [f"{one.candidate.label}: {one.conditional}." for one in found.comparisons if one.conditional]
    lines += [f"{line}." for line in _doubts(found)]
    if len(found.standings) < 2:
        lines.append("There is nothing to choose between: name a variant beside the baseline.")
    engine = str(found.baseline.runs[0].server.get("engine") or "")
    if "simulator" in engine:
        lines.append(
            "The server was the embedded simulator: its latencies and its memory say nothing of a model or of hardware."
        )
    lines.append(
        "Gains are of pairs of runs against the baseline; certain means p < 0.05 by a paired t, Holm over the variants. "
        "Output is what was served at this load: where the load has a fixed rate it is no limit of the server."
    )
    return lines


def _doubts(found: Recommendation) -> list[str]:
    """What speaks against the runs themselves: no number of theirs may stand without it."""
    lines = dict.fromkeys(line for one in found.comparisons for line in one.differences.warnings)
    for one in found.standings:
        invalid = [run.label for run in one.side.runs if run.level == "invalid"]
        if len(invalid) == len(one.side.runs):
            lines[f"{one.side.label}: {_NOT_VALID}, its figures are not the server's"] = None
        elif invalid:
            lines[f"{one.side.label}: left out with their pairs, as not valid: {', '.join(invalid)}"] = None
    return list(lines)


def text(found: Recommendation) -> str:
    """For a terminal: what to take, then what it rests on."""
    lines = [f"{found.scenario}: which variant for which aim, against {found.baseline.label}"]
    lines += [*(f"  {line}" for line in _doubts(found) if line.startswith(_NOT_VALID, line.find(": ") + 2)), ""]
    for aim, variant, measured, gained, price, know in decisions(found):
        rest = [measured if variant != NOT_MEASURED else "", gained, f"price: {price}" if price else "", know]
        lines += [f"  {aim}: {variant}", *(f"      {part}" for part in rest if part and part != NOT_MEASURED)]
    lines += [
        "",
        align(standings(found), "l" + "r" * 8),
        "",
        align(matrix([one.side for one in found.standings]), "lll" + "r" * 5),
        "",
    ]
    return "\n".join([*lines, *fronts(found), *notes(found)]) + "\n"


def markdown(found: Recommendation) -> str:
    """The same as Markdown."""
    parts = [
        f"## {plain(found.scenario)}: which variant for which aim",
        piped([DECISIONS, *decisions(found)], right=False),
        "\n".join(f"* {plain(line)}" for line in [*fronts(found), *notes(found)]),
        piped(standings(found)),
        piped(matrix([one.side for one in found.standings])),
    ]
    return "\n\n".join(parts) + "\n"


def document(all_found: Sequence[Recommendation]) -> dict[str, Any]:
    """For a machine; what was not measured is null."""
    return {"format": 1, "scenarios": [_one(found) for found in all_found]}


def _one(found: Recommendation) -> dict[str, Any]:
    return {
        "scenario": found.scenario,
        "baseline": found.baseline.label,
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
            for one in found.advice
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
                    name: {"load": held.load, "unit": held.unit, "at": held.at, "broken_above": held.broken_above}
                    for name, held in one.held.items()
                },
            }
            for one in found.standings
        ],
        "front": list(found.front),
        "front_per_gpu": None if found.front_per_gpu is None else list(found.front_per_gpu),
        "left_out": list(found.refusals),
    }


def json_text(all_found: Sequence[Recommendation]) -> str:
    """The document as JSON text."""
    return json.dumps(document(all_found), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
