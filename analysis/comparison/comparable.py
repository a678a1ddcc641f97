"""Whether two sides asked the same, so that what differs between their figures is the server's doing."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from inferload.numbers import short

from ..interop.imported import OUR_EXPORT
from .sides import Side

_LENGTHS = 0.02  # answers that differ by more than this in length are another workload


OURS = "inferload"


@dataclass(frozen=True, slots=True)
class Differences:
    """`refusals`: why no comparison can be made; `warnings`: what a reader has to know; `compared`: what is meant to differ."""

    refusals: tuple[str, ...]
    warnings: tuple[str, ...]
    compared: tuple[str, ...]


def differences(baseline: Side, candidate: Side, allowed: Collection[str] = ()) -> Differences:
    """What differs between two sides, each in one line that names the key. `allowed`: keys that are meant to differ."""
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
            said = {_shown(run.asks.get(key)) for run in side.runs}
            if len(said) > 1:
                refusals.append(f"{side.label}: its own runs differ in {key}: {', '.join(sorted(said))}")
    one, other = baseline.runs[0], candidate.runs[0]
    clients = one.server.get("client", OURS), other.server.get("client", OURS)
    if clients[0] != clients[1]:
        of_ours = set(clients) == {OURS, OUR_EXPORT}
        why = "one clock, but other definitions" if of_ours else "each has its own clock and its own definitions"
        remedy = "; compare the run directories" if OUR_EXPORT in clients else ""
        refusals.insert(0, f"client: {clients[0]} against {clients[1]}: {why}{remedy}")
    for key in () if clients[0] != clients[1] else sorted(_keys(baseline) | _keys(candidate)):
        if one.asks.get(key) != other.asks.get(key):
            said_both = f"{key}: {_shown(one.asks.get(key))} against {_shown(other.asks.get(key))}"
            (compared if key in allowed else refusals).append(said_both)
    warnings += _lengths(baseline, candidate)
    compared += [
        f"{key}: {_shown(one.server.get(key))} against {_shown(other.server.get(key))}"
        for key in sorted({*one.server, *other.server})
        if one.server.get(key) != other.server.get(key) and key != "client"
    ]
    if clients[0] == clients[1] and one.server.get("machine") != other.server.get("machine"):
        warnings.append("the load came from machines that differ: their own delays may be part of the difference")
    notes = dict.fromkeys(note for side in (baseline, candidate) for run in side.runs for note in run.notes)
    return Differences(tuple(refusals), (*warnings, *notes), tuple(compared))


def _suspects(side: Side) -> list[str]:
    """One line a side: several runs on one machine mostly suffer from the same."""
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
    """Shorter answers look like speed; prompts of another length are another question."""
    found = []
    for name, what in (("output_tokens", "answers"), ("input_tokens", "prompts")):
        before, after = _mean(baseline, name), _mean(candidate, name)
        if before is None or after is None:
            found.append(f"the length of {what} is not known on both sides: it may be what differs")
        elif abs(after / before - 1) > _LENGTHS:
            found.append(
                f"the candidate's {what} are {abs(after / before - 1):.1%} {'longer' if after > before else 'shorter'} "
                f"({short(after)} against {short(before)} tokens): rates of turns and end-to-end times are of different work; "
                "force the lengths (request.ignore_eos)"
            )
    return found


def _mean(side: Side, name: str) -> float | None:
    found = [getattr(run, name) for run in side.runs]
    return None if None in found or not found or not sum(found) else sum(found) / len(found)


def _shown(value: object) -> str:
    if isinstance(value, Mapping):
        return str(value.get("name") or dict(value))
    return "nothing" if value is None else str(value)
