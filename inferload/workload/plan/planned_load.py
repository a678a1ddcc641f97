"""Sessions and turns of a run, drawn before the run by its seed and its phases.

The plan assumes one worker, no failed turns, and answers that take no time; users of a closed loop take their sessions in order.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, takewhile
from math import inf
from typing import NamedTuple

from inferload.scenario.scenario import Scenario
from inferload.scenario.schema.workloads import Mix
from inferload.workload.arrivals import Arrival, schedule_of
from inferload.workload.content.script import PlannedTurn, outline
from inferload.workload.sessions import Sessions


@dataclass(frozen=True, slots=True)
class SampleSize:
    """Limit of drawn sessions: drawing ends after so many sessions, or with the session that reaches so many turns."""

    sessions: int
    turns: int


@dataclass(slots=True)
class PlannedSession:
    """Drawn session. `sent`: its turns that start before the end of the run."""

    index: int
    class_name: str
    turns: tuple[PlannedTurn, ...]
    arrives_s: float = 0.0  # since the start of the load
    sent: tuple[PlannedTurn, ...] = ()

    @property
    def duration_s(self) -> float:
        """Time from the arrival to the start of the last turn, if answers took no time. Sub-agents run concurrently."""
        return max((turn.at_s for turn in self.turns), default=0.0)


@dataclass(frozen=True, slots=True)
class PlannedLoad:
    """Sessions of a run. `session_count`, `turn_count`: about those of the measure phase.

    None: not known before the run, or the run has no end. `whole`: all sessions are drawn.
    """

    sessions: tuple[PlannedSession, ...]  # drawn ones
    whole: bool
    session_count: float | None = None
    turn_count: float | None = None


class _Window(NamedTuple):
    """Start and end of the measure phase, in seconds since the start of the load."""

    start_s: float
    end_s: float

    @classmethod
    def of(cls, scenario: Scenario) -> "_Window":
        """Return the window of an open loop. A count ends a run after a warm-up of unknown length: that is left out."""
        phases = scenario.phases
        if not scenario.arrivals.open_loop:
            return cls(0.0, inf)
        start_s = 0.0 if phases.adaptive and phases.counted else phases.warmup_s
        return cls(start_s, inf if phases.measure_s is None else start_s + phases.measure_s)


def planned_load(scenario: Scenario, source: Sessions, sample: SampleSize) -> PlannedLoad:
    """Draw the first sessions of a run and estimate the totals. UsageError for unreadable data."""
    phases, window = scenario.phases, _Window.of(scenario)
    drawn, whole = _drawn(scenario, source, sample, window)
    unknown = not source.repeatable and any(not session.turns for session in drawn)
    most_turns = inf if unknown else phases.turns or inf
    _send_in_order(drawn, window, most_turns, in_sequence=not scenario.arrivals.open_loop)
    sessions = tuple(session for session in drawn if session.sent or not session.turns)
    turns = sum(len(session.sent) for session in sessions)
    if unknown and (phases.turns is not None or not turns):
        return PlannedLoad(sessions, whole)
    per_session = turns / len(sessions) if sessions else 0.0
    measured = sum(session.arrives_s >= window.start_s for session in sessions)
    by_time = measured if whole else _started(scenario, source, window)
    by_turns = phases.turns / per_session if phases.turns is not None and per_session else None
    count = min((limit for limit in (by_time, phases.sessions, by_turns) if limit is not None), default=None)
    return PlannedLoad(sessions, whole, count, None if count is None else count * per_session)


def _drawn(
    scenario: Scenario, source: Sessions, sample: SampleSize, window: _Window
) -> tuple[list[PlannedSession], bool]:
    """Return the first sessions of the run, and whether there are no others."""
    most = min(scenario.phases.sessions or inf, scenario.phases.turns or inf)  # each session has a turn
    sessions: list[PlannedSession] = []
    measured = turns = 0
    for arrival in _arrivals(scenario, source, window.end_s):
        if measured == most:
            return sessions, True
        if len(sessions) >= sample.sessions or turns >= sample.turns:
            return sessions, False
        begun = source.begin(arrival.index)
        planned = tuple(outline(begun.script, arrival.index))
        sessions.append(PlannedSession(arrival.index, begun.class_name, planned, arrival.due_s))
        turns += len(planned)
        measured += arrival.due_s >= window.start_s
    return sessions, True


def _send_in_order(sessions: list[PlannedSession], window: _Window, most_turns: float, in_sequence: bool) -> None:
    """Mark the turns before the end of the run. `most_turns`: of the measure phase. `in_sequence`: one session after another."""
    due = sorted(
        (0.0 if in_sequence else session.arrives_s + turn.at_s, position, number)
        for position, session in enumerate(sessions)
        for number, turn in enumerate(session.turns)
    )
    sent: list[list[int]] = [[] for _ in sessions]
    for at_s, position, number in due:
        if at_s >= window.end_s or most_turns <= 0:
            break
        sent[position].append(number)
        most_turns -= at_s >= window.start_s
    for session, numbers in zip(sessions, sent, strict=True):
        session.sent = tuple(session.turns[number] for number in sorted(numbers))


def _started(scenario: Scenario, source: Sessions, window: _Window) -> float | None:
    """Return the number of sessions that an open loop starts in a window; None: without end, or a closed loop."""
    if scenario.arrivals.own_end is not None:
        return sum(arrival.due_s >= window.start_s for arrival in _arrivals(scenario, source, window.end_s))
    return None if window.end_s == inf else expected_sessions(scenario, *window)


def planned_end_s(scenario: Scenario, source: Sessions, sample: SampleSize) -> float | None:
    """Return the end of the load, in seconds from its start, if answers took no time.

    None: not known before the run, or the run has no end. UsageError for unreadable data.
    """
    phases = scenario.phases
    if phases.adaptive or (not scenario.open_loop and phases.counted):
        return None
    if phases.measure_s is not None and not phases.counted:
        end_s = phases.warmup_s + phases.measure_s
        if scenario.arrivals.own_end is None:
            return end_s
        trace_s = planned_end_s(scenario.changed({"phases.measure_s": None}), source, sample)
        return end_s if trace_s is None else min(end_s, trace_s)
    load = planned_load(scenario, source, sample)
    if load.session_count is None:
        return None
    if load.whole:
        return max((session.arrives_s + turn.at_s for session in load.sessions for turn in session.sent), default=0.0)
    measured = (arrival for arrival in _arrivals(scenario, source, inf) if arrival.due_s >= phases.warmup_s)
    *_, last = islice(measured, round(load.session_count))
    return last.due_s + sum(session.duration_s for session in load.sessions) / len(load.sessions)


def expected_sessions(scenario: Scenario, from_s: float, until_s: float) -> float | None:
    """Return the mean number of sessions that an open loop starts between two times of the load; None: unknown."""
    rate, curve = scenario.arrivals.rate, scenario.arrivals.rate_curve(scenario.phases.warmup_s)
    if rate is None or curve is None:
        return None
    return _sent_share(scenario) * rate * (curve.area(until_s) - curve.area(from_s))


def expected_time_s(scenario: Scenario, sessions: float) -> float | None:
    """Return the time of the load until which an open loop starts so many sessions on average; None: never, or unknown."""
    rate, curve = scenario.arrivals.rate, scenario.arrivals.rate_curve(scenario.phases.warmup_s)
    if rate is None or curve is None:
        return None
    return curve.time_of(sessions / (_sent_share(scenario) * rate))


def _sent_share(scenario: Scenario) -> float:
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
