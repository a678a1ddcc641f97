"""Recognition of several servers behind one metrics address, from the pages of its scrapes. No I/O.

A balancer sends each scrape, or each connection of the scraper, to any of its servers, so that successive pages are of different
processes. A restart changes a page for good; here a page changes and changes back. Evidence, strongest first:

* Start times: one that comes back after another. Those of a server that restarts, also in a loop, never come back.
* Engine labels: pages without a common engine, of which one comes back.
* Counters, if there is one start time or none: the values of a counter are covered by the fewest chains that never decrease.
  After a restart a counter begins a chain of its own, so that there is one decrease per chain. The counters of servers that
  alternate decrease far more often than they have chains. Only a decrease that no restart explains counts: one within a time in
  which no server restarts, or to a value that no server reaches so soon after its start. Of those that are both, two suffice, and
  two at which another counter of the engine did not decrease, as a restart resets all of them.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Iterable
from itertools import chain
from typing import Generic, TypeVar

from msgspec import Struct, field

from inferload.figures.pages import metric_names as names
from inferload.servers import parts
from inferload.servers.exposition import Labels

# Counters that every request of a server increases.
COUNTERS = (
    names.PROMPT_TOKENS,
    names.GENERATION_TOKENS,
    names.FINISHED,
    names.PREFIX_QUERIES,
    *(f"{family}_count" for family in (names.TTFT, names.ITL, names.E2E)),
)

# Metrics that distinguish servers.
READ = (names.PROCESS_START, *COUNTERS)

# Start times of one process differ between scrapes by rounding only; those of replicas may differ by a tick of 10 ms.
SAME_START_S = 0.005

_OF_FINISHED = "finished_reason"  # the label of a part of the counter of requests
_LEAST_S = 1e-3  # between two scrapes; the wall clock can step back
_RESTART_S = 1.0  # shortest time of a restart: to end, to start and to count again
_LEAST_DECREASES = 3
_LEAST_PART = 2  # scrapes at which some counters decreased and others did not
_PART_S, _LEAST_COUNT = 2.0, 10.0  # time and value: a restarted server does not count so much within it
_LEAST_OLD = 2  # decreases in such a time, to values that no server reaches so soon after its start
_TOO_FAST = 4.0  # times the highest rate of a counter: so much is not counted in the first seconds after a start


def left_out(target: str, replicas: int) -> str:
    """Return the text in place of the figures of an address with several servers."""
    return f"{replicas} servers behind {target}: name each with --metrics-url; server figures are left out"


_Identity = TypeVar("_Identity", bound=Hashable)


class _Lives(Generic[_Identity], Struct):
    """Identities of pages, each with its first and last scrape. `at_once`: the most that were alive at one time."""

    at_once: int = 1
    spans: dict[_Identity, tuple[float, float]] = field(default_factory=dict)
    _newest: _Identity | None = None

    def seen(self, identity: _Identity, at_s: float) -> bool:
        """Add the identity of a page; return True if it is another than that of the page before."""
        changed = bool(self.spans) and identity != self._newest
        came_back = changed and identity in self.spans
        self.spans[identity] = (self.spans.get(identity, (at_s,))[0], at_s)
        self._newest = identity
        if came_back:
            self.at_once = self._most()
        return changed

    def _most(self) -> int:
        firsts, lasts = (sorted(ends) for ends in zip(*self.spans.values(), strict=True))
        return max(bisect_right(firsts, at_s) - bisect_left(lasts, at_s) for at_s in firsts)


class _Counter(Struct):
    """Values of one counter as the fewest chains that never decrease (patience sorting)."""

    lives: _Lives[int] = field(default_factory=_Lives)
    fastest_per_s: float = 0.0
    _tails: list[float] = field(default_factory=list)  # last value of each chain, ascending
    _chains: list[int] = field(default_factory=list)  # their identities
    _newest: tuple[float, float] | None = None  # instant and value

    @property
    def chains(self) -> int:
        return len(self._tails)

    def keeps(self, at_s: float, value: float) -> bool:
        """Return True for a value that is not lower than the one before, which no restarted server can have reached."""
        if self._newest is None:
            return False
        before_s, before = self._newest
        return at_s - before_s <= _PART_S and value >= before >= _LEAST_COUNT

    def add(self, at_s: float, value: float) -> float | None:
        """Add a value. Return the seconds since the one before if it is lower than that, else None."""
        lasted_s, before = (0.0, value) if self._newest is None else (at_s - self._newest[0], self._newest[1])
        self._newest = (at_s, value)
        place = bisect_right(self._tails, value) - 1
        if place < 0:
            place = 0
            self._tails.insert(0, value)
            self._chains.insert(0, len(self._chains))
        self._tails[place] = value
        self.lives.seen(self._chains[place], at_s)
        if value < before:
            return lasted_s
        self.fastest_per_s = max(self.fastest_per_s, (value - before) / max(lasted_s, _LEAST_S))
        return None


# Counters that decreased at one scrape, each with its value after that over the time since the value before.
_Decreases = list[tuple[_Counter, float]]


class _Engine(Struct):
    """Counters of one engine, which a restart resets together."""

    _counters: dict[tuple[str, Labels], _Counter] = field(default_factory=dict)
    _sudden: list[_Decreases] = field(default_factory=list)  # scrapes after a time in which no server restarts
    _slow: list[_Decreases] = field(default_factory=list)  # other scrapes
    _in_part: int = 0  # scrapes at which some counters decreased and others did not

    def add(self, at_s: float, values: Iterable[tuple[str, Labels, float]]) -> bool:
        """Add the values of a scrape; return True if one decreased."""
        decreases: _Decreases = []
        sudden = kept = soon = False
        for metric, labels, value in values:
            counter = self._counters.setdefault((metric, labels), _Counter())
            kept |= counter.keeps(at_s, value)
            lasted_s = counter.add(at_s, value)
            if lasted_s is not None:
                decreases.append((counter, value / max(lasted_s, _LEAST_S)))
                sudden = sudden or lasted_s < _RESTART_S
                soon = soon or lasted_s <= _PART_S
        if decreases:
            self._in_part += kept and soon
            (self._sudden if sudden else self._slow).append(decreases)
        return bool(decreases)

    @property
    def replicas(self) -> int:
        """Number of servers that the values are of; 1 if restarts explain them."""
        old_at_once = sum(map(_old, self._sudden))
        decreases = len(self._sudden) + sum(map(_old, self._slow))
        chains = max(counter.chains for counter in self._counters.values())
        if (
            self._in_part >= _LEAST_PART
            or old_at_once >= _LEAST_OLD
            or decreases >= max(_LEAST_DECREASES, 2 * (chains - 1))
        ):
            return max(2, *(counter.lives.at_once for counter in self._counters.values()))
        return 1


def _old(decreases: _Decreases) -> bool:
    """Return True if a counter has a value that no server reaches so soon after its start."""
    return any(after_per_s > _TOO_FAST * counter.fastest_per_s for counter, after_per_s in decreases)


class Replicas(Struct):
    """Servers behind one address. `count`: recognised so far, never fewer; `changed`: the page is of another or restarted one."""

    count: int = 1
    changed: bool = False
    _starts: dict[Labels, _Lives[float]] = field(default_factory=dict)
    _counters: dict[Labels, _Engine] = field(default_factory=dict)
    _engines: _Lives[frozenset[tuple[str, str]]] = field(default_factory=_Lives)
    _one_page: bool = False  # two sets of engines have a common one

    def add(self, at_s: float, values: Iterable[tuple[str, Labels, float]]) -> None:
        """Add the values of a scrape of the metrics in `READ`, as (metric, labels, value)."""
        self.changed = False
        counted: dict[Labels, list[tuple[str, Labels, float]]] = {}
        for metric, labels, value in values:
            if metric == names.PROCESS_START:
                lives = self._starts.setdefault(labels, _Lives())
                self.changed |= lives.seen(_same_start(lives.spans, value), at_s)
            else:
                own = tuple(label for label in labels if label[0] != _OF_FINISHED)
                counted.setdefault(own, []).append((metric, labels, value))
        for own, each in counted.items():
            self.changed |= self._counters.setdefault(own, _Engine()).add(at_s, each)
        engines = {each for each in chain(*counted) if each[0] in parts.ENGINE_LABELS and not parts.is_total(each[1])}
        if engines:
            self._one_page |= any(engines != known and engines & known for known in self._engines.spans)
            self.changed |= self._engines.seen(frozenset(engines), at_s)
        self.count = max(self.count, self._told_apart())

    def _told_apart(self) -> int:
        if any(len(lives.spans) > 1 for lives in self._starts.values()):
            return max(lives.at_once for lives in self._starts.values())
        by_engine = 1 if self._one_page else self._engines.at_once
        return max(by_engine, *(engine.replicas for engine in self._counters.values()), 1)


def _same_start(known: Iterable[float], start_s: float) -> float:
    """Return the known start time of the same process; a new one unchanged."""
    return next((each for each in known if abs(each - start_s) <= SAME_START_S), start_s)
