"""Phases of one run on the master: windows as far as they are known, and their marks."""

from inferload.master.lifecycle.marks import Marks
from inferload.measure.clock import NS_PER_S, now_ns
from inferload.measure.record import Phase, PhaseWindow, stepped


class RunPhases:
    """Phases of a run. `steps_s`: starts of the load's steps, in seconds of the measure phase."""

    def __init__(self, steps_s: tuple[float, ...]) -> None:
        self.windows: tuple[PhaseWindow, ...] = ()
        self._steps_s = steps_s
        self._marked: set[Phase] = set()

    def set(self, start_ns: int, measure_ns: int | None, end_ns: int | None) -> None:
        """Set the starts of load, measure phase and drain; None: not known yet."""
        windows = [PhaseWindow("warmup", start_ns, measure_ns)] if measure_ns is None or measure_ns > start_ns else []
        if measure_ns is not None and (end_ns is None or end_ns > measure_ns):
            windows.append(PhaseWindow("measure", measure_ns, end_ns))
        if end_ns is not None:
            windows.append(PhaseWindow("drain", end_ns))
        self.windows = tuple(windows)

    def mark(self, marks: Marks) -> None:
        """Mark each phase that has begun, once."""
        for window in self.windows:
            if window.phase not in self._marked and window.start_ns <= now_ns():
                self._marked.add(window.phase)
                marks.add("phase", f"{window.phase} begins", window.start_ns, phase=window.phase)

    @property
    def stepped(self) -> tuple[PhaseWindow, ...]:
        """Phases, with the measure phase divided into the steps of the load."""
        return stepped(self.windows, self._steps_s)

    def elapsed_s(self) -> float:
        """Return the seconds since the load began."""
        return 0.0 if not self.windows else max(0.0, (now_ns() - self.windows[0].start_ns) / NS_PER_S)

    def now(self) -> Phase | None:
        """Return the current phase; None before the load."""
        at_ns = now_ns()
        return next((window.phase for window in self.windows if window.holds(at_ns)), None)
