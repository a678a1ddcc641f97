"""Transfer of turn files from a worker to the master, over a channel in memory."""

import logging
import os
import random
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gevent
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from inferload.base.clock import Anchor
from inferload.results.open_run import OpenRun
from inferload.run.master.lifecycle import delivery
from inferload.run.master.workers import turn_receiver
from inferload.run.master.workers.turn_receiver import TurnReceiver
from inferload.run.master.workers.workers import Roster
from inferload.run.process import file_pieces, greenlets, protocol
from inferload.run.process.file_pieces import FilePiece
from inferload.run.worker import turn_sender
from inferload.run.worker.turn_sender import TurnSender
from inferload.run.worker.turn_writer import TurnWriter
from inferload.turns import turns_file
from inferload.turns.record import TurnRecord
from inferload.turns.turn_columns import TurnColumns, to_table

RUN = "run-1"


def record(number: int, worker: str = "w0") -> TurnRecord:
    return TurnRecord(f"s{number}.0", f"s{number}", 0, "chat", worker, "measure", 1, 2)


@dataclass
class Channel:
    """A worker that sends and a master that receives; messages for which `loses` is true are lost."""

    master: Path
    worker: Path
    max_mb: int = 10
    loses: Any = lambda kind, data: False
    name: str = "w0"
    run_id: str = RUN
    answers: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.master.mkdir(exist_ok=True)
        self.receiver = TurnReceiver(self.master, RUN, self.max_mb, self._answer)
        self.sender = TurnSender(self.run_id, self.name, self._send)
        self.writer = TurnWriter(self.worker, self.name, Anchor(0, 0), self.run_id, self.sender)
        self.writer.start()

    def _send(self, kind: str, data: dict[str, Any]) -> None:
        assert kind == protocol.TURNS
        if not self.loses(kind, data):
            self.receiver.on_piece(self.name, data)

    def _answer(self, name: str, data: dict[str, Any]) -> None:
        assert name == self.name
        self.answers.append(data)
        if not self.loses(protocol.TAKEN, data):
            self.sender.on_taken(data)

    def write(self, numbers: range) -> None:
        self.writer.extend([record(number, self.name) for number in numbers])
        self.writer._write_part()

    def finish(self) -> str | None:
        self.writer.finish()
        with gevent.Timeout(60):
            return self.writer.deliver()

    def delivered(self) -> list[str]:
        turns: list[str] = OpenRun(self.master.parent).turns.table(["turn_id"])["turn_id"].to_pylist()
        return sorted(turns)


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    for name in ("master", "worker"):
        (tmp_path / name).mkdir()
    return tmp_path / "master" / "turns", tmp_path / "worker" / "turns"


def ids(count: int) -> list[str]:
    return sorted(f"s{number}.0" for number in range(count))


def test_parts_are_sent_during_the_run_and_removed_from_the_worker(folders: tuple[Path, Path]) -> None:
    channel = Channel(*folders)
    channel.write(range(10))
    with gevent.Timeout(20):
        while not (folders[0] / "w0-00001.parquet").exists():
            gevent.sleep(0.01)
    channel.write(range(10, 25))
    assert channel.finish() is None
    channel.receiver.close()
    assert channel.delivered() == ids(25)
    assert not folders[1].parent.exists()
    assert {path.suffix for path in folders[0].iterdir()} == {".parquet"}


def test_lost_messages_are_sent_again(folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn_sender, "REPEAT_S", 0.02)
    dice = random.Random(3)
    channel = Channel(*folders, loses=lambda kind, data: dice.random() < 0.4)
    for start in range(0, 100, 10):
        channel.write(range(start, start + 10))
    assert channel.finish() is None
    assert channel.delivered() == ids(100)


def test_a_large_part_is_sent_in_pieces(folders: tuple[Path, Path]) -> None:
    sizes = []
    channel = Channel(*folders, loses=lambda kind, data: sizes.append(len(data.get("data", b""))))
    channel.writer.extend(
        [TurnRecord(os.urandom(200).hex(), "s0", 0, "chat", "w0", "measure", 1, 2) for _ in range(4000)]
    )
    assert channel.finish() is None
    assert max(sizes) <= 1_000_000
    assert sum(size > 0 for size in sizes) > 3
    assert len(channel.delivered()) == 4000


def test_above_the_limit_the_worker_keeps_its_records(folders: tuple[Path, Path]) -> None:
    channel = Channel(*folders, max_mb=0)
    channel.write(range(10))
    assert channel.finish() == "the limit of --max-turns-mb 0 is reached"
    assert list(folders[0].iterdir()) == []
    assert turns_file.rows_of(folders[1], "w0") == 10
    assert channel.receiver.stopped("w0") == "the limit of --max-turns-mb 0 is reached"


def test_sending_ends_if_the_master_is_silent(folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn_sender, "REPEAT_S", 0.02)
    monkeypatch.setattr(turn_sender, "GIVE_UP_S", 0.2)
    channel = Channel(*folders, loses=lambda kind, data: True)
    channel.write(range(10))
    assert str(channel.finish()).startswith("the master acknowledged nothing for")
    assert turns_file.rows_of(folders[1], "w0") == 10


def test_turns_of_another_run_are_refused(folders: tuple[Path, Path]) -> None:
    channel = Channel(*folders, run_id="another")
    channel.write(range(3))
    assert "not turns of worker w0 in run run-1" in str(channel.finish())
    channel.receiver.close()
    assert list(folders[0].iterdir()) == []


@pytest.mark.parametrize("content", ["garbage", "foreign", "other worker", "joined"])
def test_files_that_are_no_parts_of_the_worker_are_refused(content: str, folders: tuple[Path, Path]) -> None:
    channel = Channel(*folders)
    file = folders[1].parent / "strange"
    if content == "garbage":
        file.write_bytes(b"PAR1" + os.urandom(500) + b"PAR1")
    elif content == "foreign":
        pq.write_table(pa.table({"price": [1.0]}), file)
    else:
        columns = TurnColumns()
        columns.append(record(0, "w1" if content == "other worker" else "w0"))
        table = to_table(columns, Anchor(0, 0), "w0", RUN)
        if content == "joined":  # it would replace the parts that it names
            table = table.replace_schema_metadata(
                {**table.schema.metadata, b"inferload_parts": b'["w0-00001.parquet"]'}
            )
        pq.write_table(table, file)
    channel.sender.add(file)
    assert channel.finish() is not None
    channel.receiver.close()
    assert list(folders[0].iterdir()) == []


def test_too_many_or_malformed_pieces_are_dropped(folders: tuple[Path, Path]) -> None:
    folders[0].mkdir()
    answers: list[dict[str, Any]] = []
    receiver = TurnReceiver(folders[0], RUN, 10, lambda name, data: answers.append(data))
    piece = FilePiece(1, 1000, bytes(32), 0, bytes(10)).to_wire()
    for _ in range(1000):
        receiver.on_piece("w0", piece)
    receiver.on_piece("w0", {"part": "../../x"})
    with gevent.Timeout(20):
        while not answers:
            gevent.sleep(0.01)
    gevent.sleep(0.3)  # further acknowledgements
    assert len(answers) <= 32
    receiver.close()
    assert list(folders[0].iterdir()) == []


class Marks:
    def __init__(self) -> None:
        self.kinds: list[str] = []

    def add(self, kind: str, _text: str, **_more: Any) -> None:
        self.kinds.append(kind)


def roster_of(lost: bool = False) -> Roster:
    roster = Roster(["a"])
    (member,) = roster.members
    member.facts = {"delivers": True, "folder": "/elsewhere", "host": "h"}
    member.turns, member.records.written = 10, None if lost else 10
    member.drained, member.lost = not lost, lost
    return roster


def test_the_master_waits_for_records_while_they_arrive(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    channel, marks, roster = Channel(*folders), Marks(), roster_of()
    (member,) = roster.members
    monkeypatch.setattr(delivery, "STALL_S", 5.0)

    def work() -> None:
        channel.write(range(10))
        gevent.sleep(0.3)
        member.records.held_back = channel.finish()
        member.delivered = True

    gevent.spawn(work)
    delivery.finish(roster, channel.receiver, folders[0], marks, lambda: False)  # type: ignore[arg-type]
    worker = member.ended()
    assert (worker.at_hand, worker.lost_records, worker.held_back_records, marks.kinds) == (10, 0, 0, [])
    assert [path.name for path in folders[0].iterdir()] == ["w0-all.parquet"]


@pytest.mark.parametrize(
    ("lost", "hurried", "kinds"),
    [
        (False, False, ["held_back_records"]),
        (False, True, ["held_back_records"]),
        (True, False, ["lost_records"]),
    ],
)
def test_the_wait_for_missing_records_ends(
    lost: bool, hurried: bool, kinds: list[str], folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    channel, marks, roster = Channel(*folders), Marks(), roster_of(lost=lost)
    (member,) = roster.members
    monkeypatch.setattr(delivery, "STALL_S", 60.0 if hurried else 0.2)
    channel.write(range(4))
    with gevent.Timeout(20):
        while turns_file.rows_of(folders[0], "w0") < 4:
            gevent.sleep(0.01)
        delivery.finish(roster, channel.receiver, folders[0], marks, lambda: hurried)  # type: ignore[arg-type]
    assert marks.kinds == kinds
    assert member.records.at_hand == 4
    worker = member.ended()
    assert (worker.lost_records, worker.held_back_records) == ((6, 0) if lost else (0, 6))
    assert channel.sender.stopped == "the run is over"


def test_a_slow_disk_of_the_master_delays_the_delivery_and_loses_nothing(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While pieces wait for the disk, the worker goes on waiting; a part that fits is written at once."""
    store, sizes = turn_receiver._store, []

    def slow(path: Path, data: bytearray, begun: bool) -> None:
        time.sleep(0.5)
        sizes.append(len(data))
        store(path, data, begun)

    monkeypatch.setattr(turn_receiver, "_store", slow)
    monkeypatch.setattr(turn_receiver, "_ALIVE_S", 0.05)
    monkeypatch.setattr(turn_sender, "GIVE_UP_S", 0.3)
    monkeypatch.setattr(turn_sender, "REPEAT_S", 0.1)
    monkeypatch.setattr(turn_sender, "MAX_REPEAT_S", 0.1)
    channel = Channel(*folders)
    channel.writer.extend(
        [TurnRecord(os.urandom(200).hex(), "s0", 0, "chat", "w0", "measure", 1, 2) for _ in range(1000)]
    )
    channel.writer._write_part()
    channel.write(range(10))
    part_bytes = [path.stat().st_size for path in turns_file.parts_of(folders[1], "w0")]
    assert part_bytes[0] > 2 * file_pieces.PIECE_BYTES
    assert channel.finish() is None
    assert sizes == part_bytes
    assert len(channel.delivered()) == 1010


@pytest.mark.parametrize("advances", [True, False])
def test_the_master_waits_while_workers_write(
    advances: bool, folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker that shares the run directory writes for longer than a stall may last."""
    folders[0].mkdir()
    marks, roster = Marks(), roster_of()
    (member,) = roster.members
    member.facts["delivers"], member.drained, member.records.written = False, False, None
    monkeypatch.setattr(delivery, "STALL_S", 0.4)
    monkeypatch.setattr(greenlets, "LOG_S", 0.2)
    caplog.set_level(logging.INFO)
    member.reported(0, 0, 0, writes=1)

    def work() -> None:
        for seq in range(1, 9):
            gevent.sleep(0.1)
            member.reported(seq, 0, 0, writes=1 + advances * seq)
        columns = TurnColumns()
        columns.extend([record(number) for number in range(10)])
        turns_file.write_part(folders[0], "w0", 1, columns, Anchor(0, 0), run_id=RUN)
        member.drained, member.records.written = True, 10

    working = gevent.spawn(work)
    receiver = TurnReceiver(folders[0], RUN, 10, lambda name, data: None)
    delivery.finish(roster, receiver, folders[0], marks, lambda: False)  # type: ignore[arg-type]
    assert "waiting until the turn records of workers w0 are written" in caplog.text
    assert (member.records.at_hand, marks.kinds) == ((10, []) if advances else (0, ["lost_records", "not_drained"]))
    if not advances:
        assert "turn records of workers w0: no progress for 0.4 s" in caplog.text
        assert member.ended().why_lost == "/elsewhere: the worker did not report that it had written its last records"
    working.kill()
