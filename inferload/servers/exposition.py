"""Parser of the Prometheus text format.

A page has thousands of lines, several times a second, but its series hardly change. The parser caches the text of each
series, so that it only converts the value.
"""

import re
from collections.abc import Callable
from typing import NamedTuple

# label="value", where a value escapes backslash, quote and newline; a comma may trail.
_LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(?:,|$)', re.DOTALL)
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_UNESCAPED = {"n": "\n", '"': '"', "\\": "\\"}

Labels = tuple[tuple[str, str], ...]

# Greatest number of cached series: a page with ever new labels must not exhaust the memory.
_REMEMBERED = 50_000

TOO_LARGE = 1e18  # above all plausible counters and gauges; sums of smaller values over scrapes and series are finite


class Sample(NamedTuple):
    """One line of a page: name of the series, labels sorted by name, and value (may be NaN or infinite)."""

    metric: str
    labels: Labels
    value: float


class PromParser:
    """Parser of the pages of one server. `prefixes`: of the lines to keep; empty: all."""

    def __init__(self, prefixes: tuple[str, ...] = (), redact: Callable[[str], str] = str) -> None:
        self._prefixes = prefixes
        self._redact = redact  # applied to each label's value, once per series
        self._known: dict[str, tuple[str, Labels]] = {}

    def parse(self, page: str) -> list[Sample]:
        """Return the samples in the page's order. ValueError names the number of a malformed line."""
        prefixes, known = self._prefixes, self._known
        if len(known) > _REMEMBERED:
            known.clear()
        samples: list[Sample] = []
        for number, line in enumerate(page.split("\n"), 1):
            if prefixes and not line.startswith(prefixes):
                continue
            series, _, value = line.rpartition(" ")
            try:
                if series not in known:
                    stripped = line.strip()
                    if not stripped or stripped[0] == "#":
                        continue
                    series, value = _cut(stripped)
                if series not in known:
                    metric, labels = _series(series)
                    known[series] = metric, tuple((name, self._redact(text)) for name, text in labels)
                samples.append(Sample(*known[series], _value(value)))
            except (ValueError, IndexError):
                raise ValueError(f"line {number}: not a sample of the Prometheus text format: {line[:80]!r}") from None
        return samples


def parse(page: str, prefixes: tuple[str, ...] = ()) -> list[Sample]:
    """Parse a single page."""
    return PromParser(prefixes).parse(page)


def _cut(line: str) -> tuple[str, str]:
    """Split a line into the texts of its series and of its value. A label's value may contain `}` and blanks."""
    end = line.rfind("}") + 1
    if end:
        fields = line[end:].split()
        series = line[:end]
    else:
        series, *fields = line.split()
    if not 1 <= len(fields) <= 2:
        raise ValueError("expected a value and an optional timestamp")
    if len(fields) == 2:
        int(fields[1])  # the format's timestamp, in ms; not used, because the scraper records its own
    return series, fields[0]


def _value(text: str) -> float:
    if "_" in text:  # Python would read 1_000
        raise ValueError("not a number")
    return float(text)


def _series(text: str) -> tuple[str, Labels]:
    name, brace, inside = text.partition("{")
    name = name.strip()
    if not _NAME.fullmatch(name):
        raise ValueError("not a metric name")
    return name, _labels(inside[:-1]) if brace else ()


def _labels(text: str) -> Labels:
    labels: list[tuple[str, str]] = []
    at, end = 0, len(text.rstrip())
    while at < end:
        match = _LABEL.match(text, at)
        if match is None:
            raise ValueError("not a label")
        value = match[2]
        if "\\" in value:
            value = _ESCAPE.sub(lambda escape: _UNESCAPED.get(escape[1], escape[0]), value)
        labels.append((match[1], value))
        at = match.end()
    return tuple(sorted(labels))
