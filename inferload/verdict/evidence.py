"""What is known of one phase when its measurement is judged: the evidence, and the figures that follow from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from inferload.measure.record import Phase
from inferload.numbers import number
from inferload.statistics.overload import Growth

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
    streamed_tokens: int | None = None  # output tokens that came in the window
    tokens_per_turn: float | None = None  # of the turns that ended well in it
    edge_tokens: int = 0  # the most by which these tokens and those that came in the window can differ
    turns_per_s: float | None = None  # that ended well in the window
    server_in_flight_mean: float | None = None  # running + waiting, as the servers say
    lost_records: int = 0  # turns that were counted and whose records are missing
    lost_records_why: str = ""  # the worker, the path and the error of the first loss
    write_errors: tuple[str, ...] = ()  # of the run's other files: path and error
    adaptations_left_out: tuple[str, ...] = ()  # of Locust, without which figures can be wrong: name and consequence
    growth: Growth | None = (
        None  # of the turns in flight; None in a closed loop, or if the planned rate is not constant
    )


def client_delay(e: Evidence) -> float | None:
    """Over the median gap: a read that waited is dated by the kernel, but two that wait together are read as one."""
    return e.delay_p99_ms / e.itl_ms if e.delay_p99_ms is not None and e.itl_ms else None


def client_delay_text(e: Evidence) -> str:
    """That delay in words."""
    return (
        f"the client added up to {number(e.delay_p99_ms)} ms to 1 % of the gaps, whose median is {number(e.itl_ms)} ms"
    )


def dropped_share(e: Evidence) -> float | None:
    """Share of planned sessions that no user was free for."""
    return (e.sessions_dropped - e.sessions_at_limit) / e.sessions_planned if e.sessions_planned else None


def own_lag_ms(e: Evidence) -> float | None:
    """Mean lag that is the client's own: without what turns waited for max_in_flight, or for the server to take a connection."""
    return None if e.lag_mean_ms is None else max(0.0, e.lag_mean_ms - e.held_mean_ms - e.connect_mean_ms)


def client_lag(e: Evidence) -> float | None:
    """The client's own mean lag over the mean time of a turn."""
    lag_ms = own_lag_ms(e)
    return lag_ms / 1e3 / e.turn_mean_s if lag_ms is not None and e.turn_mean_s else None


def at_limit_share(e: Evidence) -> float | None:
    """Share of turns and sessions that max_in_flight held back or dropped."""
    asked = e.turns_begun + e.sessions_at_limit
    return (e.turns_held + e.sessions_at_limit) / asked if asked else None


def at_limit_text(e: Evidence) -> str:
    """What max_in_flight did, in words."""
    then = [f"{e.turns_held} turns waited"] if e.turns_held else []
    then += [f"{e.sessions_at_limit} sessions were dropped"] if e.sessions_at_limit else []
    return f"{' and '.join(then) or 'nothing happened'} because max_in_flight was reached"


def late_share(e: Evidence) -> float | None:
    """Share of planned sessions that were neither dropped nor begun inside the window."""
    if e.sessions_begun is None or not e.sessions_planned or e.turns_held:
        return None  # what waits for max_in_flight is late as planned
    missing = e.sessions_planned - e.sessions_dropped - e.sessions_begun
    return missing / e.sessions_planned if missing >= _SESSIONS_APART else 0.0


def late_text(e: Evidence) -> str:
    """Those sessions in words."""
    kept = e.sessions_planned - e.sessions_dropped
    return f"of {kept} sessions that fell due in this phase only {e.sessions_begun} were begun in it: the load lagged behind"


def unfinished_share(e: Evidence) -> float | None:
    """Share of begun turns that the run gave up."""
    return e.turns_unfinished / e.turns_begun if e.turns_begun else None


def _apart(a: float | None, b: float | None) -> float:
    """By what part two numbers of turns in flight differ; 0 where they are as good as the same, or one is not known."""
    if a is None or b is None or abs(a - b) <= _IN_FLIGHT_APART:
        return 0.0
    return abs(a - b) / max(a, b)


def littles_law(e: Evidence) -> float | None:
    """By what part turns in flight differ from rate times time, or from the servers' own count; None: too short a window."""
    if e.growth is not None and e.growth.state != "kept up":
        return None  # the law holds for a steady load; `overload` reports that this one is not
    if e.in_flight_mean is None or not e.window_s or not e.turn_mean_s or e.window_s < _LONG_WINDOW * e.turn_mean_s:
        return None
    return max(_apart(e.in_flight_mean, e.rate_times_time), _apart(e.in_flight_mean, e.server_in_flight_mean))


def littles_law_text(e: Evidence) -> str:
    """The greater of the two differences in words."""
    if _apart(e.in_flight_mean, e.server_in_flight_mean) > _apart(e.in_flight_mean, e.rate_times_time):
        other = f"the server's own queues held {number(e.server_in_flight_mean)}"
    else:
        other = f"their rate times their duration is {number(e.rate_times_time)}"
    return f"{number(e.in_flight_mean)} turns were in flight on average, but {other}"


def _tokens_of_turns(e: Evidence) -> float | None:
    """Output tokens of the turns that ended well in the window, by their rate; None if not known."""
    if e.turns_per_s is None or e.tokens_per_turn is None or not e.window_s:
        return None
    return e.turns_per_s * e.tokens_per_turn * e.window_s


def token_balance(e: Evidence) -> float | None:
    """Relative difference of the tokens that streamed in the window and those of its ended turns, beyond the window's edges."""
    ended = _tokens_of_turns(e)
    if ended is None or e.streamed_tokens is None:
        return None
    apart = abs(e.streamed_tokens - ended) - e.edge_tokens
    return apart / max(e.streamed_tokens, ended) if apart > 0 else 0.0


def token_balance_text(e: Evidence) -> str:
    """The two token rates in words."""
    window_s = e.window_s or 1.0
    ended, streamed = (_tokens_of_turns(e) or 0.0) / window_s, (e.streamed_tokens or 0) / window_s
    return (
        f"{number(e.turns_per_s)} turns/s x {number(e.tokens_per_turn)} tokens per turn = {number(ended)} tok/s, but "
        f"{number(streamed)} output tok/s streamed; the window's edges explain {number(e.edge_tokens / window_s)} tok/s"
    )


def overload_share(e: Evidence) -> float | None:
    """Part of the offered turns by which the number in flight grew; 0 if the server kept up."""
    if e.growth is None:
        return None
    return 0.0 if e.growth.state == "kept up" else e.growth.share


def overload_text(e: Evidence) -> str:
    """Rates of turns offered and ended, and the growth between them, in words."""
    grew = e.growth
    assert grew is not None
    step = "" if grew.step is None else f" in step {grew.step}"
    failed = f" ({number(grew.failed_per_s)}/s of them failed)" if grew.failed_per_s else ""
    rates = (
        f"{number(grew.offered_per_s)} turns/s offered{step}, {number(grew.ended_per_s)}/s ended{failed}; "
        f"the number in flight grew by {number(grew.growth_per_s)}/s (95 %: {number(grew.low_per_s)} to {number(grew.high_per_s)})"
    )
    if grew.state == "unsettled":
        return f"overloaded, or not settled yet: {rates}, and the window is too short beside a turn to tell which"
    return f"overloaded: {rates}; latencies depend on how long the run lasts"


def stamped_share(e: Evidence) -> float | None:
    """Share of reads with a kernel stamp, where the system gives any."""
    return None if e.stamps == "user" else e.stamped_share
