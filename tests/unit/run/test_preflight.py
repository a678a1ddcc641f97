"""Preflight of a run: the first requests of its classes, models and servers, and what the run takes from them."""

import json
import logging
import socket
import threading
from collections.abc import Iterator
from itertools import chain
from typing import Any

import gevent
import pytest
from scripted_server import NOT_FOUND, ScriptedServer, body_of, page, streamed
from small_scenario import document
from streamed_answers import end_events, text_event

from inferload.base.errors import UsageError
from inferload.base.tls import TlsSettings
from inferload.client.client import ClientSettings, Credentials
from inferload.client.connection import reader_choice
from inferload.client.connection.target import Target
from inferload.client.first_turn import FirstTurn, SentTurns, prove
from inferload.run.master.lifecycle import preflight
from inferload.run.master.lifecycle.preflight import Preflight
from inferload.run.process.run_spec import RunSpec
from inferload.run.process.settings import ProcessSettings
from inferload.scenario import scenario as scenarios
from inferload.scenario.schema.endpoints import ENDPOINTS, OF_TEXTS
from inferload.scenario.schema.request import RequestOptions
from inferload.workload.content.script import outline
from inferload.workload.sessions import Sessions

OWN = ProcessSettings(Credentials(None), (), TlsSettings(None, False), None)
BASE = document()
TASKS = BASE | {"workload": {"kind": "tasks"}}


CHAT = streamed(text_event("chat", "Hi"), *end_events("chat", 1, prompt=5))
MESSAGES = streamed(text_event("messages", "Hi"), {"type": "message_stop"})


class Server:
    """Server with a list of models. `strict`: refuses max_tokens; `paths`: of its endpoints, with their answers."""

    def __init__(self, models: bytes, paths: dict[str, bytes], strict: bool = False) -> None:
        self.models, self.paths, self.strict = models, paths, strict
        self.turns: list[tuple[str, dict[str, Any]]] = []
        self.scripted = ScriptedServer([self._serve])

    def _serve(self, sock: socket.socket, request: bytes) -> None:
        method, path = request.decode().split()[:2]
        if method == "GET" or path.endswith("/tokenize"):
            sock.sendall(self.models if path == "/v1/models" else self.paths.get(path, NOT_FOUND))
            return
        self.turns.append((path, body_of(request)))
        if self.strict and "max_tokens" in self.turns[-1][1]:
            message = "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."
            sock.sendall(page({"error": {"message": message}}, 400))
            return
        sock.sendall(self.paths.get(path, NOT_FOUND))


@pytest.fixture
def servers() -> Iterator[list[Server]]:
    """List of servers that are closed at the end of the test."""
    started: list[Server] = []
    yield started
    for server in started:
        server.scripted.close()


def start(servers: list[Server], models: Any = NOT_FOUND, path: str = "/v1/chat/completions", **options: Any) -> Server:
    listed = models if isinstance(models, bytes) else page(models)
    servers.append(Server(listed, {path: options.pop("answer", CHAT)}, **options))
    return servers[-1]


def check(
    scenario: dict[str, Any], *servers: Server, model: str | None = None, pages: tuple[str, ...] | None = ()
) -> Preflight:
    targets = tuple(Target.parse(server.scripted.url) for server in servers)
    parsed = scenarios.from_text(json.dumps(scenario), "scenario.yaml")
    with gevent.Timeout(60):
        return preflight.preflight(RunSpec(parsed, "scenario.yaml", targets, model, pages, 1, 1.0, {}), OWN)


def test_tasks_require_one_streaming_endpoint(servers: list[Server]) -> None:
    listed = {"data": [{"id": "m"}]}
    server = start(servers, listed, "/v1/messages", answer=MESSAGES)
    found = check(TASKS, server)
    assert found.proven.servers[0].sent.served == 1
    with pytest.raises(UsageError, match="404"):
        check(BASE, server)


def test_behind_a_gateway_the_metrics_page_tells_the_engine(servers: list[Server]) -> None:
    server, metrics = start(servers, {"data": [{"id": "m"}]}), ""
    for engine, metric in (("unknown", "node_load1"), ("vllm", "vllm:a"), ("simulator", "inferload_simulator_a")):
        metrics += f"{metric} 1\n"
        server.paths["/metrics"] = page(metrics, kind="text/plain")
        assert check(BASE, server, pages=None).engine == engine


def test_without_a_streaming_endpoint_tasks_are_refused(servers: list[Server]) -> None:
    server = start(servers, {"data": [{"id": "m"}]}, "/none")
    with pytest.raises(UsageError, match="chat/completions: no streamed answer from model m: HTTP 404"):
        check(TASKS, server)
    readings = {name: [row.path] if row.at_root else [f"/v1{row.path}", row.path] for name, row in ENDPOINTS.items()}
    chat = [*readings["chat"], "/", *(readings[name][0] for name in OF_TEXTS)]  # then whether it is a pooling server
    tried = [path for path, _ in server.turns]
    assert tried[: len(chat)] == chat
    assert {*tried} == {"/", *chain(*readings.values())}


@pytest.mark.parametrize(
    "models",
    [
        {"data": [{"id": "unknown"}]},
        {"data": [{"id": "openai/*"}]},
        {"data": []},
        {"data": [{"id": "a"}, {"id": "b"}]},
        {"models": [{"name": "other"}]},
        page({"detail": "Method Not Allowed"}, 405),
        page({"detail": "no"}, 401),
        NOT_FOUND,
    ],
)
def test_a_model_that_is_not_listed_is_a_warning(
    servers: list[Server], models: Any, caplog: pytest.LogCaptureFixture
) -> None:
    server = start(servers, models)
    with caplog.at_level(logging.WARNING):
        found = check(BASE, server, model="org/m")
    assert found.facts.model == "org/m"
    assert "the first request decides" in caplog.text
    assert server.turns[0][1]["model"] == "org/m"
    if models != {"models": [{"name": "other"}]}:
        with pytest.raises(UsageError, match="--model") as raised:
            check(BASE, server)
        assert "\n" not in str(raised.value)


def test_a_model_that_the_server_refuses_is_named_with_the_list(servers: list[Server]) -> None:
    absent = page({"error": {"message": "The model `huge` does not exist.", "param": "model"}}, 404)
    server = start(servers, {"data": [{"id": "tiny"}]}, answer=absent)
    with pytest.raises(UsageError, match=r"does not exist.*the server lists tiny: name another model with --model"):
        check(BASE, server, model="huge")


def test_each_model_and_class_is_tried_once(servers: list[Server]) -> None:
    """Classes with requests of one form share a first request."""
    plain = {"kind": "chat", "prompt_tokens": 20, "output_tokens": 40}
    classes = [
        {"name": "a", "share": 0.4, "workload": plain},
        {"name": "b", "share": 0.3, "workload": plain | {"prompt_tokens": 90}},
        {"name": "c", "share": 0.3, "workload": plain | {"system_prompt_tokens": 30}},
    ]
    scenario = BASE | {
        "workload": {"kind": "mix", "classes": classes},
        "request": {
            "models": [{"name": "m", "share": 0.5}, {"name": "n", "share": 0.5}],
            "extra_body": {"min_tokens": 9, "temperature": 0.5},
        },
    }
    server = start(servers)
    found = check(scenario, server)
    sent = [(body["model"], len(body["messages"])) for _, body in server.turns]
    assert sorted(sent) == [("m", 1), ("m", 2), ("n", 1), ("n", 2)]
    assert all(body["max_tokens"] == body["min_tokens"] == 1 and body["ignore_eos"] for _, body in server.turns)
    assert found.proven.servers[0].sent == SentTurns(4, 4, 20, 4, finish_reasons=True)


def test_tools_of_the_workload_are_part_of_the_first_request(servers: list[Server]) -> None:
    server = start(servers)
    agent = scenarios.load("agent-tools")
    options = {"request": {"wrong_length": "warn"}}  # the server counts five tokens of any prompt
    check(BASE | options | {"workload": agent.as_data()["workload"]}, server, model="m")
    sent, history = (body for _, body in server.turns)
    assert sent["tools"] == history["tools"]
    own = json.loads(outline(Sessions(agent).begin(0).script, 0, most=1)[0].ask.tools)
    assert [tool["function"]["name"] for tool in sent["tools"]] == [tool["function"]["name"] for tool in own]
    assert sent["tools"][1:] == own[1:]
    assert sent["tools"][0] != own[0]  # caches no prefix of the run's prompts


@pytest.mark.parametrize("strict_first", [True, False])
def test_one_key_of_the_limit_is_found_for_all_servers(servers: list[Server], strict_first: bool) -> None:
    pair = [start(servers, strict=strict_first), start(servers, strict=not strict_first)]
    found = check(BASE, *pair, model="m")
    assert found.proven.request.max_tokens_field == "max_completion_tokens"
    for server, facts in zip(pair, found.proven.servers, strict=True):
        assert server.turns[-1][1]["max_completion_tokens"] == 1
        assert facts.sent.requests == len(server.turns)
    assert found.spec.scenario.request.max_tokens_field == "auto"  # the scenario and its digest stay


@pytest.mark.parametrize("root", ["/v1", ""])
def test_the_path_as_it_was_found_is_that_of_the_run(servers: list[Server], root: str) -> None:
    found = check(BASE, start(servers, path=f"{root}/chat/completions"), model="m")
    assert [target.api for target in found.spec.targets] == [root]


def test_a_preflight_that_is_killed_closes_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(reader_choice.VARIABLE, "python")
    closed = threading.Event()

    def wait_for_end(sock: socket.socket, _request: bytes) -> None:
        sock.recv(1)
        closed.set()

    server = ScriptedServer([wait_for_end])
    turn = FirstTurn({"model": "m", "messages": [], "max_tokens": 1}, RequestOptions())
    try:
        checking = gevent.spawn(prove, ClientSettings(Target.parse(server.url), "m"), turn, SentTurns())
        with gevent.Timeout(10):
            while not server.requests:
                gevent.sleep(0.01)
            checking.kill()
        assert closed.wait(10)
    finally:
        server.close()


@pytest.mark.parametrize("isolate", ["none", "run"])
def test_the_line_of_the_isolation_in_each_text_is_no_other_length(servers: list[Server], isolate: str) -> None:
    answer = page({"data": [{"embedding": [1]}] * 40, "usage": {"prompt_tokens": 40 * (10 + 16)}})
    server = start(servers, {"data": [{"id": "m"}]}, "/v1/embeddings", answer=answer)
    texts = {"workload": {"kind": "texts", "texts_per_request": 40, "text_tokens": 10}, "cache": {"isolate": isolate}}
    found = check(BASE | texts, server)
    assert [length.finding for length in found.proven.lengths] == ["as planned"]
    assert all("preflight" in text for text in server.turns[-1][1]["input"])


class Keeping(Server):
    """Server of /v1/responses that keeps what a router sends it by cookie and session. `ids`: of the responses that it gives.
    `words`: of the refusal of a body with the key `refused`.
    """

    def __init__(
        self, ids: list[str], status: int = 200, words: str = "", refused: str = "previous_response_id"
    ) -> None:
        super().__init__(page({"data": [{"id": "m"}]}), {})
        self.ids, self.status, self.words, self.refused = ids, status, words, refused
        self.heads: list[str] = []

    def _serve(self, sock: socket.socket, request: bytes) -> None:
        if not request.startswith(b"POST /v1/responses"):
            super()._serve(sock, request)
            return
        sent = body_of(request)
        self.turns.append(("", sent))
        self.heads.append(request.decode())
        if self.status != 200 and self.refused in sent:
            sock.sendall(page({"error": {"message": self.words}}, self.status))
            return
        (end,) = end_events("responses", 1, "stop", prompt=20)
        end["response"]["id"] = self.ids[len(self.turns) - 1]
        events = streamed(text_event("responses", "Hi"), end)
        sock.sendall(events.replace(b"\r\n", b"\r\nSet-Cookie: node=0123456789\r\n", 1))


def with_history_of_server(**request: Any) -> dict[str, Any]:
    options = {"endpoint": "responses", "affinity_header": "X-Session", "wrong_length": "warn", **request}
    return BASE | {"workload": BASE["workload"] | {"turns": 3, "history": "server"}, "request": options}


@pytest.mark.parametrize("cookies", [True, False])
def test_a_history_of_the_server_is_tried_on_the_server_of_the_first_turn(servers: list[Server], cookies: bool) -> None:
    server = Keeping(["resp_1", "resp_2"])
    servers.append(server)
    check(with_history_of_server(cookies=cookies), server)
    first, second = (body for _, body in server.turns)
    assert (first["store"], "previous_response_id" in first) == (True, False)
    assert (second["previous_response_id"], len(second["input"])) == ("resp_1", 1)
    sessions = [line for head in server.heads for line in head.split("\r\n") if line.startswith("X-Session")]
    assert sessions[0] == sessions[1]
    assert ["Cookie: node=0123456789" in head for head in server.heads] == [False, cookies]


@pytest.mark.parametrize(
    ("first", "refused", "text"),
    [
        ("", (404, ""), "no id to continue"),
        ("resp_1", (404, "Response with id 'resp_1' not found."), "or --set workload.history=live"),
        (
            "resp_1",
            (400, "Previous response with id 'resp_1' not found."),
            "or --set workload.history=live",
        ),  # of OpenAI
        ("resp_1", (400, "Unsupported value: store is off here"), "or --set workload.history=live"),
        ("resp_1", (400, "Unknown parameter: 'store'", "store"), "or --set workload.history=live"),
    ],
)
def test_a_server_that_keeps_no_history_is_refused(
    servers: list[Server], first: str, refused: tuple[Any, ...], text: str
) -> None:
    servers.append(Keeping([first, ""], *refused))
    with pytest.raises(UsageError, match=text):
        check(with_history_of_server(), servers[-1])
