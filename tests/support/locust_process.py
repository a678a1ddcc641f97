"""`locust` processes for end-to-end tests: start, output, signals, end."""

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

import forge
import psutil
import pyarrow.parquet as pq

ROOT = Path(__file__).parents[2]
PATIENCE_S = 60.0


@dataclass
class LocustProcess:
    """`locust` process with its output so far."""

    process: subprocess.Popen[str] | forge.Forked
    lines: list[str] = field(default_factory=list)
    news: threading.Condition = field(default_factory=threading.Condition)
    read_all: threading.Event = field(default_factory=threading.Event)

    def read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self.news:
                self.lines.append(line.rstrip("\n"))
                self.news.notify_all()
        self.read_all.set()
        with self.news:
            self.news.notify_all()

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def wait_for_line(self, part: str, timeout_s: float = PATIENCE_S) -> str:
        """Wait for a line with this text; return it."""
        deadline = time.monotonic() + timeout_s
        with self.news:
            while True:
                for line in self.lines:
                    if part in line:
                        return line
                left = deadline - time.monotonic()
                assert left > 0, f"no line with {part!r} within {timeout_s} s:\n{self.text}"
                assert self.process.poll() is None or any(part in line for line in self.lines), f"ended:\n{self.text}"
                self.news.wait(min(left, 1.0))

    def exit_code(self, timeout_s: float = PATIENCE_S) -> int:
        code = self.process.wait(timeout_s)
        self.read_all.wait(5)  # last lines; a remaining child may keep the pipe open
        return code

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def children(self) -> list[int]:
        """Return the running processes of its session: forked workers and scraper."""
        pids = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != self.process.pid:
                with contextlib.suppress(OSError):
                    if (
                        os.getsid(int(entry.name)) == self.process.pid
                        and "State:\tZ" not in (entry / "status").read_text()
                    ):
                        pids.append(int(entry.name))
        return sorted(pids)

    def workers(self) -> list[int]:
        """Return the pids of its forked workers."""
        pids = []
        for pid in self.children():
            with contextlib.suppress(OSError):  # it may end at any time
                if Path(f"/proc/{pid}/comm").read_text() != "scraper\n":
                    pids.append(pid)
        return pids

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(10)


def start(
    *arguments: str, cwd: Path, locustfile: Path | None = None, env: dict[str, str] | None = None
) -> LocustProcess:
    """Start `locust -f locustfiles/chat.py ARGUMENTS` in a new session."""
    words = ["-f", str(locustfile or ROOT / "locustfiles" / "chat.py"), *arguments]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(ROOT), **(env or {})}
    process = forge.LOCUST.start("locust", words, env=environment, cwd=cwd, errors_too=True, new_session=True)
    running = LocustProcess(process)
    threading.Thread(target=running.read, daemon=True).start()
    return running


def listening(pid: int) -> list[tuple[str, int]]:
    """Return the addresses on which a process listens."""
    connections = psutil.Process(pid).net_connections("inet")
    return [(each.laddr.ip, each.laddr.port) for each in connections if each.status == psutil.CONN_LISTEN]


# -- files of a run


def summary_of(run_dir: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((run_dir / "summary.json").read_text())
    return document


def turns_of(run_dir: Path) -> list[dict[str, Any]]:
    """Return the rows of all turn files."""
    return [row for path in sorted((run_dir / "turns").glob("*.parquet")) for row in pq.read_table(path).to_pylist()]


def most_at_once(rows: Iterable[dict[str, Any]]) -> int:
    """Return the largest number of turns in flight at the same time."""
    changes = sorted((row[f"{name}_ns"], step) for row in rows for name, step in (("sent", 1), ("closed", -1)))
    return max(accumulate(step for _, step in changes), default=0)


def contents(run_dir: Path) -> dict[str, bytes]:
    """Return the bytes of each file of a run, and the decoded content of Parquet files."""
    files = {}
    for path in run_dir.rglob("*"):
        if path.is_file():
            files[path.name] = path.read_bytes()
        if path.suffix == ".parquet":
            table = pq.read_table(path)
            files[f"{path.name}, decoded"] = repr((table.to_pydict(), table.schema.metadata)).encode()
    return files


def csv_rows(path: Path) -> list[dict[str, str]]:
    import csv

    with path.open(newline="") as file:
        return list(csv.DictReader(file))
