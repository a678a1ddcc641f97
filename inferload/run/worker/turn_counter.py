"""Count, write and trace ended turns in batches. A turn that cannot be counted becomes a client error; no other turn is lost."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from inferload.client.client import Client
from inferload.client.connection.error_log import ErrorLog
from inferload.client.turn_record import TurnResult
from inferload.figures.counting import count_delays, count_turns
from inferload.figures.slo import Slo
from inferload.locust_adapters.statistics import LocustStats
from inferload.results.verdict.first_errors import FirstError, FirstErrors
from inferload.run.worker.process_health import LoopMonitor
from inferload.run.worker.run_windows import RunWindows
from inferload.scenario import scenario as scenarios
from inferload.scenario.schema.endpoints import Endpoint
from inferload.turns.client_health import HealthSet
from inferload.turns.record import Failure, PhaseWindow, TurnRecord
from inferload.turns.tally import Pause, TallySet
from inferload.turns.turn_columns import TurnColumns

if TYPE_CHECKING:
    from inferload.run.worker.turn_tracer import TurnTracer

logger = logging.getLogger(__name__)

# Fields of a record that remain if it cannot be counted; the others get their defaults.
_IDENTITY = (
    *("turn_id", "session_id", "turn_index", "class_name", "worker", "phase", "planned_ns", "closed_ns"),
    *("target", "model", "max_tokens", "step", "pause"),
)


def slo_of(scenario: scenarios.Scenario, class_name: str) -> Slo | None:
    """Return the SLO limits of a class; None if it has none. In an open loop, times count from the planned instant."""
    limits = scenario.slo_of(class_name)
    if (limits.ttft_ms, limits.tpot_ms, limits.e2e_ms, limits.itl_ms) == (None, None, None, None):
        return None
    return Slo(limits.ttft_ms, limits.tpot_ms, limits.e2e_ms, limits.itl_ms, from_plan=scenario.open_loop)


class Slos(dict[str, Slo | None]):
    """SLO limits by class; those of a class that a task names during the run are added at its first turn."""

    def __init__(self, scenario: scenarios.Scenario) -> None:
        super().__init__()
        self._scenario = scenario

    def __missing__(self, class_name: str) -> Slo | None:
        self[class_name] = slo = slo_of(self._scenario, class_name)
        return slo


class TurnCounter:
    """Passes ended turns to the counts, the tracer and Locust's tables. `tracer`: None without export of traces."""

    def __init__(
        self,
        counts: TurnCounts,
        windows: RunWindows,
        monitor: LoopMonitor,
        locust_stats: LocustStats,
        tracer: TurnTracer | None = None,
    ) -> None:
        self.counts = counts
        self.tracer = tracer
        self.errors = FirstErrors()
        self._windows = windows
        self._monitor = monitor
        self._locust_stats = locust_stats
        self._logged: set[str] = set()  # kinds of failure
        self._faults = ErrorLog(logger)

    def count(self, client: Client, results: Sequence[TurnResult]) -> Sequence[TurnResult]:
        """Count and write turns of a client; return them, with client errors in place of those that cannot be counted."""
        # A reading thread goes on while the event loop is stopped, and has pauses of its own.
        pauses = client.pauses()
        counted = self.counts.count(results, self._windows.all, self._monitor.pauses if pauses is None else pauses)
        ended_ns = max((result.record.closed_ns for result in counted), default=0)
        self._windows.latest_ns = max(self._windows.latest_ns, ended_ns)
        for result in counted:
            record = result.record
            if record.failure is not None and record.finished:
                self.errors.add(_error(record, record.failure, record.status, record.class_name, result.detail))
            for remark in record.remarks:
                self.errors.add(_error(record, remark, None, "", result.examples[remark]))
        if self.tracer is not None:
            self._trace(self.tracer, client.endpoint, counted)
        return counted

    def add_to_locust(self, results: Sequence[TurnResult]) -> None:
        """Add counted turns to Locust's tables. An exception is logged only: a drain waits until every turn is added."""
        try:
            for result in results:
                if result.record.failure is not None and result.record.finished:
                    self._log_first(result)
            self._locust_stats.add(results)
        except Exception as error:  # noqa: BLE001  else the greenlet would end, and a drain would wait for ever
            self._faults.log(f"up to {len(results)} turns are missing in Locust's tables", error)

    def close_traces(self) -> None:
        """Send the remaining spans. Blocks."""
        if self.tracer is not None:
            self.tracer.close()

    def _trace(self, tracer: TurnTracer, endpoint: Endpoint, results: Sequence[TurnResult]) -> None:
        """Export the spans of turns. An exception does not end the run."""
        try:
            tracer.add(endpoint, results)
        except Exception as error:  # noqa: BLE001  the turns are counted already
            self._faults.log(f"up to {len(results)} turns have no span", error)

    def _log_first(self, result: TurnResult) -> None:
        """Log the first failure of each kind; all are counted in the tables."""
        failure = result.record.failure
        kind = f"{failure} {result.record.status or ''}".strip()
        if kind not in self._logged:
            self._logged.add(kind)
            logger.warning("turn failed (%s): %s; further ones of this kind are only counted", kind, result.detail)


class _Batch(NamedTuple):
    results: Sequence[TurnResult]
    windows: Sequence[PhaseWindow]
    pauses: Sequence[Pause]


class TurnCounts:
    """Tallies and health of ended turns since the last `take`. `write` takes all records of a batch or raises."""

    def __init__(self, slos: Mapping[str, Slo | None], write: Callable[[Sequence[TurnRecord]], None]) -> None:
        self._slos = slos
        self._write = write
        self._faults = ErrorLog(logger)
        self._tallies, self._health = TallySet(), HealthSet()
        self._batches: list[_Batch] = []  # contents of the two, to count them again if a turn cannot be counted
        self._checked = TallySet(), HealthSet()  # turns that were counted one by one

    def count(
        self, results: Sequence[TurnResult], windows: Sequence[PhaseWindow], pauses: Sequence[Pause]
    ) -> Sequence[TurnResult]:
        """Count and write turns; return them, with client errors in place of those that cannot be counted."""
        self._batches.append(_Batch(results, windows, pauses))
        records = [result.record for result in results]
        try:
            count_turns(self._tallies, records, windows, self._slos, pauses)
            count_delays(self._health, records, [result.reads_unstamped for result in results])
            self._write(records)
        except Exception as error:  # noqa: BLE001  of one record: the others must be counted
            self._faults.log("a batch of turns could not be counted at once", error)
            results = self._recount()
            self._write_again(results)
        return results

    def take(self) -> tuple[TallySet, HealthSet]:
        """Return the tallies and health counted since the last call."""
        tallies, health = TallySet(), HealthSet()
        try:
            tallies.absorb(self._tallies)  # the sketches check their values here
            health.absorb(self._health)
        except Exception as error:  # noqa: BLE001  of one turn: the others must be counted
            self._faults.log("turns could not be counted at once", error)
            self._recount()
            tallies, health = TallySet(), HealthSet()
        tallies.absorb(self._checked[0].take())
        health.absorb(self._checked[1].take())
        self._tallies, self._health, self._batches = TallySet(), HealthSet(), []
        return tallies, health

    def _recount(self) -> list[TurnResult]:
        """Count all batches again, turn by turn; return the turns of the last one."""
        batches, self._batches = self._batches, []
        self._tallies, self._health = TallySet(), HealthSet()
        counted: list[TurnResult] = []
        for batch in batches:
            counted = [self._counted(result, batch) for result in batch.results]
        return counted

    def _counted(self, result: TurnResult, batch: _Batch) -> TurnResult:
        """Count one turn, or a client error in its place; return what was counted."""
        try:
            self._count_one(result, batch)
        except Exception as error:  # noqa: BLE001  a client error is counted in its place
            self._faults.log(f"turn {result.record.turn_id} cannot be counted", error)
            result = _client_error(result.record, error)
            self._count_one(result, batch)
        return result

    def _count_one(self, result: TurnResult, batch: _Batch) -> None:
        """Count one turn, or raise and count nothing."""
        record, tallies, health = result.record, TallySet(), HealthSet()
        count_turns(tallies, [record], batch.windows, self._slos, batch.pauses)
        count_delays(health, [record], [result.reads_unstamped])
        columns = TurnColumns()
        columns.append(record)
        columns.arrays(0)
        tallies.to_wire()  # the sketches check their values here
        health.to_wire()
        self._checked[0].absorb(tallies)
        self._checked[1].absorb(health)

    def _write_again(self, results: Sequence[TurnResult]) -> None:
        try:
            self._write([result.record for result in results])
        except Exception as error:  # noqa: BLE001  they are counted, and the comparison of files and counts shows the loss
            self._faults.log(f"{len(results)} turns could not be written", error)


def _error(record: TurnRecord, failure: str, status: int | None, turn_class: str, text: str) -> FirstError:
    return FirstError(str(failure), status, turn_class, text, record.closed_ns, record.worker)


def _client_error(record: TurnRecord, error: Exception) -> TurnResult:
    """Return the result of a turn that cannot be counted, with its identity only."""
    fields = {name: getattr(record, name) for name in _IDENTITY}
    detail = f"{type(error).__name__}: {error}"
    return TurnResult(TurnRecord(**fields, failure=Failure.CLIENT_ERROR), "", detail)
