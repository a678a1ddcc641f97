"""Progress of a headless run, on a terminal or in a file; a run without them imports nothing for it."""

import logging
import sys
from collections.abc import Callable

from inferload.base.status_lines import StatusLines
from inferload.run.master.lifecycle.master_run import MasterRun

logger = logging.getLogger(__name__)


def begin(run: MasterRun, status_lines: bool) -> Callable[[], None]:
    """Begin the progress file, and status lines or --live if the log is a terminal. Return a function that ends both."""
    status, ends = StatusLines(sys.stderr), []
    if run.own.progress_file is not None or (status_lines and status.enabled):
        from inferload.run.master.so_far import LiveFigures, LiveStatus, ProgressFile

        if run.own.progress_file is not None:
            ends.append(ProgressFile(run, run.own.progress_file).close)
        if status_lines and status.enabled:
            display = LiveFigures if run.own.live else LiveStatus
            ends.append(display(run, status).close)
    if status_lines and run.own.live and not status.enabled:
        logger.warning("--live: stderr is no terminal, or TERM is dumb; the run shows no live figures")

    def end() -> None:
        for close in ends:
            close()

    return end
