"""Diagnosis of one server: the findings of the measure phase, and its causes over time."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from msgspec.structs import replace

from inferload.servers.bottleneck.evidence import WindowEvidence
from inferload.servers.bottleneck.finding import Finding
from inferload.servers.bottleneck.history import WINDOW_S, Span, spans_of
from inferload.servers.bottleneck.rules import KEPT_UP, WindowDiagnosis, judge
from inferload.servers.series import ServerSeries
from inferload.servers.window import gap_limit_s

from ..data.frame import Frame
from ..data.frames import RunFrames
from .client_view import ClientView
from .evidence import collect
from .measured_load import MeasuredLoad
from .whole_run import failed_turns, is_troubled, kept_up_rates, missed_limits, only_refused

_LEAST_SHARE = 0.1  # of the measure phase, of a cause that is the main one without being the last

Judge = Callable[[float, float, float], WindowDiagnosis]


class CauseSpan(Span, frozen=True):
    """Time with one cause. `load`: lowest and highest; `load_at_start`, `load`: None if unknown."""

    evidence: WindowEvidence
    start_wall_s: float
    end_wall_s: float
    load_at_start: str | None = None
    load: str | None = None


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Diagnosis of a server. `short`: the phase is shorter than `WINDOW_S`. `sample`: of client figures; None: all turns."""

    target: str
    whole: WindowDiagnosis
    history: tuple[CauseSpan, ...] = ()
    short: bool = False
    sample: str | None = None

    @property
    def span(self) -> CauseSpan | None:
        """First span of the main cause; None if the cause did not change, or no span has one.

        The main cause has the highest weight of those that hold at the end, or for a tenth of the time.
        """
        if len({span.code for span in self.history}) < 2:
            return None
        total_s = self.history[-1].end_s - self.history[0].start_s
        lasted_s: dict[str | None, float] = {}
        for span in self.history:
            lasted_s[span.code] = lasted_s.get(span.code, 0.0) + span.length_s
        last = next((span.code for span in reversed(self.history) if span.finding is not None), None)
        long = {code for code, length_s in lasted_s.items() if code == last or length_s >= _LEAST_SHARE * total_s}
        main = [span for span in self.history if span.code in long - {None, KEPT_UP}]
        return max(main, key=lambda span: (span.finding.weight if span.finding else 0.0, -span.start_s), default=None)

    @property
    def primary(self) -> Finding | None:
        """Main cause: of its span if the causes changed, else of the measure phase."""
        span = self.span
        return self.whole.primary if span is None else span.finding

    @property
    def evidence(self) -> WindowEvidence:
        """Evidence of the main cause."""
        span = self.span
        return self.whole.evidence if span is None else span.evidence


def of_server(
    run: RunFrames, server: ServerSeries, timeline: Frame, load: MeasuredLoad, measured: tuple[float, float]
) -> Diagnosis:
    """Diagnose a server. `measured`: begin and end of the measure phase, in seconds since the start of the run."""
    start_s, end_s = measured
    view = ClientView.of(run, server)
    results, rates, missed = failed_turns(run), kept_up_rates(run), missed_limits(run)
    troubled = not only_refused(results) or is_troubled(run, server)
    failed = np.nan_to_num(timeline["turns_failed"]) * (not results.turns.whole_run.failed or not only_refused(results))

    def judged(low: float, high: float, **facts: Any) -> WindowDiagnosis:
        evidence = collect(run, server, low, high, view)
        return judge(replace(evidence, run=replace(evidence.run, turns=results.turns.ok, **facts)))

    def window(low: float, high: float, until: float) -> WindowDiagnosis:
        at_s = run.since_start_s(server.wall_ns)
        restarted = bool(server.restarted[(at_s >= low) & (at_s < until)].any())
        return judged(low, high, troubled=restarted or bool(failed[int(low) : int(np.ceil(until))].any()))

    measure_phase = judged(start_s, end_s, troubled=troubled, rates=rates, missed=missed)
    silence_s = gap_limit_s(server.interval_s)
    spans = spans_of(lambda *times: window(*times).primary, measure_phase.evidence.scrapes, end_s, silence_s)
    return Diagnosis(
        server.target,
        measure_phase,
        tuple(_cause_span(span, window, load, run.start_wall_ns / 1e9) for span in spans),
        short=end_s - start_s < WINDOW_S,
        sample=None if run.sample is None else str(run.sample),
    )


def _cause_span(span: Span, window: Judge, load: MeasuredLoad, start_wall_s: float) -> CauseSpan:
    """Return a span with the evidence of all its time."""
    judged = window(span.start_s, span.end_s, span.end_s)
    same = (finding for finding in judged.findings if finding.code == span.code)
    return CauseSpan(
        None if span.finding is None else next(same, span.finding),
        span.start_s,
        span.end_s,
        judged.evidence,
        start_wall_s + span.start_s,
        start_wall_s + span.end_s,
        load.at(span.start_s),
        load.between(span.start_s, span.end_s),
    )
