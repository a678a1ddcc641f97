"""Preflight of a run: the length of its prompts, and turns with a history, against scripted servers that count words."""

import itertools
import json
import logging
import socket
from collections.abc import Callable, Iterator
from typing import Any

import gevent
import pytest
from scripted_server import ScriptedServer, body_of, page, streamed
from small_scenario import document
from streamed_answers import end_events, text_event

from inferload.base.errors import UsageError
from inferload.base.tls import TlsSettings
from inferload.client import first_turn
from inferload.client.client import Credentials
from inferload.client.connection.target import Target
from inferload.run.master.lifecycle import preflight
from inferload.run.master.lifecycle.preflight import Preflight
from inferload.run.process.run_spec import RunSpec
from inferload.run.process.settings import ProcessSettings
from inferload.scenario import scenario as scenarios

OWN = ProcessSettings(Credentials(None), (), TlsSettings(None, False), None)
Json = dict[str, Any]
Refuse = Callable[[Json], tuple[int, str] | None]


def scenario(workload: Json, **request: Any) -> Json:
    return document(workload=workload, request=request)


def chat(**keys: Any) -> Json:
    return {"kind": "chat", "prompt_tokens": 1000, "output_tokens": 40} | keys


AGENT: Json = {
    "kind": "agent",
    "tools_tokens": 300,
    "system_prompt_tokens": 100,
    "prompt_tokens": 200,
    "output_tokens": 30,
    "requests": 2,
    "tools": [{"name": "bash", "time_s": 1, "result_tokens": 90}],
}


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from strings(item)


def words(body: Json) -> int:
    context = body.get("messages", body.get("prompt", body.get("input")))
    return sum(len(text.split()) for text in strings([context, body.get("system"), body.get("tools")]))


def events(path: str, tokens: int | None, answer: str) -> list[Json]:
    """Return the events of an answer on an endpoint. `tokens`: of the prompt; None: no usage."""
    endpoint: Any = "chat" if "chat" in path else path.rpartition("/")[2]
    return [text_event(endpoint, answer), *end_events(endpoint, 1, "stop", prompt=tokens)]


class Server:
    """Server with one model, whose prompt tokens are words.

    `counts`: (words) -> prompt tokens of a usage; `tokenize`: (body) -> answer of /tokenize, None: 404; `refuse`: (body) -> status
    and text, None: it answers.
    """

    def __init__(
        self,
        counts: Callable[[int], int | None] = lambda count: count,
        tokenize: Callable[[Json], Any] | None = None,
        refuse: Refuse = lambda _body: None,
        answer: str = "It is so.",
    ) -> None:
        self.turns: list[Json] = []
        self._counts, self._tokenize, self._refuse, self._answer = counts, tokenize, refuse, answer
        self.scripted = ScriptedServer([self._serve])

    def _serve(self, sock: socket.socket, request: bytes) -> None:
        method, path = request.decode().split()[:2]
        if path == "/v1/models":
            sock.sendall(page({"data": [{"id": "m"}]}))
        elif path == "/tokenize" and self._tokenize is not None:
            sock.sendall(page(self._tokenize(body_of(request))))
        elif method == "GET" or path == "/tokenize":
            sock.sendall(page({}, 404))
        else:
            self.turns.append(body_of(request))
            refusal = self._refuse(self.turns[-1])
            sock.sendall(
                self._streamed(path) if refusal is None else page({"error": {"message": refusal[1]}}, refusal[0])
            )

    def _streamed(self, path: str) -> bytes:
        return streamed(*events(path, self._counts(words(self.turns[-1])), self._answer))


Check = Callable[..., Preflight]


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> Iterator[Check]:
    """A function that runs the preflight of a scenario against servers."""
    monkeypatch.setattr(first_turn, "_AGAIN_S", (0.001, 0.001))
    started: list[Server] = []

    def run(given: Json, *servers: Server) -> Preflight:
        started.extend(servers)
        targets = tuple(Target.parse(server.scripted.url) for server in servers)
        parsed = scenarios.from_text(json.dumps(given), "scenario.yaml")
        with gevent.Timeout(120):
            return preflight.preflight(RunSpec(parsed, "scenario.yaml", targets, "m", (), 1, 1.0, {}), OWN)

    yield run
    for server in started:
        server.scripted.close()


def ids(text: str) -> list[int]:
    return [sum(map(ord, word)) for word in text.split()]


def of_key(key: str) -> Callable[[Json], Json]:
    return lambda body: {"tokens": ids(body.get(key, ""))}


# -- token counts


@pytest.mark.parametrize("key", ["prompt", "content"])
def test_prompts_have_the_planned_length_by_either_form(check: Check, key: str) -> None:
    """llama.cpp takes `content`, and answers any other body with no tokens."""
    server = Server(tokenize=of_key(key))
    found = check(scenario(chat()), server)
    assert (found.counted.vocabulary.exactness, found.length_notes) == ("exact", [])
    assert 1000 <= words(server.turns[0]) <= 1002  # with the line of its isolation
    assert found.proven.lengths[0].finding == "as planned"


@pytest.mark.parametrize(
    "answer",
    [
        {"tokens": []},
        {},
        {"count": 0, "tokens": []},
        {"count": None},
        {"tokens": ["Hello"]},
        {"tokens": [1]},
        {"tokens": [1, 2, 3], "count": -1},
        [{"id": 1, "text": "Hello"}],
        b"<html>no</html>",
        b"",
    ],
)
def test_a_route_without_plausible_counts_leaves_the_estimate(
    check: Check, answer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server(counts=lambda count: round(count * 1.3), tokenize=lambda _body: answer)
    found = check(scenario(chat()), server)
    assert (found.counted.vocabulary.exactness, found.counted.vocabulary.error) == ("approximate", None)
    assert words(server.turns[0]) == pytest.approx(1000 / 1.3, rel=0.02)
    (note,) = found.length_notes
    assert "by the estimate of 1.3 tokens per word" in note
    assert note in caplog.text
    assert found.facts.tokenizer is None


def test_a_tokenizer_with_a_great_error_is_not_used(check: Check) -> None:
    """Counts that grow with the square of the text are plausible one by one."""
    server = Server(counts=lambda count: round(count * 1.3), tokenize=lambda body: {"tokens": [7] * uneven(body)})
    found = check(scenario(chat()), server)
    (note,) = found.length_notes
    assert "counts words with an error of" in note
    assert words(server.turns[0]) == pytest.approx(1000 / 1.3, rel=0.02)


def uneven(body: Json) -> int:
    text = body.get("prompt", "")
    count = len(text.split())
    return min(len(text.encode()), max(2 * count // 3, count * count // 70)) or count


# -- counts of the server held against the plan


@pytest.mark.parametrize("endpoint", ["chat", "completions", "responses", "messages"])
@pytest.mark.parametrize(
    ("factor", "finding"),
    [
        (1.1, "as planned"),
        (1.5, "other length"),
        (0.7, "other length"),
        (2.3, "wrong length"),
        (0.4, "wrong length"),
    ],
)
def test_the_first_prompt_is_held_against_its_plan(
    check: Check, endpoint: str, factor: float, finding: str, caplog: pytest.LogCaptureFixture
) -> None:
    def server() -> Server:
        return Server(counts=lambda count: round(count * factor), tokenize=of_key("prompt"))

    document = scenario(chat(), endpoint=endpoint)
    if finding == "wrong length":
        with pytest.raises(
            UsageError, match=r"prompt tokens by the server, 1,000 by the plan; .*wrong_length=warn"
        ) as raised:
            check(document, server())
        assert "\n" not in str(raised.value)
        document["request"]["wrong_length"] = "warn"
    found = check(document, server())
    (length,) = found.proven.lengths
    assert (length.planned, length.finding) == (1000, finding)
    assert length.counted == pytest.approx(1000 * factor, abs=9)
    assert found.length_notes == ([] if finding == "as planned" else [length.in_words()])
    assert ("by the plan" in caplog.text) == (finding != "as planned")


@pytest.mark.parametrize("counts", [lambda _count: None, lambda _count: 0])
def test_an_answer_without_usage_is_said(check: Check, counts: Any, caplog: pytest.LogCaptureFixture) -> None:
    found = check(scenario(chat()), Server(counts=counts, tokenize=of_key("prompt")))
    (length,) = found.proven.lengths
    assert length.finding == "no usage"
    assert found.length_notes == [length.in_words()]
    assert "has no usage: the length of its prompt (1,000 planned) is not checked" in length.in_words()
    assert length.in_words() in caplog.text


@pytest.mark.parametrize("counts", [lambda _count: None, lambda _count: 0, lambda _count: 7])
def test_nothing_is_said_of_a_length_without_a_plan(
    check: Check, counts: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Tasks choose their requests."""
    found = check(scenario({"kind": "tasks"}), Server(counts=counts, tokenize=of_key("prompt")))
    assert ([length.finding for length in found.proven.lengths], found.length_notes) == (["no plan"], [])
    assert "planned" not in caplog.text


LENGTHS = {"short": 100, "middle": 700, "long": 4000}


@pytest.mark.parametrize(
    ("order", "endpoint", "factor"),
    [
        (order, *other)
        for order, other in zip(
            itertools.permutations(LENGTHS), itertools.cycle(itertools.product(("chat", "messages"), (2.3, 0.4)))
        )
    ],
)
def test_classes_of_one_form_are_checked_by_the_longest_in_any_order(
    check: Check, order: tuple[str, ...], endpoint: str, factor: float
) -> None:
    """The shortest one's factor is lost in 256 tokens."""
    classes = [{"name": name, "share": 0.2, "workload": chat(prompt_tokens=LENGTHS[name])} for name in order]
    classes.append({"name": "talk", "share": 0.4, "workload": chat(prompt_tokens=100, turns=2)})  # another form
    document = scenario({"kind": "mix", "classes": classes}, endpoint=endpoint)

    def server() -> Server:
        return Server(counts=lambda count: round(count * factor), tokenize=of_key("prompt"))

    with pytest.raises(UsageError, match=r"class long .* 4,000 by the plan"):
        check(document, server())
    document["request"]["wrong_length"] = "warn"
    one = server()
    found = check(document, one)
    assert len(one.turns) == 3  # the longest, that of the other form, and its history
    assert {length.class_name: length.finding == "wrong length" for length in found.proven.lengths} == {
        "long": True,
        "talk": False,
    }


@pytest.mark.parametrize("seed", range(4))
def test_short_drawn_prompts_are_checked_by_the_longest_of_them(check: Check, seed: int) -> None:
    drawn = {"dist": "lognormal", "p50": 120, "p95": 900, "max": 4000}
    server = Server(counts=lambda count: 3 * count, tokenize=of_key("prompt"))
    with pytest.raises(UsageError, match="prompt tokens by the server"):
        check(scenario(chat(prompt_tokens=drawn)) | {"seed": seed}, server)
    assert len(server.turns) == 1


def test_short_prompts_may_differ_by_a_system_prompt_of_the_server(check: Check) -> None:
    found = check(scenario(chat(prompt_tokens=20)), Server(counts=lambda count: count + 200, tokenize=of_key("prompt")))
    assert [length.finding for length in found.proven.lengths] == ["other length"]


def test_every_server_is_checked(check: Check) -> None:
    good = Server(tokenize=of_key("prompt"))
    bad = Server(counts=lambda count: 3 * count, tokenize=of_key("prompt"))
    with pytest.raises(UsageError) as raised:
        check(scenario(chat()), good, bad)
    assert bad.scripted.url in str(raised.value)


def test_two_checks_send_different_prompts(check: Check) -> None:
    """A cache must not have the prompt: some servers leave cached tokens out of their counts."""
    servers = [Server(tokenize=of_key("prompt")) for _ in range(2)]
    for isolate in ("run", "none"):
        for server in servers:
            check(scenario(chat()) | {"cache": {"isolate": isolate}}, server)
    sent = [text for server in servers for body in server.turns for text in strings(body["messages"]) if len(text) > 50]
    assert len({text[:40] for text in sent}) == len(sent) == 4


def test_a_first_turn_that_is_refused_for_its_length_is_named(check: Check, caplog: pytest.LogCaptureFixture) -> None:
    def refuse(body: Json) -> tuple[int, str] | None:
        return (400, "the request exceeds the available context size") if words(body) > 500 else None

    with pytest.raises(UsageError, match=r"context size.*1,000 planned prompt tokens; a short one is taken"):
        check(scenario(chat()), Server(refuse=refuse))
    found = check(scenario(chat(), wrong_length="warn"), Server(refuse=refuse))
    assert "a short one is taken" in caplog.text
    (length,) = found.proven.lengths
    assert (length.finding, length.planned, length.counted) == ("refused", 1000, None)
    assert length.in_words() == found.length_notes[-1]
    assert "refused in full (1,000 prompt tokens by the plan)" in length.in_words()


def test_a_first_turn_without_an_answer_has_no_checked_length(check: Check) -> None:
    found = check(scenario(chat()), Server(refuse=lambda _body: (503, "busy"), tokenize=of_key("prompt")))
    assert [length.finding for length in found.proven.lengths] == ["no answer"]
    assert found.length_notes == [length.in_words() for length in found.proven.lengths]


# -- histories

ALTERNATE = "Conversation roles must alternate user/assistant/user/assistant/..."


RECORDED = {"history": "recorded"}


def has_history(body: Json) -> bool:
    context = body.get("messages", body.get("input", []))
    return any(item.get("role") == "assistant" or item.get("type") == "function_call" for item in context)


@pytest.mark.parametrize(
    ("workload", "endpoint", "status"),
    [
        (workload, endpoint, (400, 422, 500)[(row + column) % 3])
        for row, workload in enumerate(each | more for each in (chat(turns=3), AGENT) for more in ({}, RECORDED))
        for column, endpoint in enumerate(("chat", "responses", "messages"))
    ],
)
def test_a_refused_history_ends_the_run(check: Check, workload: Json, endpoint: str, status: int) -> None:
    server = Server(refuse=lambda body: (status, ALTERNATE) if has_history(body) else None, tokenize=of_key("prompt"))
    with pytest.raises(
        UsageError, match=rf"a turn with a history is refused: .*{ALTERNATE[:20]}.*; choose a workload"
    ) as raised:
        check(scenario(workload, endpoint=endpoint, ignore_eos=False), server)
    assert "\n" not in str(raised.value)
    assert [has_history(body) for body in server.turns] == [False, True]


@pytest.mark.parametrize("status", [400, 403, 404, 500, 503])
def test_a_refusal_that_names_something_else_is_a_warning(
    check: Check, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        server = Server(refuse=lambda body: (status, "no luck today") if has_history(body) else None)
        check(scenario(chat(turns=3)), server)
    assert "a turn with a history had no answer" in caplog.text
    assert "the load is sent all the same" in caplog.text


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
def test_a_busy_server_gets_the_history_again(check: Check, status: int) -> None:
    busy = [(status, "busy: too many messages of assistant")] * 2
    if status == 500:
        busy = [(status, "busy")] * 2
    server = Server(refuse=lambda body: busy.pop() if has_history(body) and busy else None)
    found = check(scenario(chat(turns=2)), server)
    assert (found.facts.sent.requests, found.facts.sent.served) == (4, 2)
    assert len(server.turns) == 4


@pytest.mark.parametrize("workload", [chat(), chat(turns=3, history="none"), {"kind": "tasks"}])
def test_workloads_without_a_history_have_one_first_turn(check: Check, workload: Json) -> None:
    server = Server()
    found = check(scenario(workload), server)
    assert (len(server.turns), found.facts.sent.requests) == (1, 1)


def test_a_live_history_has_the_whole_answer_of_the_server(check: Check, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        server = Server(answer="Once upon a time.")
        found = check(scenario(chat(turns=2)), server)
    first, second = server.turns
    assert (first["max_tokens"], second["max_tokens"]) == (40, 1)
    assert [message["role"] for message in second["messages"]] == ["user", "assistant", "user"]
    assert second["messages"][1]["content"] == "Once upon a time."
    assert first["messages"][0]["content"].split()[1] not in second["messages"][0]["content"]
    assert "the first turn had a whole one: 1 tokens of answer in" in caplog.text
    assert found.facts.sent.requests == found.facts.sent.served == 2


def test_a_recorded_history_has_a_made_answer(check: Check) -> None:
    server = Server(answer="Once upon a time.")
    check(scenario(chat(turns=2, history="recorded")), server)
    first, second = server.turns
    assert (first["max_tokens"], second["max_tokens"]) == (1, 1)
    assert second["messages"][1] == {"role": "assistant", "content": "Hello"}


@pytest.mark.parametrize("history", ["live", "recorded"])
def test_an_agent_s_history_has_calls_and_results(check: Check, history: str) -> None:
    server = Server()
    check(scenario(AGENT | {"history": history}), server)
    second = server.turns[1]
    called = [call["id"] for message in second["messages"] for call in message.get("tool_calls", ())]
    assert called
    assert [message["tool_call_id"] for message in second["messages"] if message["role"] == "tool"] == called
    assert all(message["content"] for message in second["messages"])


def test_each_item_of_responses_has_its_type(check: Check) -> None:
    def refuse(body: Json) -> tuple[int, str] | None:
        return None if all("type" in item for item in body["input"]) else (400, "Cannot determine type of 'item'")

    server = Server(refuse=refuse)
    check(scenario(AGENT, endpoint="responses", ignore_eos=False), server)
    assert {item["type"] for item in server.turns[1]["input"]} == {"message", "function_call", "function_call_output"}


def test_a_minimum_of_tokens_applies_to_the_history_too(check: Check) -> None:
    def refuse(body: Json) -> tuple[int, str] | None:
        return (400, "max_tokens must be at least 16") if body["max_tokens"] < 16 else None

    server = Server(refuse=refuse)
    found = check(scenario(chat(turns=2)), server)
    assert [body["max_tokens"] for body in server.turns] == [40, 1, 16]
    assert (found.facts.sent.requests, found.facts.sent.served) == (3, 2)


def test_a_mix_sends_the_history_of_each_class(check: Check) -> None:
    classes = [
        {"name": "one", "share": 0.4, "workload": chat()},
        {"name": "many", "share": 0.3, "workload": chat(turns=4)},
        {"name": "agent", "share": 0.3, "workload": AGENT},
    ]
    server = Server()
    check(scenario({"kind": "mix", "classes": classes}), server)
    assert sorted((has_history(body), "tools" in body) for body in server.turns) == [
        (False, False),
        (False, False),
        (False, True),
        (True, False),
        (True, True),
    ]
