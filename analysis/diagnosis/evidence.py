"""What a diagnosis looks at: one window of a run, one server, in plain numbers. None is what nobody knows.

Means and shares of gauges are over the window's scrapes; counts and rates lie between its first and last scrape.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from inferload.server_metrics import metric_names as names
from inferload.server_metrics.series import ServerSeries
from inferload.server_metrics.window_figures import View

from ..data.frames import Events, RunFrames
from .client_view import Seen, capacity

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Scrapes:
    """The window's scrapes, an entry each; NaN where a page did not say."""

    running: Floats
    capacity: Floats  # waiting for capacity
    deferred: Floats
    kv_usage: Floats  # of the fullest engine
    head_tokens: (
        Floats  # tokens that the head of the queue has to find room for; NaN where nobody waits or it is not known
    )

    @property
    def waits(self) -> npt.NDArray[np.bool_]:
        """Scrapes at which somebody waits for capacity."""
        return np.nan_to_num(self.capacity) > 0


@dataclass(frozen=True, slots=True)
class ClientReason:
    """What the run's verdict says against its client: a code of measure/validity.py, suspect or invalid, the sentence."""

    code: str
    level: str
    text: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """One window. Times in ms."""

    start_s: float
    end_s: float
    target: str
    scrapes: Scrapes
    max_num_seqs: int | None = None  # of one engine
    engines: int = 1
    stream_interval: int | None = None  # tokens that the server gathers in an event, where that is known
    cache_tokens: int | None = None  # what the KV cache of an engine holds
    preemptions: int | None = None
    finished: int | None = None
    computed_tok_per_s: float | None = None  # prompt tokens that were computed
    generation_tok_per_s: float | None = None
    queue_ms: float | None = None  # the server's means, of requests that ended in the window
    prefill_ms: float | None = None
    decode_ms: float | None = None
    server_ttft_ms: float | None = None
    server_itl_ms: float | None = None
    server_cpu_share: float | None = None
    mean_acceptance_length: float | None = None
    draft_tokens: int | None = None  # of one draft
    engines_kv_spread: float | None = None
    engines_waiting: tuple[float, ...] = ()
    client_ttft_ms: float | None = None
    client_itl_p50_ms: float | None = None
    client_delay_p99_ms: float | None = None
    loop_lag_p99_ms: float | None = None
    client_cpu_share: float | None = None
    client_reasons: tuple[ClientReason, ...] = ()  # of the run's verdict, in the measure phase
    tokens_per_event: float | None = None
    itl_by_running: tuple[float, float] | None = (
        None  # mean ITL at the fewest and at the most running thirds of seconds
    )
    itl_alone_ms: float | None = None  # the lowest mean ITL of any second of the run
    expected_hit_rate: float | None = None
    counted_hit_rate: float | None = None
    uncached_prompt_tokens: float | None = None  # mean of a turn
    slo: Mapping[str, float] = field(default_factory=dict)
    troubled: bool = False  # turns of the run failed, or the server was gone or restarted
    rates: str | None = (
        None  # of an open loop whose number of turns in flight did not grow: offered and ended, in words
    )

    @property
    def length_s(self) -> float:
        """Seconds of the window."""
        return self.end_s - self.start_s

    @property
    def waiting_share(self) -> float:
        """Part of the scrapes at which somebody waits for capacity; 0 where there are no scrapes."""
        return float(np.mean(self.scrapes.waits)) if len(self.scrapes.capacity) else 0.0

    @property
    def waiting_known(self) -> bool:
        """Whether the server published how many requests wait."""
        return not np.isnan(self.scrapes.capacity).all()


def max_num_seqs(manifest: Mapping[str, Any]) -> int | None:
    """The server's cap on running requests, from what was deployed; None where that is not known."""
    variant = manifest.get("variant") or {}
    server = (variant.get("config") or {}).get("server") or {}
    found = (server.get("scheduler_config") or {}).get("max_num_seqs")
    if isinstance(found, int):
        return found
    given = _flag(variant, "--max-num-seqs")
    return int(given) if given is not None and given.isdecimal() else None


def stream_interval(manifest: Mapping[str, Any]) -> int | None:
    """Tokens that the server gathers in an event (vLLM's default is 1); None where nobody knows how it was started."""
    variant = manifest.get("variant") or {}
    if not variant.get("argv"):
        return None
    given = _flag(variant, "--stream-interval") or _flag(variant, "--tokens-per-event") or "1"
    return int(given) if given.isdecimal() else None


def _flag(variant: Mapping[str, Any], wanted: str) -> str | None:
    """The value of a flag of the server's command line; None where it is not there."""
    argv = [str(word) for word in variant.get("argv") or ()]
    for place, word in enumerate(argv):
        name, sign, value = word.partition("=")
        if name == wanted:
            return value if sign else argv[place + 1] if place + 1 < len(argv) else None
    return None


def collect(run: RunFrames, server: ServerSeries, start_s: float, end_s: float, seen: Seen | None = None) -> Evidence:
    """The evidence of one window and one server."""
    seen = seen or Seen.of(run, server)
    wall = [run.start_wall_ns + round(at_s * 1e9) for at_s in (start_s, end_s)]
    view = View.of(server, wall[0], wall[1])
    if not ((server.wall_ns >= wall[0]) & (server.wall_ns < wall[1])).any():
        view = View(server, None, None, wall[0], wall[1])  # the nearest scrapes say nothing of this window
    summary = run.summary or {}
    client = summary.get("client") or {}
    cache = summary.get("cache") or {}
    events = seen.events.between(start_s, end_s)
    gaps_ms = events.gap_ms[~np.isnan(events.gap_ms)]
    firsts = seen.firsts(start_s, end_s)
    ttft_ms, uncached = seen.ttft_ms[firsts], seen.uncached_tokens[firsts]
    uncached = uncached[~np.isnan(uncached)]
    queries, hits = view.delta(names.PREFIX_QUERIES), view.delta(names.PREFIX_HITS)
    return Evidence(
        start_s=start_s,
        end_s=end_s,
        target=server.target,
        scrapes=_scrapes(view, seen),
        max_num_seqs=max_num_seqs(run.manifest),
        engines=max(1, len({series.labels.get("engine") for series in server.series(names.KV_CACHE_USAGE)})),
        stream_interval=stream_interval(run.manifest),
        cache_tokens=_cache_tokens(server),
        preemptions=_whole(view.delta(names.PREEMPTIONS)),
        finished=_whole(view.delta(names.FINISHED)),
        computed_tok_per_s=view.per_s(names.PROMPT_TOKENS_BY_SOURCE, source=names.LOCAL_COMPUTE),
        generation_tok_per_s=view.per_s(names.GENERATION_TOKENS),
        queue_ms=_mean_ms(view, names.QUEUE),
        prefill_ms=_mean_ms(view, names.PREFILL),
        decode_ms=_mean_ms(view, names.DECODE),
        server_ttft_ms=_mean_ms(view, names.TTFT),
        server_itl_ms=_mean_ms(view, names.ITL),
        server_cpu_share=view.per_s(names.PROCESS_CPU),
        **_speculation(view),
        **_engines(view),
        client_ttft_ms=float(np.mean(ttft_ms)) if len(ttft_ms) else None,
        client_itl_p50_ms=float(np.median(gaps_ms)) if len(gaps_ms) else None,
        client_delay_p99_ms=(client.get("delay_ms") or {}).get("p99"),
        loop_lag_p99_ms=(client.get("loop_lag_ms") or {}).get("p99"),
        client_cpu_share=client.get("cpu_share"),
        client_reasons=_client_reasons(summary),
        tokens_per_event=(summary.get("tokens_per_event") or {}).get("mean"),
        itl_by_running=_itl_by_running(run, events, view),
        itl_alone_ms=seen.itl_alone_ms,
        expected_hit_rate=cache.get("expected_hit_rate"),
        counted_hit_rate=hits / queries if queries and hits is not None else None,
        uncached_prompt_tokens=float(uncached.mean()) if len(uncached) else None,
        slo=seen.slo,
    )


def _client_reasons(summary: Mapping[str, Any]) -> tuple[ClientReason, ...]:
    """Those that say that the client came late; a percentile of few samples is in no figure, and the verdict knows it."""
    reasons = (summary.get("verdict") or {}).get("reasons")
    return tuple(
        ClientReason(one["code"], str(one.get("level")), str(one.get("text")))
        for one in (reasons if isinstance(reasons, list) else ())
        if isinstance(one, Mapping)
        and one.get("code") in ("client_delay", "client_lag")
        and one.get("phase") == "measure"
    )


def _scrapes(view: View, seen: Seen) -> Scrapes:
    server = view.server
    if view.first is None or view.last is None:
        empty = np.array([], dtype=np.float64)
        return Scrapes(empty, empty, empty, empty, empty)
    window = slice(view.first, view.last + 1)

    def of(values: Floats | None) -> Floats:
        return np.full(view.last + 1 - view.first, np.nan) if values is None else values[window]  # type: ignore[operator]

    return Scrapes(
        running=of(server.summed(names.RUNNING)),
        capacity=of(capacity(server)),
        deferred=of(server.summed(names.WAITING_BY_REASON, reason=names.DEFERRED)),
        kv_usage=of(server.highest(names.KV_CACHE_USAGE)),
        head_tokens=of(seen.head_tokens),
    )


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def _mean_ms(view: View, family: str) -> float | None:
    count, total = view.delta(family + "_count"), view.delta(family + "_sum")
    return total / count * 1e3 if count and total is not None else None


def _cache_tokens(server: ServerSeries) -> int | None:
    sizes = [series.labels.get("kv_cache_size_tokens", "") for series in server.series(names.CACHE_CONFIG)]
    known = [int(size) for size in sizes if size.isdecimal()]
    return min(known) if known else None


def _speculation(view: View) -> dict[str, Any]:
    drafts, drafted, accepted = (
        view.delta(m) for m in (names.SPEC_DRAFTS, names.SPEC_DRAFT_TOKENS, names.SPEC_ACCEPTED)
    )
    if not drafts or drafted is None or accepted is None:
        return {}
    return {"mean_acceptance_length": 1 + accepted / drafts, "draft_tokens": round(drafted / drafts)}


def _engines(view: View) -> dict[str, Any]:
    found = {series.labels.get("engine") for series in view.server.series(names.KV_CACHE_USAGE)}
    if len(found) < 2:
        return {}
    labels = [{} if engine is None else {"engine": engine} for engine in sorted(found, key=str)]
    usage = [view.gauge(view.server.summed(names.KV_CACHE_USAGE, **label))["mean"] for label in labels]
    waiting = [view.gauge(view.server.summed(names.WAITING, **label))["mean"] for label in labels]
    known = [value for value in usage if value is not None]
    return {
        "engines_kv_spread": max(known) - min(known) if known else None,
        "engines_waiting": tuple(value or 0.0 for value in waiting),
    }


def _itl_by_running(run: RunFrames, events: Events, view: View) -> tuple[float, float] | None:
    """Mean gap in the third of the seconds with the fewest running requests and in that with the most."""
    running = view.server.summed(names.RUNNING)
    if running is None or view.first is None or view.last is None:
        return None
    window = slice(view.first, view.last + 1)
    at_s = run.since_start_s(view.server.wall_ns[window])
    gaps = ~np.isnan(events.gap_ms)
    if gaps.sum() < 30 or len(at_s) < 6:
        return None
    load = np.interp(events.at_s[gaps], at_s, np.nan_to_num(running[window]))
    low, high = np.quantile(load, (1 / 3, 2 / 3))
    if high - low < 0.2 * max(high, 1.0):
        return None  # the load hardly moved: nothing to see
    values = events.gap_ms[gaps]
    return float(values[load <= low].mean()), float(values[load >= high].mean())


def as_document(evidence: Evidence) -> dict[str, Any]:
    """Everything but the scrapes, for a file."""
    plain = {name: getattr(evidence, name) for name in evidence.__slots__ if name != "scrapes"}
    return dict(json.loads(json.dumps(plain | {"waiting_share": evidence.waiting_share}, default=str)))
