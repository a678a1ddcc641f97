"""The forms of traces that can be replayed, by the name that a scenario gives them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from inferload.workload.traces.agents import tracelab, weka
from inferload.workload.traces.otel import otel
from inferload.workload.traces.requests import azure, burstgpt, mooncake, own
from inferload.workload.traces.turn import Parser


@dataclass(frozen=True, slots=True)
class Format:
    """What is known of a form: its parser, or, of a table, how the header makes one."""

    name: str
    parser: Parser | None = None
    with_header: Callable[[str], Parser] | None = None
    ordered: bool = True  # its lines come in the order of time
    sessions: bool = False  # its turns may belong to sessions
    timed: bool = True  # it says when each session begins
    nested: bool = False  # a line is a whole session


FORMATS: Mapping[str, Format] = {
    form.name: form
    for form in (
        Format("mooncake", mooncake),
        Format("azure-2023", with_header=azure),
        Format("azure-2024", with_header=azure),
        Format("burstgpt-1", with_header=burstgpt),
        Format("burstgpt-2", with_header=burstgpt, sessions=True),
        Format("weka", weka, ordered=False, sessions=True, timed=False, nested=True),
        Format("tracelab", tracelab, ordered=False, sessions=True),
        Format("otel", otel, ordered=False, sessions=True),
        Format("jsonl", own, sessions=True),
    )
}
