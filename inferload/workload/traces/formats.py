"""Formats of traces, by their names in a scenario."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from msgspec import Struct

from inferload.workload.traces.otel import otel
from inferload.workload.traces.otel import unused as unused_attributes
from inferload.workload.traces.requests import (
    AZURE,
    BAILIAN,
    BURSTGPT,
    MOONCAKE,
    TableColumns,
    azure,
    bailian,
    burstgpt,
    mooncake,
    own,
    table,
)
from inferload.workload.traces.tracelab import KEYS as TRACELAB_KEYS
from inferload.workload.traces.tracelab import tracelab
from inferload.workload.traces.turn import Parser, RecordedTurn, beyond
from inferload.workload.traces.weka import Placed, WekaSession, in_words, observed, place, weka, weka_whole


class Nested(Struct, frozen=True):
    """Reader of records that are whole sessions. Their blocks are read later, with each turn."""

    session: Callable[[bytes, int], WekaSession]  # (JSON of a session, its position)
    place: Callable[[Sequence[WekaSession]], Placed]  # times of the sessions of a file
    observed: Callable[[Placed, Sequence[WekaSession]], Counter[str]]
    in_words: Callable[[Counter[str]], list[str]]  # lines of the plan for what was observed in all files
    whole: Callable[[str, RecordedTurn], RecordedTurn]  # (JSON of a turn, turn without blocks) -> turn with blocks


class Format(Struct, frozen=True):
    """Properties of a format: the parser of its records, or `nested`."""

    name: str
    parser: Parser | None = None
    unused: Callable[[Any], Iterable[str]] = lambda _record: ()  # keys that may change the load and are not used
    columns: tuple[str, ...] | None = None  # of a table: those that it must have; None: JSON
    lists: bool = False  # a record need not be an object
    nested: Nested | None = None
    ordered: bool = True  # lines are sorted by time
    timed: bool = True  # sessions have start times
    published: bool = True  # checked against lines of a published file


def of_table(columns: TableColumns) -> Format:
    """Return the format of a table with these columns."""
    used = tuple(filter(None, (columns.at, columns.input_tokens, columns.output_tokens, columns.session, columns.ends)))
    return Format("csv", partial(table, columns), beyond(*used), used, ordered=False)


_OF_AZURE = beyond(*AZURE, "NumImages")
_OF_BURSTGPT = beyond(*BURSTGPT, "Session ID", "Elapsed time", "Total tokens", "Log Type")
FORMATS: Mapping[str, Format] = {
    trace_format.name: trace_format
    for trace_format in (
        Format("mooncake", mooncake, beyond(*MOONCAKE)),
        Format("bailian", bailian, beyond(*BAILIAN)),
        Format("azure-2023", azure, _OF_AZURE, AZURE),
        Format("azure-2024", azure, _OF_AZURE, AZURE),
        Format("azure-2025", azure, _OF_AZURE, AZURE, published=False),
        Format("burstgpt-1", burstgpt, _OF_BURSTGPT, BURSTGPT),
        Format("burstgpt-2", burstgpt, _OF_BURSTGPT, BURSTGPT),
        Format("weka", nested=Nested(weka, place, observed, in_words, weka_whole), ordered=False, timed=False),
        Format("tracelab", tracelab, beyond(*TRACELAB_KEYS), ordered=False),
        Format("otel", otel, unused_attributes, lists=True, ordered=False, published=False),
        Format("jsonl", own),
        of_table(TableColumns()),
    )
}
