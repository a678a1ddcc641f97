"""Live agents: loading of classes, and their messages. Runs: tests/unit/run/test_virtual_agents.py."""

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from inferload.locustfiles.toolagent import TOOLS, ToolAgent, calculate

from inferload.base.errors import UsageError
from inferload.scenario.scenario import Scenario
from inferload.scenario.scenario import load as load_scenario
from inferload.scenario.schema.agent import LiveAgentWorkload
from inferload.workload.content.data import DataContext, DataFindings, Notes
from inferload.workload.content.messages import ToolCall
from inferload.workload.content.script import Ask, Script, TurnReply, Work, Worked, outline
from inferload.workload.live_agent import LiveAgentSessions, as_document, as_message, load
from inferload.workload.plan.describe import describe
from inferload.workload.sessions import Sessions

NAME = "inferload.locustfiles.toolagent:ToolAgent"
OWN = """
from inferload.workload.live_agent import LiveAgent, Say

class Parrot(LiveAgent):
    def step(self, messages):
        if len(messages) > 3:
            raise RuntimeError("no more")
        return Say([{"role": "user", "content": f"{len(messages)} so far"}], output_tokens=7, pause_s=0.5)

class NoAgent:
    pass
"""


def call(name: str, **arguments: Any) -> ToolCall:
    return ToolCall(f"call-{name}", name, json.dumps(arguments))


def driven(script: Script, *replies: TurnReply) -> Iterator[Ask]:
    """Yield the requests of a script that receives these replies; its work is done at once."""
    left = iter(replies)
    sent: Any = None
    while True:
        try:
            effect = script.send(sent)
        except StopIteration:
            return
        if isinstance(effect, Work):
            sent = Worked(effect.call())
            continue
        assert isinstance(effect, Ask)
        yield effect
        sent = next(left)


def begun(workload: dict[str, Any], notes: Notes | None = None, origin: str = "") -> Script:
    kind = LiveAgentWorkload.model_validate({"kind": "live_agent", "agent": NAME} | workload)
    return LiveAgentSessions(kind, "live_agent", DataContext(origin)).script(
        3, Random(1), Notes() if notes is None else notes
    )


def test_tools_are_called_until_the_model_calls_none() -> None:
    replies = (
        TurnReply("", 9, tool_calls=(call("list_files"), call("calculate", expression="3 + 4 * 2"))),
        TurnReply("", 9, tool_calls=(call("calculate", expression="().__class__"), call("fly"))),
        TurnReply("done", 9),
    )
    asks = list(driven(begun({}), *replies))
    assert [ask.pause for ask in asks] == ["think", "tool", "tool"]
    assert all(json.loads(ask.tools) == list(TOOLS) and ask.final is None for ask in asks)
    messages = [as_document(message) for message in asks[-1].messages]
    results = {message["tool_call_id"]: message["content"] for message in messages if message["role"] == "tool"}
    assert results["call-calculate"].startswith("error: ValueError")
    assert results["call-fly"].startswith("error: ValueError: unknown tool")
    first = {m["tool_call_id"]: m["content"] for m in map(as_document, asks[1].messages) if m["role"] == "tool"}
    assert first["call-calculate"] == "11"
    assert all(line.startswith("note-") for line in first["call-list_files"].splitlines())


def test_the_folder_of_a_session_is_removed_at_its_end() -> None:
    agent = ToolAgent(0, Random(0))
    folder = Path(agent._folder.name)
    assert list(folder.iterdir())
    agent.close()
    assert not folder.exists()
    script = begun({})
    asks = driven(script, TurnReply("", 9, tool_calls=(call("clock"),)))
    next(asks)
    script.close()  # as at the end of a run


def test_sessions_ended_by_max_steps_are_counted() -> None:
    notes = Notes()
    asks = list(driven(begun({"max_steps": 2}, notes), *[TurnReply("", 1, tool_calls=(call("clock"),))] * 2))
    assert len(asks) == 2
    assert notes == {"live agents ended by max_steps 2": 1}


def test_an_agent_class_is_loaded_from_a_file_beside_the_scenario(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN)
    origin = tmp_path / "scenario.yaml"
    origin.touch()
    script = begun({"agent": "mine.py:Parrot"}, origin=str(origin))
    ask = next(driven(script))
    assert (ask.messages[0].pieces[0].literal, ask.output_tokens, ask.pause_s) == ("0 so far", 7, 0.5)
    agent, path = load("mine.py:Parrot", str(origin))
    assert (agent.__name__, path) == ("Parrot", tmp_path / "mine.py")
    kind = LiveAgentWorkload.model_validate({"kind": "live_agent", "agent": "mine.py:Parrot"})
    with pytest.raises(UsageError, match=r"mine.py:Parrot: differs from the master's"):
        LiveAgentSessions(kind, "parrots", DataContext(str(origin), {"parrots": DataFindings("0" * 64)}))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("no.such:Thing", "no.such cannot be loaded"),
        ("mine.py:Missing", "Missing is not defined there"),
        ("mine.py:NoAgent", "not a subclass of LiveAgent"),
        ("nowhere.py:Thing", "no such file"),
        ("broken.py:Thing", "SyntaxError"),
    ],
)
def test_an_invalid_agent_name_is_refused_in_one_line(name: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN)
    (tmp_path / "broken.py").write_text("class Thing(")
    origin = tmp_path / "scenario.yaml"
    origin.touch()
    with pytest.raises(UsageError) as raised:
        load(name, str(origin))
    assert says in str(raised.value)
    assert len(str(raised.value).splitlines()) == 1


@pytest.mark.parametrize(
    "document",
    [
        {"role": "robot", "content": ""},
        {"role": "user", "content": None},
        {"role": "user", "content": [{"type": "text"}]},
    ],
)
def test_invalid_messages_are_refused(document: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="message"):
        as_message(document)


@pytest.mark.parametrize("pause_s", [float("nan"), -1.0, 1e300])
def test_a_pause_that_is_no_time_is_refused(pause_s: float, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN.replace("pause_s=0.5", f"pause_s=float('{pause_s}')"))
    origin = tmp_path / "scenario.yaml"
    origin.touch()
    with pytest.raises(ValueError, match=r"^pause_s of a step is .*; give seconds from 0 to 1,000,000$"):
        next(driven(begun({"agent": "mine.py:Parrot"}, origin=str(origin))))


def test_messages_survive_a_round_trip() -> None:
    documents = [
        {"role": "user", "content": "ask"},
        {
            "role": "assistant",
            "content": "",
            "reasoning": "hm",
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "clock", "arguments": "{}"}}],
        },
        {"role": "tool", "content": "now", "tool_call_id": "c"},
    ]
    assert [as_document(as_message(document)) for document in documents] == documents


def test_the_calculator_evaluates_arithmetic_only() -> None:
    assert calculate("(1 + 2) * 3 / 4 - 0.25") == 2
    for expression in ("2 ** 9", "open('x')", "'a' * 9", "x"):
        with pytest.raises(ValueError, match="cannot calculate"):
            calculate(expression)


def test_a_plan_calls_no_agent_and_states_unknown_lengths() -> None:
    assert list(outline(begun({}), 3)) == []
    assert "not known before the run" in describe(load_scenario("agent-live"))


def test_a_common_prefix_of_live_agents_is_not_taken_for_a_warm_cache() -> None:
    assert Sessions(load_scenario("agent-live")).first_turns_share()
    assert not Sessions(load_scenario("chat")).first_turns_share()


def test_live_agents_do_not_ignore_eos_by_default() -> None:
    plain = load_scenario("agent-live").as_data()
    del plain["request"]["ignore_eos"]
    assert Scenario.model_validate(plain).request.ignore_eos is False
    assert Scenario.model_validate(plain | {"request": {"ignore_eos": True}}).request.ignore_eos is True
    del plain["request"]
    assert Scenario.model_validate(plain).request.ignore_eos is False


def test_a_plan_of_a_mix_states_the_classes_not_included() -> None:
    data = load_scenario("agent-live").as_data()
    chat = {"kind": "chat", "turns": 3, "prompt_tokens": 10, "output_tokens": 5}
    classes = [
        {"name": "talk", "share": 0.5, "workload": chat},
        {"name": "live", "share": 0.5, "workload": data["workload"]},
    ]
    plan = describe(Scenario.model_validate(data | {"workload": {"kind": "mix", "classes": classes}}))
    assert "of the sessions, turns not known before the run" in plan
    assert plan.count("class live not included") == 5
    assert "session   3 turns" in plan
