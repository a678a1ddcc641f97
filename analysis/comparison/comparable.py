"""Comparability of two sides: differences in workload, client, lengths and validity."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from inferload.numbers import short

from ..interop.imported import OUR_EXPORT
from .sides import Side

_LENGTHS = 0.02  # relative difference in mean length from which workloads differ

OURS = "inferload"


@dataclass(frozen=True, slots=True)
class Differences:
    """`refusals`: reasons against a comparison; `warnings`: remarks; `compared`: intended differences."""

    refusals: tuple[str, ...]
    warnings: tuple[str, ...]
    compared: tuple[str, ...]


def differences(baseline: Side, candidate: Side, allowed: Collection[str] = ()) -> Differences:
    """Differences between two sides, one line per key. `allowed`: keys of the scenario that may differ."""
    refusals: list[str] = []
    warnings: list[str] = []
    compared: list[str] = []
    for side in (baseline, candidate):
        warnings += _suspects(side)
        for run in side.runs:
            if run.level == "invalid" and all(other.level == "invalid" for other in side.runs):
                why = "; ".join(run.reasons) or "no reason given"
                refusals.append(f"{side.label}: run {run.label} is not a valid measurement ({why})")
        for key in sorted(_keys(side)):
            values = {_shown(run.asks.get(key)) for run in side.runs}
            if len(values) > 1:
                refusals.append(f"{side.label}: its runs differ in {key}: {', '.join(sorted(values))}")
    first, second = baseline.runs[0], candidate.runs[0]
    clients = first.server.get("client", OURS), second.server.get("client", OURS)
    if clients[0] != clients[1]:
        only_ours = set(clients) == {OURS, OUR_EXPORT}
        why = "definitions differ" if only_ours else "clocks and definitions differ"
        remedy = "; compare the run directories" if OUR_EXPORT in clients else ""
        refusals.insert(0, f"client: {clients[0]} against {clients[1]}: {why}{remedy}")
    for key in () if clients[0] != clients[1] else sorted(_keys(baseline) | _keys(candidate)):
        if first.asks.get(key) != second.asks.get(key):
            line = f"{key}: {_shown(first.asks.get(key))} against {_shown(second.asks.get(key))}"
            (compared if key in allowed else refusals).append(line)
    warnings += _lengths(baseline, candidate)
    compared += [
        f"{key}: {_shown(first.server.get(key))} against {_shown(second.server.get(key))}"
        for key in sorted({*first.server, *second.server})
        if first.server.get(key) != second.server.get(key) and key != "client"
    ]
    if clients[0] == clients[1] and first.server.get("machine") != second.server.get("machine"):
        warnings.append("the load generators ran on different machines: their delays may contribute to the difference")
    notes = dict.fromkeys(note for side in (baseline, candidate) for run in side.runs for note in run.notes)
    return Differences(tuple(refusals), (*warnings, *notes), tuple(compared))


def _suspects(side: Side) -> list[str]:
    """One line per side: runs on one machine mostly have the same reasons."""
    suspect = [run for run in side.runs if run.level == "suspect"]
    if not suspect:
        return []
    why = "; ".join(suspect[0].reasons)
    if len(suspect) == 1:
        return [f"{side.label}: run {suspect[0].label} is suspect ({why})"]
    runs = ", ".join(run.label for run in suspect)
    return [f"{side.label}: {len(suspect)} of {len(side.runs)} runs are suspect: {runs} (of {suspect[0].label}: {why})"]


def _keys(side: Side) -> set[str]:
    return {key for run in side.runs for key in run.asks}


def _lengths(baseline: Side, candidate: Side) -> list[str]:
    """Differences in mean length: shorter outputs look like a faster server."""
    lines = []
    for name, texts in (("output_tokens", "outputs"), ("input_tokens", "prompts")):
        before, after = _mean(baseline, name), _mean(candidate, name)
        if before is None or after is None:
            lines.append(f"the length of {texts} is not known on both sides: it may explain the difference")
        elif abs(after / before - 1) > _LENGTHS:
            lines.append(
                f"the candidate's {texts} are {abs(after / before - 1):.1%} {'longer' if after > before else 'shorter'} "
                f"({short(after)} against {short(before)} tokens): turn rates and E2E are of different work; fix the lengths "
                "(request.ignore_eos)"
            )
    return lines


def _mean(side: Side, name: str) -> float | None:
    lengths = [getattr(run, name) for run in side.runs]
    return None if None in lengths or not lengths or not sum(lengths) else sum(lengths) / len(lengths)


def _shown(value: object) -> str:
    if isinstance(value, Mapping):
        return str(value.get("name") or dict(value))
    return "not set" if value is None else str(value)
