"""`inferload compare`: a baseline against candidates, from run directories or other clients' result files."""

import argparse
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from inferload.errors import UsageError
from inferload.results import ci, prices
from inferload.results.cost import UNPRICED, Prices
from inferload.verdict.gates import GateError

EXIT_REGRESSED = 4

_PRINT = Path("-")

_DESCRIPTION = """Compares configurations by pairs of runs under the same schedule (the same scenario and seed). Each of BASE and
CAND is a run directory, a folder of run directories (repeats), or a result file of vllm bench serve, AIPerf, GuideLLM or
genai-bench; NAME=PATH gives it a name."""

_EPILOG = """A verdict needs pairs: at least 3 runs a side with seeds that match, each on a server start of its own; 6 or more are
wanted. With fewer the difference is shown and not judged. With --baseline FILE, made by `inferload baseline add`, the candidate
is held against 8 earlier occasions or more instead. Exit codes: 0 compared; 2 cannot be read; 4 when
--max-change was exceeded, or with --fail-on-regression when a figure became worse, with --strict also when nothing could be
judged."""


def register(subparsers: Any) -> None:
    """Add the sub-command."""
    parser = subparsers.add_parser(
        "compare",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "sides",
        nargs="+",
        metavar="SIDE",
        help="[NAME=]PATH each: BASE, which the others are held against, unless --baseline names it; then CAND...",
    )
    add("--baseline", default=None, metavar="FILE", help="a baseline of earlier occasions, or [NAME=]PATH of a side")
    add("--primary", default=None, metavar="FIGURE", help="the figure that decides, as in a gate (mean(ttft_ms))")
    add(
        "--class",
        dest="class_name",
        default=None,
        metavar="CLASS",
        help="compare the turns of one class of a mix, as with a run of that class alone (inferload run --only CLASS)",
    )
    add("--allow", action="append", default=[], metavar="KEY", help="a key of the scenario that is meant to differ")
    add(
        "--format",
        choices=("text", "markdown", "json", "junit", "block"),
        default="text",
        help="of what is printed (%(default)s); block: an A/B block, metric by metric",
    )
    add(
        "--write",
        type=Path,
        default=None,
        metavar="DIR",
        help="also write comparison.md, .html, .json and .xml (JUnit) there",
    )
    add("--junit", type=Path, default=None, metavar="FILE", help="also write JUnit XML there")
    add(
        "--markdown",
        nargs="?",
        type=Path,
        const=_PRINT,
        default=None,
        metavar="FILE",
        help="also write Markdown for a pull request there; without FILE print it instead of the text",
    )
    add(
        "--github",
        action="store_true",
        help="annotations for GitHub, and the Markdown in its step summary (default: where GITHUB_ACTIONS=true)",
    )
    prices.add_options(parser)
    add(
        "--max-change",
        action="append",
        default=[],
        metavar="LIMIT",
        help=f"exit with {EXIT_REGRESSED} if a figure changed by more, as 'p95(ttft_ms) +15%%' or 'turns_per_s -5%%'; not "
        "statistical: compares two single values; repeatable",
    )
    add("--fail-on-regression", action="store_true", help=f"exit with {EXIT_REGRESSED} when a figure became worse")
    add("--strict", action="store_true", help="with it: also when no verdict could be given")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Compare, print, and judge; the exit code."""
    from ..comparison import max_change, page, tables
    from ..comparison import text as said
    from ..comparison.baselines import candidate as as_occasion
    from ..comparison.baselines import is_baseline, read
    from ..comparison.compare import compare, compare_with_occasions
    from ..comparison.output import named_side, write_forms
    from ..comparison.sides import NAMES, of_class, priced
    from ..data.figures import ALL, DEFAULT_PRIMARY, figure

    try:
        primary = figure(arguments.primary or DEFAULT_PRIMARY)
    except GateError as error:
        raise UsageError(f"--primary {arguments.primary}: {error}") from error
    limits = [max_change.parse(text) for text in arguments.max_change]
    names = tuple(dict.fromkeys((primary.name, *NAMES, *tables.BLOCK_NAMES, *(limit.name for limit in limits))))
    named = prices.from_options(arguments)
    given = [*([] if arguments.baseline is None else [arguments.baseline]), *arguments.sides]
    if len(given) < 2:
        raise UsageError(f"compare: {given[0]} alone is nothing to compare; name a candidate too")
    learned = is_baseline(Path(given[0]))
    baseline = priced(read(Path(given[0])) if learned else named_side(given[0], names), named)
    candidates = [priced(named_side(one, names), named) for one in given[1:]]
    if arguments.class_name is not None:
        _check_class(learned, named)
        baseline, *candidates = (of_class(side, arguments.class_name, names) for side in (baseline, *candidates))
    if learned:
        occasions = [as_occasion(side, baseline) for side in candidates]
        comparisons = [compare_with_occasions(baseline, one, primary, ALL, arguments.allow) for one in occasions]
    else:
        comparisons = [compare(baseline, candidate, primary, ALL, arguments.allow) for candidate in candidates]
    comparisons = [
        replace(
            one,
            limits=tuple(
                max_change.check(limit, one.baseline, one.candidate, one.differences.refusals) for limit in limits
            ),
        )
        for one in comparisons
    ]
    forms = {"text": said.text, "markdown": said.markdown, "json": said.json_text, "junit": said.junit}
    wanted = "markdown" if arguments.markdown == _PRINT else arguments.format
    sides = [baseline, *candidates]
    print(tables.ab_block(sides) if wanted == "block" else forms[wanted](comparisons), end="")
    if arguments.write is not None:
        written = {"md": said.markdown, "json": said.json_text, "xml": said.junit, "html": page.of_comparisons}
        write_forms(arguments.write, "comparison", {suffix: form(comparisons) for suffix, form in written.items()})
    if arguments.junit is not None:
        ci.write_file("--junit", arguments.junit, said.junit(comparisons))
    if arguments.markdown not in (None, _PRINT):
        ci.write_file("--markdown", arguments.markdown, said.markdown(comparisons))
    if arguments.github or os.environ.get("GITHUB_ACTIONS") == "true":
        ci.annotate(said.annotations(comparisons), said.markdown(comparisons), "inferload compare")
    if any(not checked.passed for one in comparisons for checked in one.limits):
        return EXIT_REGRESSED
    if not arguments.fail_on_regression:
        return 0
    judged = all(one.tested for one in comparisons)
    failed = any(one.regressed for one in comparisons) or (arguments.strict and not judged)
    return EXIT_REGRESSED if failed else 0


def _check_class(learned: bool, named: Prices) -> None:
    if learned:
        raise UsageError("--class: a baseline file has figures of all classes only; name run directories")
    if named != UNPRICED:
        raise UsageError("--class: cost is known of all classes together only; leave --class or the prices out")
