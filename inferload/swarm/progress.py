"""What a headless run shows on a terminal while it lasts: three lines, written over once a second. Elsewhere: nothing."""

import contextlib
import json
import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TextIO

import gevent

from inferload.measure.clock import NS_PER_S, now_ns
from inferload.measure.progressline import Snapshot, lines
from inferload.swarm.masterrun import MasterRun

logger = logging.getLogger(__name__)

_PERIOD_S = 1.0
_UP_AND_CLEAR = "\x1b[1A\x1b[2K"


def is_terminal(stream: TextIO) -> bool:
    """Whether lines can be written over there."""
    return stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"


class Block:
    """Some lines at the foot of a terminal. A log record that comes meanwhile stands above them, whole.

    A terminal that takes no more (it was closed, or its buffer is full) costs the lines, and nothing of the run.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._height = 0
        self._open = True
        self._handlers: list[logging.Handler] = []

    def watch(self, handlers: Sequence[logging.Handler]) -> None:
        """Make way whenever one of these handlers writes."""
        self._handlers = list(handlers)
        for handler in self._handlers:
            handler.addFilter(self._make_way)

    def draw(self, texts: Sequence[str]) -> None:
        """Write these lines over the ones that are there."""
        if not self._open:
            return
        try:
            self._stream.write(_UP_AND_CLEAR * self._height + "".join(f"{text}\n" for text in texts))
            self._stream.flush()
        except OSError:
            self._open = False
        self._height = len(texts)

    def width(self) -> int:
        """Characters that fit into a line without a break."""
        try:
            columns = os.get_terminal_size(self._stream.fileno()).columns
        except OSError:
            columns = 0
        return (columns or 80) - 1  # a terminal that does not know says 0

    def close(self) -> None:
        """Take the lines away."""
        self.draw([])
        for handler in self._handlers:
            handler.removeFilter(self._make_way)

    def _make_way(self, _record: logging.LogRecord) -> bool:
        self.draw([])
        return True


class Progress:
    """Shows a run from its making to its end."""

    def __init__(self, run: MasterRun, stream: TextIO) -> None:
        self._run = run
        self._block = Block(stream)
        self._block.watch(logging.getLogger().handlers)
        self._greenlet = gevent.spawn(self._show)

    def close(self) -> None:
        """The last of it."""
        self._greenlet.kill()
        self._block.close()

    def _show(self) -> None:
        while True:
            self._block.draw(lines(snapshot(self._run), self._block.width()))
            gevent.sleep(_PERIOD_S)


class ProgressFile:
    """A line of JSON for each second of a run, for programs that watch it.

    `phase`, `elapsed_s` since the load began, `measured_s` since the measure phase did, `turns_begun` in it, `in_flight`.
    """

    def __init__(self, run: MasterRun, path: Path) -> None:
        self._run = run
        self._file = path.open("a", encoding="utf-8")  # that it can be was looked at before the run
        self._greenlet = gevent.spawn(self._write)

    def close(self) -> None:
        """No more lines."""
        self._greenlet.kill()
        with contextlib.suppress(OSError):  # what is left over finds no room on a full disk either
            self._file.close()

    def _write(self) -> None:
        try:
            while True:
                self._file.write(json.dumps(progress(self._run)) + "\n")
                self._file.flush()
                gevent.sleep(_PERIOD_S)
        except OSError as error:
            logger.warning("--progress-file: %s; the run goes on without it", error)


def progress(run: MasterRun) -> dict[str, Any]:
    """The run at this moment, as a line of the progress file."""
    measure = next((window for window in run.windows if window.phase == "measure"), None)
    measured_s = None if measure is None else (now_ns() - measure.start_ns) / NS_PER_S
    return {
        "phase": run.phase(),
        "elapsed_s": round(run.elapsed_s(), 3),
        "measured_s": None if measured_s is None or measured_s < 0 else round(measured_s, 3),
        "turns_begun": sum(tally.turns_begun for key, tally in run.seen.tallies.items() if key[0] == "measure"),
        "in_flight": sum(member.in_flight for member in run.roster.present),
    }


def begin(run: MasterRun, wanted: bool) -> Callable[[], None]:
    """Show a run where that is wanted and the log is a terminal, and write its progress file; what ends both."""
    ends = []
    if run.own.progress_file is not None:
        ends.append(ProgressFile(run, run.own.progress_file).close)
    if wanted and is_terminal(sys.stderr):
        ends.append(Progress(run, sys.stderr).close)

    def end() -> None:
        for one in ends:
            one()

    return end


def snapshot(run: MasterRun) -> Snapshot:
    """The run as the master knows it now."""
    gauges = [] if run.scraping is None else [one.get("gauges") or {} for one in run.scraping.latest.values()]
    usages = [one["kv_cache_usage"] for one in gauges if "kv_cache_usage" in one]
    queues = [one["requests_waiting"] for one in gauges if "requests_waiting" in one]
    return Snapshot(
        phase=run.phase() if run.windows and run.windows[0].start_ns <= now_ns() else None,
        elapsed_s=run.elapsed_s(),
        left_s=_left_s(run),
        goal=_goal(run),
        in_flight=sum(member.in_flight for member in run.roster.present),
        failed=run.recent.failed,
        recent=run.recent.figures(run.elapsed_s()),
        at_most=run.phase() == "drain" or (run.phase() == "warmup" and run.order.scenario.phases.adaptive),
        steady="steady" if run.steadiness.now else None,
        kv_cache_usage=max(usages, default=None),
        waiting=sum(queues) if queues else None,
        scraped=run.scraping is not None,
        lost=tuple(member.name for member in run.roster.gone),
    )


def _left_s(run: MasterRun) -> float | None:
    """To the planned end of the measure phase; of a drain, to the moment when it gives up."""
    if run.phase() == "drain":
        start_ns = run.windows[-1].start_ns
        return max(0.0, run.order.scenario.phases.drain_s - (now_ns() - start_ns) / NS_PER_S)
    end_ns: Any = next((window.end_ns for window in run.windows if window.phase == "measure"), None)
    if run.phase() == "warmup" and end_ns is None and run.order.scenario.phases.adaptive:
        end_ns = run.windows[0].start_ns + round(run.order.scenario.phases.warmup_s * NS_PER_S)
    return None if end_ns is None else max(0.0, (end_ns - now_ns()) / NS_PER_S)


def _goal(run: MasterRun) -> str | None:
    """How much there is of what the run is to end by; None where it ends by time alone."""
    phases = run.order.scenario.phases
    tallies = [tally for key, tally in run.seen.tallies.items() if key[0] == "measure"]
    if phases.sessions is not None:
        return f"{sum(tally.sessions_planned for tally in tallies)} of {phases.sessions} sessions begun"
    if phases.turns is not None:
        return f"{sum(tally.turns_begun for tally in tallies)} of {phases.turns} turns begun"
    return None
