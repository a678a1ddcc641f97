"""Types of summary.json: `summarise` writes it, all pages read it. docs/reference/summary.md is generated from them.

A run directory may come from another machine, another version or an editor. `typed_documents.read` compares a file with these
types, so that later code finds values of their types. Unknown is None, or an empty collection. Further keys are valid.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from inferload.base.json_text import Count, Number, Seed
from inferload.figures.client_figures import CLIENT_FIGURES, ClientFigure
from inferload.figures.limits.slo import SLO_MEASURES
from inferload.figures.server_figures import Server
from inferload.results.statistics.overload import Growth
from inferload.turns import states

FORMAT = 1
NOT_JUDGED = "not judged"  # measurement of a run that never started
QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999}
BEYOND = 10  # samples beyond a percentile; with fewer, it is marked and has an interval

State = Literal["failed", "stopped early", "invalid", "suspect", "passed"]  # worst first
Answer = Literal["pass", "fail", "inconclusive"]
# What decided a gate: the value, if it is no estimate; the interval; the distance between value and limit.
Ground = Literal["value", "interval", "distance"]


def means(text: str) -> Meta:
    """Return the meaning of a key, for its row in docs/reference/summary.md."""
    return Meta(description=text)


def steady(count: int, q: float) -> bool:
    """Return True if at least BEYOND samples are beyond a percentile: n (1 - q) >= 10."""
    return round(count * (1 - q), 6) >= BEYOND


class Outcome(Struct, frozen=True, kw_only=True):
    """The result of the run."""

    state: Annotated[State, means("`failed`, `stopped early`, `invalid`, `suspect` or `passed`")]
    headline: Annotated[str, means("state and cause in one line")]
    exit_code: Annotated[int, Meta(ge=0, le=255), means("exit code of the headless run")]


class Run(Struct, frozen=True, kw_only=True):
    """Identity of the run."""

    id: Annotated[str | None, means("start time and a random part")] = None
    scenario: Annotated[str | None, means("name of the scenario")] = None
    digest: Annotated[str | None, means("SHA-256 of the resolved scenario")] = None
    locustfile: Annotated[
        str | None,
        means(
            "SHA-256 of the program: locustfile, live agents, and imported modules below their folders; null: part of inferload"
        ),
    ] = None
    seed: Annotated[Seed | None, means("seed of all random choices")] = None
    target: Annotated[str | None, means("the server; several are separated by commas")] = None
    model: Annotated[str | None, means("the model; several are separated by commas")] = None
    engine: Annotated[str | None, means("`vllm`, `simulator`, `sglang`, ...")] = None
    stands_for: Annotated[str | None, means("model and devices whose times the simulator has")] = None
    proxies: Annotated[
        dict[str, str], means("proxy of each server that was reached [through one](endpoints.md#proxies)")
    ] = {}
    started_at: Annotated[str | None, means("ISO 8601, UTC")] = None
    clock: Annotated[
        Literal["real", "virtual"],
        means("`virtual`: a [rehearsal](../how-to/rehearse.md), whose figures are simulated"),
    ] = "real"
    held_s: Annotated[
        Number | None,
        means("real time for which sockets, child processes and threads of the program held the virtual clock"),
    ] = None
    versions: Annotated[
        dict[str, str | None],
        means("versions of `inferload`, `locust`, `python` and, as it reports it, of the `server`"),
    ] = {}
    prompt_lengths: Annotated[
        list[str],
        means(
            "remarks on the lengths of prompts: estimates, and [first turns](endpoints.md#first-request) of other lengths, or "
            "whose planned length is not checked"
        ),
    ] = []


class Reason(Struct, frozen=True, kw_only=True):
    """A reason of a verdict below valid ([validity](validity.md))."""

    code: Annotated[str, means("code of the reason")]
    phase: Annotated[str, means("phase in which it was found")] = "measure"
    level: Annotated[str, means("`suspect` or `invalid`")] = ""
    value: Annotated[Number | None, means("measured value")] = None
    limit: Annotated[Number | None, means("limit that was exceeded")] = None
    text: Annotated[str, means("description and remedy")]

    @property
    def decides(self) -> bool:
        """True if the verdict depends on it: only reasons of the measure phase do."""
        return self.phase == "measure"


class GateResult(Struct, frozen=True, kw_only=True):
    """Result of a gate or of a condition of `abort_on`."""

    gate: Annotated[str, means("the gate as written")]
    value: Annotated[Number | None, means("measured value; a gate with an unknown value has not passed")] = None
    passed: Annotated[bool, means("result that sets the exit code")]
    simulated: Annotated[bool, means("true: the value is of a run on a virtual clock")] = False
    answer: Annotated[
        Answer,
        means(
            "`pass`, `fail`, or `inconclusive`: the 95 % interval contains the limit, or the run is too short for one"
        ),
    ] = "fail"
    ground: Annotated[
        Ground,
        means(
            "what the answer rests on: `interval`, `distance` (value and limit are far apart), or `value` (no estimate)"
        ),
    ] = "value"
    low: Annotated[Number | None, means("lower end of the 95 % interval; null without one, and for an open end")] = None
    high: Annotated[Number | None, means("upper end of the 95 % interval")] = None
    effective_n: Annotated[Number | None, means("number of independent samples that have this interval")] = None
    note: Annotated[str | None, means("remark on the value; of an inconclusive gate: what is missing")] = None


class Verdict(Struct, frozen=True, kw_only=True):
    """Validity of the measurement, and gates."""

    measurement: Annotated[str, means("`valid`, `suspect` or `invalid`")] = NOT_JUDGED
    by_phase: Annotated[dict[str, str], means("the same for each phase")] = {}
    reasons: Annotated[
        list[Reason], means("reasons of a verdict below valid; those of other phases decide nothing")
    ] = []
    gates: Annotated[list[GateResult], means("results of gates and of `abort_on`")] = []
    passed: Annotated[bool, means("all gates hold; without gates: no turn, other request or task failed")] = False

    @property
    def deciding(self) -> list[Reason]:
        """Reasons that decide the verdict."""
        return [reason for reason in self.reasons if reason.decides]


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
        dict[str, Count],
        means("successful turns by finish reason: `stop`, `length`, `tool_calls` or the server's own"),
    ] = {}
    output_tokens: Annotated[Count | None, means("sum over the turns that reported it; null: none did")] = None
    output_tokens_from: Annotated[Count | None, means("turns that reported their output tokens")] = None
    input_tokens: Annotated[Count | None, means("sum over the turns that reported it; null: none did")] = None
    input_tokens_from: Annotated[Count | None, means("turns that reported their input tokens")] = None
    cached_tokens: Annotated[Count | None, means("sum over the turns that reported it; null: none did")] = None

    @property
    def ended(self) -> int:
        """Turns that ended in any way, or were in flight at the end of the drain."""
        return self.ok + self.failed + self.unfinished


class FirstExample(Struct, frozen=True, kw_only=True):
    """First turn, or first other request, of a kind over the whole run."""

    text: Annotated[str, means("message, at most 300 characters")]
    at_s: Annotated[Number, means("time since the start of the run")]
    worker: Annotated[str | None, means("worker that had it")] = None


class FirstError(FirstExample, frozen=True, kw_only=True):
    """First failed turn of a kind over the whole run."""

    failure: Annotated[str, means("class of failure")]
    status: Annotated[Count | None, means("HTTP status, null without a response")] = None
    turn_class: Annotated[str, means("class of the turns")] = msgspec.field(name="class", default="")


class RemarkCount(Struct, frozen=True, kw_only=True):
    """Answers that were measured although they do not follow the API, or lack something; `notes` has a sentence for each."""

    turns: Annotated[Count, means("turns of the measure phase")]
    first: Annotated[FirstExample | None, means("the first example over the whole run")] = None


class Turns(TurnCounts, frozen=True, kw_only=True):
    """`sent` = `ok` + `failed` + `unfinished`; `requests` = `sent` + `retried` - turns without a connection."""

    by_phase: Annotated[dict[str, TurnCounts], means("`warmup`, `measure`, `drain` and `all`")] = {}
    first_errors: Annotated[
        list[FirstError],
        means(
            "the earliest error of each class of failure, HTTP status and class of turns, over the whole run; at most 90"
        ),
    ] = []
    remarks: Annotated[dict[str, RemarkCount], means("peculiarities of answers, by kind")] = {}

    @property
    def whole_run(self) -> TurnCounts:
        """Counts of all phases; those of the measure phase if only these are known."""
        return self.by_phase.get("all", self)


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
        """Return the distribution of a measure of turns."""
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
        """Return the distribution of a measure of turns."""
        return self.latency.get(measure, NO_SAMPLES)


class RequestName(Struct, frozen=True, kw_only=True):
    """Requests of one type and name."""

    type: Annotated[str | None, means("Locust's request type, such as `GET`")] = None
    name: Annotated[str, means("Locust's name")]
    sent: Annotated[Count | None, means("requests that ended; null: not known")]
    failed: Annotated[Count | None, means("requests that failed; null: not known")]
    p50_ms: Annotated[Number | None, means("Locust's median response time, of three significant digits")] = None
    p95_ms: Annotated[Number | None, means("the same, 95th percentile")] = None
    p99_ms: Annotated[Number | None, means("the same, 99th percentile")] = None
    first_error: Annotated[FirstExample | None, means("the first that failed; null: none, or not known")] = None

    @property
    def text(self) -> str:
        """Type and name."""
        return f"{self.type or ''} {self.name}".lstrip()


class OtherRequests(Struct, frozen=True, kw_only=True):
    """Requests that are not turns."""

    sent: Annotated[Count | None, means("requests that ended; null: not known")] = None
    failed: Annotated[Count | None, means("requests that failed; null: not known")] = None
    by_name: Annotated[list[RequestName], means("by type and name")] = []


class TaskException(Struct, frozen=True, kw_only=True):
    """Exceptions with one message."""

    message: Annotated[str, means("text of the exception")]
    count: Annotated[Count, means("exceptions with this text")]


class Exceptions(Struct, frozen=True, kw_only=True):
    """Exceptions of tasks and event listeners."""

    count: Annotated[Count | None, means("exceptions raised; null: not known")] = None
    first: Annotated[str | None, means("message of the first one")] = None
    by_message: Annotated[list[TaskException], means("by message, of at most 50; the rest as `others`")] = []


class Users(Struct, frozen=True, kw_only=True):
    """Locust's users at the end of the load."""

    by_class: Annotated[dict[str, Count], means("users of each user class")] = {}


class ReaderUse(Struct, frozen=True, kw_only=True):
    """Workers and targets with one [reader of the sockets](validity.md#the-reader-of-the-sockets)."""

    reader: Annotated[str, means("`native` or `python`")]
    why: Annotated[str, means("reason for `python`; empty for `native`")] = ""
    remedy: Annotated[str, means("change that makes it `native`; empty if there is none")] = ""
    targets: Annotated[list[str], means("the targets whose connections it reads")] = []
    workers: Annotated[Count, means("workers that use it")] = 0


class ClientFacts(Struct, frozen=True, kw_only=True):
    """Health of the load-generating processes."""

    stamps: Annotated[str | None, means("`kernel`, `user` or `virtual` timestamps")] = None
    reader: Annotated[str | None, means("`native`, `python`, or `mixed` if workers or targets differ")] = None
    readers: Annotated[list[ReaderUse], means("the same by reader and reason")] = []

    def samples(self, figure: ClientFigure) -> Distribution:
        """Return a distribution; one without samples if it is not known."""
        found: Distribution | None = getattr(self, figure.field)
        return NO_SAMPLES if found is None else found

    def knows(self, figure: ClientFigure) -> bool:
        """Return True if the figure is known; a distribution may have no samples."""
        return getattr(self, figure.field) is not None

    def number(self, figure: ClientFigure) -> float | None:
        """Return a figure that is a single number."""
        value: float | None = getattr(self, figure.field)
        return value


if TYPE_CHECKING:
    Client = ClientFacts
else:
    # With a field for each row.
    Client = msgspec.defstruct(
        "Client",
        [
            (
                figure.field,
                Annotated[(Number if figure.sketch is None else Distribution) | None, means(figure.text)],
                None,
            )
            for figure in CLIENT_FIGURES
        ],
        bases=(ClientFacts,),
        module=__name__,
        frozen=True,
        kw_only=True,
    )


class Stopped(Struct, frozen=True, kw_only=True):
    """A server that stopped answering."""

    target: Annotated[str, means("URL of the server")]
    at_s: Annotated[Number, means("time since the start of the run")]
    by_failure: Annotated[dict[str, Count], means("failed turns after that time, by class")]


class ExpectedHits(Struct, frozen=True, kw_only=True):
    """Hits of an unlimited cache."""

    turns: Annotated[Count, means("turns whose prompts are counted")]
    input_tokens: Annotated[Count, means("prompt tokens of these turns")]
    cacheable_tokens: Annotated[Count, means("prompt tokens in whole blocks, without the last token")]
    cacheable_share: Annotated[Number | None, means("cacheable over input tokens")] = None
    cached_tokens: Annotated[Count, means("prompt tokens that an earlier prompt left in the cache")]
    hit_rate: Annotated[Number | None, means("cached over input tokens")] = None
    exactness: Annotated[str, means("`exact` or `approximate`")] = "approximate"
    notes: Annotated[list[str], means("assumptions")] = []


class CountedHits(Struct, frozen=True, kw_only=True):
    """The server's counters."""

    queries: Annotated[Count, means("tokens looked up")]
    hits: Annotated[Count, means("tokens found")]
    hit_rate: Annotated[Number | None, means("tokens found over tokens looked up")] = None
    notes: Annotated[list[str], means("load outside the scrapes")] = []


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
        """Measures that have pairs."""
        return {name: measure for name, measure in self.measures.items() if measure.pairs}


class Cache(Struct, frozen=True, kw_only=True):
    """Prefix-cache hits of the whole run, warm-up and drain included ([cache](../background/cache.md))."""

    arm: Annotated[str | None, means("`cold`, `warming` or `warm`")] = None
    isolate: Annotated[str | None, means("`run`, `session` or `none`")] = None
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
        for name, hits in (("expected", self.expected), ("reported with answers", self.per_turn)):
            if hits is not None:
                rows.append((name, hits.input_tokens, hits.cached_tokens, hits.hit_rate))
        if self.counted is not None:
            counted = self.counted
            rows.insert(bool(self.expected), ("counted by the server", counted.queries, counted.hits, counted.hit_rate))
        return rows

    @property
    def notes(self) -> list[str]:
        """Notes on expected and counted hits."""
        return [note for hits in (self.expected, self.counted) if hits is not None for note in hits.notes]


class TurnRecords(Struct, frozen=True, kw_only=True):
    """Completeness of the turn records."""

    counted: Annotated[Count | None, means("turns counted by the workers")] = None
    at_hand: Annotated[Count | None, means("records in the run directory")] = None
    held_back: Annotated[Count | None, means("records that workers did not send (`--max-turns-mb`)")] = None
    lost: Annotated[Count | None, means("records that were lost")] = None
    why: Annotated[str | None, means("cause of missing records")] = None


class TaskSteps(Struct, frozen=True, kw_only=True):
    """A range of steps of agents."""

    first: Annotated[Count, means("first step of the range")] = msgspec.field(name="from")
    last: Annotated[Count | None, means("last step; `null`: no limit")] = msgspec.field(name="to", default=None)
    turns: Annotated[Count, means("turns of these steps")]
    share: Annotated[Number | None, means("cached over input tokens")] = None


class Task(Struct, frozen=True, kw_only=True):
    """A task is a session with its sub-agents. It belongs to the phase of its first turn. Distributions cover tasks that were
    done ([agents](../how-to/agents.md)).
    """

    begun: Annotated[Count, means("tasks that started")]
    done: Annotated[Count, means("tasks whose turns are all ok and whose last answer was received")]
    completion_s: Annotated[
        Distribution, means("first planned to last closed; `model_s` + `tool_s` + `think_s` + `lag_s`")
    ] = NO_SAMPLES
    steps: Annotated[Distribution, means("turns of a task")] = NO_SAMPLES
    first_call_s: Annotated[Distribution, means("time to the end of the answer with the first call")] = NO_SAMPLES
    model_s: Annotated[Distribution, means("a turn was in flight")] = NO_SAMPLES
    tool_s: Annotated[Distribution, means("tools ran")] = NO_SAMPLES
    think_s: Annotated[Distribution, means("pauses of the user")] = NO_SAMPLES
    lag_s: Annotated[Distribution, means("a turn was due and not yet sent")] = NO_SAMPLES
    stalled: Annotated[Count, means("tasks with a stall")]
    cancelled_turns: Annotated[Count, means("turns that the scenario or the task cancelled")]
    uncounted_turns: Annotated[Count, means("turns that did not report input or output tokens")]
    input_tokens: Annotated[Count | None, means("sum over all turns; null: one did not report it")] = None
    output_tokens: Annotated[Count | None, means("sum over all turns; null: one did not report it")] = None
    input_per_output: Annotated[Number | None, means("input over output tokens")] = None
    cached_share: Annotated[Number | None, means("cached over input tokens")] = None
    cached_share_by_step: Annotated[list[TaskSteps], means("the same by range of steps")] = []


class Results(Figures, frozen=True, kw_only=True):
    """All of a summary except its outcome, which follows from it; during a run, what is known so far."""

    format: Annotated[int, means("version of this format: 1")] = FORMAT
    run: Annotated[Run, means("identity of the run")] = Run()
    verdict: Annotated[Verdict, means("validity of the measurement, and gates")] = Verdict()
    window_s: Annotated[Number | None, means("length of the measure phase")] = None
    percentiles_from: Annotated[
        str | None,
        means(
            "`records`: exact; `sketches`: relative error up to 0.25 %, because turn records are missing or the run is "
            "[too long](../how-to/machines.md#long-runs); `notes` has the reason"
        ),
    ] = None
    turns: Annotated[Turns, means("counts of turns")]
    other_requests: Annotated[
        OtherRequests, means("requests that are not turns, such as those of an `HttpUser`, over the whole run")
    ] = OtherRequests()
    exceptions: Annotated[Exceptions, means("exceptions of tasks and event listeners, over the whole run")] = (
        Exceptions()
    )
    users: Annotated[Users, means("Locust's users at the end of the load")] = Users()
    client: Annotated[Client, means("health of the load-generating processes")] = Client()
    servers: Annotated[list[Server], means("one entry for each scraped target")] = []
    servers_together: Annotated[
        dict[str, Number | None],
        means(
            "each figure of the inference servers together, by its name in gates: counts and rates are added, shares are the "
            "highest, means of histograms are by request, and of gauges it is the mean; empty for a single one"
        ),
    ] = {}
    by_class: Annotated[dict[str, Figures], means("the figures of each class of turns")] = {}
    by_target: Annotated[
        dict[str, Split], means("by server; empty with one server, or if turn records are missing")
    ] = {}
    by_model: Annotated[dict[str, Split], means("by model; empty with one model, or if turn records are missing")] = {}
    steps: Annotated[list[Step], means("one entry for each step of `arrivals.profile`")] = []
    stopped_answering: Annotated[
        list[Stopped] | None, means("servers that stopped answering during the run; null if turn records are missing")
    ] = None
    growth: Annotated[
        Growth | None, means("growth of the turns in flight in an open loop; of several steps the worst")
    ] = None
    overload_not_judged: Annotated[str | None, means("the reason, if overload of an open loop could not be judged")] = (
        None
    )
    notes: Annotated[
        list[str],
        means(
            "tokens that rates leave out; classes whose answers ended below half of their limits (`max_tokens`); a sentence "
            "for each [remark count](#remark-count); names beyond the limit of 200, which are counted together; missing turn "
            "records; figures left out of a long run"
        ),
    ] = []
    cache: Annotated[
        Cache, means("prefix-cache hits: expected, counted, reported ([cache](../background/cache.md))")
    ] = Cache()
    turn_records: Annotated[TurnRecords, means("completeness of the turn records")] = TurnRecords()
    tasks: Annotated[
        dict[str, Task],
        means("agent tasks by class ([agents](../how-to/agents.md)); empty if turn records are missing"),
    ] = {}

    @classmethod
    def of_part(cls, part: Figures, **more: Any) -> Results:
        """Return the results of which only these figures, and `more`, are known."""
        figures = {name: getattr(part, name) for name in Figures.__struct_fields__}
        turns = Turns(**{name: getattr(part.turns, name) for name in TurnCounts.__struct_fields__})
        return cls(**figures | {"turns": turns} | more)

    @property
    def not_valid(self) -> bool:
        """True if the measurement is invalid: its figures are marked."""
        return self.verdict.measurement == "invalid"


class Summary(Results, frozen=True, kw_only=True):
    """summary.json."""

    outcome: Annotated[Outcome, means("the result of the run")]

    @classmethod
    def of(cls, results: Results, outcome: Outcome) -> Summary:
        """Return results with their outcome."""
        return cls(outcome=outcome, **{name: getattr(results, name) for name in Results.__struct_fields__})
