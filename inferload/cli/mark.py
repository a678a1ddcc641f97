"""`inferload mark`: add an event to the run in progress."""

import argparse
from pathlib import Path
from typing import Any

from inferload.base import rundir


def register(commands: Any) -> None:
    parser = commands.add_parser(
        "mark",
        description="Add an event to the run in progress in a directory, now: to marks.jsonl, the report and its charts, "
        "and to the table of phases, with the time to recover. To be called on the machine of the run's master.",
        epilog="Exit code: 0 marked; 2 no run is in progress there.",
    )
    parser.add_argument("folder", metavar="RUN", type=Path, help="run directory, such as runs/latest")
    parser.add_argument("text", metavar="TEXT", help=f"one line of at most {rundir.MARK_CHARACTERS} characters")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Send the mark."""
    rundir.send_mark(arguments.folder, arguments.text)
    return 0
