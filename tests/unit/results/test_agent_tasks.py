"""Agent tasks from turns: division of time, for tasks with known timestamps."""

from array import array
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from records import MS, S, turn

from inferload.base.clock import Anchor
from inferload.results.agent_tasks import facts, tasks_by_class
from inferload.results.summarise.turns import agent_classes
from inferload.turns.record import Failure, TurnRecord
from inferload.turns.turn_columns import TurnColumns, to_table


def step(session: str, index: int, planned_s: float, closed_s: float, **changes: Any) -> TurnRecord:
    """Return a turn of a session from `planned_s` to `closed_s`."""
    known = {
        "session_id": session,
        "turn_id": f"{session}.{index}",
        "turn_index": index,
        "class_name": "agent",
        "planned_ns": round(planned_s * S),
        "sent_ns": round(planned_s * S),
        "closed_ns": round(closed_s * S),
        "pause": "tool" if index else None,
    }
    return turn(**known | changes)


def tasks(*records: TurnRecord) -> dict[str, Any]:
    columns = TurnColumns()
    for record in records:
        columns.append(record)
    table = to_table(columns, Anchor(0, 0), "w0")
    blocks: dict[str, Any] = msgspec.to_builtins(tasks_by_class([facts(table)], agent_classes([table])))
    return blocks


def means(block: dict[str, Any]) -> dict[str, float | None]:
    return {name: block[f"{name}_s"]["mean"] for name in ("completion", "model", "tool", "think", "first_call")}


def test_model_tool_and_think_time_add_up() -> None:
    block = tasks(
        step("s0", 0, 1, 3, input_tokens=100, cached_tokens=0, output_tokens=10),
        step("s0", 1, 7, 8, input_tokens=200, cached_tokens=80, output_tokens=10),
        step("s0", 2, 18, 21, pause="think", final=True, input_tokens=300, cached_tokens=160, output_tokens=10),
    )["agent"]
    assert means(block) == {"completion": 20, "model": 6, "tool": 4, "think": 10, "first_call": 2}
    assert (block["begun"], block["done"], block["steps"]["mean"]) == (1, 1, 3)
    assert block["input_per_output"] == 20
    assert block["cached_share"] == 0.4
    assert [(row["from"], row["to"], row["turns"], row["share"]) for row in block["cached_share_by_step"]] == [
        (0, 0, 1, 0.0),
        (1, 1, 1, 0.4),
        (2, 2, 1, 160 / 300),
    ]


def test_the_delay_of_a_due_turn_is_separate() -> None:
    block = tasks(
        step("s0", 0, 0, 3, sent_ns=1 * S),
        step("s0", 1, 5, 9, sent_ns=7 * S),
        step("s0/1.0", 0, 5, 10, pause="tool", sent_ns=6 * S),  # from its send on, a turn is in flight
        step("s0", 2, 10, 12, final=True),
    )["agent"]
    assert block["lag_s"]["mean"] == 1 + 1
    assert means(block) == {"completion": 12, "model": 2 + 4 + 2, "tool": 2, "think": 0, "first_call": 3}


def test_parallel_subagents_take_the_time_of_the_longest() -> None:
    block = tasks(
        step("s0", 0, 0, 1),
        step("s0/1.0", 0, 1, 4, pause="think"),
        step("s0/1.1", 0, 1, 2, pause="think"),
        step("s0/1.1", 1, 3, 6),
        step("s0", 1, 6, 8, final=True),
    )["agent"]
    assert means(block) == {"completion": 8, "model": 8, "tool": 0, "think": 0, "first_call": 1}
    assert block["steps"]["mean"] == 5
    assert sum(row["turns"] for row in block["cached_share_by_step"]) == 2  # without those of the sub-agents


@pytest.mark.parametrize(
    ("changes", "begun", "done"),
    [
        ({}, 1, 1),
        ({"final": False}, 1, 0),  # the run ended before the task
        ({"failure": Failure.CUT}, 1, 0),
        ({"phase": "drain"}, 1, 1),  # a task belongs to the phase in which it began
    ],
)
def test_a_task_is_done_after_its_last_answer(changes: dict[str, Any], begun: int, done: int) -> None:
    block = tasks(step("s0", 0, 0, 1), step("s0", 1, 2, 3, **{"final": True} | changes))["agent"]
    assert (block["begun"], block["done"]) == (begun, done)


def test_tasks_begun_in_another_phase_are_not_counted() -> None:
    block = tasks(step("s0", 0, 0, 1, phase="warmup"), step("s0", 1, 2, 3, final=True))["agent"]
    assert (block["begun"], block["done"]) == (0, 0)


def test_stalls_and_cancelled_answers_are_counted() -> None:
    stall = array("q", [50 * MS, 60 * MS, 400 * MS])
    block = tasks(
        step("s0", 0, 0, 1, event_ns=stall),
        step("s0", 1, 2, 3, finish_reason="cancelled", input_tokens=None, output_tokens=None),
        step("s0", 2, 4, 5, final=True, pause="think"),
        step("s1", 0, 0, 1, final=True),
    )["agent"]
    assert (block["stalled"], block["cancelled_turns"], block["uncounted_turns"]) == (1, 1, 1)
    assert block["input_tokens"] == 300
    assert block["first_call_s"]["count"] == 1


def test_chat_sessions_have_no_tasks() -> None:
    assert tasks(turn(), step("s1", 0, 0, 1, class_name="talk", pause="think")) == {}
    assert tasks() == {}


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.integers(0, 9), st.sampled_from(["tool", "think"])), min_size=1, max_size=9
    )
)
def test_the_times_of_any_task_add_up(parts: list[tuple[int, int, str]]) -> None:
    at_s, records = 0, []
    for index, (pause_s, answer_s, pause) in enumerate(parts):
        planned_s = at_s + (pause_s if index else 0)
        at_s = planned_s + answer_s
        final = index == len(parts) - 1
        records.append(step("s0", index, planned_s, at_s, pause=pause if index else None, final=final))
    block = tasks(*records)["agent"]
    times = means(block)
    assert times["completion"] == at_s
    assert times["model"] == sum(answer_s for _pause_s, answer_s, _pause in parts)
    assert times["tool"] == sum(pause_s for pause_s, _answer_s, pause in parts[1:] if pause == "tool")
