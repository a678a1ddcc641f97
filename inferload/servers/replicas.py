"""Recognition of several servers behind one metrics address, from the pages of its scrapes. No I/O.

A balancer sends each scrape, or each connection of the scraper, to any of its servers, so that successive pages are of different
processes. A restart changes a page for good; here a page changes and changes back. Evidence, strongest first:

* Start times: one that comes back after another. Those of a server that restarts, also in a loop, never come back.
* Engine labels: pages without a common engine, of which one comes back.
* Counters, if there is one start time or none: the values of a counter are covered by the fewest chains that never decrease.
  After a restart a counter begins a chain of its own, so that there is one decrease per chain. Servers that alternate decrease far
  more often than they have chains. Only a decrease that no restart explains counts: one within a time in which no server
  restarts, or to a value that no server reaches so soon after its start.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from inferload.figures import metric_names as names
from inferload.servers import parts
from inferload.servers.exposition import Labels

# Counters that every request of a server increases.
COUNTERS = (names.PROMPT_TOKENS, names.GENERATION_TOKENS, names.FINISHED, f"{names.E2E}_count")

# Metrics by which servers are told apart.
READ = (names.PROCESS_START, *COUNTERS)

# Start times of one process differ between scrapes by rounding only.
SAME_START_S = 0.5

_RESTART_S = 1.0  # shortest time of a restart: to end, to start and to count again
_LEAST_DECREASES = 3
_TOO_FAST = 4.0  # times the highest rate of a counter: so much is not counted in the first seconds after a start


def left_out(target: str, replicas: int) -> str:
    """Return the text in place of the figures of an address with several servers."""
    return f"{replicas} servers behind {target}: name each with --metrics-url; server figures are left out"


_Identity = TypeVar("_Identity", bound=Hashable)


@dataclass(slots=True)
class _Lives(Generic[_Identity]):
    """Identities of pages, each with its first and last scrape. `at_once`: the most that were alive at one time."""

    at_once: int = 1
    spans: dict[_Identity, tuple[float, float]] = field(default_factory=dict)
    _newest: _Identity | None = None

    def seen(self, identity: _Identity, at_s: float) -> None:
        came_back = identity in self.spans and identity != self._newest
        self.spans[identity] = (self.spans.get(identity, (at_s,))[0], at_s)
        self._newest = identity
        if came_back:
            self.at_once = self._most()

    def _most(self) -> int:
        firsts, lasts = (sorted(ends) for ends in zip(*self.spans.values(), strict=True))
        return max(bisect_right(firsts, at_s) - bisect_left(lasts, at_s) for at_s in firsts)


@dataclass(slots=True)
class _Counter:
    """Values of one counter as the fewest chains that never decrease (patience sorting)."""

    lives: _Lives[int] = field(default_factory=_Lives)
    _tails: list[float] = field(default_factory=list)  # last value of each chain, ascending
    _chains: list[int] = field(default_factory=list)  # their identities
    _newest: tuple[float, float] | None = None  # instant and value
    _fastest_per_s: float = 0.0
    _sudden: int = 0  # decreases within a time in which no server restarts
    _after_per_s: list[float] = field(
        default_factory=list
    )  # of other decreases: the value after it, over the time since the last one

    def add(self, at_s: float, value: float) -> None:
        if self._newest is not None:
            self._step(at_s - self._newest[0], value - self._newest[1], value)
        self._newest = (at_s, value)
        place = bisect_right(self._tails, value) - 1
        if place < 0:
            place = 0
            self._tails.insert(0, value)
            self._chains.insert(0, len(self._chains))
        self._tails[place] = value
        self.lives.seen(self._chains[place], at_s)

    def _step(self, lasted_s: float, change: float, value: float) -> None:
        if change >= 0:
            self._fastest_per_s = max(self._fastest_per_s, change / max(lasted_s, 1e-3))
        elif lasted_s < _RESTART_S:
            self._sudden += 1
        else:
            self._after_per_s.append(value / lasted_s)

    @property
    def replicas(self) -> int:
        """Number of servers that the values are of; 1 if restarts explain them."""
        decreases = self._sudden + sum(rate > _TOO_FAST * self._fastest_per_s for rate in self._after_per_s)
        enough = max(_LEAST_DECREASES, 2 * (len(self._tails) - 1))
        return max(2, self.lives.at_once) if decreases >= enough else 1


@dataclass(slots=True)
class Replicas:
    """Servers behind one address. `count`: number of those that were told apart so far; it never decreases."""

    count: int = 1
    _starts: dict[Labels, _Lives[float]] = field(default_factory=dict)
    _counters: dict[tuple[str, Labels], _Counter] = field(default_factory=dict)
    _engines: _Lives[frozenset[tuple[str, str]]] = field(default_factory=_Lives)
    _one_page: bool = False  # two sets of engines have a common one

    def add(self, at_s: float, values: Iterable[tuple[str, Labels, float]]) -> None:
        """Add the values of a scrape of the metrics in `READ`, as (metric, labels, value)."""
        engines: set[tuple[str, str]] = set()
        for metric, labels, value in values:
            if metric == names.PROCESS_START:
                lives = self._starts.setdefault(labels, _Lives())
                lives.seen(_same_start(lives.spans, value), at_s)
                continue
            self._counters.setdefault((metric, labels), _Counter()).add(at_s, value)
            engines |= {label for label in labels if label[0] in parts.ENGINE_LABELS and not parts.is_total(label[1])}
        if engines:
            self._one_page |= any(engines != known and engines & known for known in self._engines.spans)
            self._engines.seen(frozenset(engines), at_s)
        self.count = max(self.count, self._told_apart())

    def _told_apart(self) -> int:
        if any(len(lives.spans) > 1 for lives in self._starts.values()):
            return max(lives.at_once for lives in self._starts.values())
        by_engine = 1 if self._one_page else self._engines.at_once
        return max(by_engine, *(counter.replicas for counter in self._counters.values()), 1)


def _same_start(known: Iterable[float], start_s: float) -> float:
    """Return the known start time of the same process; a new one unchanged."""
    return next((each for each in known if abs(each - start_s) <= SAME_START_S), start_s)
