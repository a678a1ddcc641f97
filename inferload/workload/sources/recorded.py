"""Conversations that were really had, read from a file or a data set: found once, filtered, then read one at a time."""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from random import Random
from typing import Any, Protocol

import numpy as np

from inferload.content.data import Data, same_as_master
from inferload.content.messages import Message, Piece
from inferload.content.token_estimate import SAMPLES, Counting, counting
from inferload.content.tokenizer import local_tokenizer
from inferload.errors import UsageError
from inferload.numbers import plural
from inferload.scenario.files import data_files
from inferload.scenario.schema.sources import Columns, Recorded
from inferload.workload.sources.api import Answers, Given, GivenTurn, literal
from inferload.workload.sources.file_records import Raw
from inferload.workload.sources.index import Index, Ints, build
from inferload.workload.sources.parsing import DocumentError, Exchange, Skip, Talk, talk_of

Length = Callable[[str], int]


class Reader(Protocol):
    """A file or a data set, by records."""

    @property
    def name(self) -> str:
        """What a person calls it."""
        ...

    @property
    def digest(self) -> str: ...
    @property
    def columns(self) -> Columns: ...
    def records(self) -> Iterator[Raw]: ...
    def read(self, start: int, size: int) -> Any:
        """The document of a record."""
        ...

    def where(self, start: int) -> str:
        """A record's place, for people."""
        ...

    def index(self, what: Any, build: Callable[[], Index]) -> Index:
        """The index of that sort: as it was kept, or built now."""
        ...

    def facts(self) -> dict[str, Any]: ...


class Conversations:
    """The sessions of a data set that its filters leave, in the order of the seed."""

    draws = False

    def __init__(self, source: Recorded, reader: Reader, class_name: str, data: Data, answers: Answers) -> None:
        self._source, self._reader = source, reader
        found = data.of(class_name)
        self._length, self._counting = _how_to_count(source, data, class_name)
        self._index = reader.index(
            [source.sampler, source.tokenizer and self._counting.how, reader.columns.model_dump()],
            lambda: build(reader.records(), self._talk_at, self._length),
        )
        self.digest: str | None = reader.digest
        same_as_master(reader.name, self.digest, found)
        lengths_given = answers.given
        self._kept, self._left_out = self._filtered(answers)
        if not len(self._kept):
            raise UsageError(f"{self._first_place()}: no conversation in it can be used: {self._why_none()}")
        missing = self._index.turns - self._index.known
        self._without_length = np.flatnonzero(missing) if not lengths_given else np.zeros(0, np.int64)
        self._turns_lost = int(missing[self._without_length].sum())
        self._unknown = 0 if lengths_given else int(missing[self._kept].sum())
        self._order = _shuffled(self._kept, f"{data.seed}/{class_name}") if source.shuffle else self._kept
        self._lengths_given = lengths_given

    # -- sessions

    def given(self, index: int, rng: Random) -> Given | None:
        """The conversation of session `index`; from the last one on they begin anew."""
        return self._read(int(self._order[index % len(self._order)]))

    def text(self, key: str, tokens: int) -> Piece:
        """Made-up words, for what the conversations do not bring: documents, a system prompt, a summary."""
        return Piece(key, tokens)

    def _read(self, session: int) -> Given:
        talks = [self._talk(self._reader.read(start, size)) for start, size in self._index.records(session)]
        known = [talk for talk in talks if isinstance(talk, Talk)]
        said = [text for talk in known for text in talk.texts()]
        # Lengths are the index's: to count them anew, beside the streams that are measured, could take too long.
        pieces = map(self._piece, said, self._index.lengths(session))
        leads, turns = [], []
        for talk in known:
            leads.append(tuple(Message(role, (next(pieces),)) for role, _text in talk.lead))
            turns += [self._turn(turn, pieces) for turn in talk.turns]
        if not self._lengths_given:
            unknown = next((place for place, turn in enumerate(turns) if turn.output_tokens is None), len(turns))
            turns = turns[:unknown]
        return Given(tuple(turns), leads[0], known[0].tools)

    def _turn(self, turn: Exchange, pieces: Iterator[Piece]) -> GivenTurn:
        question = next(pieces)
        answer = None if turn.answer is None else next(pieces)
        recorded = None if answer is None else max(1, answer.tokens or 0)
        return GivenTurn((question,), turn.output_tokens or recorded, answer)

    def _piece(self, text: str, length: int) -> Piece:
        return literal(text, length if self._counting.how == "exact" else self._counting.tokens(length))

    # -- what is in it

    def _talk(self, document: Any) -> Talk | Skip:
        talk = talk_of(document, self._source.sampler, self._reader.columns)
        one_sided = isinstance(talk, Talk) and all(turn.answer is None for turn in talk.turns)
        return "one side only" if one_sided and self._source.skips_invalid else talk

    def _talk_at(self, record: Raw) -> Talk | Skip:
        try:
            return self._talk(record.document)
        except DocumentError as error:
            if self._source.skips_invalid:
                return "not a conversation"
            raise UsageError(f"{self._reader.where(record.start)}: {error}") from None

    def _filtered(self, given: Answers) -> tuple[Ints, dict[str, int]]:
        """Sessions that stay, and how many each rule left out, in the order of the rules."""
        limits, index, lengths_given = self._source.limits, self._index, given.given
        prompts, answers, totals = (self._in_tokens(units) for units in (index.prompts, index.answers, index.totals))
        if given.tokens is not None:  # the answers that will be asked for, and not those that were recorded
            totals = self._in_tokens(index.asked) + np.rint(index.turns * given.tokens).astype(np.int64)
        known = answers >= 0
        rules = {
            _NO_LENGTH: np.zeros(len(index), bool) if lengths_given else index.known == 0,
            "min_prompt_tokens": prompts < (limits.min_prompt_tokens or 0),
            "min_output_tokens": np.zeros(len(index), bool)
            if lengths_given
            else known & (answers < (limits.min_output_tokens or 0)),
            "max_prompt_tokens": prompts > (limits.max_prompt_tokens or np.inf),
            "max_total_tokens": totals > (limits.max_total_tokens or np.inf),
        }
        left = np.ones(len(index), bool)
        counts = {}
        for name, out in rules.items():
            if (count := int(np.sum(left & out))) > 0:
                counts[name] = count
            left &= ~out
        return np.flatnonzero(left), counts

    def _in_tokens(self, units: Ints) -> Ints:
        if self._counting.how == "exact":
            return units
        tokens = np.maximum(1, np.rint(units / self._counting.chars_per_token)).astype(np.int64)
        return np.where(units < 0, -1, np.where(units == 0, 0, tokens))

    def _first_place(self) -> str:
        """Where the first of several records stands of which none is a conversation; else the name of the whole."""
        if len(self._index) or not self._index.skipped:
            return self._reader.name
        return self._reader.where(next(iter(self._reader.records())).start)

    def _why_none(self) -> str:
        counts = {**self._index.skipped, **self._left_out}
        if not counts:
            return "it holds none"
        said = ", ".join(f"{count:,} {why}" for why, count in counts.items())
        hint = "; say workload.output_tokens" if _NO_LENGTH in self._left_out else ""
        return said + hint

    # -- what is said of it

    def sample(self) -> Sequence[str]:
        """Texts of some sessions, where counts are to be measured."""
        if self._counting.how in ("exact", "given"):
            return ()
        texts: list[str] = []
        for session in self._order[: 4 * SAMPLES].tolist():
            given = self._read(session)
            pieces = [piece for turn in given.turns for piece in (*turn.question, turn.answer) if piece is not None]
            texts += [piece.literal for piece in pieces if piece.literal]
            if len(texts) >= 4 * SAMPLES:
                break
        return texts[:: max(1, len(texts) // SAMPLES)][:SAMPLES]

    def facts(self) -> dict[str, Any]:
        """For the manifest."""
        counts = self._counting
        return {
            "kind": getattr(self._source, "kind", ""),
            **self._reader.facts(),
            "sha256": self.digest,
            "sampler": self._source.sampler,
            "sessions": len(self._index),
            "used": len(self._kept),
            "skipped": dict(self._index.skipped),
            "filtered": self._left_out,
            "dropped": dict(self._index.dropped),
            "turns": int(self._index.turns[self._kept].sum()),
            "turns_without_length": self._unknown,
            "tokens": {"how": counts.how, "chars_per_token": _unless_exact(counts), "error": counts.error},
        }

    def warnings(self) -> list[str]:
        """What of one's own file is not sent though no filter says so, each with its first place."""
        if self._source.skips_invalid:  # public data sets hold such conversations, and everybody leaves them out
            return []
        lines = [
            f"{self._reader.where(self._index.skipped_at[why])}: first of {plural(count, 'record')} left out: {why}"
            for why, count in self._index.skipped.items()
        ]
        if len(self._without_length):
            where, columns = self._reader.where(self._first_without_length()), self._reader.columns
            why = f"no {columns.answer} and no {columns.output_tokens}; add one, or set workload.output_tokens"
            lines.append(f"{where}: first of {plural(self._turns_lost, 'turn')} left out: {why}")
        return lines

    def _first_without_length(self) -> int:
        """Start of the record that holds the first turn without a length."""
        session = int(self._without_length[0])
        records = self._index.records(session)
        turn_a_record = len(records) == self._index.turns[session]
        return records[self._index.known[session] if turn_a_record else 0][0]

    def in_words(self) -> list[str]:
        """For the plan."""
        whole = {"conversation": "conversations", "first_two": "first messages", "whole_prompt": "whole prompts"}
        what = whole[self._source.sampler] if len(self._kept) > 1 else whole[self._source.sampler].removesuffix("s")
        lines = [f"{len(self._kept):,} {what} from {self._reader.name}", *self.warnings()]
        counts = {**self._index.skipped, **self._left_out}
        if not self._source.skips_invalid:  # warned of
            counts = {why: count for why, count in self._left_out.items() if why != _NO_LENGTH}
        if counts:
            lines.append("left out: " + ", ".join(f"{count:,} {why}" for why, count in counts.items()))
        if self._index.dropped:
            parts = ", ".join(f"{count:,} {what}" for what, count in self._index.dropped.items())
            lines.append(f"not sent of its conversations: {parts}")
        if self._unknown and self._source.skips_invalid:
            lines.append(f"left out: {self._unknown:,} of their turns, behind the last with an answer of known length")
        lines.append(f"from session {len(self._kept) + 1:,} on they come again, and may then be cached")
        return [*lines, f"tokens of its texts are {self._counting.in_words()}"]


_NO_LENGTH = "length of the answer not known"


def _unless_exact(counts: Counting) -> float | None:
    return None if counts.how == "exact" else round(counts.chars_per_token, 4)


def _how_to_count(source: Recorded, data: Data, class_name: str) -> tuple[Length, Counting]:
    """What a text's length is, in tokens or characters, and how tokens follow from it."""
    if source.tokenizer is None:
        return len, counting(source.chars_per_token, data.of(class_name))
    name = source.tokenizer if source.tokenizer.endswith(".json") else f"{source.tokenizer}/tokenizer.json"
    tokenize = local_tokenizer(data_files.find(name, data.origin))
    return lambda text: len(tokenize(text)), Counting("exact")


@lru_cache(maxsize=4)
def _ranks(count: int, seed: str) -> Ints:
    """A permutation of 0 .. count - 1 by the seed, the same on any machine and version: ranks of SplitMix64 values."""
    x = np.arange(count, dtype=np.uint64) + np.uint64(Random(seed).getrandbits(63))
    x *= np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.argsort(x ^ (x >> np.uint64(31)), kind="stable")


def _shuffled(sessions: Ints, seed: str) -> Ints:
    return sessions[_ranks(len(sessions), seed)]
