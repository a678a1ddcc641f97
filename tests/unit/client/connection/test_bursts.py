"""Long answers in bursts: every turn succeeds, and connections stay open."""

import functools
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import product
from pathlib import Path

import burst_server
import gevent
import pytest
import trustme

from inferload.base.clock import now_ns
from inferload.base.tls import TlsSettings
from inferload.client.client import Client, ClientSettings
from inferload.client.connection import reader_choice
from inferload.client.connection.target import Target
from inferload.client.turn_record import TurnRequest, TurnResult

# Turns of the short and of the long form for each number of users; the long forms have 100,200 turns in total.
READERS = {"native": (30, 6_000), "python": (20, 2_400), "tls": (20, 3_000), "python tls": (20, 1_100)}
USERS = (1, 16, 200)
LONG = [pytest.mark.soak, pytest.mark.timeout(900)]


def forms() -> Iterator[object]:
    for reader, framing, users in product(READERS, burst_server.FRAMINGS, USERS):
        if reader.endswith("tls") and framing == "buffered":
            continue  # the same as the reader without TLS
        short, long = READERS[reader]
        name = f"{reader}-{framing}-{users}"
        if reader == "native" or users == 16:
            yield pytest.param((reader, framing, users), short, id=f"{name}-short")
        yield pytest.param((reader, framing, users), long, id=f"{name}-long", marks=LONG)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    trustme.CA().issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(path)
    return path


@pytest.fixture(scope="module")
def url_of(certificate: Path) -> Iterator[Callable[[str, bool], str]]:
    """url_of(framing, with TLS): the address of a server, one of each kind."""
    with ExitStack() as running:
        yield functools.cache(
            lambda framing, tls: running.enter_context(burst_server.running(framing, certificate if tls else None))
        )


@pytest.mark.parametrize(("case", "turns"), list(forms()))
def test_no_turn_of_a_burst_fails(
    case: tuple[str, str, int], turns: int, url_of: Callable[[str, bool], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, framing, users = case
    if "python" not in reader and not reader_choice.built():
        pytest.skip("the compiled reader was not built")
    monkeypatch.setenv(reader_choice.VARIABLE, "python" if "python" in reader else "native")
    answers = burst_server.answers(framing)
    results: list[TurnResult] = []
    target, tls = Target.parse(url_of(framing, reader.endswith("tls"))), TlsSettings(insecure=reader.endswith("tls"))
    client = Client(ClientSettings(target, "m", tls=tls), results.append)
    play(client, users, turns)
    in_flight = client.in_flight
    client.close()
    dials = sum(result.record.connect_ns is not None for result in results)
    failures = Counter(f"{result.record.failure}: {result.detail[:80]}" for result in results if result.record.failure)
    print(f"{reader} {framing} {users} users: {turns} turns, {failures.total()} failures, {dials} dials")
    assert not failures
    assert (len(results), in_flight) == (turns, 0)
    assert dials <= users
    for result in results:
        assert result.text == burst_server.WORD * answers[result.record.turn_index % len(answers)].events


def play(client: Client, users: int, turns: int) -> None:
    """Run users that send one turn after another without a pause."""
    numbers = iter(range(turns))

    def user(name: str) -> None:
        for number in numbers:
            body = b'{"answer": %d}' % (number % len(burst_server.SIZES_BYTES))
            request = TurnRequest(body, f"{name}.{number}", name, number, "chat", "measure", now_ns())
            client.start(request).wait()

    gevent.joinall([gevent.spawn(user, f"s{number}") for number in range(users)], raise_error=True)
