"""A figure of a server. The rows are the fields of `server_figures.Server` and of its blocks."""

from collections.abc import Mapping
from itertools import chain
from typing import Any

from msgspec import structs

from inferload.figures.figure import Figure, Layer
from inferload.figures.pages.metric_names import split_suffix
from inferload.figures.pages.page_kinds import PageKind
from inferload.figures.servers.server_entry import FigureValue, ServerFacts
from inferload.figures.servers.server_formulas import (
    GAUGE,
    Count,
    Formula,
    Gauge,
    HistogramMean,
    HitRate,
    HitShare,
    Rate,
    Restarts,
    Statistic,
    Window,
    known,
)

GPU = "gpu"
ROUTER = "router"
SPEC_DECODE = "spec_decode"
TIERS = "tiers"
TRANSFER = "transfer"
OF_OTHER_PAGES = (GPU, ROUTER)  # blocks that engines do not have


class ServerFigure(Figure, frozen=True, kw_only=True):
    """One figure of a server, which annotates its field in an entry of `servers` in summary.json.

    `key` names it in gates, the timeline and the live view; empty: as its field, after `gpu_`, `router_` or `transfer_`. `label`:
    its name beside others, in a line of the terminal or in a chart. `block`, `entry_key`: the group of the field, None at the top,
    and its name; the group GPU is of GPU exporters, ROUTER of routers, all others of engines. `headline`: also in the live view.
    """

    key: str = ""
    formula: Formula
    layer: Layer = "engine"
    label: str = ""
    block: str | None = None
    entry_key: str = ""

    def __post_init__(self) -> None:
        structs.force_setattr(self, "statistics", self.formula.statistics)
        structs.force_setattr(self, "label", self.label or self.title)

    def place(self, entry_key: str, block: str | None) -> None:
        """Set where it is in an entry, its key if it has none yet, and the layer of GPUs."""
        key = self.key or (f"{block}_{entry_key}" if block in (*OF_OTHER_PAGES, TRANSFER) else entry_key)
        layer = "system" if block == GPU else self.layer
        for name, value in (("entry_key", entry_key), ("block", block), ("key", key), ("layer", layer)):
            structs.force_setattr(self, name, value)

    def number(self, window: Window, statistic: Statistic = "mean") -> float | None:
        """Return the value over a window that has one; None if unknown."""
        return known(self.formula.value(window, statistic))

    def in_entry(self, entry: ServerFacts) -> FigureValue:
        """Return the value in an entry of `servers`; None if unknown."""
        block = entry if self.block is None else getattr(entry, self.block)
        return None if block is None else getattr(block, self.entry_key)

    def of(self, entry: ServerFacts, statistic: str | None) -> float | None:
        """Return the value for a gate; None if it was not measured, or in a part of the window only."""
        if entry.too_long_gap_s is not None and self._over_scrapes(entry):
            return None
        return statistic_of(self.in_entry(entry), statistic)

    def _over_scrapes(self, entry: ServerFacts) -> bool:
        """Return True for a mean or maximum over the scrapes. Counters need the scrapes at the ends only."""
        return isinstance(self.formula, Gauge) or (
            isinstance(self.formula, HitRate) and entry.prefix_cache_hit_rate_from == GAUGE
        )

    @property
    def of_engines(self) -> bool:
        """True if its metrics are of engines and what is before them, not of processes or GPUs."""
        return any(reading.metric.startswith(("vllm:", "inferload_")) for reading in self.formula.readings)

    def names_on(self, kind: PageKind, *, optional: bool = True) -> tuple[str, ...]:
        """Return a page's names for the metrics of one source of the figure; empty if it has not all of a source."""
        formula = self.formula
        sources = formula.alternatives if isinstance(formula, HitRate | HitShare) else (formula.readings,)
        of_sources = ([kind.names_of(each.metric, each.label, optional=optional) for each in of] for of in sources)
        return tuple(dict.fromkeys(chain.from_iterable(chain.from_iterable(each for each in of_sources if all(each)))))

    def lacking(self, kind: PageKind | None) -> str | None:
        """Return that no page of this kind publishes the figure, and why; None if some do, or the kind is not known."""
        if kind is None or not self.of_engines or self.names_on(kind, optional=False):
            return None
        return f"{kind.title} does not publish it{self._why(kind)}"

    def unknown_on(self, kind: PageKind | None) -> str:
        """Return why the figure is not known from a page without its metrics."""
        return self.lacking(kind) or f"not published by the server{'' if kind is None else self._why(kind)}"

    def _why(self, kind: PageKind) -> str:
        families = (split_suffix(reading.metric)[0] for reading in self.formula.readings)
        return next((f": {kind.why[family]}" for family in families if family in kind.why), "")

    def expected_of(self, entry: ServerFacts) -> bool:
        """Return True if the server's kind of page has the metric."""
        own = entry_block(entry)
        fits = self.block == own if own or self.block in OF_OTHER_PAGES else bool(entry.engines)
        return fits or not entry.scrapes


_USUAL: Mapping[type, dict[str, Any]] = {
    Count: {"form": "count"},
    Restarts: {"form": "count"},
    Rate: {"unit": "tok/s"},
    HistogramMean: {"unit": "ms", "better": "lower"},
}


def row(formula: Formula, title: str, text: str, **more: Any) -> ServerFigure:
    """Return a figure with usual fields of its formula and `more`. `live`: label and panel of a headline, `chart`: of others."""
    for name in {"live", "chart"} & more.keys():
        more["label"], more["panel"] = more.pop(name)
        more["headline"] = name == "live"
    return ServerFigure(title=title, text=text, formula=formula, **_USUAL.get(type(formula), {}) | more)


def unwanted(metric: str, title: str, text: str, **more: Any) -> ServerFigure:
    """Return the figure of a counter of what should not happen."""
    return row(Count(metric), title, text, better="lower", **more)


def statistic_of(value: FigureValue, statistic: str | None) -> float | None:
    """Return a statistic of a value, or the number that it is (None); None if unknown."""
    if statistic is not None:
        value = getattr(value, statistic, None)
    return float(value) if isinstance(value, int | float) else None


def entry_block(entry: ServerFacts) -> str | None:
    """Return the block of an entry that is of a GPU exporter or a router; None for an engine."""
    if entry.kind is not None and entry.kind.kind == "router":
        return ROUTER
    return GPU if getattr(entry, GPU) is not None else None


def is_shown(row: ServerFigure, block: str | None) -> bool:
    """Return True if a figure is of the page with this block of its own, None of an engine."""
    return block == (row.block if row.block in OF_OTHER_PAGES else None)
