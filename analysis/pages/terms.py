"""How the words and numbers of a page lead to what they mean. What nothing on the page leads to is not defined on it."""

import re
from collections.abc import Sequence

from markupsafe import Markup, escape

from .glossary import DEFINITIONS, IN_TABLE, SAME, anchor

_TEXTS = {term: text for term, _, text in DEFINITIONS}
_CODE = re.compile(r"\(([a-z][a-z_-]+)")  # of a reason, or of a cause, in a sentence
_GATE = re.compile(r"^(?:\w+\((\w+)\)|(\w+) ?[<>={])")  # of `p99(ttft_ms) < 2000` or `failed_ratio < 0.01` the measure


def meant(word: str, table: str = "") -> str | None:
    """The term whose definition a word of a page, or of one of its tables, has; None where there is none."""
    plain = word.partition(" at http")[0]
    gate = _GATE.match(plain)
    term = IN_TABLE.get(table, {}).get(plain) or SAME.get(plain, (gate.group(1) or gate.group(2)) if gate else plain)
    term = SAME.get(term, term)
    return term if term in _TEXTS else None


class Terms:
    """The terms of one page, as they are linked."""

    def __init__(self) -> None:
        self._used: set[str] = set()

    def link(self, word: str, table: str = "") -> Markup:
        """The word, leading to its definition where it has one."""
        term = meant(word, table)
        if term is None:
            return escape(word)
        return Markup('<a class="term" href="#{}" title="{}">{}</a>').format(self._at(term), _TEXTS[term], word)

    def number(self, text: str, row: str, column: str, table: str = "") -> Markup:
        """A cell of a table, leading to what its row means, else to what its column does; by the mouse alone, since the keyboard
        goes by rows and columns."""
        term = meant(row, table) or meant(column, table)
        if term is None or not any(letter.isdigit() for letter in text):
            return escape(text)
        return Markup('<a class="n" tabindex="-1" href="#{}">{}</a>').format(self._at(term), text)

    def sentence(self, text: str) -> Markup:
        """A sentence whose code in brackets leads to what it stands for."""
        found = _CODE.search(text)
        if found is None or found.group(1) not in _TEXTS:
            return escape(text)
        before, after = text[: found.start(1)], text[found.end(1) :]
        return escape(before) + self.link(found.group(1)) + escape(after)

    def defined(self) -> Sequence[tuple[str, str, str, str]]:
        """(place, term, unit, meaning) of all that was linked so far."""
        return [(anchor(term), term, unit, text) for term, unit, text in DEFINITIONS if term in self._used]

    def _at(self, term: str) -> str:
        self._used.add(term)
        return anchor(term)
