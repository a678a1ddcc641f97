"""Texts of pages and findings in the language of the process: English in the code, others looked up where a text is shown.

`zh.toml` maps English texts to Chinese ones. A placeholder in both stands for what varies: `{word}` for a name, a
value or a range, `{count}` for a number or a range, `{word#}` for a number with its unit, `{word*}` for any clause: all kept.
`{word!t}`, a clause, `{word!c}`, several of them, and `{word!k}`, a code, are looked up in their turn, and must be found;
`{word~}`, what follows a label, is kept if it is not. `{word+}` is inserted by the code: such a text is not searched for. A text
without an entry is looked up by its sentences. A sentence is translated if all its clauses, which semicolons separate, have an
entry, and stays English as a whole otherwise: half of it could say something else.
"""

import re
import tomllib
from collections.abc import Mapping
from functools import cache, lru_cache
from importlib.resources import files
from itertools import chain, product
from typing import Any, NamedTuple

from msgspec.structs import replace

from inferload.figures.figure import Head
from inferload.figures.table import Cell, Detailed, Table, head_of
from inferload.scenario import language

from .glossary import FIGURES

PLACEHOLDER = re.compile(r"\{(\w+)(![tck]|[*#~+])?\}")
COUNT = "count"
# Columns and facts whose values are names, code or messages of others.
NAMES = re.compile(
    "best|claim|class|closest|Command|configuration|Engine|exception|first message|gate|Locustfile|Machine of the client|[mM]odel|"
    "of turns|Published with|[rR]un|[sS]cenario|server|[sS]ource|[tT]arget|turn|variant|Versions|why|worker"
)
_UNKNOWN = ("not known", "not measured")
_LONGEST, _LONGEST_CLAUSE = 4_000, 500  # characters of texts that are looked up: messages of servers may be hostile
_JOINED = {". ": "。", "; ": "；"}  # separators
_PLOT_TEXTS = ("text", "name", "title")
_STATISTICS = ("mean", "median", "min", "max", "p50", "p90", "p95", "p99", "p99.9")
_OF_ONE_CLAUSE = r"(?:(?!\. |; ).)+?"
_PATTERNS = {
    "!t": _OF_ONE_CLAUSE,
    "!c": r".+?",
    "~": r".+?",
    "!k": r"[a-z]+(?:-[a-z]+)*",
    "*": _OF_ONE_CLAUSE,
    COUNT: r"\d[\d.,]*(?: to \d[\d.,]*)?",
    "#": r"[-+\d][\d.,]*(?:e-\d+)?(?: (?:%|ms|s|min|h|\w+/s|tokens|answers|bytes|cores|GB|MiB|MHz|J|W))?",
    "": r"\S*?[^\s,;:](?: %)?(?: to \S*?[^\s,;:](?: %)?)?",
}
# A blank between Chinese characters, or beside a full-width mark.
_BLANK = re.compile(r"(?<=[\u3000-\u9fff]) (?=[\u3000-\u9fff])|(?<=[\u3000-\u303f\uff00-\uffef]) | (?=[\uff00-\uffef])")
# Numbers, units and abbreviations, which need no translation.
_NEUTRAL = re.compile(r"(?:[^A-Za-z]|\b(?:[A-Z][A-Z0-9]+|ms|s|min|h|tok|turns/s|sessions/s|GiB|MHz|p\d+)\b)+")


class Name(str):
    """Text that is shown as it is: a name that users or servers gave, or a text that has its own translation."""

    __slots__ = ()


class Template(NamedTuple):
    """English text with placeholders, as a pattern, and the Chinese one. `marks`: kinds of the placeholders by their words."""

    pattern: re.Pattern[str]
    chinese: str
    marks: Mapping[str, str]


@cache
def entries() -> dict[str, str]:
    """Return the Chinese texts by the English ones, without those of figures with a statistic or a unit."""
    document = tomllib.loads((files(__package__) / "zh.toml").read_text(encoding="utf-8"))
    return {english: chinese for group in document.values() for english, chinese in group.items()}


@cache
def _exact() -> dict[str, str]:
    """Return the Chinese texts by the English ones, with all heads of figures."""
    found = {}
    for figure in FIGURES:
        title, units = entries().get(figure.title, figure.title), [f", {figure.unit}"] if figure.unit else []
        units += [", s"] if figure.unit == "ms" else []  # of long times
        statistics = [("", ""), *((name, entries().get(name, name)) for name in _STATISTICS)]
        for (name, shown), before, end in product(statistics, (" ", ", "), ("", *units)):
            found[f"{figure.title}{name and before + name}{end}"] = f"{title}{name and before + shown}{end}"
    return found | entries()


@cache
def _templates() -> list[Template]:
    """Return the texts with placeholders: those that begin with a looked-up text, then with any text, last; longest first."""

    def rank(key: str) -> tuple[bool, bool, int]:
        first = re.match(r"\{\w+([*!]?)", key)
        mark = first[1] if first else ""
        return mark == "*", mark == "!", -len(PLACEHOLDER.sub("", key))

    found = sorted((key for key in entries() if PLACEHOLDER.search(key) and "+}" not in key), key=rank)
    return [Template(_pattern(key), entries()[key], dict(PLACEHOLDER.findall(key))) for key in found]


def _pattern(key: str) -> re.Pattern[str]:
    counted = re.sub(rf"(\{{{COUNT}\}} (?:\w+ )*?\w+)s\b", "\\1\1", key)  # plurals, which Chinese does not have
    fixed = (re.escape(part).replace("\1", "s?") for part in PLACEHOLDER.sub("\0", counted).split("\0"))
    words = [f"(?P<{word}>{_PATTERNS[COUNT if word == COUNT else mark]})" for word, mark in PLACEHOLDER.findall(key)]
    return re.compile(next(fixed) + "".join(chain.from_iterable(zip(words, fixed, strict=True))), re.DOTALL)


def tr(text: str) -> str:
    """Return a text in the language of the process."""
    return text if isinstance(text, Name) or language.current() == "en" else _chinese(text)


def inserted(template: str, names: Mapping[str, str]) -> Name:
    """Return a text with an entry in the language of the process, with names in its placeholders."""
    shown = template if language.current() == "en" else entries()[template]
    return Name(PLACEHOLDER.sub(lambda word: names[word.group(1)], shown))


@lru_cache(maxsize=4096)
def _chinese(text: str) -> str:
    if len(text) > _LONGEST:
        return text
    if (whole := _whole(text)) is not None:
        return whole
    sentences = text.split(". ")
    shown = [_whole(sentence) for sentence in sentences]
    ends = [". " if found is None else "。" for found in shown[:-1]]
    parts = [sentence if found is None else found for sentence, found in zip(sentences, shown, strict=True)]
    return "".join(chain.from_iterable(zip(parts, [*ends, ""], strict=True)))


@lru_cache(maxsize=4096)
def _entry(text: str) -> str | None:
    """Return the Chinese text of an entry, with a full stop or without; None without an entry."""
    if (exact := _exact().get(text)) is not None:
        return exact
    if len(text) > _LONGEST_CLAUSE:
        return None
    if text.endswith(".") and (sentence := _entry(text[:-1])) is not None:
        return f"{sentence}。"
    for template in _templates():
        match = template.pattern.fullmatch(text)
        if match and (filled := _filled(template, match.groupdict())) is not None:
            return filled
    # Some sentences of the code get a capital.
    return _entry(text[0].lower() + text[1:]) if "A" <= text[:1] <= "Z" else None


def _filled(template: Template, found: Mapping[str, str]) -> str | None:
    """Return the Chinese text of a template; None if a value that is looked up is not found."""
    values = {}
    for word, text in found.items():
        mark = template.marks[word]
        kept = text if mark else text.replace(" to ", " 至 ")
        shown = _whole(text) if mark.startswith("!") else _whole(text) or text if mark == "~" else kept
        if shown is None:
            return None
        values[word] = shown
    return _BLANK.sub("", PLACEHOLDER.sub(lambda word: values[word.group(1)], template.chinese))


def _whole(text: str) -> str | None:
    """Return the Chinese text of sentences or clauses; None if one of them has none."""
    if (found := _entry(text)) is not None:
        return found
    if _NEUTRAL.fullmatch(text):
        return text
    for separator, joined in _JOINED.items():
        if separator in text:
            pieces = [_whole(piece) for piece in text.split(separator)]
            return None if None in pieces else joined.join(filter(None, pieces))
    return None


def value(name: str | Head, text: str) -> str:
    """Return a value of a row or column in the language of the process; names of others are kept."""
    return text if NAMES.fullmatch(head_of(name).text) and text not in _UNKNOWN else tr(text)


def head(label: str | Head) -> str:
    return tr(head_of(label).text)


def table(shown: Table, unknown: str | None = None) -> Table:
    """Return a table in the language of the process. `unknown`: shown for unknown cells; None: the form decides."""
    if language.current() == "en":
        return shown
    return replace(
        shown,
        title=tr(shown.title),
        columns=[Head(head(column), head_of(column).defined_as) for column in shown.columns],
        rows=[
            [_cell(column, unknown if cell is None else cell) for column, cell in zip(shown.columns, row, strict=True)]
            for row in shown.rows
        ],
        note=tr(shown.note),
    )


def _cell(column: str | Head, cell: Cell) -> Cell:
    if isinstance(cell, Head):
        return Head(head(cell), cell.defined_as)
    if isinstance(cell, Detailed):
        return Detailed(_cell(column, cell.value), tr(cell.detail))  # type: ignore[arg-type]
    return value(column, cell) if isinstance(cell, str) else cell


def plot(document: Any) -> Any:
    """Return a chart for plotly.js in the language of the process: its titles, legends and annotations."""
    if language.current() == "en":
        return document
    if isinstance(document, Mapping):
        return {
            key: tr(entry) if key in _PLOT_TEXTS and isinstance(entry, str) else plot(entry)
            for key, entry in document.items()
        }
    return [plot(entry) for entry in document] if isinstance(document, list | tuple) else document
