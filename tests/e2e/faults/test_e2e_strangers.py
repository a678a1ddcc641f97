"""Malformed and foreign messages at the master's port."""

import json
import re
from typing import Any

import msgpack
from e2e_runs import (
    FinishedRun,
    Sandbox,
    check_complete,
    check_run,
    expected_exit_code,
    mark,
    run_cases,
    scenario,
    wait_for_measure_phase,
    wait_until,
)
from locust import __version__ as locust_version
from worker_peer import peer

USERS = 6
UNREGISTERED = "unregistered"
FLOOD = 200  # packets of each kind


def malformed(identity: str) -> list[bytes]:
    """Return packets that cannot be decoded or handled."""
    contents: list[Any] = [
        7,
        ["heartbeat", None],
        [["heartbeat"], None, identity],
        ["heartbeat", None, [identity]],
        ["heartbeat", {"__datetime__": True, "as_str": "yesterday"}, identity],
        ["heartbeat", {"__ObjectId__": True, "as_str": "x"}, identity],
        ["client_ready", 7, identity],
    ]
    return [b"", b"\xc1", b"\x93\xa5", b"\xff" * 1000, *map(msgpack.packb, contents)]


def in_the_name_of_others(identity: str, worker_id: str, run_id: str) -> list[bytes]:
    """Return valid messages of a peer that registers as a worker and sends in the name of a worker of the run."""
    empty = {"seq": 10**6, "tallies": [], "health": [], "in_flight": 0, "booked_ns": 0}
    for_w0 = {"run_id": run_id, "name": "w0"}
    contents: list[Any] = [
        ["inferload_drained", for_w0, worker_id],
        ["quit", None, worker_id],
        ["client_ready", locust_version, identity],
        ["inferload_drained", for_w0 | {"notes": {}, "overrun_ns": 0}, identity],
        ["inferload_spent", for_w0 | {"at_ns": 0}, identity],
        ["inferload_report", for_w0 | empty, identity],
        ["inferload_report", None, identity],
    ]
    return [msgpack.packb(content) for content in contents]


def with_foreign_messages(sandbox: Sandbox) -> FinishedRun:
    """Send foreign messages during the load; then more turns, and SIGINT."""
    simulator = sandbox.simulator()
    file = scenario(sandbox.folder, arrivals__users=USERS)
    fleet = sandbox.fleet("by_hand", "--host", simulator.url, "--scenario", str(file))
    assert fleet.port is not None
    wait_for_measure_phase(sandbox.run_dir)
    wait_until(lambda: simulator.stats()["requests"]["running"] == USERS, "streams of all users")
    run_id = json.loads((sandbox.run_dir / "run.json").read_text())["id"]
    registered = re.search(r"(\S+) \(index 0\) reported as ready", fleet.master.text)
    assert registered is not None
    worker_id = registered[1]
    with peer(fleet.port, UNREGISTERED) as connection:
        for packet in malformed(UNREGISTERED) * FLOOD:
            connection.send(packet)
        connection.send(msgpack.packb(["stats", {"stats": []}, UNREGISTERED]))
    with peer(fleet.port, "stranger") as connection:
        for packet in in_the_name_of_others("stranger", worker_id, run_id):
            connection.send(packet)
    fleet.master.wait_for_line("message in the name of another worker ignored")
    finished = simulator.stats()["requests"]["finished"]
    wait_until(lambda: simulator.stats()["requests"]["finished"] > finished + 2 * USERS, "more turns")
    return sandbox.interrupted(fleet)


@run_cases(with_foreign_messages, ())
def test_foreign_messages_do_not_change_a_run(ended: FinishedRun) -> None:
    for reason in (
        "malformed packet",
        "message under another sender's name",
        "message of an unknown sender",
        "message that cannot be handled",
        "message in the name of another worker",
    ):
        assert ended.text.count(f"{reason} ignored (") == 1, reason
    marked = mark(ended.run_dir, "messages_ignored")
    assert marked is not None
    assert marked["counts"]["malformed packet"] == 10 * FLOOD
    assert marked["counts"]["message that cannot be handled"] == FLOOD
    check_run(ended)
    check_complete(ended)
    assert ended.code == expected_exit_code(ended)
    assert {(worker["lost"], worker["left"], worker["missing_reports"]) for worker in workers(ended)} == {
        (False, False, 0)
    }


def workers(ended: FinishedRun) -> list[dict[str, Any]]:
    manifest = ended.manifest
    entries: list[dict[str, Any]] = manifest["workers"]
    return entries
