"""What can speak against a measurement: the evidence, and the table of rules that it is held against."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from inferload.measure.record import PHASES, Phase

Level = Literal["suspect", "invalid"]
Stamps = Literal["kernel", "user"]

# Little's law holds over windows that are long beside a turn, and for more than a handful of turns in flight.
_LONG_WINDOW = 10.0
_IN_FLIGHT_APART = 1.0
_SESSIONS_APART = 3  # sessions at the two ends of a window may fall either way


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of one phase. None: not known, and then no reason follows from it."""

    phase: Phase
    workers: int = 1
    turns_begun: int = 0
    turns_finished: int = 0  # ok or failed
    turns_unfinished: int = 0
    sessions_planned: int = 0
    sessions_dropped: int = 0
    sessions_at_limit: int = 0  # of these, because max_in_flight was reached
    turns_held: int = 0  # that waited because it was
    held_mean_ms: float = 0.0  # their wait, shared among all turns
    connect_mean_ms: float = (
        0.0  # what connecting took beyond what the event loop can have added, shared among all turns
    )
    sessions_begun: int | None = None  # that the client really set about inside the window
    delay_p99_ms: float | None = None  # of the client
    itl_ms: float | None = None  # median gap; the mean, where the median is 0
    ttft_ms: float | None = None  # median
    loop_lag_p99_ms: float | None = None  # of the worst worker, as the next five
    pause_max_ms: float | None = None  # the longest time for which nobody read
    cpu_share: float | None = None
    steal_share: float | None = None
    gc_pause_max_ms: float | None = None
    stamped_share: float | None = None  # of all reads of all workers
    stamps: Stamps | None = None
    lost_workers: int | None = None
    report_gaps: int | None = None
    clock_uncertainty_ms: float | None = None  # of the worst worker's offset
    clock_steps: int = 0  # times at which a worker's wall clock was set
    clock_stepped_s: float = 0.0  # by how much in all
    books: tuple[str, ...] = ()  # sentences that say what does not add up
    server_restarts: int | None = None
    warm_cache_share: float | None = (
        None  # of prompt tokens that were cached though nothing of this run could have cached them
    )
    window_s: float | None = None
    lag_mean_ms: float | None = None  # sent - planned, turns that ended well
    turn_mean_s: float | None = None  # sent to closed, turns of every end
    in_flight_mean: float | None = None  # over the window, from the turns' own instants
    rate_times_time: float | None = None  # turns per second x their mean time
    server_in_flight_mean: float | None = None  # running + waiting, as the servers say


@dataclass(frozen=True, slots=True)
class Rule:
    """One row: a figure, its two limits (None: that level does not exist), what it means and what to do.

    The limit is broken by a value above it; by one below it where `below` is set.
    """

    code: str
    value: Callable[[Evidence], float | None]
    suspect: float | None
    invalid: float | None
    unit: str
    finding: Callable[[Evidence], str]
    means: str
    remedy: str
    below: bool = False
    phases: tuple[Phase, ...] = PHASES

    def broken(self, value: float) -> tuple[Level, float] | None:
        """The worst level whose limit the value breaks, and that limit."""
        levels: tuple[tuple[Level, float | None], ...] = (("invalid", self.invalid), ("suspect", self.suspect))
        for level, limit in levels:
            if limit is not None and (value < limit if self.below else value > limit):
                return level, limit
        return None


def _client_delay(e: Evidence) -> float | None:
    """Over the median gap: a read that waited is dated by the kernel, but two that wait together are read as one."""
    return e.delay_p99_ms / e.itl_ms if e.delay_p99_ms is not None and e.itl_ms else None


def _client_delay_text(e: Evidence) -> str:
    return (
        f"the client added up to {_short(e.delay_p99_ms)} ms to 1 % of the gaps, whose median is {_short(e.itl_ms)} ms"
    )


def _dropped(e: Evidence) -> float | None:
    return (e.sessions_dropped - e.sessions_at_limit) / e.sessions_planned if e.sessions_planned else None


def _own_lag_ms(e: Evidence) -> float | None:
    """Mean lag that is the client's own: without what turns waited for max_in_flight, or for the server to take a connection."""
    return None if e.lag_mean_ms is None else max(0.0, e.lag_mean_ms - e.held_mean_ms - e.connect_mean_ms)


def _client_lag(e: Evidence) -> float | None:
    lag_ms = _own_lag_ms(e)
    return lag_ms / 1e3 / e.turn_mean_s if lag_ms is not None and e.turn_mean_s else None


def _at_limit(e: Evidence) -> float | None:
    asked = e.turns_begun + e.sessions_at_limit
    return (e.turns_held + e.sessions_at_limit) / asked if asked else None


def _at_limit_text(e: Evidence) -> str:
    then = [f"{e.turns_held} turns waited"] if e.turns_held else []
    then += [f"{e.sessions_at_limit} sessions were dropped"] if e.sessions_at_limit else []
    return f"{' and '.join(then) or 'nothing happened'} because max_in_flight was reached"


def _late(e: Evidence) -> float | None:
    """Share of planned sessions that were neither dropped nor begun inside the window."""
    if e.sessions_begun is None or not e.sessions_planned or e.turns_held:
        return None  # what waits for max_in_flight is late as planned
    short = e.sessions_planned - e.sessions_dropped - e.sessions_begun
    return short / e.sessions_planned if short >= _SESSIONS_APART else 0.0


def _late_text(e: Evidence) -> str:
    kept = e.sessions_planned - e.sessions_dropped
    return f"of {kept} sessions that fell due in this phase only {e.sessions_begun} were begun in it: the load lagged behind"


def _unfinished(e: Evidence) -> float | None:
    return e.turns_unfinished / e.turns_begun if e.turns_begun else None


def _apart(a: float | None, b: float | None) -> float:
    """By what part two numbers of turns in flight differ; 0 where they are as good as the same, or one is not known."""
    if a is None or b is None or abs(a - b) <= _IN_FLIGHT_APART:
        return 0.0
    return abs(a - b) / max(a, b)


def _littles_law(e: Evidence) -> float | None:
    if e.in_flight_mean is None or not e.window_s or not e.turn_mean_s or e.window_s < _LONG_WINDOW * e.turn_mean_s:
        return None
    return max(_apart(e.in_flight_mean, e.rate_times_time), _apart(e.in_flight_mean, e.server_in_flight_mean))


def _littles_law_text(e: Evidence) -> str:
    if _apart(e.in_flight_mean, e.server_in_flight_mean) > _apart(e.in_flight_mean, e.rate_times_time):
        other = f"the server's own queues held {_short(e.server_in_flight_mean)}"
    else:
        other = f"their rate times their duration is {_short(e.rate_times_time)}"
    return f"{_short(e.in_flight_mean)} turns were in flight on average, but {other}"


def _stamped(e: Evidence) -> float | None:
    return None if e.stamps == "user" else e.stamped_share


def _short(value: float | None) -> str:
    return "?" if value is None else f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def _percent(value: float | None) -> str:
    return "?" if value is None else f"{value * 100:.3g} %"


def _count(number: int | None) -> float | None:
    return None if number is None else float(number)


RULES: tuple[Rule, ...] = (
    Rule(
        "no_turns",
        lambda e: float(e.turns_finished),
        None,
        1,
        "finished turns",
        lambda e: "not one turn came to an end in the measure phase",
        "there is nothing to report on",
        "measure for longer, or find out why the server does not answer",
        below=True,
        phases=("measure",),
    ),
    Rule(
        "client_delay",
        _client_delay,
        0.50,
        1.00,
        "p99 of the client's delay over the median gap",
        _client_delay_text,
        "the kernel's stamp dates what waited in the client; but tokens that wait together are read as one and share the "
        "newest stamp: then gaps, and TTFT where a first token is among them, are the client's in their upper percentiles",
        "use more workers, each on a core of its own, or fewer streams",
    ),
    Rule(
        "client_lag",
        _client_lag,
        0.05,
        0.25,
        "mean lag without connecting over the mean time of a turn",
        lambda e: (
            f"turns left {_short(_own_lag_ms(e))} ms late on average, and take {_short((e.turn_mean_s or 0) * 1e3)} ms"
        ),
        "the client was busy when they were due, so the server had less to do than was asked",
        "use more workers, each on a core of its own, or fewer streams",
    ),
    Rule(
        "loop_lag",
        lambda e: e.loop_lag_p99_ms,
        5,
        50,
        "ms, p99 of the worst worker",
        lambda e: f"a worker's event loop was {_short(e.loop_lag_p99_ms)} ms late in 1 % of its beats",
        "the event loop was held up: what arrives together is read as one, and large requests leave late "
        "(not looked at where a thread of its own reads and requests leave in one piece)",
        "use more workers, each on a core of its own; look for other work on the machine",
    ),
    Rule(
        "client_pause",
        lambda e: e.pause_max_ms,
        250,
        1000,
        "ms, longest of the worst worker",
        lambda e: f"a worker stood still for {_short(e.pause_max_ms)} ms",
        "what arrived meanwhile was read at once, dated by the last of it: gaps and stalls of that time are the client's",
        "look for what stopped the process: other work on the machine, a paused guest, a listener that blocks",
    ),
    Rule(
        "cpu",
        lambda e: e.cpu_share,
        0.85,
        0.97,
        "of one core, worst worker",
        lambda e: f"a worker used {_percent(e.cpu_share)} of a core",
        "a worker is one process on one core, and near its limit everything queues in it",
        "use more workers",
    ),
    Rule(
        "steal",
        lambda e: e.steal_share,
        0.05,
        0.20,
        "of the machine's processor time, worst worker",
        lambda e: f"the hypervisor took {_percent(e.steal_share)} of the client machine's processor time",
        "other guests of the same host stretched the client's time",
        "use a machine with processors of its own",
    ),
    Rule(
        "gc_pause",
        lambda e: e.gc_pause_max_ms,
        50,
        250,
        "ms, longest of the worst worker",
        lambda e: f"a garbage collection stopped a worker for {_short(e.gc_pause_max_ms)} ms",
        "a stop as long as a stall looks like one of the server's",
        "use more workers; look for a locustfile that keeps much in memory",
    ),
    Rule(
        "at_limit",
        _at_limit,
        0.01,
        None,
        "of the turns and sessions, held back or dropped",
        _at_limit_text,
        "the load was max_in_flight's, not the one that was planned: an open loop that is capped asks a slow server less",
        "raise arrivals.max_in_flight, or lower the rate",
    ),
    Rule(
        "dropped_sessions",
        _dropped,
        0.001,
        0.05,
        "of the planned sessions",
        lambda e: (
            f"{e.sessions_dropped - e.sessions_at_limit} of {e.sessions_planned} planned sessions were dropped, "
            "since no user was free"
        ),
        "the load was lower than what was asked for",
        "allow more users, or ask for fewer sessions a second",
    ),
    Rule(
        "offered_vs_achieved",
        _late,
        0.01,
        0.05,
        "of the planned sessions, neither dropped nor begun in their phase",
        _late_text,
        "the achieved rate is not the offered one",
        "use more workers",
    ),
    Rule(
        "lost_worker",
        lambda e: _count(e.lost_workers),
        None,
        0,
        "workers",
        lambda e: f"{e.lost_workers} of {e.workers} workers were lost while the run lasted",
        "their turns are missing, and the load fell with them",
        "see the worker's log, and run again",
    ),
    Rule(
        "report_gap",
        lambda e: _count(e.report_gaps),
        None,
        0,
        "reports",
        lambda e: f"{e.report_gaps} reports of workers never reached the master",
        "counts and percentiles miss what was in them",
        "look at the network between master and workers, and run again",
    ),
    Rule(
        "clock_skew",
        lambda e: e.clock_uncertainty_ms,
        5,
        None,
        "ms, worst worker",
        lambda e: f"a worker's clock is known to within {_short(e.clock_uncertainty_ms)} ms only",
        "durations are right, but workers' and servers' curves may lie side by side by that much",
        "use a quieter network between master and workers",
    ),
    Rule(
        "clock_step",
        lambda e: float(e.clock_steps),
        0,
        None,
        "times that a worker's wall clock was set",
        lambda e: f"the wall clock of the workers was set while they measured, by {e.clock_stepped_s:+,.1f} s in all",
        "durations are on the monotonic clock and stay right; of what was just being read, the kernel's stamp is not believed, "
        "or is off by a small step; logs of other programs lie apart by as much. A machine that slept looks the same",
        "set the clock before a run, and have it slewed while it lasts (chrony, ntpd -x)",
    ),
    Rule(
        "unfinished_drain",
        _unfinished,
        0,
        0.05,
        "of the turns begun",
        lambda e: f"{e.turns_unfinished} of {e.turns_begun} turns were still streaming when the run gave them up",
        "the longest turns are missing from every percentile, which makes the server look faster",
        "give the drain more time (phases.drain_s), or ask for less load",
    ),
    Rule(
        "books",
        lambda e: float(len(e.books)),
        None,
        0,
        "sentences that do not hold",
        lambda e: f"the books do not balance ({'; '.join(e.books)})",
        "turns or sessions were lost or counted twice",
        "a worker that was lost, or a report that never came, explains it; without either it is a fault of inferload: "
        "please report it, with the run directory",
    ),
    Rule(
        "server_restart",
        lambda e: _count(e.server_restarts),
        None,
        0,
        "restarts",
        lambda e: f"a server restarted {e.server_restarts} times while it was measured",
        "two servers were measured, and one of them was cold",
        "see the server's log, and run again",
    ),
    Rule(
        "warm_cache",
        lambda e: e.warm_cache_share,
        0.01,
        None,
        "of prompt tokens",
        lambda e: f"{_percent(e.warm_cache_share)} of the prompts' tokens were cached before this run had sent them",
        "an earlier run had warmed the prefix cache: TTFT is shorter than a cold server's",
        "restart the server or reset its cache, or set cache.isolate: run; see docs/cache.md",
    ),
    Rule(
        "littles_law",
        _littles_law,
        0.25,
        None,
        "relative difference",
        _littles_law_text,
        "turns in flight must be their rate times their duration: else the load was not steady, the server had other "
        "clients, or a figure is wrong",
        "measure for longer, after a warm-up, on a server of its own",
    ),
    Rule(
        "stamps_missing",
        _stamped,
        0.5,
        None,
        "of the reads",
        lambda e: f"only {_percent(e.stamped_share)} of the reads carried a kernel receive stamp",
        "the others were stamped when the process came to read them, and the client's delay is not known for them",
        "run `inferload doctor` on the worker's machine",
        below=True,
    ),
    Rule(
        "user_stamps",
        lambda e: None if e.stamps is None else float(e.stamps == "user"),
        0,
        None,
        "1: no kernel stamps",
        lambda e: (
            "this system gives no kernel receive stamps, so that the client's own delay is in every figure, unmeasured"
        ),
        "times are those at which the process came to read",
        "run the workers on Linux, or `inferload doctor` to see why there are none",
    ),
)
