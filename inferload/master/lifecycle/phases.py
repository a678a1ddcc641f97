"""The phases of one run as its master knows them: told to the workers as they become known, marked as they begin."""

from inferload.master.lifecycle.marks import Marks
from inferload.measure.clock import NS_PER_S, Anchor, now_ns
from inferload.measure.record import Phase, PhaseWindow, stepped


class RunPhases:
    """`steps_s`: where the load's steps begin, in seconds of the measure phase."""

    def __init__(self, steps_s: tuple[float, ...]) -> None:
        self.windows: tuple[PhaseWindow, ...] = ()
        self._steps_s = steps_s
        self._marked: set[Phase] = set()

    def set(self, start_ns: int, measure_ns: int | None, end_ns: int | None) -> None:
        """Take note of the instants at which the load, the measure phase and the drain begin; None: not known yet."""
        windows = [PhaseWindow("warmup", start_ns, measure_ns)] if measure_ns is None or measure_ns > start_ns else []
        if measure_ns is not None and (end_ns is None or end_ns > measure_ns):
            windows.append(PhaseWindow("measure", measure_ns, end_ns))
        if end_ns is not None:
            windows.append(PhaseWindow("drain", end_ns))
        self.windows = tuple(windows)

    def mark(self, marks: Marks, anchor: Anchor) -> None:
        """Mark each phase that has begun, once."""
        for window in self.windows:
            if window.phase not in self._marked and window.start_ns <= now_ns():
                self._marked.add(window.phase)
                marks.add("phase", f"{window.phase} begins", anchor.to_wall_ns(window.start_ns), phase=window.phase)

    @property
    def stepped(self) -> tuple[PhaseWindow, ...]:
        """The phases, the measure phase by the steps of the load."""
        return stepped(self.windows, self._steps_s)

    def elapsed_s(self) -> float:
        """Since the load began."""
        return 0.0 if not self.windows else max(0.0, (now_ns() - self.windows[0].start_ns) / NS_PER_S)

    def now(self) -> Phase | None:
        """The phase that holds now; None before the load."""
        at_ns = now_ns()
        return next((window.phase for window in self.windows if window.holds(at_ns)), None)
