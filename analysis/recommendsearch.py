"""Most users within an SLO, from searches: what `inferload search` found of each variant, with the bounds that are sure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inferload import rundir
from inferload.errors import UsageError
from inferload.numbers import number

from .recommend import Advice


@dataclass(frozen=True, slots=True)
class Searched:
    """One variant's search. Loads in `unit`: the highest that is sure to hold, the lowest sure not to, the best estimate."""

    label: str
    slo: str
    unit: str
    scenario: str
    digest: str
    holds: float | None
    breaks: float | None
    estimate: float | None
    text: str


def read(given: str) -> Searched:
    """Of `[NAME=]FOLDER`; UsageError where it is no search that ended."""
    label, sign, rest = given.partition("=")
    path = Path(rest) if sign and not Path(given).exists() else Path(given)
    if not (path / rundir.SEARCH).is_file():
        raise UsageError(f"--search {given}: holds no {rundir.SEARCH}; name a folder that inferload search wrote")
    said = rundir.read_json(path / rundir.SEARCH)
    try:
        return _searched(label if path != Path(given) else path.name, said)
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(
            f"--search {given}: {rundir.SEARCH} has no {error}; is it whole, and no sweep of --rates?"
        ) from error


def _searched(label: str, said: Mapping[str, Any]) -> Searched:
    answer, scenario = said["answer"], said["scenario"]
    holds, breaks, estimate = (
        None if answer[key] is None else float(answer[key]) for key in ("holds", "breaks", "estimate")
    )
    return Searched(
        label=label,
        slo=str(said["slo"]),
        unit=str(said["unit"]),
        scenario=str(scenario["name"]),
        digest=str(scenario.get("digest") or ""),
        holds=holds,
        breaks=breaks,
        estimate=estimate,
        text=str(answer["text"]),
    )


def check(searches: Sequence[Searched], labels: Sequence[str]) -> None:
    """UsageError: a search of no variant, or two of one."""
    for one in searches:
        if one.label not in labels:
            known = ", ".join(labels)
            raise UsageError(
                f"--search {one.label}=...: no such variant; there are {known}: name one of them before the ="
            )
        if [other.label for other in searches].count(one.label) > 1:
            raise UsageError(f"--search {one.label}=...: given twice; one search for each variant")


def advise(searches: Sequence[Searched], baseline: str) -> list[Advice]:
    """A row for each question that was searched: SLO, scenario and unit of load alike."""
    questions = dict.fromkeys((one.slo, one.scenario, one.digest, one.unit) for one in searches)
    return [
        _row([one for one in searches if (one.slo, one.scenario, one.digest, one.unit) == asked], baseline)
        for asked in questions
    ]


def _row(searches: Sequence[Searched], baseline: str) -> Advice:
    """The variant with the highest load that is sure; certain where that is no less than what all others are sure to break."""
    first = searches[0]
    aim, figure = f"most users, searched with {first.scenario}", f"load that holds {first.slo} for sure"
    found = "; ".join(f"{one.label}: {one.text}" for one in searches)
    known = [one for one in searches if one.holds is not None]
    if not known:
        return Advice(aim, None, figure, None, first.unit, why=f"not measured: no load is sure to hold it ({found})")
    best = max(known, key=lambda one: one.holds or 0.0)
    others = [one for one in searches if one is not best]
    sure = bool(others) and all(one.breaks is not None and one.breaks <= (best.holds or 0.0) for one in others)
    base = next((one for one in others if one.label == baseline), None)
    change, low, high = _gain(best, base)
    if not others:
        said = "the only variant that was searched"
    elif sure:
        said = "what it holds for sure, each other breaks for sure"
    else:
        said = "not certain: the bounds of the searches overlap"
    between = "" if low is None or high is None else f"; between {low:+.1%} and {high:+.1%} by the bounds"
    upper = "" if best.breaks is None else f", and breaks it at {number(best.breaks)}"
    return Advice(
        aim,
        best.label,
        figure,
        best.holds,
        first.unit,
        change,
        certainty="counted",
        why=f"{said}{upper}{between} ({found})",
    )


def _gain(best: Searched, base: Searched | None) -> tuple[float | None, float | None, float | None]:
    """(change of the best estimates, the least and the most that the sure bounds leave) against the baseline."""
    if base is None:
        return None, None, None

    def change(mine: float | None, theirs: float | None) -> float | None:
        return mine / theirs - 1 if mine and theirs else None

    return (
        change(best.estimate, base.estimate),
        change(best.holds, base.breaks),
        change(best.breaks, base.holds),
    )
