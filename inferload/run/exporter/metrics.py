"""Metrics of a run for Prometheus, rendered from its totals: the cost of a scrape does not grow with the number of turns.

`python -m inferload.run.exporter.metrics` prints the table of docs/how-to/prometheus.md.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args

from msgspec import Struct

from inferload.figures.turn_figures import HEADLINES, ITL, TPOT, TTFT, TurnFigure
from inferload.results.documents.verdict_document import State
from inferload.results.verdict.validity import Measurement
from inferload.servers.text_format import ITL_S, REQUEST_S, TTFT_S, header, number, pairs
from inferload.turns.client_health import ClientHealth, HealthSet
from inferload.turns.record import PHASES, Failure, Phase
from inferload.turns.sketch import Sketch
from inferload.turns.states import ENDS
from inferload.turns.tally import Tally, TallySet, summed

CLIENT_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
_MS_PER_S = 1000
_BOUNDS_S = {TTFT: TTFT_S, ITL: ITL_S, TPOT: ITL_S}
_LABELS = {
    "run": ("scenario", "run"),
    "class": ("scenario", "run", "class", "phase"),
    "worker": ("scenario", "run", "worker", "phase"),
}
_BUCKET_NOTE = "A bucket may include values up to 0.51 % above its bound."

Values = Mapping[tuple[str, ...], float]  # by the values of a metric's additional labels


class RunState(Struct, frozen=True):
    """State of a run at a scrape. `started`: (phase, class) that have series from the beginning, with the value 0."""

    run_id: str
    scenario: str
    model: str
    engine: str
    version: str
    started: Sequence[tuple[Phase, str]]
    tallies: TallySet
    health: HealthSet
    phase: Phase | None  # None before the load
    in_flight: int
    users: int
    offered_sessions_per_s: float | None
    achieved_sessions_per_s: float | None
    measurement: str | None  # None until the end of the run
    outcome: str | None
    redact: Callable[[str], str] = str  # removes secrets from label values


class MetricSpec(Struct, frozen=True):
    """One metric. `scope`: records that have their own series. `more`: additional labels.

    `read` returns the values of a record of the scope (RunState, Tally, ClientHealth); of a histogram, its sketch in ms.
    """

    name: str
    type: Literal["counter", "gauge", "histogram"]
    scope: Literal["run", "class", "worker"]
    text: str
    read: Callable[[Any], Any]
    more: tuple[str, ...] = ()
    bounds_s: tuple[float, ...] = ()

    @property
    def labels(self) -> tuple[str, ...]:
        return (*_LABELS[self.scope], *self.more)


def _latency(figure: TurnFigure) -> MetricSpec:
    def sketch(tally: Tally) -> Sketch:
        return tally.sketches.get(figure.key) or Sketch()

    text = f"{figure.title} of successful turns: {figure.text}. {_BUCKET_NOTE}"
    return MetricSpec(figure.exported, "histogram", "class", text, sketch, bounds_s=_BOUNDS_S.get(figure, REQUEST_S))


def _client(name: str, text: str, read: Callable[[ClientHealth], Sketch]) -> MetricSpec:
    return MetricSpec(name, "histogram", "worker", f"{text} {_BUCKET_NOTE}", read, bounds_s=CLIENT_S)


def _counter(name: str, text: str, read: Callable[[Tally], Values], *more: str) -> MetricSpec:
    return MetricSpec(name, "counter", "class", text, read, more)


def _gauge(name: str, text: str, read: Callable[[RunState], Values], *more: str) -> MetricSpec:
    return MetricSpec(name, "gauge", "run", text, read, more)


def _value(value: float | None) -> Values:
    return {} if value is None else {(): value}


def _reported(count: int, turns: int, tally: Tally) -> Values:
    """Return a count of tokens; empty if turns have ended and none of them reported it."""
    return {(): count} if turns or not tally.ended else {}


def _state_set(names: Sequence[str], current: str | None) -> Values:
    return {(name,): float(name == current) for name in names}


def _failures(tally: Tally) -> Values:
    classes = [kind.value for kind in Failure if kind is not Failure.UNFINISHED]
    return {(name,): tally.by_failure.get(name, 0) for name in classes}


METRICS: tuple[MetricSpec, ...] = (
    _gauge(
        "inferload_run_info",
        "Always 1. The labels describe the run.",
        lambda run: {(run.model, run.engine, run.version): 1},
        *("model", "engine", "version"),
    ),
    *map(_latency, HEADLINES),
    _counter("inferload_turns_begun_total", "Turns that were begun.", lambda tally: {(): tally.turns_begun}),
    _counter(
        "inferload_turns_total",
        "Turns that ended: ok, failed, or unfinished at the end of the drain.",
        lambda tally: {(state.key,): getattr(tally, state.key) for state in ENDS},
        "state",
    ),
    _counter(
        "inferload_turns_retried_total",
        "Requests that were sent again, because the server closed the idle connection that they were sent on.",
        lambda tally: {(): tally.retried},
    ),
    _counter("inferload_failures_total", "Failed turns by class of failure.", _failures, "failure"),
    _counter(
        "inferload_output_tokens_total",
        "Output tokens of turns that ended, by the server's count.",
        lambda tally: _reported(tally.output_tokens, tally.output_tokens_from, tally),
    ),
    _counter(
        "inferload_prompt_tokens_total",
        "Prompt tokens of turns that ended, by the server's count.",
        lambda tally: _reported(tally.input_tokens, tally.input_tokens_from, tally),
    ),
    _counter(
        "inferload_cached_prompt_tokens_total",
        "Prompt tokens of turns that ended that were in the server's prefix cache, by the server's count.",
        lambda tally: _reported(tally.cached_tokens, tally.cached_tokens_from, tally),
    ),
    _counter(
        "inferload_sessions_offered_total",
        "Planned sessions: arrivals; in a closed loop, sessions that a free user started.",
        lambda tally: {(): tally.sessions_planned},
    ),
    _counter(
        "inferload_sessions_started_total", "Sessions that were started.", lambda tally: {(): tally.sessions_started}
    ),
    _counter(
        "inferload_sessions_dropped_total",
        "Planned sessions that could not be started.",
        lambda tally: {(): tally.sessions_dropped},
    ),
    _gauge("inferload_turns_in_flight", "Turns in flight.", lambda run: _value(run.in_flight)),
    _gauge("inferload_users", "Users that Locust runs, 0 after the end of the run.", lambda run: _value(run.users)),
    _gauge(
        "inferload_offered_sessions_per_second",
        "Planned sessions per second over the last 10 s.",
        lambda run: _value(run.offered_sessions_per_s),
    ),
    _gauge(
        "inferload_achieved_sessions_per_second",
        "Started sessions per second over the last 10 s.",
        lambda run: _value(run.achieved_sessions_per_s),
    ),
    _gauge(
        "inferload_run_phase",
        "1 for the current phase of the run, 0 for the others.",
        lambda run: _state_set(PHASES, run.phase),
        "phase",
    ),
    _gauge(
        "inferload_verdict",
        "1 for the validity of the measurement, known from the end of the run on. 0 for the others.",
        lambda run: _state_set(get_args(Measurement), run.measurement),
        "verdict",
    ),
    _gauge(
        "inferload_outcome",
        "1 for the outcome of the run, known from its end on. 0 for the others.",
        lambda run: _state_set(get_args(State), run.outcome),
        "outcome",
    ),
    _client(
        "inferload_client_delay_seconds",
        "Time from the kernel's receive timestamp to the read of a chunk.",
        lambda health: health.delay_ms,
    ),
    _client(
        "inferload_loop_lag_seconds",
        "Lateness of a timer of the worker's event loop.",
        lambda health: health.loop_lag_ms,
    ),
)


def page(run: RunState) -> str:
    """Return the metrics of a run in the Prometheus text format."""
    base = {"scenario": run.redact(run.scenario), "run": run.run_id}

    def labels(**more: str) -> str:
        return pairs(base | more)

    records: dict[str, list[tuple[str, Any]]] = {
        "run": [(labels(), run)],
        "class": [
            (labels(**{"class": run.redact(name), "phase": phase}), tally)
            for (phase, name), tally in _by_class(run).items()
        ],
        "worker": [(labels(worker=worker, phase=phase), health) for (worker, phase), health in run.health.items()],
    }
    lines: list[str] = []
    for metric in METRICS:
        lines += header(metric.name, metric.type, metric.text)
        for of_record, record in records[metric.scope]:
            if metric.type == "histogram":
                lines += _histogram(metric, of_record, metric.read(record))
            else:
                lines += _samples(metric, of_record, metric.read(record), run.redact)
    return "\n".join(lines) + "\n"


def _by_class(run: RunState) -> dict[tuple[Phase, str], Tally]:
    """Return the sums over the steps of the load."""
    parts: dict[tuple[Phase, str], list[Tally]] = {key: [] for key in run.started}
    for (phase, name, _step), tally in run.tallies.items():
        parts.setdefault((phase, name), []).append(tally)
    return {key: tallies[0] if len(tallies) == 1 else summed(tallies) for key, tallies in parts.items()}


def _samples(metric: MetricSpec, labels: str, values: Values, redact: Callable[[str], str]) -> list[str]:
    own = [pairs(dict(zip(metric.more, map(redact, texts), strict=True))) for texts in values]
    joined = [f"{labels},{more}" if more else labels for more in own]
    return [f"{metric.name}{{{each}}} {number(value)}" for each, value in zip(joined, values.values(), strict=True)]


def _histogram(metric: MetricSpec, labels: str, sketch: Sketch) -> list[str]:
    name, counts = metric.name, sketch.counts_up_to([bound_s * _MS_PER_S for bound_s in metric.bounds_s])
    buckets = zip((*map(number, metric.bounds_s), "+Inf"), (*counts, sketch.count), strict=True)
    return [
        *(f'{name}_bucket{{{labels},le="{bound}"}} {number(count)}' for bound, count in buckets),
        f"{name}_count{{{labels}}} {number(sketch.count)}",
        f"{name}_sum{{{labels}}} {number(sketch.total / _MS_PER_S)}",
    ]


def table() -> str:
    """Return the table of docs/how-to/prometheus.md."""
    rows = [["metric", "type", "labels", "content"], ["---"] * 4]
    for metric in METRICS:
        text = metric.text.removesuffix(_BUCKET_NOTE).strip()
        rows.append([f"`{metric.name}`", metric.type, ", ".join(f"`{name}`" for name in metric.labels), text])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


if __name__ == "__main__":
    print(table(), end="")
