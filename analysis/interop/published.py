"""Readers of published figures: the block that vLLM prints, its JSON of `vllm bench throughput`, and tables as Markdown or CSV.

A published figure stands for one run without samples, so a comparison has no interval for it.
"""

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from inferload.figures.rate_figures import GOODPUT, OUTPUT, TOTAL, TURNS
from inferload.figures.turn_figures import E2E, ITL, TPOT, TTFT

ONE_FIGURE = "one published figure, no interval"

_BLOCK = re.compile(r"=+ *Serving Benchmark Result *=+")
_LINE = re.compile(r"\s*([A-Za-z][^:=|]*?)\s*:\s*(-?\d[\d.eE+-]*|nan|inf)\s*")
_MEASURES = {"TTFT": TTFT.key, "TPOT": TPOT.key, "ITL": ITL.key, "E2EL": E2E.key}
_STATISTIC = re.compile(r"(Mean|Median|P\d+(?:\.\d+)?) (TTFT|TPOT|ITL|E2EL) \(ms\)", re.I)
_RATES = {
    "request throughput (req/s)": TURNS.key,
    "output token throughput (tok/s)": OUTPUT.key,
    "total token throughput (tok/s)": TOTAL.key,
    "request goodput (req/s)": GOODPUT.key,
}


@dataclass(frozen=True, slots=True)
class Published:
    """Figures of one block or row, by gate name. `unread`: names of columns or lines without a figure."""

    label: str
    figures: Mapping[str, float | None]
    unread: tuple[str, ...] = ()
    counts: Mapping[str, float] = field(default_factory=dict)  # of a block: by its words in lower case


def blocks(text: str) -> list[Published]:
    """Return the blocks of a text in order; it may have other lines before, between and after them."""
    parts = _BLOCK.split(text)[1:]
    read = [_block(f"block {position}", part) for position, part in enumerate(parts, 1)]
    return [block for block in read if block.figures]


def _block(label: str, text: str) -> Published:
    figures: dict[str, float | None] = {}
    counts: dict[str, float] = {}
    for line in text.splitlines():
        if re.fullmatch(r"\s*={20,}\s*", line):
            break
        if (match := _LINE.fullmatch(line)) is None:
            continue
        name, value = " ".join(match[1].split()), _number(match[2])
        if (key := _RATES.get(name.lower())) is not None:
            figures[key] = value
        elif statistic := _STATISTIC.fullmatch(name):
            figures[f"{_statistic(statistic[1])}({_MEASURES[statistic[2].upper()]})"] = value
        elif value is not None:
            counts[name.lower()] = value
    return Published(label, figures, counts=counts)


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if -1e18 < value < 1e18 else None


def _statistic(word: str) -> str:
    return {"median": "p50"}.get(word.lower(), word.lower())


def throughput(document: Mapping[str, Any]) -> Mapping[str, float | None] | None:
    """Return the figures of a JSON result of vLLM's throughput benchmark, of both formats; None for another document."""

    def of(name: str) -> float | None:
        value = document.get(name)
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

    if "elapsed_time" in document and "num_requests" in document:
        return {TURNS.key: of("requests_per_second"), TOTAL.key: of("tokens_per_second")}
    if "throughput" not in document or "total_time" not in document:
        return None
    requests, total_s = of("num_prompts"), of("total_time")
    rate = requests / total_s if requests is not None and total_s else None
    output = of("avg_generation_throughput")
    return {TURNS.key: rate, OUTPUT.key: of("throughput") if output is None else output}


# -- tables

_SEPARATOR = re.compile(r"\s*:?-{2,}:?\s*")
_CELL = re.compile(r"[~≈]?\s*([+-]?\d[\d,]*(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*(ms|s|us|µs|[A-Za-z/%]+)?", re.I)
_UNIT_MS = {"us": 1e-3, "µs": 1e-3, "ms": 1.0, "s": 1e3}
_QUANTILE = re.compile(r"p\s*(50|90|95|99)\b|(50|90|95|99)\s*(?:th|分位)", re.I)
_MEAN = re.compile(r"mean|avg|average|平均|均值", re.I)
_MEDIAN = re.compile(r"median|中位", re.I)
_OF_MEASURE = (
    (re.compile(r"ttft|time to first token|首\s*token|首字", re.I), TTFT.key),
    (re.compile(r"tpot|time per output token", re.I), TPOT.key),
    (re.compile(r"\bitl\b|inter-?token", re.I), ITL.key),
    (re.compile(r"e2el?|end-to-end|端到端", re.I), E2E.key),
)
_OF_RATE = (
    (re.compile(r"goodput", re.I), GOODPUT.key),
    (re.compile(r"req(?:uest)?s?\s*/\s*s|\bqps\b|\brps\b|request throughput|请求吞吐", re.I), TURNS.key),
    (re.compile(r"(?:total|总).*(?:tok|吞吐)", re.I), TOTAL.key),
    (re.compile(r"input|prompt|prefill|输入", re.I), ""),
    (re.compile(r"tok(?:en)?s?\s*/\s*s|throughput|吞吐", re.I), OUTPUT.key),
)


def rows(text: str) -> list[Published]:
    """Return the rows of the tables of a text: Markdown, or CSV if it has no line of Markdown."""
    lines = text.lstrip("\ufeff").splitlines()
    tables = list(_markdown(lines)) or [[row for row in csv.reader(lines) if row]]
    return [row for table in tables if len(table) > 1 for row in _table(table)]


def _markdown(lines: Sequence[str]) -> Iterator[list[list[str]]]:
    """Yield the cells of each table: consecutive lines that start with a bar."""
    table: list[list[str]] = []
    for line in (*lines, ""):
        if line.lstrip().startswith("|"):
            cells = [cell.replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line.strip())[1:]]
            table.append(cells[:-1] if cells and not cells[-1].strip() else cells)
        elif table:
            yield table
            table = []


def _table(table: Sequence[Sequence[str]]) -> Iterator[Published]:
    header, *body = [[_plain(cell) for cell in row] for row in table if not all(map(_SEPARATOR.fullmatch, row))]
    columns = [figure_of(name) for name in header]
    texts = [name for name, column in zip(header, columns, strict=True) if column is None]
    for cells in body:
        named = list(zip(header, columns, cells, strict=False))
        figures = {
            column: value
            for name, column, cell in named
            if column is not None and (value := _value(name, column, cell)) is not None
        }
        words = [cell for _, column, cell in named if column is None and cell and _CELL.fullmatch(cell) is None]
        if figures:
            yield Published(" ".join(words[:2]) or "row", figures, tuple(texts[1:]))


def _plain(cell: str) -> str:
    return re.sub(r"\*\*|__|`", "", cell).strip()


def figure_of(header: str) -> str | None:
    """Return the gate name of a column's figure; None if there is none for it. A latency without a statistic is a mean."""
    for pattern, key in _OF_MEASURE:
        if pattern.search(header):
            quantile = _QUANTILE.search(header)
            if quantile:
                return f"p{quantile[1] or quantile[2]}({key})"
            if re.search(r"\bp\d|std|min|max|最", header, re.I):
                return None
            return f"p50({key})" if _MEDIAN.search(header) else f"mean({key})"
    return next((key or None for pattern, key in _OF_RATE if pattern.search(header)), None)


def _value(header: str, figure: str, cell: str) -> float | None:
    """Return the number of a cell; a latency in ms, from the unit of the cell or of the header."""
    match = _CELL.fullmatch(cell)
    if match is None:
        return None
    number = _number(match[1].replace(",", ""))
    if number is None or "(" not in figure:
        return number
    in_header = re.search(r"[(\[\uff08](ms|s|us|µs)[)\]\uff09]", header, re.I)
    unit = (match[2] or (in_header[1] if in_header else "ms")).lower()
    return number * _UNIT_MS[unit] if unit in _UNIT_MS else None
