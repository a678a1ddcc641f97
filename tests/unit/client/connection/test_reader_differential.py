"""Random replies with equal splits to all readers: equal turns and equal connection states."""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from chat_events import ANSWER, CHUNKED
from endpoint_answers import OF_ENDPOINTS
from fuzz_replies import FORMS, Budget, ReplyCase, random_case
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from reader_pairs import GOOD, TLS_READERS, PairClient, TurnOutcome, answered, outcome, pair_client
from scripted_server import HEAD, chunk

from inferload.client import turn
from inferload.client.turn_record import TurnResult
from inferload.scenario.schema.endpoints import ENDPOINTS, EndpointName

CASES = 100  # per round


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[PairClient]]:
    monkeypatch.setattr(turn, "_BODY_END_NS", 1 << 60)  # else a busy machine ends turns between two pieces
    of_readers = [pair_client(reader) for reader in ("native", "python", "uncompiled")]
    yield of_readers
    for client in of_readers:
        client.close()


def common(clients: list[PairClient], case: ReplyCase, why: str = "") -> TurnOutcome:
    """Return the outcome, which is that of each reader."""
    native, *others = (outcome(client, case) for client in clients)
    assert others == [native] * len(others), why
    return native


def test_a_good_reply_keeps_its_connection(clients: list[PairClient]) -> None:
    seen = common(clients, GOOD)
    assert (seen.failure, seen.text, seen.reused) == (None, "Grüße \u2028x", "Grüße \u2028x")


@pytest.mark.parametrize("from_end", range(10))
@pytest.mark.parametrize("surplus", [b"", b"T: x\r\n", b"0"])
def test_the_end_is_found_at_any_split_of_reads(clients: list[PairClient], from_end: int, surplus: bytes) -> None:
    reply = GOOD.pieces[0]
    at = len(reply) - from_end
    pieces = tuple(piece for piece in (reply[:at], reply[at:] + surplus) if piece)
    seen = common(clients, ReplyCase(pieces, "open"))
    assert (seen.failure, seen.late) == (None, False)


@pytest.mark.parametrize("rounds", [pytest.param(3, id="short"), FORMS[1]])
def test_all_readers_give_equal_results_for_random_replies(clients: list[PairClient], rounds: int | None) -> None:
    budget = Budget("replies", rounds)
    for rng in budget.rounds():
        for _ in range(CASES):
            case = random_case(rng)
            common(clients, case, f"{budget}: {case}")
            budget.inputs += 1


@pytest.mark.parametrize("rounds", [pytest.param(3, id="short"), FORMS[1]])
def test_a_turn_does_not_depend_on_when_its_reads_are_parsed(clients: list[PairClient], rounds: int | None) -> None:
    client, _, _ = clients
    budget = Budget("parsing", rounds)
    for rng in budget.rounds():
        for _ in range(CASES):
            case = random_case(rng)
            seen = []
            for client.parses_each_read in (False, True):
                seen.append(outcome(client, case)._replace(late=False))  # the last parsing is the same in both
            assert seen[0] == seen[1], f"{budget}: {case}"
            budget.inputs += 1


@pytest.mark.parametrize("parses_each_read", [False, True])
@pytest.mark.parametrize("then", [b"\n0\r\n\r\n", b"zz\r\n", b""], ids=["long chunk", "no size", "close"])
@pytest.mark.parametrize(
    ("event", "failure"),
    [(b'{"id": 5, "choices": _}', "bad_event"), (b'{"error": "boom"}', "server_error"), (b"{", "bad_event")],
)
def test_the_first_of_two_failures_of_an_answer_counts(
    clients: list[PairClient], event: bytes, failure: str, then: bytes, parses_each_read: bool
) -> None:
    whole = HEAD + CHUNKED + b"\r\n" + chunk(ANSWER[0]) + chunk(b"data: " + event + b"\n\n")
    for client in clients:
        client.parses_each_read = parses_each_read
    for at in (len(whole) - 1, len(whole)):  # the second failure in a read of its own, or not
        pieces = tuple(piece for piece in (whole[:at], whole[at:] + then) if piece)
        assert common(clients, ReplyCase(pieces, "close")).failure == failure


INSTANTS = ("planned", "sent", "written", "first_event", "first", "first_visible", "last", "closed")
READERS = ("native", "python", "uncompiled", *TLS_READERS)
FRAMINGS = ("chunked", "chunks anywhere", "length", "close")
# For the TLS layer, the ends that are those of a plain stream.
ENDINGS = {"open": "open", "close": "close_notify_then_close", "reset": "reset"}


@pytest.fixture(scope="module")
def clients_of() -> Iterator[Callable[[EndpointName], dict[str, PairClient]]]:
    """clients_of(endpoint): one client of each reader."""
    known: dict[EndpointName, dict[str, PairClient]] = {}

    def of(endpoint: EndpointName) -> dict[str, PairClient]:
        if endpoint not in known:
            known[endpoint] = {reader: pair_client(reader, endpoint) for reader in READERS}
        return known[endpoint]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(turn, "_BODY_END_NS", 1 << 60)  # else a busy machine ends turns between two pieces
        yield of
        for clients in known.values():
            for client in clients.values():
                client.close()


def split(data: bytes, at: list[int]) -> list[bytes]:
    edges = sorted({0, *(position % (len(data) + 1) for position in at), len(data)})
    return [data[a:b] for a, b in pairwise(edges) if b > a]


def reply_of(endpoint: EndpointName, framing: str, chunk_edges: list[int]) -> bytes:
    events = OF_ENDPOINTS[endpoint]
    body = b"".join(events)
    if framing in ("length", "close"):
        length = b"Content-Length: %d\r\n" % len(body) if framing == "length" else b""
        return HEAD + length + b"\r\n" + body
    parts = split(body, chunk_edges) if framing == "chunks anywhere" else events
    return HEAD + CHUNKED + b"\r\n" + b"".join(map(chunk, parts)) + b"0\r\n\r\n"


def without_stamps(result: TurnResult) -> dict[str, Any]:
    """Return all fields of a result, with each instant or duration replaced by True if it is known, and check the stamps."""
    record = msgspec.structs.asdict(result.record)
    instants = [record[f"{name}_ns"] for name in INSTANTS if record[f"{name}_ns"] is not None]
    if record["first_visible_ns"] is not None:
        assert record["first_ns"] <= record["first_visible_ns"] <= record["last_ns"]
        instants.remove(record["first_visible_ns"])
    assert instants == sorted(instants)
    assert result.over_ns >= record["closed_ns"]
    events = list(record["event_ns"] or ())
    assert events == sorted(events)
    if events:
        assert record["sent_ns"] + events[0] == record["first_ns"]
        assert record["sent_ns"] + events[-1] == record["last_ns"]
    known = {name: value is not None for name, value in record.items() if name.endswith("_ns")}
    own = {"event_ns": len(events), "delay_ns": None, "target": None}  # number of reads, and the port
    answer = msgspec.structs.asdict(result)
    return answer | {"record": record | known | own, "over_ns": None, "reads_unstamped": None}


def test_every_endpoint_is_compared() -> None:
    assert set(OF_ENDPOINTS) == set(ENDPOINTS)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    endpoint=st.sampled_from(sorted(OF_ENDPOINTS)),
    framing=st.sampled_from(FRAMINGS),
    edges=st.tuples(st.lists(st.integers(0, 5_000), max_size=6), st.lists(st.integers(0, 5_000), max_size=8)),
    missing=st.one_of(st.just(0), st.integers(0, 5_000)),
    ending=st.sampled_from(sorted(ENDINGS)),
)
@example(endpoint="messages", framing="chunked", edges=([], []), missing=1, ending="close")
@example(endpoint="responses", framing="close", edges=([], []), missing=3, ending="reset")
@example(endpoint="completions", framing="length", edges=([], []), missing=1, ending="reset")
def test_all_readers_give_the_same_record_for_any_split_and_end(  # type: ignore[no-untyped-def]
    clients_of, *, endpoint: EndpointName, framing: str, edges: tuple[list[int], list[int]], missing: int, ending: str
) -> None:
    """`edges`: of chunks, and of the pieces that are sent. `missing`: bytes that the server does not send."""
    reply = reply_of(endpoint, framing, edges[0])
    sent = reply[: len(reply) - missing % len(reply)]
    results = {}
    for reader, client in clients_of(endpoint).items():
        client.forget_idle()
        end = ENDINGS[ending] if reader in TLS_READERS else ending
        result, late = answered(client, ReplyCase(tuple(split(sent, edges[1])), end))
        results[reader] = (without_stamps(result), late and result.record.ok)
    assert results == dict.fromkeys(READERS, results["native"])
