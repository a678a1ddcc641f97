"""What real proxies answer when no server is behind them, when it is late, and to the wrong scheme: pages, turns, scrapes."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import gateways
import pytest
import trustme
from gateways import Gateway
from ports import unused_port
from reader_pairs import asked
from scripted_server import ScriptedServer

from inferload.base.errors import UsageError
from inferload.base.tls import TlsSettings
from inferload.client import probe
from inferload.client.client import ClientSettings
from inferload.client.connection.target import Target
from inferload.servers.scrape_http import MetricsClient, MetricsUrl

pytestmark = pytest.mark.gateways

LIMIT_S = 0.3  # of a gateway for an answer
PROXIES = ("nginx", "haproxy", "caddy")
UNREACHED = "HTTP 502, the gateway could not reach the server behind it, or got no valid answer"


@dataclass(frozen=True)
class Proxies:
    """Running proxies by name. `plain`, `tls`: without a server; `waiting`: with one that never answers."""

    plain: dict[str, Gateway]
    tls: dict[str, Gateway]
    waiting: dict[str, Gateway]


@pytest.fixture(scope="module")
def proxies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxies]:
    folder = tmp_path_factory.mktemp("proxies")
    certificate = folder / "server.pem"
    issued = trustme.CA().issue_cert("127.0.0.1")
    certificate.write_bytes(b"".join(blob.bytes() for blob in (issued.private_key_pem, *issued.cert_chain_pems)))
    silent = ScriptedServer([lambda _sock, _request: time.sleep(60)])
    dead = [unused_port()]
    starts: dict[str, Callable[..., gateways.Started]] = {name: getattr(gateways, name) for name in PROXIES}
    with ExitStack() as stack:

        def all_with(kind: str, servers: list[int], **options: Path | float) -> dict[str, Gateway]:
            return {
                name: stack.enter_context(start(folder / f"{name}-{kind}", servers, **options))
                for name, start in starts.items()
            }

        yield Proxies(
            all_with("plain", dead),
            all_with("tls", dead, certificate=certificate),
            all_with("waiting", [silent.port], answer_s=LIMIT_S),
        )
    silent.close()


def scrape_error(url: str) -> str:
    page = MetricsClient(MetricsUrl.parse(url), TlsSettings(insecure=True).context(), None)
    with pytest.raises((OSError, ValueError)) as raised:
        page.get(5.0)
    page.close()
    return str(raised.value)


@pytest.mark.parametrize(
    ("name", "text", "page"),
    [
        ("nginx", UNREACHED, "502 Bad Gateway"),
        ("haproxy", "HTTP 503, the gateway has no server, or the server is overloaded", "No server is available to"),
        ("caddy", UNREACHED, ""),
    ],
)
def test_a_gateway_without_a_server_says_so(proxies: Proxies, name: str, text: str, page: str) -> None:
    url = proxies.plain[name].url
    found = probe.model_list(ClientSettings(Target.parse(url), "m"))
    assert found.problem == f"{url}/v1/models: {text}"
    assert found.remedy.startswith("start the server behind the gateway")
    detail = asked(url).detail
    assert detail.startswith(f"{text}: " if page else text)
    assert page in detail
    assert "<" not in detail
    assert scrape_error(f"{url}/metrics") == text


@pytest.mark.parametrize("name", PROXIES)
def test_a_server_that_a_gateway_does_not_wait_for_is_named(proxies: Proxies, name: str) -> None:
    url = proxies.waiting[name].url
    text = "HTTP 504, the server behind the gateway did not answer within the gateway's time limit"
    assert asked(url).detail.startswith(text)
    assert scrape_error(f"{url}/metrics") == text


@pytest.mark.parametrize("name", PROXIES)
def test_plain_http_to_a_port_of_https(proxies: Proxies, name: str) -> None:
    """nginx and Caddy answer 400; haproxy closes the connection."""
    port = proxies.tls[name].port
    with pytest.raises(UsageError) as raised:
        probe.model_list(ClientSettings(Target.parse(f"http://127.0.0.1:{port}"), "m"))
    assert str(raised.value) == f"http://127.0.0.1:{port}: the port expects TLS; use https://127.0.0.1:{port}"
    if name != "haproxy":
        assert asked(f"http://127.0.0.1:{port}").detail.startswith("HTTP 400, the port expects TLS: ")
        assert scrape_error(f"http://127.0.0.1:{port}/metrics") == "HTTP 400, the port expects TLS"


@pytest.mark.parametrize("name", PROXIES)
def test_tls_to_a_port_of_plain_http(proxies: Proxies, name: str) -> None:
    at = f"127.0.0.1:{proxies.plain[name].port}"
    with pytest.raises(UsageError) as raised:
        probe.model_list(ClientSettings(Target.parse(f"https://{at}"), "m", tls=TlsSettings(insecure=True)))
    assert str(raised.value) == f"TLS with https://{at}: the port does not speak TLS; use http://{at}"
    assert asked(f"https://{at}").detail == f"TLS with https://{at}: the port does not speak TLS"
    assert scrape_error(f"https://{at}/metrics") == f"the port does not speak TLS; use http://{at}"


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_names_the_host_to_use(tmp_path: Path, status: int) -> None:
    with gateways.nginx(tmp_path, [unused_port()], redirect=f"{status} https://models.example$request_uri") as gateway:
        with pytest.raises(
            UsageError, match=rf"HTTP {status} to https://models.example/v1/models; use --host https://mod"
        ):
            probe.model_list(ClientSettings(Target.parse(gateway.url), "m"))
        assert asked(gateway.url).detail.startswith(f"HTTP {status} to https://models.example/v1/chat/completions")
        assert scrape_error(f"{gateway.url}/metrics") == f"HTTP {status} to https://models.example/metrics"
