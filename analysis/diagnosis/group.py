"""Findings on servers as a group: outliers among them, and what is between them and the client."""

from collections.abc import Sequence
from dataclasses import replace

from inferload.servers.bottleneck import rules
from inferload.servers.bottleneck.evidence import WindowEvidence
from inferload.servers.bottleneck.finding import Finding
from inferload.servers.bottleneck.peers import OUTLIER, SILENCE_S, Peer, outliers
from inferload.servers.window_figures import ServerWindow

from ..data.frames import RunFrames

_SILENCE_SCRAPES = 5  # without an answer, if the interval is long


def group_findings(run: RunFrames, servers: Sequence[WindowEvidence]) -> list[Finding]:
    """Return the findings on inference servers together; none for a single one. `servers`: evidence of the measure phase."""
    group = [evidence for evidence in servers if evidence.target in run.inference_servers]
    if len(group) < 2:
        return []
    found = [_outliers(run, group)]
    if not all(evidence.attributed for evidence in group):
        found += rules.between(_together(group))
    return [finding for finding in found if finding is not None]


def _outliers(run: RunFrames, group: Sequence[WindowEvidence]) -> Finding | None:
    start_ns, end_ns = (run.start_wall_ns + round(at_s * 1e9) for at_s in (group[0].start_s, group[0].end_s))
    windows = [ServerWindow.of(run.servers[evidence.target], start_ns, end_ns) for evidence in group]
    silence_s = max(SILENCE_S, *(_SILENCE_SCRAPES * window.scraping_interval_s for window in windows))
    found = outliers([Peer.of(window.server.target, window, window.longest_gap_s) for window in windows], silence_s)
    if not found:
        return None
    sentences = [f"{outlier.target}: {outlier.text}" for outlier in found]
    return Finding(OUTLIER, 600.0, (*sentences, _shares(group)), figures=sentences[0])


def _shares(group: Sequence[WindowEvidence]) -> str:
    """Format the requests that each server finished."""
    each = ", ".join(f"{evidence.target} {evidence.finished or 0:,}" for evidence in group)
    return f"requests finished: {each}"


def _together(group: Sequence[WindowEvidence]) -> WindowEvidence:
    """Return the evidence of a group: means of the servers, weighted by the requests that each finished."""
    return replace(
        group[0],
        attributed=True,
        server_ttft_ms=_weighted([(evidence.server_ttft_ms, evidence.finished) for evidence in group]),
        server_itl_ms=_weighted([(evidence.server_itl_ms, evidence.finished) for evidence in group]),
        server_cpu_share=max(
            (evidence.server_cpu_share for evidence in group if evidence.server_cpu_share is not None), default=None
        ),
    )


def _weighted(values: Sequence[tuple[float | None, int | None]]) -> float | None:
    known = [(value, weight) for value, weight in values if value is not None and weight]
    total = sum(weight for _, weight in known)
    return sum(value * weight for value, weight in known) / total if total else None
