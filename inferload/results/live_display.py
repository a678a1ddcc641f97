"""Frames of --live: status lines, the outcome so far, and the course of key figures as sparklines."""

from collections import deque
from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size

from inferload.base.escaping import escaped
from inferload.base.numbers import percent, plural, short
from inferload.base.status_lines import styled
from inferload.figures.rate_figures import OUTPUT, TEXTS
from inferload.figures.turn_figures import brief_of
from inferload.results.documents.verdict_document import GateResult
from inferload.results.progress_lines import Snapshot, lines
from inferload.results.verdict.gate_text import value_text

SPAN = 60  # samples, one per second
_BARS = "▁▂▃▄▅▆▇█"
_REST = 40  # columns beside a sparkline
_NAMED = 2  # failing gates

Part = tuple[str, str]  # a text and its style, "" for none


class Course:
    """The last samples of each figure; None: unknown."""

    def __init__(self) -> None:
        self.samples: dict[str, deque[float | None]] = {}

    def add(self, now: Snapshot) -> None:
        shown = brief_of(lambda figure: now.recent[figure.column("p50")] is not None)
        rate, unit = (OUTPUT, "output tok/s") if now.recent[TEXTS.key] is None else (TEXTS, TEXTS.unit)
        figures = {
            **{figure.head("p50").text: now.recent[figure.column("p50")] for figure in shown},
            unit: now.recent[rate.key],
            "in flight": float(now.in_flight),
            "waiting": now.waiting,
            "KV cache": now.kv_cache_usage,
        }
        for name, value in figures.items():
            self.samples.setdefault(name, deque(maxlen=SPAN)).append(value)
        self.samples = {name: self.samples[name] for name in figures}


def frame(now: Snapshot, course: Course, gates: Sequence[GateResult], width: int, colour: bool = True) -> list[str]:
    """Return lines of at most `width` columns. `colour`: with escape codes."""
    columns = max(1, min(SPAN, width - _REST))
    rows = [_row(name, samples, columns) for name, samples in course.samples.items()]
    states: list[list[Part]] = [[(line, "")] for line in lines(now, width)]
    return [_fitted(parts, width, colour) for parts in (*states, _outcome(now, gates), *rows)]


def _fitted(parts: Sequence[Part], width: int, colour: bool) -> str:
    """Join the parts of a line, cut to a width with an ellipsis."""
    is_cut = sum(cell_len(text) for text, _ in parts) > width
    left, shown = max(0, width - is_cut), ""
    for text, style in parts:
        cut = set_cell_size(text, min(left, cell_len(text)))
        left -= cell_len(cut)
        shown += styled(cut, style) if colour and style and cut else cut
    return shown + "…" * is_cut


def sparkline(samples: Sequence[float | None], columns: int) -> str:
    """Return a bar for each of the last samples, from 0 to the largest; a space for an unknown one."""
    shown = list(samples)[-columns:]
    largest = max((value for value in shown if value is not None), default=0.0)
    return "".join(" " if value is None else _BARS[_height(value, largest)] for value in shown)


def _height(value: float, largest: float) -> int:
    return 0 if largest <= 0 else min(len(_BARS) - 1, max(0, int(value / largest * len(_BARS))))


def _row(name: str, samples: Sequence[float | None], columns: int) -> list[Part]:
    """Return name, current value, sparkline, and the least and the largest value in it."""
    form = percent if name == "KV cache" else short
    known = [value for value in list(samples)[-columns:] if value is not None]
    now = "-" if samples[-1] is None else form(samples[-1])
    extent = f"{form(min(known))} to {form(max(known))}" if known else ""
    line = f"{sparkline(samples, columns):<{columns}}"
    return [(f"{name:<12}", ""), (f"{now:>9}", "heading"), ("  ", ""), (line, "figure"), ("  ", ""), (extent, "quiet")]


def _outcome(now: Snapshot, gates: Sequence[GateResult]) -> list[Part]:
    """Return the outcome if the run ended now, as far as it is known: gates, else failed turns, else the measurement."""
    failing = [gate for gate in gates if not gate.passed]
    facts = [f"{len(gates) - len(failing)} of {plural(len(gates), 'gate')} hold"] if gates else []
    facts += [f"{gate.gate} ({value_text(gate, gate.value)})" for gate in failing[:_NAMED]]
    if now.failed:
        facts.append(f"{plural(now.failed, 'turn')} failed")
    failed = bool(failing) if gates else bool(now.failed)
    state, style = ("failing so far", "bad") if failed else ("passing so far", "good")
    if now.lost and not failed:
        state, style = "workers lost", "doubt"
    elif now.measurement is not None and now.measurement.measurement != "valid" and not failed:
        state, style = now.measurement.words, "doubt"
    return [(escaped(state), style), (escaped("".join(f" · {fact}" for fact in facts)), "")]
