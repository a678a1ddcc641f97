"""Whole runs for end-to-end tests: fleets in each of the modes, several at a time, and what must hold of what they leave."""

import concurrent.futures
import contextlib
import http.client
import importlib.metadata
import itertools
import json
import os
import signal
import socket
import time
import urllib.parse
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import locust_process
import pytest
import recomputed
import simulator_process
import summary_reference
from locust_process import LocustProcess, csv_rows, summary_of, turns_of
from scripted_server import Script, ScriptedServer
from simulator_process import Simulator

from inferload.summarise.summarise import summarise

SOAK = os.environ.get("INFERLOAD_SOAK") == "1"
STREAM_S = 300.0 if SOAK else 3.0
ITL_MS = 25
TOKENS = round(STREAM_S * 1000 / ITL_MS)  # of a stream that lasts STREAM_S
TOO_LONG_S = max(30.0, STREAM_S * 2)  # a stream of which nobody waits for the end
TOO_MANY_TOKENS = round(TOO_LONG_S * 1000 / ITL_MS)
MODES = ("local", "processes", "by_hand")
AT_ONCE = 6
PATIENCE_S = 60.0 + 4 * STREAM_S

FILES = {
    "run.json",
    "summary.json",
    "counts.json",
    "marks.jsonl",
    "timeline.csv",
    "report.html",
    "report.md",
    "diagnosis.json",
    "reconcile.json",
    "locust_stats.csv",
    "locust_stats_history.csv",
    "locust_failures.csv",
    "locust_exceptions.csv",
}
PAGES = {"timeline.csv", "report.html", "report.md", "diagnosis.json", "reconcile.json"}
# Reasons that a crowded test machine can give by itself: they say nothing about the case at hand.
CROWDED = {
    "client_delay",
    "client_lag",
    "loop_lag",
    "client_pause",
    "cpu",
    "steal",
    "gc_pause",
    "littles_law",
    "clock_skew",
    "stamps_missing",
}


def scenario(folder: Path, **changes: Any) -> Path:
    """A scenario file of one-turn sessions; `changes` are dotted paths with `__` for the dot."""
    document: dict[str, Any] = {
        "schema": 1,
        "name": "e2e",
        "workload": {"kind": "chat", "prompt_tokens": 20, "output_tokens": 8},
        "arrivals": {"kind": "closed", "users": 4, "spawn_per_s": 50},
        "phases": {"warmup_s": 0, "measure_s": 300, "drain_s": 60 + STREAM_S},
    }
    for path, value in changes.items():
        *folders, key = path.split("__")
        place = document
        for name in folders:
            place = place.setdefault(name, {})
        place[key] = value
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "scenario.yaml"
    file.write_text(json.dumps(document))  # JSON is YAML
    return file


def until(happened: Callable[[], Any], what: str, timeout_s: float = PATIENCE_S) -> Any:
    """Ask again and again until the answer is true; the answer."""
    deadline = time.monotonic() + timeout_s
    while not (answer := happened()):
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(0.08)
    return answer


_ports = itertools.count(20_000 + os.getpid() * 61 % 8_000)


def quiet_port() -> int:
    """A free port below those that the kernel hands out by itself: nobody takes it before the process that it is for."""
    while True:
        port = next(_ports)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def alive(pid: int) -> bool:
    """Whether the process exists and is more than a zombie."""
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


@dataclass
class Fleet:
    """A master (or local run) and, in mode by_hand, the workers that were started beside it."""

    mode: str
    master: LocustProcess
    by_hand: list[LocustProcess] = field(default_factory=list)
    web_port: int | None = None
    port: int | None = None  # of the master for its workers
    to_master: tuple[str, ...] = ()  # what a worker that is started by hand has to say

    @property
    def processes(self) -> list[LocustProcess]:
        return [self.master, *self.by_hand]

    @property
    def text(self) -> str:
        return "\n".join(process.text for process in self.processes)

    def pids(self) -> list[int]:
        """Every process of the fleet that is alive, its scraper and its report's among them."""
        return [pid for one in self.processes for pid in (one.process.pid, *one.children()) if alive(pid)]

    def worker_pids(self) -> list[int]:
        return [one.process.pid for one in self.by_hand] if self.by_hand else self.master.workers()

    def signal(self, number: signal.Signals, whole_group: bool) -> None:
        """To the master alone, or to all its group and, as a stop of a whole deployment does, to all other workers."""
        if not whole_group:
            self.master.send(number)
            return
        for one in self.processes:
            os.killpg(one.process.pid, number)

    def ended(self, killed: int | None = None) -> int:
        """The master's exit code, once it is gone; asserts that it left nobody behind. `killed`: a worker that we killed."""
        code = self.master.exit_code(PATIENCE_S)
        for one in self.by_hand:
            expected = -signal.SIGKILL if one.process.pid == killed else 0
            assert one.exit_code(20) == expected, f"a worker's exit code:\n{one.text}"
        until(lambda: not self.pids(), f"the end of processes {self.pids()}", 5)
        return code

    def wait_for_page(self) -> None:
        """Until the web UI answers; a start waits for the workers by itself."""

        def answers() -> bool:
            try:
                return bool(self.get("/"))
            except ConnectionRefusedError:
                return False

        until(answers, "the web UI's page")

    def post(self, path: str, **form: Any) -> dict[str, Any]:
        """POST a form to the web UI; what it answers."""
        body = urllib.parse.urlencode(form, doseq=True)
        text = self._ask("POST", path, body, {"Content-Type": "application/x-www-form-urlencoded"})
        answer: dict[str, Any] = json.loads(text)
        return answer

    def press_stop(self) -> bool:
        """Stop the run in the web UI, by the method that the installed Locust takes; whether it was stopped."""
        method = "GET" if importlib.metadata.version("locust").startswith("2.46.") else "POST"
        return bool(json.loads(self._ask(method, "/stop"))["success"])

    def get(self, path: str) -> bytes:
        return self._ask("GET", path)

    def get_json(self, path: str) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self.get(path))
        return answer

    def _ask(self, method: str, path: str, body: str = "", headers: dict[str, str] | None = None) -> bytes:
        assert self.web_port is not None
        connection = http.client.HTTPConnection("127.0.0.1", self.web_port, timeout=PATIENCE_S)
        with contextlib.closing(connection):
            connection.request(method, path, body, headers or {})
            reply = connection.getresponse()
            assert reply.status == 200, (path, reply.status)
            return reply.read()


class Place:
    """Where one scene is played: its folder, its servers, its processes. Nothing of it outlives the scene."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run_dir = folder / "run"
        self._simulators: list[Simulator] = []
        self._servers: list[ScriptedServer] = []
        self._fleets: list[Fleet] = []

    def simulator(self, *flags: str, paced: bool = True) -> Simulator:
        """A server whose tokens come by the clock, or in steps of a scheduler."""
        pace = ("--ttft-ms", "20", "--itl-ms", str(ITL_MS)) if paced else ()
        lasts = ("--exit-after-s", str(round(2 * PATIENCE_S))) if SOAK else ()
        self._simulators.append(simulator_process.start(*pace, *lasts, *flags))
        return self._simulators[-1]

    def server(self, script: Script) -> ScriptedServer:
        """A server that answers every request by the script."""
        self._servers.append(ScriptedServer([script]))
        return self._servers[-1]

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
        bind: bool = True,
    ) -> Fleet:
        """Start a run: headless, or with a web UI. `arguments` are for the master. Without `report` its pages, which
        take longer than most of these runs, and the outputs for pipelines are left out. `bind`: the master is given an
        address to listen on."""
        port, web_port = quiet_port(), quiet_port() if web else None
        outputs = ["--junit", "junit.xml", "--markdown", "gates.md", "--github"] if report else ["--no-report"]
        words = ["--run-dir", str(self.run_dir), *outputs, *arguments]
        words += ["--web-host", "127.0.0.1", "--web-port", str(web_port)] if web else ["--headless"]
        if mode == "processes":
            words += ["--processes", str(workers)]
        if mode != "local":
            words += ["--master-bind-port", str(port), "--master-port", str(port)]
            words += ["--master-bind-host", "127.0.0.1"] if bind else []
        if mode == "by_hand":
            words += ["--master", "--expect-workers", str(expected or workers)]
        start = locust_process.start
        fleet = Fleet(
            mode, start(*words, cwd=self.folder, env=env, locustfile=locustfile), web_port=web_port, port=port
        )
        self._fleets.append(fleet)
        if mode == "by_hand":
            fleet.to_master = ("--worker", "--master-host", "127.0.0.1", "--master-port", str(port))
            for _ in range(workers):
                self.join(fleet, *worker_arguments, env=env, locustfile=locustfile)
        return fleet

    def join(
        self, fleet: Fleet, *arguments: str, env: dict[str, str] | None = None, locustfile: Path | None = None
    ) -> None:
        """Start a worker more."""
        one = locust_process.start(*fleet.to_master, *arguments, cwd=self.folder, env=env, locustfile=locustfile)
        fleet.by_hand.append(one)

    @property
    def text(self) -> str:
        """All that its processes have printed."""
        return "\n".join(fleet.text for fleet in self._fleets)

    def close(self) -> None:
        for fleet in self._fleets:
            for one in fleet.processes:
                for pid in one.children():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                one.kill()
        for server in self._servers:
            server.close()
        for simulator in self._simulators:
            with contextlib.suppress(ProcessLookupError):
                os.kill(simulator.process.pid, signal.SIGCONT)
            simulator_process.stop(simulator)


@dataclass(frozen=True)
class Scene:
    """Something to be played once, beside others; tests then look at what came of it."""

    name: str
    play: Callable[..., Any]
    arguments: tuple[Any, ...] = ()

    def __str__(self) -> str:
        return self.name


class Stage:
    """Plays all scenes that the selected tests look at, a few at a time: they mostly wait."""

    def __init__(self, items: Iterable[Any], folder: Path) -> None:
        self._pool = concurrent.futures.ThreadPoolExecutor(AT_ONCE)
        self._folder = folder
        self._places: list[Place] = []
        self._played: dict[Scene, concurrent.futures.Future[Any]] = {}
        found = [item.callspec.params.get("scene") for item in items if hasattr(item, "callspec")]
        wanted = [scene for scene in dict.fromkeys(found) if isinstance(scene, Scene)]
        for scene in sorted(wanted, key=lambda scene: not hasattr(scene.play, "waits")):
            self._played[scene] = self._pool.submit(self._play, scene, len(self._played))

    def result(self, scene: Scene) -> Any:
        """What came of it; an assertion that failed on the way fails here."""
        return self._played[scene].result()

    def close(self) -> None:
        for future in self._played.values():
            future.cancel()
        for place in self._places:
            place.close()
        self._pool.shutdown(cancel_futures=True)

    def _play(self, scene: Scene, number: int) -> Any:
        folder = self._folder / f"{number:02}"
        folder.mkdir()
        place = Place(folder)
        self._places.append(place)
        try:
            return scene.play(place, *scene.arguments)
        except Exception as error:
            error.add_note(place.text)
            raise
        finally:
            place.close()


def waits(play: Callable[..., Any]) -> Callable[..., Any]:
    """Mark what waits for a minute and does little: it is played first, beside all others."""
    play.waits = True  # type: ignore[attr-defined]
    return play


def scenes(play: Callable[..., Any], *cases: tuple[Any, ...]) -> Any:
    """Parametrize a test with a scene per case."""
    made = [Scene("-".join([play.__name__.strip("_"), *map(str, case)]), play, case) for case in cases]
    return pytest.mark.parametrize("scene", made, ids=[str(scene).partition("-")[2] or "once" for scene in made])


# -- what a run did and left behind


@dataclass(frozen=True)
class Ended:
    """A run that is over: where its files are, its exit code, all that its processes printed."""

    run_dir: Path
    code: int
    text: str
    simulator_stats: dict[str, Any] | None = None
    seen: dict[str, Any] = field(default_factory=dict)

    @property
    def summary(self) -> dict[str, Any]:
        return summary_of(self.run_dir)

    @property
    def turns(self) -> list[dict[str, Any]]:
        return turns_of(self.run_dir)

    @property
    def codes(self) -> set[str]:
        """Reasons of the measure phase that decide its verdict, without those of a crowded machine."""
        reasons = self.summary["verdict"]["reasons"]
        return {one["code"] for one in reasons if one["phase"] == "measure"} - CROWDED


def marks_of(run_dir: Path) -> list[dict[str, Any]]:
    """What is marked so far; a line that is being written is left out."""
    try:
        text = (run_dir / "marks.jsonl").read_text()
    except OSError:
        return []
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def mark(run_dir: Path, kind: str, phase: str | None = None) -> dict[str, Any] | None:
    """The first mark of a kind."""
    found = (one for one in marks_of(run_dir) if one["kind"] == kind and phase in (None, one.get("phase")))
    return next(found, None)


def begun(run_dir: Path) -> None:
    """Wait until the measure phase has begun."""
    until(lambda: mark(run_dir, "phase", "measure"), f"the measure phase of {run_dir}")


STOPS = {"stopped by Ctrl-C": 130, "stopped by SIGTERM": 143, "stopped by SIGHUP": 143}


def contract_code(ended: Ended) -> int:
    """The exit code that a headless run must have by its own summary and its mark of a stop."""
    verdict, stop = ended.summary["verdict"], mark(ended.run_dir, "stop")
    stopped = 0 if stop is None else STOPS.get(stop["text"], 0)
    code = 3 if verdict["measurement"] == "invalid" else stopped if verdict["passed"] else 1
    assert ended.summary["outcome"]["exit_code"] == code
    return code


def check_files(run_dir: Path, killed: str | None = None, metrics: bool = True) -> None:
    """Every file of the contract, none empty, nothing half written beside them. `killed`: a worker whose parts stay."""
    names = {str(path.relative_to(run_dir)) for path in run_dir.rglob("*") if path.is_file()}
    turns = {name for name in names if name.startswith("turns/")}
    scrapes = {name for name in names if name.startswith("server_metrics/")}
    assert turns
    parts = f"turns/{killed}-00"
    assert all(name.endswith("-all.parquet") or (killed and name.startswith(parts)) for name in turns), turns
    assert bool(scrapes) == metrics
    assert all(name.endswith(".parquet") for name in scrapes), scrapes
    assert names - turns - scrapes in (FILES, FILES - PAGES)
    assert all((run_dir / name).stat().st_size for name in names)


_NUMBERS = {"count", "mean", "p50", "p90", "p95", "p99", "p999", "min", "max"}
_TURNS = {"sent", "ok", "failed", "unfinished", "by_failure"}
_LATENCIES = {
    *("ttft_ms", "itl_ms", "itl_token_ms", "tpot_ms", "e2e_ms", "ttft_planned_ms", "e2e_planned_ms", "lag_ms", "ttfo_ms"),
    *("first_event_ms", "upload_ms", "connect_ms", "server_queue_ms", "server_ttft_ms", "server_generation_ms"),
}  # fmt: skip
_RATES = {
    *("offered_sessions_per_s", "achieved_sessions_per_s", "turns_per_s", "output_tok_per_s", "input_tok_per_s"),
    *("goodput_turns_per_s", "slo_attainment"),
}  # fmt: skip
_SERVER = {
    *("target", "kv_cache_usage", "requests_waiting", "requests_running", "prefix_cache_hit_rate", "preemptions"),
    *("prompt_tok_per_s", "generation_tok_per_s", "spec_decode", "ttft_ms"),
}  # fmt: skip
KEYS: dict[str, set[str]] = {
    "": {
        *("format", "run", "verdict", "window_s", "percentiles_from", "sessions", "turns", "stalls", "tokens_per_event"),
        *("steps", "rates", "latency", "client", "servers", "by_class", "cache"),
    },
    "run": {"id", "scenario", "digest", "seed", "target", "model", "engine", "started_at", "versions"},
    "run.versions": {"inferload", "locust", "server"},
    "verdict": {"measurement", "by_phase", "reasons", "gates", "passed"},
    "sessions": {"planned", "dropped", "started", "completed"},
    "turns": _TURNS | {"by_phase"},
    "turns.by_phase": {"warmup", "measure", "drain", "all"},
    "turns.by_phase.warmup": _TURNS,
    "turns.by_phase.measure": _TURNS,
    "turns.by_phase.drain": _TURNS,
    "turns.by_phase.all": _TURNS,
    "stalls": {"turns_with_stall", "longest_ms"},
    "tokens_per_event": {"mean"},
    "rates": _RATES,
    "latency": _LATENCIES,
    "client": {"delay_ms", "loop_lag_ms", "gc_pause_ms", "longest_pause_ms", "cpu_share", "steal_share", "stamps"},
    "by_class.chat": {"turns", "latency"},
    **{f"latency.{name}": _NUMBERS for name in _LATENCIES},
}  # fmt: skip


def check_keys(summary: dict[str, Any]) -> None:
    """The keys that pipelines may rely on."""
    for path, keys in KEYS.items():
        place: Any = summary
        for name in path.split(".") if path else []:
            place = place[name]
        assert keys <= set(place), f"{path}: without {keys - set(place)}"
    assert summary["format"] == 1
    assert [_SERVER - set(one) for one in summary["servers"]] == [set()]
    assert all({"code", "phase", "value", "limit", "text"} <= set(one) for one in summary["verdict"]["reasons"])
    assert all({"gate", "value", "passed"} <= set(one) for one in summary["verdict"]["gates"])


def check_books(ended: Ended) -> None:
    """Summary, Parquet, Locust's tables and the server itself all tell of the same turns."""
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
    for one in [summary["turns"], *summary["turns"]["by_phase"].values()]:
        assert one["sent"] == one["ok"] + one["failed"] + one["unfinished"]
        assert sum(one["by_failure"].values()) == one["failed"] + one["unfinished"] * (
            "unfinished" in one["by_failure"]
        )
    by_phase = summary["turns"]["by_phase"]
    for phase in ("warmup", "measure", "drain"):
        assert by_phase[phase]["sent"] == sum(row["phase"] == phase for row in rows)
    sessions = summary["sessions"]
    assert sessions["planned"] == sessions["dropped"] + sessions["started"]
    overrun_ms = {one["worker"]: one["overrun_ms"] for one in marks_of(ended.run_dir) if one["kind"] == "overrun"}
    assert summarise(ended.run_dir) == summary  # it is a function of the run directory
    assert not summary_reference.differences(summary), "docs/summary.md"
    recomputed.check(summary, json.loads((ended.run_dir / "run.json").read_text()), rows, overrun_ms)

    last: dict[tuple[str, str], int] = {}
    for row in csv_rows(ended.run_dir / "locust_stats_history.csv"):
        last[row["Type"], row["Name"]] = int(row["Total Request Count"])
    assert {key: value for key, value in last.items() if key[0] == "TURN"} == {
        key: int(row["Request Count"]) for key, row in stats.items() if key[0] == "TURN"
    }
    if ended.simulator_stats is not None:  # one more than ours: the preflight's turn
        assert ended.simulator_stats["started"] == everything["sent"] + 1
        assert ended.simulator_stats["finished"] == everything["ok"] + 1


def check_straddle(ended: Ended, at_least: int) -> None:
    """So many turns were under way when the drain began, and ended well after it: a user in a closed loop always has one."""
    drain = mark(ended.run_dir, "phase", "drain")
    assert drain is not None
    manifest = json.loads((ended.run_dir / "run.json").read_text())
    anchors = {worker["name"]: worker["anchor"]["wall_ns"] for worker in manifest["workers"]}
    across = [
        row
        for row in ended.turns
        if row["planned_ns"] + anchors[row["worker"]] < drain["wall_ns"] < row["closed_ns"] + anchors[row["worker"]]
    ]
    assert sum(row["failure"] is None for row in across) >= at_least, f"{len(across)} turns across the drain's begin"
