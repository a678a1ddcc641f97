"""Tasks of agents from a table of turns: duration of each, and its parts.

A task is a session with the turns of its sub-agents; it belongs to the phase of its first turn. Its duration is the sum of
model time (at least one turn in flight), tool time and think time (no turn in flight; the kind is that of the turn that ends
the pause), and lag (a turn was due and not sent: connecting, a limit on turns in flight, a thread for a live agent's step,
this client). Arrays over all turns of a part of the run, since a run has millions of turns. No I/O.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct, structs

from inferload.base.arrow import pa, pc
from inferload.base.clock import NS_PER_S
from inferload.figures.turn_figures import ITL, STALL_MS
from inferload.figures.turn_values import values_by_turn
from inferload.results.documents.summary_document import Task, TaskSteps
from inferload.results.summary import exact_block
from inferload.turns.record import CANCELLED
from inferload.turns.sketch import Floats, Ints

COLUMNS = (
    *("session_id", "turn_index", "class", "phase", "planned_ns", "sent_ns", "closed_ns", "event_ns"),
    *("pause", "final", "failure"),
    *("finish_reason", "input_tokens", "output_tokens", "cached_tokens"),
)
# First step of each group with a common cached share.
STEPS = (0, 1, 2, 3, 5, 10, 20, 50, 100)


def facts(turns: pa.Table) -> pa.Table:
    """Return what tasks are computed from, of a table of COLUMNS: about 90 bytes per turn."""
    gaps, row = values_by_turn(turns, ITL.key)
    stalled = np.zeros(len(turns), dtype=np.bool_)
    stalled[row[gaps > STALL_MS]] = True
    ok = pc.is_null(turns["failure"])
    return pa.table(
        {
            "class": turns["class"],
            "root": pc.list_element(pc.split_pattern(turns["session_id"], "/", max_splits=1), 0),
            "at_top": pc.invert(pc.match_substring(turns["session_id"], "/")),
            "index": turns["turn_index"],
            "measured": pc.equal(turns["phase"], "measure"),
            "tool": pc.fill_null(pc.equal(turns["pause"], "tool"), False),
            "final": pc.fill_null(turns["final"], False),
            "ok": ok,
            "cancelled": pc.and_(ok, pc.equal(pc.fill_null(turns["finish_reason"], ""), CANCELLED)),
            "stalled": stalled,
            "was_sent": pc.is_valid(turns["sent_ns"]),
            "sent_ns": pc.coalesce(turns["sent_ns"], turns["planned_ns"]),
            **{name: turns[name] for name in ("planned_ns", "closed_ns", *_TOKENS)},
        }
    )


_TOKENS = ("input_tokens", "output_tokens", "cached_tokens")


def tasks_by_class(parts: Iterable[pa.Table], names: Sequence[str]) -> dict[str, Task]:
    """Return the tasks of each class. `parts`: tables of `facts` that hold whole sessions."""
    figures: dict[str, list[_Figures]] = {name: [] for name in names}
    for part in parts:
        for name, of_class in figures.items():
            of_class.append(_figures(part.filter(pc.equal(part["class"], name))))
    return {name: _block(of_class) for name, of_class in figures.items()}


class _Tasks(Struct, frozen=True):
    """Completed tasks. `first_call_s`: time to the first answer with a call of a tool or sub-agent; NaN: no call.

    `stalled`: 1 with a stall in at least one of its answers.
    """

    completion_s: Floats
    steps: Floats
    first_call_s: Floats
    model_s: Floats
    tool_s: Floats
    think_s: Floats
    lag_s: Floats
    stalled: Floats


class _Figures(Struct, frozen=True):
    """Figures of one class in a part. Sums are over the turns of the measure phase that ended well.

    `counted`: turns with known input and output tokens. The last three: by group of steps, and of all turns at the end.
    """

    begun: int
    done: _Tasks
    turns: int
    cancelled: int
    counted: int
    input_tokens: int
    output_tokens: int
    by_step: Ints
    cached: Ints
    cached_of: Ints


def _figures(turns: pa.Table) -> _Figures:
    begun, done = tasks_of(turns)
    well = turns.filter(pc.and_(turns["ok"], turns["measured"]))
    counted = well.filter(pc.and_(pc.is_valid(well["input_tokens"]), pc.is_valid(well["output_tokens"])))
    known = pc.and_(pc.is_valid(well["input_tokens"]), pc.is_valid(well["cached_tokens"])).to_numpy()
    top = well["at_top"].to_numpy()  # sub-agents count their own steps
    group = np.where(top, np.searchsorted(STEPS, well["index"].to_numpy(), side="right") - 1, len(STEPS))

    def sums(values: Any) -> Ints:
        values = np.broadcast_to(np.asarray(values, dtype=np.int64), group.shape)
        by_step = np.zeros(len(STEPS) + 1, dtype=np.int64)
        np.add.at(by_step, group, values)
        by_step[-1] = values.sum()
        return by_step

    tokens = {name: np.where(known, pc.fill_null(well[name], 0).to_numpy(), 0) for name in _TOKENS}
    return _Figures(
        begun=begun,
        done=done,
        turns=len(well),
        cancelled=pc.sum(well["cancelled"]).as_py() or 0,
        counted=len(counted),
        input_tokens=pc.sum(counted["input_tokens"]).as_py() or 0,
        output_tokens=pc.sum(counted["output_tokens"]).as_py() or 0,
        by_step=sums(1),
        cached=sums(tokens["cached_tokens"]),
        cached_of=sums(tokens["input_tokens"]),
    )


class _Sessions(Struct, frozen=True):
    """Turns by session and plan. `starts`: first row of each session. `of`: session of each row."""

    turns: pa.Table
    starts: Ints
    of: Ints

    @classmethod
    def of_turns(cls, turns: pa.Table) -> "_Sessions":
        names = turns["root"].combine_chunks().dictionary_encode()
        rank = np.empty(len(names.dictionary), dtype=np.int64)
        rank[pc.sort_indices(names.dictionary).to_numpy()] = np.arange(len(rank))
        session = rank[names.indices.to_numpy()]
        order = np.lexsort((turns["sent_ns"].to_numpy(), turns["planned_ns"].to_numpy(), session))
        session = session[order]
        starts = np.flatnonzero(np.diff(session, prepend=-1))
        rows = turns.drop_columns(["class", "root"]).take(pa.array(order))
        return cls(rows, starts, np.cumsum(np.diff(session, prepend=-1) > 0) - 1)

    def column(self, name: str) -> npt.NDArray[Any]:
        return np.asarray(self.turns[name].to_numpy())

    def sums(self, values: npt.NDArray[Any]) -> Ints:
        return np.add.reduceat(values.astype(np.int64), self.starts)

    def first(self, rows: Ints, key: Ints) -> Ints:
        """Return the row with the lowest key of each session, the first of equal ones; -1 without a row."""
        rows = rows[np.lexsort((rows, key, self.of[rows]))]
        sessions, at = np.unique(self.of[rows], return_index=True)
        first = np.full(len(self.starts), -1, dtype=np.int64)
        first[sessions] = rows[at]
        return first


def tasks_of(turns: pa.Table) -> tuple[int, _Tasks]:
    """Return the number of tasks that began in the measure phase, and the completed tasks."""
    if not len(turns):
        return 0, _Tasks(**{name: np.zeros(0) for name in _Tasks.__struct_fields__})
    sessions = _Sessions.of_turns(turns)
    index, top, final = (sessions.column(name) for name in ("index", "at_top", "final"))
    tops = np.flatnonzero(top)
    first, last = sessions.first(tops, index[tops]), sessions.first(tops, -index[tops])
    begun = (first >= 0) & (index[first] == 0) & sessions.column("measured")[first]
    ended = final[last] | (sessions.sums(final & ~top) > 0)  # with sub-agents, perhaps
    done = begun & ended & (sessions.sums(~sessions.column("ok")) == 0)
    tasks = _times(sessions)
    return int(begun.sum()), _Tasks(**{name: values[done] for name, values in structs.asdict(tasks).items()})


def _times(sessions: _Sessions) -> _Tasks:
    start_ns = sessions.column("planned_ns")[sessions.starts][sessions.of]
    columns = (sessions.column(name) - start_ns for name in ("planned_ns", "sent_ns", "closed_ns"))
    planned_ns, sent_ns, closed_ns = columns
    busy_until_ns = _running_max(np.maximum(planned_ns, closed_ns), sessions)
    before_ns = np.concatenate([np.zeros(1, dtype=np.int64), busy_until_ns[:-1]])
    before_ns[sessions.starts] = 0
    tool = sessions.column("tool")
    pause_ns = np.maximum(0, planned_ns - before_ns)
    late_ns = np.where(sessions.column("was_sent"), sent_ns - np.maximum(before_ns, planned_ns), 0).clip(min=0)
    tool_ns, think_ns, lag_ns = map(sessions.sums, (pause_ns * tool, pause_ns * ~tool, late_ns))
    calls = np.flatnonzero(tool | ~sessions.column("at_top"))
    called = sessions.first(calls, calls)
    first_call_ns = np.where(called >= 0, before_ns[called], np.nan)
    whole_ns = busy_until_ns[np.append(sessions.starts[1:], len(busy_until_ns)) - 1]
    return _Tasks(
        completion_s=whole_ns / NS_PER_S,
        steps=sessions.sums(np.ones(len(tool))).astype(np.float64),
        first_call_s=first_call_ns / NS_PER_S,
        model_s=(whole_ns - tool_ns - think_ns - lag_ns) / NS_PER_S,
        tool_s=tool_ns / NS_PER_S,
        think_s=think_ns / NS_PER_S,
        lag_s=lag_ns / NS_PER_S,
        stalled=(sessions.sums(sessions.column("stalled")) > 0).astype(np.float64),
    )


def _running_max(values: Ints, sessions: _Sessions) -> Ints:
    """Return the largest value so far of each session. Each session is raised above the one before it meanwhile."""
    spans = np.maximum.reduceat(values, sessions.starts) + 1
    raised = (np.cumsum(spans) - spans)[sessions.of]
    running: Ints = np.maximum.accumulate(values + raised) - raised
    return running


def _block(parts: Sequence[_Figures]) -> Task:
    def total(name: str) -> Any:
        return sum(getattr(part, name) for part in parts)

    done = {name: np.concatenate([getattr(part.done, name) for part in parts]) for name in _Tasks.__struct_fields__}
    counted = total("counted")
    prompt_tokens, output_tokens = (total(name) if counted else None for name in ("input_tokens", "output_tokens"))
    by_step, cached, cached_of = (total(name).tolist() for name in ("by_step", "cached", "cached_of"))
    shares = [hit / of if of else None for hit, of in zip(cached, cached_of, strict=True)]
    return Task(
        begun=total("begun"),
        done=len(done["steps"]),
        **{name: exact_block(values[~np.isnan(values)]) for name, values in done.items() if name != "stalled"},
        stalled=int(done["stalled"].sum()),
        cancelled_turns=total("cancelled"),
        uncounted_turns=total("turns") - counted,
        input_tokens=prompt_tokens,
        output_tokens=output_tokens,
        input_per_output=prompt_tokens / output_tokens if prompt_tokens is not None and output_tokens else None,
        cached_share=shares[-1],
        cached_share_by_step=[
            TaskSteps(first=first, last=None if behind is None else behind - 1, turns=turns, share=share)
            for first, behind, turns, share in zip(STEPS, (*STEPS[1:], None), by_step[:-1], shares[:-1], strict=True)
            if turns
        ],
    )
