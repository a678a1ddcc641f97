"""A result of another client, and typed values of its file."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isinf
from typing import Any

from inferload.base.numbers import number
from inferload.figures.rate_figures import TURNS
from inferload.results.statistics.failed_turns import Failed

Document = Mapping[str, Any]

CLOCK_UNKNOWN = "its timing error is not known"

_QUANTILES = ("p50", "p90", "p95", "p99")


@dataclass(frozen=True, slots=True)
class Imported:
    """One result of a file. `figures`: by gate name; `concurrency`: configured limit, if any."""

    client: str
    figures: Mapping[str, float | None]
    model: str | None = None
    seed: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    input_tokens: float | None = None
    output_tokens: float | None = None
    concurrency: float | None = None
    started_at: str = ""
    notes: tuple[str, ...] = ()
    label: str = ""  # of a row of a table
    ok_and_sent: tuple[int, int] | None = None  # completed requests, and these with the failed ones; None if unknown

    @property
    def failed_turns(self) -> Failed | None:
        """Failed requests among all; None if unknown."""
        return None if self.ok_and_sent is None else Failed.of_counts(*self.ok_and_sent)


def ok_and_sent(completed: float | None, failed: float | None) -> tuple[int, int] | None:
    """Return completed and sent requests; None if a count is unknown. Requests that were cut off at the end did not fail."""
    return None if completed is None or failed is None else (round(completed), round(completed + failed))


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


def whole_of(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def settings_of(document: object, names: Sequence[str]) -> dict[str, Any]:
    """Return settings by name; an infinite rate, which Python's JSON has, as the text that vLLM writes."""
    values = {name: at(document, name) for name in names}
    return {name: "inf" if isinstance(value, float) and isinf(value) else value for name, value in values.items()}


def latencies_of(
    names: Mapping[str, str], of: Callable[[str, str], float | None], to_ms: float = 1.0
) -> dict[str, float | None]:
    """Return latency figures by gate name; `of(name, q)` returns a value of the file in units of `to_ms`."""
    figures: dict[str, float | None] = {}
    for ours, theirs in names.items():
        for q in ("mean", *_QUANTILES):
            value = of(theirs, q)
            figures[f"{q}({ours})"] = None if value is None else value * to_ms
    return figures


def failed_note(failed: float | None, completed: float | None) -> tuple[str, ...]:
    """Return a note on failed requests, which may bias the latencies of the others."""
    if not failed:
        return ()
    of_all = "" if completed is None else f"{number(failed + completed)} "
    return (f"{number(failed)} of its {of_all}requests failed and are not in the latencies",)


def unfinished_note(count: float | None) -> tuple[str, ...]:
    """Return a note on requests that were unfinished at the end."""
    return (
        (f"{number(count)} of its requests were unfinished at the end and are not in the latencies",) if count else ()
    )


def per_turn(document: Document, name: str) -> float | None:
    total, completed = number_of(document.get(name)), number_of(document.get("completed"))
    return total / completed if total is not None and completed else None


def ratio(total: float | None, by: float | None) -> float | None:
    return total / by if total is not None and by else None


def serving_latencies(document: Document, names: Mapping[str, str]) -> dict[str, float | None]:
    """Return the latencies of the keys `mean_NAME`, `median_NAME` and `p99_NAME`."""

    def of(name: str, q: str) -> float | None:
        value = number_of(document.get(f"{q}_{name}"))
        return number_of(document.get(f"median_{name}")) if value is None and q == "p50" else value

    return latencies_of(names, of)


NO_TURNS: dict[str, float | None] = {TURNS.key: 0.0}  # vLLM and SGLang write 0 for latencies without samples
