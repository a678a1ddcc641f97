"""`inferload study`: repeat the experiment of a published text, and show its figures beside the measured ones."""

import argparse
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from inferload.base import rundir
from inferload.base.errors import UsageError
from inferload.base.numbers import plural
from inferload.campaign.ab import sides_of
from inferload.campaign.commands.sweep import execute
from inferload.campaign.journal import Journal
from inferload.campaign.signals import interrupted, signals_interrupt
from inferload.campaign.sweep import definition as sweeps
from inferload.campaign.sweep import study as definition
from inferload.campaign.sweep import time_estimate
from inferload.campaign.sweep.definition import Sweep
from inferload.campaign.sweep.plan import servers_text, starts
from inferload.campaign.sweep.runner import PLAN
from inferload.deploy.commands.variants import prose
from inferload.deploy.servers.engines import ENGINES
from inferload.results.study import STUDY, StudyPlan
from inferload.scenario.files import catalog, data_files, typed_yaml

_EPILOG = """\
Examples:
  inferload study list
  inferload study agents --dry-run             plan and duration
  inferload study agents --quick               a minute or two, without verdicts
  inferload study agents --engine vllm-cpu
  inferload study agents --part long --host t4-baseline=http://a:8000 t4-prefix-caching=http://b:8000
  inferload study --resume runs/20261127T101500Z-agents
Each part of a study is a sweep. The page (index.html, index.md) has the measured
figures, the published ones beside them, and a finding on each claim. Exit codes:
0 all runs completed; 1 some failed; 2 usage error; 130, 143 interrupted."""


def register(subparsers: Any) -> None:
    """Add the sub-command."""
    parser = subparsers.add_parser(
        "study",
        description="Repeat the experiment of a published text, and show its figures beside the measured ones.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("name", nargs="?", metavar="NAME", help="a bundled study, a study file, or list")
    add("--engine", choices=list(ENGINES), help="engine of the servers that are started (default: simulator)")
    add(
        *("--host", "--hosts"),
        metavar="VARIANT=URL",
        dest="hosts",
        action="extend",
        nargs="+",
        default=[],
        help="running servers instead, by variant of the study; parts without their baseline are left out",
    )
    add("--quick", action="store_true", help="fewer and shorter runs: a look at the page, no verdicts")
    add("--part", action="append", default=[], metavar="PART", help="run this part only; repeatable")
    add("--resume", type=Path, metavar="DIR", help="continue an interrupted study")
    add("--into", type=Path, metavar="DIR", help="output folder (default: runs/<UTC time>-<name>)")
    add("--dry-run", action="store_true", help="show the plan only")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run a study and write its page. Return the exit code."""
    if arguments.name == "list":
        print("\n".join(_list_lines()))
        return 0
    plan, planned, folder = _resumed(arguments) if arguments.resume else _new(arguments)
    print("\n".join(_summary_lines(plan, planned, folder, arguments.resume is not None)), flush=True)
    if arguments.dry_run:
        return 0
    _write(plan, planned, folder)
    completed = []
    try:
        with signals_interrupt():
            for name, sweep in planned.items():
                print(f"\n== {plan.parts[name].title} ({folder / name}) ==", flush=True)
                completed.append(execute(sweep, folder / name, retry=arguments.resume is not None))
    except KeyboardInterrupt as interrupt:
        return interrupted(interrupt, "study", folder)
    return 0 if _page(folder) and all(completed) else 1


def _list_lines() -> list[str]:
    paths = sorted((catalog.folder() / "studies").glob("*.yaml"))
    found = {path.stem: definition.load(path) for path in paths}
    width = max(map(len, found), default=0)
    return [
        f"{name:<{width}}  {study.title} ({study.source.title}, {study.source.date})" for name, study in found.items()
    ]


def _new(arguments: argparse.Namespace) -> tuple[StudyPlan, dict[str, Sweep], Path]:
    if arguments.name is None:
        raise UsageError("study: needs NAME or --resume DIR; inferload study list prints the bundled ones")
    study = definition.load(Path(arguments.name))
    if unknown := [part for part in arguments.part if part not in study.parts]:
        raise UsageError(f"--part {unknown[0]}: {study.name} has the parts {', '.join(study.parts)}")
    if arguments.part:
        study = study.only(arguments.part)
    if arguments.hosts and arguments.engine:
        raise UsageError("--host: the servers run already; remove --engine")
    hosts = sides_of(arguments.hosts)
    engine: definition.Engine = "running" if hosts else arguments.engine or "simulator"
    words = ["inferload", "study", arguments.name]
    words += [word for side in arguments.hosts for word in ("--host", side)] or ["--engine", engine]
    words += [word for part in arguments.part for word in ("--part", part)]
    command = shlex.join([*words, *(["--quick"] if arguments.quick else [])])
    plan = study.plan(engine, arguments.quick, command, hosts)
    if not plan.parts:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in plan.left_out.items())
        raise UsageError(f"{'--host' if hosts else f'--engine {engine}'}: runs no part of {study.name}: {reasons}")
    sweeps_of = study.sweeps(engine, arguments.quick, hosts)
    used = {name for sweep in sweeps_of.values() for name in sweep.hosts}
    if unused := [name for name in hosts if name not in used]:
        raise UsageError(
            f"--host {unused[0]}: no variant of a part with its baseline; {study.name} has {_names(study)}"
        )
    folder = arguments.into or Path("runs") / rundir.default_name(study.name)
    if (folder / STUDY).exists():
        raise UsageError(f"{folder}: already contains a study; use --resume {folder}, or another folder with --into")
    for file in study.missing_files(engine, arguments.quick, hosts):
        print(f"inferload: {file}: not in the current folder; {data_files.remedy(Path(file))}", file=sys.stderr)
    return plan, sweeps_of, folder


def _names(study: definition.Study) -> str:
    """Return the variants of a study by part."""
    return "; ".join(
        f"{name}: {', '.join([part.sweep['baseline'], *part.sweep.get('variants', ())])}"
        for name, part in study.parts.items()
    )


def _resumed(arguments: argparse.Namespace) -> tuple[StudyPlan, dict[str, Sweep], Path]:
    folder = arguments.resume
    given = [name for name in ("into", "part", "quick", "hosts", "engine") if getattr(arguments, name)]
    if given or arguments.name is not None:
        raise UsageError(
            f"--resume {folder}: the folder has its own plan; remove {'NAME' if not given else '--' + given[0]}"
        )
    if not (folder / STUDY).is_file():
        raise UsageError(f"--resume {folder}: contains no study; give the folder of a study")
    plan = typed_yaml.from_text(catalog.read(folder / STUDY, "study "), str(folder / STUDY), StudyPlan)
    return plan, {name: sweeps.load(folder / name / PLAN) for name in plan.parts}, folder


def _write(plan: StudyPlan, planned: dict[str, Sweep], folder: Path) -> None:
    """Write the plan of the study and of its parts, which --resume reads. Raise UsageError if the folder is not writable."""
    try:
        for name, sweep in planned.items():
            (folder / name).mkdir(parents=True, exist_ok=True)
            if not (folder / name / PLAN).exists():
                rundir.write_text(folder / name / PLAN, typed_yaml.to_text(sweep.with_digests()))
        rundir.write_text(folder / STUDY, typed_yaml.to_text(plan))
    except OSError as error:
        raise UsageError(f"--into {folder}: {error.strerror}; choose a writable folder") from error


def _summary_lines(plan: StudyPlan, planned: dict[str, Sweep], folder: Path, retry: bool) -> list[str]:
    lines = [f"study {plan.name}: {plan.title}", *prose("  ", plan.question)]
    for name, sweep in planned.items():
        loads = sweep.loads()
        server_starts = starts(sweep, list(loads))
        times = {scenario: time_estimate.planned(sweep, load) for scenario, load in loads.items()}
        remaining = time_estimate.remaining_text(server_starts, Journal(folder / name), times, sweep.engine, retry)
        runs = sum(len(start.runs) for start in server_starts)
        lines += prose(f"  {name}: ", f"{plural(runs, 'run')} on {servers_text(sweep, server_starts)}, {remaining}")
    return lines + [
        line for name, reason in plan.left_out.items() for line in prose(f"  {name}: ", f"left out: {reason}")
    ]


def _page(folder: Path) -> bool:
    """Run `inferload report` for the page of the study; print its headline and paths, or its error."""
    argv = [sys.executable, "-m", "inferload", "report", str(folder)]
    process = subprocess.run(argv, text=True, capture_output=True, check=False)
    print(f"\n{(process.stdout or process.stderr).strip()}")
    return process.returncode == 0
