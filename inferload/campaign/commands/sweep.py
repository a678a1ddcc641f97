"""`inferload sweep`: runs of variants x scenarios x pairs, and a comparison."""

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from inferload.base import rundir
from inferload.base.errors import UsageError
from inferload.base.escaping import markdown, own_command
from inferload.base.numbers import plural
from inferload.base.status_lines import plain_environment
from inferload.campaign import decision, equal_sides, runner
from inferload.campaign.journal import Journal, alone, made_folder, unused_folder
from inferload.campaign.pairs import MAX_PAIRS
from inferload.campaign.signals import interrupted, signals_interrupt
from inferload.campaign.sweep import definition, preconditions, time_estimate
from inferload.campaign.sweep.definition import PLAN, Sweep
from inferload.campaign.sweep.plan import ServerStart, outlook, servers_text, starts
from inferload.campaign.sweep.runner import SweepRunner, clear_up
from inferload.deploy.commands.variants import prose
from inferload.deploy.launcher.launch import ProgressCallback, to_stderr
from inferload.deploy.servers.engines import ENGINES
from inferload.deploy.variants.variant import label
from inferload.figures import table
from inferload.results import prices
from inferload.results.prices import UNPRICED, Prices
from inferload.scenario import language
from inferload.scenario.files import typed_yaml

_EPILOG = """\
Examples:
  inferload sweep tiny --dry-run  # plan and detectable change
  inferload sweep mine.yaml
  inferload sweep --resume runs/20261121T101500Z-tiny
The runs of a pair have the same seed and a random order of variants. Run
directories are kept; inferload compare reads the folder of a variant as one
side. Ctrl-C and TERM stop the current run and server; --resume continues. Exit
codes: 0 all runs completed; 1 some failed; 2 usage error; 130, 143 interrupted."""


def register(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "sweep",
        description="Run variants x scenarios x pairs, and compare the variants with a baseline.",
        epilog=_EPILOG,
    )
    add = parser.add_argument
    add("file", nargs="?", type=Path, metavar="FILE", help="a sweep file, or the name of a bundled sweep")
    add("--resume", type=Path, metavar="DIR", help="continue an interrupted sweep")
    add("--no-retry", action="store_true", help="with --resume: skip runs that failed before")
    add("--into", type=Path, metavar="DIR", help="output folder (default: runs/<UTC time>-<name>)")
    add("--engine", choices=list(ENGINES), help="engine of the servers (default: of the file)")
    of_all = "change an argument of all variants; repeatable"
    add("--set", action="append", default=[], metavar="FLAG=VALUE", help=of_all)
    rehearsed = "virtual: rehearse the sweep on a clock that jumps to the next event; engine simulator only"
    add("--clock", choices=("real", "virtual"), help=f"{rehearsed} (default: of the file)")
    add("--pairs", type=int, metavar="N", help="number of pairs (default: of the file)")
    prices.add_options(parser)
    add("--dry-run", action="store_true", help="show the plan only")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run a sweep and compare the variants. Return the exit code."""
    price_options = prices.from_options(arguments)
    sweep, folder = _sweep_and_folder(arguments)
    sweep = sweep.priced(price_options)
    retry = arguments.resume is not None and not arguments.no_retry
    print("\n".join(_summary_lines(sweep, outline(sweep, folder, retry))), flush=True)
    if arguments.dry_run:
        return 0
    folder = made_folder(folder, new=arguments.into is None and arguments.resume is None)
    try:
        with signals_interrupt():
            completed = execute(sweep, folder, retry, price_options)
    except KeyboardInterrupt as interrupt:
        return interrupted(interrupt, own_command("sweep", "--resume", folder))
    print(f"{folder / 'index.md'}")
    return 0 if completed else 1


def outline(sweep: Sweep, folder: Path, retry: bool) -> str:
    """Describe the runs of a sweep, its servers and the time left. `retry`: failed runs are repeated."""
    loads = sweep.loads()
    plan = starts(sweep, list(loads))
    times = {name: time_estimate.planned(sweep, load) for name, load in loads.items()}
    remaining = time_estimate.remaining_text(plan, Journal(folder), times, sweep.engine, retry)
    return f"{plural(sum(len(start.runs) for start in plan), 'run')} on {servers_text(sweep, plan)}, {remaining}"


def execute(
    sweep: Sweep,
    folder: Path,
    retry: bool,
    price_options: Prices = UNPRICED,
    *,
    progress: ProgressCallback = to_stderr,
    show: bool = True,
) -> bool:
    """Run the remaining runs of a sweep in a folder, compare the variants and write its pages.

    `retry`: repeat failed runs. `show`: print comparisons and paths, and not problems alone. Return True if all runs and
    comparisons succeeded.
    """
    loads = sweep.loads()
    plan = starts(sweep, list(loads))
    with alone(folder):
        journal = _open_journal(sweep, folder, plan, retry)
        SweepRunner(sweep, folder, loads, journal, progress).perform(plan)
        compared = [_compare(sweep, folder, name, price_options, show) for name in loads if sweep.others]
        _index(folder, sweep, journal, list(loads))
        _page(folder, show)
        return not journal.failures and all(compared)


def _open_journal(sweep: Sweep, folder: Path, plan: Sequence[ServerStart], retry: bool) -> Journal:
    """Open the journal, end processes of an earlier sweep, and print the progress."""
    if not (folder / PLAN).exists():
        rundir.write_text(folder / PLAN, typed_yaml.to_text(sweep.with_digests()))
    journal = Journal(folder)
    clear_up(journal)
    retried = journal.retry() if retry else 0
    runs = [run for start in plan for run in start.runs]
    completed = sum(journal.outcome(run.folder) is not None for run in runs)
    if completed or retried:
        retried_text = f"; retried after a failure: {retried}" if retried else ""
        print(f"  runs done: {completed} of {len(runs)}{retried_text}", flush=True)
    return journal


def _sweep_and_folder(arguments: argparse.Namespace) -> tuple[Sweep, Path]:
    if arguments.resume is not None:
        given = ("pairs", "into", "engine", "clock", "set")
        if names := [f"--{name}" for name in given if getattr(arguments, name) not in (None, [])]:
            raise UsageError(f"{', '.join(names)}: not with --resume; remove {'it' if len(names) == 1 else 'them'}")
        plan_file = arguments.resume / PLAN
        if arguments.file is not None:
            raise UsageError(f"--resume {arguments.resume}: the folder has its own file; remove FILE")
        if not plan_file.is_file():
            raise UsageError(f"--resume {arguments.resume}: contains no sweep; give the folder of a sweep")
        sweep = definition.load(plan_file)
        check_unchanged(sweep, arguments.resume)
        return sweep, arguments.resume
    if arguments.no_retry:
        raise UsageError("--no-retry: needs --resume DIR")
    if arguments.file is None:
        raise UsageError("sweep: needs FILE or --resume DIR")
    sweep = definition.load(arguments.file)
    if arguments.pairs is not None and not 1 <= arguments.pairs <= MAX_PAIRS:
        raise UsageError(f"--pairs {arguments.pairs}: must be 1 to {MAX_PAIRS}")
    changes: dict[str, Any] = {
        "engine": arguments.engine or sweep.engine,
        "clock": arguments.clock or sweep.clock,
        "pairs": arguments.pairs or sweep.pairs,
        "set": (*sweep.set, *arguments.set),
    }
    if changes["engine"] != "running":
        changes["hosts"] = {}  # those of the file are of servers that run already
    sweep = definition.with_changes(sweep, changes, str(arguments.file))
    for line in preconditions.check(sweep):
        print(f"inferload: {line}", file=sys.stderr)
    return sweep, unused_folder(arguments.into, sweep.name)


def check_unchanged(sweep: Sweep, folder: Path) -> None:
    """Raise UsageError if a variant of the sweep has changed since its start."""
    if changed := sweep.changed_variants:
        raise UsageError(
            f"--resume {folder}: variant {changed[0]} has changed since the sweep started; "
            "undo the change, or start a new sweep"
        )


def _summary_lines(sweep: Sweep, runs: str) -> list[str]:
    others = f"{plural(len(sweep.others), 'variant')} against {sweep.baseline}"
    sides = others if sweep.others else f"{sweep.baseline} alone"
    lines = [f"sweep {sweep.name}: {sides} on {', '.join(sweep.loads())}"]
    lines += [*prose("  ", runs), *prose("  ", outlook(sweep))]
    for name in sweep.others:
        difference = sweep.variant(name).difference(sweep.variant(sweep.baseline))
        lines += prose(f"  {name}: ", "; ".join(difference) or "the same as the baseline")
    return lines + [line for words in equal_sides.of_sweep(sweep) for line in prose("  ", str(words))]


def _compare(sweep: Sweep, folder: Path, scenario: str, price_options: Prices, show: bool) -> bool:
    """Run `inferload compare` for a scenario, and print what it prints, or its error; return True on success."""
    labels = [label(name) for name in sweep.all_variants]
    sides = [name for name in labels if any((folder / scenario / name).glob("[0-9]*/summary.json"))]
    if labels[0] not in sides or len(sides) < 2:
        print(f"{scenario}: not compared: no run of {labels[0] if labels[0] not in sides else 'a variant'}")
        return False
    paths = {name: folder / scenario / name for name in sides}
    more = ["--lang", language.current(), *prices.to_argv(price_options)]
    argv = decision.compare_command(paths, folder / "comparison" / scenario, sweep.primary, sweep.require, more)
    process = subprocess.run(argv, text=True, capture_output=True, check=False, env=plain_environment())
    if show or process.returncode:
        print(f"\n== {scenario} ==\n{process.stdout or process.stderr}")
    return process.returncode == 0


def _index(folder: Path, sweep: Sweep, journal: Journal, names: Sequence[str]) -> None:
    facts = [outlook(sweep), *map(str, equal_sides.of_sweep(sweep))]
    lines = [f"# Sweep {markdown(sweep.name)}", *(line for fact in facts for line in ("", markdown(fact) + ".")), ""]
    missing = "The comparison failed." if sweep.others else "There is no other variant to compare."
    for name in names:
        comparison = folder / "comparison" / name / "comparison.md"
        shown = comparison.read_text(encoding="utf-8") if comparison.is_file() else missing
        lines += [f"## {markdown(name)}", "", shown, ""]
    if journal.failures:
        rows = [(entry.folder, " ".join(str(entry.cause).split())) for entry in journal.failures]
        lines.append(table.markdown(table.Table("failures", "Failed runs", ("run", "cause"), rows)))
    (folder / "index.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _page(folder: Path, show: bool) -> None:
    process = runner.report(folder)
    if show or process.returncode:
        print(f"\n{process.stdout.strip().rpartition('  ')[2] if process.returncode == 0 else process.stderr.strip()}")
