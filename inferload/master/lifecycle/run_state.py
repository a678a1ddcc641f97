"""Parts of a run's state in the master."""

from dataclasses import dataclass, field
from pathlib import Path

from inferload.measure.client_health import HealthSet
from inferload.measure.tally import TallySet
from inferload.verdict.failures import FirstErrors


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """The run directory, and the token in it."""

    path: Path
    token: str = ""


@dataclass(slots=True)
class ReportTotals:
    """Sums of the workers' reports so far."""

    tallies: TallySet = field(default_factory=TallySet)
    health: HealthSet = field(default_factory=HealthSet)
    errors: FirstErrors = field(default_factory=FirstErrors)
