"""Formats of traces, by their names in a scenario."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from msgspec import Struct

from inferload.workload.traces import otel, requests, tracelab, weka
from inferload.workload.traces.turn import Parser, RecordedTurn, beyond


class Nested(Struct, frozen=True):
    """Reader of records that are whole sessions. Their blocks are read later, with each turn."""

    session: Callable[[bytes, int], weka.WekaSession]  # (JSON of a session, its position)
    place: Callable[[Sequence[weka.WekaSession]], weka.Placed]  # times of the sessions of a file
    observed: Callable[[weka.Placed, Sequence[weka.WekaSession]], Counter[str]]
    in_words: Callable[[Counter[str]], list[str]]  # lines of the plan for what was observed in all files
    whole: Callable[[bytes, RecordedTurn], RecordedTurn]  # (JSON of a turn, turn without blocks) -> turn with blocks


class Format(Struct, frozen=True):
    """Properties of a format: the parser of its records, or `nested`."""

    name: str
    parser: Parser | None = None
    unused: Callable[[Any], Iterable[str]] = lambda _record: ()  # keys that may change the load and are not used
    columns: tuple[str, ...] | None = None  # of a table: those that it must have; None: JSON
    lists: bool = False  # a record need not be an object
    nested: Nested | None = None
    beside: bool = False  # turns of a session that overlap are those of agents that run at the same time
    ordered: bool = True  # lines are sorted by time
    timed: bool = True  # sessions have start times
    published: bool = True  # checked against lines of a published file


def of_table(columns: requests.TableColumns) -> Format:
    """Return the format of a table with these columns."""
    used = tuple(filter(None, (columns.at, columns.input_tokens, columns.output_tokens, columns.session, columns.ends)))
    return Format("csv", partial(requests.table, columns), beyond(*used), used, ordered=False)


_OF_AZURE = beyond(*requests.AZURE, "NumImages")
_OF_BURSTGPT = beyond(*requests.BURSTGPT, "Session ID", "Elapsed time", "Total tokens", "Log Type")
FORMATS: Mapping[str, Format] = {
    trace_format.name: trace_format
    for trace_format in (
        Format("mooncake", requests.mooncake, beyond(*requests.MOONCAKE)),
        Format("bailian", requests.bailian, beyond(*requests.BAILIAN)),
        Format("azure-2023", requests.azure, _OF_AZURE, requests.AZURE),
        Format("azure-2024", requests.azure, _OF_AZURE, requests.AZURE),
        Format("azure-2025", requests.azure, _OF_AZURE, requests.AZURE, published=False),
        Format("burstgpt-1", requests.burstgpt, _OF_BURSTGPT, requests.BURSTGPT),
        Format("burstgpt-2", requests.burstgpt, _OF_BURSTGPT, requests.BURSTGPT),
        Format(
            "weka",
            nested=Nested(weka.weka, weka.place, weka.observed, weka.in_words, weka.weka_whole),
            ordered=False,
            timed=False,
        ),
        Format("tracelab", tracelab.tracelab, beyond(*tracelab.KEYS), ordered=False),
        Format("otel", otel.otel, otel.unused, lists=True, beside=True, ordered=False, published=False),
        Format("jsonl", requests.own),
        of_table(requests.TableColumns()),
    )
}
