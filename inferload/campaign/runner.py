"""Runs of a campaign: `inferload run` as a process, with its entries in the journal."""

import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from inferload.base import clock, run_options, rundir
from inferload.base.errors import UsageError
from inferload.base.status_lines import plain_environment
from inferload.campaign import process
from inferload.campaign.journal import Journal, RunBegun, RunEnded, RunStopped
from inferload.deploy.launcher.launch import tail
from inferload.results.documents import typed_documents
from inferload.results.documents.summary_document import Summary
from inferload.scenario import language

USAGE = 2  # exit code of a run that did not begin: usage, configuration, or the check of the server before the load
MADE = (0, 1, 3)  # exit codes of a run with a result: passed, a gate failed, not valid
_LOG_BYTES = 65_536
_PREFIX = re.compile(r"^\[[^]]*\] \S+: ")  # of a line of the log: time, host, level


@dataclass(frozen=True, slots=True)
class RunConditions:
    """Conditions of a run. `run_s`: longest time; `grace_s`: for its end when stopped; `poll`: called meanwhile."""

    run_s: float = inf
    grace_s: float = process.GRACE_S
    poll: Callable[[], None] | None = None


@dataclass(frozen=True, slots=True)
class Runner:
    """Makes the runs of a campaign in folders below `folder`. `environment`, `cwd`: None for those of this process."""

    folder: Path
    journal: Journal
    environment: Mapping[str, str] | None = None
    cwd: Path | None = None

    def run(
        self,
        name: str,
        argv: Sequence[str],
        conditions: RunConditions = RunConditions(),
        *,
        fault: Callable[[], str | None] = lambda: None,
        level: float = 0.0,
    ) -> RunEnded:
        """Make one run and return its entry in the journal, with a `cause` if it failed. An exception ends the run.

        `name`: run directory below the campaign's folder. `fault`: cause of a failure that the run itself does not show.
        `level`: of the entry.
        """
        run_dir = self.folder / name
        rundir.set_aside(run_dir)
        run_dir.parent.mkdir(parents=True, exist_ok=True)
        log = run_dir.with_suffix(".log")
        began_ns = clock.now_ns()
        code = self._code(name, argv, log, conditions)
        took_s = round((clock.now_ns() - began_ns) / clock.NS_PER_S, 3)
        entry = ended(self.folder, name, code, took_s, fault=fault, level=level)
        self.journal.write(entry)
        return entry

    def _code(self, name: str, argv: Sequence[str], log: Path, conditions: RunConditions) -> int | None:
        """Exit code; None if the run exceeded its time."""
        child, known = process.begin(argv, log, self.environment, self.cwd)
        grace_s = conditions.grace_s
        with ExitStack() as undo:
            undo.callback(self.journal.write, RunStopped(folder=name))
            undo.callback(known.end, grace_s)  # after Ctrl-C too: the run must not outlive this process
            try:
                self.journal.write(RunBegun(folder=name, pid=known.pid, started_s=known.started_s))
                code = process.awaited(child, conditions.poll, most_s=conditions.run_s)
            except KeyboardInterrupt:
                print(f"\nthe run ends within {grace_s:.0f} s; Ctrl-C again ends it at once", file=sys.stderr)
                raise
            undo.pop_all()
        if code is None:
            known.end(grace_s)
        return code


def ended(
    folder: Path,
    name: str,
    code: int | None,
    took_s: float,
    *,
    fault: Callable[[], str | None] = lambda: None,
    level: float = 0.0,
) -> RunEnded:
    """Return the entry of a run that has ended, and remove the log of one with a result. Arguments as of `Runner.run`."""
    run_dir = folder / name
    log = run_dir.with_suffix(".log")
    made = code in MADE and (run_dir / rundir.SUMMARY).is_file()
    cause = fault() if made else last_line(log)
    if cause is None:
        log.unlink()
    return RunEnded(folder=name, exit_code=code, took_s=took_s, level=level, cause=cause)


def problem(folder: Path, entry: RunEnded) -> str:
    """Return why a run has no result, or has one that is not compared: its measurement is not valid. Empty if it is compared.

    An overloaded run with a failed gate has exit code 1, and may be invalid as well. `folder`: of the campaign.
    """
    if entry.cause is not None:
        return " ".join(entry.cause.split())
    try:
        not_valid = typed_documents.read(folder / entry.folder / rundir.SUMMARY, Summary).not_valid
    except UsageError as damage:
        return str(damage)
    return "the measurement is not valid; the run is kept but not compared" if not_valid else ""


def command(
    scenario: str, host: str, run_dir: Path, options: Mapping[str, Any], extra: Sequence[str] = ()
) -> list[str]:
    """Command line of a run. `options`: by the names in RUN_OPTIONS; `extra`: Locust's own.

    `host`: the server; on a virtual clock a variant, or options of the simulator, and "" for those of `options`.
    """
    argv = [sys.executable, "-m", "inferload", "run", scenario]
    server: dict[str, Any] = {}
    if options.get("clock") != "virtual":
        argv += ["--host", host]
    elif host:
        server = {"simulator" if host.startswith("-") else "variant": host}
    argv += run_options.words({**options, **server, "run_dir": str(run_dir.absolute())})
    return argv + (["--", *extra] if extra else [])


def report(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Write the pages of a folder by `inferload report`, in this language, since campaigns import no analysis."""
    argv = [sys.executable, "-m", "inferload", "report", str(folder), "--lang", language.current(), *options]
    return subprocess.run(argv, capture_output=True, text=True, check=False, env=plain_environment())


def last_line(log: Path) -> str:
    """Last line of inferload, or the last error, in a log; without its prefix."""
    lines = [line.strip() for line in tail(log, _LOG_BYTES).splitlines() if line.strip()]
    own = [line for line in lines if "inferload" in line or "ERROR" in line]
    return _PREFIX.sub("", (own or lines or ["no reason given"])[-1])


def stop_if_refused(entry: RunEnded, server: str, earlier: Iterable[RunEnded]) -> None:
    """Raise UsageError if a running server refused a run and has had none: it would refuse all. `earlier`: its other runs."""
    if entry.exit_code == USAGE and not any(other.cause is None for other in earlier):
        raise UsageError(f"{server}: {' '.join((entry.cause or 'refused').split())}; then continue with --resume")
