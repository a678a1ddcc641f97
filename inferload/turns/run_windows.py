"""Phases of a run: their windows on one clock."""

from collections.abc import Sequence

from inferload.turns.record import PhaseWindow


def phase_windows(start_ns: int, measure_ns: int | None, end_ns: int | None) -> tuple[PhaseWindow, ...]:
    """Return the phases by the starts of load, measure phase and drain; None: not known yet."""
    windows = [PhaseWindow("warmup", start_ns, measure_ns)] if measure_ns is None or measure_ns > start_ns else []
    if measure_ns is not None and (end_ns is None or end_ns > measure_ns):
        windows.append(PhaseWindow("measure", measure_ns, end_ns))
    if end_ns is not None:
        windows.append(PhaseWindow("drain", end_ns))
    return tuple(windows)


class RunWindows:
    """Windows of the phases; empty until the master has announced them."""

    __slots__ = ("all", "latest_ns", "overrun_ns")

    def __init__(self) -> None:
        self.all: tuple[PhaseWindow, ...] = ()
        self.latest_ns = 0  # when the last turn was planned, or a counted one ended
        # Time after the measure phase's end until which turns count as measured: the message of the end came late.
        self.overrun_ns = 0

    def set(self, windows: Sequence[PhaseWindow]) -> None:
        """Replace the windows. If turns after the new end count as measured, set `overrun_ns`."""
        measured = self.at(self.latest_ns).phase == "measure"
        self.all = tuple(windows)
        if measured and self.at(self.latest_ns).phase == "drain":
            self.overrun_ns = max(1, self.latest_ns - (self.load_end_ns or self.latest_ns))

    def at(self, at_ns: int) -> PhaseWindow:
        """Return the phase, or the step of it, that contains an instant; before the first phase, the first."""
        for window in self.all:
            if window.holds(at_ns):
                return window
        return self.all[0] if self.all else PhaseWindow("measure", 0)

    @property
    def load_start_ns(self) -> int | None:
        """Start of the first phase; None if not known yet."""
        return self.all[0].start_ns if self.all else None

    @property
    def measure_start_ns(self) -> int | None:
        """Start of the measure phase; None if not known yet."""
        return next((window.start_ns for window in self.all if window.phase == "measure"), None)

    @property
    def load_end_ns(self) -> int | None:
        """End of the measure phase; None if not known yet."""
        return next((window.end_ns for window in reversed(self.all) if window.phase == "measure"), None)
