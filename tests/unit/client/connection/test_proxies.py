"""Proxies of the environment: which one a target has, and what the client sends to it."""

import base64
import ipaddress
import socket
import ssl
from collections.abc import Iterator
from urllib.parse import quote

import pytest
from chat_events import ANSWER
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reader_pairs import asked
from scripted_server import ScriptedServer, chunked, read_request, send
from tls_peer import server_context

from inferload.base.errors import UsageError
from inferload.client.client import ClientSettings
from inferload.client.connection import reader_choice
from inferload.client.connection.proxies import Proxy, is_excluded
from inferload.client.connection.target import Target
from inferload.client.fetch import Fetcher
from inferload.turns.record import Failure

NAMES = st.from_regex(r"[a-z][a-z0-9-]{0,6}[a-z0-9](\.[a-z][a-z0-9]{1,5}){0,3}", fullmatch=True)
PORTS = st.integers(1, 65_535)
SEPARATORS = st.sampled_from([",", " ", ", ", " ,", ",,", "\t", "\n"])
DECOYS = [
    "",
    "other.example",
    "192.0.2.0/24",
    "2001:db8::/32",
    "[",
    "]",
    ":",
    "a:b:c",
    "[::1",
    "host:port",
    "10.0.0.0/99",
]
DECOYS += [".", "*x", "%"]


def either_case(text: str, upper: bool) -> str:
    return text.upper() if upper else text


@given(name=NAMES, inner=NAMES, port=PORTS, form=st.sampled_from(["{}", ".{}", "*.{}", "{}."]), upper=st.booleans())
def test_a_name_excludes_itself_and_its_subdomains(name: str, inner: str, port: int, form: str, upper: bool) -> None:
    entry = either_case(form.format(name), upper)
    for host in (name, f"{inner}.{name}", name.upper(), f"{name}."):
        assert is_excluded(entry, host, port)
        assert is_excluded(f"{entry}:{port}", host, port)
        assert not is_excluded(f"{entry}:{port % 65_535 + 1}", host, port)
    assert not is_excluded(entry, f"x{name}", port)
    assert not is_excluded(entry, f"{name}.x", port)


@given(address=st.ip_addresses(), port=PORTS, data=st.data())
def test_an_address_or_its_network_excludes_it(address: ipaddress.IPv4Address, port: int, data: st.DataObject) -> None:
    host, bits = str(address), data.draw(st.integers(0, address.max_prefixlen))
    network = str(ipaddress.ip_network((address, bits), strict=False))
    if getattr(address, "ipv4_mapped", None) is not None or getattr(address, "scope_id", None):
        return
    spelled = [host, f"{host}/{bits}", network]
    behind = f"[{host}]" if address.version == 6 else host
    spelled += [
        behind,
        f"{behind}:{port}",
        *([f"[{network}]", f"[{host}]/{bits}", address.exploded] if address.version == 6 else []),
    ]
    for entry in spelled:
        assert is_excluded(data.draw(st.sampled_from([entry, entry.upper()])), host, port), entry
    other = str(type(address)(int(address) ^ (1 << (address.max_prefixlen - bits) if bits else 0)))
    if bits:
        assert not is_excluded(network, other, port)
    assert not is_excluded(f"{behind}:{port % 65_535 + 1}", host, port)


@given(st.lists(st.sampled_from(DECOYS), max_size=6), SEPARATORS, st.booleans())
def test_entries_are_separated_and_others_are_ignored(decoys: list[str], separator: str, excluded: bool) -> None:
    entries = separator.join([*decoys, *(["server.test"] if excluded else []), *decoys])
    assert is_excluded(entries, "server.test", 80) == excluded
    assert is_excluded(separator.join([*decoys, "*"]), "anything", 1)


def test_an_ipv4_address_in_ipv6_is_in_its_network() -> None:
    assert is_excluded("10.0.0.0/8", "::ffff:10.1.2.3", 80)
    assert not is_excluded("10.0.0.0/8", "::ffff:11.1.2.3", 80)


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    return monkeypatch


SECRETS = st.text(st.characters(min_codepoint=1, max_codepoint=0x2FF), min_size=1, max_size=12)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(user=SECRETS, password=st.none() | SECRETS)
def test_the_login_in_the_url_is_decoded_and_hidden(
    environment: pytest.MonkeyPatch, user: str, password: str | None
) -> None:
    secret = "" if password is None else ":" + quote(password, safe="")
    environment.setenv("HTTP_PROXY", f"http://{quote(user, safe='')}{secret}@proxy.test:3128")
    proxy = Proxy.for_target(Target.parse("http://server.test"))
    assert proxy is not None
    (login,) = proxy.headers.values()
    assert base64.b64decode(login.removeprefix("Basic ")).decode() == f"{user}:{password or ''}"
    assert (proxy.url, proxy.variable) == ("http://proxy.test:3128", "HTTP_PROXY")
    assert login not in repr(proxy)


@pytest.mark.parametrize(
    ("variables", "url"),
    [
        ({"ALL_PROXY": "http://all.test:1"}, "http://all.test:1"),
        ({"ALL_PROXY": "http://all.test:1", "http_proxy": "one.test"}, "http://one.test:80"),
        ({"https_proxy": "http://other.test:1"}, None),
        ({"http_proxy": " http://blank.test:8 "}, "http://blank.test:8"),
        ({"http_proxy": "http://[::1]:8"}, "http://[::1]:8"),
        ({"http_proxy": "http://p.test", "NO_PROXY": "10.0.0.0/8 SERVER.TEST:8000"}, None),
    ],
)
def test_the_proxy_of_a_target(environment: pytest.MonkeyPatch, variables: dict[str, str], url: str | None) -> None:
    for name, value in variables.items():
        environment.setenv(name, value)
    proxy = Proxy.for_target(Target.parse("http://server.test:8000"))
    assert (None if proxy is None else proxy.url) == url


@pytest.mark.parametrize(
    "url",
    [
        "http://user:pa55/word@proxy:3128",
        "http://user:pa55word@proxy:port",
        "http://user:pa55word@proxy:99999",
        "http://user:pa55word@",
        "socks5://user:pa55word@proxy:1080",
        "https://user:pa55word@proxy",
        "http://user:pa55word@[::1",
        "http://user:pa55word@a b",
    ],
)
def test_a_url_with_bad_parts_is_refused_in_one_line(environment: pytest.MonkeyPatch, url: str) -> None:
    environment.setenv("ALL_PROXY", url)
    with pytest.raises(UsageError, match=r"^ALL_PROXY .*set NO_PROXY to bypass it$") as raised:
        Proxy.for_target(Target.parse("http://server.test"))
    assert "pa55" not in str(raised.value)


@pytest.fixture(params=["python", "native"])
def servers(request: pytest.FixtureRequest, environment: pytest.MonkeyPatch) -> Iterator[list[ScriptedServer]]:
    if request.param == "native" and not reader_choice.built():
        pytest.skip("the compiled reader was not built")
    environment.setenv(reader_choice.VARIABLE, request.param)
    servers: list[ScriptedServer] = []
    yield servers
    for server in servers:
        server.close()


def test_a_proxy_gets_the_login_with_each_plain_request(
    servers: list[ScriptedServer], environment: pytest.MonkeyPatch
) -> None:
    proxy = ScriptedServer([send(chunked(*ANSWER))])
    servers.append(proxy)
    environment.setenv("HTTP_PROXY", proxy.url.replace("//", "//me:p%40ss@"))
    assert asked("http://model.example:9000").record.failure is None
    Fetcher(ClientSettings(Target.parse("http://model.example:9000"), "m")).get("/v1/models")
    login = b"\r\nProxy-Authorization: Basic " + base64.b64encode(b"me:p@ss") + b"\r\n"
    assert all(request.count(login) == 1 and b" http://model.example:9000/v1/" in request for request in proxy.requests)
    assert len(proxy.requests) == 2


def tunnel(context: ssl.SSLContext) -> ScriptedServer:
    """A proxy that is the server behind itself."""

    def script(sock: socket.socket, request: bytes) -> None:
        if b"\r\nProxy-Authorization: Basic bWU6cEBzcw==\r\n" not in request:
            sock.sendall(b"HTTP/1.1 407 Login\r\nContent-Length: 0\r\n\r\n")
            return
        sock.sendall(b"HTTP/1.1 201 Connection established\r\n\r\n")
        with context.wrap_socket(sock, server_side=True) as inner:
            requests.append(request)
            requests.append(read_request(inner) or b"")
            inner.sendall(chunked(*ANSWER))

    requests: list[bytes] = []
    server = ScriptedServer([script])
    server.requests = requests
    return server


@pytest.mark.parametrize("host", ["model.example:9443", "[fd00::7]:9443"])
def test_a_tunnel_is_opened_with_the_login_which_the_server_does_not_get(
    servers: list[ScriptedServer], environment: pytest.MonkeyPatch, host: str
) -> None:
    proxy = tunnel(server_context("TLSv1.3"))
    servers.append(proxy)
    environment.setenv("HTTPS_PROXY", proxy.url.replace("//", "//me:p%40ss@"))
    result = asked(f"https://{host}")
    assert (result.record.failure, result.text) == (None, "Grüße \u2028x"), result.detail
    connect, request = proxy.requests[-2:]
    assert connect.startswith(f"CONNECT {host} HTTP/1.1\r\nHost: {host}\r\n".encode())
    assert b"Proxy-Authorization" not in request
    environment.setenv("HTTPS_PROXY", proxy.url.replace("//", "//me:wrong@"))
    refused = asked(f"https://{host}")
    assert refused.record.failure is Failure.CONNECT
    assert "answered 407 (set user and password in the URL of HTTPS_PROXY)" in refused.detail
