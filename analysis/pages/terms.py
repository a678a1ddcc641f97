"""Links from terms and numbers of a page to their definitions. A page contains the definitions that it links to."""

import re
from collections.abc import Sequence

from markupsafe import Markup, escape

from .glossary import DEFINITIONS, IN_TABLE, SAME, anchor

_TEXTS = {term: text for term, _, text in DEFINITIONS}
_CODE = re.compile(r"\(([a-z][a-z_-]+)")  # code of a reason or cause in a sentence
_GATE = re.compile(r"^(?:\w+\((\w+)\)|(\w+) ?[<>={])")  # measure of `p99(ttft_ms) < 2000` or `failed_ratio < 0.01`


def meant(word: str, table: str = "") -> str | None:
    """Return the defined term of a word of a page or table; None without a definition."""
    plain = word.partition(" at http")[0]
    gate = _GATE.match(plain)
    term = IN_TABLE.get(table, {}).get(plain) or SAME.get(plain, (gate.group(1) or gate.group(2)) if gate else plain)
    term = SAME.get(term, term)
    return term if term in _TEXTS else None


class Terms:
    """Terms of one page, collected as they are linked."""

    def __init__(self) -> None:
        self._used: set[str] = set()

    def link(self, word: str, table: str = "") -> Markup:
        """Return the word, linked to its definition if it has one."""
        term = meant(word, table)
        if term is None:
            return escape(word)
        return Markup('<a class="term" href="#{}" title="{}">{}</a>').format(self._at(term), _TEXTS[term], word)

    def number(self, text: str, row: str, column: str, table: str = "") -> Markup:
        """Return a cell linked to the definition of its row, else of its column. Not in the tab order: rows and columns are."""
        term = meant(row, table) or meant(column, table)
        if term is None or not any(letter.isdigit() for letter in text):
            return escape(text)
        return Markup('<a class="n" tabindex="-1" href="#{}">{}</a>').format(self._at(term), text)

    def sentence(self, text: str) -> Markup:
        """Return a sentence with its code in brackets linked."""
        match = _CODE.search(text)
        if match is None or match.group(1) not in _TEXTS:
            return escape(text)
        before, after = text[: match.start(1)], text[match.end(1) :]
        return escape(before) + self.link(match.group(1)) + escape(after)

    def defined(self) -> Sequence[tuple[str, str, str, str]]:
        """Return the definitions (id, term, unit, text) of all terms linked so far."""
        return [(anchor(term), term, unit, text) for term, unit, text in DEFINITIONS if term in self._used]

    def _at(self, term: str) -> str:
        self._used.add(term)
        return anchor(term)
