"""Health of the client: the table. Each row has the one formula of its figure, over the health of workers."""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from inferload.figures.figure import Better, Figure
from inferload.turns.client_health import ClientHealth
from inferload.turns.sketch import Sketch

# The client is late if the p99 of its delay is above the first, and above this share of the typical gap of a stream.
LEAST_DELAY_MS = 1.0  # a shorter delay changes no latency of a server that streams tokens
LATE_CLIENT = 0.5


class ClientFigure(Figure, frozen=True, eq=False, kw_only=True):
    """Figure of the client. `sketch`: of a distribution, over all workers. `of_worker`: the figure is that of the worst worker."""

    sketch: Callable[[ClientHealth], Sketch] | None = None
    of_worker: Callable[[ClientHealth], float | None] | None = None
    better: Better = "lower"

    @property
    def field(self) -> str:
        """Name in the block `client` of summary.json."""
        return self.key.removeprefix("client_")

    def worst(self, workers: Iterable[ClientHealth]) -> float | None:
        """Return the greatest value of all workers; None if none is known."""
        assert self.of_worker is not None
        return max((value for value in map(self.of_worker, workers) if value is not None), default=None)


CLIENT_FIGURES: tuple[ClientFigure, ...] = (
    ClientFigure(
        key="client_delay_ms",
        title="Client delay",
        unit="ms",
        text="delay of a chunk in the client: read time - the kernel's receive timestamp, one sample for each read, failed turns "
        "included",
        headline=True,
        sketch=lambda health: health.delay_ms,
    ),
    ClientFigure(
        key="client_loop_lag_ms",
        title="Event loop lag",
        unit="ms",
        text="delay of timers in the event loop of a worker",
        headline=True,
        sketch=lambda health: health.loop_lag_ms,
    ),
    ClientFigure(
        key="client_gc_pause_ms",
        title="Garbage collection",
        unit="ms",
        text="pauses of the client's processes",
        sketch=lambda health: health.gc_pause_ms,
    ),
    ClientFigure(
        key="client_longest_pause_ms",
        title="Longest pause between reads",
        unit="ms",
        text="longest time in which a worker with data in flight read no socket",
        of_worker=lambda health: health.longest_pause_ms,
    ),
    ClientFigure(
        key="client_cpu_share",
        title="CPU, busiest worker",
        text="processor time / length of the measure phase, of one core",
        form="share",
        of_worker=lambda health: health.cpu_share,
    ),
    ClientFigure(
        key="client_steal_share",
        title="CPU steal",
        text="processor time that the hypervisor gave to other machines",
        form="share",
        of_worker=lambda health: health.steal_share,
    ),
)

BY_KEY: Mapping[str, ClientFigure] = MappingProxyType({figure.key: figure for figure in CLIENT_FIGURES})
DELAY, LOOP_LAG = BY_KEY["client_delay_ms"], BY_KEY["client_loop_lag_ms"]
GC_PAUSE, CPU_SHARE = BY_KEY["client_gc_pause_ms"], BY_KEY["client_cpu_share"]
DISTRIBUTIONS = tuple(figure for figure in CLIENT_FIGURES if figure.sketch is not None)
