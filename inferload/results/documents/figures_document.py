"""Types of the figures of summary.json: counts of sessions and turns, distributions, the SLO, steps, splits, prefix cache."""

from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import Struct
from msgspec.structs import replace

from inferload.base.json_text import Count, Number, means
from inferload.base.numbers import number
from inferload.figures.limits.slo import SLO_MEASURES
from inferload.turns import states

QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999}
LEAST_SHARE = 0.05  # of the offered turns: smaller growth is not distinguished from fluctuation
GrowthState = Literal["kept up", "overloaded", "unsettled", "undecided"]
BEYOND = 10  # samples beyond a percentile; with fewer, it is marked and has an interval


def steady(count: int, q: float) -> bool:
    """Return True if at least BEYOND samples are beyond a percentile: n (1 - q) >= 10."""
    return round(count * (1 - q), 6) >= BEYOND


class Growth(Struct, frozen=True):
    """Growth of the turns in flight: turns per second over `lasts_s` seconds."""

    lasts_s: Annotated[Number, means("length of the evaluated part of the window")]
    offered_per_s: Annotated[Number, means("turns planned")]
    ended_per_s: Annotated[Number, means("turns ended, failed ones included")]
    growth_per_s: Annotated[Number, means("growth of the turns in flight")]
    low_per_s: Annotated[Number, means("lower end of its 95 % interval")]
    high_per_s: Annotated[Number, means("upper end of its 95 % interval")]
    state: Annotated[
        GrowthState,
        means(
            "`kept up`; `overloaded`; `unsettled`: the number grew, but the time is too short, compared with a turn, "
            "to distinguish overload from the start of the load; `undecided`: it did not grow significantly, and the time is too "
            "short to exclude growth that matters ([rules](arrivals.md#detection-of-overload))"
        ),
    ]
    step: Annotated[int | None, means("step of a load with steps")] = None
    failed_per_s: Annotated[Number, means("turns failed")] = 0.0
    kept_up_per_s: Annotated[
        Number | None, means("of a load with steps: the highest rate offered by a step without growth")
    ] = None

    @property
    def grew(self) -> bool:
        """True if the number in flight grew by more than it fluctuates, whether or not the time suffices for a decision."""
        return self.state in ("overloaded", "unsettled")

    @property
    def share(self) -> float:
        """Growth of the number in flight over the offered turns."""
        return self.growth_per_s / self.offered_per_s if self.offered_per_s else 0.0

    @property
    def rates(self) -> str:
        """Rates of offered and ended turns in words, with the length of the time that they are from."""
        step = "" if self.step is None else f"in step {self.step}: "
        failed = f" ({number(self.failed_per_s)}/s of them failed)" if self.failed_per_s else ""
        ended = f"{number(self.ended_per_s)}/s ended{failed} in {number(self.lasts_s)} s"
        return f"{step}{number(self.offered_per_s)} turns/s offered, {ended}"

    @property
    def text(self) -> str:
        """Rates and growth in words."""
        interval = f"95 %: {number(self.low_per_s)} to {number(self.high_per_s)}"
        return f"{self.rates}; the number of turns in flight grew by {number(self.growth_per_s)}/s ({interval})"


def worst(steps: Sequence[Growth]) -> Growth | None:
    """Return the growth of the step with the largest share, with the highest rate that kept up."""
    largest = max(steps, key=lambda step: (step.grew, step.state != "kept up", step.share), default=None)
    if largest is None or largest.step is None:
        return largest
    kept_up = (step.offered_per_s for step in steps if step.state == "kept up")
    return replace(largest, kept_up_per_s=max(kept_up, default=None))


class Sessions(Struct, frozen=True, kw_only=True):
    """`planned` = `dropped` + `started`."""

    planned: Annotated[Count | None, means(states.BY_KEY["planned"].text)] = None
    dropped: Annotated[Count | None, means(states.BY_KEY["dropped"].text)] = None
    at_limit: Annotated[Count | None, means("sessions dropped because `arrivals.max_in_flight` was reached")] = None
    started: Annotated[Count | None, means(states.BY_KEY["started"].text)] = None
    completed: Annotated[Count | None, means(states.BY_KEY["completed"].text)] = None


class TurnCounts(Struct, frozen=True, kw_only=True):
    """`sent` = `ok` + `failed` + `unfinished`; `requests` = `sent` + `retried` - turns without a connection."""

    sent: Annotated[Count, means(states.BY_KEY["sent"].text)]
    ok: Annotated[Count, means(states.BY_KEY["ok"].text)]
    cancelled: Annotated[Count | None, means(states.BY_KEY["cancelled"].text)] = None
    failed: Annotated[Count, means(states.BY_KEY["failed"].text)]
    unfinished: Annotated[Count, means(states.BY_KEY["unfinished"].text)]
    requests: Annotated[Count | None, means("requests that were sent for these turns")] = None
    retried: Annotated[Count | None, means(f"{states.BY_KEY['retried'].text} ([retries](turns.md#retries))")] = None
    by_failure: Annotated[dict[str, Count], means("failed turns by class of failure")] = {}
    by_status: Annotated[dict[str, Count], means("turns by HTTP status")] = {}
    by_finish_reason: Annotated[
        dict[str, Count], means("successful turns by finish reason: `stop`, `length`, `tool_calls` or the server's own")
    ] = {}
    output_tokens: Annotated[Count | None, means("sum over the turns that reported it; null: none did")] = None
    output_tokens_from: Annotated[Count | None, means("turns that reported their output tokens")] = None
    input_tokens: Annotated[Count | None, means("sum over the turns that reported it; null: none did")] = None
    input_tokens_from: Annotated[Count | None, means("turns that reported their input tokens")] = None
    cached_tokens: Annotated[Count | None, means("sum over the turns that reported it; null: none did")] = None
    whole: Annotated[
        Count | None,
        means("turns whose answers are no streams: they have no TTFT, ITL, TPOT and output tokens; null: none"),
    ] = None
    texts: Annotated[Count | None, means("texts, or documents, of the requests of these turns; null: none")] = None

    @property
    def streamed(self) -> bool:
        """False if the answers of all turns are no streams."""
        return not self.whole or self.whole < self.ended

    def can_have(self, needs: str | None) -> bool:
        """Return False for a rate that is computed from what no turn can have."""
        if needs in ("texts", "canary"):  # canaries have a table of their own
            return needs == "texts" and bool(self.whole)
        return self.streamed or needs not in ("output_tokens", "stream")

    @property
    def ended(self) -> int:
        """Turns that ended in any way, or were in flight at the end of the drain."""
        return self.ok + self.failed + self.unfinished


class Stalls(Struct, frozen=True, kw_only=True):
    """Gaps above 250 ms between two output events of a turn."""

    turns_with_stall: Annotated[Count | None, means("turns with such a gap")] = None
    longest_ms: Annotated[Number | None, means("longest such gap")] = None
    turns_with_client_stall: Annotated[Count | None, means("turns whose stall the client may have caused")] = None


class Mean(Struct, frozen=True, kw_only=True):
    """A mean."""

    mean: Annotated[Number | None, means("null without samples")] = None


_SLO_LIMITS = ", ".join(f"`{row.figure.key}`" + (f" for the {row.title}" if row.title else "") for row in SLO_MEASURES)


class Slo(Struct, frozen=True, kw_only=True):
    """Turns that met and missed the SLO."""

    limits: Annotated[
        dict[str, Number | None],
        means(f"limits of one turn by name: {_SLO_LIMITS}; null if it differs between classes; of steps not stated"),
    ] = {}
    turns: Annotated[Count, means("turns planned in the window: ended and dropped ones")]
    met: Annotated[Count, means("turns that met all limits")]
    interval: Annotated[
        list[Number | None] | None,
        means(
            "of one of several classes: 95 % interval of met over turns, `[low, high]`; null: the run is too short for one, "
            "sessions were dropped, or turn records are missing"
        ),
    ] = None
    missed: Annotated[
        dict[str, Count],
        means(
            "turns that missed each limit, which may be several; `failed`, `unfinished` and `dropped` ones (a dropped session as "
            "one turn), which miss all of them and are counted here alone"
        ),
    ]


class Distribution(Struct, frozen=True, kw_only=True):
    """Samples of a measure. Percentiles are values of nearest rank."""

    count: Annotated[Count, means("number of samples")] = 0
    mean: Annotated[Number | None, means("arithmetic mean")] = None
    p50: Annotated[Number | None, means("median")] = None
    p90: Annotated[Number | None, means("90th percentile")] = None
    p95: Annotated[Number | None, means("95th percentile")] = None
    p99: Annotated[Number | None, means("99th percentile")] = None
    p999: Annotated[Number | None, means("99.9th percentile")] = None
    min: Annotated[Number | None, means("lowest sample")] = None
    max: Annotated[Number | None, means("highest sample")] = None
    intervals: Annotated[
        dict[str, list[Number | None]],
        means(
            "percentiles with fewer than 10 samples beyond them: 95 % interval `[low, high]`, `null` for an open end"
        ),
    ] = {}

    def statistic(self, name: str) -> float | None:
        """Return a statistic by its key; None if unknown."""
        value = getattr(self, name, None)
        return value if isinstance(value, int | float) else None

    def is_marked(self, name: str) -> bool:
        """Return True if a percentile has fewer than BEYOND samples beyond it, and is printed with a mark."""
        q = QUANTILES.get(name)
        return q is not None and self.statistic(name) is not None and not steady(self.count, q)

    def certain(self, name: str) -> float | None:
        """Return a percentile, as the verdict uses it: of too few samples the lower end of its 95 % interval; None if open."""
        return self.intervals.get(name, [None])[0] if self.is_marked(name) else self.statistic(name)


NO_SAMPLES = Distribution()


class Figures(Struct, frozen=True, kw_only=True):
    """Figures of the measure phase, or of one class or step of it."""

    sessions: Annotated[Sessions, means("counts of sessions")] = Sessions()
    turns: Annotated[TurnCounts, means("counts of turns")]
    stalls: Annotated[Stalls, means("gaps above 250 ms between two output events of a turn")] = Stalls()
    tokens_per_event: Annotated[Mean, means("output tokens per output event")] = Mean()
    rates: Annotated[
        dict[str, Number | None], means("one entry for each rate and share of [measures](measures.md)")
    ] = {}
    slo: Annotated[
        Slo | None,
        means("turns that missed each limit of the SLO; null without an SLO, or if the result of a turn is not known"),
    ] = None
    latency: Annotated[dict[str, Distribution], means("one entry for each [measure](measures.md) of turns, in ms")] = {}

    def latency_of(self, measure: str) -> Distribution:
        return self.latency.get(measure, NO_SAMPLES)


class Step(Figures, frozen=True, kw_only=True):
    """Figures of one step of the load. Percentiles come from sketches."""

    step: Annotated[Count, means("number of the step, from 0")]
    users: Annotated[Count | None, means("users of the step (closed loop)")] = None
    sessions_per_s: Annotated[Number | None, means("rate of the step (open loop)")] = None
    window_s: Annotated[Number | None, means("length of the step")] = None
    growth: Annotated[Growth | None, means("growth of the turns in flight")] = None


class SplitTurns(Struct, frozen=True, kw_only=True):
    """Counts of the turns of one server or model."""

    sent: Annotated[Count, means("turns that were begun")]
    ok: Annotated[Count, means("successful turns, cancelled ones included")]
    failed: Annotated[Count, means("turns that failed")]
    unfinished: Annotated[Count, means("turns in flight at the end of the drain")]
    requests: Annotated[Count | None, means("requests that were sent for these turns")] = None
    retried: Annotated[Count | None, means("of these requests: sent again ([retries](turns.md#retries))")] = None
    input_tokens: Annotated[Count | None, means("sum over the turns that reported it; null: none did")] = None
    cached_tokens: Annotated[Count | None, means("sum over the turns that reported it; null: none did")] = None
    output_tokens: Annotated[Count | None, means("sum over the turns that reported it; null: none did")] = None


class Split(Struct, frozen=True, kw_only=True):
    """Figures of one server or model."""

    turns: Annotated[SplitTurns, means("counts of turns")]
    latency: Annotated[dict[str, Distribution], means("one entry for each [measure](measures.md) of turns, in ms")] = {}

    def latency_of(self, measure: str) -> Distribution:
        return self.latency.get(measure, NO_SAMPLES)


class ExpectedHits(Struct, frozen=True, kw_only=True):
    """Hits of an unlimited cache."""

    turns: Annotated[Count, means("turns whose prompts are counted")]
    input_tokens: Annotated[Count, means("prompt tokens of these turns")]
    cacheable_tokens: Annotated[Count, means("prompt tokens in whole blocks, without the last token")]
    cacheable_share: Annotated[Number | None, means("cacheable over input tokens")] = None
    cached_tokens: Annotated[Count, means("prompt tokens that an earlier prompt left in the cache")]
    hit_rate: Annotated[Number | None, means("cached over input tokens")] = None
    engine_tokens: Annotated[Count | None, means("tokens that fit into the memory of the only engine")] = None
    engine_hit_rate: Annotated[
        Number | None, means("estimate for a cache of this size: the least recently used spans are evicted")
    ] = None
    exactness: Annotated[str, means("`exact` or `approximate`, without the estimate")] = "approximate"
    notes: Annotated[list[str], means("assumptions")] = []


class CountedHits(Struct, frozen=True, kw_only=True):
    """The server's counters."""

    queries: Annotated[Count, means("tokens looked up")]
    hits: Annotated[Count, means("tokens found")]
    hit_rate: Annotated[Number | None, means("tokens found over tokens looked up")] = None
    loaded: Annotated[
        Count | None, means("tokens loaded from other tiers or servers, beside those found; null: not counted")
    ] = None
    notes: Annotated[list[str], means("load outside the scrapes")] = []

    @property
    def all_hits(self) -> int:
        """Tokens found, and loaded from other tiers."""
        return self.hits + (self.loaded or 0)

    @property
    def all_hit_rate(self) -> float | None:
        """Hit rate of all tiers."""
        return None if self.hit_rate is None else self.all_hits / self.queries


class RoutedHits(Struct, frozen=True, kw_only=True):
    """Expected hit rates of several servers with an unlimited cache each, for two ways of routing."""

    servers: Annotated[Count, means("servers that count hits")]
    stay_hit_rate: Annotated[Number | None, means("hit rate if each session stays on one server")] = None
    in_turn_hit_rate: Annotated[
        Number | None, means("hit rate if turns go to the servers in turn, in the order in which they were sent")
    ] = None


class ReportedHits(Struct, frozen=True, kw_only=True):
    """Cached tokens reported with the answers."""

    turns: Annotated[Count, means("turns that reported cached tokens")]
    input_tokens: Annotated[Count, means("prompt tokens of these turns")]
    cached_tokens: Annotated[Count, means("cached tokens that they reported")]
    hit_rate: Annotated[Number | None, means("cached over input tokens")] = None
    of_cacheable: Annotated[Number | None, means("share of the cacheable tokens")] = None
    includes: Annotated[
        str | None,
        means("`device hits` or `all tiers`, by the server's counts; `neither`; null: no other tiers, or not decided"),
    ] = None


_REPORTED = {
    "device hits": "the answers report hits in the memory of the engine only, without {loaded:,} tokens from other tiers",
    "all tiers": "the cached tokens of the answers contain {loaded:,} tokens that were loaded from other tiers",
    "neither": "the answers report neither the hits in the memory of the engine nor those of all tiers: with a remote "
    "prefill they may be those of the prefill server",
}


class PairedMeasure(Struct, frozen=True, kw_only=True):
    """The same turns in the earlier run (before) and in this one (after)."""

    pairs: Annotated[Count, means("turns with a value in both runs")]
    before_mean: Annotated[Number | None, means("mean of the earlier run")] = None
    after_mean: Annotated[Number | None, means("mean of this run")] = None
    difference_mean: Annotated[Number | None, means("after - before")] = None
    ratio_p50: Annotated[Number | None, means("median of after / before")] = None


class EarlierRun(Struct, frozen=True, kw_only=True):
    """Comparison with the cold run, turn by turn."""

    arm: Annotated[str, means("arm of the earlier run")]
    run_dir: Annotated[str, means("its folder, beside this run's")]
    only_after: Annotated[Count | None, means("turns that the earlier run does not have")] = None
    measures: Annotated[dict[str, PairedMeasure], means("by measure; empty if turn records are missing")] = {}

    @property
    def paired(self) -> dict[str, PairedMeasure]:
        return {name: measure for name, measure in self.measures.items() if measure.pairs}


class Cache(Struct, frozen=True, kw_only=True):
    """Prefix-cache hits of the whole run, warm-up and drain included ([cache](../background/cache.md))."""

    arm: Annotated[str | None, means("`cold`, `warming` or `warm`")] = None
    isolate: Annotated[str | None, means("`run`, `session`, `turn` or `none`")] = None
    block_size: Annotated[Count | None, means("tokens in a block")] = None
    block_size_from: Annotated[str | None, means("`scenario`, `server` or `assumed`")] = None
    enabled: Annotated[bool | None, means("prefix caching of the server")] = None
    expected: Annotated[ExpectedHits | None, means("hits of an unlimited cache")] = None
    counted: Annotated[CountedHits | None, means("the server's counters")] = None
    routed: Annotated[RoutedHits | None, means("expected hits by routing; of several servers only")] = None
    per_turn: Annotated[ReportedHits | None, means("cached tokens reported with the answers")] = None
    earlier: Annotated[EarlierRun | None, means("comparison with the cold run; of a warm run only")] = None

    @property
    def known(self) -> list[tuple[str, int, int, float | None]]:
        """Each known kind of hits: name, input tokens, cached tokens, hit rate."""
        rows: list[tuple[str, int, int, float | None]] = []
        if (of := self.expected) is not None:
            rows.append(("expected", of.input_tokens, of.cached_tokens, of.hit_rate))
            if (rate := of.engine_hit_rate) is not None and rate != of.hit_rate:
                rows.append(("expected, memory of the engine", of.input_tokens, round(rate * of.input_tokens), rate))
        if (counted := self.counted) is not None:
            rows.append(("counted by the server", counted.queries, counted.hits, counted.hit_rate))
            if counted.loaded:
                rows.append(("counted, with other tiers", counted.queries, counted.all_hits, counted.all_hit_rate))
        if (told := self.per_turn) is not None:
            rows.append(("reported with answers", told.input_tokens, told.cached_tokens, told.hit_rate))
        return rows

    @property
    def notes(self) -> list[str]:
        """Notes on expected and counted hits."""
        found = [note for hits in (self.expected, self.counted) if hits is not None for note in hits.notes]
        if self.per_turn and self.per_turn.includes and self.counted:
            found.append(_REPORTED[self.per_turn.includes].format(loaded=self.counted.loaded or 0))
        return found
