"""Sessions and their requests: equal on any worker, and the JSON bodies."""

import json
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferload.client.requests.bodies import BodySettings, BodyWriter, Texts
from inferload.run.worker.turn_dispatcher import server_of
from inferload.scenario.files.yaml_text import ScenarioError
from inferload.scenario.scenario import Scenario, from_text
from inferload.workload.content.prompts import Vocabulary, calibrate
from inferload.workload.content.script import Ask, PlannedTurn, Sent, TurnReply, outline
from inferload.workload.isolation import Isolation, isolation
from inferload.workload.sessions import Sessions

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
    """Return the scenario with changed values; `__` represents the dot of a path."""
    return BASE.changed({path.replace("__", "."): value for path, value in changes.items()})


class Conversation:
    """The script of a session with its request bodies, as in a run, but without a server."""

    def __init__(self, scenario: Scenario, index: int, isolated: Isolation) -> None:
        self._script = Sessions(scenario).begin(index).script
        self._bodies = BodyWriter(Texts(EXACT, scenario.seed), BodySettings.of(scenario, "tiny"), isolated)
        self.ask = self._next(None)

    def body(self) -> bytes:
        return self._bodies.body(self.ask)

    def add_answer(self, text: str) -> None:
        self.ask = self._next(TurnReply(text, None))

    def _next(self, sent: Sent) -> Ask:
        effect = self._script.send(sent)
        assert isinstance(effect, Ask)
        return effect


def conversation(scenario: Scenario, index: int = 3, isolated: Isolation | None = None, turns: int = 4) -> Conversation:
    """A session of `turns` turns with growing prompts."""
    return Conversation(scenario.changed({"workload.turns": turns}), index, isolated or Isolation())


def asked(talk: Conversation) -> dict[str, Any]:
    return json.loads(talk.body())


def plan_of(scenario: Scenario, index: int) -> list[PlannedTurn]:
    return list(outline(Sessions(scenario).begin(index).script, index))


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_a_session_is_equal_on_any_worker_at_any_time(seed: int, index: int) -> None:
    scenario = changed(seed=seed)
    here, there = Sessions(scenario), Sessions(from_text(scenario.resolved_text(), "wire"))
    here.begin(index + 1)
    one, other = here.begin(index), there.begin(index)
    assert one.index == other.index == index
    assert list(outline(one.script, index)) == list(outline(other.script, index))
    assert plan_of(scenario, index) != plan_of(changed(seed=seed + 1), index)


def test_plans_follow_the_scenario(golden: Callable[[str, str], None]) -> None:
    sessions = [Sessions(BASE).begin(index) for index in range(400)]
    plans = [list(outline(session.script, session.index)) for session in sessions]
    assert {session.class_name for session in sessions} == {"chat"}
    assert {plan[0].ask.pause_s for plan in plans} == {0.0}
    assert sum(map(len, plans)) / 400 == pytest.approx(3.7, rel=0.1)
    assert all(turn.ask.pause_s > 0 for plan in plans for turn in plan[1:])
    assert all(1 <= len(plan) <= 12 for plan in plans)
    # The first sessions of seed 0 must not change between versions, machines and Python versions.
    golden(
        "sessions-seed-0.txt", "".join(f"{number} chat: {_in_words(plan)}\n" for number, plan in enumerate(plans[:8]))
    )


def _in_words(plan: list[PlannedTurn]) -> str:
    return ", ".join(f"{turn.new_tokens}/{turn.ask.output_tokens} after {turn.ask.pause_s:.6f} s" for turn in plan)


def test_a_body_is_a_complete_chat_completion() -> None:
    talk = conversation(BASE)
    body = asked(talk)
    (message,) = body.pop("messages")
    assert message["role"] == "user"
    assert len(message["content"].split()) == talk.ask.messages[0].tokens
    assert body == {
        "model": "tiny",
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": talk.ask.output_tokens,
        "ignore_eos": True,
    }


def test_request_options_of_the_scenario_are_in_the_body() -> None:
    scenario = changed(
        request__extra_body={"temperature": 0, "stop": ["x"], "guided": {"a": [1, None]}},
        request__continuous_usage=True,
        request__ignore_eos=False,
    )
    body = asked(conversation(scenario, isolated=Isolation("salt", "run-1")))
    assert body["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    assert (body["temperature"], body["stop"], body["guided"]) == (0, ["x"], {"a": [1, None]})
    assert body["cache_salt"] == "run-1"
    assert "ignore_eos" not in body


def test_live_history_grows_by_question_and_answer() -> None:
    talk = conversation(changed(workload__system_prompt_tokens=7))
    first = asked(talk)["messages"]
    assert [message["role"] for message in first] == ["system", "user"]
    assert len(first[0]["content"].split()) == 7
    talk.add_answer('He said "ü 😀"\n\x00\\')
    second = asked(talk)["messages"]
    assert second[:2] == first
    assert second[2] == {"role": "assistant", "content": 'He said "ü 😀"\n\x00\\'}
    assert len(second[3]["content"].split()) == talk.ask.messages[3].tokens
    talk.add_answer("")
    third = asked(talk)["messages"]
    assert third[:4] == second
    assert third[4] == {"role": "assistant", "content": "..."}
    assert asked(talk)["max_tokens"] == talk.ask.output_tokens


def test_without_history_a_turn_has_only_its_message() -> None:
    talk = conversation(changed(workload__history="none", workload__system_prompt_tokens=7))
    before = asked(talk)["messages"]
    talk.add_answer("yes")
    after = asked(talk)["messages"]
    assert [message["role"] for message in after] == ["system", "user"]
    assert after[0] == before[0]
    assert after[1] != before[1]


def test_a_second_attempt_sends_the_same_bytes() -> None:
    talk = conversation(BASE)
    assert talk.body() == talk.body()
    talk.add_answer("a")
    assert talk.body() == talk.body()


@given(st.text(max_size=50))
def test_any_answer_can_be_sent_on(answer: str) -> None:
    talk = conversation(BASE)
    talk.add_answer(answer)
    content = asked(talk)["messages"][1]["content"]
    assert content == (answer.encode("utf-16", "surrogatepass").decode("utf-16", "replace") or "...")


def test_surrogate_halves_of_two_events_are_joined() -> None:
    talk = conversation(BASE)
    talk.add_answer("\ud83d" + "\ude00 \ud83d")
    assert asked(talk)["messages"][1]["content"] == "😀 \ufffd"


def test_texts_depend_only_on_seed_session_and_turn() -> None:
    def text(seed: int, index: int) -> str:
        return str(asked(conversation(changed(seed=seed), index))["messages"][0]["content"])

    assert text(1, 3) == text(1, 3)
    assert len({text(1, 3), text(2, 3), text(1, 4)}) == 3


def test_sessions_share_only_the_system_prompt() -> None:
    scenario = changed(workload__system_prompt_tokens=50)
    one, other = (asked(conversation(scenario, index))["messages"] for index in (1, 2))
    assert one[0] == other[0]
    assert one[1]["content"].split()[:3] != other[1]["content"].split()[:3]


def test_isolation_selects_shared_cached_prefixes() -> None:
    assert isolation("none", "r", 4, takes_salt=True) == Isolation("none", "")
    assert isolation("run", "r", 4, takes_salt=True) == Isolation("salt", "r")
    assert isolation("run", "r", 4, takes_salt=False) == Isolation("first_line", "r")
    assert isolation("session", "r", 4, takes_salt=True) == Isolation("salt", "r:4")
    assert isolation("turn", "r", 4, takes_salt=True).of_turn(".2") == Isolation("salt", "r:4:.2")


@pytest.mark.parametrize("takes_salt", [True, False])
def test_by_turn_no_prompt_of_a_session_begins_like_another(takes_salt: bool) -> None:
    writer = BodyWriter(Texts(EXACT, 0), BodySettings.of(BASE, "m"), isolation("turn", "r", 4, takes_salt=takes_salt))
    ask = conversation(changed()).ask
    bodies = [json.loads(writer.body(ask, f"/a.{number}")) for number in (0, 0, 1)]
    begins = [(body.get("cache_salt"), body["messages"][0]["content"].partition("]")[0]) for body in bodies]
    assert begins[0] == begins[1] != begins[2]


@pytest.mark.parametrize("system", [0, 7])
@pytest.mark.parametrize("history", ["live", "none"])
def test_without_salts_the_first_line_of_every_request_is_unique(system: int, history: str) -> None:
    scenario = changed(workload__system_prompt_tokens=system, workload__history=history)
    talk = conversation(scenario, isolated=Isolation("first_line", "run-1"))
    for _turn in range(3):
        messages = asked(talk)["messages"]
        assert messages[0]["content"].startswith("[run-1]\n")
        assert not any("run-1" in message["content"] for message in messages[1:])
        talk.add_answer("a")
    assert "cache_salt" not in asked(conversation(scenario, isolated=Isolation("first_line", "x")))


def test_earlier_messages_are_not_encoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    talk = conversation(BASE, turns=41)
    texts: list[str] = []

    def counted(self: Vocabulary, n_tokens: int, rng: Random) -> str:
        texts.append("word " * n_tokens)
        return texts[-1]

    monkeypatch.setattr(Vocabulary, "text", counted)
    for _turn in range(40):
        talk.body()
        talk.add_answer("a")
    assert len(texts) == 40


def test_shared_text_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def counted(self: Vocabulary, n_tokens: int, rng: Random) -> str:
        made.append(n_tokens)
        return "word " * n_tokens

    monkeypatch.setattr(Vocabulary, "text", counted)
    scenario = changed(workload__system_prompt_tokens=999)
    texts, settings = Texts(EXACT, 0), BodySettings.of(scenario, "tiny")
    for index in range(5):
        turn = plan_of(scenario, index)[0]
        BodyWriter(texts, settings, Isolation()).body(turn.ask)
    assert made.count(999) == 1


MIXED = """\
schema: 1
name: mixed
workload:
  kind: mix
  classes:
    - {name: short, share: 0.75, workload: {kind: chat, prompt_tokens: 10, output_tokens: 5}}
    - {name: long, share: 0.25, workload: {kind: chat, prompt_tokens: 900, output_tokens: 50}, slo: {ttft_ms: 900}}
arrivals: {kind: poisson, sessions_per_s: 2}
phases: {measure_s: 60}
slo: {ttft_ms: 100}
"""


def test_a_mix_divides_sessions_by_share() -> None:
    scenario = from_text(MIXED, "m")
    sessions = Sessions(scenario)
    drawn = [sessions.begin(index) for index in range(2000)]
    assert sessions.classes == ("short", "long")
    assert sum(session.class_name == "short" for session in drawn) / 2000 == pytest.approx(0.75, abs=0.03)
    for session in drawn[:50]:
        assert session.class_name == sessions.class_of(session.index)
        (turn,) = outline(session.script, session.index)
        assert turn.new_tokens == {"short": 10, "long": 900}[session.class_name]
    assert (scenario.slo_of("short").ttft_ms, scenario.slo_of("long").ttft_ms) == (100, 900)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (("share: 0.25", "share: 0.15"), "m:5: workload.classes: shares are 0.75 + 0.15 = 0.9; they must add up to 1"),
        (
            ("name: long", "name: short"),
            "m:5: workload.classes: class short is listed twice; give each class its own name",
        ),
        (("share: 0.25", "share: 0"), "m:7: workload.classes[1].share: must be greater than 0, is 0"),
    ],
)
def test_an_invalid_mix_is_refused(wrong: tuple[str, str], message: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        from_text(MIXED.replace(*wrong), "m")
    assert message in str(caught.value)


@given(st.integers(0, 99), st.integers(1, 6), st.integers(1, 6))
def test_every_worker_uses_all_servers_equally_often(seed: int, servers: int, workers: int) -> None:
    rounds = 240  # a worker misses a server in all of them with probability 1e-18
    places = [server_of(seed, index, servers) for index in range(rounds * servers)]
    assert Counter(places) == dict.fromkeys(range(servers), rounds)
    for worker in range(workers):
        assert set(places[worker::workers]) == set(range(servers))
