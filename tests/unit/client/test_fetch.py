"""Requests for server pages: replies that are too long or malformed are refused."""

from collections.abc import Callable, Iterator

import pytest
from scripted_server import Script, ScriptedServer, chunk, send

from inferload.client import fetch, probe
from inferload.client.client import ClientSettings
from inferload.client.connection.target import Target
from inferload.client.fetch import Fetcher, FetchError

LIMIT = 1_000_000
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
CLOSES, CHUNKED = HEAD + b"Connection: close\r\n\r\n", HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Script], ClientSettings]]:
    """Start a server with one script; return its client settings. The page size limit is small."""
    monkeypatch.setattr(fetch, "MAX_PAGE_BYTES", LIMIT)
    servers: list[ScriptedServer] = []

    def start(script: Script) -> ClientSettings:
        servers.append(ScriptedServer([script]))
        return ClientSettings(Target.parse(servers[-1].url), "m")

    yield start
    for server in servers:
        server.close()


@pytest.mark.parametrize(
    "reply",
    [
        CHUNKED + chunk(bytes(50_000)) * 40,  # without an end
        CLOSES + bytes(2 * LIMIT),  # without an end
        HEAD + b"Content-Length: %d\r\n\r\n" % (LIMIT + 1) + bytes(LIMIT + 1),  # complete
    ],
)
def test_a_reply_above_the_size_limit_is_refused(serve: Callable[[Script], ClientSettings], reply: bytes) -> None:
    settings = serve(send(reply))
    with pytest.raises(FetchError) as caught:
        Fetcher(settings, timeout_s=20).get("/v1/models")
    assert str(caught.value) == f"{settings.target.origin}/v1/models: the reply is longer than 1,000,000 bytes"


def test_a_reply_at_the_size_limit_is_accepted(serve: Callable[[Script], ClientSettings]) -> None:
    settings = serve(send(HEAD + b"Content-Length: %d\r\n\r\n" % LIMIT + bytes(LIMIT)))
    assert len(Fetcher(settings, timeout_s=20).get("/v1/models").body) == LIMIT


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b'{"tokens": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"tokens": ["a"]}',
        b'{"tokens": [1e999]}',
        b'{"tokens": [-1]}',
        b'{"tokens": [%s]}' % (b"9" * 5000),
        b'{"tokens": null}',
    ],
)
def test_malformed_token_ids_are_an_error(serve: Callable[[Script], ClientSettings], body: bytes) -> None:
    settings = serve(send(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body))
    with pytest.raises(FetchError, match="without a list of token ids"):
        probe.tokenizer_of(settings)("Hello")
    assert probe.chat_tokenizer(settings)([("user", "Hello")], True) is None
