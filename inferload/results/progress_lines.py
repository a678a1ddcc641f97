"""Progress lines of a run for the terminal."""

from msgspec import Struct

from inferload.base.escaping import escaped
from inferload.base.numbers import clock, dashed, percent
from inferload.figures.rate_figures import ACHIEVED, OFFERED, OUTPUT, TEXTS, TURNS
from inferload.figures.turn_figures import brief_of
from inferload.results.rolling_stats import RecentFigures
from inferload.results.verdict.validity import SoFar

_NAMED = 3  # workers


class Snapshot(Struct, frozen=True):
    """State of a run at one instant; None: unknown, or not applicable."""

    phase: str | None  # None: the load has not begun
    elapsed_s: float
    left_s: float | None
    goal: str | None  # count that ends the run, as "12 of 40 sessions"
    in_flight: int
    failed: int
    recent: RecentFigures
    at_most: bool = False  # the run may end before `left_s`
    steady: str | None = None
    kv_cache_usage: float | None = None  # 0..1, of the fullest target
    waiting: float | None = None  # of all targets
    scraped: bool = True
    replicas: int = 1  # servers behind the address of the metrics; of several, no figures are known
    lost: tuple[str, ...] = ()
    measurement: SoFar | None = None  # what it would be if the run ended now; None before the measure phase


def lines(now: Snapshot, width: int) -> list[str]:
    """Return lines of at most `width` columns; parts that do not fit are left out. The fourth is of the measurement."""
    measured = [] if now.measurement is None else [[now.measurement.text]]
    return [_fitted(words, width) for words in (_state(now), _load(now), _latency(now), *measured)]


def _fitted(words: list[str], width: int) -> str:
    while len(words) > 1 and len(" · ".join(words)) > width:
        words = words[:-1]
    return escaped(" · ".join(words))[:width]


def _state(now: Snapshot) -> list[str]:
    more = len(now.lost) - _NAMED
    lost = f"LOST: {', '.join(now.lost[:_NAMED])}{f' and {more} more' if more > 0 else ''}"
    words = [
        f"{now.phase or 'about to begin'} {clock(now.elapsed_s)}",
        lost if now.lost else "",  # early, because the last parts are left out first
        "" if now.left_s is None else f"{'at most ' if now.at_most else ''}{clock(now.left_s)} left",
        now.goal or "",
        f"{now.in_flight} in flight",
        f"{now.failed} failed",
        now.steady or "",
    ]
    return [*filter(None, words)]


def _load(now: Snapshot) -> list[str]:
    recent = now.recent
    served, unit = (OUTPUT, "output tok/s") if recent[TEXTS.key] is None else (TEXTS, "texts/s")
    return [
        f"sessions/s {dashed(recent[OFFERED.key])} offered, {dashed(recent[ACHIEVED.key])} achieved",
        f"ended {dashed(recent[TURNS.key])} turns/s",
        f"{dashed(recent[served.key])} {unit}",
    ]


def _latency(now: Snapshot) -> list[str]:
    server = ["no metrics"]
    if now.replicas > 1:
        server = [f"{now.replicas} servers behind one metrics address"]
    elif now.scraped:
        server = [f"KV {percent(now.kv_cache_usage, '-')}", f"waiting {dashed(now.waiting)}"]
    pairs = [
        f"{figure.title} p50 {dashed(now.recent[figure.column('p50')])} p95 {dashed(now.recent[figure.column('p95')])} ms"
        for figure in brief_of(lambda figure: now.recent[figure.column("p50")] is not None)
    ]
    return [*pairs, *server]
