"""Recorder of what the workers' reports say of the last seconds, for the terminal, the exporter and the live view. No I/O."""

from collections import Counter, deque

from msgspec import Struct, field

from inferload.results.rolling_stats import SPAN_S, Recent
from inferload.turns.client_health import HealthSet
from inferload.turns.record import refused_turns
from inferload.turns.sketch import Sketch
from inferload.turns.tally import TallySet

MOST_CLASSES = 12  # with figures of their own; turns of further classes are only in the figures of all
MINUTE_S = 60


class _ClientSecond(Struct):
    """Client delays and CPU time of the reports of a second. `cpu_ns`, `wall_ns`: by worker."""

    number: int
    delay_ms: Sketch = field(default_factory=Sketch)
    cpu_ns: Counter[str] = field(default_factory=Counter)
    wall_ns: Counter[str] = field(default_factory=Counter)


class RecentHealth:
    """Client delay and CPU share over the rolling span: merging whole health records for each point would cost more."""

    def __init__(self) -> None:
        self._seconds: deque[_ClientSecond] = deque(maxlen=SPAN_S + 1)

    def add(self, at_s: float, delta: HealthSet) -> None:
        number = max(0, int(at_s))
        if not self._seconds or self._seconds[-1].number != number:
            self._seconds.append(_ClientSecond(number))
        second = self._seconds[-1]
        for (worker, _), health in delta.items():
            second.delay_ms.absorb(health.delay_ms)
            second.cpu_ns[worker] += health.cpu_ns
            second.wall_ns[worker] += health.wall_ns

    def figures(self, at_s: float) -> tuple[float | None, float | None]:
        """Return client delay p99 in ms, and the CPU share of the busiest worker."""
        delay_ms, cpu_ns, wall_ns = Sketch(), Counter[str](), Counter[str]()
        for second in self._seconds:
            if int(at_s) - SPAN_S <= second.number < int(at_s):
                delay_ms.absorb(second.delay_ms)
                cpu_ns.update(second.cpu_ns)
                wall_ns.update(second.wall_ns)
        shares = [cpu_ns[worker] / wall for worker, wall in wall_ns.items() if wall]
        return delay_ms.quantile(0.99), max(shares, default=None)


class Recorder:
    """Reports of one run. `recent`: rolling figures of all classes; `minute`: of the last minute; `health`: of the client.

    `failed_now`: failed turns by class of failure since they were last taken; `refused_now`: refused ones of these.
    `ok`: turns that ended well.
    """

    def __init__(self) -> None:
        self.recent = Recent()
        self.minute = Recent(MINUTE_S, ())
        self.health = RecentHealth()
        self.classes: dict[str, Recent] = {}
        self.failed_now: Counter[str] = Counter()
        self.refused_now = 0
        self.ok = 0

    def add(self, at_s: float, delta: TallySet, health: HealthSet) -> None:
        """Add a report `at_s` seconds after the load began."""
        self.recent.add(at_s, delta)
        self.health.add(at_s, health)
        self.minute.add(at_s, delta)
        for (_, class_name, _), tally in delta.items():
            if class_name not in self.classes and len(self.classes) < MOST_CLASSES:
                self.classes[class_name] = Recent()
            if class_name in self.classes:
                self.classes[class_name].add_tally(at_s, tally)
            self.failed_now.update(tally.by_failure)
            self.refused_now += refused_turns(tally.by_failure, tally.by_status)
            self.ok += tally.ok
