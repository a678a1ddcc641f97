"""Sessions and their requests: the same on any worker, and the JSON that a server expects."""

import json
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferload.workload.conversation import Conversation, Isolation, Settings, isolation
from inferload.workload.prompts import Vocabulary, approximate, calibrate
from inferload.workload.scenario import Scenario, from_text
from inferload.workload.sessions import SessionPlan, Sessions, TurnPlan

SCENARIO = """\
schema: 1
name: s
workload:
  kind: chat
  turns: {dist: geometric, mean: 4, max: 12}
  think_time_s: {dist: lognormal, p50: 4, p95: 20}
  prompt_tokens: {dist: lognormal, p50: 30, p95: 150}
  output_tokens: {dist: lognormal, p50: 18, p95: 60}
arrivals: {kind: poisson, sessions_per_s: 2}
phases: {measure_s: 60}
"""
BASE = from_text(SCENARIO, "s")
EXACT = calibrate(lambda text: [int.from_bytes(word.encode(), "big") for word in text.split()])


def changed(**changes: Any) -> Scenario:
    """The scenario with other values; `__` stands for the dot of a path."""
    return BASE.changed({path.replace("__", "."): value for path, value in changes.items()})


def conversation(
    scenario: Scenario, index: int = 3, isolated: Isolation | None = None, turns: int = 3
) -> tuple[Conversation, SessionPlan]:
    plan = SessionPlan(index, "chat", tuple(TurnPlan(10 + turn, 5 + turn, 0.0) for turn in range(turns)))
    return Conversation(plan, EXACT, Settings.of(scenario, "tiny", isolated or Isolation())), plan


def asked(talk: Conversation, turn: int) -> dict[str, Any]:
    return json.loads(talk.body(turn))


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_a_session_is_the_same_wherever_and_whenever_it_is_drawn(seed: int, index: int) -> None:
    scenario = changed(seed=seed)
    here, there = Sessions(scenario, approximate()), Sessions(from_text(scenario.resolved_text(), "wire"), EXACT)
    here.plan(index + 1)
    assert here.plan(index) == there.plan(index)
    assert here.plan(index).index == index
    assert here.plan(index) != Sessions(changed(seed=seed + 1), EXACT).plan(index)


def test_plans_follow_the_scenario(golden: Callable[[str, str], None]) -> None:
    sessions = Sessions(BASE, approximate())
    plans = [sessions.plan(index) for index in range(400)]
    assert {plan.class_name for plan in plans} == {"chat"}
    assert {plan.turns[0].think_time_s for plan in plans} == {0.0}
    assert sum(len(plan.turns) for plan in plans) / 400 == pytest.approx(3.7, rel=0.1)
    assert all(turn.think_time_s > 0 for plan in plans for turn in plan.turns[1:])
    assert all(1 <= len(plan.turns) <= 12 for plan in plans)
    # The first sessions of seed 0, for good: another Python, machine or version must draw the same.
    golden("sessions-seed-0.txt", "".join(f"{_in_words(plan)}\n" for plan in plans[:8]))


def _in_words(plan: SessionPlan) -> str:
    turns = (f"{turn.prompt_tokens}/{turn.output_tokens} after {turn.think_time_s:.6f} s" for turn in plan.turns)
    return f"{plan.index} {plan.class_name}: {', '.join(turns)}"


def test_a_body_is_a_whole_chat_completion() -> None:
    talk, plan = conversation(BASE)
    body = asked(talk, 0)
    (message,) = body.pop("messages")
    assert message["role"] == "user"
    assert len(message["content"].split()) == plan.turns[0].prompt_tokens
    assert body == {
        "model": "tiny",
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 5,
        "ignore_eos": True,
    }


def test_what_the_scenario_asks_for_is_in_the_body() -> None:
    scenario = changed(
        request__extra_body={"temperature": 0, "stop": ["x"], "guided": {"a": [1, None]}},
        request__continuous_usage=True,
        request__ignore_eos=False,
    )
    body = asked(conversation(scenario, isolated=Isolation("salt", "run-1"))[0], 0)
    assert body["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    assert (body["temperature"], body["stop"], body["guided"]) == (0, ["x"], {"a": [1, None]})
    assert body["cache_salt"] == "run-1"
    assert "ignore_eos" not in body


def test_live_history_grows_by_question_and_answer() -> None:
    talk, plan = conversation(changed(workload__system_prompt_tokens=7))
    first = asked(talk, 0)["messages"]
    assert [message["role"] for message in first] == ["system", "user"]
    assert len(first[0]["content"].split()) == 7
    talk.add_answer('He said "ü 😀"\n\x00\\')
    second = asked(talk, 1)["messages"]
    assert second[:2] == first
    assert second[2] == {"role": "assistant", "content": 'He said "ü 😀"\n\x00\\'}
    assert len(second[3]["content"].split()) == plan.turns[1].prompt_tokens
    talk.add_answer("")
    third = asked(talk, 2)["messages"]
    assert third[:4] == second
    assert third[4] == {"role": "assistant", "content": ""}
    assert asked(talk, 2)["max_tokens"] == plan.turns[2].output_tokens


def test_without_history_a_turn_carries_only_its_own_message() -> None:
    talk, _ = conversation(changed(workload__history="none", workload__system_prompt_tokens=7))
    before = asked(talk, 0)["messages"]
    talk.add_answer("yes")
    after = asked(talk, 1)["messages"]
    assert [message["role"] for message in after] == ["system", "user"]
    assert after[0] == before[0]
    assert after[1] != before[1]


def test_a_second_attempt_sends_the_same_bytes() -> None:
    talk, _ = conversation(BASE)
    assert talk.body(0) == talk.body(0)
    talk.add_answer("a")
    assert talk.body(1) == talk.body(1)


def test_turns_out_of_order_are_faults_of_the_caller() -> None:
    talk, _ = conversation(BASE)
    with pytest.raises(ValueError, match="which was not asked"):
        talk.add_answer("too early")
    with pytest.raises(ValueError, match="live history needs each of them"):
        talk.body(1)
    talk.body(0)
    talk.add_answer("once")
    with pytest.raises(ValueError, match="which was not asked"):
        talk.add_answer("twice")


@given(st.text(max_size=50))
def test_any_answer_can_be_sent_on(answer: str) -> None:
    talk, _ = conversation(BASE)
    talk.body(0)
    talk.add_answer(answer)
    content = asked(talk, 1)["messages"][1]["content"]
    assert content == answer.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def test_halves_of_a_pair_that_came_in_two_events_are_one_character_again() -> None:
    talk, _ = conversation(BASE)
    talk.body(0)
    talk.add_answer("\ud83d" + "\ude00 \ud83d")
    assert asked(talk, 1)["messages"][1]["content"] == "😀 \ufffd"


def test_texts_depend_on_seed_session_and_turn_alone() -> None:
    def text(seed: int, index: int) -> str:
        return str(asked(conversation(changed(seed=seed), index)[0], 0)["messages"][0]["content"])

    assert text(1, 3) == text(1, 3)
    assert len({text(1, 3), text(2, 3), text(1, 4)}) == 3


def test_sessions_share_the_system_prompt_and_nothing_else() -> None:
    scenario = changed(workload__system_prompt_tokens=50)
    one, other = (asked(conversation(scenario, index)[0], 0)["messages"] for index in (1, 2))
    assert one[0] == other[0]
    assert one[1]["content"].split()[:3] != other[1]["content"].split()[:3]


def test_isolation_says_who_shares_cached_prefixes() -> None:
    assert isolation("none", "r", 4, takes_salt=True) == Isolation("none", "")
    assert isolation("run", "r", 4, takes_salt=True) == Isolation("salt", "r")
    assert isolation("run", "r", 4, takes_salt=False) == Isolation("first_line", "r")
    assert isolation("session", "r", 4, takes_salt=True) == Isolation("salt", "r/4")


@pytest.mark.parametrize("system", [0, 7])
@pytest.mark.parametrize("history", ["live", "none"])
def test_without_salts_the_first_line_of_every_request_is_unique(system: int, history: str) -> None:
    scenario = changed(workload__system_prompt_tokens=system, workload__history=history)
    talk, _ = conversation(scenario, isolated=Isolation("first_line", "run-1"))
    for turn in range(3):
        messages = asked(talk, turn)["messages"]
        assert messages[0]["content"].startswith("[run-1]\n")
        assert not any("run-1" in message["content"] for message in messages[1:])
        talk.add_answer("a")
    assert "cache_salt" not in asked(conversation(scenario, isolated=Isolation("first_line", "x"))[0], 0)


def test_earlier_messages_are_not_encoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    talk, _ = conversation(BASE, turns=40)
    texts: list[str] = []

    def counted(self: Vocabulary, n_tokens: int, rng: Random) -> str:
        texts.append("word " * n_tokens)
        return texts[-1]

    monkeypatch.setattr(Vocabulary, "text", counted)
    for turn in range(40):
        talk.body(turn)
        talk.add_answer("a")
    assert len(texts) == 40
