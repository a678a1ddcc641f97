"""Evidence of one phase for its validity, and values derived from it."""

from typing import Literal

from msgspec import Struct

from inferload.base.numbers import number
from inferload.figures.client_figures import LEAST_DELAY_MS
from inferload.figures.rate_figures import joined_on_the_way
from inferload.results.documents.figures_document import Growth
from inferload.turns.record import Phase

Stamps = Literal["kernel", "user"]

# Little's law needs a window much longer than a turn, and more than a few turns in flight.
_LONG_WINDOW = 10.0
_IN_FLIGHT_APART = 1.0
_SESSIONS_APART = 3  # sessions at the two ends of a window may be counted in either phase


class ScrapeGap(Struct, frozen=True):
    """Longest time without a scrape of a server in a window, and the longest allowed time; of a server that never answered, 0."""

    target: str = ""
    gap_s: float = 0.0
    limit_s: float = 1.0


class Between(Struct, frozen=True, kw_only=True):
    """Evidence of proxies and gateways: counts of client and servers over the whole run, and gaps. None: not known."""

    held_ms: float | None = None  # by which the last gap of a turn is shorter than its other ones: median of the turns
    gap_ms: float | None = None  # median gap of these turns
    sent: int | None = None  # requests of the client
    arrived: int | None = None  # requests that the servers answered, refusals included; else those that they finished
    ok: int | None = None  # turns that ended well
    cut: int | None = None  # of these: turns that the servers did not complete
    output_tokens: int | None = None  # of all turns; None unless client and servers finished the same requests
    generated_tokens: int | None = None  # by the servers
    turns: int = 0
    refused_idle: int | None = None  # turns that failed with 429 or 5xx while the servers had no request


class GpuClock(Struct, frozen=True):
    """Mean clock of a busy GPU in the first and the last quarter of the measure phase, in MHz. `target`: of its metrics page."""

    target: str
    gpu: str
    first_mhz: float
    last_mhz: float

    @property
    def fall(self) -> float:
        """Return the part of the clock that was lost; below 0 if it rose."""
        return 1 - self.last_mhz / self.first_mhz


class RunFacts(Struct, frozen=True, kw_only=True):
    """Facts besides tallies and health: of the measure phase, whenever they happened. None: not known."""

    stamps: Stamps | None = None
    workers: int = 1
    lost_workers: int | None = None
    report_gaps: int | None = None  # missing reports of workers
    clock_uncertainty_ms: float | None = None  # of the worst worker's offset
    server_restarts: int | None = None
    scrape_gap: ScrapeGap = ScrapeGap()  # of the worst server; servers that never answered excluded
    warm_cache_share: float | None = None  # of prompt tokens of first turns: cached, and not by this run
    server_itl_ms: float | None = None  # mean of all servers, by request
    server_in_flight_mean: float | None = None  # running + waiting of all targets, over the measure window
    lost_records: int = 0  # turns that were counted and whose records are missing
    lost_records_why: str = ""  # the worker, the path and the error of the first loss
    write_errors: tuple[str, ...] = ()  # of the run's other files: path and error
    adaptations_left_out: tuple[str, ...] = ()  # of Locust, without which figures can be wrong: name and consequence
    reader: str = ""  # the readers of the sockets, in words
    between: Between = Between()
    gpu_clock: GpuClock | None = None  # that fell most
    growth: Growth | None = None  # of the turns in flight in an open loop of constant rate; of steps the worst one


class Evidence(RunFacts, frozen=True):
    """Evidence of one phase. None: not known; no reason results from it."""

    phase: Phase
    turns_begun: int = 0
    turns_finished: int = 0  # ok or failed
    turns_unfinished: int = 0
    sessions_planned: int = 0
    sessions_dropped: int = 0
    sessions_at_limit: int = 0  # of these, because max_in_flight was reached
    sessions_postponed: int = 0  # started in a later phase, because it was reached
    turns_delayed: int = 0  # that waited because it was reached
    delayed_mean_ms: float = 0.0  # their wait / all turns
    connect_mean_ms: float = 0.0  # connect time without the event loop's lag / all turns
    sessions_begun: int | None = None  # that the client started inside the window
    delay_p99_ms: float | None = None  # of the client; lower end of its interval with few samples, as for the loop lag
    itl_ms: float | None = None  # median gap; the mean, where most events arrive together
    events_per_arrival: float | None = None
    tokens_per_event: float | None = None
    loop_lag_p99_ms: float | None = None  # of the worst worker, as the next five
    pause_max_ms: float | None = None  # longest time without a read
    cpu_share: float | None = None
    steal_share: float | None = None
    gc_pause_max_ms: float | None = None
    stamped_share: float | None = None  # of all reads of all workers
    clock_steps: int = 0  # of a worker's wall clock
    clock_stepped_s: float = 0.0  # sum of the steps
    count_faults: tuple[str, ...] = ()  # a sentence for each inconsistent count
    window_s: float | None = None
    lag_mean_ms: float | None = None  # sent - planned, turns that ended well
    turn_mean_s: float | None = None  # sent to closed, turns of every end
    in_flight_mean: float | None = None  # over the window, from the turns' own instants
    rate_times_time: float | None = None  # turns per second x their mean time
    streamed_tokens: int | None = None  # output tokens that came in the window
    tokens_per_turn: float | None = None  # of the turns that ended well in it
    edge_tokens: int = 0  # greatest possible difference of these tokens and those that streamed in the window
    turns_per_s: float | None = None  # that ended well in the window

    @property
    def sessions_due(self) -> int:
        """Sessions that the client should have started inside the window."""
        return self.sessions_planned - self.sessions_dropped - self.sessions_postponed


_IDLE_SHARE = 0.5


def has_idle_workers(cpu_share: float | None) -> bool:
    """Return True if the busiest worker used less than half a core: more workers would be as late."""
    return cpu_share is not None and cpu_share < _IDLE_SHARE


def client_delay(e: Evidence) -> float | None:
    """p99 of the client delay over the median gap, 0 below 1 ms: chunks that wait together are read as one."""
    gap_ms = _gap_ms(e)
    if e.delay_p99_ms is None or gap_ms is None:
        return None
    if e.delay_p99_ms < LEAST_DELAY_MS:
        return 0.0
    return e.delay_p99_ms / gap_ms if gap_ms else None


def _gap_ms(e: Evidence) -> float | None:
    return None if e.itl_ms is None else max(e.itl_ms, e.server_itl_ms or 0.0)


def held_stream(e: Evidence) -> float | None:
    """Output events per arrival, without those that a late client can have joined."""
    return joined_on_the_way(e.events_per_arrival, e.delay_p99_ms, _gap_ms(e), e.tokens_per_event)


def own_lag_ms(e: Evidence) -> float | None:
    """Mean lag of the client itself: without waits for max_in_flight and for the server to accept a connection."""
    return None if e.lag_mean_ms is None else max(0.0, e.lag_mean_ms - e.delayed_mean_ms - e.connect_mean_ms)


def client_lag(e: Evidence) -> float | None:
    """Mean lag of the client over the mean duration of a turn."""
    lag_ms = own_lag_ms(e)
    return lag_ms / 1e3 / e.turn_mean_s if lag_ms is not None and e.turn_mean_s else None


def at_limit_text(e: Evidence) -> str:
    """Finding of the rule `at_limit`."""
    effects = [f"{e.turns_delayed} turns waited"] if e.turns_delayed else []
    effects += [f"{e.sessions_at_limit} sessions were dropped"] if e.sessions_at_limit else []
    return f"{' and '.join(effects) or 'no turn waited'} because max_in_flight was reached"


def late_share(e: Evidence) -> float | None:
    """Share of planned sessions that were neither dropped, nor postponed by max_in_flight, nor started inside the window."""
    if e.sessions_begun is None or not e.sessions_planned:
        return None
    missing = e.sessions_due - e.sessions_begun
    return missing / e.sessions_planned if missing >= _SESSIONS_APART else 0.0


def _apart(a: float | None, b: float | None) -> float:
    """Relative difference of two numbers of turns in flight; 0 if it is at most one turn, or if one number is not known."""
    if a is None or b is None or abs(a - b) <= _IN_FLIGHT_APART:
        return 0.0
    return abs(a - b) / max(a, b)


def littles_law(e: Evidence) -> float | None:
    """Relative difference of turns in flight from rate x duration, or from the servers' count; None: window too short."""
    if e.growth is not None and e.growth.state != "kept up":
        return None  # the law holds for a steady load; `overload` reports that this one is not
    if e.in_flight_mean is None or not e.window_s or not e.turn_mean_s or e.window_s < _LONG_WINDOW * e.turn_mean_s:
        return None
    return max(_apart(e.in_flight_mean, e.rate_times_time), _apart(e.in_flight_mean, e.server_in_flight_mean))


def littles_law_text(e: Evidence) -> str:
    """Finding of `littles_law`: the greater of the two differences."""
    if _apart(e.in_flight_mean, e.server_in_flight_mean) > _apart(e.in_flight_mean, e.rate_times_time):
        other = f"the server reported {number(e.server_in_flight_mean)}"
    else:
        other = f"rate x duration is {number(e.rate_times_time)}"
    return f"{number(e.in_flight_mean)} turns were in flight on average, but {other}"


def _tokens_of_turns(e: Evidence) -> float | None:
    """Output tokens of the turns that ended well in the window, by their rate; None if not known."""
    if e.turns_per_s is None or e.tokens_per_turn is None or not e.window_s:
        return None
    return e.turns_per_s * e.tokens_per_turn * e.window_s


def token_balance(e: Evidence) -> float | None:
    """Relative difference of tokens streamed in the window and tokens of turns ended in it, beyond `edge_tokens`."""
    ended = _tokens_of_turns(e)
    if ended is None or e.streamed_tokens is None:
        return None
    apart = abs(e.streamed_tokens - ended) - e.edge_tokens
    return apart / max(e.streamed_tokens, ended) if apart > 0 else 0.0


def token_balance_text(e: Evidence) -> str:
    """Finding of `token_balance`."""
    window_s = e.window_s or 1.0
    ended, streamed = (_tokens_of_turns(e) or 0.0) / window_s, (e.streamed_tokens or 0) / window_s
    return (
        f"{number(e.turns_per_s)} turns/s x {number(e.tokens_per_turn)} tokens per turn = {number(ended)} tok/s, but "
        f"{number(streamed)} output tok/s streamed; the window's edges explain {number(e.edge_tokens / window_s)} tok/s"
    )


def ratio(part: float | None, whole: float | None) -> float | None:
    """Return part / whole; None if one of them is not known, or the whole is 0."""
    return part / whole if part is not None and whole else None


def more_requests(e: Evidence) -> float | None:
    """Requests at the servers that the client did not send / requests that it sent; 0 for a single one."""
    sent, arrived = e.between.sent, e.between.arrived
    return None if sent is None or arrived is None else ratio(0 if arrived == sent + 1 else arrived - sent, sent)


def other_usage(e: Evidence) -> float | None:
    """Difference between the output tokens of turns and servers / those of the servers."""
    tokens, generated = e.between.output_tokens, e.between.generated_tokens
    return None if tokens is None or generated is None else ratio(abs(tokens - generated), generated)
