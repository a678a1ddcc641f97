"""Collection of the evidence for a diagnosis from the frames of a run."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct, structs
from msgspec.structs import replace

from inferload.base.numbers import number
from inferload.figures.client_figures import CPU_SHARE, DELAY
from inferload.figures.pages import metric_names as names
from inferload.figures.rate_figures import EVENTS_PER_ARRIVAL, typical_gap_ms
from inferload.figures.servers import server_blocks, server_figures
from inferload.figures.servers.server_figure import ROUTER
from inferload.results.documents.summary_document import Summary
from inferload.servers.bottleneck import evidence as facts
from inferload.servers.prefix_counts import whole_number
from inferload.servers.series import ServerSeries
from inferload.servers.window import ServerWindow
from inferload.turns.sketch import Floats, Sketch

from ..data.frames import RunFrames
from ..data.turn_frames import Events
from .client_view import ClientView, capacity


def collect(
    run: RunFrames, server: ServerSeries, start_s: float, end_s: float, view: ClientView
) -> facts.WindowEvidence:
    """Collect the evidence of a window at a server."""
    wall = [run.start_wall_ns + round(at_s * 1e9) for at_s in (start_s, end_s)]
    window = ServerWindow.of(server, wall[0], wall[1])
    if not ((server.wall_ns >= wall[0]) & (server.wall_ns < wall[1])).any():
        window = ServerWindow(server, None, None, wall[0], wall[1])  # the nearest scrapes are outside the window
    events, fastest = view.events.between(start_s, end_s), view.fastest
    return facts.WindowEvidence(
        start_s=start_s,
        end_s=end_s,
        target=server.target,
        scrapes=_scrapes(run, window, view),
        setup=_setup(run, server),
        served=facts.Served.of(
            window,
            server_cpu_share=server_figures.PROCESS_CPU.number(window),
            **_speculation(window),
            engines_kv_spread=_kv_spread(window),
        ),
        client=replace(
            _client_side(run.summary, view, events, view.ttft_ms[view.firsts(start_s, end_s)]),
            routers=_routers(run, wall),
        ),
        itl=facts.ItlByLoad(
            itl_by_running=_itl_by_running(run, events, window),
            itl_alone_ms=None if fastest is None else fastest.itl_ms,
            load_ratio=None if fastest is None else fastest.load_ratio(events, start_s, end_s),
        ),
        run=_whole_run(run.summary, view.slo),
    )


def _routers(run: RunFrames, wall_ns: Sequence[int]) -> tuple[str, ...]:
    """Return the repeats and the queue of each router in a window, by its own page; none if it has neither."""
    found = []
    for server in run.servers.values():
        if server_figures.page_block(server.page, server.metrics) == ROUTER and server.replicas == 1:
            window = ServerWindow.of(server, *wall_ns)
            known = ((row, row.number(window)) for row in server_figures.ROUTER_DELAYS)
            texts = [f"{number(value)} {row.label}" for row, value in known if value]
            if texts:
                found.append(f"the page of {server.target} has {', '.join(texts)} in these {number(window.window_s)} s")
    return tuple(found)


def _setup(run: RunFrames, server: ServerSeries) -> facts.Setup:
    deployed, config = run.manifest.deployed, _cache_config(server)
    return facts.Setup(
        max_num_seqs=facts.max_num_seqs(deployed),
        engines=len(server.engines(names.KV_CACHE_USAGE)),
        stream_interval=facts.stream_interval(deployed),
        kv=facts.KvBlocks.of(
            *(whole_number(config.get(name, "")) for name in ("kv_cache_size_tokens", "block_size", "num_gpu_blocks"))
        ),
        server=None if server.page is None else server.page.key,
        servers=len(run.inference_servers),
        role=server.role_name,
        gpus=deployed.gpus,
        command=deployed.command,
        cache_config=config,
    )


def _client_side(summary: Summary | None, view: ClientView, events: Events, ttft_ms: Floats) -> facts.ClientSide:
    """`events`, `ttft_ms`: of the window."""
    gaps = Sketch()
    gaps.add_many(events.gap_ms[~np.isnan(events.gap_ms)])
    of_turns = replace(view.side, client_ttft_ms=facts.mean_of(ttft_ms), client_gap_ms=typical_gap_ms(gaps))
    if summary is None:
        return of_turns
    return replace(
        of_turns,
        events_per_arrival=summary.rates.get(EVENTS_PER_ARRIVAL.key),
        client_delay_p99_ms=summary.client.samples(DELAY).certain("p99"),
        client_cpu_share=summary.client.number(CPU_SHARE),
        client_reasons=tuple(  # they exist even if the summary lacks the percentile
            facts.ClientReason(reason.code, reason.level, reason.text)
            for reason in summary.verdict.deciding
            if reason.code in ("client_delay", "client_lag")
        ),
        tokens_per_event=summary.tokens_per_event.mean,
    )


def _whole_run(summary: Summary | None, slo: Mapping[str, float]) -> facts.WholeRun:
    """Expected hits of several servers are those of sessions that each stay on one."""
    if summary is None:
        return facts.WholeRun(slo=slo)
    expected, counted, routed = summary.cache.expected, summary.cache.counted, summary.cache.routed
    of_one = None if expected is None else expected.hit_rate
    return facts.WholeRun(
        expected_hit_rate=of_one if expected is None or routed is None else routed.stay_hit_rate,
        engine_hit_rate=None if expected is None or routed is not None else expected.engine_hit_rate,
        counted_hit_rate=None if counted is None else counted.all_hit_rate,
        hit_notes=tuple(summary.cache.notes),
        slo=slo,
    )


def _scrapes(run: RunFrames, window: ServerWindow, client_view: ClientView) -> facts.Scrapes:
    server = window.server
    if window.first is None or window.last is None:
        empty = np.array([], dtype=np.float64)
        return facts.Scrapes(empty, empty, empty, empty, empty, empty)
    inside = slice(window.first, window.last + 1)

    def of(values: Floats | None) -> Floats:
        return np.full(window.last + 1 - window.first, np.nan) if values is None else values[inside]  # type: ignore[operator]

    at_s = run.since_start_s(server.wall_ns[inside])
    awake = server.lowest(names.SLEEP_STATE, sleep_state=names.AWAKE)
    usage = server.highest(names.KV_CACHE_USAGE)
    tokens = [server.summed(name) for name in (names.PROMPT_TOKENS, names.GENERATION_TOKENS)]
    changing = (_running(server), usage, *tokens)
    known = [each for each in changing if each is not None]
    return facts.Scrapes(
        at_s=at_s,
        running=of(_running(server)),
        capacity=of(capacity(server)),
        deferred=of(server.summed(names.WAITING_BY_REASON, reason=names.DEFERRED)),
        fetching=of(server.summed(names.FETCHING)),
        kv_usage=of(usage),
        head_tokens=of(client_view.head_tokens),
        by_engine=tuple(
            facts.EngineQueue(at_s, of(_running(server, **engine)), of(capacity(server, **engine)))
            for engine in server.engines(names.RUNNING, names.WAITING)
        ),
        in_flight=None if server.page is not None and names.RUNNING in server.page.unlike else of(client_view.held),
        asleep=None if awake is None else of(awake) == 0,
        still=facts.standing_still(server.wall_ns / 1e9, *known)[inside] if len(known) == len(changing) else None,
    )


def _running(server: ServerSeries, **engine: str) -> Floats | None:
    """Return the running requests at each scrape; None if not published, or by a front end, where they wait or run."""
    return None if server.in_front else server.summed(names.RUNNING, **engine)


def _cache_config(server: ServerSeries) -> Mapping[str, str]:
    """Return the labels of the KV cache; of several engines, those of the smallest cache. Empty if unknown."""
    configs = [series.labels for series in server.series(names.CACHE_CONFIG)]
    return min(configs, key=lambda labels: whole_number(labels.get("kv_cache_size_tokens", "")) or math.inf, default={})


def _speculation(window: ServerWindow) -> dict[str, Any]:
    drafts, drafted = server_blocks.DRAFTS.number(window), server_blocks.DRAFTED_TOKENS.number(window)
    length = server_blocks.ACCEPTANCE_LENGTH.number(window)
    if not drafts or drafted is None or length is None:
        return {}
    return {server_blocks.ACCEPTANCE_LENGTH.key: length, "draft_tokens": round(drafted / drafts)}


def _kv_spread(window: ServerWindow) -> float | None:
    """Return the difference of the mean KV-cache usage of engines; None for a single one."""
    usage = [server_figures.KV_CACHE_USAGE.number(engine) for engine in window.by_engine()]
    known = [value for value in usage if value is not None]
    return max(known) - min(known) if len(usage) > 1 and known else None


def _itl_by_running(run: RunFrames, events: Events, window: ServerWindow) -> tuple[float, float] | None:
    """Return mean ITL in the third of gaps with the fewest running requests, and in the third with the most."""
    running = window.server.summed(names.RUNNING)
    if running is None or window.first is None or window.last is None:
        return None
    inside = slice(window.first, window.last + 1)
    at_s = run.since_start_s(window.server.wall_ns[inside])
    known = ~np.isnan(running[inside])
    gaps = ~np.isnan(events.gap_ms)
    if gaps.sum() < 30 or known.sum() < 6:
        return None
    load = np.interp(events.at_s[gaps], at_s[known], running[inside][known])
    low, high = np.quantile(load, (1 / 3, 2 / 3))
    if high - low < 0.2 * max(high, 1.0):
        return None  # too little variation of the load
    values = events.gap_ms[gaps]
    return float(values[load <= low].mean()), float(values[load >= high].mean())


def as_document(evidence: facts.WindowEvidence) -> dict[str, Any]:
    """Return all figures except the scrapes, as JSON values."""
    document = {"start_s": evidence.start_s, "end_s": evidence.end_s, "target": evidence.target}
    for part in (evidence.setup, evidence.served, evidence.client, evidence.itl, evidence.run):
        document |= structs.asdict(part)
    document |= {"waiting_share": evidence.waiting_share}
    text = json.dumps(
        document, default=lambda value: structs.asdict(value) if isinstance(value, Struct) else str(value)
    )
    return dict(json.loads(text))
