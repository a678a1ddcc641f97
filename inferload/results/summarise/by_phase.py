"""Parts of the measure phase between marks and steps of the load: attainment of each, and time to recover after each mark."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np

from inferload.base.clock import NS_PER_S
from inferload.base.rundir import PART_KINDS, Mark
from inferload.figures.limits.slo import Slo
from inferload.figures.turn_batch import TurnBatch
from inferload.figures.turn_figures import ITL
from inferload.figures.turn_values import SLICES
from inferload.results.documents.summary_document import RunPart
from inferload.results.statistics.intervals import share_of_counts
from inferload.results.statistics.recovery import EndedTurns, Recovery, recoveries
from inferload.results.summarise.counts import Counts
from inferload.results.summarise.turns import Turns
from inferload.servers.series import ServerSeries
from inferload.turns.record import INSTANTS
from inferload.turns.sketch import Bools, Floats

_LOAD = ("step", "users", "worker_lost")  # kinds of changes of the load
MOST_PARTS = 100
_Begin = tuple[float, str, Recovery | None]  # instant in s, text, result of a mark
_COLUMNS = ("worker", "class", "failure", "finish_reason", "output_tokens", "hidden_tokens", *INSTANTS)


def parts(run: Counts, turns: Turns, marks: Sequence[Mark], servers: Mapping[str, ServerSeries]) -> list[RunPart]:
    """Return the parts of the measure phase in order; empty if there is one."""
    window = next((window for window in run.course.windows if window.phase == "measure"), None)
    if window is None or window.end_ns is None:
        return []
    start_wall_ns = run.course.anchor.to_wall_ns(window.start_ns)
    lasts_s = (window.end_ns - window.start_ns) / NS_PER_S
    found = [
        ((mark.wall_ns - start_wall_ns) / NS_PER_S, mark.kind, mark.text)
        for mark in marks
        if mark.kind in (*PART_KINDS, "users")
    ]
    for target, server in servers.items():
        at_s = (server.wall_ns[server.restarted] - start_wall_ns) / NS_PER_S
        found += [(float(each), "restart", f"{target} restarted") for each in at_s]
    bounds_s = ((step.start_ns - window.start_ns) / NS_PER_S for step in run.stepped if step.step)
    found += [(at_s, "step", f"step {number}") for number, at_s in enumerate(bounds_s, 1)]
    found = sorted(each for each in found if 0 <= each[0] < lasts_s)
    loads_s = [at_s for at_s, kind, _ in found if kind in _LOAD]
    begins = [each for each in found if each[1] != "users"]
    if not begins:
        return []
    events = [each for each in begins if each[1] not in _LOAD]
    untils_s = [
        next((at_s for at_s, kind, _ in events[n + 1 :] if kind == each[1]), lasts_s) for n, each in enumerate(events)
    ]
    ended = _ended(run, turns, window.start_ns)
    results = recoveries(ended, [at_s for at_s, _, _ in events], untils_s, _steady(run, loads_s, lasts_s))
    by_event = dict(zip(events, results, strict=True))
    rows: list[_Begin] = [(0.0, "start", None), *((each[0], each[2], by_event.get(each)) for each in begins)]
    if len(rows) > MOST_PARTS:
        rows[MOST_PARTS - 1 :] = [(rows[MOST_PARTS - 1][0], f"{len(rows) - MOST_PARTS + 1} more from here", None)]
    ends_s = [*(at_s for at_s, _, _ in rows[1:]), lasts_s]
    return [_part(ended, row, end_s) for row, end_s in zip(rows, ends_s, strict=True)]


def _steady(run: Counts, loads_s: Sequence[float], lasts_s: float) -> list[tuple[float, float]]:
    """Return the spans of constant load: between its changes, and after a profile without steps."""
    profile = run.plan.scenario.arrivals.load_profile
    from_s = 0.0 if profile is None or profile.bounds_s() else min(profile.ends_s, lasts_s)
    return list(pairwise(sorted({from_s, *(at_s for at_s in loads_s if at_s > from_s), lasts_s})))


def _part(turns: EndedTurns, begin: _Begin, end_s: float) -> RunPart:
    start_s, text, recovery = begin
    inside = (turns.planned_s >= start_s) & (turns.planned_s < end_s) & (turns.good | turns.bad)
    ended = (turns.ended_s >= start_s) & (turns.ended_s < end_s)
    judged = end_s > start_s and bool((turns.good | turns.bad)[ended].all())
    return RunPart(
        start_s=start_s,
        end_s=end_s,
        begins=text,
        turns=int(inside.sum()),
        met=int((inside & turns.good).sum()),
        interval=_interval(turns.planned_s[inside] - start_s, turns.good[inside], end_s - start_s),
        goodput_turns_per_s=float((ended & turns.good).sum()) / (end_s - start_s) if judged else None,
        recovery=None if recovery is None else recovery.state,
        recovered_after_s=None if recovery is None else recovery.after_s,
        recovered_within_s=None if recovery is None else recovery.within_s,
        lost=None if recovery is None else recovery.lost,
    )


def _interval(at_s: Floats, good: Bools, lasts_s: float) -> list[float] | None:
    """Return the 95 % interval of a share of turns; None without turns, or if they depend on each other too much."""
    if not len(at_s):
        return None
    slices = np.clip((at_s / lasts_s * SLICES).astype(np.int64), 0, SLICES - 1)
    met, counts = (np.bincount(of, minlength=SLICES).astype(np.float64) for of in (slices[good], slices))
    within = share_of_counts(met, counts)
    return None if within.low is None or within.high is None else [within.low, within.high]


def _ended(run: Counts, turns: Turns, zero_ns: int) -> EndedTurns:
    """Return the turns of all phases, in seconds of the measure phase."""
    scenario = run.plan.scenario
    slos: dict[str, Slo] = {}
    shifts_ns = turns.shifts_ns(run.workers.workers)
    of_gaps = any(ITL.key in scenario.slo_of(name).limits for name in ("", *(scenario.class_names or ())))

    def columns() -> Iterator[tuple[Floats, Floats, Bools, Bools, Bools]]:
        for table in turns.read((*_COLUMNS, "event_ns") if of_gaps else _COLUMNS):
            for rows in table.to_batches():
                batch, classes = TurnBatch.of_columns(rows), np.array(rows["class"].to_pylist(), dtype=object)
                shift_ns = np.array([shifts_ns[name] - zero_ns for name in rows["worker"].to_pylist()], dtype=np.int64)
                good, bad = batch.ok.copy(), ~batch.ok
                for name in dict.fromkeys(classes.tolist()):
                    if name not in slos:
                        slos[name] = Slo(scenario.slo_of(name).limits, from_plan=scenario.open_loop)
                    if slos[name].limits:
                        judged, mine = slos[name].judge(batch), classes == name
                        good[mine], bad[mine] = judged.met[mine], (judged.known & ~judged.met)[mine]
                planned_ns, closed_ns = (batch.numbers[key].values + shift_ns for key in ("planned_ns", "closed_ns"))
                yield planned_ns / NS_PER_S, closed_ns / NS_PER_S, good, bad, ~batch.ok

    none = np.zeros(0, dtype=np.bool_)
    found = [(np.zeros(0), np.zeros(0), none, none, none), *columns()]
    return EndedTurns(*(np.concatenate(each) for each in zip(*found, strict=True)))
