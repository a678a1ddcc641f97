"""The first request of a run: what servers refuse, and what the run learns from it."""

import json
import socket
from collections.abc import Callable, Iterator
from typing import Any

import gevent
import msgspec
import pytest
from endpoint_answers import STREAMED
from hypothesis import given
from hypothesis import strategies as st
from scripted_server import ScriptedServer, body_of, chunked, page, streamed
from streamed_answers import chunk, end_events

from inferload.base.errors import UsageError
from inferload.base.http_status import status_text
from inferload.base.redaction import without_userinfo
from inferload.client import first_turn
from inferload.client.client import ClientSettings, Credentials
from inferload.client.connection.target import Target
from inferload.client.first_turn import FirstTurn, Proof, SentTurns, prove
from inferload.client.requests.bodies import BodySettings, BodyWriter, Texts
from inferload.scenario.schema.endpoints import ENDPOINTS, EndpointName
from inferload.scenario.schema.request import RequestOptions
from inferload.workload.content.prompts import approximate
from inferload.workload.isolation import Isolation
from inferload.workload.plan.first_asks import PLAIN

Reply = bytes
Judge = Callable[[str, dict[str, Any]], Reply]


def answer(text: str | None = "Hi", tokens: int = 1, finish: str = "length", **delta: str) -> Reply:
    """Return a streamed chat completion with a usage."""
    said: dict[str, Any] = delta if text is None else {"content": text}
    return streamed(chunk(said), *end_events("chat", tokens, finish, prompt=5))


def refusal(message: str, param: str | None = None, status: int = 400) -> Reply:
    return page({"error": {"message": message, "type": "invalid_request_error", "param": param}}, status)


class Server:
    """Server that judges each request by its path and body. `bodies`: in the order of arrival."""

    def __init__(self, judge: Judge) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self._judge = judge
        self.scripted = ScriptedServer([self._answer])

    def _answer(self, sock: socket.socket, request: bytes) -> None:
        self.paths.append(request.split()[1].decode())
        self.bodies.append(body_of(request))
        sock.sendall(self._judge(self.paths[-1], self.bodies[-1]))


Prove = Callable[..., tuple[Proof, SentTurns, Server]]


@pytest.fixture
def proves(monkeypatch: pytest.MonkeyPatch) -> Iterator[Prove]:
    """A function that sends a run's first request to a server."""
    monkeypatch.setattr(first_turn, "_AGAIN_S", (0.001, 0.001))
    servers: list[Server] = []

    def run(judge: Judge, path: str = "", key: str | None = None, **options: Any) -> tuple[Proof, SentTurns, Server]:
        server = Server(judge)
        servers.append(server)
        request = RequestOptions(**options)
        ask = msgspec.structs.replace(PLAIN, output_tokens=40)
        body = BodyWriter(Texts(approximate(), 0), BodySettings("m", request), Isolation()).body(ask)
        settings = ClientSettings(
            Target.parse(server.scripted.url + path), "m", credentials=Credentials(key), endpoint=request.endpoint
        )
        sent = SentTurns()
        with gevent.Timeout(30):
            return prove(settings, FirstTurn(msgspec.json.decode(body), request), sent), sent, server

    yield run
    for server in servers:
        server.scripted.close()


def test_a_plain_server_gets_one_request_of_one_token(proves: Prove) -> None:
    proof, sent, server = proves(lambda _path, _body: answer())
    assert (proof.key, proof.limit, proof.warning) == ("max_tokens", 1, "")
    assert (sent.requests, sent.served, sent.input_tokens, sent.output_tokens) == (1, 1, 5, 1)
    assert server.paths == ["/v1/chat/completions"]
    assert server.bodies[0]["max_tokens"] == 1
    assert server.bodies[0]["ignore_eos"] is True  # as in the run


@pytest.mark.parametrize("taken", ["/v1", ""])
@pytest.mark.parametrize("named", ["", "/v1", "/v1/chat/completions", "/x/y", "/x/v3", "/x/chat/completions"])
@pytest.mark.parametrize(
    "missing",
    [
        refusal("Not Found", status=404),
        page("Method Not Allowed", 405, "text/plain"),
        page("<html>messages, model, input</html>", kind="text/html"),
        page({"message": "Missing Authentication Token"}, 403),
        page("", 302, "text/html"),
    ],
)
def test_the_path_with_or_without_v1_is_found(proves: Prove, taken: str, named: str, missing: Reply) -> None:
    root = Target.parse(f"http://h{named}").root
    path = f"{root}{taken}/chat/completions?api-version=7"
    proof, sent, _ = proves(lambda asked, _body: answer() if asked == path else missing, f"{named}?api-version=7")
    assert proof.target.api == root + taken
    assert sent.served == 1


WHOLE = (
    "/openai/deployments/d/answers?api-version=7",
    "/serving-endpoints/NAME/invocations",
    "/v1/projects/p/models/m:streamRawPredict",
    "/v1/my/route/",
    "/gateway/completions?a=b&key=sekret77",
    "/",
    "",
)


@pytest.mark.parametrize("given", WHOLE)
@pytest.mark.parametrize("key", ["max_tokens", "max_completion_tokens"])
def test_an_address_that_has_no_known_path_is_taken_as_it_is(proves: Prove, given: str, key: str) -> None:
    def judge(path: str, body: dict[str, Any]) -> Reply:
        if path != (given or "/"):
            return refusal("Not Found", status=404)
        return answer() if key in body else refusal(f"Use '{key}' instead.")

    proof, sent, server = proves(judge, given)
    target = Target(**msgspec.to_builtins(proof.target))  # as a worker gets it
    assert (target.whole, proof.key, sent.served) == (True, key, 1)
    assert server.paths[:2] == [Target.parse(server.scripted.url + given).path_to(ENDPOINTS["chat"]), server.paths[1]]
    assert server.paths[2:] == [given or "/"] * (len(server.paths) - 2)
    assert {target.path_to(endpoint) for endpoint in ENDPOINTS.values()} == {given or "/"}
    assert target.api_url() == without_userinfo(server.scripted.url + (given or "/"))
    assert (
        Target.parse(server.scripted.url + given).api == Target.parse(target.api_url()).api
    )  # as a repetition reads it


@pytest.mark.parametrize("there", [refusal("Not Found", status=404), page("oh", 500), page("busy", 503), b"no HTTP"])
def test_an_address_that_does_not_serve_as_it_is_is_missing(proves: Prove, there: Reply) -> None:
    with pytest.raises(
        UsageError, match=r"/x/v1/chat/completions: .*HTTP 404.*and none at .*/x/chat/completions and .*/x\)"
    ):
        proves(lambda path, _body: there if path == "/x" else refusal("Not Found", status=404), "/x")


def test_a_path_that_neither_reading_has_is_one_line(proves: Prove) -> None:
    with pytest.raises(UsageError) as raised:
        proves(lambda _path, _body: refusal("Not Found", status=404), "/x?key=sekret77")
    text = str(raised.value)
    assert "/x/chat/completions?key=***: no streamed answer from model m: HTTP 404: Not Found" in text
    assert "and none at" in text
    assert "/x/v1/chat/completions?key=***" in text
    assert "sekret" not in text


@pytest.mark.parametrize(
    "text",
    [
        "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.",
        "max_tokens: Extra inputs are not permitted",
        "Unknown parameter: 'max_tokens'.",
        "this model takes max_completion_tokens only",
        "invalid request",
    ],
)
@pytest.mark.parametrize("least", [1, 16, 30])
def test_the_other_key_of_the_limit_is_found(proves: Prove, text: str, least: int) -> None:
    def judge(_path: str, body: dict[str, Any]) -> Reply:
        if "max_tokens" in body:
            return refusal(text)
        return answer() if body["max_completion_tokens"] >= least else refusal(f"Expected a value >= {least}")

    proof, sent, server = proves(judge)
    assert (proof.key, proof.limit) == ("max_completion_tokens", {1: 1, 16: 16, 30: None}[least])
    assert sent.served == 1
    assert "max_tokens" not in server.bodies[-1]
    assert server.bodies[-1]["max_completion_tokens"] == {1: 1, 16: 16, 30: 40}[least]


def test_a_key_that_the_scenario_sets_is_kept(proves: Prove) -> None:
    refuses = refusal("Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.", "max_tokens")
    with pytest.raises(UsageError, match=r"request\.max_tokens_field"):
        proves(lambda _path, body: refuses if "max_tokens" in body else answer(), max_tokens_field="max_tokens")
    proof, _, server = proves(lambda _path, _body: answer(), max_tokens_field="max_completion_tokens")
    assert proof.key == "max_completion_tokens"
    assert server.bodies[0]["max_completion_tokens"] == 1


@given(least=st.integers(1, 60), own=st.integers(1, 60), minimum=st.none() | st.integers(0, 60))
def test_no_limit_exceeds_that_of_the_run(least: int, own: int, minimum: int | None) -> None:
    document: dict[str, Any] = {"model": "m", "max_tokens": own} | ({} if minimum is None else {"min_tokens": minimum})
    turn = FirstTurn(document, RequestOptions())
    body = json.loads(turn.body("max_tokens", "max_tokens", least))
    assert body["max_tokens"] == min(own, least)
    assert body.get("min_tokens") == (None if minimum is None else min(minimum, least))
    assert json.loads(turn.body("max_tokens", "max_tokens", None)) == document
    switched = json.loads(turn.body("max_completion_tokens", "max_tokens", None))
    assert switched == {
        ("max_completion_tokens" if key == "max_tokens" else key): value for key, value in document.items()
    }


@pytest.mark.parametrize("endpoint", STREAMED)
def test_a_minimum_of_tokens_is_found_on_each_endpoint(proves: Prove, endpoint: EndpointName) -> None:
    key = "max_output_tokens" if endpoint == "responses" else "max_tokens"
    stream = streamed(*end_events(endpoint, 1))
    text = f"Invalid '{key}': integer below minimum value. Expected a value >= 16, but got 1 instead."
    proof, sent, _ = proves(
        lambda _path, body: stream if body[key] >= 16 else refusal(text, key), endpoint=endpoint, ignore_eos=False
    )
    assert (proof.key, proof.limit, sent.requests, sent.served) == (key, 16, 2, 1)


@pytest.mark.parametrize(
    ("refused", "options", "remedy"),
    [
        ("ignore_eos", {}, "request.ignore_eos=false"),
        ("stream_options", {}, "request.usage=false"),
        ("stream_options", {"continuous_usage": True}, "request.continuous_usage=false"),
        ("temperature", {"extra_body": {"temperature": 0}}, "request.extra_body.temperature"),
        ("min_tokens", {"extra_body": {"min_tokens": 3}}, "request.extra_body.min_tokens"),
        ("made_up", {"extra_body": {"made_up": {"a": 1}}}, "request.extra_body.made_up"),
    ],
)
def test_a_strict_server_refuses_before_the_load(
    proves: Prove, refused: str, options: dict[str, Any], remedy: str
) -> None:
    text = f"Unrecognized request argument supplied: {refused}"
    with pytest.raises(UsageError) as raised:
        proves(lambda _path, body: refusal(text) if refused in body else answer(), **options)
    assert text in str(raised.value)
    assert remedy in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "taken",
    [
        answer(""),  # a special token
        answer(None, reasoning_content="Hm"),
        answer(None, reasoning="Hm"),
        answer("Hi", tokens=0),
        answer("Hi", finish="stop"),
    ],
)
def test_unusual_answers_are_answers(proves: Prove, taken: Reply) -> None:
    proof, sent, _ = proves(lambda _path, _body: taken)
    assert (proof.warning, sent.served) == ("", 1)


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504, 529])
def test_a_busy_server_is_asked_again_and_then_loaded_with_a_warning(proves: Prove, status: int) -> None:
    busy = [page({"error": {"message": "Loading model"}}, status)] * 2
    proof, sent, _ = proves(lambda _path, _body: busy.pop() if busy else answer())
    assert (proof.warning, sent.requests, sent.served) == ("", 3, 1)
    proof, sent, _ = proves(lambda _path, _body: page({"error": {"message": "Loading model"}}, status))
    assert f"{status_text(status, body='{')}: Loading model" in proof.warning
    assert (sent.requests, sent.served) == (3, 0)


def test_an_answer_that_is_cut_or_unreadable_is_a_warning(proves: Prove) -> None:
    for data in (b'data: {"choices": 3}\n\n', b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'):
        proof, _, _ = proves(lambda _path, _body, data=data: chunked(data))
        assert "the first request had no answer" in proof.warning


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_of_turns_alone_is_one_line(proves: Prove, status: int) -> None:
    place = "https://elsewhere.example/v1/chat/completions"
    moved = f"HTTP/1.1 {status} Moved\r\nLocation: {place}\r\nContent-Length: 0\r\n\r\n".encode()
    with pytest.raises(
        UsageError, match=rf"HTTP {status} to {place} .*; give the address that it leads to with --host"
    ):
        proves(lambda _path, _body: moved)


@pytest.mark.parametrize("stream", [True, False])
def test_a_refusal_that_a_gateway_passes_on_is_one(proves: Prove, stream: bool) -> None:
    error = {"error": {"message": "got an unexpected keyword argument 'ignore_eos'", "code": 500}}
    refuses = streamed(error) if stream else page(error, 500)
    with pytest.raises(UsageError, match=r"request\.ignore_eos"):
        proves(lambda _path, body: refuses if "ignore_eos" in body else answer())


def test_an_error_in_a_stream_without_a_reason_is_a_warning(proves: Prove) -> None:
    error = b'data: {"error": {"message": "the model cannot answer these messages now", "code": 529}}\n\n'
    proof, _, _ = proves(lambda _path, _body: chunked(error))
    assert "cannot answer these messages now" in proof.warning


def test_a_refused_key_is_named(proves: Prove) -> None:
    for key, hint in ((None, "set the key"), ("sk-long-enough", "correct it")):
        with pytest.raises(UsageError, match=hint):
            proves(lambda _path, _body: refusal("no", status=401), key=key)
