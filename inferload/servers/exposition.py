"""Parser of metrics pages in the Prometheus text format and in OpenMetrics, whose samples may be followed by an exemplar.

A page has thousands of lines, several times a second, but its series hardly change. The parser caches the text of each
series, so that it only converts the value. A line that is no sample costs that line.
"""

import gzip
import io
import math
import re
import zlib
from collections.abc import Callable, Iterable
from typing import NamedTuple

from inferload.figures.pages.page_names import RAY, with_colon

# A vLLM page with all histograms has about 150 KB; a page far above this limit is no metrics page.
MAX_PAGE_BYTES = 32 * 1024 * 1024

# name="value", where a value escapes backslash, quote and newline; a comma may trail. A quoted name may have any characters;
# without a value it is that of the metric.
_TEXT = r'"([^"\\]*(?:\\.[^"\\]*)*)"'
_LABEL = re.compile(rf"\s*(?:([a-zA-Z_][a-zA-Z0-9_]*)|{_TEXT})\s*(?:=\s*{_TEXT})?\s*(?:,|$)", re.DOTALL)
_LINE = re.compile(
    r"\s*(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)?"
    r'(?:[ \t]*\{(?P<labels>[^"}]*(?:"[^"\\]*(?:\\.[^"\\]*)*"[^"}]*)*)\}[ \t]*|[ \t]+)'
    r"(?P<value>[^\s#]+)(?:[ \t]+(?P<time>[^\s#]+))?\s*(?:(?<=\s)#.*)?",
    re.DOTALL,
)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_UNESCAPED = {"n": "\n", '"': '"', "\\": "\\"}

Labels = tuple[tuple[str, str], ...]

# Greatest number of cached series: a page with ever new labels must not exhaust the memory.
REMEMBERED = 50_000

TOO_LARGE = 1e18  # above all plausible counters and gauges; sums of smaller values over scrapes and series are finite
OLD_S = 5.0  # samples that are older than this are named
_MOST_SECONDS = 1e11  # a greater time is in ms, as in the Prometheus text format; OpenMetrics has seconds
_GZIP = b"\x1f\x8b"


class Sample(NamedTuple):
    """One line of a page: name of the series, labels sorted by name, and value (may be NaN or infinite).

    `at_ns`: the sample's own time, since 1970; None: that of the scrape.
    """

    metric: str
    labels: Labels
    value: float
    at_ns: int | None = None


class PromParser:
    """Parser of the pages of one server. `prefixes`: of the metrics to keep; empty: all.

    `unread`: lines of the newest page that are no samples; `example`: the first of them. `timed`: a sample has its own time.
    """

    def __init__(self, prefixes: tuple[str, ...] = (), redact: Callable[[str], str] = str) -> None:
        self._prefixes = prefixes or ("",)
        # of lines that may be of such a metric
        plain = tuple(prefix.replace(":", "_") for prefix in prefixes)
        self._begins = (*self._prefixes, *plain, *(RAY + prefix for prefix in plain), " ", "\t", "{")
        self._redact = redact  # applied to each label's value, once per series
        self._known: dict[str, tuple[str, Labels]] = {}
        self.unread, self.example = 0, ""
        self.timed = False

    def parse(self, page: str) -> list[Sample]:
        """Return the samples in the page's order. ValueError names the kind of a page without any."""
        begins, known = self._begins, self._known
        self.unread, self.example, self.timed = 0, "", False
        if len(known) > REMEMBERED:
            known.clear()
        samples: list[Sample] = []
        for line in page.split("\n"):
            series, _, value = line.rpartition(" ")
            try:
                if series in known:
                    samples.append(Sample(*known[series], _value(value)))
                    continue
                if not line.startswith(begins):
                    continue
                timed = series.rpartition(" ")
                sample: Sample | None = Sample(*known[timed[0]], _value(timed[2]), _at_ns(value))
            except (LookupError, ValueError, OverflowError):  # a new series, or a line with other blanks
                sample = self._parsed(line)
            if sample is not None:
                samples.append(sample)
                self.timed = self.timed or sample.at_ns is not None
        if self.unread and not samples:
            kind = {"<": "HTML", "[": "JSON", "{": "JSON"}.get(page.lstrip()[:1], f"text such as {self.example}")
            raise ValueError(f"{kind}, not a metrics page")
        return samples

    def remarks(self, samples: Iterable[Sample], wall_ns: int) -> tuple[str, ...]:
        """Describe what is wrong with the newest page, read at `wall_ns`: lines that are no samples, and old samples."""
        unread = f"{self.unread} lines are no samples, such as {self.example}" if self.unread else ""
        old_s = age_s(samples, wall_ns) or 0.0
        old = f"its samples are up to {old_s:,.0f} s old by their own times" if old_s > OLD_S else ""
        return tuple(filter(None, (unread, old)))

    def _parsed(self, line: str) -> Sample | None:
        """Return the sample of a line; None for a comment, another metric, or a line that is none, which is counted."""
        try:
            return self._sample(line)
        except (ValueError, OverflowError):
            self.unread += 1
            self.example = self.example or repr(self._redact(line)[:80])
            return None

    def _sample(self, line: str) -> Sample | None:
        found = _LINE.fullmatch(line)
        if found is None:
            if not line.strip() or line.lstrip()[0] == "#":
                return None
            raise ValueError("not a sample")
        series = line[: found.start("value")].rstrip()
        if series not in self._known:
            metric, labels = _series(found["name"], found["labels"] or "")
            metric = with_colon(metric)
            if not metric.startswith(self._prefixes):
                return None
            self._known[series] = metric, tuple((name, self._redact(text)) for name, text in labels)
        time = found["time"]
        return Sample(*self._known[series], _value(found["value"]), None if time is None else _at_ns(time))


def page_text(body: bytes, charset: str | None = None, encoding: str = "") -> str:
    """Return the text of a body, which may be compressed with gzip. ValueError if it is longer than MAX_PAGE_BYTES, or cut."""
    if body.startswith(_GZIP):
        try:
            body = gzip.GzipFile(fileobj=io.BytesIO(body)).read(MAX_PAGE_BYTES + 1)
        except (EOFError, OSError, zlib.error) as error:
            raise ValueError(f"the page was cut off, or is no gzip ({error})") from error
    elif encoding.strip().lower() not in ("", "identity", "gzip", "x-gzip"):
        raise ValueError(
            f"the page is compressed as {encoding}, which was not asked for; let the server or proxy send it plain"
        )
    if len(body) > MAX_PAGE_BYTES:
        raise ValueError(f"the page is longer than {MAX_PAGE_BYTES:,} bytes")
    try:
        return body.decode(charset or "utf-8-sig", "replace")
    except LookupError:  # an unknown charset
        return body.decode("utf-8-sig", "replace")


def age_s(samples: Iterable[Sample], wall_ns: int) -> float | None:
    """Return the age in s of the oldest sample with its own time; None without one. A time in the future is that of the scrape."""
    times = [sample.at_ns for sample in samples if sample.at_ns is not None]
    return max(0, wall_ns - min(times)) / 1e9 if times else None


def _value(text: str) -> float:
    if "_" in text:  # Python would read 1_000
        raise ValueError("not a number")
    return float(text)


def _at_ns(text: str) -> int | None:
    """Return a time, to the microsecond; None for one that is not set, such as 0."""
    at = _value(text)
    if not math.isfinite(at):
        raise ValueError("not a time")
    return round(at * (1e6 if at < _MOST_SECONDS else 1e3)) * 1000 if at > 0 else None


def _series(name: str | None, text: str) -> tuple[str, Labels]:
    labels: list[tuple[str, str]] = []
    at, end = 0, len(text.rstrip())
    while at < end:
        match = _LABEL.match(text, at)
        if match is None:
            raise ValueError("not a label")
        plain, quoted, value = match.groups()
        if value is not None:
            labels.append((plain or _unescaped(quoted), _unescaped(value)))
        elif name is None and quoted:
            name = _unescaped(quoted)
        else:
            raise ValueError("not a label")
        at = match.end()
    if not name or len(dict(labels)) < len(labels):
        raise ValueError("not a series")
    return name, tuple(sorted(labels))


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda escape: _UNESCAPED.get(escape[1], escape[0]), text) if "\\" in text else text
