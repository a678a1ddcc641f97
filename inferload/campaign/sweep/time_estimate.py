"""Duration of a sweep, from its journal or from the phases and counts of its scenarios."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import mean

from inferload.base.numbers import duration, listed
from inferload.campaign.journal import Journal
from inferload.campaign.sweep.definition import Load, Sweep
from inferload.campaign.sweep.plan import PlannedRun, ServerStart
from inferload.workload.content.data import DataContext
from inferload.workload.plan.planned_load import SampleSize, planned_end_s
from inferload.workload.sessions import Sessions

# Estimates for a sweep without durations in its journal: start of an engine, time of a run outside its phases (processes,
# preflight, drain, files), and time for its reports.
START_S = {"simulator": 2.0, "vllm-cpu": 35.0, "vllm": 120.0, "running": 0.0}
RUN_S = 5.0
PAGES_S = 3.0
VIRTUAL_S = 2.0  # of a run on a virtual clock, whose duration depends on its tokens
_SAMPLE = SampleSize(200, 2_000)


@dataclass(frozen=True, slots=True)
class RunTime:
    """Duration of a run: outside the phases; of the phases, None if unknown before the run; limit of the phases."""

    overhead_s: float
    load_s: float | None
    limit_s: float | None = None


def planned(sweep: Sweep, load: Load) -> RunTime:
    """Estimate the duration of a run from its scenario."""
    scenario = load.scenario
    if sweep.clock == "virtual":
        return RunTime(VIRTUAL_S + (PAGES_S if sweep.reports else 0.0), 0.0)
    if sweep.measure_s is not None:
        scenario = scenario.changed({"phases.measure_s": sweep.measure_s})
    phases, passes = scenario.phases, 2 if scenario.cache.twice else 1
    end_s = planned_end_s(scenario, Sessions(scenario, DataContext(load.source)), _SAMPLE)
    limit_s = None if phases.measure_s is None else phases.warmup_s + phases.measure_s + phases.drain_s
    return RunTime(
        overhead_s=RUN_S + (PAGES_S if sweep.reports else 0.0),
        load_s=None if end_s is None else passes * end_s,
        limit_s=None if limit_s is None else passes * limit_s,
    )


def remaining_text(
    plan: Sequence[ServerStart], journal: Journal, planned_times: Mapping[str, RunTime], engine: str, retry: bool
) -> str:
    """Describe the duration of the remaining runs. `retry`: failed runs are repeated."""
    durations_s: dict[str, list[float]] = {}
    for entry in journal.runs:
        if not entry.cause:
            durations_s.setdefault(entry.folder.partition("/")[0], []).append(entry.took_s)
    times = {**planned_times, **{name: RunTime(mean(of_runs_s), 0.0) for name, of_runs_s in durations_s.items()}}

    def is_left(run: PlannedRun) -> bool:
        outcome = journal.outcome(run.folder)
        return outcome is None or bool(retry and outcome.cause)

    left = [[run.scenario for run in start.runs if is_left(run)] for start in plan]
    runs = list(chain(*left))
    starts_s = sum(map(bool, left)) * mean(journal.start_durations_s or [START_S[engine]])
    known_s = starts_s + sum(times[name].overhead_s + (times[name].load_s or 0.0) for name in runs)
    suffix = "" if len(runs) == sum(len(start.runs) for start in plan) else " left"
    unknown = [name for name in dict.fromkeys(runs) if times[name].load_s is None]
    unlimited = [name for name in unknown if times[name].limit_s is None]
    if unlimited:
        loads = listed(unlimited) if len(unlimited) < 3 else f"{len(unlimited)} loads"
        return f"at least about {duration(round(known_s))}{suffix}: the duration of a run of {loads} is unknown"
    if unknown:
        upper = duration(round(known_s + sum(times[name].limit_s or 0.0 for name in runs if name in unknown)))
        return f"at most about {upper}{suffix}: a run of {listed(unknown)} may end before its time limit"
    return f"about {duration(round(known_s))}{suffix}"
