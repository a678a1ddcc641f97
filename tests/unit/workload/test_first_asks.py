"""First turns in short: the form of the run's requests, without their length and prefixes."""

import json
from typing import Any

import pytest
from small_scenario import small

from inferload.base.errors import UsageError
from inferload.client.requests.bodies import BodySettings, BodyWriter, Texts
from inferload.scenario import scenario as scenarios
from inferload.scenario.files import catalog
from inferload.workload.content.data import DataContext
from inferload.workload.content.prompts import approximate
from inferload.workload.content.script import TurnReply, outline
from inferload.workload.content.tool_text import json_tokens
from inferload.workload.isolation import Isolation
from inferload.workload.plan.first_asks import PLAIN, FirstAsk, first_asks, in_short
from inferload.workload.sessions import Sessions


@pytest.mark.parametrize("name", catalog.names())
def test_bundled_scenarios_have_short_first_requests(name: str) -> None:
    scenario = scenarios.load(name)
    sessions = Sessions(scenario, DataContext(name))
    try:
        sessions.open()
    except UsageError:
        pytest.skip("its data is not bundled")
    firsts = first_asks(scenario, sessions)
    assert [first.class_name for first in firsts] == sorted(sessions.classes, key=[*map(class_name, firsts)].index)
    histories = [first.then.ask for first in firsts if first.then is not None]
    for ask in map(in_short, [*(first.ask for first in firsts), *histories]):
        body = BodyWriter(Texts(approximate(), 0), BodySettings.of(scenario, "m"), Isolation()).body(ask)
        document = json.loads(body)
        texts = [*document.get("input", ()), *document.get("documents", ())]  # of endpoints without streams
        texts += [message["content"] for message in document.get("messages", ())]
        assert {*texts} <= {"Hello", ""}


def class_name(first: FirstAsk) -> str:
    return first.class_name


def test_roles_tools_and_options_are_those_of_the_run() -> None:
    scenario = scenarios.load("agent-tools")
    own = outline(Sessions(scenario).begin(0).script, 0, most=1)[0].ask
    short = in_short(own)
    assert [message.role for message in short.messages] == [message.role for message in own.messages]
    assert (short.output_tokens, short.tool_choice, short.headers) == (own.output_tokens, own.tool_choice, own.headers)
    first, *others = json.loads(short.tools)
    own_first, *own_others = json.loads(own.tools)
    assert others == own_others
    assert first["function"] | {"description": ""} == own_first["function"] | {"description": ""}
    assert first["function"]["description"].endswith(own_first["function"]["description"])
    assert first != own_first


def test_a_run_of_tasks_has_a_plain_question() -> None:
    scenario = small(workload={"kind": "tasks"})
    assert first_asks(scenario, Sessions(scenario)) == [FirstAsk("tasks", PLAIN)]


CHAT = {"kind": "chat", "turns": {"dist": "uniform", "min": 1, "max": 4}, "prompt_tokens": 20, "output_tokens": 40}
AGENT = {
    "kind": "agent",
    "requests": 2,
    "steps": {"dist": "uniform", "min": 1, "max": 3},
    "prompt_tokens": 50,
    "output_tokens": 30,
    "tools": [{"name": "bash", "time_s": 1, "result_tokens": 90}],
}


def first_of(workload: dict[str, Any], seed: int = 0) -> tuple[FirstAsk, Sessions]:
    scenario = small(workload=workload, seed=seed)
    sessions = Sessions(scenario)
    (first,) = first_asks(scenario, sessions)
    return first, sessions


@pytest.mark.parametrize(
    ("workload", "live"),
    [
        (CHAT, True),
        (CHAT | {"history": "recorded"}, False),
        (CHAT | {"history": "none"}, None),
        (CHAT | {"turns": 1}, None),
        (AGENT, True),
        (AGENT | {"history": "recorded"}, False),
    ],
)
def test_a_class_with_second_turns_has_a_history(workload: dict[str, Any], live: bool | None) -> None:
    first, _ = first_of(workload)
    assert first.planned_tokens == sum(message.tokens or 0 for message in first.ask.messages) + json_tokens(
        first.ask.tools
    )
    assert first.live == bool(live)
    assert (first.then is None) == (live is None)
    if first.then is not None:
        short = in_short(first.then.ask)
        assert {"user", "assistant"} <= {message.role for message in short.messages}
        assert all(piece.literal == "Hello" for message in short.messages for piece in message.pieces)


def test_the_history_of_an_agent_has_tool_calls_and_their_results() -> None:
    first, _ = first_of(AGENT)
    assert first.then is not None
    messages = first.then.ask.messages
    called = [call.call_id for message in messages for call in message.tool_calls]
    assert called
    assert [message.tool_call_id for message in messages if message.role == "tool"] == called


@pytest.mark.parametrize("workload", [CHAT, AGENT])
def test_a_live_history_has_the_answer_of_the_server(workload: dict[str, Any]) -> None:
    first, sessions = first_of(workload)
    assert first.then is not None
    asked = in_short(first.then.answered(sessions, TurnReply("It is so.", 7)), answers=True)
    texts = {
        message.role: "".join(piece.literal or "" for piece in message.pieces)
        for message in asked.messages
        if not message.tool_calls
    }
    assert texts["user"] == "Hello"
    assert all(message.pieces[0].literal == "It is so." for message in asked.messages if message.role == "assistant")
    assert len(asked.messages) == len(first.then.ask.messages)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    "drawn", [{"dist": "lognormal", "p50": 120, "p95": 900, "max": 4000}, {"dist": "uniform", "min": 1, "max": 9000}]
)
def test_the_first_turn_is_the_longest_of_the_first_sessions(drawn: dict[str, Any], seed: int) -> None:
    first, sessions = first_of(CHAT | {"prompt_tokens": drawn}, seed)
    lengths = [outline(sessions.begin(index).script, index, most=1)[0].input_tokens or 0 for index in range(20)]
    assert first.planned_tokens == max(lengths)
    assert sum(message.tokens or 0 for message in first.ask.messages) == max(lengths)
