"""Delivery of turn records at the end of a run: wait for workers that still send, join the parts, count all records."""

import logging
from collections.abc import Callable
from pathlib import Path

import gevent

from inferload import rundir, turns_file
from inferload.errors import UsageError
from inferload.master.lifecycle.marks import Marks
from inferload.master.lifecycle.turn_receiver import TurnReceiver
from inferload.master.lifecycle.workers import Member, Roster
from inferload.measure.clock import NS_PER_S, now_ns
from inferload.process.greenlets import in_thread
from inferload.summarise.counts import EndedWorker

logger = logging.getLogger(__name__)

STALL_S = 10.0  # without a piece, after which the wait ends
_ABORT_S = 5.0  # time limit of the wait after an abort
_LOG_S = 5.0


def finish(roster: Roster, receiver: TurnReceiver, folder: Path, marks: Marks, aborted: Callable[[], bool]) -> None:
    """Wait for the records that workers still send, and set for each worker the number of records in the run directory."""
    _wait(roster, receiver, aborted)
    receiver.close()
    for member in roster.members:
        if member.delivers and member.records.held_back is None:
            member.records.held_back = receiver.stopped(member.name)
            if member.drained and not member.records.delivered:
                member.records.held_back = member.records.held_back or "the worker stopped sending them"
        _count(member, folder, received=member.name in receiver.names)
        _mark(member.ended(), marks)


def _mark(worker: EndedWorker, marks: Marks) -> None:
    if worker.held_back_records:
        text = f"worker {worker.name} held back {worker.held_back_records} turn records: {worker.held_back}"
        marks.add("held_back_records", text, worker=worker.name, records=worker.held_back_records)
        logger.warning("%s; they are on %s in %s", text, worker.host, worker.folder)
    if worker.lost_records:
        text = f"worker {worker.name} lost {worker.lost_records} turn records: {worker.why_lost}"
        marks.add("lost_records", text, worker=worker.name, records=worker.lost_records)


def _wait(roster: Roster, receiver: TurnReceiver, aborted: Callable[[], bool]) -> None:
    begun_ns = logged_ns = now_ns()
    while late := [member.name for member in roster.awaited if member.delivers and not member.records.delivered]:
        if receiver.idle_s(begun_ns) > STALL_S:
            logger.error("turn records of workers %s: nothing received for %g s", ", ".join(late), STALL_S)
            return
        if aborted() and now_ns() - begun_ns > _ABORT_S * NS_PER_S:
            return
        if now_ns() - logged_ns > _LOG_S * NS_PER_S:
            logged_ns = now_ns()
            logger.info("receiving turn records of workers %s", ", ".join(late))
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
