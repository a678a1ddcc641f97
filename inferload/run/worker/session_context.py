"""State that the sessions of a worker share with its run, and the wait for a slot of each turn."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from inferload.base.clock import now_ns
from inferload.run.process.settings import ClassOptions
from inferload.run.worker.run_part import RunPart
from inferload.run.worker.turn_dispatcher import TurnDispatcher
from inferload.turns.record import PhaseWindow
from inferload.turns.run_windows import RunWindows
from inferload.turns.tally import TallySet

if TYPE_CHECKING:
    from inferload.run.worker.idle_cap import SystemIdleCap

logger = logging.getLogger(__name__)

TOO_LARGE = "sessions ended by an answer with more than 1 MB beside its text, too large to be sent back"


@dataclass(slots=True)
class SessionContext:
    """A run as seen by its sessions. `open`: sessions and turns may still begin. `class_options`: of classes with own requests.

    `in_thread`: returns the result of a call in a thread, while the calling greenlet waits. `check_spent`: ends a load in which
    nothing more can begin.
    """

    part: RunPart
    windows: RunWindows
    turns: TurnDispatcher
    tallies: TallySet  # of sessions, and of turns that begin
    in_thread: Callable[[Callable[[], Any]], Any]
    check_spent: Callable[[], None]
    open: bool = True
    sessions_running: int = 0
    idle: "SystemIdleCap | None" = None
    class_options: Mapping[str, ClassOptions] = field(default_factory=dict)

    def takes(self, window: PhaseWindow) -> bool:
        """Return True if a session or turn planned in the window may begin: none may after the load, which ends before `open`."""
        return self.open and window.phase != "drain"

    def leave(self) -> None:
        """Release the slot in flight of a turn."""
        if self.part.limiter is not None:
            self.part.limiter.leave()

    def note(self, class_name: str, problem: str, error: Exception | None = None) -> None:
        """Count a problem of a class's sessions; log the first of each kind."""
        note, notes = f"{class_name}: {problem}", self.part.sessions.notes
        if not notes[note]:
            level = logging.WARNING if error is None else logging.ERROR
            logger.log(level, "%s; further ones are only counted", note, exc_info=error)
        notes[note] += 1

    def end_session(self) -> None:
        self.sessions_running -= 1
        self.check_spent()


def entered(run: SessionContext, class_name: str, window: PhaseWindow) -> bool:
    """Wait for a slot in flight, and count the wait; False if the run takes no more turns."""
    limiter = run.part.limiter
    if limiter is None or limiter.try_enter():
        return True
    since_ns = now_ns()
    admitted = limiter.enter()
    if admitted:
        tally = run.tallies.at(window.phase, class_name, window.step)
        tally.turns_delayed += 1
        tally.delayed_ns += now_ns() - since_ns
    return admitted
