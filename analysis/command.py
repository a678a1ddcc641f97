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
    parser.add_argument("--png", action="store_true", help="every picture as a PNG file too, in RUN/pictures/")
    parser.add_argument(
        "--minute",
        type=int,
        metavar="N",
        help="the minute of the run whose turns are shown as lanes (default: of the slowest)",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Make the reports; 0 whatever their verdict is, since it is the run's own exit code that judges."""
    from .report import make  # pandas takes a second: not in the way of the other commands

    for run_dir in arguments.run_dirs:
        report = make(run_dir, arguments.minute, arguments.png)
        made = (report.html, report.markdown, report.timeline, *report.pictures)
        print("\n  ".join([report.verdict, *map(str, made)]))
    return 0


def register_diagnose(subparsers: Any) -> None:
    """Add `inferload diagnose`."""
    parser = subparsers.add_parser(
        "diagnose",
        help="what held a run back, by its client and server figures",
        description="Says what held a run back, with the evidence in numbers, and what to try. Needs the server's metrics.",
    )
    parser.add_argument("run_dirs", nargs="+", type=Path, metavar="RUN", help="run directory")
    parser.add_argument("--json", action="store_true", help="everything, as diagnosis.json has it")
    parser.set_defaults(run=run_diagnose)


def run_diagnose(arguments: argparse.Namespace) -> int:
    """Print the diagnosis of each run; 0 whatever it is."""
    from .diagnosis.diagnose import advice, diagnose, json_text, sentences
    from .frames import load

    for run_dir in arguments.run_dirs:
        found = diagnose(load(run_dir))
        if arguments.json:
            print(json_text(found), end="")
            continue
        if not found:
            print(f"{run_dir}: no diagnosis: no server metrics were scraped, or the run has no measure phase")
        for one in found:
            print("\n".join([f"{run_dir}, {one.target}", *(f"  {line}" for line in sentences(one))]))
            for do, why, effects in advice(one):
                print(f"  try {do}: {why} ({effects})")
    return 0
