"""Findings on servers as a group: outliers among them, proxies, gateways and routers in front of them, and routing."""

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from inferload.base.numbers import number
from inferload.figures.servers import server_figures
from inferload.servers.bottleneck import rules
from inferload.servers.bottleneck.evidence import WindowEvidence, mean_of
from inferload.servers.bottleneck.finding import HIGH_KV_USAGE, QUEUED_SHARE, Finding
from inferload.servers.bottleneck.peers import OUTLIER, Peer, outliers, silence_s
from inferload.servers.prefix_counts import prefix_cache
from inferload.servers.roles import PREFILL
from inferload.servers.series import ServerSeries
from inferload.servers.servers_window import ServersWindow
from inferload.servers.window import ServerWindow

from ..data.frames import RunFrames
from . import routing

STARVED = "prefill-starves-decode"
_FREE = 0.5  # highest share of the slots of decode servers that are in use


def group_findings(run: RunFrames, servers: Sequence[WindowEvidence]) -> list[Finding]:
    """Return the findings on inference servers together; none for a single one. `servers`: evidence of the measure phase."""
    group = [evidence for evidence in servers if evidence.target in run.inference_servers]
    if len(group) < 2:
        return []
    start_ns, end_ns = (run.start_wall_ns + round(at_s * 1e9) for at_s in (group[0].start_s, group[0].end_s))
    windows = [ServerWindow.of(run.servers[evidence.target], start_ns, end_ns) for evidence in group]
    passed = passing(run)
    found = [_outliers([window for window in windows if window.server.target not in passed]), _starved(group)]
    if not all(evidence.client.attributed for evidence in group):
        found += rules.between(_together(group, windows))
    hits = None if passed else _routing(run, [each for each in group if each.setup.role == PREFILL] or group)
    found.append(None if hits is None else routing.judge(hits))
    return [finding for finding in found if finding is not None]


def passing(run: RunFrames) -> dict[str, list[float]]:
    """Return when servers that joined or left were there: they are no peers of the others, and sessions had to move.

    In seconds of the measure phase; (0, 0): only before or after it.
    """
    seen = {} if run.summary is None else {entry.target: entry.seen_s for entry in run.summary.servers}
    return {target: found for target in run.servers if seen and (found := seen.get(target, [0.0, 0.0]))}


def _outliers(windows: Sequence[ServerWindow]) -> Finding | None:
    peers = [Peer.of(window.server.target, window, window.longest_silence_s) for window in windows]
    found = outliers(peers, silence_s(window.scraping_interval_s for window in windows))
    if not found:
        return None
    sentences = [f"{outlier.target}: {outlier.text}" for outlier in found]
    return Finding(OUTLIER, 600.0, (*sentences, f"requests finished: {', '.join(map(_share, windows))}"))


def _starved(group: Sequence[WindowEvidence]) -> Finding | None:
    """Return the finding that decode servers have free slots because prompts wait for prefill servers."""
    first, then = ([each for each in group if (each.setup.role == PREFILL) is one] for one in (True, False))
    queued = [each for each in first if each.queued]
    if not queued or not then or any(each.waiting_share >= QUEUED_SHARE or rules.transfer(each) for each in then):
        return None
    slots, running = (
        np.array(values, dtype=np.float64).sum()  # NaN if one is not known
        for values in (
            [each.setup.max_num_seqs and each.setup.max_num_seqs * each.setup.engines for each in then],
            [mean_of(each.scrapes.running) for each in then],
        )
    )
    usage = max(mean_of(each.scrapes.kv_usage) or 0.0 for each in then)
    if np.isnan(running) or running > _FREE * slots or usage >= HIGH_KV_USAGE:
        return None
    waiting = sum(mean_of(each.scrapes.capacity) or 0.0 for each in queued)
    times_ms = [each.served.queue_ms for each in queued if each.served.queue_ms is not None]
    waits = f"{number(waiting)} requests waited for prefill on average"
    waits += f", {number(times_ms[0])} ms each" if len(times_ms) == 1 else ""
    of = "" if np.isnan(slots) else f" of {number(slots)} slots"
    runs = f"{number(running)}{of} ran in decode on average, and few requests waited there"
    return Finding(STARVED, 420.0, (waits, runs), probable=bool(np.isnan(slots)), figures=f"{waits}; {runs}")


def _routing(run: RunFrames, group: Sequence[WindowEvidence]) -> routing.Routing | None:
    """Return the hit rates; None if they are not known, or not of the run's prompts and caches that lasted the whole run."""
    if run.summary is None or run.summary.cache.enabled is False:
        return None
    counted, expected, routed = run.summary.cache.counted, run.summary.cache.expected, run.summary.cache.routed
    if counted is None or counted.all_hit_rate is None or expected is None or routed is None:
        return None
    if routed.servers != len(group) or routed.stay_hit_rate is None or routed.in_turn_hit_rate is None:
        return None
    uncounted = abs(counted.queries - expected.input_tokens) > routing.ALL_COUNTED * expected.input_tokens
    if uncounted or any(run.servers[evidence.target].restarted.any() for evidence in group):
        return None
    by_server = {evidence.target: _hit_rate(run.servers[evidence.target]) for evidence in group}
    known = {target: rate for target, rate in by_server.items() if rate is not None}
    moved = routing.moved_share(run.turns, known) if all(evidence.client.attributed for evidence in group) else None
    if moved is None and counted.loaded:  # hits of a tier that servers share do not tell where turns went
        return None
    return routing.Routing(counted.all_hit_rate, known, routed.stay_hit_rate, routed.in_turn_hit_rate, moved)


def _hit_rate(server: ServerSeries) -> float | None:
    """Return the counted hit rate of a server over the whole run; None without prompts."""
    counts = prefix_cache([server])
    return counts.hits / counts.queries if counts.hits is not None and counts.queries else None


def _share(window: ServerWindow) -> str:
    """Format the requests that a server finished, and their prompt tokens: long prompts explain a long TTFT."""
    finished, tokens = (row.number(window) for row in (server_figures.FINISHED, server_figures.PROMPT_TOKENS))
    each = f" of {number(tokens / finished)} prompt tokens" if finished and tokens is not None else ""
    return f"{window.server.target} {number(finished)}{each}"


def _together(group: Sequence[WindowEvidence], windows: Sequence[ServerWindow]) -> WindowEvidence:
    """Return the evidence of a group: means of all requests of its servers."""
    together, shares = ServersWindow(windows), [evidence.served.server_cpu_share for evidence in group]
    served = replace(
        group[0].served,
        server_ttft_ms=server_figures.TTFT.number(together),
        server_itl_ms=server_figures.ITL.number(together),
        server_cpu_share=max((share for share in shares if share is not None), default=None),
    )
    setup = replace(group[0].setup, role=None)
    return replace(group[0], served=served, setup=setup, client=replace(group[0].client, attributed=True))
