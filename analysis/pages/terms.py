"""Links from terms and numbers of a page to their definitions. A page contains the definitions that it links to."""

import re
from collections.abc import Sequence

from markupsafe import Markup, escape

from inferload.base.escaping import escaped_lines
from inferload.figures.figure import Head
from inferload.figures.table import head_of

from . import texts
from .glossary import DEFINITIONS, anchor

_TEXTS = {term: text for term, _, _, text in DEFINITIONS}
_CODE = re.compile(r"[(（]([a-z][a-z_-]+)")  # code of a reason or cause in a sentence
_GATE = re.compile(r"^(?:\w+\((\w+)\)|(\w+) ?[<>={])")  # measure of `p99(ttft_ms) < 2000` or `failed_ratio < 0.01`


def meant(word: str | Head) -> str | None:
    """Return the defined term of a head, a gate, or another text of a page; None without a definition."""
    term = head_of(word).defined_as
    gate = _GATE.match(term)
    term = (gate.group(1) or gate.group(2)) if gate else term
    return term if term in _TEXTS else None


class Terms:
    """Terms of one page, collected as they are linked."""

    def __init__(self) -> None:
        self._used: set[str] = set()

    def link(self, word: str | Head, column: str | Head = "") -> Markup:
        """Return the text of a word, linked to its definition if it has one. `column`: head of the column that it is from."""
        shown = texts.head(word) if isinstance(word, Head) else texts.value(column, word)
        term, text = meant(word), _safe(shown)
        if term is None:
            return text
        return Markup('<a class="term" href="#{}" title="{}">{}</a>').format(self._at(term), _TEXTS[term], text)

    def number(self, text: str, row: str | Head, column: str | Head = "") -> Markup:
        """Return a cell linked to the definition of its row, else of its column. Not in the tab order: rows and columns are."""
        term, shown = meant(row) or meant(column), texts.value(column or row, text)
        if term is None or not any(letter.isdigit() for letter in text):
            return _safe(shown)
        return Markup('<a class="n" tabindex="-1" href="#{}">{}</a>').format(self._at(term), _safe(shown))

    def sentence(self, text: str) -> Markup:
        """Return a sentence with its code in brackets linked."""
        text = texts.tr(text)
        match = _CODE.search(text)
        if match is None or match.group(1) not in _TEXTS:
            return _safe(text)
        before, after = text[: match.start(1)], text[match.end(1) :]
        return _safe(before) + self.link(texts.Name(match.group(1))) + _safe(after)

    def defined(self) -> Sequence[tuple[str, str, str, str]]:
        """Return the definitions (id, name, unit, text) of all terms linked so far."""
        return [(anchor(term), name, unit, text) for term, name, unit, text in DEFINITIONS if term in self._used]

    def _at(self, term: str) -> str:
        self._used.add(term)
        return anchor(term)


def _safe(text: str) -> Markup:
    return escape(escaped_lines(text))
