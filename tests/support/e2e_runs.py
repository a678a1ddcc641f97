"""Runs of `locust` for end-to-end tests, several at a time, and checks of their run directories."""

import concurrent.futures
import contextlib
import http.client
import importlib.metadata
import json
import os
import signal
import time
import urllib.parse
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import documents
import locust_process
import pytest
import recomputed
import simulator_process
from locust_process import LocustProcess, csv_rows, summary_of, turns_of
from ports import unused_port
from processes import alive
from scripted_server import Script, ScriptedServer
from simulator_process import Simulator
from small_scenario import document
from summaries import summarised

from inferload.base import rundir
from inferload.results.documents import typed_documents
from inferload.results.documents.manifest_document import Manifest
from inferload.results.documents.summary_document import Summary

SOAK = os.environ.get("INFERLOAD_SOAK") == "1"
STREAM_S = 300.0 if SOAK else 3.0
ITL_MS = 50
TOKENS = round(STREAM_S * 1000 / ITL_MS)  # of a stream that lasts STREAM_S
TOO_LONG_S = max(30.0, STREAM_S * 2)  # duration of a stream that a test does not wait for
TOO_MANY_TOKENS = round(TOO_LONG_S * 1000 / ITL_MS)
AT_ONCE, IDLE_AT_ONCE = 6, 3
PATIENCE_S = 60.0 + 4 * STREAM_S

PAGES = {"timeline.csv", "report.html", "report.md", "diagnosis.json", "reconcile.json"}
LOCUST_FILES = [f"locust_{name}.csv" for name in ("stats", "stats_history", "failures", "exceptions")]
FILES = {"run.json", "summary.json", "counts.json", "marks.jsonl", *LOCUST_FILES, *PAGES}
# Reasons of the verdict that no busy machine causes: of the load, of its records and of the server.
INCOMPLETE = {
    *("no_turns", "at_limit", "dropped_sessions", "lost_worker", "report_gap", "lost_records", "write_error"),
    *("locust_adaptation", "clock_step", "unfinished_drain", "count_mismatch", "server_restart", "scrape_gap"),
}  # fmt: skip


def scenario(folder: Path, **changes: Any) -> Path:
    """Write a scenario of one-turn sessions. `changes`: values by dotted path, with `__` for the dot."""
    phases = {"warmup_s": 0, "measure_s": 300, "drain_s": 60 + STREAM_S}
    given = document(name="e2e", arrivals={"kind": "closed", "users": 4, "spawn_per_s": 50}, phases=phases)
    for path, value in changes.items():
        *folders, key = path.split("__")
        block = given
        for name in folders:
            block = block.setdefault(name, {})
        block[key] = value
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "scenario.yaml"
    file.write_text(json.dumps(given))  # JSON is YAML
    return file


def wait_until(
    condition: Callable[[], Any], description: str, timeout_s: float = PATIENCE_S, longest_s: float = 0.25
) -> Any:
    """Poll until the condition is true, less often after a longer time; return its value. `longest_s`: between two polls."""
    began_s = time.monotonic()
    while not (value := condition()):
        waited_s = time.monotonic() - began_s
        assert waited_s < timeout_s, f"not within {timeout_s} s: {description}"
        time.sleep(min(0.02 + waited_s / 10, longest_s))
    return value


@dataclass
class Fleet:
    """Master (or local run) and, in mode by_hand, the workers started separately."""

    master: LocustProcess
    by_hand: list[LocustProcess] = field(default_factory=list)
    web_port: int | None = None
    port: int | None = None  # of the master for workers started by hand
    worker_options: tuple[str, ...] = ()  # of a worker started by hand

    @property
    def processes(self) -> list[LocustProcess]:
        return [self.master, *self.by_hand]

    @property
    def text(self) -> str:
        return "\n".join(process.text for process in self.processes)

    def pids(self) -> list[int]:
        """Return all running processes of the fleet, scraper and report included."""
        return [pid for process in self.processes for pid in (process.process.pid, *process.children()) if alive(pid)]

    def worker_pids(self) -> list[int]:
        return [worker.process.pid for worker in self.by_hand] if self.by_hand else self.master.workers()

    def signal(self, number: signal.Signals, whole_group: bool) -> None:
        """Signal the master only, or the process groups of master and workers, like the stop of a deployment."""
        if not whole_group:
            self.master.send(number)
            return
        for process in self.processes:
            os.killpg(process.process.pid, number)

    def exit_code(self, *killed: int) -> int:
        """Wait for the end; return the master's exit code. Asserts that no process is left. `killed`: pids of killed workers."""
        code = self.master.exit_code(PATIENCE_S)
        for worker in self.by_hand:
            expected = -signal.SIGKILL if worker.process.pid in killed else 0
            assert worker.exit_code(20) == expected, f"a worker's exit code:\n{worker.text}"
        wait_until(lambda: not self.pids(), f"the end of processes {self.pids()}", 5)
        return code

    def wait_for_page(self) -> None:
        """Wait until the web UI responds."""

        def responds() -> bool:
            try:
                return bool(self.get("/"))
            except ConnectionRefusedError:
                return False

        wait_until(responds, "the web UI's page")

    def post(self, path: str, **form: Any) -> dict[str, Any]:
        """POST a form to the web UI; return the JSON response."""
        body = urllib.parse.urlencode(form, doseq=True)
        text = self._request("POST", path, body, {"Content-Type": "application/x-www-form-urlencoded"})
        response: dict[str, Any] = json.loads(text)
        return response

    def steer(self, **order: Any) -> None:
        """Send an order of the live view."""
        self._request("POST", "/inferload/steer", json.dumps(order), {"Content-Type": "application/json"})

    def press_stop(self) -> bool:
        """Stop the run in the web UI; return True if it was stopped. The HTTP method depends on the Locust version."""
        method = "GET" if importlib.metadata.version("locust").startswith("2.46.") else "POST"
        return bool(json.loads(self._request(method, "/stop"))["success"])

    def outcome(self, after: str = "") -> dict[str, Any]:
        """Wait for the outcome of a run on the page; return the page's status. `after`: directory of an earlier run."""

        def ended() -> dict[str, Any] | None:
            status = self.get_json("/inferload/status")
            return status if "headline" in status and status["run_dir"] != after else None

        return wait_until(ended, "the run's outcome on the page", longest_s=1)  # each page takes CPU time of the master

    def get(self, path: str) -> bytes:
        return self._request("GET", path)

    def get_json(self, path: str) -> dict[str, Any]:
        response: dict[str, Any] = json.loads(self.get(path))
        return response

    def _request(self, method: str, path: str, body: str = "", headers: dict[str, str] | None = None) -> bytes:
        assert self.web_port is not None
        connection = http.client.HTTPConnection("127.0.0.1", self.web_port, timeout=PATIENCE_S)
        with contextlib.closing(connection):
            connection.request(method, path, body, headers or {})
            reply = connection.getresponse()
            assert reply.status == 200, (path, reply.status)
            return reply.read()


SCENARIO_USER = """
from inferload.users import ScenarioUser


class ChatUser(ScenarioUser):
    scenario = "chat"
"""


class Sandbox:
    """Folder, servers and processes of a test run. `close` ends all processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run_dir = folder / "run"
        self._simulators: list[Simulator] = []
        self._servers: list[ScriptedServer] = []
        self._fleets: list[Fleet] = []

    def simulator(self, *flags: str, paced: bool = True) -> Simulator:
        """Start a simulator with fixed TTFT and ITL, or with `paced=False` its scheduler's step times."""
        pace = ("--ttft-ms", "20", "--itl-ms", str(ITL_MS)) if paced else ()
        lasts = ("--exit-after-s", str(round(2 * PATIENCE_S))) if SOAK else ()
        self._simulators.append(simulator_process.start(*pace, *lasts, *flags))
        return self._simulators[-1]

    def server(self, script: Script) -> ScriptedServer:
        """Start a server that runs the script for each request."""
        self._servers.append(ScriptedServer([script]))
        return self._servers[-1]

    def locustfile(self, text: str) -> Path:
        """Write a locustfile: the text, and a user of a scenario if it has no users."""
        file = self.folder / "mine.py"
        file.write_text(text if "User)" in text else text + SCENARIO_USER)
        return file

    def fleet(
        self,
        mode: str,
        *arguments: str,
        workers: int = 2,
        expected: int | None = None,
        web: bool = False,
        env: dict[str, str] | None = None,
        worker_arguments: Iterable[str] = (),
        locustfile: Path | None = None,
        report: bool = False,
        cwd: str = "",
    ) -> Fleet:
        """Start a run, headless or with a web UI. `arguments`: of the master. `cwd`: its directory below that of the sandbox.

        `report`: also write report and CI outputs, which takes longer than most of these runs.
        """
        port, web_port = unused_port(), unused_port() if web else None
        outputs = ["--junit", "junit.xml", "--markdown", "gates.md", "--github"] if report else ["--no-report"]
        words = ["--run-dir", str(self.run_dir), *outputs, *arguments]
        words += ["--web-host", "127.0.0.1", "--web-port", str(web_port)] if web else ["--headless"]
        if mode == "processes":
            words += ["--processes", str(workers)]
        if mode == "by_hand":
            words += ["--master", "--expect-workers", str(expected or workers)]
            words += ["--master-bind-host", "127.0.0.1", "--master-bind-port", str(port)]
        master = locust_process.start(*words, cwd=self._made(cwd), env=env, locustfile=locustfile)
        fleet = Fleet(master, web_port=web_port, port=port)
        self._fleets.append(fleet)
        if mode == "by_hand":
            fleet.worker_options = ("--worker", "--master-host", "127.0.0.1", "--master-port", str(port))
            for _ in range(workers):
                self.join(fleet, *worker_arguments, env=env, locustfile=locustfile)
        return fleet

    def join(
        self,
        fleet: Fleet,
        *arguments: str,
        env: dict[str, str] | None = None,
        locustfile: Path | None = None,
        cwd: str = "",
    ) -> None:
        """Start another worker. `cwd`: its directory below that of the sandbox."""
        words = (*fleet.worker_options, *arguments)
        fleet.by_hand.append(locust_process.start(*words, cwd=self._made(cwd), env=env, locustfile=locustfile))

    def interrupted(
        self, fleet: Fleet, simulator: Simulator | None = None, seen: dict[str, Any] | None = None
    ) -> "FinishedRun":
        """End a run by Ctrl-C at its master. `simulator`: with the requests that it had at the end."""
        fleet.signal(signal.SIGINT, whole_group=False)
        code = fleet.exit_code()
        requests = None if simulator is None else simulator.stats()["requests"]
        return FinishedRun(self.run_dir, code, fleet.text, requests, seen or {})

    def _made(self, name: str) -> Path:
        (self.folder / name).mkdir(exist_ok=True)
        return self.folder / name

    @property
    def text(self) -> str:
        """Output of all processes."""
        return "\n".join(fleet.text for fleet in self._fleets)

    def close(self) -> None:
        for fleet in self._fleets:
            for process in fleet.processes:
                for pid in process.children():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                process.kill()
        for server in self._servers:
            server.close()
        for simulator in self._simulators:
            with contextlib.suppress(ProcessLookupError):
                os.kill(simulator.process.pid, signal.SIGCONT)
            simulator_process.stop(simulator)


Arguments = tuple[Any, ...]


@dataclass(frozen=True)
class RunCase:
    """Run that is executed once, concurrently with others, and shared by tests."""

    name: str
    execute: Callable[..., Any]
    arguments: tuple[Any, ...] = ()

    def __str__(self) -> str:
        return self.name


class RunPool:
    """Executes the run cases of all selected tests, AT_ONCE at a time, and beside them IDLE_AT_ONCE mostly idle ones."""

    def __init__(self, items: Iterable[Any], folder: Path) -> None:
        self._busy = concurrent.futures.ThreadPoolExecutor(AT_ONCE)
        self._idle = concurrent.futures.ThreadPoolExecutor(IDLE_AT_ONCE)
        self._folder = folder
        self._sandboxes: list[Sandbox] = []
        self._futures: dict[RunCase, concurrent.futures.Future[Any]] = {}
        params = [item.callspec.params.get("run_case") for item in items if hasattr(item, "callspec")]
        for run_case in (param for param in dict.fromkeys(params) if isinstance(param, RunCase)):
            pool = self._idle if hasattr(run_case.execute, "mostly_idle") else self._busy
            self._futures[run_case] = pool.submit(self._execute, run_case, len(self._futures))

    def result(self, run_case: RunCase) -> Any:
        """Return the result of a run case; raises the exception of its execution."""
        return self._futures[run_case].result()

    def close(self) -> None:
        for future in self._futures.values():
            future.cancel()
        for sandbox in self._sandboxes:
            sandbox.close()
        for pool in (self._busy, self._idle):
            pool.shutdown(cancel_futures=True)

    def _execute(self, run_case: RunCase, number: int) -> Any:
        folder = self._folder / f"{number:02}"
        folder.mkdir()
        sandbox = Sandbox(folder)
        self._sandboxes.append(sandbox)
        try:
            return run_case.execute(sandbox, *run_case.arguments)
        except Exception as error:
            error.add_note(sandbox.text)
            raise
        finally:
            sandbox.close()


def mostly_idle(execute: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a run case that waits for many seconds with little load."""
    execute.mostly_idle = True  # type: ignore[attr-defined]
    return execute


def raises(execute: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a run case whose program raises an exception."""
    execute.raises = True  # type: ignore[attr-defined]
    return execute


def run_cases(execute: Callable[..., Any], *cases: Arguments, **marked: Iterable[Arguments]) -> Any:
    """Parametrize a test with a run case for each tuple of arguments. `marked`: further cases by a marker, such as `soak`."""

    def param(case: Arguments, *marks: pytest.MarkDecorator) -> Any:
        words = [execute.__name__.strip("_"), *map(str, case)]
        return pytest.param(RunCase("-".join(words), execute, case), id="-".join(words[1:]) or "once", marks=marks)

    others = [param(case, getattr(pytest.mark, name)) for name, group in marked.items() for case in group]
    return pytest.mark.parametrize("run_case", [*map(param, cases), *others])


# -- results of a run


@dataclass(frozen=True)
class FinishedRun:
    """Finished run: its directory, exit code and output."""

    run_dir: Path
    code: int
    text: str
    simulator_stats: dict[str, Any] | None = None
    seen: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def summary(self) -> dict[str, Any]:
        return summary_of(self.run_dir)

    @cached_property
    def manifest(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads((self.run_dir / "run.json").read_text())
        return document

    @cached_property
    def turns(self) -> list[dict[str, Any]]:
        return turns_of(self.run_dir)

    @property
    def codes(self) -> set[str]:
        """Codes of the verdict's reasons in the measure phase."""
        return {reason["code"] for reason in self.summary["verdict"]["reasons"] if reason["phase"] == "measure"}


def marks_of(run_dir: Path) -> list[dict[str, Any]]:
    """Return the complete lines of marks.jsonl."""
    try:
        text = (run_dir / "marks.jsonl").read_text()
    except OSError:
        return []
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def mark(run_dir: Path, kind: str, phase: str | None = None) -> dict[str, Any] | None:
    """Return the first mark of a kind."""
    marks = (mark for mark in marks_of(run_dir) if mark["kind"] == kind and phase in (None, mark.get("phase")))
    return next(marks, None)


def wait_for_measure_phase(run_dir: Path) -> None:
    """Wait for the start of the measure phase."""
    wait_until(lambda: mark(run_dir, "phase", "measure"), f"the measure phase of {run_dir}")


STOPS = {"stopped by Ctrl-C": 130, "stopped by SIGTERM": 143, "stopped by SIGHUP": 143}


def expected_exit_code(ended: Any) -> int:
    """Return the exit code that a headless run must have by its summary and its mark of a stop."""
    verdict, stop = ended.summary["verdict"], mark(ended.run_dir, "stop")
    stopped = 0 if stop is None else STOPS.get(stop["text"], 0)
    code = 3 if verdict["measurement"] == "invalid" else stopped if verdict["passed"] else 1
    assert ended.summary["outcome"]["exit_code"] == code
    return code


def check_files(run_dir: Path, killed: str | None = None, metrics: bool = True) -> None:
    """Check the files of a run directory. `killed`: worker whose unmerged parts remain."""
    names = {str(path.relative_to(run_dir)) for path in run_dir.rglob("*") if path.is_file()}
    turns = {name for name in names if name.startswith("turns/")}
    scrapes = {name for name in names if name.startswith("server_metrics/")}
    assert turns
    parts = f"turns/{killed}-00"
    assert all(name.endswith("-all.parquet") or (killed and name.startswith(parts)) for name in turns), turns
    assert bool(scrapes) == metrics
    assert all(name.endswith(".parquet") for name in scrapes), scrapes
    assert names - turns - scrapes in (FILES, FILES - PAGES)
    typed_documents.read(run_dir / rundir.MANIFEST, Manifest)
    typed_documents.read(run_dir / rundir.SUMMARY, Summary)
    assert all((run_dir / name).stat().st_size for name in names)


def check_run(ended: FinishedRun) -> None:
    """Check the files of a run, and that they agree on its turns."""
    check_files(ended.run_dir)
    check_counts(ended)


def check_complete(ended: FinishedRun) -> None:
    """Check that the verdict names nothing of the load or of its records that is missing."""
    assert ended.codes.isdisjoint(INCOMPLETE), ended.summary["verdict"]


def check_counts(ended: FinishedRun) -> None:
    """Check that summary, Parquet files, Locust's tables and the server agree on the turns."""
    summary, rows = ended.summary, ended.turns
    everything = summary["turns"]["by_phase"]["all"]
    finished = [row for row in rows if row["failure"] != "unfinished"]
    stats = {(row["Type"], row["Name"]): row for row in csv_rows(ended.run_dir / "locust_stats.csv")}
    turns = [row for (kind, _), row in stats.items() if kind == "TURN"]

    assert len({row["turn_id"] for row in rows}) == len(rows) == everything["sent"]
    assert everything["unfinished"] == len(rows) - len(finished)
    assert everything["ok"] + everything["failed"] == len(finished) == sum(int(row["Request Count"]) for row in turns)
    assert everything["failed"] == sum(int(row["Failure Count"]) for row in turns)
    assert everything["failed"] == sum(row["failure"] is not None for row in finished)
    assert int(stats["", "Aggregated"]["Request Count"]) == len(finished)
    for counts in [summary["turns"], *summary["turns"]["by_phase"].values()]:
        assert counts["sent"] == counts["ok"] + counts["failed"] + counts["unfinished"]
        assert sum(counts["by_failure"].values()) == counts["failed"] + counts["unfinished"] * (
            "unfinished" in counts["by_failure"]
        )
    by_phase = summary["turns"]["by_phase"]
    for phase in ("warmup", "measure", "drain"):
        assert by_phase[phase]["sent"] == sum(row["phase"] == phase for row in rows)
    sessions = summary["sessions"]
    assert sessions["planned"] == sessions["dropped"] + sessions["started"]
    overrun_ms = {
        entry["worker"]: entry["overrun_ms"] for entry in marks_of(ended.run_dir) if entry["kind"] == "overrun"
    }
    assert summarised(ended.run_dir) == summary  # it is a function of the run directory
    assert documents.differences("summary-1", summary) == []
    assert documents.differences("run-1", ended.manifest) == []
    recomputed.check(summary, ended.manifest, rows, overrun_ms)

    last: dict[tuple[str, str], int] = {}
    for row in csv_rows(ended.run_dir / "locust_stats_history.csv"):
        last[row["Type"], row["Name"]] = int(row["Total Request Count"])
    assert {key: value for key, value in last.items() if key[0] == "TURN"} == {
        key: int(row["Request Count"]) for key, row in stats.items() if key[0] == "TURN"
    }
    if ended.simulator_stats is not None:  # of a process
        check_received(ended)
        assert ended.simulator_stats["finished"] == everything["ok"] + served_before_load(ended)


def check_received(ended: FinishedRun) -> None:
    """Check that the simulator received each turn once, and those of the preflight.

    A turn that ended before its response may have been closed before the simulator read the request.
    """
    rows = ended.turns
    answered = sum(row["status"] is not None for row in rows)
    assert ended.simulator_stats is not None
    received = ended.simulator_stats["started"] - served_before_load(ended)
    assert answered <= received <= len(rows), f"{answered} of {len(rows)} turns with a status, {received} received"


def served_before_load(ended: FinishedRun) -> int:
    """Return the number of turns that the servers answered for the preflight."""
    targets = ended.manifest["targets"]
    return sum(target["before_load"]["served"] for target in targets)


def check_turns_across_drain(ended: FinishedRun, at_least: int) -> None:
    """Check that at least so many successful turns were in flight at the start of the drain."""
    drain = mark(ended.run_dir, "phase", "drain")
    assert drain is not None
    anchors = {worker["name"]: worker["anchor"]["wall_ns"] for worker in ended.manifest["workers"]}
    across = [
        row
        for row in ended.turns
        if row["planned_ns"] + anchors[row["worker"]] < drain["wall_ns"] < row["closed_ns"] + anchors[row["worker"]]
    ]
    assert sum(row["failure"] is None for row in across) >= at_least, (
        f"{len(across)} turns in flight at the start of the drain"
    )
