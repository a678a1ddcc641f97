"""The points of a search: one run each, ended early where turns pile up, and a journal that survives a kill."""

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inferload import rundir, turns_file
from inferload.cli.run import locust_command, locustfile
from inferload.cli.search.search_options import Asked, at, unit
from inferload.cli.terminate import end
from inferload.errors import UsageError
from inferload.measure import clock
from inferload.measure.columns import COLUMNS
from inferload.measure.search import window as windows_of
from inferload.measure.search.bracket import Settings
from inferload.measure.search.point import Look
from inferload.measure.search.slo import Condition
from inferload.measure.search.text import going
from inferload.measure.search.window import Window
from inferload.numbers import clock as elapsed
from inferload.numbers import short
from inferload.run_options import RUN_OPTIONS
from inferload.scenario.files import catalog
from inferload.scenario.scenario import Scenario
from inferload.status_lines import StatusLines

JOURNAL = "journal.jsonl"
POINTS = "points"
_USAGE = 2
_MADE = (0, 1, 3)  # exit codes of a run that was made: passed, a gate failed, not valid
# What makes a measurement invalid and is the server's doing: the turns concerned count as broken, and that is the answer.
_SERVERS_DOING = ("unfinished_drain", "no_turns")
_POLL_S = 0.5
_END_S = 20.0  # for a run that is told to end
_PREFIX = re.compile(r"^\[[^]]*\] \S+: ")  # of a line of the log: when, where, how grave
_PATIENCE_S = 180.0  # for all of a run but its phases
_TAIL_BYTES = 1024  # of a progress file, with its last line


class Journal:
    """What came of each look, a line each, written through to the disk."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / JOURNAL

    def write(self, **entry: Any) -> None:
        """Add a line."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"wall_ns": clock.wall_ns(), **entry}) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def entries(self) -> list[dict[str, Any]]:
        """All whole lines; a kill may have cut the last."""
        found = []
        for line in self._path.read_text(encoding="utf-8").splitlines() if self._path.is_file() else ():
            with contextlib.suppress(ValueError):
                found.append(json.loads(line))
        return found


@dataclass(frozen=True, slots=True)
class Performer:
    """Makes the runs, one after the other."""

    folder: Path
    said: Asked
    scenario: Scenario
    settings: Settings
    journal: Journal
    status: StatusLines = field(default_factory=lambda: StatusLines(sys.stderr))

    def earlier(self) -> list[Look]:
        """The looks of a search that goes on, read anew from their runs."""
        return [self._look(entry) for entry in self.journal.entries() if entry.get("kind") == "look"]

    def look(self, load: float, number: int) -> Look:
        """One run at a load; whatever becomes of it, it is a line of the journal."""
        name = f"{number + 1:02}"
        run_dir = self.folder / POINTS / name
        rundir.set_aside(run_dir)
        run_dir.parent.mkdir(parents=True, exist_ok=True)
        file = run_dir.with_suffix(".yaml")
        origin = str(catalog.resolve(self.said.scenario))
        file.write_text(at(self.scenario, origin, self.said, load, self.said.seed + number), encoding="utf-8")
        began_ns = clock.now_ns()
        code = self._run(file, run_dir, self._teller(load, number, run_dir))
        entry: dict[str, Any] = {
            "kind": "look",
            "level": load,
            "run": f"{POINTS}/{name}",
            "exit_code": code,
            "spent_s": (clock.now_ns() - began_ns) / clock.NS_PER_S,
        }
        if code not in _MADE or not (run_dir / rundir.SUMMARY).is_file():
            entry["cause"] = _last_line(run_dir.with_suffix(".log"))
            if code == _USAGE and number == 0:  # what was asked cannot be: no other load changes that
                raise UsageError(f"the first point could not be made: {entry['cause']}")
        self.journal.write(**entry)
        return self._look(entry)

    def _look(self, entry: Mapping[str, Any]) -> Look:
        run_dir, cause = self.folder / entry["run"], entry.get("cause")
        invalid = False
        windows: tuple[Window, ...] = ()
        remarks: tuple[str, ...] = ()
        if cause is None:
            try:
                summary = rundir.read_json(run_dir / rundir.SUMMARY)
                cause = _client_fault(summary)
                invalid = cause is not None
                if not invalid:
                    windows = (window(run_dir, self.settings.conditions, summary["sessions"]["dropped"]),)
                    remarks = remarks_of(summary)
            except UsageError as error:
                cause = str(error)
        return Look(
            level=entry["level"],
            windows=windows,
            spent_s=entry["spent_s"],
            invalid=invalid,
            cause=cause,
            runs=(entry["run"],),
            remarks=remarks,
        )

    def _teller(self, load: float, number: int, run_dir: Path) -> Callable[[], None]:
        """Says on a terminal how far this look is."""
        spent_s = sum(entry["spent_s"] for entry in self.journal.entries() if entry.get("kind") == "look")
        began_ns, progress = clock.now_ns(), run_dir.with_suffix(".progress")
        name = f"{short(load)} {unit(self.scenario)}"

        def tell() -> None:
            used_s = spent_s + (clock.now_ns() - began_ns) / clock.NS_PER_S
            state = going(latest(progress), self.said.warmup_s, self.said.window_s)
            self.status.draw([f"{number + 1:3}  {elapsed(used_s)}  {name}: {state}"])

        return tell if self.status.enabled else lambda: None

    def _run(self, file: Path, run_dir: Path, tell: Callable[[], None]) -> int | None:
        """Exit code; None if the run exceeded its time."""
        progress = run_dir.with_suffix(".progress")
        progress.unlink(missing_ok=True)
        given = {option.name: option.default for option in RUN_OPTIONS} | self.said.options
        given |= {
            "run_dir": str(run_dir),
            "no_report": True,
            "on_invalid": "warn",
            "on_stop": "pass",
            "progress_file": str(progress),
        }
        asked = argparse.Namespace(host=self.said.host, scenario=str(file), extra=self.said.extra, **given)
        with run_dir.with_suffix(".log").open("wb") as sink:
            process = subprocess.Popen(
                locust_command(asked, locustfile()),
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is ours: the run is ended as a run is
            )
        try:
            return self._watch(process, tell)
        except KeyboardInterrupt:
            self.status.clear()
            print(f"the run ends, in {_END_S:.0f} s at most; Ctrl-C again ends it at once", file=sys.stderr)
            raise
        finally:
            end(process, _END_S)
            self.status.clear()

    def _watch(self, process: subprocess.Popen[bytes], tell: Callable[[], None]) -> int | None:
        limit_s = self.said.warmup_s + self.said.window_s + self.scenario.phases.drain_s + _PATIENCE_S
        if self.scenario.cache.arm != "cold":
            limit_s *= 2  # the run has a pass that warms the cache
        began_ns = clock.now_ns()
        while (clock.now_ns() - began_ns) / clock.NS_PER_S < limit_s:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(_POLL_S)
            tell()
        return None


def window(run_dir: Path, conditions: tuple[Condition, ...], dropped: int = 0) -> Window:
    """The measure phase of a run, of which so many sessions were dropped; UsageError where it is not at hand."""
    manifest = rundir.read_json(run_dir / rundir.MANIFEST)
    measure = next((one for one in manifest["phases"] if one["phase"] == "measure"), None)
    if measure is None or measure["end_wall_ns"] is None:
        raise UsageError(f"{run_dir}: ended before its measure phase")
    turns = turns_file.read_turns(run_dir, list({*COLUMNS, "worker", "closed_ns"}))
    counted = sum(worker.get("turns") or 0 for worker in manifest["workers"])
    if turns.num_rows < max(1, counted):
        raise UsageError(
            f"{run_dir}: {turns.num_rows} of {counted} turn records are in the run directory; see turn_records in its summary.json"
        )
    start_ns, anchor = measure["start_wall_ns"], manifest["anchor"]
    offsets = {worker["name"]: worker["clock_offset_ns"] for worker in manifest["workers"]}
    shifts = {
        name: one.mono_ns - offsets.get(name, 0) - anchor["mono_ns"] + anchor["wall_ns"] - start_ns
        for name, one in turns_file.anchors(run_dir).items()
    }
    return windows_of.of_turns(turns, shifts, (measure["end_wall_ns"] - start_ns) / clock.NS_PER_S, conditions, dropped)


def _client_fault(summary: Mapping[str, Any]) -> str | None:
    """Why the measurement is not valid, where the client is at fault or nobody knows; None: it may be used."""
    reasons = summary["verdict"]["reasons"]
    worst = [one for one in reasons if one["phase"] == "measure" and one["level"] == "invalid"]
    return next((str(one["text"]) for one in worst if one["code"] not in _SERVERS_DOING), None)


def remarks_of(summary: Mapping[str, Any]) -> tuple[str, ...]:
    """What is doubtful in a measurement that may be used, each with its remedy."""
    return tuple(str(one["text"]) for one in summary["verdict"]["reasons"] if one["phase"] == "measure")


def latest(progress: Path) -> dict[str, Any] | None:
    """The last whole line of a progress file; None where there is none yet."""
    with contextlib.suppress(OSError), progress.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
        for line in reversed(file.read().splitlines()):
            with contextlib.suppress(ValueError):
                found: dict[str, Any] = json.loads(line)
                return found
    return None


def _last_line(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    said = [line for line in lines if "inferload" in line or "ERROR" in line]
    return _PREFIX.sub("", (said or lines or ["the run said nothing"])[-1])
