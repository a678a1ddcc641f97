"""Turn records at the end of a run: wait for workers that still write or send them, join the parts, count all records."""

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path

import gevent

from inferload.base import rundir
from inferload.base.clock import NS_PER_S, now_ns
from inferload.base.errors import UsageError
from inferload.base.threads import in_thread
from inferload.results.summarise.counts import EndedWorker
from inferload.run.master.lifecycle.marks import Marks
from inferload.run.master.workers.turn_receiver import TurnReceiver
from inferload.run.master.workers.workers import Member, Roster
from inferload.run.process.greenlets import logged_wait
from inferload.turns import turns_file

logger = logging.getLogger(__name__)

# The wait ends after this time in which no worker wrote to its disk and no piece arrived: one write of a slow disk takes seconds.
STALL_S = 30.0


def finish(roster: Roster, receiver: TurnReceiver, folder: Path, marks: Marks, hurried: Callable[[], bool]) -> bool:
    """Wait for the records that workers still write or send, and set the number of each worker's records in the run directory.

    `hurried`: True once missing records are to be given up. Return True if every worker that is not lost has drained.
    """
    _wait(roster, receiver, hurried)
    receiver.close()
    for member in roster.members:
        if member.delivers and member.records.held_back is None:
            member.records.held_back = receiver.stopped(member.name)
            if member.drained and not member.delivered:
                member.records.held_back = member.records.held_back or "the worker stopped sending them"
        with logged_wait(logger, partial("joining the turn records of worker {} in {}".format, member.name, folder)):
            _count(member, folder, received=member.name in receiver.names)
        _mark(member.ended(), marks)
    late = [member.name for member in roster.awaited if not member.drained]
    if late:
        marks.add("not_drained", f"workers {', '.join(late)} did not report the end of their drain")
    return not late


def _mark(worker: EndedWorker, marks: Marks) -> None:
    if worker.held_back_records:
        text = f"worker {worker.name} held back {worker.held_back_records} turn records: {worker.held_back}"
        marks.add("held_back_records", text, worker=worker.name, records=worker.held_back_records)
        logger.warning("%s; they are on %s in %s", text, worker.host, worker.folder)
    if worker.lost_records:
        text = f"worker {worker.name} lost {worker.lost_records} turn records: {worker.why_lost}"
        marks.add("lost_records", text, worker=worker.name, records=worker.lost_records)


def _wait(roster: Roster, receiver: TurnReceiver, hurried: Callable[[], bool]) -> None:
    """Wait as long as records arrive on any disk. Workers whose turns are not over are not awaited."""
    begun_ns = now_ns()

    def awaited() -> list[str]:
        return [member.name for member in roster.awaited if member.turns_over and not member.records_over]

    def text() -> str:
        return f"waiting until the turn records of workers {', '.join(awaited())} are written; press Ctrl-C to give them up"

    with logged_wait(logger, text):
        while late := awaited():
            advanced_ns = max(begun_ns, receiver.advanced_ns, *(member.advanced_ns for member in roster.members))
            if now_ns() - advanced_ns > STALL_S * NS_PER_S:
                logger.error("turn records of workers %s: no progress for %g s", ", ".join(late), STALL_S)
                return
            if hurried():
                logger.error("turn records of workers %s: given up", ", ".join(late))
                return
            gevent.sleep(0.02)


def _count(member: Member, folder: Path, *, received: bool) -> None:
    """Count a worker's records in the run directory. `received`: its parts were sent, and are joined first."""
    try:
        if received:
            in_thread(turns_file.join_parts, folder, member.name)
    except (UsageError, OSError, ValueError) as error:  # the parts contain the same records
        logger.warning("turn records of worker %s stay in parts: %s", member.name, rundir.reason(error))
    try:
        member.records.at_hand = in_thread(turns_file.rows_of, folder, member.name)
    except (UsageError, OSError) as error:
        logger.error("turn records of worker %s cannot be counted: %s", member.name, rundir.reason(error))
        member.records.at_hand = 0
