"""Workers of a run: only its own processes, or those with its token, and no more than it expects. Ports in use are refused."""

import contextlib
import json
import os
import secrets
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest
from e2e_runs import FinishedRun, Sandbox, run_cases, scenario, wait_for_measure_phase, wait_until
from locust import __version__ as locust_version
from locust_process import LocustProcess, listening, start
from ports import unused_port
from worker_peer import peer

PAIRS = 20 if os.environ.get("INFERLOAD_SOAK") else 1


def counted(sandbox: Sandbox, turns: int = 40) -> Path:
    """Return a scenario that ends after a number of turns."""
    phases = {"warmup_s": 0, "measure_s": None, "drain_s": 20, "turns": turns}
    return scenario(sandbox.folder, arrivals__users=8, phases=phases)


def workers_of(run_dir: Path) -> int:
    return len(json.loads((run_dir / "run.json").read_text())["workers"])


# -- two runs at once


def simultaneous(sandbox: Sandbox) -> list[tuple[LocustProcess, Path]]:
    """Start pairs of runs with forked workers at the same instant, each with the key of its own server."""
    keys = [secrets.token_hex(8), secrets.token_hex(8)]
    servers = [sandbox.simulator("--api-key", key) for key in keys]
    file, ended = counted(sandbox), []
    for pair in range(PAIRS):
        started: list[tuple[LocustProcess, Path]] = []
        barrier = threading.Barrier(2)

        def run(number: int, pair: int = pair, barrier: threading.Barrier = barrier, started: Any = started) -> None:
            run_dir = sandbox.folder / f"{pair}-{number}"
            words = ("--headless", "--processes", "2", "--no-report", "--run-dir", str(run_dir))
            words += ("--host", servers[number].url, "--scenario", str(file), "--on-invalid", "warn")
            barrier.wait()
            process = start(*words, cwd=sandbox.folder, env={"OPENAI_API_KEY": keys[number]})
            started.append((process, run_dir))
            process.exit_code()

        threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        ended += started
    return ended


@run_cases(simultaneous, ())
def test_simultaneous_runs_with_processes_do_not_share_workers(ended: list[tuple[LocustProcess, Path]]) -> None:
    """A worker of the other run would send its own key, which this run's server refuses."""
    assert len(ended) == 2 * PAIRS
    for process, run_dir in ended:
        run = FinishedRun(run_dir, process.exit_code(), process.text)
        assert run.code == 0, run.text
        summary = run.summary
        assert summary["turns"]["by_phase"]["all"]["failed"] == 0
        assert summary["turns"]["by_phase"]["all"]["ok"] >= 40
        assert workers_of(run_dir) == 2


# -- strangers


def with_stranger(sandbox: Sandbox) -> FinishedRun:
    """Register at the port of a master with forked workers, without its token."""
    words = ("--host", sandbox.simulator().url, "--scenario", str(counted(sandbox, 100)), "--on-invalid", "warn")
    fleet = sandbox.fleet("processes", *words)
    ((host, port),) = wait_until(lambda: listening(fleet.master.process.pid), "the master's port")
    with peer(port, "stranger") as connection:
        for _ in range(100):
            connection.send(msgpack.packb(["client_ready", locust_version, "stranger"]))
            connection.send(b"\xc1")
        wait_for_measure_phase(sandbox.run_dir)
        code = fleet.exit_code()
        connection.close(linger=0)
    return FinishedRun(sandbox.run_dir, code, fleet.text, seen={"host": host})


@run_cases(with_stranger, ())
def test_a_peer_without_the_token_cannot_reach_a_master_with_forked_workers(ended: FinishedRun) -> None:
    assert ended.code == 0, ended.text
    assert workers_of(ended.run_dir) == 2
    assert ended.seen["host"] == "127.0.0.1"
    assert "stranger" not in ended.text
    assert "ignored" not in ended.text


def by_token(sandbox: Sandbox) -> FinishedRun:
    """Start a worker without a token, one with another token, and three with the token of a master that expects two."""
    token, other = sandbox.folder / "token", sandbox.folder / "other"
    token.write_text(secrets.token_hex(32) + "\n")
    other.write_text("0123456789abcdef" * 2)
    words = ["--host", sandbox.simulator().url, "--scenario", str(counted(sandbox)), "--token-file", str(token)]
    fleet = sandbox.fleet("by_hand", *words, "--on-invalid", "warn", workers=0, expected=2, web=True)
    fleet.wait_for_page()
    for refused in ((), ("--token-file", str(other))):
        sandbox.join(fleet, *refused)
        stranger = fleet.by_hand.pop()
        stranger.wait_for_line("refused this worker, which has another token or none")
        if not refused:
            assert stranger.exit_code() == 2, stranger.text
            assert len(stranger.lines) == 2, stranger.text
        stranger.kill()
    for _ in range(3):
        sandbox.join(fleet, "--token-file", str(token))
    fleet.master.wait_for_line("3 workers connected")
    fleet.post("/swarm", user_count=8, spawn_rate=50)
    fleet.outcome()
    fleet.master.send(signal.SIGINT)
    return FinishedRun(sandbox.run_dir, fleet.exit_code(), fleet.text, seen={"token": token.read_text().strip()})


@run_cases(by_token, ())
def test_workers_need_the_token_of_the_master_and_expected_ones_are_an_upper_bound(ended: FinishedRun) -> None:
    assert ended.code == 0, ended.text
    assert workers_of(ended.run_dir) == 2
    assert ended.text.count("refused a worker that has another token or none") == 1
    assert "3 workers are connected; the run uses the first 2" in ended.text
    assert ended.seen["token"] not in ended.text
    files = [path.read_bytes() for path in ended.run_dir.rglob("*") if path.is_file()]
    assert not any(ended.seen["token"].encode() in file for file in files)


# -- ports in use


@contextlib.contextmanager
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.parametrize(
    "words",
    [
        ("--master", "--headless", "--master-bind-port"),
        ("--processes", "2", "--headless", "--master-bind-port"),
        ("--processes", "2", "--web-port"),
        ("--web-port",),
        ("--processes", "2", "--headless", "--export-metrics"),
    ],
)
def test_a_port_in_use_is_one_line_before_workers_start(tmp_path: Path, words: tuple[str, ...]) -> None:
    with taken() as port:
        process = start("--host", "http://127.0.0.1:9", "--scenario", "smoke", *words, str(port), cwd=tmp_path)
        code = process.exit_code()
    assert code == 2, process.text
    (line,) = process.lines
    assert line.startswith(f"inferload: {words[-1]} ")
    assert line.endswith(f"{port}: Address already in use; name a free port of this machine")


def test_a_port_for_two_purposes_is_refused(tmp_path: Path) -> None:
    port = str(unused_port())
    words = ("--host", "http://127.0.0.1:9", "--scenario", "smoke", "--web-port", port, "--export-metrics", port)
    process = start(*words, cwd=tmp_path)
    assert process.exit_code() == 2
    assert process.lines == [
        f"inferload: --export-metrics 127.0.0.1:{port}: Address already in use; name a free port of this machine"
    ]
