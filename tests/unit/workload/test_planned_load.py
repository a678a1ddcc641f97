"""Planned sessions and turns equal those of a run with the same seed, for each kind of end."""

import json
import re
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import sharegpt_file
from hypothesis import given
from hypothesis import strategies as st

from inferload.scenario.scenario import Scenario, from_text, load
from inferload.workload.arrivals import schedule_of
from inferload.workload.plan import describe
from inferload.workload.plan.describe import describe as plan_text
from inferload.workload.plan.planned_load import (
    PlannedLoad,
    SampleSize,
    expected_sessions,
    planned_end_s,
    planned_load,
)
from inferload.workload.sessions import Sessions

SMALL = """\
schema: 1
name: small
workload: {kind: chat, prompt_tokens: 10, output_tokens: 5}
arrivals: {kind: constant, sessions_per_s: 2}
phases: {sessions: 30}
"""
TURNS = {"dist": "uniform", "min": 1, "max": 4}
CLOSED = {"kind": "closed", "users": 3, "spawn_per_s": 100}
MANY = SampleSize(10_000, 100_000)

arrivals = st.one_of(
    st.fixed_dictionaries({"kind": st.just("poisson"), "sessions_per_s": st.floats(0.2, 5.0)}),
    st.fixed_dictionaries({"kind": st.just("constant"), "sessions_per_s": st.floats(0.2, 5.0)}),
    st.fixed_dictionaries({"kind": st.just("closed"), "users": st.integers(1, 9), "spawn_per_s": st.just(10.0)}),
)
counts = st.one_of(
    st.fixed_dictionaries({"sessions": st.integers(1, 40)}),
    st.fixed_dictionaries({"turns": st.integers(1, 60)}),
    st.fixed_dictionaries({"sessions": st.integers(1, 40), "turns": st.integers(1, 60)}),
)


def drawn_sessions(**changes: Any) -> Scenario:
    return from_text(SMALL, "x").changed({path.replace("__", "."): value for path, value in changes.items()})


def planned(scenario: Scenario, sample: SampleSize = MANY) -> PlannedLoad:
    return planned_load(scenario, Sessions(scenario), sample)


def sent(load: PlannedLoad) -> int:
    return sum(len(session.sent) for session in load.sessions)


@given(arrivals, counts, st.sampled_from([None, 3.0, 40.0]), st.sampled_from([0.0, 5.0]))
def test_the_load_ends_with_the_last_planned_turn(
    by: dict[str, Any], count: dict[str, int], measure_s: float | None, warmup_s: float
) -> None:
    scenario = drawn_sessions(
        arrivals=by, phases={**count, "measure_s": measure_s, "warmup_s": warmup_s}, workload__turns=TURNS
    )
    end_s = planned_end_s(scenario, Sessions(scenario), MANY)
    if by["kind"] == "closed":
        assert end_s is None
        return
    ends_s = [session.arrives_s + session.duration_s for session in planned(scenario).sessions]
    assert end_s == min(max(ends_s, default=0.0), float("inf") if measure_s is None else warmup_s + measure_s)


def test_the_end_follows_from_the_drawn_sessions() -> None:
    scenario = drawn_sessions(workload__turns=3, workload__think_time_s=2.0)  # 30 sessions of 4 s at 2/s
    for sample in (MANY, SampleSize(5, 100)):
        assert planned_end_s(scenario, Sessions(scenario), sample) == pytest.approx(14.75 + 4.0)


@pytest.mark.parametrize("by", [{"kind": "poisson", "sessions_per_s": 2.0}, CLOSED])
def test_the_end_is_that_of_the_phases_or_unknown(by: dict[str, Any]) -> None:
    timed = drawn_sessions(arrivals=by, phases={"warmup_s": 5, "measure_s": 20})
    assert planned_end_s(timed, Sessions(timed), MANY) == 25
    steady = drawn_sessions(arrivals=by, phases={"warmup_s": 5, "warmup_until": "steady", "measure_s": 20})
    assert planned_end_s(steady, Sessions(steady), MANY) is None
    endless = drawn_sessions(arrivals=by, phases={"measure_s": None})
    assert planned_end_s(endless, Sessions(endless), MANY) is None


@pytest.mark.parametrize("by", [{"kind": "constant", "sessions_per_s": 2.0}, CLOSED])
def test_a_run_limited_by_sessions_is_planned_with_that_number(by: dict[str, Any]) -> None:
    load = planned(drawn_sessions(arrivals=by, workload__turns=TURNS))
    assert [session.index for session in load.sessions] == list(range(30))
    assert all(session.sent == session.turns for session in load.sessions)
    assert load.whole
    assert load.session_count == 30
    assert load.turn_count == pytest.approx(sent(load))


@given(arrivals, counts, st.booleans(), st.integers(0, 9))
def test_count_limits_bound_the_plan(by: dict[str, Any], ends: dict[str, int], talks: bool, seed: int) -> None:
    load = planned(drawn_sessions(arrivals=by, phases=ends, workload__turns=TURNS if talks else 1, seed=seed))
    assert load.whole
    assert load.session_count == len(load.sessions)
    assert load.turn_count == pytest.approx(min(sent(load), ends.get("turns", 10_000)))
    assert load.session_count <= ends.get("sessions", 10_000)
    assert load.turn_count == pytest.approx(ends.get("turns", 0)) or load.session_count == ends.get("sessions")


@given(st.floats(0.2, 5.0), st.floats(0, 20), st.floats(0.1, 60), st.integers(0, 9))
def test_a_run_limited_by_time_sends_turns_due_before_its_end(
    rate: float, warmup_s: float, measure_s: float, seed: int
) -> None:
    scenario = drawn_sessions(
        arrivals={"kind": "poisson", "sessions_per_s": rate},
        phases={"warmup_s": warmup_s, "measure_s": measure_s},
        workload__turns=TURNS,
        workload__think_time_s=3.0,
        seed=seed,
    )
    load = planned(scenario)
    schedule = schedule_of(scenario, Sessions(scenario), rate)
    due = [arrival.due_s for arrival in islice(iter(schedule.next, None), 1_000)]
    instants = [
        at_s + 3.0 * number
        for at_s, session in zip(due, load.sessions, strict=False)
        for number in range(len(session.turns))
    ]
    end_s = warmup_s + measure_s
    assert len(load.sessions) == sum(at_s < end_s for at_s in due)
    assert sent(load) == sum(at_s < end_s for at_s in instants)
    assert load.session_count == sum(warmup_s <= at_s < end_s for at_s in due)


@given(st.floats(3.0, 6.0), st.integers(1, 6), st.floats(0, 20), st.floats(1, 40), st.floats(0, 8))
def test_turns_beyond_the_sample_end_with_the_run_too(
    rate: float, turns: int, warmup_s: float, measure_s: float, think_s: float
) -> None:
    scenario = drawn_sessions(
        arrivals={"kind": "constant", "sessions_per_s": rate},
        phases={"warmup_s": warmup_s, "measure_s": measure_s},
        workload__turns=turns,
        workload__think_time_s=think_s,
    )
    whole, sample = planned(scenario), planned(scenario, SampleSize(2, 100))
    due_s = [session.arrives_s + turn.at_s for session in whole.sessions for turn in session.turns]
    exact = sum(warmup_s <= at_s < warmup_s + measure_s for at_s in due_s)
    assert whole.turn_count == exact
    assert sample.turn_count == pytest.approx(exact, abs=2 * turns)


STEPS = {"kind": "steps", "steps": [{"sessions_per_s": 1, "for_s": 10}, {"sessions_per_s": 4, "for_s": 10}]}
BY_STEPS = {"kind": "constant", "profile": STEPS}
USERS = {"kind": "steps", "steps": [{"users": 2, "for_s": 5}, {"users": 4, "for_s": 5}]}
TALKS = {"workload__turns": 2, "workload__think_time_s": 1.0}
WARMS = {"warmup_s": 600, "warmup_turns": 10}
OF_20 = "in the measure phase about 20 sessions, 20 turns, 200 input tokens, 100 output tokens"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        # turns of users in the warm-up are not in the sums, nor is a warm-up of unknown length
        ({"arrivals": CLOSED, "phases__warmup_s": 5.0}, "in the measure phase about 30 sessions, 30 turns"),
        ({"phases": {"sessions": 20} | WARMS}, OF_20),
        ({"phases": {"turns": 20} | WARMS}, OF_20),
        ({"phases": {"turns": 20} | WARMS}, "about 20 turns in the measure phase"),
        ({"phases": {"measure_s": 10, "warmup_s": 60, "warmup_until": "steady"}}, OF_20),
        # the mean rate of a profile is that of the run: 10 sessions in 10 s, 20 in 5 s
        ({"arrivals": BY_STEPS, "phases": {"sessions": 30}}, "load      on average 2 turns/s"),
        ({"arrivals": BY_STEPS, "phases": {"sessions": 30, "measure_s": 60}}, "load      on average 2 turns/s"),
        ({"arrivals": BY_STEPS, "phases": {"measure_s": 20}}, "load      on average 2.5 turns/s"),
        (
            {"arrivals": {**CLOSED, "users": 20, "profile": USERS}, "phases": {"measure_s": 10}, **TALKS},
            "limited by the server, and to 4 sessions/s by think times",
        ),
        ({"request": {"endpoint": "completions"}}, "answers follow their prompts directly, without a chat template"),
    ],
)
def test_the_plan_says(changes: dict[str, Any], text: str) -> None:
    assert text in plan_text(drawn_sessions(**changes))


def test_sums_beyond_the_sample_are_estimates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(describe, "SAMPLE", 7)
    for ends in ({"sessions": 30}, {"measure_s": 15}, {"turns": 30}):
        text = plan_text(drawn_sessions(phases=ends))
        assert "in the measure phase about 30 sessions, 30 turns, 300 input tokens, 150 output tokens" in text
        assert "(7 drawn sessions" in text


def test_sessions_of_the_warm_up_are_not_counted_and_their_later_turns_are() -> None:
    mixed = load("mixed")
    planned_ = planned(mixed)
    assert planned_.session_count is not None
    assert planned_.session_count < len(planned_.sessions)  # the others start in the warm-up
    assert "about 113 sessions, 355 turns" in plan_text(mixed)


def test_only_plans_one_class_of_a_mix() -> None:
    mix, chats = load("mixed"), load("mixed").changed({"workload.only": "chat"})
    of_chats = [session.index for session in planned(mix).sessions if session.class_name == "chat"]
    assert [session.index for session in planned(chats).sessions] == of_chats
    mean = expected_sessions(mix, 0.0, 100.0)
    assert mean is not None
    assert expected_sessions(chats, 0.0, 100.0) == pytest.approx(0.8 * mean)
    text = plan_text(chats)
    assert "only chat is sent" in text
    assert "agent:" not in text


def test_children_of_a_fork_are_due_immediately() -> None:
    scenario = load("agent-subagents")
    for session in planned(scenario, SampleSize(20, 1_000)).sessions:
        by_path: dict[str, list[float]] = {}
        for turn in session.turns:
            by_path.setdefault(turn.path, []).append(turn.at_s)
        for path, times in by_path.items():
            assert times == sorted(times)
            assert path.count("/") == 0 or times[0] < by_path[""][-1]


def test_turns_beyond_the_sample_give_estimated_sessions() -> None:
    load = planned(drawn_sessions(phases={"turns": 5_000}, workload__turns=TURNS), SampleSize(200, 10_000))
    assert load.turn_count == pytest.approx(5_000)
    assert load.session_count == pytest.approx(2_000, rel=0.1)
    assert not load.whole


TRACE = """\
{"at_s": 0, "input_tokens": 100, "output_tokens": 10, "session": "a"}
{"at_s": 0, "input_tokens": 100, "output_tokens": 10, "session": "b"}
{"at_s": 9, "input_tokens": 300, "output_tokens": 10, "session": "a"}
{"at_s": 40, "input_tokens": 300, "output_tokens": 10, "session": "b"}
"""


def test_recorded_times_limit_a_closed_loop(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text(TRACE)
    replay = {"kind": "replay", "path": str(tmp_path / "t.jsonl"), "format": "jsonl"}
    text = plan_text(drawn_sessions(workload=replay, arrivals={**CLOSED, "users": 2}, phases={"sessions": 2}))
    assert "later turns start at their recorded times, 24.5 (9 to 40) s after the start of their session" in text
    assert "limited by the server, and to 0.0816 sessions/s by recorded times" in text  # 2 users / 24.5 s
    assert "think time" not in text


def test_pauses_of_concurrent_sub_agents_are_not_added() -> None:
    scenario = drawn_sessions(arrivals=CLOSED, workload=load("agent-subagents").workload.model_dump())
    sessions = planned(scenario, SampleSize(50, 100_000)).sessions
    summed_s = sum(turn.ask.pause_s for session in sessions for turn in session.turns)
    assert 0 < sum(session.duration_s for session in sessions) < 0.95 * summed_s


def test_the_plan_of_a_file_of_sharegpts_shape_shows_what_it_was_made_of(tmp_path: Path) -> None:
    made = sharegpt_file.write(tmp_path / "s.json", 3000)
    source = {"kind": "sharegpt", "path": str(tmp_path / "s.json")}
    workload = {"kind": "chat", "source": source, "history": "recorded", "turns": 9}
    scenario = drawn_sessions(workload=workload, phases={"sessions": 1000})
    (opened,) = Sessions(scenario).open().values()
    facts = opened.facts()["source"]
    skipped = facts["skipped"]
    assert (skipped["not a conversation"], skipped["empty"]) == (made["no conversations"], made["empty"])
    assert skipped["one side only"] >= made["user only"]
    assert 0 < facts["dropped"]["messages of other roles"] <= made["odd role"]
    assert facts["sessions"] + sum(skipped.values()) == 3000
    assert facts["turns"] / facts["used"] == pytest.approx(sharegpt_file.TURNS, rel=0.1)
    found = re.search(r"of first turns alone ([\d.]+) %: prefixes that sessions share", plan_text(scenario))
    common = sum(share for share, tokens in sharegpt_file.BEGINNINGS.values() if tokens) + sharegpt_file.SAME
    assert found is not None
    assert 0 < float(found[1]) / 100 < 5 * common  # the common beginnings are longer than most questions


def test_estimated_token_counts_are_marked(tmp_path: Path) -> None:
    turns = [{"from": "human", "value": "a question " * 9}, {"from": "gpt", "value": "an answer " * 9}]
    (tmp_path / "s.json").write_text(json.dumps([{"conversations": turns}]))
    source = {"kind": "sharegpt", "path": str(tmp_path / "s.json")}
    estimated = plan_text(drawn_sessions(workload={"kind": "chat", "source": source}))
    assert estimated.count("token counts are estimates: see data") == 2  # request and load
    assert "estimates" not in plan_text(drawn_sessions())


@pytest.mark.parametrize("by", [{"kind": "constant", "sessions_per_s": 2}, CLOSED])
def test_the_sessions_until_a_number_of_turns_are_unknown_with_a_live_agent(by: dict[str, Any]) -> None:
    workloads = {"chat": load("smoke").workload, "live": load("agent-live").workload}
    classes = [{"name": name, "share": 0.5, "workload": item.model_dump()} for name, item in workloads.items()]
    mix = {"kind": "mix", "classes": classes}
    text = plan_text(drawn_sessions(workload=mix, arrivals=by, phases={"turns": 30}))
    assert "of the sessions, turns not known before the run" in text
    assert "class live not included" in text
    assert "in the measure phase about" not in text
    only_chats = drawn_sessions(workload=mix | {"only": "chat"}, arrivals=by, phases={"turns": 30})
    assert "in the measure phase about" in plan_text(only_chats)


def test_models_share_no_prefixes() -> None:
    models = [{"name": "base", "share": 0.5}, {"name": "adapter", "share": 0.5}]
    one = drawn_sessions(workload__system_prompt_tokens=310)  # prompts of 320 tokens, of which 304 are cached
    assert "expected hits: 91.8 % of the input tokens" in plan_text(one)  # 29 of 30
    assert "expected hits: 88.7 % of the input tokens" in plan_text(one.changed({"request.models": models}))  # 28 of 30


def test_estimated_token_counts_of_agents_are_marked() -> None:
    tools = "token counts of tool definitions are estimates"
    assert [tools in plan_text(load(name)) for name in ("demo-agent", "agent-static")] == [True, False]


def test_the_messages_of_a_whole_prompt_are_new(tmp_path: Path) -> None:
    says = [{"from": name, "value": "a word " * 9} for name in ("human", "gpt", "human", "gpt")]
    (tmp_path / "s.json").write_text(json.dumps([{"conversations": says}]))
    source = {"kind": "sharegpt", "path": str(tmp_path / "s.json"), "sampler": "whole_prompt", "chars_per_token": 7}
    assert "27 new prompt tokens per turn" in plan_text(drawn_sessions(workload={"kind": "chat", "source": source}))


def test_a_trace_that_ends_needs_turns_and_no_time(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text(TRACE)
    replay = {"kind": "replay", "path": str(tmp_path / "t.jsonl"), "format": "jsonl"}
    text = plan_text(drawn_sessions(workload=replay, arrivals={"kind": "trace"}, phases={"measure_s": 60}))
    assert "p50 needs 20 turns" in text
    assert "needs a measure_s" not in text
    assert "measure until the trace ends, at most 60 s" in text


@pytest.mark.parametrize(("measure_s", "end_s"), [(60, 40), (20, 20)])
def test_a_run_ends_with_its_trace(measure_s: float, end_s: float, tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text(TRACE)
    replay = {"kind": "replay", "path": str(tmp_path / "t.jsonl"), "format": "jsonl"}
    scenario = drawn_sessions(workload=replay, arrivals={"kind": "trace"}, phases={"measure_s": measure_s})
    assert planned_end_s(scenario, Sessions(scenario), MANY) == end_s
