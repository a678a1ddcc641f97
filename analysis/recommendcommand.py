"""`inferload recommend`: which variant for which aim, from measured runs."""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from inferload import prices, rundir
from inferload.errors import UsageError

_DESCRIPTION = """Fills a decision matrix from measured data: lowest TTFT, highest throughput, most users within an SLO, least
memory, lowest cost, balanced; with the gain over the baseline, its interval, and what it costs on the other axes. Give a
sweep's folder, or a folder of runs for each variant, the baseline first; NAME=PATH names one."""


def register(subparsers: Any) -> None:
    """Add the sub-command."""
    parser = subparsers.add_parser(
        "recommend",
        help="which variant for which aim, from measured runs",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("paths", nargs="+", metavar="SWEEP|RUNS", help="a sweep's folder, or [NAME=]PATH of each variant's runs")
    add(
        "--search",
        action="append",
        default=[],
        metavar="[NAME=]DIR",
        help="what inferload search found of variant NAME; repeatable",
    )
    add("--format", choices=("text", "markdown", "json"), default="text", help="of what is printed (%(default)s)")
    add("--write", type=Path, default=None, metavar="DIR", help="also write recommendation.md, .json and .html there")
    prices.add_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print, and write where that is wanted."""
    from . import recommendsearch
    from .comparison.output import write_forms
    from .comparison.sides import priced
    from .recommend import recommend
    from .recommendpage import page
    from .recommendtext import json_text, markdown, text

    named = prices.from_options(arguments)
    by_scenario = _sides(arguments.paths)
    searches = [recommendsearch.read(given) for given in arguments.search]
    recommendsearch.check(searches, sorted({side.label for sides in by_scenario.values() for side in sides}))
    found = [recommend(name, [priced(side, named) for side in sides]) for name, sides in by_scenario.items()]
    if searches:  # of scenarios of their own, so they stand once
        found[0] = replace(
            found[0], advice=(*found[0].advice, *recommendsearch.advise(searches, found[0].baseline.label))
        )
    shown = {
        "text": "\n".join(text(one) for one in found),
        "markdown": "\n".join(markdown(one) for one in found),
        "json": json_text(found),
    }
    print(shown[arguments.format], end="")
    if arguments.write is not None:
        write_forms(
            arguments.write, "recommendation", {"md": shown["markdown"], "json": shown["json"], "html": page(found)}
        )
    return 0


def _sides(paths: list[str]) -> dict[str, list[Any]]:
    """Sides by scenario: of a sweep's folder each of its scenarios, else all that was named as one."""
    from .comparison import sweepfolder
    from .comparison.output import named_side
    from .comparison.sides import NAMES
    from .comparison.tables import BLOCK_NAMES

    names = tuple(dict.fromkeys((*NAMES, *BLOCK_NAMES)))
    for given in paths:
        if (Path(given.partition("=")[2] or given) / rundir.SEARCH).is_file():
            raise UsageError(f"{given}: a search; give it as --search NAME=DIR beside the runs of the variant NAME")
    if len(paths) == 1 and sweepfolder.is_sweep(Path(paths[0])):
        return sweepfolder.read(Path(paths[0]), names)
    sides = [named_side(given, names) for given in paths]
    labels = [side.label for side in sides]
    for given, label in zip(paths, labels, strict=True):
        if labels.count(label) > 1:
            raise UsageError(f"{given}: several variants are called {label}; name each by itself: LABEL={given}")
    return {sides[0].runs[0].scenario or "runs": sides}
