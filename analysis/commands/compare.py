"""`inferload compare`: compare a baseline with candidates, from run directories or result files of other clients."""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inferload.base.errors import UsageError
from inferload.base.status_lines import progress
from inferload.campaign import decision
from inferload.campaign.decision import EXIT_REGRESSED
from inferload.figures.limits.gate import GateError
from inferload.results import ci, ci_texts, prices
from inferload.results.prices import UNPRICED
from inferload.scenario import language

if TYPE_CHECKING:
    from ..comparison.compare import Comparison
    from ..comparison.sides import Side

_PRINT = Path("-")

_DESCRIPTION = """Compare configurations by pairs of runs under the same schedule (the same scenario and seed). Each of BASE and
CAND is a run directory, a folder of run directories (repeats) or of a search, or a result file of vllm bench serve, SGLang
bench_serving, AIPerf, GuideLLM, genai-bench, inference-perf, EvalScope or llm-d-benchmark; NAME=PATH gives it a name (long names of
directories are shortened, with a table of them), and FILE:N is the result N of a file with several."""

_EPILOG = """\
Examples:
  inferload compare runs/old runs/new
  inferload compare before=runs/a after=runs/b --fail-on-regression
  inferload compare runs/old runs/new --max-change "p95(ttft_ms) +15%" --markdown
  inferload compare base.json runs/new --require "p99(ttft_ms) < 300" --write comparison
A verdict requires at least 3 pairs of runs with equal seeds; 6 or more are recommended. With fewer the difference is
printed without a verdict. If the runs of a side share a server start, the verdict holds for these starts, and the output names
them. With --baseline FILE (`inferload baseline add`) the candidate is tested against 8 or more earlier occasions instead. Exit
codes: 0 compared; 2 usage, unreadable file, or a rehearsal against a measurement; 4 --max-change exceeded, or with
--fail-on-regression a figure became worse, more turns failed (also with a single pair), or only the candidate did not serve its
load; with --strict also no verdict, or one that holds for these server starts only."""


def register(subparsers: Any) -> None:
    parser = subparsers.add_parser("compare", description=_DESCRIPTION, epilog=_EPILOG)
    add = parser.add_argument
    add("sides", nargs="+", metavar="SIDE", help="[NAME=]PATH: BASE (unless --baseline names it), then CAND...")
    add("--baseline", metavar="FILE", help="baseline file of earlier occasions, or [NAME=]PATH of a side")
    decision.add_options(add)
    add(
        "--class",
        dest="class_names",
        action="append",
        default=[],
        metavar="CLASS",
        help="compare the turns of one class of a mix, also with a run of that class only (inferload run --only CLASS); "
        "repeatable: each class on the sides that have it, and which class loses most",
    )
    add(
        "--allow",
        action="append",
        default=[],
        metavar="KEY",
        help="key of the scenario that may differ, or locustfile; repeatable",
    )
    add(
        "--concurrency",
        type=int,
        metavar="N",
        help="limit on concurrent requests of results that do not state it, for the check by Little's law",
    )
    add(
        "--max-change",
        action="append",
        default=[],
        metavar="LIMIT",
        help=f"exit with {EXIT_REGRESSED} if a figure changed by more than LIMIT: 'p95(ttft_ms) +15%%' or 'turns_per_s -5%%'; not "
        "statistical: compares two values without their spread; repeatable",
    )
    _add_outputs(add)
    prices.add_options(parser)
    language.add_option(add)
    parser.set_defaults(run=run)


def _add_outputs(add: Callable[..., Any]) -> None:
    add(
        "--format",
        choices=("text", "markdown", "json", "junit", "block"),
        default="text",
        help="output format (%(default)s); block: one row per metric",
    )
    add("--write", type=Path, metavar="DIR", help="also write comparison.md, .html, .json and .xml (JUnit) to DIR")
    add("--junit", type=Path, metavar="FILE", help="also write JUnit XML to FILE")
    add(
        "--markdown",
        nargs="?",
        type=Path,
        const=_PRINT,
        metavar="FILE",
        help="also write Markdown for a pull request to FILE; without FILE print it instead of the text",
    )
    add(
        "--github",
        action="store_true",
        help="GitHub annotations, and the Markdown as step summary (default: if GITHUB_ACTIONS=true)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Compare, print and write files; return the exit code."""
    comparisons = _compared(arguments)
    _output(arguments, comparisons)
    if any(not limit.passed for comparison in comparisons for limit in comparison.limits):
        return EXIT_REGRESSED
    if not arguments.fail_on_regression:
        return 0
    refused = [text for comparison in comparisons if (text := _refused(comparison))] if arguments.strict else []
    for text in refused:
        print(f"inferload: --strict: {text}", file=sys.stderr)
    return EXIT_REGRESSED if refused or any(comparison.regressed for comparison in comparisons) else 0


def _refused(comparison: "Comparison") -> str:
    """Return the reason why --strict refuses a comparison; empty if it does not."""
    if not comparison.tested:
        return f"{comparison.candidate.label}: no verdict: {comparison.primary.untested}"
    if (condition := comparison.condition) is None:
        return ""
    return f"{comparison.candidate.label}: the verdict holds for {condition.holds_for} only"


def _sides(
    arguments: argparse.Namespace, names: tuple[str, ...]
) -> "tuple[bool, Sequence[tuple[str, Sequence[Side]]]]":
    """Read the sides with these figures. Return whether the first is a baseline file, and the sides by class ("": all together)."""
    from ..comparison import baselines, classes
    from ..comparison.comparable import distinct, shortened
    from ..comparison.read_sides import expanded, named_side
    from ..comparison.sides import priced, with_concurrency

    overrides = prices.from_options(arguments)
    named = [*([] if arguments.baseline is None else [arguments.baseline]), *arguments.sides]
    paths = [path for each in named for path in expanded(each)]
    if len(paths) < 2:
        raise UsageError(f"compare: {paths[0]}: no candidate; name one (inferload report prints a sweep or a study)")
    has_occasions = baselines.is_baseline(Path(paths[0]))
    if has_occasions and arguments.require:
        raise UsageError(
            "--require: with a baseline file no side is named the best; use --max-change, or name run directories"
        )
    sides = [baselines.read(Path(paths[0])) if has_occasions else named_side(paths[0], names)]
    sides += [named_side(path, names) for path in progress.of(paths[1:], "reading sides", len(paths) - 1)]
    sides = [with_concurrency(priced(side, overrides), arguments.concurrency) for side in shortened(distinct(sides))]
    by_class: Sequence[tuple[str, Sequence[Side]]] = [("", sides)]
    if arguments.class_names:
        if has_occasions:
            raise UsageError("--class: a baseline file has no figures by class; name run directories")
        if overrides != UNPRICED:
            raise UsageError("--class: cost is known for all classes together only; omit --class or the prices")
        by_class = classes.by_class(sides, dict.fromkeys(arguments.class_names), names)
    return has_occasions, by_class


def _compared(arguments: argparse.Namespace) -> "list[Comparison]":
    from ..comparison import baselines, classes, max_change, requirements
    from ..comparison.ab_questions import question
    from ..comparison.arms import by_arm
    from ..comparison.comparable import different_clocks
    from ..comparison.compare import compare, compare_with_occasions
    from ..comparison.output import tables
    from ..comparison.sides import NAMES
    from ..data.figures import ALL, figure, primary_of

    required = requirements.parse(arguments.require)
    if arguments.concurrency is not None and arguments.concurrency < 1:
        raise UsageError(f"--concurrency {arguments.concurrency}: must be 1 or more")
    try:
        primary = figure(arguments.primary) if arguments.primary else primary_of(required)
    except GateError as error:
        raise UsageError(f"--primary {arguments.primary}: {error}") from error
    limits = [max_change.parse(text) for text in arguments.max_change]
    others = (*ALL, classes.ATTAINED) if len(arguments.class_names) > 1 else ALL
    of_options = [*(term.name for term in (primary, *others)), *(limit.name for limit in limits)]
    has_occasions, by_class = _sides(arguments, tuple(dict.fromkeys([*of_options, *NAMES, *tables.BLOCK_NAMES])))
    comparisons: list[Comparison] = []
    for class_name, baseline, side in (
        (name, baseline, side)
        for name, of_name in by_class
        for baseline, *candidates in by_arm(of_name)
        for side in candidates
    ):
        if different := different_clocks(baseline, side):
            raise UsageError(f"compare: {different}")
        if has_occasions:
            occasion = baselines.candidate(side, baseline)
            found = compare_with_occasions(baseline, occasion, primary, ALL, arguments.allow)
        else:
            found = compare(baseline, side, primary, others, arguments.allow)
            found = replace(found, question=None if arguments.class_names else question(found))
        reasons = found.differences.reasons
        checked = [max_change.check(each, *found.paired, reasons(each.name)) for each in limits]
        comparisons.append(replace(found, required=required, limits=tuple(checked), class_name=class_name))
    return comparisons


def _output(arguments: argparse.Namespace, comparisons: "list[Comparison]") -> None:
    from ..comparison.output import documents, text

    forms = {
        "text": text.text,
        "block": text.block,
        "markdown": text.markdown,
        "json": documents.json_text,
        "junit": documents.junit,
    }
    output = "markdown" if arguments.markdown == _PRINT else arguments.format
    print(forms[output](comparisons), end="")
    if arguments.write is not None:
        from ..comparison.output import page

        files = {"md": text.markdown, "json": documents.json_text, "xml": documents.junit, "html": page.of_comparisons}
        for suffix, form in files.items():
            ci.write_file("--write", arguments.write / f"comparison.{suffix}", form(comparisons))
    if arguments.junit is not None:
        ci.write_file("--junit", arguments.junit, documents.junit(comparisons))
    if arguments.markdown not in (None, _PRINT):
        ci.write_file("--markdown", arguments.markdown, text.markdown(comparisons))
    if arguments.github or os.environ.get("GITHUB_ACTIONS") == "true":
        ci_texts.annotate(text.annotations(comparisons), text.markdown(comparisons), "inferload compare")
