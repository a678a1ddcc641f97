"""Count, write and trace ended turns in batches. The values of their records are within the bounds of all counts and columns."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from inferload.base.clock import is_virtual
from inferload.client.client import Client
from inferload.client.connection.error_log import ErrorLog
from inferload.client.turn_record import TurnResult
from inferload.figures.counting import KeyedTurns, count_delays, count_turns, keyed
from inferload.figures.limits.slo import Slo
from inferload.locust_adapters.statistics import LocustStats
from inferload.results.verdict.first_errors import FirstErrors
from inferload.run.worker.process_health import LoopMonitor
from inferload.scenario import scenario as scenarios
from inferload.turns.client_health import HealthSet
from inferload.turns.record import TurnRecord
from inferload.turns.run_windows import RunWindows
from inferload.turns.tally import TallySet

if TYPE_CHECKING:
    from inferload.run.worker.turn_tracer import TurnTracer

logger = logging.getLogger(__name__)


class CountedTurns(NamedTuple):
    """Turns of a client that were counted together. `by_key`: the same turns by phase, class and step."""

    results: Sequence[TurnResult]
    by_key: Sequence[KeyedTurns]


@dataclass(eq=False)
class TurnCounter:
    """Passes ended turns to the counts, the turn files, the tracer and Locust's tables.

    `slos`: limits by class. `write`: takes the records of a batch. `tracer`: None without export of traces.
    """

    slos: Mapping[str, Slo | None]
    write: Callable[[Sequence[TurnRecord]], None]
    windows: RunWindows
    monitor: LoopMonitor
    locust_stats: LocustStats
    tracer: "TurnTracer | None" = None
    tallies: TallySet = field(default_factory=TallySet)
    health: HealthSet = field(default_factory=HealthSet)
    errors: FirstErrors = field(default_factory=FirstErrors)
    _logged: set[str] = field(default_factory=set)  # kinds of failure
    _listener_errors: ErrorLog = field(default_factory=lambda: ErrorLog(logger))

    def count(self, client: Client, results: Sequence[TurnResult]) -> CountedTurns:
        """Count and write turns of a client; return them for `add_to_locust`."""
        records = [result.record for result in results]
        # A reading thread goes on while the event loop is stopped, and has pauses of its own.
        pauses = client.pauses()
        pauses = self.monitor.pauses if pauses is None else pauses
        counted = CountedTurns(results, keyed(records))
        count_turns(self.tallies, counted.by_key, self.windows.all, self.slos, pauses)
        if not is_virtual():
            count_delays(self.health, records, [result.reads_unstamped for result in results])
        self.write(records)
        ended_ns = max((record.closed_ns for record in records), default=0)
        self.windows.latest_ns = max(self.windows.latest_ns, ended_ns)
        for result in results:
            self.errors.add_ended(result.record, result.detail, result.examples)
        if self.tracer is not None:
            self.tracer.add(client.endpoint, results)
        return counted

    def add_to_locust(self, counted: CountedTurns) -> None:
        """Add counted turns to Locust's tables, and call the listeners of its events."""
        for result in counted.results:
            if result.record.failure is not None and result.record.finished:
                self._log_first(result)
        try:
            self.locust_stats.add(counted.results, counted.by_key)
        except Exception as error:  # noqa: BLE001  Locust's EventHook lets StopUser and others of a user's listener pass
            self._listener_errors.log(f"up to {len(counted.results)} turns are missing in Locust's tables", error)

    def _log_first(self, result: TurnResult) -> None:
        """Log the first failure of each kind; all are counted in the tables."""
        failure = result.record.failure
        kind = f"{failure} {result.record.status or ''}".strip()
        if kind not in self._logged:
            self._logged.add(kind)
            logger.warning("turn failed (%s): %s; further ones of this kind are only counted", kind, result.detail)


class Slos(dict[str, Slo | None]):
    """SLO limits by class, None if it has none; those of a class that a task names are added at its first turn.

    In an open loop, times count from the planned instant.
    """

    def __init__(self, scenario: scenarios.Scenario) -> None:
        super().__init__()
        self._scenario = scenario

    def __missing__(self, class_name: str) -> Slo | None:
        limits = self._scenario.slo_of(class_name).limits
        self[class_name] = slo = Slo(limits, from_plan=self._scenario.open_loop) if limits else None
        return slo
