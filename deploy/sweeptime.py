"""The time that a sweep takes: from durations in its journal, else from the phases and counts of its scenarios."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

from inferload.content.data import Data
from inferload.numbers import duration, listed
from inferload.plan.planned_load import SampleSize, planned_end_s
from inferload.scenario.scenario import Scenario
from inferload.workload.sessions import Sessions

from .sweepfile import Sweep
from .sweepjournal import Journal
from .sweepplan import PlannedRun, Start

# Estimates, used until a sweep has durations of its own: the start of an engine, and a run's time beside its phases
# (processes, preflight, drain, files; its pages).
START_S = {"simulator": 2.0, "vllm-cpu": 35.0, "vllm": 120.0}
RUN_S = 5.0
PAGES_S = 3.0
_SAMPLE = SampleSize(200, 2_000)


@dataclass(frozen=True, slots=True)
class RunTime:
    """The time of one run: `beside_s`, and that of its phases. `load_s` None: not known before a run; `limit_s` None: no limit."""

    beside_s: float
    load_s: float | None
    limit_s: float | None = None


def planned(sweep: Sweep, scenario: Scenario, given: str) -> RunTime:
    """The time of a run from its scenario alone; `given`: the scenario as the sweep names it."""
    if sweep.measure_s is not None:
        scenario = scenario.changed({"phases.measure_s": sweep.measure_s})
    phases, passes = scenario.phases, 2 if scenario.cache.twice else 1
    end_s = planned_end_s(scenario, Sessions(scenario, Data(given)), _SAMPLE)
    limit_s = None if phases.measure_s is None else phases.warmup_s + phases.measure_s + phases.drain_s
    return RunTime(
        beside_s=RUN_S + (PAGES_S if sweep.reports else 0.0),
        load_s=None if end_s is None else passes * end_s,
        limit_s=None if limit_s is None else passes * limit_s,
    )


def left_in_words(
    plan: Sequence[Start], journal: Journal, planned_times: Mapping[str, RunTime], engine: str, retry: bool
) -> str:
    """The time of the runs that are left, by the scenarios' planned times. `retry`: failed runs are made again."""
    made = {name: RunTime(mean(found), 0.0) for name, found in journal.run_durations_s().items()}
    times = {**planned_times, **made}
    left = [start for start in plan if _left(start, journal, retry)]
    runs = [run.scenario for start in left for run in _left(start, journal, retry)]
    starts_s = len(left) * mean(journal.start_durations_s or [START_S[engine]])
    known_s = starts_s + sum(times[name].beside_s + (times[name].load_s or 0.0) for name in runs)
    suffix = "" if len(runs) == sum(len(start.runs) for start in plan) else " left"
    unknown = [name for name in dict.fromkeys(runs) if times[name].load_s is None]
    unlimited = [name for name in unknown if times[name].limit_s is None]
    if unlimited:
        return f"at least about {_rounded(known_s)}{suffix}: the time of a run of {listed(unlimited)} is not known before it"
    if unknown:
        most = _rounded(known_s + sum(times[name].limit_s or 0.0 for name in runs if name in unknown))
        return f"at most about {most}{suffix}: a run of {listed(unknown)} may end before its time limit"
    return f"about {_rounded(known_s)}{suffix}"


def _left(start: Start, journal: Journal, retry: bool) -> list[PlannedRun]:
    return [run for run in start.runs if not _done(journal, run, retry)]


def _done(journal: Journal, run: PlannedRun, retry: bool) -> bool:
    outcome = journal.outcome(run.folder)
    return outcome is not None and not (retry and outcome.get("cause"))


def _rounded(total_s: float) -> str:
    return duration(round(total_s))
