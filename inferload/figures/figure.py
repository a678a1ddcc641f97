"""A figure: one measured quantity. Each list of figures in a file, on a page or in an interface is made from such rows.

The rows are in `turn_figures`, `rate_figures`, `client_figures` and `server_figures`; their order is the order on each page.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from msgspec import Struct, field

Better = Literal["lower", "higher", "none"]
# How a value is printed: a number, a whole number, or a share (0..1) as a percentage.
Form = Literal["number", "count", "share"]
# What a figure is about: the users and their goals, the requests and machines, or what happens inside the engine.
Layer = Literal["business", "system", "engine"]

PEERS = ("vllm bench serve", "GuideLLM", "AIPerf", "genai-bench")


class Head(Struct, frozen=True):
    """Head of a column or a row. `term`: what defines it, if not the text: the key of a figure, or a term of the glossary."""

    text: str
    term: str = ""

    @property
    def defined_as(self) -> str:
        """Return the term that defines it."""
        return self.term or self.text


class Figure(Struct, frozen=True, eq=False, kw_only=True):
    """One quantity; each is a single object, and equal only to itself.

    `key` names it in summary.json, gates and CSV files and ends with its unit; `title` is its heading.

    `text`: definition, for the documentation and the glossary. `statistics`: of a distribution or a gauge; empty for a single
    number. `headline`: it is in short summaries, first tables and tables by class. `panel`: heading of its chart; figures with the
    same heading share one. `layer`: the table of a run that has it. `called`: its name in other tools (PEERS), without those that
    lack it.
    """

    key: str
    title: str
    text: str
    unit: str = ""
    better: Better = "none"
    form: Form = "number"
    statistics: tuple[str, ...] = ()
    headline: bool = False
    panel: str | None = None
    layer: Layer = "system"
    called: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def heading(self) -> str:
        """Title with its unit, such as `TTFT, ms`."""
        return self.head().text

    def column(self, statistic: str) -> str:
        """Return the name of a column with one of its statistics, such as `ttft_ms_p95`."""
        return f"{self.key}_{statistic}"

    def head(self, statistic: str = "", unit: str = "") -> Head:
        """Head of a column or row: title, statistic and unit, such as `TTFT p95, ms`. `unit`: of its values, if another one."""
        title, unit = f"{self.title} {statistic}".rstrip(), unit or self.unit
        return Head(f"{title}, {unit}" if unit else title, self.key)
