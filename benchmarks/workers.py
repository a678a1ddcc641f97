"""`make bench-workers`: one master with many workers, which a few processes play.

Limits: nothing is lost; the master needs at most 70 % of a core, its live figures are at most 3 s old, and it ends within 20 s.
"""

import argparse
import json
import os
import pty
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any

import psutil
import pyarrow.parquet as pq

from benchmarks.cases import PLAYED_TOKENS, Case
from benchmarks.machine import load_average, machine
from benchmarks.server import ROOT, PacedServer

CPU_SHARE, LAG_S, END_S = 0.7, 3.0, 20.0
_LOOK_S = 0.1
_PLAYERS_END_S = 30.0
_FIRST_REQUESTS = Case("first", "answers to the first requests of a run", tokens=20, ttft_ms=20.0, gap_ms=1.0)
_LOCUSTFILE = ROOT / "locustfiles" / "chat.py"


@dataclass(frozen=True, slots=True)
class Fleet:
    """Workers, the processes that play them, and their load."""

    workers: int = 100
    processes: int = 4
    turns_per_s: float = 30.0  # of each worker
    seconds: float = 30.0
    warmup_s: float = 5.0


@dataclass(frozen=True, slots=True)
class ProgressLine:
    """A line of the progress file when it was read: the master's CPU time so far, and the line."""

    read_s: float
    cpu_s: float
    line: dict[str, Any]

    @property
    def measured_s(self) -> float:
        """Time since the begin of the measure phase."""
        return float(self.line["measured_s"] or 0.0)


@dataclass(slots=True)
class Watched:
    """The master's run: instants (s), CPU time with its report, peak memory, lines of the progress file."""

    started_s: float
    ended_s: float = 0.0
    cpu_s: float = 0.0
    peak_mb: float = 0.0
    lines: list[ProgressLine] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class FleetResult:
    """Result of a run. `lost`: a sentence for each count that is not that of the turns which were played."""

    cpu_share: float
    cpu_s: float  # from the begin of the load until all turn records have arrived
    peak_mb: float
    ready_s: float
    lag_s: float
    end_s: float
    end_cpu_s: float
    turns: int
    lost: tuple[str, ...]

    @property
    def holds(self) -> bool:
        return not self.lost and self.cpu_share <= CPU_SHARE and self.lag_s <= LAG_S and self.end_s <= END_S

    def text(self) -> str:
        rows = (
            ("master, share of a core", f"{self.cpu_share:.0%}", f"{CPU_SHARE:.0%}"),
            ("CPU time of the master, with the turn records, s", f"{self.cpu_s:.1f}", ""),
            ("age of the newest figures, worst, s", f"{self.lag_s:.1f}", f"{LAG_S:g}"),
            ("from the end of the load to that of the process, s", f"{self.end_s:.1f}", f"{END_S:g}"),
            ("CPU time from the end of the load, with the report, s", f"{self.end_cpu_s:.1f}", ""),
            ("from the start to the load, s", f"{self.ready_s:.1f}", ""),
            ("peak memory of the master, MB", f"{self.peak_mb:.0f}", ""),
            ("turns", f"{self.turns}", ""),
        )
        lines = [f"{name:52} {value:>8} {limit:>8}" for name, value, limit in (("", "", "limit"), *rows)]
        return "\n".join([*lines, *(f"LOST: {text}" for text in self.lost), "passed" if self.holds else "FAILED"])


def main(argv: Sequence[str]) -> int:
    """Run once. Return exit code 1 if a limit is exceeded."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench workers", description=__doc__, allow_abbrev=False)
    add, default = parser.add_argument, Fleet()
    add("--workers", type=int, default=default.workers, help="workers (%(default)s)")
    add("--processes", type=int, default=default.processes, help="processes that play them (%(default)s)")
    add("--turns-per-s", type=float, default=default.turns_per_s, help="of each worker (%(default)s)")
    add("--seconds", type=float, default=default.seconds, help="duration of the measurement (%(default)s)")
    add("--warmup-s", type=float, default=default.warmup_s, help="duration of the warm-up (%(default)s)")
    add("--keep", type=Path, metavar="DIR", help="keep the files of all processes in this folder")
    arguments = vars(parser.parse_args(argv))
    keep, fleet = arguments.pop("keep"), Fleet(**arguments)
    print(f"{machine()}; load average of others {load_average():.2f}", flush=True)
    if keep is not None:
        keep.mkdir(parents=True)
    with (
        nullcontext(keep.absolute()) if keep is not None else TemporaryDirectory(prefix="bench-") as folder,
        PacedServer(_FIRST_REQUESTS, core=0) as server,
    ):
        result = measured(fleet, Path(folder), server.url)
    print(result.text())
    return 0 if result.holds else 1


def measured(fleet: Fleet, folder: Path, host: str) -> FleetResult:
    """Run once, with all files in a folder; SystemExit if the run has no summary. `host`: answers the first requests of a run."""
    (folder / "token").write_text(secrets.token_hex(32))
    (folder / "scenario.yaml").write_text(json.dumps(_scenario(fleet)))
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    with ExitStack() as stack:
        watched = Watched(time.monotonic())
        master = stack.enter_context(_on_terminal(_master(fleet, folder, host, port), folder / "master.log"))
        players = [stack.enter_context(_player(fleet, folder, port, number)) for number in range(fleet.processes)]
        _watch(master, folder / "progress", watched)
        if not (folder / "run" / "summary.json").is_file():
            log = (folder / "master.log").read_text(errors="replace")
            raise SystemExit(f"the run ended with {master.returncode}:\n{log[-2000:]}")
        begun = sum(int(player.communicate(timeout=_PLAYERS_END_S)[0].split()[-1]) for player in players)
    return _result(fleet, folder / "run", watched, begun)


def _master(fleet: Fleet, folder: Path, host: str, port: int) -> list[str]:
    command = [sys.executable, "-m", "locust", "-f", str(_LOCUSTFILE), "--headless", "--master", "--host", host]
    command += ["--master-bind-host", "127.0.0.1", "--master-bind-port", str(port)]
    command += ["--expect-workers", str(fleet.workers)]
    command += ["--token-file", str(folder / "token"), "--scenario", str(folder / "scenario.yaml")]
    command += ["--run-dir", str(folder / "run"), "--progress-file", str(folder / "progress"), "--metrics-url", "none"]
    return command


def _scenario(fleet: Fleet) -> dict[str, Any]:
    return {
        "schema": 1,
        "name": "bench-workers",
        "workload": {"kind": "chat", "turns": 1, "prompt_tokens": 100, "output_tokens": PLAYED_TOKENS},
        "arrivals": {"kind": "closed", "users": fleet.workers, "spawn_per_s": 10 * fleet.workers},
        "slo": {"ttft_ms": 500, "itl_ms": 50},
        "gates": ["failed_ratio < 0.01"],
        "phases": {"warmup_s": fleet.warmup_s, "measure_s": fleet.seconds, "drain_s": 20},
    }


@contextmanager
def _on_terminal(command: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command with a terminal as its output, which goes to a file."""
    ours, terminal = pty.openpty()
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=terminal, stderr=terminal, cwd=log.parent)
    os.close(terminal)

    def copy() -> None:
        with log.open("wb") as output, suppress(OSError):  # the end of the process
            while text := os.read(ours, 65536):
                output.write(text)

    copying = Thread(target=copy)
    copying.start()
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        copying.join()
        os.close(ours)


@contextmanager
def _player(fleet: Fleet, folder: Path, port: int, number: int) -> Iterator[subprocess.Popen[bytes]]:
    share = (fleet.workers + number) // fleet.processes
    command = [sys.executable, "-m", "benchmarks.played_workers", "--workers", str(share), "--master-port", str(port)]
    command += ["--turns-per-s", str(fleet.turns_per_s), "--token", (folder / "token").read_text()]
    command += ["--locustfile", str(_LOCUSTFILE), "--folder", str(folder / f"player-{number}")]
    with (folder / f"player-{number}.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=log)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _watch(master: subprocess.Popen[bytes], progress: Path, watched: Watched) -> None:
    process, known, before = psutil.Process(master.pid), 0, os.times()
    while master.poll() is None:
        with suppress(psutil.Error, OSError, LookupError):  # at its end
            cpu = process.cpu_times()
            status = Path(f"/proc/{master.pid}/status").read_text()
            watched.peak_mb = max(watched.peak_mb, int(status.partition("VmHWM:")[2].split()[0]) / 1024)
            lines = progress.read_text().splitlines()
            for line in lines[known:]:
                watched.lines.append(ProgressLine(time.monotonic(), cpu.user + cpu.system, json.loads(line)))
            known = len(lines)
        time.sleep(_LOOK_S)
    watched.ended_s, after = time.monotonic(), os.times()
    watched.cpu_s = sum(after[2:4]) - sum(before[2:4])  # of children that have ended: the master, and its own


def _result(fleet: Fleet, run_dir: Path, watched: Watched, begun: int) -> FleetResult:
    summary = json.loads((run_dir / "summary.json").read_text())
    drain = next(index for index, line in enumerate(watched.lines) if line.line["phase"] == "drain")
    load = [line for line in watched.lines[: drain + 1] if line.line["phase"] is not None]
    first, last = load[0], load[-1]
    rate = fleet.workers * fleet.turns_per_s
    # of the figures of a line, just before the next replaces it
    ages_s = [min(after.measured_s, fleet.seconds) - line.line["turns_begun"] / rate for line, after in pairwise(load)]
    return FleetResult(
        cpu_share=(last.cpu_s - first.cpu_s) / (last.read_s - first.read_s),
        cpu_s=watched.lines[-1].cpu_s - first.cpu_s,
        peak_mb=watched.peak_mb,
        ready_s=first.read_s - watched.started_s,
        lag_s=max(ages_s),
        end_s=watched.ended_s - last.read_s,
        end_cpu_s=watched.cpu_s - last.cpu_s,
        turns=begun,
        lost=tuple(_lost(summary, run_dir, begun)),
    )


def _lost(summary: dict[str, Any], run_dir: Path, begun: int) -> Iterator[str]:
    """Yield a sentence for each count that differs from the number of turns that were played."""
    phases, files = summary["turns"]["by_phase"], (run_dir / "turns").glob("*.parquet")
    counts = {
        "turns sent": (phases["all"]["sent"], begun),
        "turns that ended well": (phases["all"]["ok"], begun),
        "turn records": (summary["turn_records"]["at_hand"], begun),
        "rows of the turn files": (sum(pq.read_metadata(file).num_rows for file in files), begun),
        "sessions of the measure phase": (summary["sessions"]["completed"], phases["measure"]["sent"]),
    }
    yield from (f"{name}: {count} of {known}" for name, (count, known) in counts.items() if count != known)
