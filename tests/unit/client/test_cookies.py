"""Cookies of a session: which go back, what is bounded, and that texts do not contain them."""

import socket

import gevent
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_server import Script, ScriptedServer, page, send, streamed
from streamed_answers import chunk

from inferload.base.clock import NS_PER_S, now_ns
from inferload.client import retry
from inferload.client.client import Client, ClientSettings
from inferload.client.connection.target import Target
from inferload.client.cookies import MOST_CHARS, MOST_COOKIES, Jar
from inferload.client.turn_record import SessionCookies, TurnRequest, TurnResult

URL = "http://router.example:8000/v1/chat/completions"
SECRET = "node7-0123456789abcdef"
REPLY = streamed(chunk({"content": "a"}, "stop"))


def sent(lines: list[str], url: str = URL, to: str = "") -> str:
    """Return the Cookie header of the request after answers with these Set-Cookie headers."""
    cookies = Jar()
    for line in lines:
        cookies.take(url, line)
    return dict(cookies.headers(to or url)).get("Cookie", "")


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["a=1; Path=/"], "a=1"),
        (["a=1\nb=2; Expires=Wed, 09 Jun 2100 10:18:14 GMT; HttpOnly"], "a=1; b=2"),
        (["a=1", "a=2"], "a=2"),
        (["a=1", "a=x; Max-Age=0"], ""),
        (["a=1; Expires=Thu, 01 Jan 1970 00:00:00 GMT"], ""),
        (["a=1; Path=/v2"], ""),
        (["a=1; Domain=other.example"], ""),
        (["a=1; Domain=router.example"], "a=1"),
        (["a=1; Secure"], ""),
        (["a=1\r\x00X: y", "", "a" * 5_000], ""),
        ([f"n{at:02}=1" for at in range(30)], "; ".join(f"n{at:02}=1" for at in range(10, 30))),
        ([f"{name}={'v' * 4_000}" for name in "abc"], "; ".join(f"{name}={'v' * 4_000}" for name in "bc")),
    ],
)
def test_the_usual_rules_hold(lines: list[str], expected: str) -> None:
    assert sent(lines) == expected


def test_a_secure_cookie_needs_tls_and_a_host_may_be_an_address() -> None:
    assert sent(["a=1; Secure"], "https://127.0.0.1:8000/v1/chat/completions") == "a=1"
    assert sent(["a=1; Path=/"], "http://[::1]:8000/v1/x", "http://[::1]:8000/v1/y") == "a=1"
    assert sent(["a=1"], "http://localhost:8000/x", "http://localhost:8000/x") == "a=1"
    assert sent(["a=1; domain=.LocalHost; Path=/"], "http://localhost:8000/x") == "a=1"
    assert sent(["a=1"], "") == ""


@given(st.lists(st.tuples(st.from_regex(r"[a-z]{1,9}", fullmatch=True), st.integers(0, 4_000)), max_size=60))
def test_number_and_size_are_bounded_and_the_newest_stay(wanted: list[tuple[str, int]]) -> None:
    header = sent([f"{name}={'v' * length}" for name, length in wanted])
    names = [each.partition("=")[0] for each in header.split("; ")] if header else []
    assert len(header) <= MOST_CHARS + 2 * MOST_COOKIES + MOST_COOKIES
    assert len(names) <= MOST_COOKIES
    assert set(names) <= {name for name, _length in wanted}
    if wanted and all(length < 300 for _name, length in wanted) and len({name for name, _ in wanted}) <= MOST_COOKIES:
        assert set(names) == {name for name, _length in wanted}


def two_turns(
    *scripts: Script, own: tuple[tuple[str, str], ...] = (), cookies: SessionCookies | None, **settings: object
) -> tuple[list[str], TurnResult]:
    """Send two turns of one session, each with `own` headers; return their Cookie headers, and the last result."""
    server = ScriptedServer(list(scripts))
    client = Client(ClientSettings(Target.parse(server.url), "m", **settings), lambda _result: None)  # type: ignore[arg-type]
    try:
        for number in range(2):
            place = (f"s0.{number}", "s0", number, "chat", "measure")
            request = TurnRequest(b"{}", *place, now_ns(), cookies=cookies, headers=own)  # type: ignore[arg-type]
            with gevent.Timeout(20):
                result = client.start(request).wait()
    finally:
        client.close()
        server.close()
    lines = [
        dict(line.split(b": ") for line in each.split(b"\r\n\r\n")[0].split(b"\r\n")[1:]) for each in server.requests
    ]
    return [each.get(b"Cookie", b"").decode() for each in lines], result


def setting(cookie: str) -> Script:
    lines = f"\r\nSet-Cookie: {cookie}\r\nSet-Cookie: second=2\r\n".encode()
    return send(REPLY.replace(b"\r\n", lines, 1))


def failing(sock: socket.socket, request: bytes) -> None:
    """Answer with an error that has the cookie of the request."""
    text = b"no such node: " + request.split(b"Cookie: ")[1].split(b"\r\n")[0]
    sock.sendall(page(text, 404, lines=f"X-Served-By: {SECRET}\r\nSet-Cookie: node=another-0123456789\r\n"))


def test_the_turns_of_a_session_send_them_back_also_a_retried_one_and_no_text_has_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retry, "SLACK_NS", 60 * NS_PER_S)

    headers, result = two_turns(
        setting(f"node={SECRET}"),
        send(b"", close=True),
        failing,
        cookies=SessionCookies(),
        server_header="X-Served-By",
    )
    assert headers == ["", *[f"node={SECRET}; second=2"] * 2]
    assert SECRET[:8] not in repr(result)
    assert "node=***" in result.detail


@pytest.mark.parametrize("line", [f"node={SECRET}", f"node={SECRET}; Domain=other.example", f"node={SECRET}\x01"])
@pytest.mark.parametrize(("kept", "by"), [(False, "own"), (True, "own"), (True, "headers")])
def test_no_text_has_a_cookie_that_does_not_go_back(line: str, kept: bool, by: str) -> None:
    head = f"HTTP/1.1 500 X\r\nX-Served-By: {SECRET}\r\nSet-Cookie: {line}\r\nContent-Length: {len(SECRET)}\r\n\r\n"

    def echoing(sock: socket.socket, _request: bytes) -> None:
        sock.sendall((head + SECRET).encode())

    cookies, own = SessionCookies() if kept else None, {by: (("Cookie", "own=1"),)} if kept else {}
    headers, result = two_turns(echoing, cookies=cookies, server_header="X-Served-By", **own)  # type: ignore[arg-type]
    assert SECRET[:8] not in repr(result)
    assert "***" in result.detail
    assert headers == ["own=1" if kept else ""] * 2


def test_a_cookie_of_the_user_replaces_those_of_the_server() -> None:
    for by in ("headers", "own"):  # of the client, and of the turns
        headers, _result = two_turns(setting("a=1"), cookies=SessionCookies(), **{by: (("Cookie", "own=1"),)})  # type: ignore[arg-type]
        assert headers == ["own=1"] * 2, by
