"""What is kept of the pages of one target: samples, each with the time that it is of. No I/O.

A sample that carries its own time, as on the page of a collector, is of that time; a time in the future is that of the scrape. It
is stored once. Times of a page within 0.25 s are one. The samples of the first page are all of the oldest time of a counter, so
that each counter has a first value at the first instant.

A page of no known kind is stored as it is, once in 10 s, and 2,000 of its series at most.
"""

from collections.abc import Callable, Sequence
from itertools import islice

from msgspec import Struct

from inferload.base.clock import NS_PER_S
from inferload.figures.pages import metric_names as names
from inferload.figures.pages.page_names import kind_of
from inferload.figures.servers.server_figures import KEPT_PREFIXES
from inferload.servers.exposition import REMEMBERED, Labels, PromParser, Sample, age_s
from inferload.servers.parts import COUNTERS

MOST_UNKNOWN = 2_000
UNKNOWN_NS = 10 * NS_PER_S
_TOGETHER_NS = NS_PER_S // 4


class Page(Struct, frozen=True):
    """Samples of a page at `at_ns`. `stored`: those to store, with facts on the page. `mixed`: counters are of several times."""

    samples: list[Sample]
    stored: Sequence[Sample]
    at_ns: int
    mixed: bool = False


class PageSamples:
    """Reader of the successive pages of a target."""

    def __init__(self, redact: Callable[[str], str] = str) -> None:
        self._parser, self._whole = PromParser(KEPT_PREFIXES, redact), PromParser((), redact)
        self._known = False  # a page was of a known kind
        self._unknown: set[tuple[str, Labels]] = set()  # series of no known kind that are stored
        self._due_ns = 0  # of their next samples
        self._times: dict[tuple[str, Labels], int] | None = None  # of the newest samples; None before the first page

    def read(self, text: str, wall_ns: int) -> Page:
        """Read a page that was scraped at `wall_ns`. ValueError if it is no metrics page."""
        parser = self._parser
        samples = [sample for sample in parser.parse(text) if not sample.metric.endswith("_created")]
        self._known = self._known or kind_of({sample.metric for sample in samples}) is not None
        if not samples if self._known else wall_ns >= self._due_ns:
            parser = self._whole
            samples += self._of_no_kind(parser.parse(text))
            self._due_ns = wall_ns + UNKNOWN_NS
        facts = [Sample(names.SCRAPE_UNREAD, (), float(parser.unread))] if parser.unread else []
        dated, stored, at_ns = self._dated(samples, wall_ns) if parser.timed else (samples, samples, wall_ns)
        self._times = self._times or {}
        if parser.timed:
            facts.append(Sample(names.SAMPLE_AGE, (), age_s(dated, wall_ns) or 0.0))
        stored = [*stored, *(fact._replace(at_ns=at_ns) for fact in facts)] if facts else stored
        times = {each.at_ns for each in dated if each.metric.endswith(COUNTERS)}
        return Page(dated, stored, at_ns, mixed=len(times) > 1)

    def _of_no_kind(self, samples: list[Sample]) -> list[Sample]:
        """Return the samples of a page of no known kind that are stored."""
        found = [sample for sample in samples if not sample.metric.startswith(KEPT_PREFIXES)]
        if self._known or not samples:
            raise ValueError("the page has no metrics of an inference server")
        new = (series for sample in found if (series := sample[:2]) not in self._unknown)
        self._unknown.update(islice(new, MOST_UNKNOWN - len(self._unknown)))
        return [sample for sample in found if sample[:2] in self._unknown]

    def _dated(self, samples: list[Sample], wall_ns: int) -> tuple[list[Sample], Sequence[Sample], int]:
        """Return the samples with their times, those of them that are new, and the time of the page."""
        times = {sample.at_ns for sample in samples}
        dates = dict[int | None, int]({None: wall_ns} if None in times else {})
        newest_ns = 0
        for at_ns in sorted(filter(None, times), reverse=True):
            newest_ns = newest_ns if newest_ns - at_ns <= _TOGETHER_NS and newest_ns else at_ns
            dates[at_ns] = min(newest_ns, wall_ns)
        first, self._times = self._times is None, self._times or {}
        if first:
            counted = (dates[each.at_ns] for each in samples if each.metric.endswith(COUNTERS))
            dates = dict.fromkeys(dates, min(counted, default=min(dates.values())))
        if len(self._times) > REMEMBERED:
            self._times.clear()
        dated, stored = [], []
        for sample in samples:
            dated.append(sample._replace(at_ns=dates[sample.at_ns]))
            if sample.at_ns is None or self._times.get(sample[:2]) != sample.at_ns:
                stored.append(dated[-1])
            if sample.at_ns is not None:
                self._times[sample[:2]] = sample.at_ns
        return dated, stored, max(dates.values())
