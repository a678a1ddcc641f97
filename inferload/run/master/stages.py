"""Stages of the runs of a process; every change of the stage is made here."""

from enum import Enum

from gevent.event import Event

from inferload.run.master.lifecycle.master_run import MasterRun


class Stage(Enum):
    """Stage of the run under way, or of a process without one. `lifecycle.phases.LoadStage` divides the last one of a pass."""

    IDLE = "idle"  # a run can begin
    PREPARING = "preparing"  # of each pass, until its workers are ready
    AWAITED = "awaited"  # the pass is prepared, and its first users have not been started
    LOADING = "loading"  # from the first users on, until its turns have ended and their records are here
    WRITING = "writing"  # tables, documents and report of the pass
    OVER = "over"  # the last run of the process has ended


class StoppedEarly(Exception):
    """A stop was requested before the load of a run."""


class RunStages:
    """The current stage, with the values that are valid during a run only: a start with all of its passes."""

    def __init__(self) -> None:
        self.stage = Stage.IDLE
        self.run: MasterRun | None = None  # the current pass, from the setup of its workers on
        self.stopped_by: str | None = None  # reason of the first request to stop the run
        self.trouble: str | None = None  # why the last start was refused
        self.load_begun = Event()  # of the first pass; set at the end, too
        self.ended = Event()
        self.ended.set()
        self._later: tuple[int, float] | None = None

    @property
    def under_way(self) -> bool:
        """True during a run, from the beginning of its preparation on."""
        return self.stage not in (Stage.IDLE, Stage.OVER)

    @property
    def before_load(self) -> bool:
        """True if a run is under way, and its current pass has no load yet."""
        return self.stage in (Stage.PREPARING, Stage.AWAITED)

    def begin(self) -> None:
        """Begin a run with the preparation of its first pass."""
        self._enter(Stage.PREPARING, Stage.IDLE)
        self.stopped_by = self.trouble = self._later = None
        self.ended.clear()
        self.load_begun.clear()

    def prepared(self) -> None:
        self._enter(Stage.AWAITED, Stage.PREPARING)

    def request_later(self, users: int, spawn_rate: float) -> None:
        """Note users that were requested before the load, which begins with the latest request."""
        self._later = users, spawn_rate

    def begin_load(self) -> tuple[int, float] | None:
        """Begin the load of a pass, or a step of it; return users and spawn rate that were requested before, if any were."""
        self._enter(Stage.LOADING, Stage.AWAITED, Stage.LOADING)
        self.load_begun.set()
        later, self._later = self._later, None
        return later

    def write(self) -> None:
        self._enter(Stage.WRITING, Stage.AWAITED, Stage.LOADING)  # AWAITED: stopped before its first users

    def next_pass(self) -> None:
        """Begin the preparation of another pass: the one that has ended takes no requests."""
        self._enter(Stage.PREPARING, Stage.WRITING)
        self.run = None

    def stop(self, reason: str) -> None:
        """Note a request to stop; the first reason counts."""
        self.stopped_by = self.stopped_by or reason

    def check_stop(self) -> None:
        """Raise StoppedEarly if a stop was requested."""
        if self.stopped_by is not None:
            raise StoppedEarly

    def end(self, *, last: bool) -> None:
        """End the run. `last`: of the process."""
        self._enter(Stage.OVER if last else Stage.IDLE, *set(Stage) - {Stage.IDLE, Stage.OVER})
        self.run = None

    def release(self) -> None:
        """Wake all that wait for the load or the end of a run that has ended."""
        self.load_begun.set()
        self.ended.set()

    def _enter(self, stage: Stage, *after: Stage) -> None:
        if self.stage not in after:
            raise RuntimeError(f"a run cannot be {stage.value} after it was {self.stage.value}")
        self.stage = stage
