"""Formats of traces, by their names in a scenario."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from inferload.workload.traces.otel import otel
from inferload.workload.traces.requests import TableColumns, azure, bailian, burstgpt, mooncake, own, table
from inferload.workload.traces.tracelab import tracelab
from inferload.workload.traces.turn import Parser, RecordedTurn
from inferload.workload.traces.weka import Placed, WekaSession, in_words, observed, place, weka, weka_whole


class Nested(Struct, frozen=True):
    """Reader of records that are whole sessions. Their blocks are read later, with each turn."""

    session: Callable[[bytes, int], WekaSession]  # (JSON of a session, its position)
    place: Callable[[Sequence[WekaSession]], Placed]  # times of the sessions of a file
    observed: Callable[[Placed, Sequence[WekaSession]], Counter[str]]
    in_words: Callable[[Counter[str]], list[str]]  # lines of the plan for what was observed in all files
    whole: Callable[[str, RecordedTurn], RecordedTurn]  # (JSON of a turn, turn without blocks) -> turn with blocks


class Format(Struct, frozen=True):
    """Properties of a format: its parser, for a table the function that returns the parser for a header, or `nested`."""

    name: str
    parser: Parser | None = None
    with_header: Callable[[str], Parser] | None = None
    nested: Nested | None = None
    ordered: bool = True  # lines are sorted by time
    sessions: bool = False  # turns may belong to sessions
    timed: bool = True  # sessions have start times
    published: bool = True  # checked against lines of a published file


FORMATS: Mapping[str, Format] = {
    trace_format.name: trace_format
    for trace_format in (
        Format("mooncake", mooncake),
        Format("bailian", bailian, sessions=True),
        Format("azure-2023", with_header=azure),
        Format("azure-2024", with_header=azure),
        Format("burstgpt-1", with_header=burstgpt),
        Format("burstgpt-2", with_header=burstgpt, sessions=True),
        Format(
            "weka",
            nested=Nested(weka, place, observed, in_words, weka_whole),
            ordered=False,
            sessions=True,
            timed=False,
        ),
        Format("tracelab", tracelab, ordered=False, sessions=True),
        Format("otel", otel, ordered=False, sessions=True, published=False),
        Format("jsonl", own, sessions=True),
        Format("csv", with_header=partial(table, TableColumns()), ordered=False, sessions=True),
    )
}


def of_table(columns: TableColumns) -> Format:
    """Return the format of a table with these columns."""
    return replace(FORMATS["csv"], with_header=partial(table, columns))
