"""Formats of traces, by their names in a scenario."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from msgspec import Struct

from inferload.workload.traces import otel, requests, tracelab
from inferload.workload.traces.turn import Parser, beyond


class Format(Struct, frozen=True):
    """Properties of a format. `parser` None: its records are whole sessions with nested agents, which `weka` reads."""

    name: str
    parser: Parser | None = None
    unused: Callable[[Any], Iterable[str]] = lambda _record: ()  # keys that may change the load and are not used
    columns: tuple[str, ...] | None = None  # of a table: those that it must have; None: JSON
    lists: bool = False  # a record need not be an object
    beside: bool = False  # turns of a session that overlap are those of agents that run at the same time
    ordered: bool = True  # lines are sorted by time
    timed: bool = True  # sessions have start times
    published: bool = True  # checked against lines of a published file


def of_table(columns: requests.TableColumns, name: str = "csv", published: bool = True, *unused: str) -> Format:
    """Return the format of a table with these columns. Published tables are sorted, and may lack columns of sessions and ends.

    `unused`: columns that do not change the load.
    """
    named = [columns.at, columns.input_tokens, columns.output_tokens]
    more = list(filter(None, (columns.session, columns.ends, columns.lasts, columns.images)))
    required = named if name != "csv" else named + more
    unknown = beyond(*named, *more, *unused)
    return Format(
        name, partial(requests.table, columns), unknown, tuple(required), ordered=name != "csv", published=published
    )


FORMATS: Mapping[str, Format] = {
    trace_format.name: trace_format
    for trace_format in (
        Format("mooncake", requests.mooncake, beyond(*requests.MOONCAKE)),
        Format("bailian", requests.bailian, beyond(*requests.BAILIAN)),
        of_table(requests.AZURE, "azure-2023"),
        of_table(requests.AZURE, "azure-2024"),
        of_table(requests.AZURE, "azure-2025", False),
        of_table(requests.BURSTGPT, "burstgpt-1", True, "Total tokens", "Log Type"),
        of_table(requests.BURSTGPT, "burstgpt-2", True, "Total tokens", "Log Type"),
        Format("weka", ordered=False, timed=False),
        Format("tracelab", tracelab.tracelab, beyond(*tracelab.KEYS), ordered=False),
        Format("otel", otel.otel, otel.unused, lists=True, beside=True, ordered=False, published=False),
        Format("jsonl", requests.own),
        of_table(requests.TableColumns()),
    )
}
