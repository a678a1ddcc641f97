"""`inferload recommend`: the best variant for each aim, as text, Markdown, JSON and a section of a page."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from inferload import rundir
from inferload.errors import UsageError
from inferload.results import prices

from ..comparison import sweep_folder
from ..comparison.output import named_side, write_forms
from ..comparison.recommend import read_search, recommend, with_searches
from ..comparison.recommend_text import json_text, markdown, page, text
from ..comparison.sides import NAMES, Side, priced

TITLE = "Best variant for each aim"
NOT_MEASURED = "not measured"
NO_DIFFERENCE = "no difference shown"
_NOT_VALID = "NO VALID MEASUREMENT"
DECISIONS = ("aim", "variant", "measured", "gain", "price", "remarks")
STANDINGS = (
    *("variant", "runs", "TTFT, median, ms", "TPOT, ms", "output, tok/s"),
    *("tok/s per user", "tok/s per GPU", "memory, MB", "cost"),
)


def register(subparsers: Any) -> None:
    """Add the sub-command."""
    parser = subparsers.add_parser(
        "recommend",
        description="Names the best variant for each aim: lowest TTFT, highest throughput, most users within an SLO, least "
        "memory, lowest cost, balanced; with its gain over the baseline, the interval of the gain, and the figures that are "
        "worse. Give a sweep's folder, or a folder of runs for each variant, the baseline first; NAME=PATH names a variant.",
    )
    add = parser.add_argument
    add("paths", nargs="+", metavar="SWEEP|RUNS", help="a sweep's folder, or [NAME=]PATH of each variant's runs")
    add(
        "--search",
        action="append",
        default=[],
        metavar="[NAME=]DIR",
        help="result of inferload search for variant NAME; repeatable",
    )
    add("--format", choices=("text", "markdown", "json"), default="text", help="of the output (%(default)s)")
    add("--write", type=Path, default=None, metavar="DIR", help="also write recommendation.md, .json and .html there")
    prices.add_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the recommendations, and write files if --write is given."""
    named = prices.from_options(arguments)
    by_scenario = {name: [priced(side, named) for side in sides] for name, sides in _sides(arguments.paths).items()}
    recommended = [recommend(name, sides) for name, sides in by_scenario.items()]
    # A search names its own scenario, so its aims are listed once.
    recommended[0] = with_searches(recommended[0], [read_search(given) for given in arguments.search])
    forms = {
        "text": "\n".join(map(text, recommended)),
        "markdown": "\n".join(map(markdown, recommended)),
        "json": json_text(recommended),
    }
    print(forms[arguments.format], end="")
    if arguments.write is not None:
        files = {"md": forms["markdown"], "json": forms["json"], "html": page(recommended)}
        write_forms(arguments.write, "recommendation", files)
    return 0


def _sides(paths: Sequence[str]) -> dict[str, list[Side]]:
    """Return the sides by scenario: all scenarios of a sweep's folder, else one scenario with a side for each path."""
    for given in paths:
        if (Path(given.partition("=")[2] or given) / rundir.SEARCH).is_file():
            raise UsageError(f"{given}: a search; give it as --search NAME=DIR beside the runs of the variant NAME")
    if len(paths) == 1 and sweep_folder.is_sweep(Path(paths[0])):
        return sweep_folder.read(Path(paths[0]), NAMES)
    sides = [named_side(given, NAMES) for given in paths]
    labels = [side.label for side in sides]
    for given, label in zip(paths, labels, strict=True):
        if labels.count(label) > 1:
            raise UsageError(f"{given}: several variants are called {label}; name each by itself: LABEL={given}")
    return {sides[0].runs[0].scenario or "runs": sides}
