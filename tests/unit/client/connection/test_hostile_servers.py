"""A client of each reader against hostile replies: the turn ends in time with one record, other turns succeed."""

import gc
import json
import os
import re
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import gevent
import hostile_server
import pytest
from fuzz_replies import FORMS, Budget
from hostile_replies import GOOD, TEXT, replies
from reader_pairs import environment

from inferload.base.clock import NS_PER_S, now_ns
from inferload.client import retry
from inferload.client.client import Client, ClientSettings
from inferload.client.connection import reader_choice
from inferload.client.connection.target import Target
from inferload.client.turn import Turn
from inferload.client.turn_record import TurnRequest, TurnResult
from inferload.scenario.schema.request import Timeouts
from inferload.turns.record import Failure

SANITIZED = "ASAN_OPTIONS" in os.environ
SLOWER = 10 if SANITIZED else 1
SHORT = Timeouts(
    first_event_s=0.5 * SLOWER, between_events_s=0.5 * SLOWER, turn_s=1 * SLOWER
)  # for replies without an end
LONG = Timeouts(connect_s=100, first_event_s=100, between_events_s=100, turn_s=100)  # never reached
HANGS_S = 200
# A sanitizer quarantines freed memory and adds red zones.
MAX_MEMORY_MB = 450 if SANITIZED else 150
REPLIES = replies()
ENDLESS = ["silence", *(name for name, each in REPLIES.items() if each.again)]
SOAK = [pytest.mark.soak, pytest.mark.fuzz]
QUICK = ("silence", "endless headers", "an endless error in chunks", "an endless event", "an endless answer")
OTHERS = [name for name in REPLIES if name not in ENDLESS]
# Replies without a size limit.
LINEAR = [
    *("endless carriage returns", "an endless event of lines", "an endless body of known length", "an endless event"),
    *("endless comments", "endless empty events", "an endless answer", "an endless answer without framing"),
]
GOOD_TURN = b'{"reply": "good"}'


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with hostile_server.running() as address:
        yield address


class CheckedClient:
    """A client with checks of its results."""

    def __init__(self, url: str, reader: reader_choice.ReaderName) -> None:
        self.results: list[TurnResult] = []
        self._started = 0
        with environment(reader_choice.VARIABLE, reader):
            self._client = Client(ClientSettings(Target.parse(url), "m", timeouts=LONG), self.results.append)

    def start(self, body: bytes) -> Turn:
        self._started += 1
        name = f"s{self._started}"
        return self._client.start(TurnRequest(body, f"{name}.0", name, 0, "chat", "measure", now_ns()))

    def first_turn_s(self) -> float:
        """Return the duration of the first turn."""
        (record,) = [result.record for result in self.results if result.record.turn_id == "s1.0"]
        return (record.closed_ns - record.planned_ns) / 1e9

    def limit(self, limits: Timeouts, turns: list[Turn]) -> None:
        """Replace the time limits of the client, from now on also those of `turns`."""
        self._client.timeouts = limits
        for turn in turns:
            turn.next_check_ns = 0

    def check_good(self) -> None:
        """Send two good turns in sequence."""
        for _ in range(2):
            result = self.start(GOOD_TURN).wait()
            assert (result.record.failure, result.text) == (None, TEXT), result.detail

    def check_records(self) -> None:
        assert self._client.in_flight == 0
        recorded = Counter(result.record.turn_id for result in self.results)
        assert recorded == Counter(f"s{number}.0" for number in range(1, self._started + 1))
        if self._client._thread is not None:
            idle = [each for each in self._client._idle if not each._closed]  # type: ignore[attr-defined]
            assert len(self._client._thread._connections) == len(idle)

    def close(self) -> None:
        self._client.close()


@pytest.fixture
def clients(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[CheckedClient, CheckedClient]]:
    if not reader_choice.built():
        pytest.skip("the compiled reader was not built")
    # A server on a busy machine closes a connection some time after its reply, when the next turn is on it.
    monkeypatch.setattr(retry, "SLACK_NS", 3600 * NS_PER_S)
    both = CheckedClient(url, "native"), CheckedClient(url, "python")
    for client in both:
        client._client.finish_reasons = True  # else the result of a turn would depend on those before it
    yield both
    for client in both:
        client.close()


def outcomes(
    clients: tuple[CheckedClient, CheckedClient], bodies: list[bytes], limits: Timeouts = LONG
) -> list[tuple[object, object]]:
    """Send these turns concurrently with each reader, good turns meanwhile and after; return the results.

    `limits` apply to these turns only.
    """
    turns = [(clients[0].start(body), clients[1].start(body)) for body in bodies]
    with gevent.Timeout(HANGS_S, RuntimeError("a hostile turn does not end")):
        for client in clients:
            client.check_good()
        for client, started in zip(clients, zip(*turns, strict=True), strict=True):
            client.limit(limits, list(started))
        results = [(native.wait(), python.wait()) for native, python in turns]
        for client in clients:
            client.limit(LONG, [])
            client.check_good()
            client.check_records()
    return [(brief(native), brief(python)) for native, python in results]


def brief(result: TurnResult) -> tuple[Failure | None, str]:
    return result.record.failure, result.text


def check(name: str, native: object, python: object) -> None:
    assert native == python, name
    if not REPLIES[name].legal:
        assert native[0] is not None, name  # type: ignore[index]


def body(name: str, seed: int | None = None) -> bytes:
    return json.dumps({"reply": name} if seed is None else {"reply": name, "seed": seed}).encode()


@pytest.mark.parametrize("name", OTHERS)
def test_a_hostile_reply_fails_only_its_turn(clients: tuple[CheckedClient, CheckedClient], name: str) -> None:
    ((native, python),) = outcomes(clients, [body(name)])
    check(name, native, python)


@pytest.mark.parametrize("name", [pytest.param(each, marks=[] if each in QUICK else SOAK) for each in ENDLESS])
def test_an_endless_reply_is_ended_in_bounded_memory(
    clients: tuple[CheckedClient, CheckedClient], url: str, name: str
) -> None:
    before = forget_peak()
    ((native, python),) = outcomes(clients, [body(name)], SHORT)
    grown_mb = (peak_bytes() - before) / 1e6
    # A reply without a size limit grows until its timeout, which is the later, the longer the good turns beside it take.
    lasted_s = max(client.first_turn_s() for client in clients) if name in LINEAR else 1
    assert grown_mb < MAX_MEMORY_MB * max(1, lasted_s)
    assert not {*hostile_server.taken_whole(url)} - {*LINEAR}, (
        "these end at a timeout: a fast machine reads much until then"
    )
    if not REPLIES[name].legal:
        assert native[0] is not None  # type: ignore[index]
        assert python[0] is not None  # type: ignore[index]


NOISE_S = 0.05


@pytest.mark.parametrize("name", [pytest.param(name, marks=SOAK if at else []) for at, name in enumerate(LINEAR)])
def test_the_cost_is_linear_in_the_bytes(clients: tuple[CheckedClient, CheckedClient], name: str) -> None:
    """Four times the bytes do not take 16 times the CPU time."""
    for client in clients:
        cost_s(client, name, 1 << 16)  # imports and caches
        quarter_s, full_s = (cost_s(client, name, size) for size in (1 << 18, 1 << 20))
        assert full_s < 10 * quarter_s + NOISE_S


def cost_s(client: CheckedClient, name: str, size: int) -> float:
    """Return the CPU time of this process for `size` bytes of an endless reply."""
    gc.collect()
    gc.disable()  # a collection of all objects of the test process takes longer than a reply
    try:
        begun_s = time.process_time()
        result = client.start(json.dumps({"reply": name, "bytes": size}).encode()).wait()
        spent_s = time.process_time() - begun_s
    finally:
        gc.enable()
    assert result.record.failure is not None
    return spent_s


@pytest.mark.parametrize("step", [pytest.param(7, id="short"), pytest.param(1, id="long", marks=SOAK)])
def test_a_reset_at_any_byte_is_a_cut(clients: tuple[CheckedClient, CheckedClient], step: int) -> None:
    counts = list(range(0, len(GOOD) - 1, step))
    for first in range(0, len(counts), 16):
        batch = counts[first : first + 16]
        for count, pair in zip(batch, outcomes(clients, [b'{"reset": %d}' % each for each in batch]), strict=True):
            for failure, text in pair:  # type: ignore[misc]
                assert failure is Failure.CUT or (failure is None and text == TEXT), count


@pytest.mark.parametrize("rounds", [pytest.param(2, id="short"), FORMS[1]])
def test_concurrent_hostile_replies_split_at_random(
    clients: tuple[CheckedClient, CheckedClient], rounds: int | None
) -> None:
    budget = Budget("hostile", rounds)
    for rng in budget.rounds():
        names = rng.sample(OTHERS, 30)
        pairs = outcomes(clients, [body(name, rng.randrange(1 << 30)) for name in names])
        for name, (native, python) in zip(names, pairs, strict=True):
            check(f"{name}", native, python)
        budget.inputs += 2 * len(names)


def forget_peak() -> int:
    """Reset the peak resident size of this process; return the current size."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak_bytes()


def peak_bytes() -> int:
    match = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert match is not None
    return int(match[1]) * 1024
