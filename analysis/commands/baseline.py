"""`inferload baseline`: figures of one configuration over many days, for comparisons with a single candidate."""

import argparse
from pathlib import Path
from typing import Any

_DESCRIPTION = """Keep a file with the figures of one configuration on many occasions (a run or a folder of runs, each on its own
server start; on a shared start an hour apart and with isolated prefix caches, where a verdict holds for these starts only). From 8
occasions on, `inferload compare --baseline FILE CAND --fail-on-regression` tests a candidate against the variation between
days and restarts."""
_EPILOG = """\
Examples:
  inferload baseline add nightly.json runs/latest
  inferload baseline show nightly.json
  inferload compare --baseline nightly.json runs/latest --fail-on-regression"""


def register(subparsers: Any) -> None:
    parser = subparsers.add_parser("baseline", description=_DESCRIPTION, epilog=_EPILOG)
    actions = parser.add_subparsers(dest="action", required=True, metavar="add | show")
    adds = actions.add_parser(
        "add",
        help="add an occasion for each run",
        description="Add an occasion for each run.",
        epilog="Examples:\n  inferload baseline add nightly.json runs/latest\n",
    )
    adds.add_argument("file", type=Path, metavar="FILE", help="baseline file; created if missing")
    adds.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run directory, or folder of runs on one start")
    shows = actions.add_parser(
        "show",
        help="print a summary of a file",
        description="Print a summary of a baseline file.",
        epilog="Examples:\n  inferload baseline show nightly.json\n",
    )
    shows.add_argument("file", type=Path, metavar="FILE")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from ..comparison.baselines import add, read, summary_lines

    side = add(arguments.file, arguments.runs) if arguments.action == "add" else read(arguments.file)
    print("\n".join(summary_lines(side)))
    return 0
