"""Input of a summary, by who makes each part and who reads it."""

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct, field

from inferload.figures.servers.server_figures import Server
from inferload.figures.turn_values import BatchSums
from inferload.results.documents import summary_document as documents
from inferload.results.documents.figures_document import Growth
from inferload.results.documents.verdict_document import GatePolicy, GateResult, Verdict
from inferload.results.verdict.evidence import Stamps
from inferload.turns.client_health import HealthSet
from inferload.turns.record import Phase
from inferload.turns.sketch import Floats
from inferload.turns.tally import TallySet

# (measure, class, None for all) -> all values of the measure phase.
Values = Callable[[str, str | None], Floats]
# The same in batches by time, for the intervals of gates.
Batches = Callable[[str, str | None], Sequence[Floats]]
# (measure, class, limit) -> sums over these batches, of a run with too many values.
Sums = Callable[[str, str | None, float], BatchSums]


class Counted(Struct, frozen=True):
    """What the workers reported. `windows`: duration of each phase in seconds. `slo_of`: limits of one turn, by class."""

    tallies: TallySet
    health: HealthSet
    windows: Mapping[Phase, float]
    slo_of: Callable[[str], Mapping[str, float]] = lambda _class: {}

    @property
    def window_s(self) -> float | None:
        """Duration of the measure phase; None without one."""
        return self.windows.get("measure")


class TurnValues(Struct, frozen=True):
    """Values of the turn records of the measure phase; None: not known, or too many.

    `exact`: used only if it has as many values of each measure as the tallies; otherwise turn records are missing, and
    percentiles come from the sketches. `sums`: of a run with too many values.
    """

    exact: Values | None = None
    batches: Batches | None = None
    sums: Sums | None = None


class Steps(Struct, frozen=True):
    """Steps of the load: duration in seconds, and planned level (users or sessions_per_s)."""

    windows: Mapping[int, float] = field(default_factory=dict)
    levels: Sequence[Mapping[str, float]] = ()


class Overload(Struct, frozen=True):
    """Growth of the turns in flight of an open loop, and of each step; `not_judged`: reason why it has none."""

    growth: Growth | None = None
    by_step: Mapping[int, Growth] = field(default_factory=dict)
    not_judged: str | None = None


class Gating(Struct, frozen=True):
    """Gates of a run. `aborted`: the condition of `abort_on` that stopped it."""

    gates: Sequence[str] = ()
    inconclusive: GatePolicy = "warn"
    aborted: GateResult | None = None


class Troubles(Struct, frozen=True):
    """Failures and oddities of all phases, the first of each kind, and requests that are no turns.

    `stopped_answering`, `last_ok_s`: None: turn records are missing.
    """

    first_errors: Sequence[documents.FirstError] = ()
    remarks: Mapping[str, documents.FirstExample] = field(default_factory=dict)
    stopped_answering: list[documents.Stopped] | None = None
    last_ok_s: float | None = None
    other_requests: documents.OtherRequests = field(default_factory=lambda: documents.OtherRequests(sent=0, failed=0))
    canary: documents.Canary | None = None
    exceptions: documents.Exceptions = field(default_factory=lambda: documents.Exceptions(count=0))


class Surroundings(Struct, frozen=True):
    """What a run was measured with and against: its block, the client's stamps and readers, Locust's users, the servers."""

    run: documents.Run
    stamps: Stamps | None
    readers: Sequence[documents.ReaderUse] = ()
    users: Mapping[str, int] = field(default_factory=dict)  # by class
    servers: Sequence[Server] = ()
    servers_together: Mapping[str, float | None] = field(default_factory=dict)
    energy: documents.Energy | None = None


class SummaryInput(Struct, frozen=True):
    """Input of a summary."""

    about: Surroundings
    counted: Counted
    verdict: Verdict
    values: TurnValues = TurnValues()
    steps: Steps = Steps()
    overload: Overload = Overload()
    gating: Gating = Gating()
    troubles: Troubles = field(default_factory=Troubles)
