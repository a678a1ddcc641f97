"""`inferload study`: repeat the experiment of a published text, and show its figures beside the measured ones."""

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from inferload.base.errors import UsageError, instead
from inferload.base.escaping import own_command
from inferload.base.numbers import listed
from inferload.base.status_lines import StatusLines
from inferload.campaign import equal_sides, pairs, runner
from inferload.campaign.ab import sides_of
from inferload.campaign.commands.sweep import check_unchanged, execute, outline
from inferload.campaign.journal import made_folder, unused_folder
from inferload.campaign.signals import interrupted, signals_interrupt
from inferload.campaign.sweep import preconditions
from inferload.campaign.sweep import study as studies
from inferload.campaign.sweep.study import STUDY, Study
from inferload.deploy.commands.variants import prose
from inferload.deploy.launcher.launch import ProgressCallback, to_stderr
from inferload.deploy.servers.engines import ENGINES
from inferload.scenario import language
from inferload.scenario.files import catalog, data_files, typed_yaml

_EPILOG = """\
Examples:
  inferload study list
  inferload study agents --dry-run  # plan and duration
  inferload study agents --quick  # a minute or two, without verdicts
  inferload study agents --engine vllm-cpu
  inferload study agents --part long --host t4-baseline=http://a:8000 t4-prefix-caching=http://b:8000
  inferload study --resume runs/20261127T101500Z-agents
Each part of a study is a sweep. The command ends with a finding on each claim;
inferload report DIR prints them again. The page (index.html, index.md) has the
measured figures and the published ones beside them. Exit codes: 0 all runs
completed; 1 some failed; 2 usage error; 130, 143 interrupted."""


def register(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "study",
        description="Repeat the experiment of a published text, and show its figures beside the measured ones.",
        epilog=_EPILOG,
    )
    add = parser.add_argument
    add("name", nargs="?", metavar="NAME", help="a bundled study, a study file, or list")
    add("--engine", choices=list(ENGINES), help="engine of the servers that are started (default: simulator)")
    running = "running servers instead, by variant of the study; parts without their baseline are left out"
    several: Any = {"action": "extend", "nargs": "+", "default": []}
    add(*("--host", "--hosts"), metavar="VARIANT=URL", dest="hosts", help=running, **several)
    clocks = "real: run on the simulator in real time; virtual: on a clock that jumps to the next event"
    by_default = "(default: of each part, virtual for the bundled studies on the simulator)"
    add("--clock", choices=("real", "virtual"), help=f"{clocks} {by_default}")
    add("--quick", action="store_true", help="fewer and shorter runs: a look at the page, no verdicts")
    add("--part", action="append", default=[], metavar="PART", help="run this part only; repeatable")
    add("--resume", type=Path, metavar="DIR", help="continue an interrupted study")
    add("--into", type=Path, metavar="DIR", help="output folder (default: runs/<UTC time>-<name>)")
    add("--details", action="store_true", help="also print the tables, and the comparison of each part")
    language.add_option(add)
    add("--dry-run", action="store_true", help="show the plan only")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run a study and write its page. Return the exit code."""
    if arguments.name == "list":
        width = max(map(len, bundled := _bundled()), default=0)
        for name, study in bundled.items():
            print(f"{name:<{width}}  {study.title} ({study.source.title}, {study.source.date})")
        return 0
    study, folder = _resumed(arguments) if arguments.resume else _new(arguments)
    retry = arguments.resume is not None
    print("\n".join(_summary_lines(study, folder, retry)), flush=True)
    if arguments.dry_run:
        return 0
    files = {STUDY: typed_yaml.to_text(study, defaults=False)}
    folder = made_folder(folder, new=arguments.into is None and not retry, files=files)
    completed = []
    try:
        with signals_interrupt():
            for name, part in study.parts.items():
                with _progress(name) as progress:
                    into = made_folder(folder / name, new=False)
                    completed.append(execute(part.sweep, into, retry, progress=progress, show=arguments.details))
    except KeyboardInterrupt as interrupt:
        return interrupted(interrupt, own_command("study", "--resume", folder))
    return 0 if _page(folder, arguments) and all(completed) else 1


@contextmanager
def _progress(part: str) -> Iterator[ProgressCallback]:
    """Show the progress of a part on stderr: on a terminal in one line, which problems (indented) are written above."""
    status = StatusLines(sys.stderr)

    def report(text: str) -> None:
        status.clear()
        if status.enabled and not text.startswith(" "):
            status.draw([f"{part}: {text}"])
        else:
            to_stderr(text if text.startswith(" ") else f"{part}: {text}")

    try:
        yield report
    finally:
        status.close()


def _bundled() -> dict[str, Study]:
    return {path.stem: studies.load(path) for path in sorted((catalog.folder() / "studies").glob("*.yaml"))}


def hosts_page() -> str:
    """Return the lines of docs/how-to/studies.md: each bundled study with a `--host` for each server that it can use."""
    lines = []
    for study, parts in ((name, study.parts.values()) for name, study in _bundled().items()):
        names = dict.fromkeys(name for part in parts if not part.grid for name in part.all_variants)
        hosts = ["--host", *(f"{name}=http://server{number}:8000" for number, name in enumerate(names, 1))]
        left_out = "each combination of its grid is a server of its own; use --engine vllm"
        lines.append(own_command("study", study, *hosts) if names else f"# {study}: {left_out}")
    return "\n".join(lines) + "\n"


def _new(arguments: argparse.Namespace) -> tuple[Study, Path]:
    if arguments.name is None:
        raise UsageError("study: needs NAME or --resume DIR; inferload study list prints the bundled ones")
    study = studies.load(Path(arguments.name))
    if unknown := [part for part in arguments.part if part not in study.parts]:
        raise UsageError(f"--part {unknown[0]}: no part of {study.name}; {instead(unknown[0], study.parts)}")
    if arguments.part:
        study = study.only(arguments.part)
    if arguments.hosts and arguments.engine:
        raise UsageError("--host: the servers run already; remove --engine")
    hosts = sides_of(arguments.hosts)
    known = dict.fromkeys(name for part in study.parts.values() for name in part.all_variants)
    if unknown := [name for name in hosts if name not in known]:
        raise UsageError(f"--host {unknown[0]}: no variant of {study.name}; {instead(unknown[0], known)}")
    engine = "running" if hosts else arguments.engine or study.engine
    planned = study.resolved(engine, arguments.quick, _command(arguments, engine), hosts, arguments.clock)
    if not planned.parts:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in planned.left_out.items())
        raise UsageError(f"{'--host' if hosts else f'--engine {engine}'}: runs no part of {study.name}: {reasons}")
    used = {name for part in planned.parts.values() for name in part.hosts}
    if unused := [name for name in hosts if name not in used]:
        of_parts = {name: ", ".join((part.baseline, *part.variants)) for name, part in study.parts.items()}
        variants = "; ".join(map(": ".join, of_parts.items()))
        raise UsageError(f"--host {unused[0]}: no variant of a part with its baseline; {study.name} has {variants}")
    for name, part in planned.parts.items():
        try:
            lines = preconditions.check(part)
        except UsageError as error:
            others = "; --part runs other parts alone" if len(planned.parts) > 1 else ""
            raise UsageError(f"part {name}: {error}{others}") from error
        for line in lines:
            print(f"inferload: part {name}: {line}", file=sys.stderr)
    folder = unused_folder(arguments.into, study.name, STUDY)
    for file in study.missing_files(engine, arguments.quick, hosts):
        print(f"inferload: {file}: not in the current folder; {data_files.remedy(Path(file))}", file=sys.stderr)
    return planned, folder


def _command(arguments: argparse.Namespace, engine: str) -> str:
    words = [arguments.name]
    words += [word for side in arguments.hosts for word in ("--host", side)] or ["--engine", engine]
    words += [word for part in arguments.part for word in ("--part", part)]
    words += ["--clock", arguments.clock] if arguments.clock else []
    return own_command("study", *words, *(["--quick"] if arguments.quick else []))


def _resumed(arguments: argparse.Namespace) -> tuple[Study, Path]:
    folder = arguments.resume
    given = [name for name in ("into", "part", "quick", "hosts", "engine", "clock") if getattr(arguments, name)]
    if given or arguments.name is not None:
        wrong = f"--{given[0]}" if given else "NAME"
        raise UsageError(f"--resume {folder}: the folder has its own plan; remove {wrong}")
    if not (folder / STUDY).is_file():
        raise UsageError(f"--resume {folder}: contains no study; give the folder of a study")
    study = studies.read(folder / STUDY)
    for part in study.parts.values():
        check_unchanged(part, folder)
    return study, folder


def _summary_lines(study: Study, folder: Path, retry: bool) -> list[str]:
    lines = [f"study {study.name}: {study.title}", *prose("  ", str(study.question))]
    for name, part in study.parts.items():
        lines += prose(f"  {name}: ", outline(part, folder / name, retry))
        lines += [line for words in equal_sides.of_sweep(part) for line in prose("    ", str(words))]
    for count in sorted({part.pairs for part in study.parts.values() if part.pairs < pairs.FEWEST}):
        names = listed([name for name, part in study.parts.items() if part.pairs == count])
        lines += prose("  ", f"{names}: {pairs.outlook(count, pairs.SD_LOG)}")
    return lines + [
        line for name, reason in study.left_out.items() for line in prose(f"  {name}: ", f"left out: {reason}")
    ]


def _page(folder: Path, arguments: argparse.Namespace) -> bool:
    """Run `inferload report` for the page of the study; print its findings and paths, or its error."""
    process = runner.report(folder, *(["--details"] if arguments.details else []))
    print(f"\n{(process.stdout or process.stderr).strip()}")
    return process.returncode == 0


if __name__ == "__main__":
    print(hosts_page(), end="")
