"""Peers of the master's port that are no workers of the run: malformed packets, and messages in the name of others."""

import contextlib
import json
import re
import signal
from typing import Any

import msgpack
import psutil
import zmq
from e2e_runs import (
    Ended,
    Place,
    Scene,
    Stage,
    begun,
    check_books,
    check_files,
    contract_code,
    mark,
    scenario,
    scenes,
    until,
)
from locust import __version__ as locust_version

USERS = 6
NOBODY = "nobody"
FLOOD = 200  # packets of each kind


def malformed(identity: str) -> list[bytes]:
    """Packets that cannot be decoded, or whose content cannot be handled."""
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
    """Well-formed messages of a peer that registers as a worker itself, and speaks for a worker of the run."""
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


@contextlib.contextmanager
def peer(port: int, identity: str) -> Any:
    """A connection of the kind that a worker has."""
    context = zmq.Context()
    with context.socket(zmq.DEALER) as connection:
        connection.setsockopt(zmq.IDENTITY, identity.encode())
        connection.connect(f"tcp://127.0.0.1:{port}")
        yield connection
        connection.close(linger=5000)
    context.term()


def pestered(place: Place, mode: str) -> Ended:
    """Strangers send during the load what they can; Ctrl-C once the run has gone on for a while."""
    simulator = place.simulator()
    file = scenario(place.folder, arrivals__users=USERS)
    fleet = place.fleet(mode, "--host", simulator.url, "--scenario", str(file))
    assert fleet.port is not None
    begun(place.run_dir)
    until(lambda: simulator.stats()["requests"]["running"] == USERS, "streams of all users")
    run_id = json.loads((place.run_dir / "run.json").read_text())["id"]
    registered = re.search(r"(\S+) \(index 0\) reported as ready", fleet.master.text)
    assert registered is not None
    worker_id = registered[1]
    with peer(fleet.port, NOBODY) as connection:
        for packet in malformed(NOBODY) * FLOOD:
            connection.send(packet)
        connection.send(msgpack.packb(["stats", {"stats": []}, NOBODY]))
    with peer(fleet.port, "stranger") as connection:
        for packet in in_the_name_of_others("stranger", worker_id, run_id):
            connection.send(packet)
    fleet.master.wait_for_line("message in the name of another worker ignored")
    finished = simulator.stats()["requests"]["finished"]
    until(lambda: simulator.stats()["requests"]["finished"] > finished + 2 * USERS, "more turns")
    fleet.signal(signal.SIGINT, whole_group=False)
    return Ended(place.run_dir, fleet.ended(), fleet.text)


@scenes(pestered, ("processes",), ("by_hand",))
def test_strangers_do_not_change_a_run(stage: Stage, scene: Scene) -> None:
    ended: Ended = stage.result(scene)
    assert "Traceback" not in ended.text, ended.text
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
    check_files(ended.run_dir)
    check_books(ended)
    assert ended.codes == set(), ended.summary["verdict"]
    assert ended.code == contract_code(ended)
    assert {(one["lost"], one["left"], one["missing_reports"]) for one in workers(ended)} == {(False, False, 0)}


def workers(ended: Ended) -> list[dict[str, Any]]:
    manifest = json.loads((ended.run_dir / "run.json").read_text())
    found: list[dict[str, Any]] = manifest["workers"]
    return found


# -- where a master listens


def listening(place: Place, *arguments: str) -> Ended:
    """The addresses on which a master with forked workers listens."""
    simulator = place.simulator()
    file = scenario(place.folder, arrivals__users=USERS)
    words = ["--host", simulator.url, "--scenario", str(file), *arguments]
    fleet = place.fleet("processes", *words, bind=False)
    begun(place.run_dir)
    connections = psutil.Process(fleet.master.process.pid).net_connections("inet")
    found = {one.laddr.ip for one in connections if one.status == psutil.CONN_LISTEN and one.laddr.port == fleet.port}
    fleet.signal(signal.SIGINT, whole_group=False)
    return Ended(place.run_dir, fleet.ended(), fleet.text, seen={"addresses": found})


@scenes(listening, (), ("--master-bind-host", "0.0.0.0"))
def test_a_master_with_forked_workers_listens_on_loopback_unless_told_otherwise(stage: Stage, scene: Scene) -> None:
    ended: Ended = stage.result(scene)
    assert "Traceback" not in ended.text, ended.text
    assert ended.seen["addresses"] == {"0.0.0.0" if scene.arguments else "127.0.0.1"}
