"""Types of the values of run.json and summary.json that are read again.

A run directory may come from another machine, another version or an editor. Its documents are compared with these types where
they are read, so that later code finds a value of its type, null where that means unknown, or no value. Further keys are valid.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Required, TypedDict, get_type_hints

import msgspec
from msgspec import Meta

from inferload.base import rundir
from inferload.base.errors import UsageError
from inferload.figures.server_figures import SERVER_FIGURES, ServerFigure
from inferload.figures.server_formulas import HistogramMean

Count = Annotated[int, Meta(ge=0, le=10**18)]
# Sums, products and quotients of such numbers are finite.
Number = Annotated[float, Meta(ge=-1e18, le=1e18)]
Instant = Annotated[int, Meta(ge=0, le=1 << 62)]  # nanoseconds; the difference of two has 64 bits
Offset = Annotated[int, Meta(ge=-(1 << 61), le=1 << 61)]
ByName = dict[str, Count]
Means = dict[str, Number | None]  # mean, maximum and the like, by name


class Gate(TypedDict, total=False):
    gate: Required[str]
    value: Number | None
    passed: Required[bool]
    answer: str
    low: Number | None
    high: Number | None
    note: str


class Reason(TypedDict, total=False):
    code: str
    phase: str | None
    level: str
    text: Required[str]


class Verdict(TypedDict, total=False):
    measurement: Required[str]
    reasons: list[Reason]
    gates: list[Gate]
    passed: bool


class Outcome(TypedDict, total=False):
    state: Required[str]
    headline: Required[str]
    exit_code: Annotated[int, Meta(ge=0, le=255)]


class Run(TypedDict, total=False):
    id: str | None
    scenario: str | None
    digest: str | None
    seed: Count | None
    target: str | None
    model: str | None
    engine: str | None
    proxies: dict[str, str]
    started_at: str | None
    versions: dict[str, str | None]


class Distribution(TypedDict, total=False):
    count: Count
    mean: Number | None
    p50: Number | None
    p90: Number | None
    p95: Number | None
    p99: Number | None
    p999: Number | None
    min: Number | None
    max: Number | None
    intervals: dict[str, tuple[Number | None, Number | None]]


class Histogram(TypedDict, total=False):
    count: Count
    mean: Number | None
    p50: list[Number | None] | None
    p99: list[Number | None] | None


class FirstExample(TypedDict):
    text: str
    at_s: Number
    worker: str


FirstError = TypedDict(
    "FirstError",
    {"failure": str, "status": Count | None, "class": str, "text": str, "at_s": Number, "worker": str},
)


class TurnCounts(TypedDict, total=False):
    sent: Count
    ok: Count
    cancelled: Count
    failed: Count
    unfinished: Count
    by_failure: ByName
    by_finish_reason: ByName
    input_tokens: Count | None
    input_tokens_from: Count
    output_tokens: Count | None
    output_tokens_from: Count
    cached_tokens: Count | None


class RemarkCount(TypedDict):
    turns: Count
    first: FirstExample | None


class Turns(TurnCounts, total=False):
    by_phase: dict[str, TurnCounts]
    first_errors: list[FirstError]
    remarks: dict[str, RemarkCount]


class Slo(TypedDict, total=False):
    limits: dict[str, Number | None]
    turns: Required[Count]
    met: Count
    missed: Required[ByName]


class _Figures(TypedDict, total=False):
    slo: Slo | None
    sessions: ByName
    stalls: Means
    tokens_per_event: Means
    rates: dict[str, Number | None]
    latency: dict[str, Distribution]


class Figures(_Figures, total=False):
    turns: TurnCounts


class Step(Figures, total=False):
    step: Count
    users: Count
    sessions_per_s: Number
    window_s: Number | None
    growth: dict[str, Number | str | None] | None


class RequestName(TypedDict, total=False):
    type: str | None
    name: Required[str]
    sent: Required[Count]
    failed: Required[Count]
    p50_ms: Number | None
    p95_ms: Number | None
    p99_ms: Number | None


class OtherRequests(TypedDict, total=False):
    sent: Required[Count]
    failed: Required[Count]
    by_name: list[RequestName]


class TaskException(TypedDict):
    message: str
    count: Count


class Exceptions(TypedDict, total=False):
    count: Count
    first: str | None
    by_message: list[TaskException]


class Client(TypedDict, total=False):
    delay_ms: Distribution
    loop_lag_ms: Distribution
    gc_pause_ms: Distribution
    longest_pause_ms: Number | None
    cpu_share: Number | None
    steal_share: Number | None
    stamps: str | None
    reader: str | None


class _ServerFacts(TypedDict, total=False):
    target: Required[str]
    scrapes: Count
    window_s: Number | None
    longest_gap_s: Number | None
    gap_limit_s: Number
    samples_unusable: Count
    prefix_cache_hit_rate_from: str | None
    kv_cache_size_tokens: Count | None
    engines: list[dict[str, Means | str | None]]


def _figure_type(row: ServerFigure) -> Any:
    if isinstance(row.formula, HistogramMean):
        return Histogram | None
    return (Means if row.statistics else Count if row.form == "count" else Number) | None


if TYPE_CHECKING:
    Server = _ServerFacts
else:
    Server = TypedDict(
        "Server",
        {
            row.block: dict[str, Means | Number | list[Number | None] | None] | None
            for row in SERVER_FIGURES
            if row.block
        }
        | {row.entry_key: _figure_type(row) for row in SERVER_FIGURES if row.block is None}
        | get_type_hints(_ServerFacts, include_extras=True),
        total=False,
    )


class Stopped(TypedDict):
    target: str
    at_s: Number
    by_failure: ByName


class Hits(TypedDict, total=False):
    turns: Count
    input_tokens: Count
    cacheable_tokens: Count
    cacheable_share: Number | None
    cached_tokens: Count
    cached_tokens_at_most: Count
    queries: Count
    hits: Count
    hit_rate: Number | None
    hit_rate_at_most: Number | None
    of_cacheable: Number | None
    exactness: str
    notes: list[str]


class EarlierRun(TypedDict, total=False):
    arm: str
    run_dir: str
    only_after: Count
    measures: dict[str, Means]


class Cache(TypedDict, total=False):
    arm: str
    isolate: str
    block_size: Count
    block_size_from: str
    enabled: bool | None
    expected: Hits | None
    counted: Hits | None
    per_turn: Hits | None
    earlier: EarlierRun | None


TaskSteps = TypedDict("TaskSteps", {"from": Count, "to": Count | None, "turns": Count, "share": Number | None})


class Task(TypedDict, total=False):
    begun: Count
    done: Count
    completion_s: Distribution
    steps: Distribution
    first_call_s: Distribution
    model_s: Distribution
    tool_s: Distribution
    think_s: Distribution
    lag_s: Distribution
    stalled: Count
    cancelled_turns: Count
    uncounted_turns: Count
    input_tokens: Count | None
    output_tokens: Count | None
    input_per_output: Number | None
    cached_share: Number | None
    cached_share_by_step: list[TaskSteps]


class Summary(_Figures, total=False):
    """summary.json: docs/reference/summary.md describes its keys."""

    outcome: Outcome
    run: Run
    verdict: Verdict
    window_s: Number | None
    percentiles_from: str
    turns: Turns
    other_requests: OtherRequests
    exceptions: Exceptions
    users: dict[str, ByName]
    client: Client
    servers: list[Server]
    by_class: dict[str, Figures]
    by_target: dict[str, Figures] | None
    by_model: dict[str, Figures] | None
    steps: list[Step]
    stopped_answering: list[Stopped] | None
    growth: dict[str, Number | str | None] | None
    overload_not_judged: str | None
    notes: list[str]
    cache: Cache
    turn_records: dict[str, Count | str | None]
    tasks: dict[str, Task] | None


class ScenarioFile(TypedDict, total=False):
    name: str
    origin: str
    digest: str
    text: str
    overrides: dict[str, Any]


class Anchor(TypedDict, total=False):
    wall_ns: Required[Instant]
    mono_ns: Instant


class Phase(TypedDict, total=False):
    phase: str
    start_wall_ns: Instant | None
    end_wall_ns: Instant | None


class Worker(TypedDict, total=False):
    name: Required[str]
    clock_offset_ns: Offset | None
    turns: Count | None


class SentBeforeLoad(TypedDict, total=False):
    requests: int
    served: int
    input_tokens: int
    output_tokens: int
    finish_reasons: bool


class TargetServer(TypedDict, total=False):
    url: str
    api: str
    proxy: str | None
    before_load: SentBeforeLoad
    engine: str | None
    stands_for: str | None
    models: list[str]


class Variant(TypedDict, total=False):
    name: str | None
    engine: str | None
    argv: list[str] | None
    config: Any
    hardware: dict[str, str | Count | None] | None
    memory_mb: Number | None
    gpu_memory_mb: dict[str, Number] | None


class Load(TypedDict, total=False):
    users_or_rate: Required[str]
    detail: str
    rows: list[tuple[str, list[str]]]


class Manifest(TypedDict, total=False):
    """run.json."""

    id: str
    scenario: ScenarioFile
    seed: Count | None
    target: str | None
    targets: list[TargetServer]
    model: str | None
    models: list[str]
    max_tokens_field: str
    engine: str | None
    variant: Variant | None
    versions: dict[str, str | None]
    hosts: list[str]
    machine: dict[str, Any]
    started_at: str
    anchor: Anchor
    phases: list[Phase]
    workers: list[Worker]
    metrics_urls: list[str]
    insecure: bool
    stop_reason: str | None
    load: Load


class Mark(TypedDict, total=False):
    """A line of marks.jsonl."""

    wall_ns: Required[Instant]
    kind: str
    text: str
    users: Number
    sessions_per_s: Number


_SHAPES: Mapping[str, type] = {"run.json": Manifest, "summary.json": Summary}


def read(path: Path) -> dict[str, Any]:
    """Read a JSON document of a run. Raise UsageError if it is missing or invalid, or has a value of another type."""
    document = rundir.read_object(path)
    for problem in faults(path.name, document).values():
        raise UsageError(f"{path}: {problem}; the file is damaged, or another version wrote it")
    return document


def faults(name: str, document: Mapping[str, Any]) -> dict[str, str]:
    """Return the problem of each top-level key of a document whose value is not of its type. `name`: of the file."""
    found = {}
    for key, value in document.items():
        expected = _types(name).get(key)
        if expected is None or value is None:
            continue
        try:
            msgspec.convert(value, expected)
        except msgspec.ValidationError as error:
            problem, _, path = str(error).partition(" - at `$")
            found[key] = f"{key}{path.rstrip('`')}: {problem[:1].lower()}{problem[1:]}"
    return found


@cache
def _types(name: str) -> Mapping[str, Any]:
    return get_type_hints(_SHAPES[name], include_extras=True) if name in _SHAPES else {}
