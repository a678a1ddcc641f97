"""Sides of a comparison: runs of a configuration, and their means."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import exp, fsum, log
from pathlib import Path
from typing import Any

from inferload.base.errors import UsageError, instead
from inferload.base.numbers import plural
from inferload.results.documents.summary_document import Results
from inferload.results.prices import UNPRICED, Prices
from inferload.results.statistics.not_served import NotServed, of_counts, total

from ..data.figures import ALL, ENERGY, OF_TEXTS, value_of
from ..data.manifest import with_gpus
from ..data.ran import Ran
from . import served

NAMES = tuple(figure.name for figure in (*ALL, OF_TEXTS, *ENERGY))
ARMS = ("cold", "warm")  # counted arms of a prefix cache, in the order of their runs
WARMING = "warming"
NOT_JUDGED = "not judged"  # level of a run of another client
_ONLY = "workload.only"


@dataclass(frozen=True, slots=True)
class LoadFigures:
    """Figures at one load, by gate name; None if samples are too few."""

    load: float
    unit: str  # users, or sessions/s
    figures: Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class Run:
    """Figures and settings of a run. `settings`: must be equal on both sides; `server`: may differ.

    `seed`: of the schedule; None: unknown, paired by order. `start`: identity of the server start.
    """

    path: Path
    label: str
    figures: Mapping[str, float | None]
    seed: int | None = None
    start: str | None = None
    level: str = NOT_JUDGED  # or valid, suspect, invalid
    reasons: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    server: Mapping[str, Any] = field(default_factory=dict)
    slo: Mapping[str, float] = field(default_factory=dict)  # limits by measure
    output_tokens: float | None = None  # mean over the turns that reported it
    input_tokens: float | None = None
    cached_tokens: float | None = None  # mean over the turns that reported input tokens
    prices: Prices = UNPRICED
    concurrency: float | None = None  # limit on concurrent requests, if any
    started_at: str = ""
    lasted_s: float | None = None  # from started_at to the end of the drain
    ran: Ran | None = None  # its load; None: of another client
    notes: tuple[str, ...] = ()
    scenario: str = ""
    ok_and_sent: tuple[int, int] | None = None  # successful turns, sent turns
    failed: int | None = None  # of the turns sent
    unfinished: int | None = None  # of the turns sent
    dropped: int | None = None  # sessions that were not started because max_in_flight was reached
    loads: tuple[LoadFigures, ...] = ()  # the run, or each step of its load
    points: tuple["Run", ...] = ()  # of a search, in whose place this one is
    arm: str = "cold"  # of the prefix cache: cold, warm, or warming (not counted)
    collapsed: str = ""  # how the server did not serve the load (`served`); empty if it did
    wrong: str = ""  # canary answers that fail the run, in words
    summary: Results | None = None  # or the figures of one class of turns; None: of another client
    counts_hold: bool = True  # False: the measurement is invalid for a reason that is not the server's own

    @property
    def not_served(self) -> NotServed | None:
        """Turns that failed, did not end or were dropped, among the planned ones; None if unknown."""
        if self.ok_and_sent is None:
            return None
        return of_counts(self.ok_and_sent, self.dropped, self.failed, self.unfinished)

    @property
    def given_up(self) -> bool:
        """True if the run was overloaded or stopped by abort_on, whatever the share of its turns that were not served."""
        return served.is_given_up(self.collapsed)

    def value(self, name: str) -> float | None:
        """Return a figure by name; None if unknown."""
        return self.figures.get(name)


@dataclass(frozen=True, slots=True)
class Side:
    """Runs of one configuration in the order of their starts.

    `left_out`: run directories and files that are not in `runs`, with the reason. `part_of`: label of the side of which this one
    has a single cache arm; empty: it is a whole side. `name`: of its directory or file, if the label shortens it, else empty.
    """

    label: str
    runs: tuple[Run, ...]
    left_out: tuple[str, ...] = ()
    path: Path = Path()
    part_of: str = ""
    name: str = ""

    @property
    def heading(self) -> str:
        """Label, marked if all runs are invalid."""
        return f"{self.label} (not valid)" if all(run.level == "invalid" for run in self.runs) else self.label

    @property
    def counted(self) -> Sequence[Run]:
        """Runs of the means: the valid and suspect ones, or all if all are invalid."""
        return [run for run in self.runs if run.level != "invalid"] or self.runs

    @property
    def served(self) -> Sequence[Run]:
        """Runs whose turns not served and overload are the server's: also invalid ones, if the server itself made them invalid."""
        return [run for run in self.runs if run.counts_hold]

    @property
    def has_collapsed(self) -> bool:
        """True if the server did not serve the load in more than half of the runs: one of ten may seem overloaded by chance."""
        return 2 * sum(bool(run.collapsed) for run in self.served) > len(self.served)

    @property
    def wrong(self) -> str:
        """Wrong canary answers of its runs; empty without one."""
        return "; ".join(f"{run.label}: {run.wrong}" for run in self.runs if run.wrong)

    @property
    def canary_references(self) -> set[str | None]:
        """Digests of the answers to canary prompts without load."""
        canaries = [run.summary.canary for run in self.runs if run.summary is not None]
        return {canary.references_sha256 for canary in canaries if canary is not None}

    @property
    def runs_given_up(self) -> tuple[int, int]:
        """Runs that were overloaded or stopped, and all runs whose counts are the server's."""
        return sum(run.given_up for run in self.served), len(self.served)

    @property
    def collapsed(self) -> str:
        """How the load was not served, with the number of runs; empty if it was served in all runs."""
        found = Counter(run.collapsed for run in self.served if run.collapsed)
        return ", ".join(f"{how} in {count} of {plural(len(self.served), 'run')}" for how, count in found.items())

    @property
    def not_served(self) -> NotServed | None:
        """Turns not served and planned turns of all runs whose counts are the server's; None if unknown for a run."""
        known = [run.not_served for run in self.served if run.not_served is not None]
        if not known or len(known) < len(self.served):
            return None
        return NotServed(
            count=sum(each.count for each in known),
            planned=sum(each.planned for each in known),
            failed=total(each.failed for each in known),
            unfinished=total(each.unfinished for each in known),
            dropped=total(each.dropped for each in known),
        )

    @property
    def ok_and_sent(self) -> tuple[int, int] | None:
        """Successful and sent turns of all runs; None if unknown for a run."""
        known = [run.ok_and_sent for run in self.runs if run.ok_and_sent is not None]
        if not known or len(known) < len(self.runs):
            return None
        return sum(ok for ok, _ in known), sum(sent for _, sent in known)

    def has_class(self, name: str) -> bool:
        """Return True if all runs have turns of a class."""
        return all(run.summary is not None and name in run.summary.by_class for run in self.runs)

    def with_runs(self, change: Callable[[Run], Run]) -> "Side":
        """Return the side with each run changed."""
        return replace(self, runs=tuple(map(change, self.runs)))

    def mean(self, name: str) -> float | None:
        """Return the mean over the counted runs (`mean_over_runs`); None if a run has no value."""
        return mean_over_runs([run.value(name) for run in self.counted])


# Side in a table, and the side that its changes refer to; None: no changes, as for a baseline.
TableRow = tuple[Side, Side | None]


def complete_mean(values: Sequence[float | None]) -> float | None:
    """Return the mean; None for no values, or if a value is None."""
    known = [value for value in values if value is not None]
    return fsum(known) / len(known) if known and len(known) == len(values) else None


def mean_over_runs(values: Sequence[float | None]) -> float | None:
    """Return the geometric mean of a figure over runs; the arithmetic one if a value is not above 0. None as `complete_mean`.

    The ratio of two geometric means is the mean ratio of the pairs, so that the values of two sides and their change agree.
    """
    known = [value for value in values if value is not None and value > 0]
    if not known or len(known) < len(values):
        return complete_mean(values)
    return known[0] if len(set(known)) == 1 else exp(fsum(map(log, known)) / len(known))


def priced(side: Side, overrides: Prices) -> Side:
    """Return the side with prices that override those of its runs."""
    return side.with_runs(
        lambda run: replace(run, prices=with_gpus(overrides.over(run.prices), run.server.get("variant")))
    )


def with_concurrency(side: Side, limit: float | None) -> Side:
    """Return the side with a limit on concurrent requests of its results of other clients that state none."""
    return side.with_runs(
        lambda run: replace(run, concurrency=run.concurrency or limit) if run.level == NOT_JUDGED else run
    )


def of_class(side: Side, name: str, names: tuple[str, ...] = NAMES) -> Side:
    """Return the side with the figures of one class of turns; UsageError if one of its runs has no such class."""
    return side.with_runs(lambda run: _of_class(run, name, names))


def _of_class(run: Run, name: str, names: tuple[str, ...]) -> Run:
    """Return a run with the figures of a class, without those known for all classes together only."""
    if run.summary is None:
        raise UsageError(f"--class {name}: {run.path} has no classes; name run directories")
    classes = run.summary.by_class
    if name not in classes:
        raise UsageError(f"--class {name}: no such class in {run.path}; {instead(name, classes)}")
    results = Results.of_part(classes[name])
    return replace(
        run,
        figures={figure: value_of(figure, results) for figure in names},
        settings={key: value for key, value in run.settings.items() if key != _ONLY},
        server={**run.server, "only class": run.settings.get(_ONLY)},
        output_tokens=None,
        input_tokens=None,
        cached_tokens=None,
        prices=UNPRICED,
        **served.fields_of(run.summary, results),
        loads=(),
        summary=results,
    )
