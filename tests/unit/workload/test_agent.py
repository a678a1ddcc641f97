"""Planned agents: scripts without a server."""

import json
from collections.abc import Iterator
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_scenario import small

from inferload.scenario.files.yaml_text import ScenarioError
from inferload.scenario.schema.agent import Agent
from inferload.turns.record import CANCELLED
from inferload.workload.agent import agent
from inferload.workload.content.messages import Message
from inferload.workload.content.script import Ask, Fork, PlannedTurn, TurnReply, outline
from inferload.workload.content.tool_text import json_tokens, tools_json

SMALL = {
    "kind": "agent",
    "tools_tokens": 0,
    "system_prompt_tokens": 50,
    "prompt_tokens": 20,
    "steps": 4,
    "output_tokens": 10,
    "tools": [{"name": "look", "time_s": 2, "result_tokens": 30}],
    "parallel_calls": 0.0,
    "context_limit_tokens": 4000,
}


def planned(index: int = 3, seed: str = "seed", **changes: Any) -> list[PlannedTurn]:
    workload = Agent.model_validate(SMALL | changes)
    return list(outline(agent(workload, index, Random(f"{seed}/{index}")), index))


def roles(turn: PlannedTurn) -> str:
    return "".join(message.role[0] for message in turn.ask.messages)


def keys(message: Message) -> list[str]:
    return [piece.key for piece in message.pieces]


def calls_are_answered(messages: tuple[Message, ...]) -> bool:
    """Return True if each message with tool calls is followed by exactly their results, in order."""
    at = 0
    while at < len(messages):
        called = [call.call_id for call in messages[at].tool_calls]
        answered_ids = [message.tool_call_id for message in messages[at + 1 : at + 1 + len(called)]]
        if called != answered_ids or (messages[at].role == "tool" and not messages[at].tool_call_id):
            return False
        at += 1 + len(called)
    return True


def test_each_step_except_the_last_calls_tools() -> None:
    turns = planned()
    assert [roles(turn) for turn in turns] == ["su", "suat", "suatat", "suatatat"]
    assert [turn.ask.pause_s for turn in turns] == [0, 2, 2, 2]
    assert [turn.ask.pause for turn in turns] == ["think", "tool", "tool", "tool"]
    assert [turn.ask.final for turn in turns] == [False, False, False, True]
    assert calls_are_answered(turns[-1].ask.messages)


def test_the_next_request_waits_for_the_think_time() -> None:
    turns = planned(requests=2, steps=2, idle_s=60)
    assert [roles(turn) for turn in turns] == ["su", "suat", "suatau", "suatauat"]
    assert [turn.ask.pause_s for turn in turns] == [0, 2, 60, 2]
    assert [turn.ask.final for turn in turns] == [False, False, False, True]


def test_parallel_tools_take_as_long_as_the_slowest() -> None:
    tools = [{"name": "slow", "share": 0.5, "time_s": 9}, {"name": "quick", "share": 0.5, "time_s": 1}]
    turns = planned(tools=tools, parallel_calls=1.0, context_limit_tokens=200_000)
    for turn in turns[1:]:
        calls = [message.tool_calls for message in turn.ask.messages if message.tool_calls][-1]
        assert len(calls) == 2
        assert turn.ask.pause_s == (9 if any(call.name == "slow" for call in calls) else 1)
    assert calls_are_answered(turns[-1].ask.messages)


def test_a_failed_call_is_repeated_in_another_step() -> None:
    turns = planned(
        tools=[{"name": "look", "fails": 0.999, "result_tokens": 100, "time_s": 1}], tool_retries=2, steps=2
    )
    assert len(turns) == 1 + 2 + 1
    results = [message for message in turns[-1].ask.messages if message.role == "tool"]
    assert [message.tokens for message in results] == [30, 30, 30]


@pytest.mark.parametrize("where", ["start", "end"])
@pytest.mark.parametrize("system_prompt_tokens", [0, 50])
def test_the_current_time_is_at_its_configured_position(where: str, system_prompt_tokens: int) -> None:
    def first(index: int, timestamp: str) -> Message:
        prefix = {"timestamp": timestamp, "where": where, "variants": 3}
        changes = {"prefix": prefix, "conversation": "same", "system_prompt_tokens": system_prompt_tokens}
        return planned(index, **changes)[0].ask.messages[0]

    assert first(0, "static") == first(1, "static")
    assert first(1, "dynamic") != first(2, "dynamic")
    assert first(1, "dynamic") == first(4, "dynamic")  # the same variant
    time = first(1, "dynamic").pieces[0 if where == "start" else -1]
    assert time.literal == "2026-01-14 09:30:00"
    rest = [{*keys(first(index, "dynamic"))} for index in (1, 2)]
    assert len(rest[0] & rest[1]) == 1  # the prefix without the time is the same
    assert first(0, "none").pieces[0].literal is None


def test_a_shared_conversation_is_identical() -> None:
    laws = {"steps": {"dist": "uniform", "min": 2, "max": 9}, "history": "recorded", "conversation": "same"}
    assert planned(1, **laws) == planned(2, **laws)
    own = planned(1, **laws | {"conversation": "own"})
    assert own != planned(2, **laws | {"conversation": "own"})
    assert own == planned(1, **laws | {"conversation": "own"})


def test_reasoning_is_stripped_or_kept() -> None:
    thinking = {"tokens": 90, "history": "strip"}
    stripped, unchanged = (planned(thinking=thinking | {"history": how}) for how in ("strip", "keep"))
    assert [turn.ask.output_tokens for turn in stripped] == [100] * 4
    answers = [[m for m in turns[-1].ask.messages if m.role == "assistant"] for turns in (stripped, unchanged)]
    assert [m.tokens for m in answers[0]] == [10] * 3
    assert [m.tokens for m in answers[1]] == [100] * 3
    assert keys(answers[0][0]) != keys(answers[1][0])  # a prefix cache contains the complete answer, not a stripped one


def talk(workload: Agent, reply: TurnReply) -> Iterator[Ask]:
    """Yield the requests of a session in which every answer is `reply`."""
    script = agent(workload, 0, Random(0))
    sent = None
    while True:
        try:
            effect = script.send(sent)
        except StopIteration:
            return
        assert isinstance(effect, Ask)
        yield effect
        sent = reply


def test_answers_are_resent_without_reasoning() -> None:
    workload = Agent.model_validate(SMALL | {"steps": 2, "thinking": {"tokens": 30}})
    apart = [*talk(workload, TurnReply("said", 40, reasoning="thought"))][1].messages[2]
    assert (apart.pieces[0].literal, apart.reasoning) == ("said", "")
    mixed = [*talk(workload, TurnReply("one two three four", 40))][1].messages[2]
    assert mixed.pieces[0].literal == "four"  # 30 of 40 tokens are reasoning
    keep = Agent.model_validate(SMALL | {"steps": 2, "thinking": {"tokens": 30, "history": "keep"}})
    answer = [*talk(keep, TurnReply("said", 40, reasoning="thought"))][1].messages[2]
    assert (answer.pieces[0].literal, answer.reasoning) == ("said", "thought")
    assert [call.name for call in answer.tool_calls] == ["look"]


def test_a_cancelled_answer_is_requested_again() -> None:
    cancel = {"share": 1.0, "after_s": 0.5, "again_s": 7, "again_tokens": 9}
    plain, cut = planned(steps=3), planned(steps=3, cancel=cancel)
    assert [turn.ask.cancel_after_s for turn in cut] == [0.5, None] * 3
    assert [turn.ask.pause_s for turn in cut] == [0, 7, 2, 7, 2, 7]
    assert roles(cut[1]) == "suu"
    assert [t.ask.output_tokens for t in cut[1::2]] == [t.ask.output_tokens for t in plain]
    workload = Agent.model_validate(SMALL | {"cancel": cancel, "steps": 2})
    assert len([*talk(workload, TurnReply("in time", 3))]) == 2  # the answers end before the cancellation
    assert len([*talk(workload, TurnReply("", 3, finish_reason=CANCELLED))]) > 2


@settings(max_examples=40)
@given(st.integers(0, 99), st.integers(2, 60), st.sampled_from(["live", "recorded"]), st.booleans())
def test_truncation_keeps_calls_with_their_results(index: int, steps: int, history: str, thinking: bool) -> None:
    changes = {
        "steps": steps,
        "history": history,
        "thinking": {"tokens": 50} if thinking else None,
        "parallel_calls": 0.3,
        "compaction": {"at": 0.8, "to_tokens": {"dist": "uniform", "min": 200, "max": 280}},
        "tools": [
            {"name": "look", "time_s": 0, "fails": 0.2, "result_tokens": {"dist": "uniform", "min": 1, "max": 250}}
        ],
    }
    turns = planned(index, **changes)
    assert max((turn.input_tokens or 0) + (turn.ask.output_tokens or 0) for turn in turns) <= 4000
    assert all(calls_are_answered(turn.ask.messages) for turn in turns)
    assert [turn.ask.final for turn in turns] == [False] * (len(turns) - 1) + [True]
    before = turns[0]
    for turn in turns[1:]:
        grown = turn.ask.messages[: len(before.ask.messages)] == before.ask.messages
        assert grown or turn.ask.messages[0] == before.ask.messages[0]  # or the history was summarized
        before = turn


def test_compaction_requests_a_summary_and_continues_from_it() -> None:
    tools = [{"name": "look", "time_s": 0, "result_tokens": 200}]
    turns = planned(steps=40, tools=tools, compaction={"at": 0.8, "to_tokens": 400})
    (summary, after), *_more = [
        (turn, later) for turn, later in pairwise(turns)
        if len(later.ask.messages) < len(turn.ask.messages)
    ]  # fmt: skip
    assert summary.ask.messages[-1].role == "user"
    assert summary.ask.output_tokens == 350  # 400 tokens including the system prompt of 50
    assert roles(after) == "su"
    assert after.input_tokens == 400
    changes = {"steps": 40, "tools": tools, "compaction": {"at": 0.8, "to_tokens": 400}}
    asks = talk(Agent.model_validate(SMALL | changes), TurnReply("\n", 10, reasoning="the limit ended this"))
    blank = next(later for ask, later in pairwise(asks) if len(later.messages) < len(ask.messages)).messages[1]
    assert (blank.pieces[0].tokens, blank.pieces[0].literal) == (350, None)  # servers refuse a blank one


@pytest.mark.parametrize("context", ["fresh", "fork"])
def test_subagents_run_in_parallel_and_report(context: str) -> None:
    subagents = {
        "share": 1.0,
        "count": 3,
        "context": context,
        "steps": 2,
        "prompt_tokens": 5,
        "system_prompt_tokens": 8,
    }
    workload = Agent.model_validate(SMALL | {"steps": 2, "subagents": subagents})
    script = agent(workload, 1, Random(1))
    assert isinstance(next(script), Ask)
    fork = script.send(TurnReply("go", 10))
    assert isinstance(fork, Fork)
    turns = planned(steps=2, subagents=subagents)
    paths = [turn.path for turn in turns]
    assert len({*paths}) == 4
    assert paths == ["", paths[1], paths[1], paths[3], paths[3], paths[5], paths[5], ""]
    child = turns[1].ask.messages
    assert [message.role[0] for message in child] == (["s", "u"] if context == "fresh" else ["s", "u", "u"])
    assert (child[0] == turns[0].ask.messages[0]) == (context == "fork")
    assert child[-1].tokens == 5
    assert roles(turns[-1]) == "suattt"
    assert keys(turns[-1].ask.messages[3]) == [f"answer/3{paths[1]}/1"]
    assert calls_are_answered(turns[-1].ask.messages)


@given(st.integers(1, 3000), st.lists(st.sampled_from(["a", "b", "read_file"]), unique=True, min_size=1))
def test_tool_definitions_have_about_the_given_size(tokens: int, names: list[str]) -> None:
    encoded = tools_json(tuple(names), tokens)
    tools = json.loads(encoded)
    assert [tool["function"]["name"] for tool in tools[: len(names)]] == names
    assert encoded == tools_json(tuple(names), tokens)
    assert tokens <= json_tokens(encoded) + 60 <= tokens + 130 * (1 + len(names))
    assert tools_json(tuple(names), 0) == b""


def test_requests_have_tools_and_forbid_calls() -> None:
    turns = planned(tools_tokens=300, context_limit_tokens=9000)
    assert all(turn.ask.tools == turns[0].ask.tools != b"" for turn in turns)
    assert {turn.ask.tool_choice for turn in turns} == {"none"}
    assert turns[0].input_tokens == json_tokens(turns[0].ask.tools) + 70
    assert planned()[0].ask.tool_choice is None


@pytest.mark.parametrize(
    ("workload", "message"),
    [
        ({"tools": [{"name": "a"}, {"name": "a"}]}, "tool a is listed twice"),
        ({"context_limit_tokens": 8000}, "context_limit_tokens"),
        ({"prefix": {"timestamp": "static", "time": "yesterday"}}, "must be a time in the form"),
        ({"cancel": {"share": 0.5}}, "after_s: missing"),
        ({"subagents": {"share": 2}}, "subagents.share"),
        ({"step": 3}, "did you mean steps?"),
        ({"tools": []}, "tools"),
    ],
)
def test_mistakes_are_one_line(workload: dict[str, Any], message: str) -> None:
    with pytest.raises(ScenarioError, match=r"^small.yaml:\d+: ") as raised:
        small(workload={"kind": "agent"} | workload)
    assert message in str(raised.value)
    assert len(str(raised.value).splitlines()) == 1


@pytest.mark.parametrize(
    "more",
    [
        {"cancel": {"share": 0.1, "after_s": 1.0, "again_tokens": 90_000}},
        {"subagents": {"share": 0.1, "prompt_tokens": 90_000}},
    ],
)
def test_the_maximum_growth_of_a_step_includes_retries(more: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="a step can add"):
        Agent.model_validate({"kind": "agent"} | more)
