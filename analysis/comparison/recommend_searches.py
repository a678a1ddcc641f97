"""Aims from the results of `inferload search`: the variant with the highest load that meets the SLO."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from inferload import rundir
from inferload.errors import UsageError
from inferload.numbers import number

from .recommend import AimResult, Recommendation
from .sides import named_path, path_label


@dataclass(frozen=True, slots=True)
class VariantSearch:
    """Search of one variant. `question`: SLO, scenario, digest, unit; `holds`, `breaks`: loads that meet and miss the SLO."""

    label: str
    question: tuple[str, str, str, str]
    holds: float | None
    breaks: float | None
    estimate: float | None
    text: str


def read_search(argument: str) -> VariantSearch:
    """Read the search of `[NAME=]FOLDER`; UsageError if there is none or it has no answer."""
    label, path = named_path(argument)
    if not (path / rundir.SEARCH).is_file():
        raise UsageError(f"--search {argument}: contains no {rundir.SEARCH}; name a folder of inferload search")
    document = rundir.read_json(path / rundir.SEARCH)
    try:
        answer, scenario = document["answer"], document["scenario"]
        holds, breaks, estimate = (
            None if answer[key] is None else float(answer[key]) for key in ("holds", "breaks", "estimate")
        )
        question = (document["slo"], scenario["name"], scenario.get("digest") or "", document["unit"])
        search = VariantSearch(label or path_label(path), question, holds, breaks, estimate, str(answer["text"]))
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(
            f"--search {argument}: {rundir.SEARCH} cannot be used ({error}); is it complete, and not a sweep of --rates?"
        ) from error
    if answer.get("ended") == "contradiction" or (holds is not None and breaks is not None and holds >= breaks):
        raise UsageError(
            f"--search {argument}: {number(holds)} {document['unit']} held the SLO and {number(breaks)} did not: no answer; "
            "search again with longer points (--point)"
        )
    return search


def with_searches(recommendation: Recommendation, searches: Sequence[VariantSearch]) -> Recommendation:
    """Add an aim for each question of the searches; UsageError for an unknown variant, or two searches of one variant."""
    labels = [variant.side.label for variant in recommendation.variants]
    searched = [search.label for search in searches]
    for label in searched:
        if label not in labels:
            raise UsageError(f"--search {label}=...: no such variant; name one of {', '.join(labels)} before the =")
        if searched.count(label) > 1:
            raise UsageError(f"--search {label}=...: given twice; one search for each variant")
    aims = [
        _aim([search for search in searches if search.question == question], recommendation.baseline.label)
        for question in dict.fromkeys(search.question for search in searches)
    ]
    return replace(recommendation, aims=(*recommendation.aims, *aims))


def _aim(searches: Sequence[VariantSearch], baseline: str) -> AimResult:
    """Return the variant with the highest load that meets the SLO."""
    slo, scenario, _, unit = searches[0].question
    aim, figure = f"most users, searched with {scenario}", f"load that meets {slo}"
    texts = "; ".join(f"{search.label}: {search.text}" for search in searches)
    held = [(search.holds, search) for search in searches if search.holds is not None]
    if not held:
        remark = f"not measured: no load met it with certainty ({texts})"
        return AimResult(aim, None, figure, None, unit, remark=remark)
    load, best = max(held, key=lambda pair: pair[0])
    others = [search for search in searches if search is not best]
    tied = tuple(search.label for search in others if search.breaks is None or search.breaks > load)
    remark = "the only searched variant"
    if others:
        remark = "the bounds of the searches overlap" if tied else "all other variants miss it at this load"
    if best.breaks is not None:
        remark += f"; missed at {number(best.breaks)}"
    base = next((search for search in others if search.label == baseline), None)
    change = best.estimate / base.estimate - 1 if base and best.estimate and base.estimate else None
    if base and base.breaks and base.holds and best.holds and best.breaks:
        low, high = best.holds / base.breaks - 1, best.breaks / base.holds - 1
        remark += f"; bounds of the gain: {low:+.1%} to {high:+.1%}"
    result = AimResult(aim, best.label, figure, load, unit, change, remark=f"{remark} ({texts})")
    return replace(result, tied=tied, certainty="tie" if tied else "counted")
