"""The table of docs/how-to/gateways.md: what real proxies, gateways and routers do to requests, streams and failures.

Each row is that of a gateway in front of one server; `--update-golden` writes it.
"""

import re
import socket
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gateways
import pytest
import simulator_process
from gateways import Started
from paths import ROOT
from scripted_server import HEAD, ScriptedServer, body_of, chunk, page, sse, streamed
from simulator_process import Simulator

from inferload.campaign.machine import comparison
from inferload.campaign.machine.server_evidence import ServerEvidence, gather, send
from inferload.client.client import ClientSettings
from inferload.client.connection.target import Target
from inferload.client.turn_record import TurnResult
from inferload.results.statistics.paired_runs import mean_difference
from inferload.scenario.schema.request import Timeouts
from inferload.turns.record import Failure

PAGE = ROOT / "docs" / "how-to" / "gateways.md"
MODEL = "simulator"
PAIRS = 200  # of turns, by which the time added is measured
TIMEOUTS = Timeouts(first_event_s=60, between_events_s=30)
PIECE = {"choices": [{"index": 0, "delta": {"content": "one "}, "finish_reason": None}]}
END = [
    {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]},
    {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}},
]
CUT = HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"".join(chunk(sse(PIECE)) for _ in range(3))
OWN = {  # answers that end with the connection, and with the body, without an end of the stream
    "cut": CUT,
    "half": CUT + b"0\r\n\r\n",
    "fields": streamed(PIECE, PIECE, *END),
}
# Fields that a run, or a user of it, can send.
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}, "strict": True}}
HISTORY = [
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "Hi", "reasoning": "short", "reasoning_content": "short"},
]
FIELDS: dict[str, Any] = {
    "ignore_eos": True, "min_tokens": 2, "seed": 1, "temperature": 0, "stop": ["\n"], "cache_salt": "salt", "priority": 1,
    "logprobs": True, "top_k": 3, "repetition_penalty": 1.5, "chat_template_kwargs": {"enable_thinking": False},
    "kv_transfer_params": {"a": 1}, "tools": [TOOL], "stream_options": {"include_usage": True, "continuous_usage_stats": True},
}  # fmt: skip
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
HEADERS = {"X-Session-ID": "s1", "X-Request-Id": "r1", "traceparent": TRACE}

# Name, whose first word is the software; start; and how to set it right.
_QUIET = "`--disable-retries --disable-circuit-breaker`"
ROWS: dict[str, tuple[Callable[..., Started], str]] = {
    "nginx": (gateways.nginx, "`proxy_buffering off`; `proxy_read_timeout` above the longest pause"),
    "nginx with gzip": (partial(gateways.nginx, gzip=True), "no `text/event-stream` in `gzip_types`, or `proxy_buffering off`"),
    "haproxy": (gateways.haproxy, "`option http-no-delay`; `timeout server` above the longest pause"),
    "haproxy with http-no-delay": (partial(gateways.haproxy, no_delay=True), "-"),
    "Caddy": (gateways.caddy, "`request_buffers` (`buffer_requests` in 2.6): else 2.6 cuts 1 to 3 % of the answers"),
    "Envoy": (gateways.envoy, "route `timeout: 0s` (15 s by default), no retries"),
    "Traefik with compress": (gateways.traefik, "`experimental.fastProxy`: else 3.7 cuts up to 1 % of the answers"),
    "vllm-router": (gateways.vllm_router, _QUIET),
    "sglang-router": (gateways.sglang_router, _QUIET),
    "LiteLLM": (gateways.litellm, "`router_settings: {disable_cooldowns: true, num_retries: 0}`"),
}  # fmt: skip


def words_of(result: TurnResult) -> str:
    """Return the failure of a turn; how it ended if it has none."""
    record = result.record
    if record.failure is None:
        usage = "without usage" if record.output_tokens is None else "with a usage"
        return f"**ends as whole** ({record.finish_reason}, {usage})"
    return f"{record.failure}" if record.status == 200 else f"{record.status}"


def paths(value: Any, at: str = "") -> Iterator[str]:
    """Yield the paths of all values in a document."""
    if isinstance(value, dict):
        for name, part in value.items():
            yield from paths(part, f"{at}.{name}".lstrip("."))
    elif isinstance(value, list) and value:
        for part in value:
            yield from paths(part, at)
    else:
        yield at


class Behind:
    """Server behind the gateway: the simulator, and answers of its own to prompts that ask for them."""

    def __init__(self, simulator: Simulator) -> None:
        self.asked: dict[str, list[bytes]] = {}
        self.port = simulator.port

    def __call__(self, sock: socket.socket, request: bytes) -> None:
        found = re.search(rb"answer with (\w+)", request)
        if found is not None:
            kind = found[1].decode()
            self.asked.setdefault(kind, []).append(request)
            sock.sendall(OWN[kind] if kind in OWN else page({"error": {"message": "no", "code": int(kind)}}, int(kind)))
            if kind == "cut":
                sock.shutdown(socket.SHUT_RDWR)
            return
        with socket.create_connection(("127.0.0.1", self.port)) as server:
            head, end, body = request.partition(b"\r\n\r\n")
            head = re.sub(rb"(?i)\r\nconnection: [^\r]*", b"", head)
            server.sendall(head + b"\r\nConnection: close" + end + body)
            while data := server.recv(65536):
                sock.sendall(data)
        sock.shutdown(socket.SHUT_RDWR)


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[Behind, ScriptedServer, ServerEvidence]]:
    """The server behind all gateways, with what it answers directly."""
    simulator = simulator_process.start("--ttft-ms", "20", "--itl-ms", "10")
    behind = Behind(simulator)
    server = ScriptedServer([behind])
    yield behind, server, gather(ClientSettings(Target.parse(server.url), MODEL), MODEL)
    server.close()
    simulator_process.stop(simulator)


def time_added(name: str, folder: Path, port: int) -> str:
    """Return what a gateway adds to TTFT, in front of a simulator."""
    with ROWS[name][0](folder, [port]) as gateway:
        urls = (gateway.url, f"http://127.0.0.1:{port}")
        ways = [gather(ClientSettings(Target.parse(url), MODEL, timeouts=TIMEOUTS), MODEL) for url in urls]
        found = mean_difference(comparison.gather(*ways, pairs=PAIRS).added_ms["TTFT"])
    assert found is not None
    return f"{found.mean:.2f} ms ({found.low:.2f} to {found.high:.2f})"


def row(name: str, folder: Path, behind: Behind, server: ScriptedServer, direct: ServerEvidence, *, time: str) -> str:
    """Return the row of a gateway. `time`: its cell of the time added."""
    start, remedy = ROWS[name]
    behind.asked.clear()
    with start(folder, [server.port]) as gateway:
        own = ClientSettings(Target.parse(gateway.url), MODEL, timeouts=TIMEOUTS)

        def ask(kind: str, fields: dict[str, Any], headers: dict[str, str]) -> TurnResult:
            messages = [*HISTORY, {"role": "user", "content": f"answer with {kind}"}]
            return send(own, "", {"max_tokens": 8, "messages": messages, **fields}, tuple(headers.items()))

        both = comparison.gather(gather(own, MODEL), direct)
        whole = ask("fields", FIELDS, HEADERS)
        assert whole.record.failure is None, whole.detail
        (asked,) = behind.asked["fields"]
        dropped = sorted({*paths({**FIELDS, "messages": HISTORY})} - {*paths(body_of(asked))})
        lines = asked.partition(b"\r\n\r\n")[0].decode().lower().splitlines()
        dropped += [key for key, value in HEADERS.items() if f"{key}: {value}".lower() not in lines]
        cuts = [words_of(ask(kind, {}, {})) for kind in ("cut", "half")]
        refusals = []
        for kind in ("429", "500"):
            seen, count = words_of(ask(kind, {}, {})), len(behind.asked[kind])
            refusals.append(f"{kind}: passed" if (seen, count) == (kind, 1) else f"{kind}: {count} requests, {seen}")
    held = "**held**" if comparison.joined(both) else "**held with gzip**" if both.through.as_sdk.held else ""
    plain = "each event at once" + (", compressed" if both.packed[0] != "none" else "")
    texts = [
        f"{name} {gateways.version(name.split(maxsplit=1)[0].lower())}",
        both.through.gateway,
        held or plain,
        time,
        ", ".join(f"`{each}`" for each in dropped),
        ", ".join(each.partition(" (")[0] for each in comparison.lost_fields(both)),
        "; ".join(dict.fromkeys(cuts)),
        "; ".join(refusals),
        remedy,
    ]
    return f"| {' | '.join(text or '-' for text in texts)} |"


@pytest.mark.gateways
@pytest.mark.parametrize("name", ROWS)
def test_the_table_is_what_was_seen(
    name: str,
    server: tuple[Behind, ScriptedServer, ServerEvidence],
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    update = request.config.getoption("--update-golden")
    begin = re.escape(f"| {name} ") + r"\d"
    (time,) = re.findall(
        rf"(?m)^{begin}(?:[^|]*\|){{3}} ([^|]*) \|", PAGE.read_text()
    )  # measured when the page is written
    time = time_added(name, tmp_path / "timed", server[0].port) if update else time
    found, text = row(name, tmp_path / "gateway", *server, time=time), PAGE.read_text()
    if update:
        text, replaced = re.subn(rf"(?m)^{begin}.*$", lambda _: found, text)
        assert replaced == 1, f"{PAGE} has no row {name}"
        PAGE.write_text(text)
    (written,) = re.findall(rf"(?m)^{begin}.*$", text)
    assert found == written


@pytest.mark.gateways
def test_a_short_timeout_of_envoy_cuts_answers(
    server: tuple[Behind, ScriptedServer, ServerEvidence], tmp_path: Path
) -> None:
    """It ends them a second after the timeout, with status 200."""
    with gateways.envoy(tmp_path / "gateway", [server[1].port], answer_s=0.5) as gateway:
        own = ClientSettings(Target.parse(gateway.url), MODEL, timeouts=TIMEOUTS)
        cut = send(own, "Count.", {"max_tokens": 400, "ignore_eos": True}).record
    assert (cut.status, cut.failure) == (200, Failure.CUT)
