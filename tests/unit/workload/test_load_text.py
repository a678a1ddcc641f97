"""The load of a run in words: planned, changed manually, and from a manifest."""

from typing import Any

import pytest

from inferload.base.rundir import Mark
from inferload.scenario.files import catalog
from inferload.scenario.scenario import Scenario, from_text, load
from inferload.workload.content.data import DataContext
from inferload.workload.plan.describe import describe
from inferload.workload.plan.load_text import load_text
from inferload.workload.sessions import Sessions

CHAT = """\
schema: 1
name: small
workload: {kind: chat, prompt_tokens: 512, output_tokens: {dist: uniform, min: 100, max: 156}}
arrivals: %s
phases: {warmup_s: 5, measure_s: 60, drain_s: 0}
"""
STEPS = ", ".join(f"{{users: {2**index}, for_s: 20}}" for index in range(7))


def scenario(arrivals: str) -> Scenario:
    return from_text(CHAT % arrivals, "x")


@pytest.mark.parametrize("name", ["chat", "chat-open", "mixed", "agent-live", "replay-mooncake", "smoke"])
def test_every_line_is_a_line_of_the_plan(name: str) -> None:
    assert name in catalog.names()
    loaded, data = load(name), DataContext(name)
    lines = load_text(loaded, (), data).text.splitlines()
    planned = describe(loaded, data).splitlines()
    assert {line.split()[0] for line in lines} >= {"arrivals", "phases"}
    assert list(dict.fromkeys(line for line in planned if line in lines)) == lines  # some lines are in several rows


WORKLOADS = [
    ("turns: 3, think_time_s: 2, system_prompt_tokens: 100", True),
    ("turns: 2, history: recorded, system_prompt_shared_by: session, system_prompt_tokens: 9", True),
    ("group: {samples: 3}", True),
    ("turns: 2, source: {kind: synthetic}", True),
    ("turns: {dist: geometric, mean: 2}", False),
    ("turns: 2, context: {limit_tokens: 60, then: stop}", False),
    ("documents: {count: 5, tokens: {dist: uniform, min: 1, max: 9}}", False),
]


@pytest.mark.parametrize("arrivals", ["{kind: closed, users: 4, spawn_per_s: 1}", "{kind: poisson, sessions_per_s: 9}"])
@pytest.mark.parametrize(("workload", "alike"), WORKLOADS)
def test_one_of_sessions_that_are_alike_stands_for_all(
    workload: str, alike: bool, arrivals: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = f"{{kind: chat, prompt_tokens: 20, output_tokens: 10, {workload}}}"
    loaded = from_text(f"schema: 1\nname: x\nworkload: {whole}\narrivals: {arrivals}\nphases: {{measure_s: 60}}\n", "x")
    assert Sessions(loaded).alike == alike
    text = load_text(loaded, (), DataContext())
    monkeypatch.setattr(Sessions, "alike", False)
    assert load_text(loaded, (), DataContext()) == text


@pytest.mark.parametrize(
    ("arrivals", "users_or_rate", "detail"),
    [
        ("{kind: closed, users: 40, spawn_per_s: 1}", "40 users", ""),
        ("{kind: closed, users: 1, spawn_per_s: 1}", "1 user", ""),
        (
            f"{{kind: closed, users: 64, spawn_per_s: 1, profile: {{kind: steps, steps: [{STEPS}]}}}}",
            "1 to 64 users",
            "in 7 steps of 20 s; ",
        ),
        (
            "{kind: closed, users: 9, spawn_per_s: 1, profile: {kind: linear, from_users: 9, to_users: 2, end_s: 30}}",
            "2 to 9 users",
            "in 30 s; ",
        ),
        ("{kind: poisson, sessions_per_s: 12}", "12/s Poisson", "session starts; "),
        ("{kind: gamma, sessions_per_s: 0.5, burstiness: 2}", "0.5/s gamma", "session starts; "),
        (
            "{kind: constant, profile: {kind: steps, scale: 2, steps: [{sessions_per_s: 1, for_s: 5}, {sessions_per_s: 4, "
            "for_s: 9}]}}",
            "2 to 8/s constant",
            "session starts; in 2 steps; ",
        ),
        (
            "{kind: poisson, profile: {kind: linear, from_sessions_per_s: 1, to_sessions_per_s: 9, start_s: 10, end_s: 50}}",
            "1 to 9/s Poisson",
            "session starts; in 40 s; ",
        ),
        (
            "{kind: poisson, profile: {kind: points, scale: 2, points: [{time_s: 0, sessions_per_s: 3}, {time_s: 9, "
            "sessions_per_s: 1}, {time_s: 12, sessions_per_s: 3}]}}",
            "2 to 6/s Poisson",
            "session starts; by a profile; ",
        ),
    ],
)
def test_a_tile_has_users_or_rate_and_lengths(arrivals: str, users_or_rate: str, detail: str) -> None:
    text = load_text(scenario(arrivals), (), DataContext())
    assert text.users_or_rate == users_or_rate
    start, _, lengths = text.detail.rpartition("on average ")
    assert start == detail
    assert lengths.startswith("512 prompt, 12")
    assert lengths.endswith(" output tokens planned")


def changed(t_s: float, text: str, **load: Any) -> Mark:
    return Mark(t_s=t_s, wall_ns=0, kind="users", text=text, **load)


def test_manual_changes_are_in_the_text_and_the_tile() -> None:
    def mark(users: int, sessions_per_s: float | None = None) -> Mark:
        text = f"users changed by hand: 2 -> {users}"
        return changed(float(users), text, users=users, sessions_per_s=sessions_per_s)

    closed = scenario("{kind: closed, users: 2, spawn_per_s: 1}")
    others = Mark(wall_ns=0, kind="phase", text="measure")
    changed_text = load_text(closed, [others, mark(40)])
    assert (changed_text.users_or_rate, changed_text.detail) == ("2 to 40 users", "changed by hand once")
    assert changed_text.rows[-1] == ("by hand", ("at 40.0 s users changed by hand: 2 -> 40",))
    many = load_text(closed, [mark(users) for users in range(3, 23)])
    assert many.detail == "changed by hand 20 times"
    assert len(many.rows[-1][1]) == 7
    assert many.rows[-1][1][-2:] == ("14 more changes (marks.jsonl)", "at 22.0 s users changed by hand: 2 -> 22")
    rate = load_text(scenario("{kind: poisson, sessions_per_s: 3}"), [mark(9, sessions_per_s=9.0)])
    assert rate.users_or_rate == "3 to 9/s Poisson"


def test_changes_by_a_shape_are_distinguished_from_manual_ones() -> None:
    closed = scenario("{kind: closed, users: 2, spawn_per_s: 1}")
    marks = [
        changed(1.0, "users changed by the LoadTestShape: 2 -> 4", users=4, by="shape"),
        changed(2.0, "users changed by the LoadTestShape: 4 -> 6", users=6, by="shape"),
        changed(3.0, "users changed by hand: 6 -> 8", users=8, by="hand"),
    ]
    text = load_text(closed, marks)
    assert (text.users_or_rate, text.detail) == (
        "2 to 8 users",
        "changed by the LoadTestShape 2 times; changed by hand once",
    )
    by_shape, by_hand = text.rows[-2:]
    assert by_shape[0] == "by the LoadTestShape"
    assert [line[:8] for line in by_shape[1]] == ["at 1.0 s", "at 2.0 s"]
    assert by_hand == ("by hand", ("at 3.0 s users changed by hand: 6 -> 8",))
