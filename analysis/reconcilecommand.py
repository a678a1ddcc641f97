"""`inferload reconcile`: where the time of a turn went, and whether client and server agree."""

import argparse
from pathlib import Path
from typing import Any


def register(subparsers: Any) -> None:
    """Add the sub-command."""
    parser = subparsers.add_parser(
        "reconcile",
        help="where the time of a turn went, and whether both sides' books agree",
        description="Divides each turn's time into client lag, upload, front end and network, queue, prefill and decode, "
        "and holds requests, tokens and Little's law against the server's counters. Of another client's result file, "
        "whether its figures can be true.",
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN|FILE", help="run directory, or a result file")
    parser.add_argument("--json", action="store_true", help="everything, as reconcile.json has it")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print each; 0 whatever it comes to."""
    from .frames import load
    from .reconcilechecks import of_imported, reconcile
    from .reconciletext import checks_text, json_text, text

    for path in arguments.runs:
        if path.is_file():
            print("\n".join([f"{path}: whether its figures can be true", *checks_text(of_imported(path))]))
            continue
        found = reconcile(load(path))
        print(json_text(found) if arguments.json else text(str(path), found), end="" if arguments.json else "\n")
    return 0
