"""Index of the sessions of a file: positions and lengths, for random access.

Built in one pass over the file, and cached on disk by the file's path, size and modification time.
"""

import contextlib
import hashlib
import json
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from inferload.base.user_cache import user_cache
from inferload.workload.sources.file_records import Raw
from inferload.workload.sources.parsing import Exchange, RecordedConversation, Skip

Ints = npt.NDArray[np.int64]

VERSION = 7  # of the cached format; an index of another version is rebuilt


_ARRAYS = (
    "starts",
    "sizes",
    "firsts",
    "prompts",
    "answers",
    "known",
    "totals",
    "asked",
    "turns",
    "texts",
    "first_texts",
)


@dataclass(frozen=True)
class Index:
    """Sessions of a file. Lengths are characters, or tokens if a tokenizer counted them. -1: unknown."""

    starts: Ints  # of each record, grouped by session
    sizes: Ints
    firsts: Ints  # session s has the records firsts[s] : firsts[s + 1]
    prompts: Ints  # length of each session's first message
    answers: Ints  # length of its first answer
    known: Ints  # turns before the first one without a known answer length
    totals: Ints  # length of all its texts
    asked: Ints  # length of its texts without answers
    turns: Ints
    texts: Ints  # length of every text, in order
    first_texts: Ints  # session s has the texts first_texts[s] : first_texts[s + 1]
    skipped: Mapping[str, int]  # records left out, by reason
    skipped_at: Mapping[str, int]  # start of the first of them, by reason
    dropped: Mapping[str, int]  # parts of other records that are not sent, by kind

    def __len__(self) -> int:
        return len(self.prompts)

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of all positions and lengths."""
        whole = hashlib.sha256()
        for name in _ARRAYS:
            whole.update(getattr(self, name).astype("<i8").tobytes())
        return whole.hexdigest()

    def records(self, session: int) -> list[tuple[int, int]]:
        """Return (start, size) of a session's records, in order."""
        span = slice(self.firsts[session], self.firsts[session + 1])
        return list(zip(self.starts[span].tolist(), self.sizes[span].tolist(), strict=True))

    def lengths(self, session: int) -> list[int]:
        """Return the lengths of all texts of a session, in order."""
        lengths: list[int] = self.texts[self.first_texts[session] : self.first_texts[session + 1]].tolist()
        return lengths


def build(
    records: Iterable[Raw], parse: Callable[[Raw], RecordedConversation | Skip], length: Callable[[str], int]
) -> Index:
    """Build the index of all records. `length`: characters or tokens of a text."""
    skipped: Counter[str] = Counter()
    skipped_at: dict[str, int] = {}
    dropped: Counter[str] = Counter()
    grouped: dict[str | int, list[tuple[int, ...]]] = {}
    known: dict[str | int, list[bool]] = {}
    texts: dict[str | int, list[int]] = {}
    for number, record in enumerate(records):
        conversation = parse(record)
        if isinstance(conversation, str):
            skipped[conversation] += 1
            skipped_at.setdefault(conversation, record.start)
            continue
        dropped.update(conversation.dropped)
        key: str | int = number if conversation.session is None else conversation.session
        lengths = [length(text) for text in conversation.texts()]
        grouped.setdefault(key, []).append((record.start, record.size, *_summary(conversation, lengths)))
        texts.setdefault(key, []).extend(lengths)
        known.setdefault(key, []).extend(_has_length(turn) for turn in conversation.turns)
    rows = [row for session in grouped.values() for row in session]
    table = np.array(rows, np.int64).reshape(len(rows), 7)
    firsts = _firsts(grouped.values())
    begin = firsts[:-1]

    def summed(column: int) -> Ints:
        return np.add.reduceat(table[:, column], begin) if len(begin) else np.zeros(0, np.int64)

    return Index(
        starts=table[:, 0].copy(),
        sizes=table[:, 1].copy(),
        firsts=firsts,
        prompts=table[begin, 2],
        answers=table[begin, 3],
        known=np.array([_known(session) for session in known.values()], np.int64),
        totals=summed(4),
        asked=summed(5),
        turns=summed(6),
        texts=np.array([length for session in texts.values() for length in session], np.int64),
        first_texts=_firsts(texts.values()),
        skipped=dict(sorted(skipped.items())),
        skipped_at=skipped_at,
        dropped=dict(sorted(dropped.items())),
    )


def _firsts(sessions: Iterable[Sized]) -> Ints:
    """Return the offsets of concatenated sessions, and the end of the last one."""
    ends = np.cumsum(np.array([len(session) for session in sessions], np.int64))
    return np.concatenate((np.zeros(1, np.int64), ends))


def _has_length(turn: Exchange) -> bool:
    return turn.answer is not None or turn.output_tokens is not None


def _known(turns: list[bool]) -> int:
    """Return the number of turns before the first one without a known length."""
    return next((number for number, known in enumerate(turns) if not known), len(turns))


def _summary(conversation: RecordedConversation, lengths: list[int]) -> tuple[int, int, int, int, int]:
    """Return lengths of first message, first answer (-1: unknown), all texts, all texts but answers; number of turns."""
    first = len(conversation.lead)
    answer = -1 if conversation.turns[0].answer is None else lengths[first + 1]
    position, asked = first, sum(lengths[:first])
    for turn in conversation.turns:
        asked += lengths[position]
        position += 1 if turn.answer is None else 2
    return lengths[first], answer, sum(lengths), asked, len(conversation.turns)


# -- cache on disk


_MAX_CACHED = 32  # indexes; the oldest are deleted


def cache_folder() -> Path:
    """Return the folder of cached indexes."""
    return user_cache() / "indexes"


def key_of(path: Path, *options: Any) -> str:
    """Return the cache key of an index: path, size and modification time of the file, and its options."""
    stat = path.stat()
    identity = json.dumps([VERSION, str(path), stat.st_size, stat.st_mtime_ns, *options], default=str)
    return hashlib.sha256(identity.encode()).hexdigest()[:32]


def cached(key: str) -> tuple[Index, str] | None:
    """Return the cached index and the digest of its file; None without a readable one."""
    try:
        with np.load(cache_folder() / f"{key}.npz", allow_pickle=False) as file:
            arrays = {name: file[name] for name in _ARRAYS}
            counts = json.loads(str(file["counts"]))
        sha256 = counts.pop("sha256")
        return Index(**arrays, **counts), sha256
    except (OSError, ValueError, KeyError, TypeError):
        return None


def cache(key: str, index: Index, sha256: str) -> None:
    """Write an index to the cache, if the folder is writable."""
    names = ("skipped", "skipped_at", "dropped")
    counts = json.dumps({name: dict(getattr(index, name)) for name in names} | {"sha256": sha256})
    with contextlib.suppress(OSError):
        folder = cache_folder()
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, suffix=".part", delete=False) as file:
            np.savez(file, counts=np.array(counts), **{name: getattr(index, name) for name in _ARRAYS})
        os.replace(file.name, folder / f"{key}.npz")
        for old in sorted(folder.glob("*.npz"), key=lambda path: -path.stat().st_mtime_ns)[_MAX_CACHED:]:
            old.unlink()
