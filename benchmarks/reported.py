"""What a client says of a run, what the run cost, and whether it kept up: records and arithmetic, no I/O."""

from dataclasses import dataclass, field
from itertools import pairwise

from benchmarks.cases import Case

# Under this share of the true token rate a client holds its streams back; over this share of a core it has no room left.
SLOW_SHARE = 0.85
FULL_SHARE = 0.97
SERVER_LATE_MS = 2.0


@dataclass(frozen=True, slots=True)
class Reported:
    """The client's own figures, in ms. None: it does not report that."""

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
    """One look at client and server while the client runs. `cpu_s` and `peak_mb` are of its processes that were alive."""

    at_s: float
    tokens: int
    cpu_s: float
    peak_mb: float


@dataclass(frozen=True, slots=True)
class Streaming:
    """The middle of a run, between 20 % and 95 % of its tokens: without start, preparation and report."""

    seconds: float
    tokens: int
    cpu_s: float

    @property
    def cpu_us_per_token(self) -> float:
        """CPU time of all processes of the client, user and system, in microseconds."""
        return self.cpu_s * 1e6 / self.tokens

    @property
    def cpu_share(self) -> float:
        """Of one core."""
        return self.cpu_s / self.seconds

    @property
    def tokens_per_s(self) -> float:
        """As the server sent them."""
        return self.tokens / self.seconds


@dataclass(frozen=True, slots=True)
class Spent:
    """What a run cost. `cpu_s`: everything, start and report included; `streaming`: None where it was too short to tell.

    `peak_mb`: the largest of its processes while tokens came; None where no sample was taken in time.
    """

    exit_code: int
    wall_s: float
    cpu_s: float
    streaming: Streaming | None
    peak_mb: float | None


def streaming(samples: list[UsageSample]) -> Streaming | None:
    """The middle of a run; None where fewer than two samples fall into it."""
    total = max((s.tokens for s in samples), default=0)
    middle = [s for s in samples if 0.2 * total <= s.tokens <= 0.95 * total and s.tokens]
    if len(middle) < 2 or middle[-1].tokens == middle[0].tokens:
        return None
    first, last = middle[0], middle[-1]
    return Streaming(last.at_s - first.at_s, last.tokens - first.tokens, last.cpu_s - first.cpu_s)


def peak_while_streaming(samples: list[UsageSample]) -> float | None:
    """The largest process up to the sample that saw the last tokens, in MB; None where there was no sample."""
    growing = [later for earlier, later in pairwise(samples) if later.tokens > earlier.tokens]
    return max((s.peak_mb for s in growing), default=None)


@dataclass(frozen=True, slots=True)
class ClientResult:
    """One client at one size of one case. `error`: why there are no figures, in words."""

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
        """How late the server's own events were, in the same run."""
        late = self.server.get("lateness_ms")
        value = late.get("all", {}).get("p99") if isinstance(late, dict) else None
        return float(value) if isinstance(value, int | float) else None

    @property
    def body_kb(self) -> float | None:
        """Mean size of the request bodies that the server got, in kB; None where it got none."""
        turns, size = self.server.get("turns"), self.server.get("body_bytes")
        return size / turns / 1e3 if isinstance(turns, int) and isinstance(size, int) and turns else None


def marks(row: ClientResult, case: Case) -> tuple[str, ...]:
    """What a reader of the row has to know: a client that did not keep up, a server that was late, failed turns."""
    found: list[str] = []
    part = row.spent.streaming if row.spent else None
    if part is not None:
        share = part.tokens_per_s / case.tokens_per_s(row.streams)
        if share < SLOW_SHARE:
            found.append(f"did not keep up: {share:.0%} of the true token rate")
        elif part.cpu_share > FULL_SHARE:
            found.append(f"did not keep up: {part.cpu_share:.0%} of its core")
    elif row.error is None:
        found.append("too short to tell CPU and rate")
    late = row.server_late_p99_ms
    if late is not None and late > SERVER_LATE_MS:
        found.append(f"server itself late: p99 {late:.1f} ms")
    if case.body_bytes and row.body_kb is not None:
        found.append(f"bodies of {row.body_kb:.0f} kB")
    if row.reported and row.reported.failed:
        found.append(f"{row.reported.failed} turns failed")
    if row.reported and row.reported.verdict:
        found.append(f"its own verdict: {row.reported.verdict}")
    return (*found, *(row.reported.remarks if row.reported else ()))
