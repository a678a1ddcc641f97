"""Headings of figures in tables and printed blocks: measure, statistic and unit by their words.

A heading that could be another quantity is refused: two measures (`E2E Output Token Throughput`), a unit that the measure does
not have (`TTFT (tok/s)`), a statistic that is not read (`TTFT min`), a part or multiple of the measure (`per user`).
"""

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

from inferload.figures.rate_figures import GOODPUT, OUTPUT, TOTAL, TURNS
from inferload.figures.turn_figures import E2E, ITL, TPOT, TTFT

from . import units

MEAN = "mean"

_PER_S = r"\s*/\s*(?:s|secs?|seconds?|mins?|minutes?|秒|分钟)(?![a-z])"
_LATENCY = (
    (r"ttfts?(?![a-z])|ttft|times? to first tokens?|首\s*token|首字", TTFT.key),
    (r"tpots?(?![a-z])|tpot", TPOT.key),
    (r"(?<![a-z])itls?(?![a-z])|inter[- ]?token(?: latency)?", ITL.key),
    (r"(?<![a-z0-9])e2el?(?![a-z0-9])|end[- ]to[- ]end|端到端|request latency", E2E.key),
)
_LATENCIES = tuple((re.compile(pattern), key) for pattern, key in _LATENCY)
_RATES = (
    (re.compile(r"goodput"), GOODPUT.key),
    (re.compile(rf"(?:req(?:uest)?s?|quer(?:y|ies)){_PER_S}|\b[qr]p[sm]\b|request throughput|请求吞吐"), TURNS.key),
    (re.compile(r"(?:input|prompt|prefill|输入)(?!.*(?:output|输出))"), ""),
    (re.compile(rf"(?:total|总).*(?:tok(?:en)?s?{_PER_S}|throughput|吞吐)"), TOTAL.key),
    (re.compile(rf"tok(?:en)?s?{_PER_S}|throughput|吞吐"), OUTPUT.key),
)
# Words that tell the rate; plain `throughput` is one of requests or tokens, by its unit in brackets.
_RATE_WORD = re.compile(
    rf"goodput|\b[qr]p[sm]\b|{_PER_S}|req|request|请求|tok|output|输出|total|总|input|prompt|prefill|输入"
)
_RATE_NAME = re.compile(rf"goodput|throughput|吞吐|\b[qr]p[sm]\b|(?:req(?:uest)?s?|quer(?:y|ies)|tok(?:en)?s?){_PER_S}")

_QUANTILES = r"(?<![a-z0-9])p\s*(50|90|95|99)(?![\d.]*\d)|(?<![\d.])(50|90|95|99)\s*(?:th(?: percentile)?|%ile|百?分位)"
_QUANTILE = re.compile(_QUANTILES)
_MEDIAN = re.compile(r"median|\bmdn\b|中位数?")
_MEAN = re.compile(r"\bmean\b|\bavg\b|average|平均值?")
_OTHER_STATISTIC = re.compile(
    r"(?<![a-z])p\s*\d|percentile|%ile|(?<![a-z/])(?:std|stdev|stddev|sd|sigma|var|variance|min|max|minimum|maximum|sum|"
    r"range|best|worst|ci|cv|moe)(?![a-z])|[\u03c3±最]"
)
_OTHER_COLUMN = re.compile(r"p\s*\d[\d.]*|count|samples|n|std\.?[ -]?dev(?:iation)?")
# Words of a quantity that is not the measure itself.
_ANOTHER = re.compile(
    r"\b(?:change|diff(?:erence)?|delta|gain|improvement|speed-?up|reduction|increase|overhead|slo|sla|limit|target|threshold|"
    r"budget|attainment|violations?|errors?|errored|normali[sz]ed|relative|share|fraction|percent(?:age)?|rank|incomplete|failed|adjusted|peak)\b|提升|变化|差值|差异|降低|峰值|[\u03b4%\u00d7]|\.{2,}"
)
_BRACKETS = re.compile(r"[(\[{<]([^()\[\]{}<>]*)[)\]}>]")


@dataclass(frozen=True, slots=True)
class Heading:
    """Figure that a heading names. `factor`: from its unit to that of the measure; None: it has no unit."""

    measure: str
    statistic: str
    factor: float | None

    @property
    def figure(self) -> str:
        """Gate name: a rate has no statistic."""
        return f"{self.statistic}({self.measure})" if self.measure in units.LATENCIES else self.measure


def of(text: str) -> Heading | None:
    """Return the figure of a heading; None if it names none, or is refused. A latency without a statistic is a mean."""
    words = _normal(text)
    if (measure := _measure(words)) is None or _ANOTHER.search(words):
        return None
    statistic = _statistic(words)
    if statistic is None or (statistic != MEAN and measure not in units.LATENCIES):
        return None
    factors = set(_factors(measure, words))
    if None in factors or len(factors) > 1:
        return None
    return Heading(measure, statistic, next(iter(factors), None))


def names_a_measure(text: str) -> bool:
    """Return True for a heading with the name of a measure, refused or not."""
    words = _normal(text)
    return any(pattern.search(words) for pattern, _ in _LATENCIES) or _RATE_NAME.search(words) is not None


def statistic_of(label: str) -> str | None:
    """Return the statistic of a column of statistics, empty for one that is not read; None for another column."""
    words = _normal(label).strip(" .")
    if any(pattern.fullmatch(words) for pattern in (_QUANTILE, _MEDIAN, _MEAN)):
        return _statistic(words)
    return "" if _OTHER_COLUMN.fullmatch(words) or _OTHER_STATISTIC.fullmatch(words) else None


def _normal(text: str) -> str:
    """Return a heading in lower case, `per` and the blanks of units as in the tables of units."""
    words = unicodedata.normalize("NFKC", text).casefold().replace("_", " ")
    words = re.sub(r"time per output token", "tpot", words)
    return re.sub(r"\s*(?:/|\bper\b|每)\s*", "/", " ".join(words.split()))


def _measure(words: str) -> str | None:
    latencies = {key for pattern, key in _LATENCIES if pattern.search(words)}
    if latencies:
        return next(iter(latencies)) if len(latencies) == 1 and not _RATE_NAME.search(words) else None
    name = _BRACKETS.sub(" ", words)
    rate = _rate(name) if _RATE_WORD.search(name) else None
    return (_rate(words) if rate is None else rate) or None


def _rate(words: str) -> str | None:
    """Return the rate of normal words, empty for one that is not read; None without one."""
    return next((key for pattern, key in _RATES if pattern.search(words)), None)


def _statistic(words: str) -> str | None:
    """Return the statistic of normal words; None for one that is not read, or several."""
    named = {f"p{match[1] or match[2]}" for match in _QUANTILE.finditer(words)}
    named |= {"p50"} if _MEDIAN.search(words) else set()
    named |= {MEAN} if _MEAN.search(words) else set()
    if _OTHER_STATISTIC.search(_QUANTILE.sub(" ", words)) or len(named) > 1:
        return None
    return next(iter(named), MEAN)


def _factors(measure: str, words: str) -> Iterator[float | None]:
    """Yield the factor of each unit among the words; None for one that the measure does not have."""
    for bracket in _BRACKETS.findall(words):
        for piece in re.split(r"[,;|]", bracket):
            yield from _of_bracket(measure, _bare(measure, piece))
    before = ""  # `8 users` is a condition
    for word in re.split(r"[^\w/%$]+|(?<=\w)-(?=\w)", _bare(measure, _BRACKETS.sub(" ", words))):
        unit = re.sub(r"/(?:req(?:uest)?s?|turns?)$|^/", "", word) if measure in units.LATENCIES else word
        factor = units.factor(measure, unit)
        if factor is not None:
            yield factor
        elif units.is_unit(unit) and not re.fullmatch(r"\d+k?", before) and not _is_of_name(measure, unit):
            yield None
        before = word


def _is_of_name(measure: str, word: str) -> bool:
    """Return True for a word of the name of a rate, such as what it counts."""
    return measure not in units.LATENCIES and (word in units.COUNTED or word == "s")


def _bare(measure: str, words: str) -> str:
    """Return words without the names of measures and statistics that are no units."""
    if measure in units.LATENCIES:
        for pattern, _ in _LATENCIES:
            words = pattern.sub(" ", words)
    for pattern in (_QUANTILE, _MEDIAN, _MEAN):
        words = pattern.sub(" ", words)
    return words.strip(" -")


def _of_bracket(measure: str, piece: str) -> Iterator[float | None]:
    """Yield the factor of a bracket's piece, if it is a unit. A word in brackets is one, unless it has a digit."""
    words = re.sub(r"^in ", "", piece.strip(" .")).split()
    if not words or piece in _REMARKS:
        return
    if (factor := units.factor(measure, "".join(words))) is not None:
        yield factor
    elif any(re.search(r"\d", word) for word in words):
        if any(units.factor(measure, re.sub(r"[^a-z/]", "", word)) is not None or "/" in word for word in words):
            yield None  # a multiple or power of a unit: `1000 tok/s`
    elif any(map(units.is_unit, words)) or (len(words) == 1 and words[0].isascii() and re.search(r"[a-z]", words[0])):
        yield None


_REMARKS = ("latency", "output", "decode", "total", "overall", "streaming", "client", "server", "aggregate", "system")
