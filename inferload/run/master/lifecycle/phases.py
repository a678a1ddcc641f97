"""Phases of one run on the master: windows as far as they are known, their marks, and the end of the load.

Every cause of a stop (the planned end, the web UI, Ctrl-C, SIGTERM, loss of all workers) only sets `RunEnd.stop`; the drain is the
same for all.
"""

from collections.abc import Mapping
from enum import Enum

from gevent.event import Event
from msgspec import Struct

from inferload.base.clock import NS_PER_S, now_ns
from inferload.results.abort_conditions import AbortReached
from inferload.run.master.lifecycle.marks import Marks
from inferload.run.master.workers.workers import Roster
from inferload.turns.record import Phase, PhaseWindow, stepped
from inferload.turns.run_windows import phase_windows


class RunPhases:
    """Phases of a run. `steps_s`: starts of the load's steps, in seconds of the measure phase."""

    def __init__(self, steps_s: tuple[float, ...]) -> None:
        self.windows: tuple[PhaseWindow, ...] = ()
        self._steps_s = steps_s
        self._marked: set[Phase] = set()

    def set(self, start_ns: int, measure_ns: int | None, end_ns: int | None) -> None:
        """Set the starts of load, measure phase and drain; None: not known yet."""
        self.windows = phase_windows(start_ns, measure_ns, end_ns)

    def mark(self, marks: Marks) -> None:
        for window in self.windows:
            if window.phase not in self._marked and window.start_ns <= now_ns():
                self._marked.add(window.phase)
                marks.add("phase", f"{window.phase} begins", window.start_ns, phase=window.phase)

    @property
    def stepped(self) -> tuple[PhaseWindow, ...]:
        """Phases, with the measure phase divided into the steps of the load."""
        return stepped(self.windows, self._steps_s)

    @property
    def load_end_ns(self) -> int | None:
        """Start of the drain; None if not known yet."""
        drain = self.window("drain")
        return None if drain is None else drain.start_ns

    def window(self, phase: Phase) -> PhaseWindow | None:
        """Return the window of a phase; None if it is not known yet."""
        return next((window for window in self.windows if window.phase == phase), None)

    def elapsed_s(self) -> float:
        """Return the seconds since the load began."""
        return 0.0 if not self.windows else max(0.0, (now_ns() - self.windows[0].start_ns) / NS_PER_S)

    def now(self) -> Phase | None:
        """Return the current phase; None before the load."""
        at_ns = now_ns()
        return next((window.phase for window in self.windows if window.holds(at_ns)), None)


class LoadStage(Enum):
    """Stage of a run's load; each follows the one before."""

    LOADING = 1  # from its announcement on
    DRAINING = 2  # no new turns
    DELIVERING = 3  # the turns are over; turn records are written and sent


class GivenUp(Enum):
    """What an abort gives up."""

    NOTHING = 0
    TURNS = 1  # turns in flight are ended
    RECORDS = 2  # turn records that workers still write or send are not awaited


class RunEnd:
    """End of a run's load: its stage, and requests to stop it."""

    def __init__(self, marks: Marks) -> None:
        self.stage = LoadStage.LOADING
        self.given_up = GivenUp.NOTHING
        self.stop = Event()
        self.reason = "the scenario's end"
        self.early_by: str | None = None  # the signal or event that ended the load before its planned end
        self.aborted: AbortReached | None = None  # by the scenario's `abort_on`
        self.invalid_call = False  # the load was ended by an invalid call of a task
        self.spent_ns: int | None = None  # end of the last session of a load that ends by itself
        self.users: Mapping[str, int] = {}  # by class, when the load ended
        self.drained = Event()  # the turns of every worker that is not lost are over
        self.complete = False  # and its records are written
        self._marks = marks

    @property
    def over(self) -> bool:
        """True once the load has ended."""
        return self.stage is not LoadStage.LOADING

    def request_stop(self, reason: str, *, early: bool = False) -> None:
        """Begin the drain; the first reason counts. `early`: not a planned end, unless the load has ended already."""
        if not self.stop.is_set():
            if not self.over:
                self.reason = reason
                self.early_by = reason if early else None
            self._marks.add("stop", f"stopped by {reason}")
            self.stop.set()

    def request_abort(self) -> None:
        """Begin the drain, and mark that turns in flight are ended; after their end, give up the records that are awaited."""
        self.request_stop("abort")
        if self.given_up is GivenUp.NOTHING:
            self._marks.add("abort", "turns in flight ended")
        self.given_up = GivenUp.RECORDS if self.stage is LoadStage.DELIVERING else GivenUp.TURNS

    def enter(self, stage: LoadStage) -> None:
        if stage.value != self.stage.value + 1:
            raise RuntimeError(f"{stage.name} does not follow {self.stage.name}")
        self.stage = stage


class RunState(Struct, frozen=True):
    """State that the parts of one run share."""

    run_id: str
    roster: Roster
    marks: Marks
    phases: RunPhases
    end: RunEnd
