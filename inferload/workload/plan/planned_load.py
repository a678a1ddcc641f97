"""Sessions and turns of a run, drawn before the run by its seed and its phases.

The plan assumes one worker, no failed turns, and answers that take no time; users of a closed loop take their sessions in order.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from itertools import islice, takewhile
from math import inf

from msgspec import Struct

from inferload.base.status_lines import progress
from inferload.scenario.scenario import Scenario
from inferload.scenario.schema.workloads import Mix
from inferload.workload.arrivals import Arrival, schedule_of
from inferload.workload.content.script import PlannedTurn, outline
from inferload.workload.sessions import Sessions


class SampleSize(Struct, frozen=True):
    """Limit of drawn sessions: drawing ends after so many sessions, or with the session that reaches so many turns."""

    sessions: int
    turns: int


class PlannedSession(Struct, frozen=True):
    """Drawn session. `sent`: its turns that start before the end of the run."""

    index: int
    class_name: str
    turns: tuple[PlannedTurn, ...]
    arrives_s: float  # since the start of the load
    sent: tuple[PlannedTurn, ...]

    @property
    def duration_s(self) -> float:
        """Time from the arrival to the start of the last turn, if answers took no time. Sub-agents run concurrently."""
        return max((turn.at_s for turn in self.turns), default=0.0)


class PlannedLoad(Struct, frozen=True):
    """Sessions of a run. `session_count`, `turn_count`: about those that start in the measure phase.

    None: not known before the run, or the run has no end. `whole`: all sessions are drawn. `measured`: the turns of the drawn
    sessions, each with the number of turns in the measure phase that it stands for.
    """

    sessions: tuple[PlannedSession, ...]  # drawn ones
    whole: bool
    session_count: float | None = None
    measured: tuple[tuple[PlannedTurn, float], ...] = ()

    @property
    def turn_count(self) -> float | None:
        return None if self.session_count is None else sum(count for _, count in self.measured)


def planned_load(scenario: Scenario, source: Sessions, sample: SampleSize) -> PlannedLoad:
    """Draw the first sessions of a run and estimate the totals. UsageError for unreadable data."""
    phases = scenario.phases
    start_s, end_s = _window(scenario)
    load = drawn_load(scenario, source, sample)
    sessions, whole = load.sessions, load.whole
    unknown = not source.repeatable and any(not session.turns for session in sessions)
    if unknown and (phases.turns is not None or not any(session.sent for session in sessions)):
        return load
    if whole:
        count: float | None = sum(session.arrives_s >= start_s for session in sessions)
        measured = [(turn, 1.0) for one in sessions for turn in one.sent if one.arrives_s + turn.at_s >= start_s]
    else:
        planned = [turn for session in sessions for turn in session.turns]
        started = _starts(scenario, source, end_s)
        in_time = started(start_s, end_s)
        by_turns = phases.turns * len(sessions) / len(planned) if phases.turns is not None and planned else None
        count = min((limit for limit in (in_time, phases.sessions, by_turns) if limit is not None), default=None)
        if count is not None and count == in_time:
            spans = ((turn, max(0.0, start_s - turn.at_s), max(0.0, end_s - turn.at_s)) for turn in planned)
            measured = [(turn, (started(low, high) or 0.0) / len(sessions)) for turn, low, high in spans]
        else:
            measured = [(turn, (count or 0.0) / len(sessions)) for turn in planned]
    total = sum(each for _, each in measured)
    scale = min(1.0, phases.turns / total) if phases.turns is not None and total else 1.0
    return PlannedLoad(sessions, whole, count, tuple((turn, scale * each) for turn, each in measured))


def _window(scenario: Scenario) -> tuple[float, float]:
    """Return start and end of the measure phase of an open loop, in seconds since the start of the load.

    A count ends a run after a warm-up of unknown length: that is left out.
    """
    phases = scenario.phases
    if not scenario.open_loop:
        return 0.0, inf
    start_s = 0.0 if phases.adaptive and phases.counted else phases.warmup_s
    return start_s, inf if phases.measure_s is None else start_s + phases.measure_s


def drawn_load(scenario: Scenario, source: Sessions, sample: SampleSize) -> PlannedLoad:
    """Draw the first sessions of a run, without the totals. UsageError for unreadable data."""
    most_sessions, most_turns = scenario.phases.sessions or inf, scenario.phases.turns or inf
    start_s, end_s = _window(scenario)
    sessions: list[PlannedSession] = []
    measured = measured_turns = turns = 0

    def share(_last: object) -> float:
        return max(len(sessions) / sample.sessions, turns / sample.turns)

    arrivals, title = _arrivals(scenario, source, end_s), f"drawing sessions of {scenario.name}"
    for arrival in progress.of(arrivals, title, 1, share):
        if measured >= most_sessions or measured_turns >= most_turns:
            break
        if len(sessions) >= sample.sessions or turns >= sample.turns:
            return PlannedLoad(tuple(sessions), whole=False)
        begun = source.begin(arrival.index)
        planned = tuple(outline(begun.script, arrival.index))
        sent = tuple(turn for turn in planned if arrival.due_s + turn.at_s < end_s)
        sessions.append(PlannedSession(arrival.index, begun.class_name, planned, arrival.due_s, sent))
        turns += len(sent)
        if arrival.due_s >= start_s:
            measured += 1
            measured_turns += len(sent)
    return PlannedLoad(tuple(sessions), whole=True)


def _starts(scenario: Scenario, source: Sessions, end_s: float) -> Callable[[float, float], float | None]:
    """Return a function for the number of sessions that an open loop starts between two times; None: without end, a closed loop."""
    if scenario.arrivals.own_end is not None:
        due_s = [arrival.due_s for arrival in _arrivals(scenario, source, end_s)]
        return lambda low, high: bisect_left(due_s, high) - bisect_left(due_s, low)
    return lambda low, high: None if high == inf else expected_sessions(scenario, low, high)


def planned_end_s(scenario: Scenario, source: Sessions, sample: SampleSize) -> float | None:
    """Return the end of the load, in seconds from its start, if answers took no time.

    None: not known before the run, or the run has no end. UsageError for unreadable data.
    """
    phases = scenario.phases
    if phases.adaptive or (not scenario.open_loop and phases.counted):
        return None
    end_s = inf if phases.measure_s is None else phases.warmup_s + phases.measure_s
    if not phases.counted and scenario.arrivals.own_end is None:
        return None if end_s == inf else end_s
    load = planned_load(scenario, source, sample)
    if load.session_count is None:
        return None
    if load.whole:
        return min(end_s, max((session.arrives_s + session.duration_s for session in load.sessions), default=0.0))
    measured = (arrival for arrival in _arrivals(scenario, source, end_s) if arrival.due_s >= phases.warmup_s)
    *_, last = islice(measured, round(load.session_count))
    return min(end_s, last.due_s + sum(session.duration_s for session in load.sessions) / len(load.sessions))


def expected_sessions(scenario: Scenario, from_s: float, until_s: float) -> float | None:
    """Return the mean number of sessions that an open loop starts between two times of the load; None: unknown."""
    rate, curve = scenario.arrivals.rate, scenario.arrivals.rate_curve(scenario.phases.warmup_s)
    if rate is None or curve is None:
        return None
    return sent_share(scenario) * rate * (curve.area(until_s) - curve.area(from_s))


def expected_time_s(scenario: Scenario, sessions: float) -> float | None:
    """Return the time of the load until which an open loop starts so many sessions on average; None: never, or unknown."""
    rate, curve = scenario.arrivals.rate, scenario.arrivals.rate_curve(scenario.phases.warmup_s)
    if rate is None or curve is None:
        return None
    return curve.time_of(sessions / (sent_share(scenario) * rate))


def sent_share(scenario: Scenario) -> float:
    """Return the share of the sessions that the run sends."""
    workload = scenario.workload
    if not isinstance(workload, Mix) or workload.only is None:
        return 1.0
    return next(mix_class.share for mix_class in workload.classes if mix_class.name == workload.only)


def _arrivals(scenario: Scenario, source: Sessions, end_s: float) -> Iterator[Arrival]:
    """Return the starts of sessions before a time of the load; those of a closed loop have time 0."""
    if not scenario.arrivals.open_loop:
        return (Arrival(index, 0.0) for index in source.indexes)
    schedule = schedule_of(scenario, source, scenario.arrivals.rate or 0.0)
    return takewhile(lambda arrival: arrival.due_s < end_s, iter(schedule.next, None))
