"""Runs on a virtual clock: the order of its timers, what holds it, the load, the counts, equal runs, and what is refused."""

import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gevent
import gevent.socket
import gevent.threadpool
import pytest
import recomputed
import scrapes
import synthetic_run
import virtual
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from locust_process import most_at_once, turns_of

from inferload import cli
from inferload.base import rundir
from inferload.base.clock import NS_PER_S
from inferload.figures.pages import metric_names as names
from inferload.results.open_run import OpenRun
from inferload.run.virtual import start
from inferload.run.virtual.loop import MOST_PASSES, replace_hub
from inferload.turns.tally import count_faults

MAKE = pytest.TempPathFactory
WORKLOAD = {"kind": "chat", "turns": 2, "prompt_tokens": 50, "output_tokens": 6, "think_time_s": 0.2}
CLOSED = {"kind": "closed", "users": 3, "spawn_per_s": 3}
KIND = {"schema": 1, "name": "virtual", "workload": WORKLOAD, "arrivals": CLOSED, "phases": {"measure_s": 4}}


def scenario(**changes: Any) -> dict[str, Any]:
    return {**KIND, **changes}


def made(load: dict[str, Any], folder: Path, *options: str, **server: Any) -> dict[str, Any]:
    """Make a run, and return its summary."""
    server = server or {"variant": "t4-prefix-caching"}
    return virtual.run(folder.parent, load, *options, **server).summary


def connected() -> tuple[Any, Any]:
    """Return two connected sockets, as those of two programs."""
    with gevent.socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        ours = gevent.socket.create_connection(listening.getsockname())
        return ours, listening.accept()[0]


def in_thread(call: Callable[[], Any]) -> Any:
    """Return the result of a call in a native thread, whose hub it may replace."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


@given(st.lists(st.integers(0, 1000), max_size=30))
def test_greenlets_wake_in_order_at_their_instants(instants: list[int]) -> None:
    def woken() -> list[tuple[int, int]]:
        loop, seen = replace_hub(), []

        def sleeper(at_ns: int) -> None:
            gevent.sleep(at_ns / NS_PER_S)
            seen.append((loop.at_ns, at_ns))
            gevent.joinall([gevent.spawn(gevent.sleep, later_ns / NS_PER_S) for later_ns in (3, 5)])
            seen.append((loop.at_ns, at_ns + 5))

        gevent.joinall([gevent.spawn(sleeper, at_ns) for at_ns in instants])
        gevent.get_hub().destroy(destroy_loop=True)
        return seen

    seen = in_thread(woken)
    assert len(seen) == 2 * len(instants)
    assert [now_ns for now_ns, _ in seen] == sorted(now_ns for now_ns, _ in seen)
    assert all(now_ns == at_ns for now_ns, at_ns in seen)


def test_a_timer_can_be_restarted_stopped_and_repeated() -> None:
    def calls() -> list[tuple[str, int]]:
        loop, seen = replace_hub(), []
        stopped, repeated, again = loop.timer(1), loop.timer(1, 2), loop.timer(5, 3)
        stopped.start(seen.append, ("stopped", 0))
        repeated.start(lambda: seen.append(("repeated", loop.at_ns // NS_PER_S)))
        again.start(lambda: seen.append(("again", loop.at_ns // NS_PER_S)))
        stopped.stop()
        again.again(again.callback)
        gevent.sleep(6.5)
        gevent.get_hub().destroy(destroy_loop=True)
        return seen

    assert in_thread(calls) == [("repeated", 1), ("again", 3), ("repeated", 3), ("repeated", 5), ("again", 6)]


def after_a_hold(loop: Any, call: Callable[[], object]) -> None:
    """Make a call 50 ms after the loop began to stand still."""
    while loop._hold_began_ns is None:
        time.sleep(0.001)
    time.sleep(0.05)
    call()


def test_sockets_and_threads_hold_the_clock() -> None:
    """A foreign program answers late, and calls in pools take long: no virtual time passes, and a timer waits."""

    def held() -> tuple[int, int, bytes]:
        loop = replace_hub()
        ours, theirs = connected()
        gevent.spawn(gevent.sleep, 3600)
        threading.Thread(target=after_a_hold, args=(loop, lambda: theirs._sock.send(b"x"))).start()
        data = ours.recv(1)
        gevent.get_hub().threadpool.apply(time.sleep, (0.05,))
        other = gevent.threadpool.ThreadPool(1)
        other.apply(after_a_hold, (loop, lambda: None))
        ended = loop.held_ns, loop.at_ns, data
        other.kill()
        ours.close(), theirs.close()
        gevent.get_hub().destroy(destroy_loop=True)
        return ended

    held_ns, at_ns, data = in_thread(held)
    assert (at_ns, data) == (0, b"x")
    assert held_ns >= 0.15 * NS_PER_S


def test_a_pair_of_sockets_of_one_program_does_not_hold_the_clock() -> None:
    def waited() -> tuple[int, int]:
        loop = replace_hub()
        ours, theirs = gevent.socket.socketpair()
        with gevent.Timeout(3, False):
            ours.recv(1)
        ours.close(), theirs.close()
        ended = loop.at_ns, loop.held_ns
        gevent.get_hub().destroy(destroy_loop=True)
        return ended

    assert in_thread(waited) == (3 * NS_PER_S, 0)


def test_a_program_that_never_answers_does_not_hold_the_clock_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inferload.run.virtual.loop.HOLD_S", 0.05)

    def waited() -> int:
        loop = replace_hub()
        ours, theirs = connected()
        with gevent.Timeout(0.01, False):
            ours.recv(1)
        ours.close(), theirs.close()
        gevent.get_hub().destroy(destroy_loop=True)
        return loop.at_ns

    assert in_thread(waited) == 0.01 * NS_PER_S


@settings(max_examples=5, deadline=None, phases=(Phase.explicit, Phase.generate))  # shrinking takes minutes
@given(
    st.fixed_dictionaries(
        {
            "users": st.integers(1, 8),
            "turns": st.integers(1, 3),
            "output_tokens": st.integers(1, 20),
            "sessions": st.one_of(st.none(), st.integers(1, 12)),
            "warmup_s": st.sampled_from([0, 1]),
        }
    )
)
def test_a_closed_loop_keeps_its_counts(tmp_path_factory: MAKE, shape: dict[str, Any]) -> None:
    users, output_tokens, sessions = shape["users"], shape["output_tokens"], shape["sessions"]
    load = scenario(
        workload={**WORKLOAD, "turns": shape["turns"], "output_tokens": output_tokens},
        arrivals={"kind": "closed", "users": users, "spawn_per_s": users},
        phases={"measure_s": 3, "sessions": sessions, "warmup_s": shape["warmup_s"]},
    )
    folder = tmp_path_factory.mktemp("closed") / "run"
    summary = made(load, folder)
    rows = turns_of(folder)
    assert rows
    assert most_at_once(rows) <= users
    for row in rows:
        instants = [
            row[f"{name}_ns"] for name in ("planned", "sent", "written", "first_event", "first", "last", "closed")
        ]
        assert instants == sorted(instants)
        assert row["output_tokens"] == output_tokens
    if sessions is not None:
        begun = {row["session_id"] for row in rows if row["phase"] == "measure" and not row["turn_index"]}
        assert len(begun) <= sessions
    assert count_faults(OpenRun(folder).counts.totals.tallies) == []
    assert summary["turns"]["by_phase"]["all"]["sent"] == len(rows)
    generated = scrapes.table_of(folder, [names.GENERATION_TOKENS])["value"].to_pylist()
    assert generated[-1] - generated[0] == sum(row["output_tokens"] for row in rows)


def test_the_summary_is_that_of_the_turns(tmp_path: Path) -> None:
    summary = made(scenario(phases={"measure_s": 8, "warmup_s": 2}), tmp_path / "run")
    manifest = rundir.read_object(tmp_path / "run" / rundir.MANIFEST)
    recomputed.check(summary, manifest, turns_of(tmp_path / "run"), {})
    assert summary["verdict"]["measurement"] == "valid"
    assert summary["run"]["stands_for"] == "Qwen3-4B on NVIDIA T4 (virtual clock)"
    assert manifest["targets"][0]["stands_for"] == summary["run"]["stands_for"]


def contents_of(run_dir: Path) -> dict[str, object]:
    """Return the files of a run directory, without the keys that docs/how-to/rehearse.md lists."""
    contents: dict[str, object] = {}
    for path in run_dir.rglob("*"):
        if path.is_file() and path.stem != "report":  # which shows the date
            data = path.read_bytes()
            contents[str(path.relative_to(run_dir))] = without_own(json.loads(data)) if path.suffix == ".json" else data
    return contents


def without_own(value: Any) -> Any:
    """Return a document without the keys of one execution."""
    if isinstance(value, dict):
        return {key: without_own(each) for key, each in value.items() if key not in OWN_KEYS}
    return [without_own(each) for each in value] if isinstance(value, list) else value


OWN_KEYS = {"started_at", "held_s", "pid"} | {"origin", "folder"}  # of the two folders


def test_equal_seeds_give_equal_files_and_others_do_not(tmp_path: Path) -> None:
    runs = {}
    for name, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        pages = ["--report"] * (seed == "1")
        run = virtual.run(tmp_path / name, scenario(), "--seed", seed, *pages, variant="t4-baseline")
        assert run.code == 0, run.text
        runs[name] = contents_of(run.run_dir)
    first, second, other = runs.values()
    assert first.keys() == second.keys()
    assert [name for name, content in first.items() if second[name] != content] == []
    assert first["turns/w0-all.parquet"] != other["turns/w0-all.parquet"]


def test_a_users_own_tasks_and_tools_run_on_the_clock(tmp_path: Path) -> None:
    """Sleeps, wall time and random numbers of the program are virtual too."""
    program = tmp_path / "tasks.py"
    program.write_text(TASKS)
    runs = [
        virtual.run(tmp_path / name, "", "--run-time", "30s", "--users", "2", locustfile=program) for name in ("a", "b")
    ]
    for run in runs:
        assert run.code == 0, run.text
        assert run.summary["turns"]["ok"] > 10
    assert runs[0].turns == runs[1].turns


TASKS = """
import random
import time
from datetime import datetime
from time import monotonic

from inferload.users import InferenceUser
from locust import between, task

class Asking(InferenceUser):
    wait_time = between(0.5, 2)

    @task
    def ask(self):
        began_s, wall_s = monotonic(), time.time()
        reply = self.chat([{"role": "user", "content": f"word {random.random()}"}], max_tokens=5, name="ask")
        assert reply.ok and reply.text
        time.sleep(1.5)
        assert monotonic() - began_s >= 1.5
        assert abs((time.time() - wall_s) - (monotonic() - began_s)) < 1e-6
"""


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--host", "http://127.0.0.1:1"], "--host: not with --clock virtual"),
        (["--also-host", "http://127.0.0.1:1"], "--also-host: not with --clock virtual"),
        (["--processes", "2"], "--processes: not with --clock virtual: a run on a virtual clock is one process"),
        (["--master-bind-port", "5558"], "--master-bind-port: not with --clock virtual"),
        (["--expect-workers", "2"], "--expect-workers: not with --clock virtual"),
        (["--token-file", "token"], "--token-file: not with --clock virtual"),
        (["--web-port", "0"], "--web-port: not with --clock virtual"),
        (["--web-host", "0.0.0.0"], "--web-host: not with --clock virtual: a run on a virtual clock has no web UI"),
        (["--tls-cert", "x.pem"], "--tls-cert: not with --clock virtual"),
        (["--autostart"], "--autostart: not with --clock virtual"),
        (["--insecure"], "--insecure: not with --clock virtual: nothing is sent"),
        (["--export-metrics", "0"], "--export-metrics: not with --clock virtual"),
        (["--otel"], "--otel: not with --clock virtual"),
        (["--variant", "no-such-variant"], "no-such-variant: unknown"),
        (["--simulator", "--no-such-flag 1"], "--no-such-flag: unknown"),
        (["--simulator", "--port 8001"], "--port: not with a server in memory"),
        (["--simulator", "'"], "close the quotes"),
        (["--variant", "t4-baseline", "--simulator", "--itl-ms 5"], "--variant: not beside --simulator"),
        (["--clock", "real", "--variant", "t4-baseline"], "--variant: only with --clock virtual"),
        (["--seed", "abc"], "--seed abc: not a whole number"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_what_a_virtual_clock_cannot_honour_is_refused_in_one_line(
    options: list[str], text: str, tmp_path: Path
) -> None:
    run = virtual.run(tmp_path, scenario(), *options, simulator=None)
    assert run.code == 2
    assert text in run.text
    assert len(run.text.strip().splitlines()) == 1


def test_a_class_whose_client_has_no_server_is_refused(tmp_path: Path) -> None:
    program = tmp_path / "asking.py"
    program.write_text(TASKS + HEALTH)
    words = ("--run-time", "2s", "--users", "1")
    refused = virtual.run(tmp_path, None, *words, locustfile=program)
    assert (refused.code, refused.text.count("\n")) == (2, 1)
    assert refused.text.startswith("inferload: Health: not with --clock virtual: self.client has no server; ")
    assert virtual.run(tmp_path, None, *words, "Asking", locustfile=program).code == 0


HEALTH = """
from locust import HttpUser

class Health(HttpUser):
    @task
    def health(self):
        self.client.get("/health")
"""


def test_every_text_of_a_rehearsal_says_that_it_is_simulated(tmp_path: Path) -> None:
    gate = ["--gate", "p95(ttft_ms) < 9000", "--gate", "p95(ttft_ms) < 1"]
    files = ["--junit", str(tmp_path / "junit.xml"), "--markdown", str(tmp_path / "gates.md")]
    run = virtual.run(tmp_path, scenario(), *gate, *files, "--report")
    summary, manifest = run.summary, run.manifest
    assert summary["run"]["clock"] == manifest["clock"] == "virtual"
    assert summary["client"]["stamps"] == "virtual"
    assert [gate["simulated"] for gate in summary["verdict"]["gates"]] == [True, True]
    assert summary["outcome"]["headline"].endswith("(simulated, on a virtual clock)")
    lines = run.text.splitlines()
    assert [line for line in lines if line.startswith("gate ")] == [
        line for line in lines if line.startswith(("gate passed, simulated", "gate FAILED, simulated"))
    ]
    for text in (tmp_path / "gates.md", tmp_path / "junit.xml", run.run_dir / "report.md", run.run_dir / "report.html"):
        assert "simulated" in text.read_text()


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory: MAKE) -> virtual.VirtualRun:
    """A run that its tests only read."""
    return virtual.run(tmp_path_factory.mktemp("rehearsed"), scenario())


def test_the_machine_has_no_part_in_the_verdict(rehearsed: virtual.VirtualRun) -> None:
    """Not even of one that is busy: nothing of it is measured."""
    client = rehearsed.summary["client"]
    measured = {name: value for name, value in client.items() if name not in ("stamps", "reader", "readers")}
    assert {json.dumps(value) for value in measured.values() if not isinstance(value, dict)} <= {"null"}
    assert all(not value.get("count") for value in measured.values() if isinstance(value, dict))


def test_runs_of_both_clocks_are_not_compared(
    rehearsed: virtual.VirtualRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    real = synthetic_run.write(tmp_path / "real")
    assert cli.main(["compare", str(real), str(rehearsed.run_dir)]) == 2
    expected = "compare: clock: real against virtual: a rehearsal is no measurement; compare runs of one clock"
    assert capsys.readouterr() == ("", f"inferload: {expected}\n")


def test_clocks_are_replaced_in_modules_that_were_noted_and_in_others(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: dict[str, Any] = {name: SimpleNamespace(own=1) for name in ("noted", "grown", "reloaded", "later")}
    later = loaded.pop("later")
    monkeypatch.setattr(start, "sys", SimpleNamespace(modules=loaded))
    monkeypatch.setattr(start, "_noted", {})
    loaded["noted"].now = time.monotonic
    start.note_clocks()
    loaded["reloaded"] = SimpleNamespace(now=time.monotonic)
    loaded["grown"].now = later.now = time.monotonic
    loaded["later"] = later
    start._replace_in_process(lambda: 5 * NS_PER_S, lambda: 7 * NS_PER_S)
    assert [module.now() for module in loaded.values()] == [5.0] * 4
    assert loaded["noted"].own == 1


def test_a_program_that_polls_the_clock_goes_on(tmp_path: Path) -> None:
    """With a wait of no time between two readings, and without one."""
    program = tmp_path / "polling.py"
    program.write_text(POLLING)
    run = virtual.run(tmp_path, "", "--run-time", "1s", "--users", "1", locustfile=program)
    assert run.code == 0, run.text
    assert run.summary["turns"]["ok"] >= 2


POLLING = """
import time

import gevent
from inferload.users import InferenceUser
from locust import task

class Polling(InferenceUser):
    @task
    def poll(self):
        end = time.time() + 0.02
        while time.time() < end:
            gevent.sleep(0)
        end = time.monotonic() + 0.002
        while time.monotonic() < end:
            pass
        assert self.chat("word", max_tokens=2, name="poll").ok
        gevent.sleep(0.3)
"""


def test_a_task_that_raises_without_a_wait_ends_with_its_run(tmp_path: Path) -> None:
    program = tmp_path / "raising.py"
    program.write_text(POLLING.partition("    def poll")[0] + "    def poll(self):\n        raise RuntimeError('no')\n")
    run = virtual.run(tmp_path, "", "--run-time", "5s", "--users", "1", locustfile=program)
    assert 0 < run.summary["exceptions"]["count"] < MOST_PASSES


def test_an_event_loop_of_asyncio_waits_in_virtual_time(tmp_path: Path) -> None:
    program = tmp_path / "waiting.py"
    program.write_text(
        POLLING.partition("class")[0]
        + """
import asyncio

class Waiting(InferenceUser):
    @task
    def wait_and_ask(self):
        asyncio.run(asyncio.sleep(3))
        assert self.chat("word", max_tokens=2, name="ask").ok
"""
    )
    run = virtual.run(tmp_path, "", "--run-time", "20s", "--users", "1", locustfile=program)
    assert run.code == 0, run.text
    assert 5 <= run.summary["turns"]["ok"] <= 7


EARLY = """
import gevent
from inferload.users import ScenarioUser

gevent.spawn(print)

class Early(ScenarioUser):
    scenario = "smoke"
"""


def test_what_would_wait_on_the_replaced_loop_is_refused(tmp_path: Path) -> None:
    program = tmp_path / "early.py"
    program.write_text(EARLY)
    run = virtual.run(tmp_path, "smoke", locustfile=program)
    assert run.code == 2
    assert "starts greenlets while it is imported" in run.text


AGENTS = """
import random
import time

from inferload.workload.live_agent import LiveAgent, Say

class Agent(LiveAgent):
    def step(self, messages):
        if len(messages) > 5:
            return None
        time.sleep(0.02 + random.random() / 10)
        return Say([{"role": "user", "content": f"{random.random()}"}], output_tokens=5)
"""


def test_equal_runs_of_agents_whose_tools_sleep_and_draw(tmp_path: Path) -> None:
    (tmp_path / "agents.py").write_text(AGENTS)
    load = {
        "schema": 1, "name": "agents", "workload": {"kind": "live_agent", "agent": f"{tmp_path}/agents.py:Agent"},
        "arrivals": {"kind": "closed", "users": 6, "spawn_per_s": 6}, "phases": {"measure_s": 6, "drain_s": 30},
    }  # fmt: skip
    runs = [virtual.run(tmp_path / name, load, env={"PYTHONHASHSEED": seed}) for name, seed in (("a", "1"), ("b", "2"))]
    assert [run.code for run in runs] == [0, 0], runs[0].text
    assert len(runs[0].turns) > 20
    assert contents_of(runs[0].run_dir) == contents_of(runs[1].run_dir)
    by_session: dict[str, list[dict[str, Any]]] = {}
    for row in sorted(runs[0].turns, key=lambda row: row["turn_index"]):
        by_session.setdefault(row["session_id"], []).append(row)
    pauses = [
        later["sent_ns"] - earlier["closed_ns"] for rows in by_session.values() for earlier, later in pairwise(rows)
    ]
    assert pauses
    assert all(pause >= 0.02 * NS_PER_S for pause in pauses)
