"""`inferload collect`: the turns of workers on other machines, brought together; then summary and report from all of them."""

import argparse
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from inferload import rundir
from inferload.cli import gathering, overssh
from inferload.cli.gathering import Held, Manifest
from inferload.errors import UsageError

INCOMPLETE = 1

_DESCRIPTION = """\
Brings the turns that workers wrote on other machines into the master's run directory, holds them against the master's
counts, and makes summary.json and the report again, percentiles from records. A place is a path of this machine (a mounted
disk, say) or HOST:PATH over ssh: the worker's run directory, or the directory that holds it. HOST: alone means the
directory that run.json names. May be repeated; turns of another run are refused."""
_EPILOG = """\
example: inferload collect runs/20260924T120000Z-chat --from node2:load/runs --from node3:load/runs
exit codes: 0 all turns are here; 1 some are missing (they are named, and what came is kept); 2 bad usage"""


def register(commands: Any) -> None:
    """Add the sub-command."""
    parser = commands.add_parser(
        "collect",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run_dir", type=Path, metavar="RUN", help="the master's run directory")
    parser.add_argument(
        "--from", dest="places", action="append", default=[], metavar="[HOST:]PATH", help="where turns lie (repeatable)"
    )
    parser.add_argument("--ssh-config", type=Path, metavar="FILE", help="configuration for ssh, as its own -F")
    parser.add_argument("--no-report", action="store_true", help="leave the report as it is")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Collect, check, rebuild; 0 where all turns are here."""
    run_dir: Path = arguments.run_dir.absolute()
    manifest = Manifest.read(run_dir)
    with ExitStack() as stack:
        found, places = _look(arguments, manifest, stack)
        taken = {name: place for name, place in places.items() if _wanted(manifest, found[name])}
        for name, place in taken.items():
            gathering.take(found[name], run_dir)
            print(f"{name}: {found[name].turns} turns from {place}", flush=True)
    if taken:
        gathering.note(manifest, taken)
    missing = gathering.shortfalls(manifest)
    for line in [*(one.in_words() for one in missing), *gathering.uncounted(manifest)]:
        print(line)
    lost = [worker.name for worker in manifest.workers if worker.lost]
    if not missing and lost:
        print(f"lost in the run: {', '.join(lost)}; summary.json stays as the master counted it")
    if not missing and not lost:
        _rebuild(run_dir, anew=bool(taken))
    if not arguments.no_report and (taken or not missing):
        _again(run_dir, "report")
    if missing:
        names = ", ".join(one.worker.name for one in missing)
        print(f"inferload: turns of {names} are not all here; summary.json is unchanged; name their places with --from",
              file=sys.stderr)  # fmt: skip
        return INCOMPLETE
    return 0


def _look(
    arguments: argparse.Namespace, manifest: Manifest, stack: ExitStack
) -> tuple[dict[str, Held], dict[str, str]]:
    """Each worker's fullest turns of all places, and the place of each; UsageError where a place has none of this run."""
    known = {worker.name for worker in manifest.workers}
    found: dict[str, Held] = {}
    places: dict[str, str] = {}
    for text in arguments.places:
        here = _of_place(text, arguments.ssh_config, manifest, stack)
        for name, source in here.items():
            if name in known and (name not in found or source.turns > found[name].turns):
                found[name], places[name] = source, text
    return found, places


def _of_place(text: str, config: Path | None, manifest: Manifest, stack: ExitStack) -> dict[str, Held]:
    """This run's turns in one place, copied to this machine first where that is another one."""
    remote = overssh.split_place(text)
    if remote is not None and not remote[1] and not gathering.shortfalls(manifest):
        return {}  # nothing is missing, so run.json names no place to look
    if remote is None:
        roots = [Path(text)]
        if not roots[0].is_dir():
            raise UsageError(f"--from {text}: no such directory")
    else:
        roots = _copies(remote[0], remote[1], config, manifest, stack)
    folders = [folder for root in roots for folder in gathering.candidates(root, manifest)]
    found = gathering.held(folders, manifest.run_id)
    if not found:
        strange = gathering.others(folders, manifest.run_id)
        if strange:
            raise UsageError(f"--from {text}: turns of run {', '.join(strange)}, not of {manifest.run_id}")
        raise UsageError(f"--from {text}: no turns there; name a worker's run directory, or the one that holds it")
    return found


def _copies(host: str, path: str, config: Path | None, manifest: Manifest, stack: ExitStack) -> list[Path]:
    """Folders of another machine, in folders of this one that last as long as the stack."""
    recorded = [one.worker.folder for one in gathering.shortfalls(manifest)]
    copies = []
    for one in [path] if path else dict.fromkeys(recorded):
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=".collect-", dir=manifest.path)))
        overssh.fetch_turns(host, one, manifest.folder_names(), folder, config)
        copies.append(folder)
    return copies


def _wanted(manifest: Manifest, source: Held) -> bool:
    """Whether a place has more of a worker's turns than the run directory."""
    here = gathering.at_hand(manifest).get(source.worker)
    return here is None or source.turns > here.turns


def _rebuild(run_dir: Path, anew: bool) -> None:
    """The summary from all turns, where the master alone could not make it so. `anew`: some have just come."""
    made_of_all = rundir.read_json(run_dir / rundir.SUMMARY).get("percentiles_from") == "records"
    if not (run_dir / rundir.BOOKS).is_file() or (made_of_all and not anew):
        print("all turns are here, and summary.json is made of them")
        return
    made = subprocess.run([sys.executable, "-m", "inferload.swarm.rebuild", str(run_dir)], check=False)
    if made.returncode:
        raise UsageError(f"{run_dir}: summary.json could not be made again; it is unchanged")


def _again(run_dir: Path, command: str) -> None:
    """The pages, by their own command."""
    made = subprocess.run([sys.executable, "-m", "inferload", command, str(run_dir)], check=False)
    if made.returncode:
        print(f"inferload: no report; try again with: inferload report {run_dir}", file=sys.stderr)
