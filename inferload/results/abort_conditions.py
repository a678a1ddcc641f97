"""Conditions that stop a run, as `failed_ratio > 0.5 for 5s`: a gate over the reports of the last seconds. No I/O."""

from collections import deque
from collections.abc import Sequence

from msgspec import Struct

from inferload.figures.limits.abort_condition import parse
from inferload.figures.rate_figures import ATTAINMENT, FAILED_RATIO
from inferload.results.documents.summary_document import Results
from inferload.results.documents.verdict_document import GateResult
from inferload.results.summary import figures_of
from inferload.results.verdict.outcome import ABORTED
from inferload.turns.client_health import ClientHealth
from inferload.turns.tally import Tally, TallySet, summed

LEAST_ENDED = 10  # turns: a share of fewer is not evaluated
_SHARES = (FAILED_RATIO.key, ATTAINMENT.key)  # of the ended turns


class AbortReached(Struct, frozen=True):
    """Condition that became true. `at_s`: seconds since the load began."""

    condition: str
    value: float
    at_s: float

    def result(self) -> GateResult:
        note = f"the run was stopped {self.at_s:.1f} s after the load began"
        return GateResult(gate=f"{ABORTED}{self.condition}", value=self.value, passed=False, note=note)


class AbortWatch:
    """Evaluation of the conditions on the workers' reports, once per second."""

    def __init__(self, conditions: Sequence[str]) -> None:
        self._conditions = [parse(text) for text in conditions]
        if conditions:
            from inferload.results.run_gates import sketch_quantile  # before the load
            from inferload.results.verdict.gates import evaluate

            self._evaluate, self._quantile = evaluate, sketch_quantile
        self._longest_s = max((condition.span_s for condition in self._conditions), default=0)
        self._sketches = any(condition.gate.statistic is not None for condition in self._conditions)
        self._seconds: deque[tuple[int, Tally]] = deque()

    def add(self, at_s: float, delta: TallySet) -> AbortReached | None:
        """Add a report `at_s` seconds after the load began. Return the first condition that is true, else None."""
        if not self._conditions:
            return None
        number, reached = int(at_s), None
        if not self._seconds or self._seconds[-1][0] != number:
            reached = self._reached(number)
            self._seconds.append((number, Tally()))
            while self._seconds[0][0] < number - self._longest_s:
                self._seconds.popleft()
        total = delta.total()
        if not self._sketches:
            total.sketches.clear()
        self._seconds[-1][1].absorb(total)
        return reached

    def _reached(self, now_s: int) -> AbortReached | None:
        """Return the first condition that is true over the complete seconds before `now_s`."""
        for condition in self._conditions:
            if now_s < condition.span_s:
                continue
            total = summed(tally for number, tally in self._seconds if now_s - condition.span_s <= number < now_s)
            if condition.gate.name in _SHARES and total.ended < LEAST_ENDED:
                continue
            results = Results.of_part(figures_of(total, float(condition.span_s)))
            result = self._evaluate(condition.gate, results, self._quantile(total, ClientHealth()))
            if result.passed and result.value is not None:
                return AbortReached(condition.text, result.value, float(now_s))
        return None
