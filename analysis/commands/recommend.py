"""`inferload recommend`: the best variant for each aim, as text, Markdown, JSON and a section of a page."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from inferload import rundir
from inferload.errors import UsageError
from inferload.results import ci, prices

from ..comparison import sweep_folder
from ..comparison.arms import named_by_arm
from ..comparison.labels import distinct
from ..comparison.recommend import recommend
from ..comparison.recommend_searches import read_search, with_searches
from ..comparison.recommend_text import json_text, markdown, page, text
from ..comparison.sides import NAMES, Side, named_path, named_side, priced


def register(subparsers: Any) -> None:
    """Add the sub-command."""
    parser = subparsers.add_parser(
        "recommend",
        description="Name the best variant for each aim: lowest TTFT, highest throughput, most users within an SLO, least "
        "memory, lowest cost, balanced; with the gain over the baseline, its interval, and the trade-offs. Arguments: the "
        "folder of a sweep, or a folder of runs for each variant, the baseline first; NAME=PATH names a variant.",
    )
    add = parser.add_argument
    add("paths", nargs="+", metavar="SWEEP|RUNS", help="folder of a sweep, or [NAME=]PATH of the runs of each variant")
    add(
        "--search",
        action="append",
        default=[],
        metavar="[NAME=]DIR",
        help="result of inferload search for variant NAME; repeatable",
    )
    add("--format", choices=("text", "markdown", "json"), default="text", help="output format (%(default)s)")
    add("--write", type=Path, metavar="DIR", help="also write recommendation.md, .json and .html to DIR")
    prices.add_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the recommendations, and write files if --write is given."""
    overrides = prices.from_options(arguments)
    by_scenario = {name: [priced(side, overrides) for side in sides] for name, sides in _sides(arguments.paths).items()}
    recommendations = [recommend(name, sides) for name, sides in by_scenario.items()]
    # A search names its own scenario, so its aims are listed once.
    recommendations[0] = with_searches(recommendations[0], [read_search(argument) for argument in arguments.search])
    forms = {
        "text": "\n".join(map(text, recommendations)),
        "markdown": "\n".join(map(markdown, recommendations)),
        "json": json_text(recommendations),
    }
    print(forms[arguments.format], end="")
    if arguments.write is not None:
        files = {"md": forms["markdown"], "json": forms["json"], "html": page(recommendations)}
        for suffix, content in files.items():
            ci.write_file("--write", arguments.write / f"recommendation.{suffix}", content)
    return 0


def _sides(paths: Sequence[str]) -> dict[str, list[Side]]:
    """Read the sides by scenario: all scenarios of a sweep's folder, else a single scenario with a side for each path."""
    for path in paths:
        if (named_path(path)[1] / rundir.SEARCH).is_file():
            raise UsageError(f"{path}: folder of a search; use --search NAME=DIR with the runs of variant NAME")
    if len(paths) == 1 and sweep_folder.is_sweep(folder := Path(paths[0])):
        sides_by_scenario = sweep_folder.read(folder, NAMES)
        if note := sweep_folder.left_out(folder):
            print(f"inferload: {folder}: {note}", file=sys.stderr)
        return sides_by_scenario
    sides = distinct([named_side(path, NAMES) for path in paths])
    return named_by_arm(sides[0].runs[0].scenario or "runs", sides)
