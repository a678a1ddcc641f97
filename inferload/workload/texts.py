"""Scripts of the workload `texts`: a session is one request of several texts, after a query if there is one."""

from collections.abc import Sequence
from random import Random
from typing import Any

from inferload.scenario.schema.chat import ONE, Texts
from inferload.scenario.schema.distributions import draw_count
from inferload.workload.content.data import DataContext, Notes, Opened
from inferload.workload.content.messages import Message, Piece
from inferload.workload.content.script import Ask, Script
from inferload.workload.sources.api import AnswerLengths
from inferload.workload.sources.registry import open_source

_FIRSTS = 1 << 31  # sessions of a source from which the texts of a request are taken, one after another


class TextSessions(Opened):
    """Sessions of one class."""

    digest: str | None = None
    draws = True

    def __init__(self, workload: Texts, class_name: str, data: DataContext) -> None:
        self._workload = workload
        self._source = open_source(workload.source, class_name, data, AnswerLengths(planned=True))
        self.digest = self._source.digest

    def script(self, index: int, rng: Random, notes: Notes) -> Script:
        """Return the script of session `index`."""
        workload, parts = self._workload, list[tuple[Piece, ...]]()
        if workload.query_tokens is not None:
            parts.append((self._source.text(f"query/{index}", draw_count(workload.query_tokens, rng)),))
        count, first = draw_count(workload.texts_per_request, rng), rng.randrange(_FIRSTS)
        for number in range(count):
            tokens = draw_count(workload.text_tokens or ONE, rng)
            recorded = self._source.session(first + number, rng)
            of_source = None if recorded is None else recorded.turns[0].question
            parts.append(of_source or (self._source.text(f"text/{index}/{number}", tokens),))
        yield Ask(tuple(Message("user", pieces) for pieces in parts), None)

    def sample(self) -> Sequence[str]:
        """Return sample texts of the source."""
        return self._source.sample()

    def warnings(self) -> list[str]:
        """Return the warnings of the source."""
        return self._source.warnings()

    def facts(self) -> dict[str, Any]:
        """Return the source for the manifest."""
        return {"source": self._source.facts()}

    def in_words(self) -> list[str]:
        """Return the lines of the plan."""
        return self._source.in_words()
