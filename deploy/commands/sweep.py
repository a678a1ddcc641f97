"""`inferload sweep`: variants x scenarios x pairs of runs, and one comparison at the end."""

import argparse
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from inferload.campaign.journal import JOURNAL, alone
from inferload.errors import UsageError
from inferload.escaping import markdown
from inferload.numbers import plural
from inferload.results import prices
from inferload.results.cost import Prices
from inferload.scenario import scenario as scenarios
from inferload.scenario.scenario import Scenario

from ..launcher.signals import Terminated, signals_interrupt
from ..sweep import definition, time_estimate
from ..sweep.definition import Sweep, label
from ..sweep.journal import SweepJournal, clear_up
from ..sweep.plan import ServerStart, outlook, starts
from ..sweep.runner import PLAN, Place, SweepRunner
from .variants import prose

_EPILOG = """\
Examples:
  inferload sweep tiny --dry-run        what it would do, and what it can find
  inferload sweep scenarios/studies/tiny.yaml
  inferload sweep --resume runs/20261121T101500Z-tiny
A pair has one seed on all sides and the variants in an order that is drawn;
each run's directory is kept, and inferload compare reads a variant's folder as
one side. Ctrl-C and TERM end the run and the server that are under way, and
--resume goes on. Exit codes: 0 all runs made; 1 some could not be; 2 bad usage;
130, 143 interrupted."""


def register(subparsers: Any) -> None:
    """Add the sub-command."""
    parser = subparsers.add_parser(
        "sweep",
        description="Variants x scenarios x pairs of runs, and one comparison at the end.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", nargs="?", type=Path, metavar="FILE", help="a sweep's file, or a bundled study's name")
    parser.add_argument("--resume", type=Path, metavar="DIR", help="go on with a sweep that was interrupted")
    parser.add_argument("--no-retry", action="store_true", help="with --resume: leave out runs that failed before")
    parser.add_argument("--into", type=Path, metavar="DIR", help="where it is kept (default: runs/<UTC time>-<name>)")
    parser.add_argument("--pairs", type=int, metavar="N", help="instead of the file's")
    prices.add_options(parser)
    parser.add_argument("--dry-run", action="store_true", help="say what it would do, and do nothing")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Plan, say so, do it, compare; the exit code."""
    named = prices.from_options(arguments)
    sweep, folder = _wanted(arguments)
    sweep = sweep.priced(named)
    loaded = {name: scenarios.load(name) for name in sweep.scenarios}
    names = _names(loaded)
    by_name = {names[given]: scenario for given, scenario in loaded.items()}
    plan = starts(sweep, names)
    times = {name: time_estimate.planned(sweep, by_name[name], given) for given, name in names.items()}
    retry = arguments.resume is not None and not arguments.no_retry
    left = time_estimate.left_in_words(plan, SweepJournal(folder), times, sweep.engine, retry)
    print("\n".join(_said(sweep, plan, list(by_name), left)), flush=True)
    if arguments.dry_run:
        return 0
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--into {folder}: {error.strerror}; name a folder that can be written") from error
    try:
        with alone(folder), signals_interrupt():
            journal = _begun(sweep, folder, plan, retry)
            place = Place(folder, {name: given for given, name in names.items()})
            SweepRunner(sweep, place, journal, lambda text: print(text, file=sys.stderr, flush=True)).perform(plan)
            compared = [_compare(sweep, folder, name, named) for name in by_name]
            _index(folder, sweep, journal, list(by_name))
            _page(folder)
    except KeyboardInterrupt as interrupt:
        print(f"interrupted; go on with: inferload sweep --resume {folder}", file=sys.stderr)
        return 128 + (interrupt.args[0] if isinstance(interrupt, Terminated) else signal.SIGINT)
    print(f"{folder / 'index.md'}")
    return 1 if journal.failures or not all(compared) else 0


def _begun(sweep: Sweep, folder: Path, plan: Sequence[ServerStart], retry: bool) -> SweepJournal:
    """The sweep's journal, with what an earlier process left behind cleared up; says what is left to do."""
    if not (folder / PLAN).exists():
        whole = folder / f"{PLAN}.part"
        whole.write_text(definition.to_text(sweep), encoding="utf-8")
        whole.replace(folder / PLAN)
    journal = SweepJournal(folder)
    clear_up(journal)
    again = journal.retry() if retry else 0
    runs = [run for start in plan for run in start.runs]
    made = sum(journal.outcome(run.folder) is not None for run in runs)
    if made or again:
        tried = f"; tried again, as they could not be made: {again}" if again else ""
        print(f"  runs done: {made} of {len(runs)}{tried}", flush=True)
    return journal


def _wanted(arguments: argparse.Namespace) -> tuple[Sweep, Path]:
    if arguments.resume is not None:
        kept = arguments.resume / PLAN
        if not kept.is_file() or arguments.file is not None:
            why = "no sweep was begun there" if arguments.file is None else "the folder knows its file; leave FILE out"
            raise UsageError(f"--resume {arguments.resume}: {why}")
        return definition.load(kept), arguments.resume
    if arguments.no_retry:
        raise UsageError("--no-retry: goes with --resume DIR")
    if arguments.file is None:
        raise UsageError("sweep: name a FILE, or --resume DIR")
    sweep = definition.load(arguments.file)
    if arguments.pairs is not None:
        if not 1 <= arguments.pairs <= definition.MOST_PAIRS:
            raise UsageError(f"--pairs {arguments.pairs}: from 1 to {definition.MOST_PAIRS}")
        sweep = sweep.model_copy(update={"pairs": arguments.pairs})
    folder = arguments.into or Path("runs") / f"{datetime.now(UTC).strftime('%Y%m%dT%H%M%SZ')}-{sweep.name}"
    if (folder / JOURNAL).exists():
        raise UsageError(f"{folder}: a sweep was begun there; --resume {folder}, or another folder with --into")
    return sweep, folder


def _names(loaded: Mapping[str, Scenario]) -> dict[str, str]:
    """A folder's name for each scenario; UsageError where two have the same."""
    names = {given: scenario.name for given, scenario in loaded.items()}
    twice = sorted({name for name in names.values() if list(names.values()).count(name) > 1})
    if twice:
        raise UsageError(f"scenarios: two are called {twice[0]}; give each a name of its own")
    return names


def _said(sweep: Sweep, plan: Sequence[ServerStart], names: Sequence[str], left: str) -> list[str]:
    runs = plural(sum(len(start.runs) for start in plan), "run")
    lines = [
        f"sweep {sweep.name}: {plural(len(sweep.variants), 'variant')} against {sweep.baseline} on {', '.join(names)}",
        *prose("  ", f"{runs} on {plural(len(plan), 'start')} of {sweep.engine}, {left}"),
        *prose("  ", outlook(sweep)),
    ]
    for name in sweep.variants:
        difference = sweep.variant(name).difference(sweep.variant(sweep.baseline))
        lines += prose(f"  {name}: ", "; ".join(difference) or "the same as the baseline")
    return lines


def _compare(sweep: Sweep, folder: Path, scenario: str, named: Prices) -> bool:
    """One comparison of a scenario, by the command that anybody else would use; whether it could be made."""
    labels = [label(name) for name in sweep.everyone]
    sides = [name for name in labels if any((folder / scenario / name).glob("[0-9]*/summary.json"))]
    if labels[0] not in sides or len(sides) < 2:
        print(f"{scenario}: no comparison: {labels[0] if labels[0] not in sides else 'no variant'} has no run")
        return False
    into = folder / "comparison" / scenario
    argv = [sys.executable, "-m", "inferload", "compare", *(f"{name}={folder / scenario / name}" for name in sides)]
    argv += ["--primary", sweep.primary, "--write", str(into), *prices.to_argv(named)]
    done = subprocess.run(argv, text=True, capture_output=True, check=False)
    print(f"\n== {scenario} ==\n{done.stdout or done.stderr}")
    return done.returncode == 0


def _index(folder: Path, sweep: Sweep, journal: SweepJournal, names: Sequence[str]) -> None:
    lines = [f"# Sweep {markdown(sweep.name)}", "", markdown(outlook(sweep)) + ".", ""]
    for name in names:
        made = folder / "comparison" / name / "comparison.md"
        lines += [
            f"## {markdown(name)}",
            "",
            made.read_text(encoding="utf-8") if made.is_file() else "No comparison could be made.",
            "",
        ]
    if journal.failures:
        lines += ["## Runs that could not be made", "", "| run | cause |", "|:---|:---|"]
        lines += [
            f"| {markdown(entry['folder'])} | {markdown(' '.join(entry['cause'].split()))} |"
            for entry in journal.failures
        ]
    (folder / "index.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _page(folder: Path) -> None:
    """All of it as index.html, by the command that anybody else would use; why not, where it cannot be made."""
    argv = [sys.executable, "-m", "inferload", "report", str(folder)]
    done = subprocess.run(argv, text=True, capture_output=True, check=False)
    print(f"\n{done.stdout.strip().rpartition('  ')[2] if done.returncode == 0 else done.stderr.strip()}")
