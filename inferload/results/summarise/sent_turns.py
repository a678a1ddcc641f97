"""Sent turns of a run for the expected cache hits, by session. A few are Python objects at a time."""

import re
from collections.abc import Iterator, Mapping
from itertools import groupby, pairwise
from operator import itemgetter

import numpy as np

from inferload.base.arrow import pa, pc
from inferload.figures.turn_values import Read
from inferload.turns.record import CANCELLED
from inferload.workload.prefix_cache.sent import SentTurn

_TOKENS = ("input_tokens", "output_tokens", "cached_tokens")
_COLUMNS = ("turn_id", "session_id", "worker", "sent_ns", *_TOKENS, "finish_reason", "failure", "target", "model")
_FACTS = SentTurn.__struct_fields__
_INDEX = re.compile(r"s(\d{1,18})(?!\d)")
_AT_ONCE = 4096  # turns


def sessions(read: Read, starts_ns: Mapping[str, int]) -> Iterator[tuple[int, Mapping[str, SentTurn]]]:
    """Each session's turns by their ids, sessions in the order in which they were first sent.

    `starts_ns`: zero of each worker's instants on a common clock.
    """
    tables = [_facts(table, starts_ns) for table in read(_COLUMNS)]
    if not tables:
        return
    turns = pa.concat_tables(tables).combine_chunks()
    session, sent_ns = turns["session"].to_numpy(), turns["sent_ns"].to_numpy()
    turns = turns.append_column("place", pa.array(np.argsort(np.argsort(sent_ns, kind="stable"))))
    _, first_row, of = np.unique(session, return_index=True, return_inverse=True)
    opened_ns = np.full(len(first_row), np.iinfo(np.int64).max)
    np.minimum.at(opened_ns, of, sent_ns)
    order = np.lexsort((first_row[of], opened_ns[of]))
    starts = np.flatnonzero(np.diff(session[order], prepend=-1))
    firsts = starts[np.flatnonzero(np.diff(starts // _AT_ONCE, prepend=-1))]
    for start, end in pairwise((*firsts.tolist(), len(order))):
        rows = turns.take(pa.array(order[start:end]))
        columns = (rows[name].to_pylist() for name in ("session", "turn_id", *_FACTS))
        for index, mine in groupby(zip(*columns, strict=True), itemgetter(0)):
            yield index, {turn_id: SentTurn(*facts) for _index, turn_id, *facts in mine}


def _facts(turns: pa.Table, starts_ns: Mapping[str, int]) -> pa.Table:
    """Return the sent turns of the scenario's sessions, with instants on the common clock."""
    matches = map(_INDEX.match, turns["session_id"].to_pylist())
    start_ns = pa.array([starts_ns[worker] for worker in turns["worker"].to_pylist()], pa.int64())
    facts = {
        "session": pa.array([None if match is None else int(match[1]) for match in matches], pa.int64()),
        "sent_ns": pc.add(turns["sent_ns"], start_ns),
        "ended_itself": pc.is_in(turns["finish_reason"], pa.array(["stop", "tool_calls"])),
        "cancelled": pc.fill_null(pc.equal(turns["finish_reason"], CANCELLED), False),
        "goes_on": pc.is_null(turns["failure"]),
        **{name: turns[name] for name in ("turn_id", "model", *_TOKENS)},
        "server": turns["target"],
    }
    table = pa.table(facts)
    return table.filter(pc.and_(pc.is_valid(table["session"]), pc.is_valid(table["sent_ns"])))
