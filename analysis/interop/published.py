"""Readers of published figures: what `vllm bench serve` and `throughput` print, and the JSON of the latter.

A published figure stands for one run without samples, so a comparison has no interval for it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from inferload.figures.rate_figures import GOODPUT, OUTPUT, TOTAL, TURNS
from inferload.figures.turn_figures import E2E, ITL, TPOT, TTFT

from . import units
from .result import number_of

VRAM = "vram_mib"  # memory over all GPUs, in a table of configurations
ONE_FIGURE = "one published figure, no interval"

_BLOCK = re.compile(r"=+ *Serving Benchmark Result *=+")
_NUMBER = r"-?(?:[1-9]\d{0,2}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][+-]?\d+)?"
_LINE = re.compile(r"[\s#>|*]*([A-Za-z][^:=|]*?)\s*:\s*(\S+)\s*")
_NO_VALUE = re.compile(r"[+-]?(?:nan|inf|none|n/?a|-+)", re.I)
_THROUGHPUT = re.compile(
    rf"\bThroughput: ({_NUMBER}) requests/s, ({_NUMBER}) (?:total )?tokens/s(?:, ({_NUMBER}) output tokens/s)?", re.I
)
_MEASURES = {"TTFT": TTFT.key, "TPOT": TPOT.key, "ITL": ITL.key, "E2EL": E2E.key, "E2E LATENCY": E2E.key}
_STATISTIC = re.compile(r"(Mean|Median|P\d+(?:\.\d+)?) (TTFT|TPOT|ITL|E2EL|E2E Latency) \(([^()]*)\)", re.I)
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
    # Of a block by its words in lower case; of a row of a table by the keys of `tables._FACTS`.
    counts: Mapping[str, float] = field(default_factory=dict)


def blocks(text: str) -> list[Published]:
    """Return the blocks of a text in order; it may have other lines before, between and after them."""
    read = [_block(f"block {position}", part) for position, part in enumerate(_BLOCK.split(text)[1:], 1)]
    return [block for block in read if block.figures]


def _block(label: str, text: str) -> Published:
    figures: dict[str, float | None] = {}
    counts: dict[str, float] = {}
    unread: list[str] = []
    for line in text.splitlines():
        if re.fullmatch(r"[\s#>|*]*={20,}[\s|]*", line):
            break
        if (match := _LINE.fullmatch(line)) is None:
            continue
        name, value = " ".join(match[1].split()), number(match[2])
        statistic = _STATISTIC.fullmatch(name)
        measure = _RATES.get(name.lower()) or (statistic and _MEASURES[statistic[2].upper()])
        factor = 1.0 if statistic is None or measure is None else units.factor(measure, statistic[3])
        if measure is None:
            counts |= {} if value is None else {name.lower(): value}
        elif factor is None or (value is None and not _NO_VALUE.fullmatch(match[2])):
            unread.append(f"{name} ({match[2]})")
        else:
            word = statistic[1].lower() if statistic else ""
            figure = f"{'p50' if word == 'median' else word}({measure})" if word else measure
            figures[figure] = None if value is None else value * factor
    return Published(label, figures, tuple(unread), counts)


def throughput_lines(text: str) -> list[Mapping[str, float | None]]:
    """Return the figures of each line of `vllm bench throughput` in a text."""
    keys = (TURNS.key, TOTAL.key, OUTPUT.key)
    found = (zip(keys, match.groups(), strict=True) for match in _THROUGHPUT.finditer(text))
    return [{key: number(value) for key, value in each if value is not None} for each in found]


def number(text: str) -> float | None:
    """Return a number with a comma before each group of three digits, or none; None for another text."""
    return number_of(float(text.replace(",", ""))) if re.fullmatch(_NUMBER, text) else None
