"""Servers of one group side by side: those that are slower than their peers. No I/O."""

from collections.abc import Iterable, Sequence
from statistics import median

from msgspec import Struct

from inferload.base.numbers import number
from inferload.figures.servers import server_figures
from inferload.figures.servers.server_figure import ServerFigure
from inferload.figures.servers.server_formulas import Window

OUTLIER = "outlier"  # code of the finding
_SILENCE_S, _SILENCE_SCRAPES = 3.0, 5  # without an answer of a metrics page: the longer of both says something

# Requests that a server finished, for its means to be compared, and for them to be steady.
_LEAST_REQUESTS, _STEADY_REQUESTS = 10, 30
_LEAST_RATIO, _LEAST_UNSTEADY = 2.0, 3.0  # to the median of the peers, of steady means and of others
# Figures that are compared, with the least difference that matters.
_COMPARED: tuple[tuple[ServerFigure, float], ...] = (
    (server_figures.TTFT, 10.0),
    (server_figures.ITL, 2.0),
    (server_figures.QUEUE, 10.0),
)


class Peer(Struct, frozen=True):
    """Server of a group over a window. `values`: of the compared figures, None: not known. `silent_s`: time without an answer."""

    target: str
    finished: float | None
    values: tuple[float | None, ...]
    silent_s: float | None = None
    role: str | None = None

    @classmethod
    def of(cls, target: str, window: Window, silent_s: float | None = None) -> "Peer":
        """Return the figures of a server over a window."""
        values = tuple(row.number(window) for row, _ in _COMPARED)
        return cls(target, server_figures.FINISHED.number(window), values, silent_s, window.role_name)


class Outlier(Struct, frozen=True):
    """Server that is slower than its peers. `text`: by which figures."""

    target: str
    ratio: float
    text: str


def silence_s(intervals_s: Iterable[float]) -> float:
    """Return the time after which a metrics page is silent. `intervals_s`: of the scrapes of each server."""
    return max([_SILENCE_S, *(_SILENCE_SCRAPES * interval_s for interval_s in intervals_s)])


def outliers(peers: Sequence[Peer], silence_s: float) -> list[Outlier]:
    """Return servers slower than the median of their peers of the same role, or silent while these answer; the worst first."""
    found = [outlier for peer in peers if (outlier := _judged(peer, peers, silence_s)) is not None]
    return sorted(found, key=lambda outlier: -outlier.ratio)


def _judged(peer: Peer, peers: Sequence[Peer], silence_s: float) -> Outlier | None:
    others = [other for other in peers if other is not peer and other.role == peer.role]
    answering = [other for other in others if (other.silent_s or 0.0) <= silence_s]
    if answering and (peer.silent_s or 0.0) > silence_s:
        text = f"its metrics page did not answer for {number(peer.silent_s)} s while its peers answered"
        return Outlier(peer.target, float("inf"), text)
    slower = []
    for index, (row, least) in enumerate(_COMPARED):
        value = peer.values[index]
        # Not of those that are silent: the others took over their load.
        known = [known for other in answering if _counts(other) and (known := other.values[index]) is not None]
        if value is None or not known or not _counts(peer):
            continue
        usual = median(known)
        steady = (peer.finished or 0.0) >= _STEADY_REQUESTS
        if value >= (_LEAST_RATIO if steady else _LEAST_UNSTEADY) * usual and value - usual >= least:
            ratio = value / usual if usual else float("inf")
            of_peers = f"{number(ratio)} x that of its {'peers' if len(others) > 1 else 'peer'}"
            times = of_peers if usual else "its peers have none"
            slower.append((ratio, row, f"{row.title} {number(value)} ms, {times}"))
    if all(row is server_figures.QUEUE for _, row, _ in slower):  # near saturation, queues of equal servers differ
        return None
    slower.sort(key=lambda entry: -entry[0])
    return Outlier(peer.target, slower[0][0], "; ".join(text for _, _, text in slower))


def _counts(peer: Peer) -> bool:
    return peer.finished is not None and peer.finished >= _LEAST_REQUESTS
