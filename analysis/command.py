"""`inferload report`: pages and tables from a run directory."""

import argparse
from pathlib import Path
from typing import Any


def register(subparsers: Any) -> None:
    """Add the sub-command."""
    parser = subparsers.add_parser(
        "report",
        help="make timeline.csv, report.md and report.html of a run",
        description="Writes timeline.csv, report.md and report.html into each run directory. Numbers are those of the "
        "run's summary.json; a run that was cut short gets a report that says so.",
    )
    parser.add_argument("run_dirs", nargs="+", type=Path, metavar="RUN", help="run directory")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Make the reports; 0 whatever their verdict is, since it is the run's own exit code that judges."""
    from .report import make  # pandas takes a second: not in the way of the other commands

    for run_dir in arguments.run_dirs:
        report = make(run_dir)
        print(f"{report.verdict}\n  {report.html}\n  {report.markdown}\n  {report.timeline}")
    return 0
