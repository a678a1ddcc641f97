"""Types of search.json: `inferload search` writes it, its pages read it. A load is sessions per second, or users."""

from math import log
from typing import Annotated, Literal

from msgspec import Meta, Struct

from inferload.base.json_text import Count, Number, Seed
from inferload.results.documents.figures_document import Growth

Verdict = Literal["holds", "breaks", "undecided"]
State = Literal["holds", "breaks", "overloaded", "undecided", "invalid", "failed"]
Why = Literal["resolved", "budget", "contradiction", "all break", "all hold", "client", "failures"]
Share = Annotated[float, Meta(ge=0, le=1)]
Positive = Annotated[float, Meta(ge=1e-100, le=1e18)]  # quotients of two are finite
RunName = Annotated[str, Meta(pattern=r"^points/[0-9]{1,9}\Z")]  # run directory below the folder of the search


class ConditionResult(Struct, frozen=True, kw_only=True):
    """One condition of the SLO at one load.

    `label`: statistic that is compared with the limit, as `p95(ttft_ms)`. `share`: of the values, at least so many must be within
    the limit; None: their mean must. `value`: share within the limit, or the mean; None without values. `low`, `high`: its
    interval; None: an open end. `figure`: the named statistic, with its interval; None: beyond all values. `values`: number of
    values; `effective`: of independent ones with the same spread.
    """

    condition: str
    label: str
    limit: Positive
    share: Share | None = None
    value: Number | None = None
    low: Number | None = None
    high: Number | None = None
    figure: Number | None = None
    figure_low: Number | None = None
    figure_high: Number | None = None
    verdict: Verdict
    values: Count
    effective: Number

    @property
    def margin(self) -> float | None:
        """Above 0 if the condition is met: the share less the required one, or the part of the limit that the mean leaves."""
        if self.value is None:
            return None
        return 1 - self.value / self.limit if self.share is None else self.value - self.share

    @property
    def surplus(self) -> float | None:
        """Log of the limit over the statistic, which falls about evenly with the log of the load; None if it is not known."""
        return log(self.limit / self.figure) if self.figure else None


class Point(Struct, frozen=True, kw_only=True):
    """A load, judged by all its runs together.

    `level`: the load. `looks`: number of runs. `spent_s`: their time, warm-up included. `turns`: those of the window. `growth`:
    of the turns in flight. `conditions`: empty for an overloaded load, since above its capacity a server has no attainment, only
    a duration. `causes`: why runs failed or are not valid. `remarks`: doubts about a measurement that may be used.
    """

    level: Positive
    verdict: State
    looks: Count
    measured_s: Number
    spent_s: Number
    turns: Count
    turns_per_s: Number | None = None
    goodput_turns_per_s: Number | None = None
    growth: Growth | None = None
    conditions: tuple[ConditionResult, ...] = ()
    causes: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    runs: tuple[RunName, ...] = ()

    def beside(self, condition: ConditionResult) -> str:
        """Text beside the interval of a condition that does not decide the load alone; empty otherwise."""
        return ", met at a higher load" if (self.verdict, condition.verdict) == ("holds", "undecided") else ""

    @property
    def margin(self) -> float | None:
        """Least margin of all conditions; None if the load has no steady attainment."""
        return min((one.margin for one in self.conditions if one.margin is not None), default=None)


class Answer(Struct, frozen=True, kw_only=True):
    """Result of a search. `text`: in one sentence. `level`: probability that `holds` and `breaks` enclose the truth."""

    text: str
    resolved: bool  # the two decided loads are within the precision
    holds: Positive | None = None  # highest load that holds the SLO
    breaks: Positive | None = None  # lowest load that does not
    level: Share
    ended: Why
    ended_text: str


class Spent(Struct, frozen=True, kw_only=True):
    """Time and runs. `budget_s`: None for a plain sweep. `looks`: number of runs; `loads`: of different loads."""

    budget_s: Number | None = None
    used_s: Number
    looks: Count
    loads: Count


class SearchedScenario(Struct, frozen=True, kw_only=True):
    """The scenario. `file`: as it was given, a name or a path."""

    name: str = ""
    digest: str | None = None
    file: str | None = None


class SearchDocument(Struct, frozen=True, kw_only=True):
    """A search, or a plain sweep, which has no `answer`.

    `unit`: of the loads. `points`: by load. `seed`: of the first run; each further one has the next. `window_s`, `warmup_s`:
    phases of a run. `cache`: what of a prompt may be cached, as text. `made_at`: ISO 8601, UTC. `tier`: name of the SLO, if there
    are several; `tiers`: the others, with the same runs.
    """

    format: Literal[2] = 2
    tier: str = ""
    slo: str
    unit: str
    answer: Answer | None = None
    spent: Spent
    points: tuple[Point, ...]
    scenario: SearchedScenario = SearchedScenario()
    target: str = ""
    seed: Seed | None = None
    window_s: Number | None = None
    warmup_s: Number | None = None
    cache: str = ""
    made_at: str = ""
    tiers: tuple["SearchDocument", ...] = ()

    @property
    def every(self) -> "tuple[SearchDocument, ...]":
        """It, and those of the other tiers."""
        return (self, *self.tiers)
