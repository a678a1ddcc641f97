"""Tasks of agents from a table of turns: duration of each, and its parts.

A task is a session with the turns of its sub-agents; it belongs to the phase of its first turn. Its duration is the sum of
model time (at least one turn in flight), tool time and think time (no turn in flight; the kind is that of the turn that ends
the pause), and lag (a turn was due and not sent: connecting, a limit on turns in flight, a thread for a live agent's step,
this client). No I/O.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from inferload.measure.arrow import pa, pc
from inferload.measure.clock import NS_PER_S
from inferload.measure.columns import values_by_turn
from inferload.measure.measures import STALL_MS
from inferload.measure.record import CANCELLED
from inferload.results.summary import exact_block

COLUMNS = (
    *(
        "session_id",
        "turn_index",
        "class",
        "phase",
        "planned_ns",
        "sent_ns",
        "closed_ns",
        "event_ns",
        "pause",
        "final",
        "failure",
    ),
    *("finish_reason", "input_tokens", "output_tokens", "cached_tokens"),
)
# First step of each group with a common cached share.
STEPS = (0, 1, 2, 3, 5, 10, 20, 50, 100)

_AT_ONCE = 4096  # turns per batch of gaps


@dataclass(frozen=True, slots=True)
class Task:
    """One completed task. `first_call_s`: time to the first answer with a call of a tool or sub-agent; None: no call."""

    completion_s: float
    steps: int
    first_call_s: float | None
    model_s: float
    tool_s: float
    think_s: float
    lag_s: float
    stalled: bool  # in at least one of its answers


@dataclass(frozen=True, slots=True)
class _Turn:
    root: str
    at_top: bool  # not of a sub-agent
    index: int
    phase: str
    planned_ns: int
    sent_ns: int | None
    closed_ns: int
    pause: str | None
    final: bool
    ok: bool
    cancelled: bool
    stalled: bool
    input_tokens: int | None
    output_tokens: int | None
    cached_tokens: int | None


def tasks_by_class(table: pa.Table) -> dict[str, Any]:
    """Return a block for each class whose sessions call tools, or mark their final answer. Needs COLUMNS."""
    tells = pc.or_kleene(pc.equal(table["pause"], "tool"), table["final"])
    names = pc.unique(table["class"].filter(tells)).to_pylist()
    return {name: _block(_turns(table.filter(pc.equal(table["class"], name)))) for name in sorted(names)}


def tasks_of(turns: Sequence["_Turn"]) -> tuple[int, list[Task]]:
    """Return the number of tasks that began in the measure phase, and the completed tasks."""
    begun, done = 0, []
    for _root, group in groupby(
        sorted(turns, key=lambda turn: (turn.root, turn.planned_ns, turn.sent_ns or turn.planned_ns)),
        key=lambda turn: turn.root,
    ):
        mine = list(group)
        first = min((turn for turn in mine if turn.at_top), key=lambda turn: turn.index, default=None)
        if first is None or first.index or first.phase != "measure":
            continue
        begun += 1
        last = max((turn for turn in mine if turn.at_top), key=lambda turn: turn.index)
        ended = last.final or any(turn.final for turn in mine if not turn.at_top)  # with sub-agents, perhaps
        if all(turn.ok for turn in mine) and ended:
            done.append(_task(mine))
    return begun, done


def _task(turns: Sequence["_Turn"]) -> Task:
    """Return the task of turns in the order of their plans."""
    start_ns = busy_until_ns = turns[0].planned_ns
    pauses_ns = {"tool": 0, "think": 0, "lag": 0}
    first_call_ns: int | None = None
    for turn in turns:
        if first_call_ns is None and (turn.pause == "tool" or not turn.at_top):
            first_call_ns = busy_until_ns
        if turn.planned_ns > busy_until_ns:
            pauses_ns["tool" if turn.pause == "tool" else "think"] += turn.planned_ns - busy_until_ns
            busy_until_ns = turn.planned_ns
        if turn.sent_ns is not None and turn.sent_ns > busy_until_ns:
            pauses_ns["lag"] += turn.sent_ns - busy_until_ns
        busy_until_ns = max(busy_until_ns, turn.closed_ns)
    whole_ns = busy_until_ns - start_ns
    return Task(
        completion_s=whole_ns / NS_PER_S,
        steps=len(turns),
        first_call_s=None if first_call_ns is None else (first_call_ns - start_ns) / NS_PER_S,
        model_s=(whole_ns - sum(pauses_ns.values())) / NS_PER_S,
        tool_s=pauses_ns["tool"] / NS_PER_S,
        think_s=pauses_ns["think"] / NS_PER_S,
        lag_s=pauses_ns["lag"] / NS_PER_S,
        stalled=any(turn.stalled for turn in turns),
    )


def _block(turns: Sequence["_Turn"]) -> dict[str, Any]:
    begun, done = tasks_of(turns)
    ended_well = [turn for turn in turns if turn.ok and turn.phase == "measure"]
    counted = [(t.input_tokens, t.output_tokens) for t in ended_well if None not in (t.input_tokens, t.output_tokens)]
    prompt_tokens, output_tokens = (
        (sum(tokens or 0 for tokens in each) for each in zip(*counted, strict=True)) if counted else (None, None)
    )
    return {
        "begun": begun,
        "done": len(done),
        "completion_s": _spread(task.completion_s for task in done),
        "steps": _spread(task.steps for task in done),
        "first_call_s": _spread(task.first_call_s for task in done),
        "model_s": _spread(task.model_s for task in done),
        "tool_s": _spread(task.tool_s for task in done),
        "think_s": _spread(task.think_s for task in done),
        "lag_s": _spread(task.lag_s for task in done),
        "stalled": sum(task.stalled for task in done),
        "cancelled_turns": sum(turn.cancelled for turn in ended_well),
        "uncounted_turns": len(ended_well) - len(counted),
        "input_tokens": prompt_tokens,
        "output_tokens": output_tokens,
        "input_per_output": prompt_tokens / output_tokens if prompt_tokens is not None and output_tokens else None,
        "cached_share": _cached_share(ended_well),
        "cached_share_by_step": _by_step(ended_well),
    }


def _by_step(turns: Sequence["_Turn"]) -> list[dict[str, Any]]:
    """Cached share by step of the agents, without sub-agents, which count their own steps."""
    rows = []
    for first, behind in zip(STEPS, (*STEPS[1:], None), strict=True):
        mine = [t for t in turns if t.at_top and t.index >= first and (behind is None or t.index < behind)]
        if mine:
            last = None if behind is None else behind - 1
            rows.append({"from": first, "to": last, "turns": len(mine), "share": _cached_share(mine)})
    return rows


def _cached_share(turns: Iterable["_Turn"]) -> float | None:
    """Cached over input tokens of the turns that reported both; None without such a turn."""
    known = [
        (t.cached_tokens, t.input_tokens) for t in turns if t.cached_tokens is not None and t.input_tokens is not None
    ]
    prompt_tokens = sum(tokens for _cached, tokens in known)
    return sum(cached for cached, _tokens in known) / prompt_tokens if prompt_tokens else None


def _spread(values: Iterable[float | None]) -> Mapping[str, Any]:
    return exact_block(np.array([value for value in values if value is not None], dtype=np.float64))


def _turns(table: pa.Table) -> list[_Turn]:
    columns = table.select(COLUMNS)
    stalled = [longest > STALL_MS for longest in _longest_gaps_ms(columns)]
    rows = columns.drop_columns(["event_ns"]).to_pylist()
    return [
        _Turn(
            root=row["session_id"].partition("/")[0],
            at_top="/" not in row["session_id"],
            index=row["turn_index"],
            phase=row["phase"],
            planned_ns=row["planned_ns"],
            sent_ns=row["sent_ns"],
            closed_ns=row["closed_ns"],
            pause=row["pause"],
            final=bool(row["final"]),
            ok=row["failure"] is None,
            cancelled=row["failure"] is None and row["finish_reason"] == CANCELLED,
            stalled=stall,
            input_tokens=row["input_tokens"],
            output_tokens=row["output_tokens"],
            cached_tokens=row["cached_tokens"],
        )
        for row, stall in zip(rows, stalled, strict=True)
    ]


def _longest_gaps_ms(table: pa.Table) -> list[float]:
    """Longest gap between two output events of each turn; 0 without a gap."""
    longest: list[float] = []
    for batch in table.to_batches(max_chunksize=_AT_ONCE):
        gaps, turn = values_by_turn(pa.Table.from_batches([batch]), "itl_ms")
        of_batch = np.zeros(len(batch))
        np.maximum.at(of_batch, turn, gaps)
        longest += of_batch.tolist()
    return longest
