"""Requests for server pages: replies that are too long or malformed are refused."""

import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scripted_server import NOT_FOUND, Script, ScriptedServer, chunk, page, send
from tls_peer import authority, server_context

from inferload.base.errors import UsageError
from inferload.base.http_status import EXPECTS_TLS, NO_TLS
from inferload.base.tls import Port, TlsSettings
from inferload.cli import download
from inferload.client import fetch, probe, tokenizer
from inferload.client.client import ClientSettings
from inferload.client.connection.target import Target
from inferload.client.fetch import Fetcher, FetchError
from inferload.client.first_turn import SentTurns
from inferload.servers.scraper import clients_of

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
        page(bytes(LIMIT + 1)),  # complete
    ],
)
def test_a_reply_above_the_size_limit_is_refused(serve: Callable[[Script], ClientSettings], reply: bytes) -> None:
    settings = serve(send(reply))
    with pytest.raises(FetchError) as caught:
        Fetcher(settings, timeout_s=20).get("/v1/models")
    assert str(caught.value) == f"{settings.target.origin}/v1/models: the reply is longer than 1,000,000 bytes"


def test_a_reply_at_the_size_limit_is_accepted(serve: Callable[[Script], ClientSettings]) -> None:
    settings = serve(send(page(bytes(LIMIT))))
    assert len(Fetcher(settings, timeout_s=20).get("/v1/models").body) == LIMIT


@pytest.mark.parametrize(
    ("script", "connections"),
    [
        (send(page(b"{}")), 1),
        (send(page(b"{}", lines="Connection: close\r\n")), 4),
        (send(page(b"{}"), close=True), 4),  # without a word: found closed, or closed while the request is on its way
        (send(CLOSES + b"{}", close=True), 4),
        (send(page(b"{}") + b"more"), 4),
    ],
)
def test_requests_have_one_connection_while_the_server_keeps_it(script: Script, connections: int) -> None:
    server = ScriptedServer([script])
    with Fetcher(ClientSettings(Target.parse(server.url), "m")) as fetcher:
        assert [fetcher.post("/x", {"n": n}).json() for n in range(4)] == [{}] * 4
    server.close()
    assert server.connections == connections
    assert len(server.requests) >= 4


def test_a_request_that_a_kept_connection_does_not_answer_is_sent_again() -> None:
    """Once, on another connection; an answer that has begun is not asked for again."""

    def cut(begun: bytes) -> Script:
        return send(begun, close=True)

    server = ScriptedServer(
        [send(page(b"1")), cut(b""), send(page(b"2")), cut(b""), cut(b""), send(page(b"3")), cut(HEAD)]
    )
    with Fetcher(ClientSettings(Target.parse(server.url), "m")) as fetcher:
        assert [fetcher.get("/x").json() for _ in range(2)] == [1, 2]
        with pytest.raises(FetchError):
            fetcher.get("/x")
        assert fetcher.get("/x").json() == 3
        with pytest.raises(FetchError):
            fetcher.get("/x")
    server.close()
    assert len(server.requests) == 7


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
    settings = serve(send(page(body)))
    with pytest.raises(FetchError, match="without a list of token ids"):
        tokenizer.tokenizer(settings, tokenizer.FORMS[0])("Hello")
    assert tokenizer.chat_tokenizer(settings)([("user", "Hello")], True) is None


@pytest.mark.parametrize("path", ["", "/x", "/v1", "/x/v3", "/openai/deployments/gpt"])
@pytest.mark.parametrize("prefix", ["", "/llm"])
@pytest.mark.parametrize("slash", ["", "/"])
@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_of_the_list_names_the_host_to_use(path: str, prefix: str, slash: str, status: int) -> None:
    target = Target.parse(f"http://a.test:8000{path}")
    place = f"https://b.test{prefix}{target.api}/models{slash}"
    with_host = probe._moved_to(fetch.Fetched(status, "", b"", place), target)
    assert with_host == f"https://b.test{prefix}{target.root}"
    assert Target.parse(with_host + (path.removeprefix(target.root) or "")).api == prefix + target.api
    assert probe._moved_to(fetch.Fetched(status, "", b"", f"{target.api}/models/"), target) == ""  # the same server
    assert probe._moved_to(fetch.Fetched(status, "", b"", "https://b.test/login"), target) == ""
    assert probe._moved_to(fetch.Fetched(status, "", b"", "https://[b/v1/models"), target) == ""


def test_a_redirect_of_the_list_ends_the_run(serve: Callable[[Script], ClientSettings]) -> None:
    settings = serve(send(page("", 308, lines="Location: https://b.test/v1/models\r\n")))
    with pytest.raises(UsageError) as raised:
        probe.model_list(settings)
    url = settings.target.origin
    assert str(raised.value) == f"{url}/v1/models: HTTP 308 to https://b.test/v1/models; use --host https://b.test"


@pytest.mark.parametrize("status", [502, 503, 504])
def test_a_list_that_a_gateway_does_not_get_says_so(serve: Callable[[Script], ClientSettings], status: int) -> None:
    found = probe.model_list(serve(send(page("<html><h1>Oh</h1></html>", status))))
    with pytest.raises(
        UsageError, match=rf"HTTP {status}, the .*gateway.*; start the server behind the gateway, or .*"
    ):
        found.only()


HTTPS_PORT = page("<html><center>The plain HTTP request was sent to HTTPS port</center></html>", 400)


@pytest.fixture
def port() -> Iterator[Callable[[Callable[[socket.socket], None]], str]]:
    """port(serve): `host:port` of a server that passes each connection to a function."""
    with ExitStack() as opened:

        def start(serve: Callable[[socket.socket], None]) -> str:
            listener = opened.enter_context(socket.create_server(("127.0.0.1", 0)))

            def accept() -> None:
                with suppress(OSError):
                    while True:
                        threading.Thread(target=serve, args=listener.accept()[:1], daemon=True).start()

            threading.Thread(target=accept, daemon=True).start()
            return f"127.0.0.1:{listener.getsockname()[1]}"

        yield start


def refuses_at_once(sock: socket.socket) -> None:
    with sock:
        sock.recv(65_536)
        sock.sendall(page("Bad Request", 400))


def waits_for_a_head(sock: socket.socket) -> None:
    """Serve as most HTTP servers: nothing is sent before the end of a request's head."""
    with sock, suppress(OSError):
        data = b""
        while b"\r\n\r\n" not in data and (more := sock.recv(65_536)):
            data += more
        sock.sendall(page("Not Found", 404))


def closes_without_an_answer(sock: socket.socket) -> None:
    """Serve as a server that closes the connection of a malformed request without an answer."""
    with sock:
        if sock.recv(65_536).startswith(b"GET "):
            sock.sendall(page("Not Found", 404))


def tells_of_tls(sock: socket.socket) -> None:
    with sock:
        sock.recv(65_536)
        sock.sendall(HTTPS_PORT)


def speaks_tls(sock: socket.socket) -> None:
    with sock, suppress(OSError), server_context("TLSv1.3").wrap_socket(sock, server_side=True):
        pass


PORTS = {
    "http": (EXPECTS_TLS, "https", (tells_of_tls, speaks_tls)),
    "https": (NO_TLS, "http", (refuses_at_once, waits_for_a_head, closes_without_an_answer)),
}
AT = [(scheme, serve) for scheme, row in PORTS.items() for serve in row[2]]


@pytest.mark.parametrize(("scheme", "serve"), AT)
def test_an_address_with_the_other_scheme(port: Any, scheme: str, serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every client names the scheme to use: of turns, of metrics pages, and of downloads."""
    at, (problem, other, _) = port(serve), PORTS[scheme]
    monkeypatch.setattr(download, "TIMEOUT_S", 1.0)
    with pytest.raises(UsageError) as raised:
        probe.model_list(ClientSettings(Target.parse(f"{scheme}://{at}/x"), "m"))
    assert str(raised.value).endswith(f"{scheme}://{at}: {problem}; use {other}://{at}/x")
    (page_client,) = clients_of([f"{scheme}://{at}"], TlsSettings(), None)
    with pytest.raises((OSError, ValueError)) as page_error:
        page_client.get(20)
    assert problem in str(page_error.value)
    with pytest.raises(OSError) as download_error:
        download._opened(f"{scheme}://{at}/x.json", {})
    if serve is not tells_of_tls:
        assert f"{problem}; use {other}://{at}" in str(page_error.value)
        assert f"{problem}; use {other}://{at}" in download._reason(download_error.value)


def test_a_download_explains_the_port_that_failed(port: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of the last redirect, if it was reached without a proxy."""
    plain = port(refuses_at_once)

    def moves(sock: socket.socket) -> None:
        with sock:
            sock.recv(65_536)
            sock.sendall(page("", 302, lines=f"Location: https://{plain}/y.json\r\n"))

    with pytest.raises(OSError, match="TLS") as raised:
        download._opened(f"http://{port(moves)}/x.json", {})
    assert download._reason(raised.value) == f"{NO_TLS}; use http://{plain}"
    monkeypatch.setenv("https_proxy", f"http://{port(refuses_at_once)}")
    monkeypatch.setenv("no_proxy", "")
    with pytest.raises(OSError, match="Tunnel connection failed: 400"):
        download._opened(f"https://{plain}/x.json", {})


@pytest.mark.parametrize(
    "reply", [HTTPS_PORT, page("", 301, lines="Location: https://a.test/\r\n"), page("", 400), b""]
)
def test_a_slow_tls_port_is_none_of_plain_http(port: Any, reply: bytes) -> None:
    """What TLS ports answer to plain HTTP is no reason to give up a handshake."""

    def answer(sock: socket.socket) -> None:
        with sock:
            sock.recv(65_536)
            sock.sendall(reply)

    host, _, number = port(answer).partition(":")
    assert not Port("https", host, int(number)).speaks_other()


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (("b.example", "*.a.example", "10.1.2.3"), "b.example, *.a.example, 10.1.2.3"),
        (("::1",), "::1"),
        (tuple(f"n{n}.example" for n in range(10)), ", ".join([*(f"n{n}.example" for n in range(8)), "2 more"])),
    ],
)
def test_the_names_of_another_hosts_certificate(port: Any, tmp_path: Path, names: tuple[str, ...], shown: str) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority().issue_cert(*names).configure_cert(context)
    authority().cert_pem.write_to_path(tmp_path / "ca.pem")

    def serve(sock: socket.socket) -> None:
        with sock, suppress(OSError), context.wrap_socket(sock, server_side=True):
            pass

    url, tls = f"https://{port(serve)}", TlsSettings(tmp_path / "ca.pem")
    valid = f"certificate is not valid for '127.0.0.1'; it is valid for {shown}"
    with pytest.raises(UsageError) as raised:
        probe.model_list(ClientSettings(Target.parse(url), "m", tls=tls))
    assert str(raised.value).endswith(f"{valid}; give the address with such a name, or use --insecure")
    (page_client,) = clients_of([url], tls, None)
    with pytest.raises(OSError, match="not valid") as page_error:
        page_client.get(20)
    assert str(page_error.value).endswith(valid)


@pytest.mark.parametrize("names", [[], ["unknown"], ["*", "openai/*"]])
@pytest.mark.parametrize("endpoint", ["chat", "completions"])
@pytest.mark.parametrize("answered", ["org/model", "", "unknown", None])
def test_a_model_that_no_list_names_is_found_by_a_request_without_a_name(
    serve: Callable[[Script], ClientSettings], names: list[str], endpoint: str, answered: str | None
) -> None:
    document = {"model": answered, "usage": {"prompt_tokens": 5, "completion_tokens": 1}}
    listing = json.dumps({"data": [{"id": name} for name in names]}).encode()
    asked: list[tuple[str, Any]] = []

    def script(sock: socket.socket, request: bytes) -> None:
        head, _, body = request.partition(b"\r\n\r\n")
        if head.startswith(b"GET"):
            sock.sendall(page(listing))
            return
        asked.append((head.split()[1].decode(), json.loads(body)))
        sock.sendall(page(document) if answered is not None else NOT_FOUND)

    settings, sent = replace(serve(script), endpoint=endpoint), SentTurns()
    found = probe.model_list(settings)
    if answered == "org/model":
        assert probe.model_of(settings, found, sent) == "org/model"
    else:
        with pytest.raises(UsageError, match="name the model with --model"):
            probe.model_of(settings, found, sent)
    ((path, body),) = asked
    assert path == ("/v1/chat/completions" if endpoint == "chat" else "/v1/completions")
    assert (body["model"], body["max_tokens"]) == ("", 1)
    assert (sent.requests, sent.served) == (1, answered is not None)
    assert (sent.input_tokens, sent.output_tokens) == ((5, 1) if answered is not None else (0, 0))


@pytest.mark.parametrize("names", [["a"], ["a", "b"]])
def test_a_list_with_names_is_asked_nothing(serve: Callable[[Script], ClientSettings], names: list[str]) -> None:
    settings, sent = serve(send(page(names))), SentTurns()
    found = probe.model_list(settings)
    if len(names) == 1:
        assert probe.model_of(settings, found, sent) == "a"
    else:
        with pytest.raises(UsageError, match="lists a, b; name the model"):
            probe.model_of(settings, found, sent)
    assert sent.requests == 0
