"""Entries of turns in Locust's statistics, in batches and singly."""

from typing import Any

from locust.env import Environment
from records import MS, S, turn

from inferload.client.turn_record import TurnResult
from inferload.figures.counting import keyed
from inferload.locust_adapters import events
from inferload.locust_adapters.statistics import LocustStats
from inferload.turns.record import Failure

RECORDS = [
    *(turn(turn_id=f"s{n}.0", sent_ns=S + n * MS, first_ns=S + 2 * n * MS + 50 * MS) for n in range(5)),
    turn(class_name="agent"),
    turn(failure=Failure.HTTP_5XX, status=503, event_ns=None, first_ns=None, last_ns=None),
    turn(failure=Failure.UNFINISHED),
    turn(finish_reason="cancelled"),
]


def booked(*listeners: Any) -> Environment:
    environment = Environment()
    environment.create_local_runner()
    for listener in listeners:
        environment.events.request.add_listener(listener)
    LocustStats(environment).add([TurnResult(record, "", "") for record in RECORDS], keyed(RECORDS))
    return environment


def figures(environment: Environment) -> dict[Any, Any]:
    entries = {**environment.stats.entries, "all": environment.stats.total}
    return {
        key: (
            entry.num_requests,
            entry.num_failures,
            dict(entry.response_times),
            round(entry.total_response_time, 6),
            entry.min_response_time,
            entry.max_response_time,
        )
        for key, entry in entries.items()
    }


def test_a_class_without_a_successful_turn_has_no_row() -> None:
    environment = Environment()
    environment.create_local_runner()
    failed = turn(class_name="down", failure=Failure.HTTP_5XX, event_ns=None, first_ns=None, last_ns=None)
    LocustStats(environment).add([TurnResult(failed, "", "")], keyed([failed]))
    assert set(environment.stats.entries) == {("down", "TURN")}  # of the failure


def test_events_of_a_turn_precede_those_of_the_next() -> None:
    heard: list[str] = []
    listeners = {
        events.first_token: lambda record, **_: heard.append(f"first_token {record.turn_id}"),
        events.turn_end: lambda record, **_: heard.append(f"turn_end {record.turn_id}"),
    }
    for hook, listener in listeners.items():
        hook.add_listener(listener)
    try:
        booked(lambda context, **_: heard.append(f"request {context['turn_id']}"))
    finally:
        for hook, listener in listeners.items():
            hook.remove_listener(listener)
    names = ("request", "first_token", "turn_end")
    assert heard[:6] == [f"{name} s{number}.0" for number in range(2) for name in names]


def test_requests_in_a_batch_equal_single_request_events() -> None:
    heard: list[dict[str, Any]] = []
    together, one_by_one = booked(), booked(lambda **request: heard.append(request))
    assert figures(together) == figures(one_by_one)
    assert set(figures(together)) >= {("chat", "TURN"), ("agent", "TURN"), ("chat", "TTFT"), ("chat", "ITL"), "all"}
    assert [request["context"]["turn_id"] for request in heard] == [
        record.turn_id for record in RECORDS if record.finished
    ]
    assert together.stats.total.num_requests == len(heard) == len(RECORDS) - 1
    assert together.stats.total.num_failures == 1
