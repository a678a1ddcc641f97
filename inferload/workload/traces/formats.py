"""The forms of traces that can be replayed, by the name that a scenario gives them."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from inferload.workload.traces.agents import tracelab, weka, weka_places, weka_whole
from inferload.workload.traces.otel import otel
from inferload.workload.traces.requests import azure, bailian, burstgpt, mooncake, own
from inferload.workload.traces.turn import Parser, RecordedTurn


@dataclass(frozen=True, slots=True)
class Nested:
    """How one turn of a line that holds many is found and read by itself: lines of many megabytes are read once only."""

    places: Callable[
        [bytes], Iterator[tuple[int, int]]
    ]  # (start, length) of each turn in a line, in the parser's order
    whole: Callable[[str, RecordedTurn], RecordedTurn]  # what stands there, and the turn as far as it is known


@dataclass(frozen=True, slots=True)
class Format:
    """What is known of a form: its parser, or, of a table, how the header makes one."""

    name: str
    parser: Parser | None = None
    with_header: Callable[[str], Parser] | None = None
    ordered: bool = True  # its lines come in the order of time
    sessions: bool = False  # its turns may belong to sessions
    timed: bool = True  # it says when each session begins
    nested: Nested | None = None  # a line is a whole session


FORMATS: Mapping[str, Format] = {
    form.name: form
    for form in (
        Format("mooncake", mooncake),
        Format("bailian", bailian),
        Format("azure-2023", with_header=azure),
        Format("azure-2024", with_header=azure),
        Format("burstgpt-1", with_header=burstgpt),
        Format("burstgpt-2", with_header=burstgpt, sessions=True),
        Format("weka", weka, ordered=False, sessions=True, timed=False, nested=Nested(weka_places, weka_whole)),
        Format("tracelab", tracelab, ordered=False, sessions=True),
        Format("otel", otel, ordered=False, sessions=True),
        Format("jsonl", own, sessions=True),
    )
}
