"""Source of recorded conversations of a file or a data set: indexed once, filtered, then read one at a time."""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any, Protocol

import numpy as np

from inferload.base.errors import UsageError
from inferload.base.numbers import plural
from inferload.scenario.files import data_files
from inferload.scenario.schema.sources import Columns, Recorded
from inferload.workload.content.data import DataContext, same_as_master
from inferload.workload.content.messages import Message, Piece
from inferload.workload.content.prompts import Tokenize
from inferload.workload.content.token_estimate import SAMPLES, Counting, counting
from inferload.workload.grouped import Ints
from inferload.workload.popularity import zipf
from inferload.workload.sources.api import AnswerLengths, SourceSession, SourceTurn, literal
from inferload.workload.sources.file_records import Raw
from inferload.workload.sources.index import Index, build
from inferload.workload.sources.parsing import DocumentError, Exchange, RecordedConversation, Skip, parse

Length = Callable[[str], int]


class Reader(Protocol):
    """Records of a file or a data set: `FileReader`, `HubReader`."""

    @property
    def name(self) -> str: ...
    @property
    def digest(self) -> str: ...
    @property
    def columns(self) -> Columns: ...
    def records(self) -> Iterator[Raw]: ...
    def read(self, start: int, size: int) -> Any: ...
    def where(self, start: int) -> str: ...
    def index(self, options: Any, build: Callable[[], Index]) -> Index: ...
    def facts(self) -> dict[str, Any]: ...


class RecordedSource:
    """Sessions of a data set within its filters, in seeded order."""

    draws = alike = False

    def __init__(
        self, source: Recorded, reader: Reader, class_name: str, data: DataContext, answers: AnswerLengths
    ) -> None:
        self._source, self._reader = source, reader
        self._length, self._counting = _counting_of(source, data, class_name)
        self._index = reader.index(
            [source.sampler, source.tokenizer and self._counting.how, reader.columns.model_dump()],
            lambda: build(reader.records(), self._parse_record, self._length),
        )
        self.digest: str | None = reader.digest
        same_as_master(reader.name, self.digest, data.of(class_name))
        planned = answers.planned
        self._sessions, self._left_out = self._filtered(answers)
        if not len(self._sessions):
            raise UsageError(f"{self._first_location()}: no usable conversation: {self._reasons()}")
        missing = self._index.turns - self._index.known
        self._without_length = np.flatnonzero(missing) if not planned else np.zeros(0, np.int64)
        self._turns_lost = int(missing[self._without_length].sum())
        self._unknown = 0 if planned else int(missing[self._sessions].sum())
        self._order, self._seed = self._sessions, f"{data.seed}/{class_name}"
        if source.shuffle:
            self._order = self._sessions[_ranks(len(self._sessions), self._seed)]
        self._lengths_planned = planned

    # -- sessions

    def session(self, index: int, rng: Random) -> SourceSession | None:
        """Return the conversation of session `index`: drawn by its popularity, or one after another, then again."""
        at = index % len(self._order)
        if self._source.zipf is not None:
            at = zipf(len(self._order), self._source.zipf).draw(Random(f"{self._seed}/conversation/{index}"))
        return self._read(int(self._order[at]))

    def text(self, key: str, tokens: int) -> Piece:
        """Return generated text, for documents, system prompts and summaries."""
        return Piece(key, tokens)

    def _read(self, session: int) -> SourceSession:
        parsed = [self._parse(self._reader.read(start, size)) for start, size in self._index.records[session]]
        conversations = [conversation for conversation in parsed if isinstance(conversation, RecordedConversation)]
        texts = [text for conversation in conversations for text in conversation.texts()]
        # Lengths of the index: counting them again during the load could delay measured streams.
        pieces = map(self._piece, texts, (length for (length,) in self._index.texts[session]))
        leads, turns = [], []
        for conversation in conversations:
            leads.append(tuple(Message(role, (next(pieces),)) for role, _text in conversation.lead))
            turns += [self._turn(turn, pieces) for turn in conversation.turns]
        if not self._lengths_planned:
            unknown = next((number for number, turn in enumerate(turns) if turn.output_tokens is None), len(turns))
            turns = turns[:unknown]
        return SourceSession(tuple(turns), leads[0], conversations[0].tools)

    def _turn(self, turn: Exchange, pieces: Iterator[Piece]) -> SourceTurn:
        question = next(pieces)
        answer = None if turn.answer is None else next(pieces)
        recorded = None if answer is None else max(1, answer.tokens or 0)
        return SourceTurn((question,), turn.output_tokens or recorded, answer)

    def _piece(self, text: str, length: int) -> Piece:
        return literal(text, length if self._counting.how == "exact" else self._counting.tokens(length))

    # -- index and filters

    def _parse(self, document: Any) -> RecordedConversation | Skip:
        conversation = parse(document, self._source.sampler, self._reader.columns)
        if isinstance(conversation, str) or not self._source.skips_invalid:
            return conversation
        return "one side only" if all(turn.answer is None for turn in conversation.turns) else conversation

    def _parse_record(self, record: Raw) -> RecordedConversation | Skip:
        try:
            return self._parse(record.document)
        except DocumentError as error:
            if self._source.skips_invalid:
                return "not a conversation"
            raise UsageError(f"{self._reader.where(record.start)}: {error}") from None

    def _filtered(self, lengths: AnswerLengths) -> tuple[Ints, dict[str, int]]:
        """Return the sessions within the filters, and the number that each rule left out, in the order of the rules."""
        limits, index, planned = self._source.limits, self._index, lengths.planned
        prompts, answers, totals = (self._in_tokens(units) for units in (index.prompts, index.answers, index.totals))
        if lengths.mean is not None:  # planned answers instead of the recorded ones
            totals = self._in_tokens(index.asked) + np.rint(index.turns * lengths.mean).astype(np.int64)
        known = answers >= 0
        rules = {
            _NO_LENGTH: np.zeros(len(index), bool) if planned else index.known == 0,
            "min_prompt_tokens": prompts < (limits.min_prompt_tokens or 0),
            "min_output_tokens": np.zeros(len(index), bool)
            if planned
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

    def _first_location(self) -> str:
        """Return the location of the first record if all records were left out, else the name of the source."""
        if len(self._index) or not self._index.skipped:
            return self._reader.name
        return self._reader.where(next(iter(self._reader.records())).start)

    def _reasons(self) -> str:
        counts = {**self._index.skipped, **self._left_out}
        if not counts:
            return "it has no records"
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in counts.items())
        hint = "; set workload.output_tokens" if _NO_LENGTH in self._left_out else ""
        return reasons + hint

    # -- facts

    def sample(self) -> Sequence[str]:
        """Return texts of some sessions; empty if the counts need no measurement."""
        if self._counting.how in ("exact", "given"):
            return ()
        texts: list[str] = []
        for session in self._order[: 4 * SAMPLES].tolist():
            turns = self._read(session).turns
            pieces = [piece for turn in turns for piece in (*turn.question, turn.answer) if piece is not None]
            texts += [piece.literal for piece in pieces if piece.literal]
            if len(texts) >= 4 * SAMPLES:
                break
        return texts[:: max(1, len(texts) // SAMPLES)][:SAMPLES]

    def facts(self) -> dict[str, Any]:
        """Return the facts for the manifest."""
        return {
            "kind": self._source.kind,
            **self._reader.facts(),
            "sha256": self.digest,
            "sampler": self._source.sampler,
            "sessions": len(self._index),
            "used": len(self._sessions),
            "skipped": dict(self._index.skipped),
            "filtered": self._left_out,
            "dropped": dict(self._index.dropped),
            "turns": int(self._index.turns[self._sessions].sum()),
            "turns_without_length": self._unknown,
            "tokens": self._counting.facts(),
        }

    def warnings(self) -> list[str]:
        """Return one line per kind of record that is left out without a filter, with the location of the first one."""
        if self._source.skips_invalid:  # such records are common in public data sets
            return []
        lines = [
            f"{self._reader.where(self._index.skipped_at[reason])}: first of {plural(count, 'record')} left out: {reason}"
            for reason, count in self._index.skipped.items()
        ]
        if len(self._without_length):
            where, columns = self._reader.where(self._first_without_length()), self._reader.columns
            reason = f"no {columns.answer} and no {columns.output_tokens}; add one, or set workload.output_tokens"
            lines.append(f"{where}: first of {plural(self._turns_lost, 'turn')} left out: {reason}")
        return lines

    def _first_without_length(self) -> int:
        """Return the start of the record of the first turn without a length."""
        session = int(self._without_length[0])
        records = self._index.records[session]
        turn_a_record = len(records) == self._index.turns[session]
        return records[int(self._index.known[session]) if turn_a_record else 0][0]

    def in_words(self) -> list[str]:
        """Return the lines of the plan."""
        noun = {"conversation": "conversation", "first_two": "first message", "whole_prompt": "whole prompt"}
        sessions = len(self._sessions)
        lines = [f"{plural(sessions, noun[self._source.sampler])} from {self._reader.name}", *self.warnings()]
        counts = {**self._index.skipped, **self._left_out}
        if not self._source.skips_invalid:  # the warnings have the others
            counts = {reason: count for reason, count in self._left_out.items() if reason != _NO_LENGTH}
        if counts:
            lines.append("left out: " + ", ".join(f"{count:,} {reason}" for reason, count in counts.items()))
        if self._index.dropped:
            parts = ", ".join(f"{count:,} {kind}" for kind, count in self._index.dropped.items())
            lines.append(f"not sent: {parts}")
        if self._unknown and self._source.skips_invalid:
            lines.append(f"left out: {plural(self._unknown, 'turn')} after the last answer of known length")
        again = f"repeat from session {sessions + 1:,} on"
        if self._source.zipf is not None:
            again = f"are drawn: {zipf(sessions, self._source.zipf).in_words()}"
        return [*lines, f"conversations {again}, with cache hits", f"token counts {self._counting.in_words()}"]


_NO_LENGTH = "without a known answer length"


def _counting_of(source: Recorded, data: DataContext, class_name: str) -> tuple[Length, Counting]:
    """Return the length function of texts, in tokens or characters, and the method of counting."""
    if source.tokenizer is None:
        return len, counting(source.chars_per_token, data.of(class_name))
    name = source.tokenizer if source.tokenizer.endswith(".json") else f"{source.tokenizer}/tokenizer.json"
    tokenize = local_tokenizer(data_files.find(name, data.origin))
    return lambda text: len(tokenize(text)), Counting("exact")


@lru_cache(maxsize=4)
def _ranks(count: int, seed: str) -> Ints:
    """Return a seeded permutation of 0 .. count - 1: ranks of SplitMix64 values, the same on any machine and version."""
    x = np.arange(count, dtype=np.uint64) + np.uint64(Random(seed).getrandbits(63))
    x *= np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.argsort(x ^ (x >> np.uint64(31)), kind="stable")


def local_tokenizer(path: Path) -> Tokenize:
    """Load the `tokenizer.json` at a path (file or folder) as text -> token ids, without special tokens.

    UsageError if the file or the package `tokenizers` is missing, or the file is invalid.
    """
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise UsageError(f"tokenizer {path}: no tokenizer.json found; name the file or its folder")
    try:
        library = import_module("tokenizers")
    except ModuleNotFoundError as error:
        raise UsageError(f"tokenizer {path}: needs the package tokenizers; pip install tokenizers") from error
    try:
        tokenizer = library.Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare Exception
        raise UsageError(f"tokenizer {file}: {error}; is it a tokenizer.json of the library tokenizers?") from error

    def ids(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False).ids)

    return ids
