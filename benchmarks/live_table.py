"""Table of `make bench-watched`: figures without and with open pages, differences, and limits. No I/O."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.cases import Case
from benchmarks.live_pages import LIVE, POLLS, Poll
from benchmarks.reported import SERVER_LATE_MS, Reported
from benchmarks.table import figure, line
from inferload.live.document import series_document
from inferload.live.recorder import CLIENT, FAILED, LOAD, SERVER
from inferload.live.series import Series

NONE, POLLED, BROWSERS = "none", "polled", "browsers"
ACCURACY_LIMIT = 1.0  # % of the true value
MASTER_LIMIT = 5.0  # % of a core
POLL_LIMIT_KB = 100.0
_FEW_POLLS = 0.8  # share of the nominal polls below which a page did not keep up
_HOURS_S = 3 * 3600
_FAILURES = ("timeout", "status", "connect")


@dataclass(frozen=True, slots=True)
class LiveRound:
    """Results of a run. CPU: shares of a core in the measure phase, None if unknown. `pages`: number of open pages."""

    kind: str
    pages: int
    seconds: float
    reported: Reported
    master: float | None
    worker: float | None
    pages_cpu: float | None
    server_late_p99_ms: float | None
    polls: tuple[Poll, ...] = ()

    @property
    def poll_sizes(self) -> list[int]:
        """Bytes of the polls of the live view."""
        return [poll.bytes for poll in self.polls if poll.path == LIVE]

    @property
    def polls_per_s(self) -> float | None:
        """Polls of the live view per page and second; None without pages."""
        return len(self.poll_sizes) / self.pages / self.seconds if self.pages else None


@dataclass(frozen=True, slots=True)
class LiveMeasure:
    """Row of the table. `truth`: differences are in % of it; without it they are in the unit of the row. None: no limit."""

    name: str
    of: Callable[[LiveRound], float | None]
    digits: int
    truth: Callable[[Case], float] | None = None
    limit: float | None = None

    def difference(self, case: Case, with_pages: float, without: float) -> float:
        """Return the difference due to the pages."""
        difference = with_pages - without
        return difference if self.truth is None else difference / self.truth(case) * 100


def _ttft(case: Case) -> float:
    return case.ttft_ms


def _gap(case: Case) -> float:
    return case.gap_ms


def _scaled(factor: float, value: float | None) -> float | None:
    return None if value is None else value * factor


MEASURES = (
    LiveMeasure("TTFT p50 (ms)", lambda r: r.reported.ttft_p50_ms, 2, _ttft, ACCURACY_LIMIT),
    LiveMeasure("TTFT p99 (ms)", lambda r: r.reported.ttft_p99_ms, 2, _ttft, ACCURACY_LIMIT),
    LiveMeasure("ITL p50 (ms)", lambda r: r.reported.itl_p50_ms, 3, _gap, ACCURACY_LIMIT),
    LiveMeasure("ITL p99 (ms)", lambda r: r.reported.itl_p99_ms, 3, _gap, ACCURACY_LIMIT),
    LiveMeasure("CPU of the master (% of a core)", lambda r: _scaled(100, r.master), 1, None, MASTER_LIMIT),
    LiveMeasure("CPU of the worker (% of a core)", lambda r: _scaled(100, r.worker), 1),
    LiveMeasure("CPU of the pages (% of a core)", lambda r: _scaled(100, r.pages_cpu), 1),
    LiveMeasure("server late p99 (ms)", lambda r: r.server_late_p99_ms, 2),
    LiveMeasure("polls of a page (1/s)", lambda r: r.polls_per_s, 2),
    LiveMeasure("mean poll (kB)", lambda r: sum(r.poll_sizes) / len(r.poll_sizes) / 1e3 if r.poll_sizes else None, 1),
    LiveMeasure("largest poll (kB)", lambda r: max(r.poll_sizes) / 1e3 if r.poll_sizes else None, 1),
)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Row of the rounds with one kind of pages: medians, difference, and spread of the rounds without pages."""

    measure: LiveMeasure
    without: float | None
    with_pages: float | None
    difference: float | None
    spread: float = 0.0
    few_polls: bool = False

    @property
    def result(self) -> str:
        """`met`, `EXCEEDED` or `unknown`; `undecided` within the spread, or if pages polled too seldom to show their cost."""
        limit = self.measure.limit
        if limit is None:
            return ""
        if self.difference is None:
            return "unknown"
        size = abs(self.difference) if self.measure.truth else self.difference
        if size < limit:
            return "undecided" if self.few_polls else "met"
        return "undecided" if size <= self.spread else "EXCEEDED"

    @property
    def problem(self) -> str | None:
        """Text on an exceeded limit or an unknown value."""
        if self.result == "unknown":
            return "unknown"
        return f"difference {self.difference:+.2f}, limit {self.measure.limit:g}" if self.result == "EXCEEDED" else None


def comparisons(case: Case, rounds: Sequence[LiveRound], kind: str) -> list[Comparison]:
    """Compare the rounds with one kind of pages with those without."""
    return [_comparison(measure, case, rounds, kind) for measure in MEASURES]


def _comparison(measure: LiveMeasure, case: Case, rounds: Sequence[LiveRound], kind: str) -> Comparison:
    without, values = _values(measure, rounds, NONE), _values(measure, rounds, kind)
    middle, middle_with = (median(each) if each else None for each in (without, values))
    if middle is None or middle_with is None:
        return Comparison(measure, middle, middle_with, None)
    spread = measure.difference(case, max(without), min(without))
    difference = measure.difference(case, middle_with, middle)
    return Comparison(measure, middle, middle_with, difference, spread, _few_polls(rounds, kind))


def _few_polls(rounds: Sequence[LiveRound], kind: str) -> bool:
    rates = [rate for each in rounds if each.kind == kind and (rate := each.polls_per_s) is not None]
    return bool(rates) and median(rates) < _FEW_POLLS / POLLS[LIVE]


def _values(measure: LiveMeasure, rounds: Sequence[LiveRound], kind: str) -> list[float]:
    values = (measure.of(each) for each in rounds if each.kind == kind)
    return [value for value in values if value is not None]


# -- size of a poll after three hours


@dataclass(frozen=True, slots=True)
class PollSize:
    """Size of a poll, with the limit for all."""

    name: str
    kilobytes: float

    @property
    def holds(self) -> bool:
        """True below the limit."""
        return self.kilobytes < POLL_LIMIT_KB


def hour_three(document: Mapping[str, Any]) -> list[PollSize]:
    """Return the sizes of a polled document of a run of three hours, with all columns of clients and servers."""
    series = Series()
    names = (*CLIENT, *LOAD, *SERVER, *(f"{FAILED}{name}" for name in _FAILURES))
    for second in range(_HOURS_S):
        waves = (math.exp(3 + 2 * math.sin(second / 60 + k)) for k in range(len(names)))
        series.append(float(second + 1), dict(zip(names, waves, strict=True)))
    polls = (("next second", series.sequence - 1), ("a minute later", series.sequence - 60), ("page opened", None))
    return [
        PollSize(name, len(_json({**document, "series": series_document(series, after)})) / 1e3)
        for name, after in polls
    ]


def _json(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


# -- page


def missed(case: Case, rounds: Sequence[LiveRound], sizes: Sequence[PollSize]) -> list[str]:
    """Return texts on exceeded limits and unknown values."""
    texts = [
        f"{_TITLES[kind]}: {row.measure.name}: {row.problem}"
        for kind in _kinds(rounds)
        for row in comparisons(case, rounds, kind)
        if row.problem
    ]
    return texts + [f"poll in hour three, {size.name}: {size.kilobytes:.1f} kB" for size in sizes if not size.holds]


def remarks(rounds: Sequence[LiveRound]) -> list[str]:
    """Return remarks on incomparable rounds: a late server, pages that polled too seldom, failed turns, a verdict."""
    texts = []
    for number, each in enumerate(rounds, 1):
        label, reported = f"round {number} ({each.kind})", each.reported
        if each.server_late_p99_ms is not None and each.server_late_p99_ms > SERVER_LATE_MS:
            texts.append(f"{label}: server late, p99 {each.server_late_p99_ms:.1f} ms")
        if each.polls_per_s is not None and each.polls_per_s < _FEW_POLLS / POLLS[LIVE]:
            texts.append(f"{label}: pages polled only {each.polls_per_s:.2f} times/s")
        if reported.failed:
            texts.append(f"{label}: {reported.failed} turns failed")
        if reported.verdict and reported.verdict != "valid":
            texts.append(f"{label}: verdict {reported.verdict}")
    return texts


_TITLES = {POLLED: "polling clients", BROWSERS: "browsers"}


def _kinds(rounds: Sequence[LiveRound]) -> list[str]:
    return [kind for kind in _TITLES if any(each.kind == kind for each in rounds)]


def table(case: Case, rounds: Sequence[LiveRound]) -> str:
    """Return the table of medians, differences and limits."""
    kinds = _kinds(rounds)
    pages = max((each.pages for each in rounds), default=0)
    head = ["median of the rounds", "no page"]
    for kind in kinds:
        head += [f"{pages} {_TITLES[kind]}", "difference", "result"]
    lines = [line([*head, "limit", "spread without pages"]), line(["---"] * (len(head) + 2))]
    by_kind = [comparisons(case, rounds, kind) for kind in kinds]
    for number, measure in enumerate(MEASURES):
        rows = [each[number] for each in by_kind]
        cells = [measure.name, figure(rows[0].without if rows else None, measure.digits)]
        unit = " %" if measure.truth else ""
        for row in rows:
            difference = "-" if row.difference is None else f"{row.difference:+.2f}{unit}"
            cells += [figure(row.with_pages, measure.digits), difference, row.result]
        limit = "" if measure.limit is None else f"{measure.limit:g}{' % of the truth' if measure.truth else ''}"
        spread = next((abs(row.spread) for row in rows if row.difference is not None), None)
        lines.append(line([*cells, limit, f"{figure(spread, 2)}{unit if spread is not None else ''}"]))
    return "\n".join(lines)


def page(
    case: Case, rounds: Sequence[LiveRound], sizes: Sequence[PollSize], about: Mapping[str, str], how: Sequence[str]
) -> str:
    """Return the page as Markdown."""
    lines = ["# Cost of the live view", "", "Generated by `make bench-watched`, without manual edits.", ""]
    lines += [f"* {name}: {value}" for name, value in about.items()]
    lines += ["", *how, "", table(case, rounds), ""]
    if sizes:
        lines += [
            "Size of a poll in hour three: the document of this run with the points of three hours in all columns.",
            "",
            "| poll | kB | limit (kB) | result |",
            "|---|---|---|---|",
            *(
                f"| {size.name} | {size.kilobytes:.1f} | {POLL_LIMIT_KB:g} | {'met' if size.holds else 'EXCEEDED'} |"
                for size in sizes
            ),
            "",
        ]
    if texts := remarks(rounds):
        lines += ["Remarks:", "", *(f"* {text}" for text in texts), ""]
    return "\n".join(lines)


def in_phase(polls: Sequence[Poll], begin_s: float, end_s: float) -> tuple[Poll, ...]:
    """Select the polls that began in a phase."""
    return tuple(poll for poll in polls if begin_s <= poll.at_s < end_s)
