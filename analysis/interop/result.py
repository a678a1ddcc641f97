"""A result of another client, and typed values of its file."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from inferload.base.numbers import number
from inferload.figures.rate_figures import TURNS
from inferload.figures.turn_figures import ITL
from inferload.results.statistics.not_served import NotServed, of_counts

from .units import LATENCIES

Document = Mapping[str, Any]

STATISTICS = ("mean", "p50", "p90", "p95", "p99")  # of latencies
_MAY_BE_ZERO = tuple(f"{q}({ITL.key})" for q in STATISTICS[1:])


@dataclass(frozen=True, slots=True)
class Imported:
    """One result of a file. `figures`: by gate name; `concurrency`: configured limit, if any. `gpus`: of the server.

    `completed`, `failed`: requests; `samples`: number of samples by measure, if the file has it.
    """

    client: str
    figures: Mapping[str, float | None]
    model: str | None = None
    seed: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    input_tokens: float | None = None
    output_tokens: float | None = None
    concurrency: float | None = None
    gpus: int | None = None
    started_at: str = ""
    notes: tuple[str, ...] = ()
    label: str = ""  # of a row of a table
    completed: float | None = None  # requests
    failed: float | None = None
    cut_off: float = 0.0  # at the end of the load: neither completed nor failed
    samples: Mapping[str, float | None] = field(default_factory=dict)

    @property
    def ok_and_sent(self) -> tuple[int, int] | None:
        """Completed requests, and these with the failed ones; None if a count is unknown."""
        if self.completed is None or self.failed is None:
            return None
        return round(self.completed), round(self.completed + self.failed)

    @property
    def failed_requests(self) -> int | None:
        """Failed requests; None if unknown."""
        return None if self.failed is None else round(self.failed)

    @property
    def not_served(self) -> NotServed | None:
        """Failed requests among all; None if unknown."""
        return None if self.ok_and_sent is None else of_counts(self.ok_and_sent, None, self.failed_requests, None)


def at(value: object, *path: str | int) -> Any:
    """Return the value at a path of keys and positions; None if a part of the path is missing."""
    for part in path:
        if isinstance(part, int):
            value = value[part] if isinstance(value, list) and -len(value) <= part < len(value) else None
        else:
            value = value.get(part) if isinstance(value, Mapping) else None
    return value


def number_of(value: object) -> float | None:
    """Return a number as float; None for NaN and infinity, which Python's JSON has, and for numbers above 1e18."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not -1e18 <= value <= 1e18:
        return None
    return float(value)


def text_of(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def lost_notes(
    failed: float | None, completed: float | None, unfinished: float | None = None, sent: object = None
) -> Iterator[str]:
    """Yield notes on requests that failed or did not finish, which may bias the latencies of the others. `sent`: all, if known."""
    if failed is None:
        fewer = (total := number_of(sent)) and completed is not None and completed < total
        known = f": {number(completed)} of {number(total)} were completed" if fewer else ""
        yield f"its failed requests are not known{known}"
    elif failed:
        of_all = "" if completed is None else f"{number(failed + completed)} "
        yield f"{number(failed)} of its {of_all}requests failed and are not in the latencies"
    if unfinished:
        yield f"{number(unfinished)} of its requests were unfinished at the end and are not in the latencies"


def unread_note(names: Sequence[str] | None) -> tuple[str, ...]:
    """Return a note on names and cells that were not read."""
    return (f"not read: {', '.join(names)}",) if names else ()


def ratio(total: float | None, by: float | None) -> float | None:
    return total / by if total is not None and by else None


def known(result: Imported) -> Imported:
    """Return a result in which a statistic without samples is None: clients write 0 for it, or the statistics of an empty list.

    A latency is known if it is above 0. A percentile of ITL may be 0, of gaps that are rounded to it, beside a statistic above 0.
    A rate is known if a request was sent: it is 0 if all failed.
    """
    figures = dict(result.figures)
    empty = []
    for measure in LATENCIES:
        names = [name for name in figures if name.endswith(f"({measure})")]
        values = [value for name in names if (value := figures[name]) is not None]
        none = result.completed == 0 or result.samples.get(measure) == 0 or not any(value > 0 for value in values)
        for name in names:
            value = figures[name]
            if value is not None and (none or value < 0 or (value == 0 and name not in _MAY_BE_ZERO)):
                figures[name] = None
        if values and none:
            empty.append(measure)
    nothing_sent = result.completed == 0 and result.failed == 0 and not result.cut_off
    for name, value in figures.items():
        if "(" not in name and value is not None and (value < 0 or nothing_sent):
            figures[name] = None
    if result.completed == 0 and not nothing_sent and figures.get(TURNS.key) is None:
        figures[TURNS.key] = 0.0
    note = (f"unknown, for lack of samples: {', '.join(empty)}",) if empty else ()
    prompts, answers = (_mean_known(each, result.completed) for each in (result.input_tokens, result.output_tokens))
    notes = (*result.notes, *note)
    return replace(result, figures=figures, input_tokens=prompts, output_tokens=answers, notes=notes)


def _mean_known(value: float | None, completed: float | None) -> float | None:
    """Return a mean over requests; None without requests, or for a 0 that may be one of no requests."""
    return None if completed == 0 or (not value and completed is None) else value
