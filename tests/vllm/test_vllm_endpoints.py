"""Each endpoint of vLLM on the CPU: the client's records agree with the server's counts."""

from collections.abc import Callable, Iterator

import gevent
import msgspec
import pytest
from inferload.deploy.launcher.server_state import LocalServer

from inferload.base.clock import now_ns
from inferload.client.client import Client, ClientSettings
from inferload.client.connection.target import Target
from inferload.client.first_turn import FirstTurn, SentTurns, prove
from inferload.client.requests.bodies import BodySettings, BodyWriter, Texts
from inferload.client.turn_record import TurnRequest, TurnResult
from inferload.scenario.schema.endpoints import ENDPOINTS, EndpointName, names_of
from inferload.scenario.schema.request import RequestOptions
from inferload.workload.content.messages import Message, Piece, ToolCall, text_message
from inferload.workload.content.prompts import approximate
from inferload.workload.content.script import Ask
from inferload.workload.isolation import Isolation
from inferload.workload.plan.first_asks import PLAIN

pytestmark = pytest.mark.vllm

TOKENS = 40
Send = Callable[[EndpointName, Ask], TurnResult]


@pytest.fixture
def send(vllm_server: LocalServer, request: pytest.FixtureRequest) -> Iterator[Send]:
    """A function that sends a turn and returns its result; the turns of a test share a cache salt."""
    clients: list[Client] = []

    def turn(endpoint: EndpointName, ask: Ask) -> TurnResult:
        client = Client(ClientSettings(Target.parse(vllm_server.url), "tiny", endpoint=endpoint), lambda _result: None)
        clients.append(client)
        settings = BodySettings("tiny", RequestOptions(endpoint=endpoint, ignore_eos=ENDPOINTS[endpoint].ignore_eos))
        writer = BodyWriter(Texts(approximate(), 1), settings, Isolation("salt", request.node.name))
        with gevent.Timeout(120):
            sent = TurnRequest(writer.body(ask), "t", "s", 0, "chat", "measure", now_ns(), keep=True)
            return client.start(sent).wait()

    yield turn
    for client in clients:
        client.close()


@pytest.mark.parametrize("endpoint", names_of(lambda row: row.streamed))
def test_a_turn_is_read_completely(send: Send, endpoint: EndpointName) -> None:
    context = (text_message("system", "a", 50), text_message("user", "b", 300))
    result = send(endpoint, Ask(context, TOKENS))
    record = result.record
    assert record.failure is None, result.detail
    assert record.input_tokens is not None
    assert record.output_tokens is not None
    assert record.event_ns is not None
    assert 250 < record.input_tokens < 800
    assert record.cached_tokens == 0
    assert len(record.event_ns) <= record.output_tokens <= TOKENS
    assert record.finish_reason == ("length" if record.output_tokens == TOKENS else "stop")
    if ENDPOINTS[endpoint].ignore_eos:
        assert record.output_tokens == TOKENS
        assert len(record.event_ns) > TOKENS // 2  # tokens without text, such as half a character, have no event
    assert result.text
    assert record.request_id
    instants = (record.sent_ns, record.first_event_ns, record.first_ns, record.first_visible_ns, record.last_ns)
    assert list(instants) == sorted(instants)  # type: ignore[type-var]
    if record.server_ttft_ms is not None:
        assert 0 < record.server_ttft_ms <= (record.first_ns - record.sent_ns) / 1e6  # type: ignore[operator]


@pytest.mark.parametrize("endpoint", names_of(lambda row: row.streamed))
def test_the_next_turn_hits_the_previous_one_in_the_cache(send: Send, endpoint: EndpointName) -> None:
    history = (text_message("user", "b", 300),)
    first = send(endpoint, Ask(history, TOKENS))
    second = send(endpoint, Ask((*history, first.reply().message(), text_message("user", "c", 30)), TOKENS))
    assert second.record.failure is None, second.detail
    assert second.record.input_tokens is not None
    assert first.record.input_tokens is not None
    assert second.record.input_tokens > first.record.input_tokens
    assert second.record.cached_tokens is not None
    total_tokens = first.record.input_tokens + (first.record.output_tokens or 0)
    # Complete blocks of the first turn: its prompt, and its answer as far as it has the same tokens again.
    assert first.record.input_tokens // 128 <= second.record.cached_tokens / 128 <= total_tokens // 128


@pytest.mark.parametrize("endpoint", [name for name, facts in ENDPOINTS.items() if facts.tools_and_images])
def test_a_history_of_tool_calls_is_accepted(send: Send, endpoint: EndpointName) -> None:
    calls = (ToolCall("call_1", "read", '{"path": "x"}'), ToolCall("call_2", "read", '{"path": "y"}'))
    context = (
        text_message("user", "b", 20),
        Message("assistant", (Piece("", None, ""),), reasoning="Look first.", tool_calls=calls),
        Message("tool", (Piece("r1", 20),), tool_call_id="call_1"),
        Message("tool", (Piece("r2", 20),), tool_call_id="call_2"),
    )
    result = send(endpoint, Ask(context, 4))
    assert result.record.failure is None, result.detail
    assert result.record.output_tokens is not None


@pytest.mark.parametrize("endpoint", names_of(lambda row: row.streamed))
def test_the_preflight_uses_the_same_endpoint(vllm_server: LocalServer, endpoint: EndpointName) -> None:
    settings = ClientSettings(Target.parse(vllm_server.url), "tiny", endpoint=endpoint)
    body_settings = BodySettings("tiny", RequestOptions(endpoint=endpoint, ignore_eos=ENDPOINTS[endpoint].ignore_eos))
    body = BodyWriter(Texts(approximate(), 0), body_settings, Isolation()).body(PLAIN)
    proof = prove(settings, FirstTurn(msgspec.json.decode(body), body_settings.request), sent := SentTurns())
    assert (proof.target, proof.limit, proof.warning) == (settings.target, 1, "")
    assert (sent.requests, sent.served, sent.output_tokens) == (1, 1, 1)
