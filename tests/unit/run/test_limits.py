"""Limits of a load besides time: shares, quotas by count, and the limit of turns in flight."""

import gevent
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferload.run.worker.run_part import InFlightLimiter
from inferload.scenario.files.yaml_text import ScenarioError
from inferload.scenario.scenario import from_text
from inferload.workload.arrivals import share
from inferload.workload.quota import Quota

HEAD = """schema: 1
name: p
workload: {kind: chat, prompt_tokens: 10, output_tokens: 5}
arrivals: {kind: constant, sessions_per_s: 2}
"""


@given(st.integers(0, 10_000), st.integers(1, 50))
def test_shares_add_up_and_differ_by_at_most_1(total: int, workers: int) -> None:
    parts = [share(total, worker, workers) for worker in range(workers)]
    assert sum(parts) == total
    assert max(parts) - min(parts) <= 1


@given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 6), st.lists(st.booleans(), max_size=80))
def test_quotas_of_all_workers_add_up(sessions: int, turns: int, workers: int, later_turns: list[bool]) -> None:
    scenario = from_text(f"{HEAD}phases: {{sessions: {sessions}, turns: {turns}}}", "x")
    taken_sessions = taken_turns = 0
    for worker in range(workers):
        quota = Quota.of(scenario, worker, workers)
        assert quota.take_turn("warmup") != (
            share(turns, worker, workers) == 0
        )  # a worker without a share of the turns sends none in the warm-up
        while quota.take_session("measure"):
            taken_sessions += 1
            taken_turns += 1
            taken_turns += sum(quota.take_turn("measure") for _later in later_turns)
        assert quota.spent
    assert taken_sessions <= sessions
    assert taken_turns <= turns
    if workers == 1 and not later_turns:
        assert taken_sessions == taken_turns == min(sessions, turns)
    if sessions >= 60 and later_turns:
        assert taken_turns == turns


def test_the_in_flight_limit_admits_in_order() -> None:
    limiter, inside, order = InFlightLimiter(2), [0], []
    most = 0

    def guest(number: int) -> None:
        nonlocal most
        assert limiter.enter()
        order.append(number)
        inside[0] += 1
        most = max(most, inside[0])
        gevent.sleep(0)
        inside[0] -= 1
        limiter.leave()

    gevent.joinall([gevent.spawn(guest, number) for number in range(20)], raise_error=True)
    assert order == list(range(20))
    assert most == 2
    assert limiter.try_enter()
    assert limiter.try_enter()
    assert not limiter.try_enter()


def test_closing_the_limit_releases_waiting_turns() -> None:
    limiter = InFlightLimiter(1)
    assert limiter.enter()
    waiting = [gevent.spawn(limiter.enter) for _ in range(3)]
    gevent.sleep(0)
    limiter.close()
    gevent.joinall(waiting)
    assert [waiter.value for waiter in waiting] == [False] * 3
    limiter.leave()
    assert not limiter.enter()


@pytest.mark.parametrize(
    ("phases", "message"),
    [
        (
            "{warmup_s: 3}",
            "phases: measure_s is missing; give measure_s, sessions or turns, or measure_s: null",
        ),
        ("{sessions: 0}", "phases.sessions: must be at least 1, is 0"),
        ("{turns: 2.5}", "phases.turns: must be a whole number, is 2.5"),
    ],
)
def test_invalid_count_limits_are_refused(phases: str, message: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        from_text(f"{HEAD}phases: {phases}", "x")
    assert str(caught.value).startswith(f"x:5: {message}")


@given(st.integers(1, 200), st.integers(1, 40), st.integers(1, 9))
def test_a_counted_closed_loop_divides_by_users(sessions: int, users: int, workers: int) -> None:
    closed = f"{{kind: closed, users: {users}, spawn_per_s: 1}}"
    text = HEAD.replace("{kind: constant, sessions_per_s: 2}", closed)
    scenario = from_text(f"{text}phases: {{sessions: {sessions}}}", "x")
    taken = []
    for worker in range(workers):
        quota, mine = Quota.of(scenario, worker, workers), 0
        while quota.take_session("measure"):
            mine += 1
        assert quota.spent  # a worker without users has no share and is finished immediately
        taken.append(mine)
        of_users = len(range(worker, users, workers))
        assert of_users * (sessions // users) <= mine <= of_users * -(-sessions // users)
    assert sum(taken) == sessions
