"""`inferload ab`: compare running servers by interleaved pairs of runs."""

import argparse
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from inferload.base.errors import UsageError
from inferload.base.escaping import own_command
from inferload.base.numbers import plural
from inferload.base.run_options import RUN_OPTIONS
from inferload.base.virtual_orders import options_of, server_of
from inferload.campaign import ab, decision, equal_sides, named_code, pairs, runner
from inferload.campaign.ab import DEFAULT_PAIRS, PRESET_PAIRS, PRESETS, AbPlan
from inferload.campaign.journal import Journal, alone, made_folder, unused_folder
from inferload.campaign.runner import Runner
from inferload.campaign.signals import interrupted, signals_interrupt
from inferload.cli import quick_options
from inferload.scenario.files import typed_yaml

# Options of a run that the command sets itself, or that belong to a single run.
_OWN = ("seed", "also_host", "live", "details", "run_dir", "export_metrics", "progress_file", "no_report", "token_file")
PASSED_ON = tuple(option for option in RUN_OPTIONS if option.name not in _OWN)
_EPILOG = """\
Examples:
  inferload ab A=http://old:8000 B=http://new:8000 --scenario chat-open --pairs 8
  inferload ab A=http://old:8000 B=http://new:8000 --scenario smoke --duration 20s --fail-on-regression
  inferload ab --preset gateway direct=http://server:8000 through=http://gateway:8080
  inferload ab --preset router A=http://a:8080 B=http://b:8080 --metrics-url http://s1:8000/metrics --metrics-url http://s2:8000/metrics
  inferload ab --resume runs/20261127T101500Z-ab-chat-open
The runs of a pair have the same seed and schedule, and a random order. Each run
has its own salt (cache.isolate: run), so that no prefix is cached before it. The
pages of one side are --metrics-url SIDE=URL. The
verdict holds for these server starts; inferload sweep restarts the servers. The
values of --header are not stored: give them again with --resume. Exit codes:
0 compared; 1 a run failed; 2 usage error; 4 as those of inferload compare; 130,
143 interrupted."""


def register(commands: Any) -> None:
    parser = commands.add_parser(
        "ab",
        description="Compare running servers by interleaved pairs of runs under the same schedule; the first one is the baseline.",
        epilog=_EPILOG,
    )
    add = parser.add_argument
    add(
        "sides",
        nargs="*",
        metavar="NAME=URL",
        help="server, as A=http://server:8000; with --clock virtual a variant, or options of the simulator as A='--itl-ms 10'; "
        "the first one is the baseline",
    )
    add(
        "--preset",
        choices=[*PRESETS],
        help="a question with its scenario, pairs and control runs: "
        + "; ".join(f"{name}: {row.text}" for name, row in PRESETS.items()),
    )
    add("--scenario", metavar="NAME-OR-PATH", help="scenario of all runs (default: that of the preset)")
    add("--pairs", type=int, metavar="N", help=f"pairs of runs (default: {DEFAULT_PAIRS}, of a preset {PRESET_PAIRS})")
    add("--seed", type=int, default=0, metavar="N", help="seed for the seeds of the runs and their order (%(default)s)")
    decision.add_options(add)
    add("--into", type=Path, metavar="DIR", help="output folder (default: runs/<UTC time>-ab-<scenario>)")
    add("--resume", type=Path, metavar="DIR", help="continue an interrupted comparison")
    add("--dry-run", action="store_true", help="show the plan only")
    load = quick_options.add_to(parser)
    for option in PASSED_ON:
        (load if option.name == "set" else parser).add_argument(option.flag, **option.keywords())
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Make the runs and compare the sides. Return the exit code."""
    plan, folder = _plan_and_folder(arguments)
    print("\n".join(_lines(plan)), flush=True)
    if arguments.dry_run:
        return 0
    files = {ab.PLAN: typed_yaml.to_text(plan)}
    folder = made_folder(folder, new=arguments.into is None and arguments.resume is None, files=files)
    try:
        with alone(folder), signals_interrupt():
            failures = _make(plan, folder, list(arguments.header), retry=arguments.resume is not None)
    except KeyboardInterrupt as interrupt:
        return interrupted(interrupt, own_command("ab", "--resume", folder, *_again(plan, arguments)))
    code = _compare(plan, folder, arguments)
    if (page := folder / "comparison" / "comparison.html").exists():
        print(page)
    return code or (1 if failures else 0)


def _again(plan: AbPlan, arguments: argparse.Namespace) -> list[str]:
    """Return the options that --resume needs again."""
    headers = [header.partition(":")[0].strip() for header in arguments.header]
    return [*decision.flags_of(arguments), *named_code.needed_again(plan.load(), plan.scenario, headers)]


def _plan_and_folder(arguments: argparse.Namespace) -> tuple[AbPlan, Path]:
    if arguments.resume is not None:
        own_plan = (
            f"--resume {arguments.resume}: the folder has its own plan; remove sides, --preset, --scenario, --pairs, "
            "--require, --into"
        )
        chosen = arguments.preset, arguments.pairs, arguments.into
        if arguments.sides or arguments.require or any(value is not None for value in chosen):
            raise UsageError(own_plan)
        plan = ab.read(arguments.resume)
        if arguments.scenario not in (None, plan.scenario):
            raise UsageError(own_plan)
        named_code.check(arguments.resume, plan.load(), plan.scenario, arguments.scenario)
        return plan, arguments.resume
    preset = PRESETS.get(arguments.preset)
    arguments.scenario = arguments.scenario or arguments.preset
    if not arguments.sides or arguments.scenario is None:
        raise UsageError("ab: needs two sides as NAME=URL and --scenario or --preset, or --resume DIR")
    sides = ab.sides_of(arguments.sides)
    _check_servers(sides, arguments)
    if len(sides) < 2:
        raise UsageError(f"ab: {arguments.sides[0]} is the only side; give another one as NAME=URL")
    if preset is not None:
        preset.check(arguments.preset, sides)
    count = (PRESET_PAIRS if preset else DEFAULT_PAIRS) if arguments.pairs is None else arguments.pairs
    if not 1 <= count <= pairs.MAX_PAIRS:
        raise UsageError(f"--pairs {count}: must be 1 to {pairs.MAX_PAIRS}")
    if arguments.seed < 0:
        raise UsageError(f"--seed {arguments.seed}: not a whole number from 0 on")
    arguments.set = quick_options.settings(arguments)
    options = {option.name: getattr(arguments, option.name) for option in PASSED_ON if option.name != "header"}
    given = {name: value for name, value in options.items() if value not in ("", [], False, None)}
    plan = typed_yaml.validated(
        {
            "schema": 1,
            "sides": sides,
            "scenario": arguments.scenario,
            "pairs": count,
            "seed": arguments.seed,
            "primary": arguments.primary or "",
            "require": arguments.require,
            "preset": arguments.preset or "",
            "options": given,
        },
        "ab",
        AbPlan,
    )
    scenario = plan.load()
    if preset is not None:
        plan.load(*preset.set)
    plan = plan.model_copy(update={"digest": scenario.digest})
    return plan, unused_folder(arguments.into, f"ab-{scenario.name}")


def _check_servers(sides: Mapping[str, str], arguments: argparse.Namespace) -> None:
    """Raise UsageError if a side is a server of the other clock."""
    is_virtual = arguments.clock == "virtual"
    if is_virtual and (arguments.variant or arguments.simulator):
        raise UsageError("--variant, --simulator: each side names its own; write it as NAME=VARIANT or NAME='OPTIONS'")
    for name, server in sides.items():
        if ("://" in server) == is_virtual:
            wanted = "a variant, or options of the simulator" if is_virtual else "a URL"
            raise UsageError(f"{name}={server}: --clock {arguments.clock} needs {wanted}")
        if is_virtual and server.startswith("-"):
            server_of("", options_of(server), {}, 0)
        elif is_virtual:
            server_of(server, (), {}, 0)
    for page in arguments.metrics_url:
        name, _, url = page.partition("=")
        if "://" in url and "://" not in name and name not in sides:
            raise UsageError(
                f"--metrics-url {page}: no side is named {name}; name {' or '.join(sides)}, or none for all sides"
            )


def _lines(plan: AbPlan) -> list[str]:
    scenario = plan.load()
    names = list(plan.sides)
    runs = plural(len(ab.planned(plan)), "run")
    lines = [
        f"{', '.join(names[1:])} against {names[0]} on {scenario.name}: {runs} in {plural(plan.pairs, 'pair')}, in a random order",
        f"  {pairs.outlook(plan.pairs, pairs.SD_LOG, 'the verdict holds for these server starts')}",
    ]
    lines += [f"  control runs in each pair: {', '.join(plan.controls)}"] if plan.controls else []
    found = equal_sides.of_simulated if plan.options.get("clock") == "virtual" else equal_sides.of_urls
    lines += [f"  {words}" for words in found(plan.sides)]
    if (scenario.cache.isolate == "none" and not scenario.cache.twice) or scenario.cache.salt is not None:
        lines.append(
            "  cache.isolate is none, or cache.salt is set: a run hits the prefixes that runs before it left in the cache"
        )
    return lines


def _make(plan: AbPlan, folder: Path, headers: list[str], retry: bool) -> int:
    """Make the remaining runs; return the number of failed ones."""
    journal = Journal(folder)
    journal.end_orphans()
    if retry:
        journal.retry()
    maker, runs = Runner(folder, journal), ab.planned(plan)
    for number, each in enumerate(runs, 1):
        if journal.outcome(each.folder) is not None:
            continue
        print(f"{number}/{len(runs)}: {each.folder} ({each.url})", file=sys.stderr, flush=True)
        options = {**plan.options_of(each), "seed": str(each.seed), "header": headers}
        entry = maker.run(each.folder, runner.command(plan.scenario, each.url, folder / each.folder, options))
        runner.stop_if_refused(entry, each.side, journal.beside(each.folder))
        if found := runner.problem(folder, entry):
            print(f"  {each.folder}: {found}", file=sys.stderr, flush=True)
    return len(journal.failures)


def _compare(plan: AbPlan, folder: Path, arguments: argparse.Namespace) -> int:
    """Run `inferload compare`, since commands of this package import no analysis; return its exit code."""
    sides = {name: folder / name for name in plan.sides}
    argv = decision.compare_command(
        sides, folder / "comparison", plan.primary, plan.require, decision.flags_of(arguments)
    )
    return subprocess.run(argv, check=False).returncode
