"""Rows of cost in the table Business of a report."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from inferload.base.numbers import percent
from inferload.figures.figure import Head
from inferload.figures.rate_figures import GOODPUT, OUTPUT
from inferload.figures.table import Cell, Table
from inferload.results.cost import Prices, per_million, prompt_price_share
from inferload.results.documents.manifest_document import Manifest
from inferload.results.documents.summary_document import Summary

from ..comparison.best import COST
from ..data.recorded_prices import recorded_prices, with_gpus


def with_cost(
    tables: Sequence[Table], manifest: Manifest, summary: Summary, path: Path, given: Prices
) -> tuple[Table, ...]:
    """Return the tables with the costs of output tokens, good turns and prompts, as far as prices are known.

    `given`: prices that override those of the run at `path`. UsageError for invalid prices of the run.
    """
    variant = None if manifest.variant is None else {"hardware": {"gpus": manifest.variant.gpus}}
    prices = with_gpus(given.over(recorded_prices(manifest, path)), variant)
    found: list[tuple[Head, Cell]] = [
        (Head(COST.title, COST.name), per_million(prices, summary.rates.get(OUTPUT.key))),
        (Head("Cost of a million good turns", COST.name), per_million(prices, summary.rates.get(GOODPUT.key))),
    ]
    turns = summary.turns
    share = prompt_price_share(prices, turns.input_tokens, turns.cached_tokens)
    found.append((Head("Price of prompts, of uncached ones"), None if share is None else percent(share)))
    rows = [row for row in found if row[1] is not None]
    return tuple(replace(table, rows=[*table.rows, *rows]) if table.key == "business" else table for table in tables)
