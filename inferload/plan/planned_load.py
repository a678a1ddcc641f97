"""Sessions and turns of a run, drawn before the run by its seed and its phases.

The plan assumes one worker and no failed turns. Where the speed of the server matters, it assumes that answers take no time
(open loop), or that users take turns in rotation (closed loop); `Certainty` marks such figures.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice, takewhile
from math import inf
from typing import Literal

from inferload.content.script import PlannedTurn, outline
from inferload.scenario.scenario import Scenario
from inferload.scenario.schema.arrivals import Closed, Rated, TraceTimes
from inferload.scenario.schema.workloads import Mix
from inferload.workload.arrivals import Arrival
from inferload.workload.schedules import schedule_of
from inferload.workload.sessions import Sessions

MAX_COUNTED = 1_000_000  # arrivals; more are not counted one by one

Certainty = Literal["exact", "most", "about"]  # most: an upper bound


@dataclass(frozen=True, slots=True)
class SampleSize:
    """Limit of drawn sessions: drawing ends after so many sessions, or with the session that reaches so many turns."""

    sessions: int
    turns: int


@dataclass(slots=True)
class PlannedSession:
    """Drawn session. `sent`: its turns that start before the end of the run. `measured`: number of these in the measure phase."""

    index: int
    class_name: str
    turns: tuple[PlannedTurn, ...]
    arrives_s: float = 0.0  # since the start of the load
    sent: tuple[PlannedTurn, ...] = ()
    measured: int = 0

    @property
    def duration_s(self) -> float:
        """Time from the arrival to the start of the last turn, if answers took no time. Sub-agents run concurrently."""
        return max((turn.at_s for turn in self.turns), default=0.0)

    @property
    def single(self) -> bool:
        """True if the session has at most one turn."""
        return len(self.turns) <= 1

    @property
    def cancels(self) -> bool:
        """True if an answer may be cancelled. One that ends before its cancellation needs no turn after it."""
        return any(turn.ask.cancel_after_s is not None for turn in self.turns)


@dataclass(frozen=True, slots=True)
class PlannedLoad:
    """Sessions of a run. None: not known before the run, or the run has no end.

    `session_count`, `turn_count`: of the whole run; if not `warmup_known`, of the measure phase.
    """

    sessions: tuple[PlannedSession, ...]  # drawn ones
    session_count: int | None = None
    session_certainty: Certainty = "exact"
    turn_count: float | None = None
    turn_certainty: Certainty = "exact"
    measured_turn_count: float | None = None
    measured_certainty: Certainty = "exact"
    warmup_known: bool = True


def planned_load(scenario: Scenario, source: Sessions, sample: SampleSize) -> PlannedLoad:
    """Draw the first sessions of a run and count all. UsageError for unreadable data."""
    drawing = _Drawing(source, sample)
    load = (
        _closed(scenario, scenario.arrivals, drawing)
        if isinstance(scenario.arrivals, Closed)
        else _open(scenario, drawing)
    )
    if scenario.phases.turns is None and any(session.cancels for session in load.sessions):
        turns, measured = _at_most(load.turn_certainty), _at_most(load.measured_certainty)
        return replace(load, turn_certainty=turns, measured_certainty=measured)
    return load


def planned_end_s(scenario: Scenario, source: Sessions, sample: SampleSize) -> float | None:
    """Return the end of the load, in seconds from its start, if answers took no time.

    None: not known before the run, or the run has no end. UsageError for unreadable data.
    """
    phases = scenario.phases
    if phases.adaptive or (isinstance(scenario.arrivals, Closed) and phases.counted):
        return None
    if phases.measure_s is not None and not phases.counted:
        end_s = phases.warmup_s + phases.measure_s
        if not isinstance(scenario.arrivals, TraceTimes):
            return end_s
        trace_s = planned_end_s(scenario.changed({"phases.measure_s": None}), source, sample)
        return end_s if trace_s is None else min(end_s, trace_s)
    load = planned_load(scenario, source, sample)
    if load.session_count is None:
        return None
    lengths_s = [max((turn.at_s for turn in session.sent), default=0.0) for session in load.sessions]
    if len(lengths_s) == load.session_count:
        starts_s = [session.arrives_s for session in load.sessions]
        return max(map(sum, zip(starts_s, lengths_s, strict=True)), default=0.0)
    *_, last = islice(arrivals_until(scenario, source, inf), load.session_count)
    return last.due_s + sum(lengths_s) / len(lengths_s)


def expected_sessions(scenario: Scenario, from_s: float, until_s: float) -> float | None:
    """Return the mean number of sessions that an open loop starts between two times of the load; None: unknown."""
    arrivals = scenario.arrivals
    if not isinstance(arrivals, Rated):
        return None
    curve = arrivals.curve(scenario.phases.warmup_s)
    return _sent_share(scenario) * arrivals.rate * (curve.area(until_s) - curve.area(from_s))


def expected_time_s(scenario: Scenario, sessions: float) -> float | None:
    """Return the time of the load until which an open loop starts so many sessions on average; None: never, or unknown."""
    arrivals = scenario.arrivals
    if not isinstance(arrivals, Rated):
        return None
    return arrivals.curve(scenario.phases.warmup_s).time_of(sessions / (_sent_share(scenario) * arrivals.rate))


def _sent_share(scenario: Scenario) -> float:
    """Return the share of the sessions that the run sends."""
    workload = scenario.workload
    if not isinstance(workload, Mix) or workload.only is None:
        return 1.0
    return next(mix_class.share for mix_class in workload.classes if mix_class.name == workload.only)


def arrivals_until(scenario: Scenario, source: Sessions, end_s: float) -> Iterator[Arrival]:
    """Return the arrivals of an open loop before a time of the load."""
    assert not isinstance(scenario.arrivals, Closed)
    schedule = schedule_of(scenario, source, scenario.arrivals.rate)
    return takewhile(lambda arrival: arrival.due_s < end_s, iter(schedule.next, None))


class _Drawing:
    """Sessions drawn so far."""

    def __init__(self, source: Sessions, sample: SampleSize) -> None:
        self.source = source
        self.sessions: list[PlannedSession] = []
        self._sample = sample
        self._turns = 0

    @property
    def full(self) -> bool:
        return len(self.sessions) >= self._sample.sessions or self._turns >= self._sample.turns

    @property
    def unknown(self) -> bool:
        """True if the turns of a drawn session are not known before the run."""
        return not self.source.repeatable and any(not session.turns for session in self.sessions)

    def draw(self, index: int, arrives_s: float = 0.0) -> PlannedSession:
        session = self.source.begin(index)
        turns = tuple(outline(session.script, index))
        self._turns += len(turns)
        self.sessions.append(PlannedSession(index, session.class_name, turns, arrives_s))
        return self.sessions[-1]

    def without_end(self) -> PlannedLoad:
        """Draw the first sessions of a run of unknown length, all turns sent."""
        for index in islice(self.source.indexes, self._sample.sessions):
            if self.full:
                break
            self.draw(index)
        return self.whole()

    def whole(self) -> PlannedLoad:
        """Return the drawn sessions with all turns sent, without totals."""
        for session in self.sessions:
            session.sent = session.turns
        return PlannedLoad(tuple(self.sessions))


# -- open loops


def _open(scenario: Scenario, drawing: _Drawing) -> PlannedLoad:
    phases = scenario.phases
    # If a count ends the run after a warm-up of unknown length, the measure phase alone is planned.
    warmup_s = 0.0 if phases.adaptive and phases.counted else phases.warmup_s
    end_s = inf if phases.measure_s is None else warmup_s + phases.measure_s
    bounded = end_s < inf or phases.counted or isinstance(scenario.arrivals, TraceTimes)
    most = min(phases.sessions or inf, phases.turns or inf)
    if not bounded or (most == inf and (expected_sessions(scenario, 0.0, end_s) or 0) > MAX_COUNTED):
        return drawing.without_end()
    total = measured = 0
    for arrival in arrivals_until(scenario, drawing.source, end_s):
        in_measure = arrival.due_s >= warmup_s
        if in_measure and measured == most:
            break
        total, measured = total + 1, measured + in_measure
        if total > MAX_COUNTED:
            return drawing.whole()
        if not drawing.full:
            drawing.draw(arrival.index, arrival.due_s)
    if phases.turns is not None and drawing.unknown:
        return drawing.whole()
    _send_in_time(drawing.sessions, warmup_s, end_s, phases.turns or inf)
    return _open_totals(scenario, drawing.sessions, total, measured)


def _send_in_time(sessions: list[PlannedSession], warmup_s: float, end_s: float, most_turns: float) -> None:
    """Mark the sent turns in order of time, until the end or until `most_turns` of the measure phase."""
    due = sorted(
        (session.arrives_s + turn.at_s, position, number)
        for position, session in enumerate(sessions)
        for number, turn in enumerate(session.turns)
    )
    sent: list[list[int]] = [[] for _ in sessions]
    for at_s, position, number in due:
        if at_s >= end_s or most_turns <= 0:
            break
        sent[position].append(number)
        if at_s >= warmup_s:
            most_turns -= 1
            sessions[position].measured += 1
    for session, numbers in zip(sessions, sent, strict=True):
        session.sent = tuple(session.turns[number] for number in sorted(numbers))


def _open_totals(scenario: Scenario, drawn: list[PlannedSession], total: int, measured: int) -> PlannedLoad:
    """Return the totals. `total`, `measured`: sessions due in the whole run and in its measure phase."""
    phases = scenario.phases
    whole = len(drawn) == total
    if whole and phases.turns is not None:  # the last sessions are due after the last counted turn
        drawn = [session for session in drawn if session.sent]
        total = len(drawn)
    single = all(session.single for session in drawn)
    turns, in_measure = map(float, _sums(drawn))
    if not whole:
        per_session = turns / len(drawn)
        in_measure = min(measured * per_session, phases.turns or inf)
        total = total - measured + round(in_measure / per_session)
        turns = total * per_session
    spent = in_measure == phases.turns and phases.measure_s is None
    by_sessions, by_turns, by_measured = _certainties(scenario, single, whole, spent)
    return PlannedLoad(
        tuple(drawn),
        session_count=total,
        session_certainty=by_sessions,
        turn_count=turns,
        turn_certainty=by_turns,
        measured_turn_count=in_measure,
        measured_certainty=by_measured,
        warmup_known=not (phases.adaptive and phases.counted),
    )


def _certainties(scenario: Scenario, single: bool, whole: bool, spent: bool) -> tuple[Certainty, Certainty, Certainty]:
    """Return the certainties of sessions, turns, and turns of the measure phase.

    `single`: no session has a second turn. `whole`: all sessions are drawn. `spent`: the number of turns ends the run.
    """
    phases, arrivals = scenario.phases, scenario.arrivals
    timed = phases.measure_s is not None
    sessions: Certainty = "exact" if phases.turns is None or single else "about"
    turns: Certainty = "exact" if single or not timed else "most"
    if not whole or sessions == "about":
        turns = "about"
    if phases.adaptive and timed:  # the warm-up may end earlier
        sessions, turns = ("about", "about") if phases.counted else ("most", "most")
    elif phases.adaptive and phases.counted and not single:  # sessions of the warm-up continue
        turns = "about"
    early = (phases.adaptive and not phases.counted) or (not single and phases.warmup_s > 0)
    measured: Certainty = "exact" if spent else "about" if early else turns
    assert not isinstance(arrivals, Closed)
    if arrivals.max_in_flight is None or not (timed or arrivals.when_full == "drop"):
        return sessions, turns, measured
    return _at_most(sessions), _at_most(turns), _at_most(measured)  # the others are dropped


def _at_most(certainty: Certainty) -> Certainty:
    return "most" if certainty == "exact" else certainty


def _sums(drawn: list[PlannedSession]) -> tuple[int, int]:
    """Return the numbers of sent turns and of those in the measure phase."""
    return sum(len(session.sent) for session in drawn), sum(session.measured for session in drawn)


# -- closed loops


def _closed(scenario: Scenario, arrivals: Closed, drawing: _Drawing) -> PlannedLoad:
    phases = scenario.phases
    if not phases.counted:
        return drawing.without_end()
    whole = _in_rounds(arrivals.most_users, phases.sessions or inf, phases.turns or inf, drawing)
    if phases.turns is not None and drawing.unknown:
        return drawing.whole()
    drawn = drawing.sessions
    exact = phases.turns is None or arrivals.most_users == 1 or all(session.single for session in drawn)
    sent, _ = _sums(drawn)
    sessions = len(drawn) if whole else phases.sessions
    bound: Certainty = "most" if phases.measure_s is not None else "exact"
    certainty: Certainty = bound if exact else "about"
    turns: float | None = sent if whole else phases.turns
    if turns is None and sessions is not None:
        turns = sent * sessions / len(drawn)
    # Sessions of the warm-up continue, and the measured ones are others than the drawn ones.
    estimated = (not whole or phases.warmup_s > 0) and not (phases.sessions is None and phases.turns)
    return PlannedLoad(
        tuple(drawn),
        session_count=sessions,
        session_certainty=certainty,
        turn_count=turns,
        turn_certainty="about" if not whole or phases.warmup_s or not exact else certainty,
        measured_turn_count=turns,
        measured_certainty="about" if estimated else bound,
        warmup_known=not phases.warmup_s,
    )


def _in_rounds(users: int, most_sessions: float, most_turns: float, drawing: _Drawing) -> bool:
    """Let users send turns in rotation until the limits are reached. Return False if the sample was full before."""
    indexes = drawing.source.indexes
    waiting: deque[PlannedSession | None] = deque([None] * users)
    while waiting and most_turns > 0:
        session = waiting.popleft()
        if session is None or len(session.sent) >= len(session.turns):
            if not most_sessions:
                continue
            if drawing.full:
                return False
            session = drawing.draw(next(indexes))
            most_sessions -= 1
        if session.turns:
            session.sent = session.turns[: len(session.sent) + 1]
            session.measured = len(session.sent)
            most_turns -= 1
        waiting.append(session)
    return True
