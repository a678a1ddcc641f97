"""Formats of traces, by their names in a scenario."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

from inferload.workload.traces.agents import tracelab, weka, weka_spans, weka_whole
from inferload.workload.traces.otel import otel
from inferload.workload.traces.requests import TableColumns, azure, bailian, burstgpt, mooncake, own, table
from inferload.workload.traces.turn import Parser, RecordedTurn


@dataclass(frozen=True, slots=True)
class Nested:
    """Random access to the turns of a line that is a whole session, so that lines of many megabytes are parsed once."""

    spans: Callable[[bytes], Iterator[tuple[int, int]]]  # (start, length) of each turn in a line, in the parser's order
    whole: Callable[[str, RecordedTurn], RecordedTurn]  # (JSON of a turn, turn without blocks) -> turn with blocks


@dataclass(frozen=True, slots=True)
class Format:
    """Properties of a format: its parser, or for a table the function that returns the parser for a header."""

    name: str
    parser: Parser | None = None
    with_header: Callable[[str], Parser] | None = None
    ordered: bool = True  # lines are sorted by time
    sessions: bool = False  # turns may belong to sessions
    timed: bool = True  # sessions have start times
    nested: Nested | None = None  # each line is a whole session


FORMATS: Mapping[str, Format] = {
    trace_format.name: trace_format
    for trace_format in (
        Format("mooncake", mooncake),
        Format("bailian", bailian),
        Format("azure-2023", with_header=azure),
        Format("azure-2024", with_header=azure),
        Format("burstgpt-1", with_header=burstgpt),
        Format("burstgpt-2", with_header=burstgpt, sessions=True),
        Format("weka", weka, ordered=False, sessions=True, timed=False, nested=Nested(weka_spans, weka_whole)),
        Format("tracelab", tracelab, ordered=False, sessions=True),
        Format("otel", otel, ordered=False, sessions=True),
        Format("jsonl", own, sessions=True),
        Format("csv", with_header=partial(table, TableColumns()), ordered=False, sessions=True),
    )
}


def of_table(columns: TableColumns) -> Format:
    """Return the format of a table with these columns."""
    return replace(FORMATS["csv"], with_header=partial(table, columns))
