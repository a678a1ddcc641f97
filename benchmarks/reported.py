"""Results of a client, cost of its run, and remarks on clients that did not keep up. No I/O."""

from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

from benchmarks.cases import Case

# A client does not keep up below this share of the true token rate, or above this share of its cores.
SLOW_SHARE = 0.85
FULL_SHARE = 0.97
SERVER_LATE_MS = 2.0


@dataclass(frozen=True, slots=True)
class Reported:
    """Results reported by a client; None: not reported."""

    ttft_mean_ms: float | None = None
    ttft_p99_ms: float | None = None
    itl_p50_ms: float | None = None
    itl_p99_ms: float | None = None
    turns: int | None = None
    failed: int | None = None
    measured_s: float | None = None
    verdict: str | None = None
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class UsageSample:
    """Sample during the run of a client: what its server sent and used, and the usage of its live processes together.

    `cpu_s`: CPU time, with reaped children; `reading_s`: of inferload's reading threads; `memory_mb`: resident memory, the mapped
    files (programs and libraries) of the process with the most of them only.
    """

    at_s: float
    tokens: int
    server_cpu_s: float
    cpu_s: float
    reading_s: float
    memory_mb: float


@dataclass(frozen=True, slots=True)
class Streaming:
    """Middle of a run, between 20 % and 95 % of its tokens: excludes start, preparation and report.

    `reading_s`: CPU time of inferload's reading threads, 0 for other clients. `memory_mb`: median of the samples.
    """

    seconds: float
    tokens: int
    server_cpu_s: float
    cpu_s: float
    reading_s: float
    memory_mb: float

    @property
    def cpu_us_per_token(self) -> float:
        """User and system CPU time of all client processes per token, in us."""
        return self.cpu_s * 1e6 / self.tokens

    @property
    def cpu_share(self) -> float:
        """CPU utilisation, as a share of one core."""
        return self.cpu_s / self.seconds

    @property
    def server_cpu_share(self) -> float:
        """CPU utilisation of the server, as a share of its core."""
        return self.server_cpu_s / self.seconds

    @property
    def tokens_per_s(self) -> float:
        """Tokens sent by the server per second."""
        return self.tokens / self.seconds


@dataclass(frozen=True, slots=True)
class Spent:
    """Cost of a run. `cpu_s`: in total, including start and report. `streaming`: None if the run was too short.

    `peak_mb`: largest sample of the memory of all processes while tokens arrived; None without samples.
    """

    exit_code: int
    wall_s: float
    cpu_s: float
    streaming: Streaming | None
    peak_mb: float | None


def streaming(samples: list[UsageSample]) -> Streaming | None:
    """Return the middle of a run; None with fewer than two samples in it."""
    total = max((s.tokens for s in samples), default=0)
    middle = [s for s in samples if 0.2 * total <= s.tokens <= 0.95 * total and s.tokens]
    if len(middle) < 2 or middle[-1].tokens == middle[0].tokens:
        return None
    first, last = middle[0], middle[-1]
    return Streaming(
        last.at_s - first.at_s,
        last.tokens - first.tokens,
        last.server_cpu_s - first.server_cpu_s,
        last.cpu_s - first.cpu_s,
        last.reading_s - first.reading_s,
        median(sample.memory_mb for sample in middle),
    )


def peak_while_streaming(samples: list[UsageSample]) -> float | None:
    """Return the largest memory of all processes until the last tokens, in MB; None without samples."""
    growing = [later for earlier, later in pairwise(samples) if later.tokens > earlier.tokens]
    return max((s.memory_mb for s in growing), default=None)


@dataclass(frozen=True, slots=True)
class BenchRow:
    """Results of a client for a case and a number of streams. `error`: reason for missing results."""

    case: str
    client: str
    version: str
    streams: int
    reported: Reported | None = None
    spent: Spent | None = None
    server: dict[str, object] = field(default_factory=dict)
    error: str | None = None

    @property
    def server_late_p99_ms(self) -> float | None:
        """p99 lateness of the server in this run."""
        late = self.server.get("lateness_ms")
        value = late.get("all", {}).get("p99") if isinstance(late, dict) else None
        return float(value) if isinstance(value, int | float) else None

    @property
    def streaming(self) -> Streaming | None:
        """Middle of the run; None if it was too short."""
        return self.spent.streaming if self.spent else None

    def rate_share(self, case: Case) -> float | None:
        """Token rate in the middle of the run, as a share of the rate that the streams would have without lateness."""
        return self.streaming and self.streaming.tokens_per_s / case.tokens_per_s(self.streams)

    @property
    def cpu_us_per_token(self) -> float | None:
        """CPU time from start to exit per token, in us."""
        sent = self.server.get("tokens_sent")
        return self.spent.cpu_s * 1e6 / sent if self.spent and isinstance(sent, int) and sent else None

    @property
    def body_kb(self) -> float | None:
        """Mean size of the received request bodies in kB; None without requests."""
        turns, size = self.server.get("turns"), self.server.get("body_bytes")
        return size / turns / 1e3 if isinstance(turns, int) and isinstance(size, int) and turns else None


def beside_reading_us(row: BenchRow, tokens_per_turn: int) -> float | None:
    """CPU time of a turn beside inferload's reading thread, in us; None for other clients."""
    middle = row.streaming
    if middle is None or not middle.reading_s:
        return None
    return (middle.cpu_s - middle.reading_s) * 1e6 * tokens_per_turn / middle.tokens


def marks(row: BenchRow, case: Case) -> tuple[str, ...]:
    """Return remarks on a row: a client that did not keep up, a late server, failed turns."""
    remarks: list[str] = []
    middle, share = row.streaming, row.rate_share(case)
    if middle is not None and share is not None:
        free_cores = case.client_cores - (middle.server_cpu_share if case.client_cores > 1 else 0)
        if share < SLOW_SHARE:
            remarks.append(f"did not keep up: {share:.0%} of the true token rate")
        elif middle.cpu_share > FULL_SHARE * free_cores:
            its = "its core" if case.client_cores == 1 else "its cores"
            remarks.append(f"did not keep up: {middle.cpu_share / free_cores:.0%} of {its}")
    elif row.error is None:
        remarks.append("too short for CPU and rate")
    late = row.server_late_p99_ms
    if late is not None and late > SERVER_LATE_MS:
        remarks.append(f"server late: p99 {late:.1f} ms")
    if case.body_bytes and row.body_kb is not None:
        remarks.append(f"bodies of {row.body_kb:.0f} kB")
    if row.reported and row.reported.failed:
        remarks.append(f"{row.reported.failed} turns failed")
    if row.reported and row.reported.verdict:
        remarks.append(f"verdict: {row.reported.verdict}")
    return (*remarks, *(row.reported.remarks if row.reported else ()))
