"""`inferload mark`: add an event to the run in progress."""

import argparse
import socket
from pathlib import Path
from typing import Any

from inferload.base import rundir
from inferload.base.errors import UsageError, instead_of_file
from inferload.base.escaping import escaped


def register(commands: Any) -> None:
    parser = commands.add_parser(
        "mark",
        description="Add an event to the run in progress in a directory, now: to marks.jsonl, the report and its charts, "
        "and to the table of phases, with the time to recover. To be called on the machine of the run's master.",
        epilog='Examples:\n  inferload mark runs/latest "second replica started"\n'
        "Exit code: 0 marked; 2 no run is in progress there.",
    )
    parser.add_argument("folder", metavar="RUN", type=Path, help="run directory, such as runs/latest")
    parser.add_argument("text", metavar="TEXT", help=f"one line of at most {rundir.MARK_CHARACTERS} characters")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Send the mark."""
    send(arguments.folder, arguments.text)
    return 0


def send(folder: Path, text: str) -> None:
    """Send a mark to the run in a directory; UsageError if the text is no mark, or no run is in progress there."""
    text = text.strip()
    if not text or len(text) > rundir.MARK_CHARACTERS or escaped(text) != text:
        raise UsageError(f"text of the mark: write one line of 1 to {rundir.MARK_CHARACTERS} characters")
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender, rundir.mark_address(folder) as address:
            sender.settimeout(5.0)
            sender.sendto(text.encode(), address)
    except OSError as error:
        absent = isinstance(error, FileNotFoundError | ConnectionRefusedError | NotADirectoryError)
        why = "no run is in progress there on this machine" if absent else error.strerror or str(error)
        remedy = instead_of_file(folder, "name the directory of a run, such as runs/latest, while it goes on")
        raise UsageError(f"{folder}: {why}; {remedy}") from error
