"""`inferload reconcile`: where the time of a turn went, and whether client and server agree."""

import argparse
import json
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
    parser.add_argument(
        "--json", action="store_true", help="everything, as reconcile.json has it; of several runs an array"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print each; 0 whatever it comes to."""
    from .frames import load
    from .reconcilechecks import of_imported, reconcile
    from .reconciletext import checks_document, checks_text, document, text, verdict_lines

    documents = []
    for path in arguments.runs:
        if path.is_file():
            checks = of_imported(path)
            documents.append({"format": 1, "checks": checks_document(checks)})
            lines = [f"{path}: whether its figures can be true", *checks_text(checks)]
        else:
            frames = load(path)
            found = reconcile(frames)
            documents.append(document(found))
            lines = [*verdict_lines(str(path), frames.summary), text(str(path), found)]
        if not arguments.json:
            print("\n".join(lines))
    if arguments.json:
        shown = documents[0] if len(documents) == 1 else documents
        print(json.dumps(shown, indent=1, ensure_ascii=False, allow_nan=False))
    return 0
