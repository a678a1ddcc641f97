"""Cost of the sides of a comparison: prices over the throughput of the valid runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inferload.base.errors import UsageError
from inferload.base.numbers import NOT_MEASURED, percent
from inferload.figures.rate_figures import GOODPUT, OUTPUT
from inferload.figures.table import Cell, Table
from inferload.results.prices import Prices, per_million, prompt_price_share

from ..data import changes
from .sides import Side, TableRow, complete_mean

WITHOUT_PRICE = "Cost: not measured, no price per GPU hour (--gpu-hour-price)."
_NOTE = "Each of the two costs contains the total cost; do not add them."


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of a side in the currency of its price; None: not measured."""

    label: str
    prices: Prices
    per_million_output_tokens: float | None
    per_million_good_turns: float | None
    prompt_price_share: float | None
    no_good_turns: bool
    slo: Mapping[str, float]


def of_side(side: Side) -> Cost:
    """Return the cost of a side; UsageError if its runs have different prices."""
    by_run = {run.prices for run in side.runs}
    if len(by_run) > 1:
        raise UsageError(f"{side.label}: its runs have different prices; name one with --gpu-hour-price and --gpus")
    prices = by_run.pop()
    good = side.mean(GOODPUT.key)
    shares = [
        None
        if run.input_tokens is None or run.cached_tokens is None
        else prompt_price_share(prices, run.input_tokens, run.cached_tokens)
        for run in side.counted
    ]
    return Cost(
        label=side.heading,
        prices=prices,
        per_million_output_tokens=per_million(prices, side.mean(OUTPUT.key)),
        per_million_good_turns=per_million(prices, good),
        prompt_price_share=complete_mean(shares),
        no_good_turns=good == 0,
        slo=side.runs[0].slo,
    )


_COLUMNS = (
    "configuration",
    "per GPU hour",
    "GPUs",
    "million output tok",
    "change",
    "million good turns",
    "change",
    "price of prompts",
)


def table(rows: Sequence[TableRow]) -> list[Table]:
    """Return the costs of the sides with their changes; no table without prices."""
    costs = [(of_side(side), None if base is None else of_side(base)) for side, base in rows]
    if all(cost.prices.gpu_hour is None and cost.prices.cached_ratio is None for cost, _ in costs):
        return []
    return [Table("cost", "Cost", _COLUMNS, [_row(cost, base) for cost, base in costs])]


def _row(cost: Cost, base: Cost | None) -> Sequence[Cell]:
    share, prices = cost.prompt_price_share, cost.prices
    output = None if base is None else base.per_million_output_tokens
    good = None if base is None or base.slo != cost.slo else base.per_million_good_turns
    return (
        cost.label,
        prices.gpu_hour,
        prices.gpus,
        _money(cost.per_million_output_tokens),
        _change(cost.per_million_output_tokens, output),
        "none met the SLO" if cost.no_good_turns else _money(cost.per_million_good_turns),
        _change(cost.per_million_good_turns, good),
        NOT_MEASURED if share is None else f"{percent(share)} of uncached",
    )


def _money(value: float | None) -> float | str:
    return NOT_MEASURED if value is None else value


def _change(value: float | None, base: float | None) -> str:
    return "" if value is None or not base or value == base else changes.signed(value / base, 1)


def note(sides: Sequence[Side]) -> str:
    """Return the note below the table of costs."""
    by_side = [of_side(side).prices for side in sides]
    if all(prices.gpu_hour is None for prices in by_side):
        return WITHOUT_PRICE
    if any(prices.gpus is None for prices in by_side):
        return "Cost: not measured if the number of GPUs is not known (--gpus)."
    return _NOTE


def document(sides: Sequence[Side]) -> list[Mapping[str, Any]]:
    """Return the costs as JSON values."""
    return [
        {
            "configuration": cost.label,
            "gpu_hour_price": cost.prices.gpu_hour,
            "gpus": cost.prices.gpus,
            "cached_price_ratio": cost.prices.cached_ratio,
            "per_million_output_tokens": cost.per_million_output_tokens,
            "per_million_good_turns": cost.per_million_good_turns,
            "prompt_price_share": cost.prompt_price_share,
        }
        for cost in map(of_side, sides)
    ]
