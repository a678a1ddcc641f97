"""Index of the sessions of a file: positions and lengths, for random access.

Built in one pass over the file, and cached on disk by the file's path, size and modification time.
"""

import contextlib
import hashlib
import json
import os
import tempfile
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct

from inferload.base.user_cache import user_cache
from inferload.workload.grouped import Grouped, Ints
from inferload.workload.sources.file_records import Raw
from inferload.workload.sources.parsing import RecordedConversation, Skip

VERSION = 10  # of the cached format; an index of another version is rebuilt

_GROUPED, _BY_SESSION = ("records", "texts"), ("prompts", "answers", "known", "totals", "asked", "turns")


class Index(Struct, frozen=True):
    """Sessions of a file. Lengths are characters, or tokens if a tokenizer counted them. -1: unknown."""

    records: Grouped  # start and size of each record of a session
    texts: Grouped  # length of each text of a session, in order
    prompts: Ints  # length of each session's first message
    answers: Ints  # length of its first answer
    known: Ints  # turns before the first one without a known answer length
    totals: Ints  # length of all its texts
    asked: Ints  # length of its texts without answers
    turns: Ints
    skipped: Mapping[str, int]  # records left out, by reason
    skipped_at: Mapping[str, int]  # start of the first of them, by reason
    dropped: Mapping[str, int]  # parts of other records that are not sent, by kind

    def __len__(self) -> int:
        return len(self.records)

    @property
    def arrays(self) -> dict[str, Any]:
        """All positions and lengths."""
        rows = {name: getattr(self, name).rows for name in _GROUPED}
        firsts = {f"{name}_firsts": getattr(self, name).firsts for name in _GROUPED}
        return rows | firsts | {name: getattr(self, name) for name in _BY_SESSION}

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of all positions and lengths."""
        return hashlib.sha256(b"".join(values.astype("<i8").tobytes() for values in self.arrays.values())).hexdigest()


def build(
    records: Iterable[Raw], parse: Callable[[Raw], RecordedConversation | Skip], length: Callable[[str], int]
) -> Index:
    """Build the index of all records. `length`: characters or tokens of a text."""
    skipped: Counter[str] = Counter()
    skipped_at: dict[str, int] = {}
    dropped: Counter[str] = Counter()
    rows: defaultdict[str | int, array[int]] = defaultdict(lambda: array("q"))
    texts: defaultdict[str | int, array[int]] = defaultdict(lambda: array("q"))
    known: defaultdict[str | int, list[bool]] = defaultdict(list)
    for number, record in enumerate(records):
        conversation = parse(record)
        if isinstance(conversation, str):
            skipped[conversation] += 1
            skipped_at.setdefault(conversation, record.start)
            continue
        dropped.update(conversation.dropped)
        key: str | int = number if conversation.session is None else conversation.session
        lengths = [length(text) for text in conversation.texts()]
        rows[key].extend((record.start, record.size, *_summary(conversation, lengths)))
        texts[key].extend(lengths)
        known[key].extend(turn.answer is not None or turn.output_tokens is not None for turn in conversation.turns)
    of_records, of_texts = Grouped.of(rows.values(), 6), Grouped.of(texts.values(), 1)
    return Index(
        records=Grouped(of_records.rows[:, :2], of_records.firsts),
        texts=of_texts,
        prompts=of_records.first(2),
        answers=of_records.first(3),
        totals=of_texts.sums(0),
        asked=of_records.sums(4),
        turns=of_records.sums(5),
        known=np.array([[*turns, False].index(False) for turns in known.values()], np.int64),
        skipped=dict(sorted(skipped.items())),
        skipped_at=skipped_at,
        dropped=dict(sorted(dropped.items())),
    )


def _summary(conversation: RecordedConversation, lengths: list[int]) -> tuple[int, int, int, int]:
    """Return lengths of first message, first answer (-1: unknown), and all texts but answers; number of turns."""
    first = len(conversation.lead)
    answer = -1 if conversation.turns[0].answer is None else lengths[first + 1]
    position, asked = first, sum(lengths[:first])
    for turn in conversation.turns:
        asked += lengths[position]
        position += 1 if turn.answer is None else 2
    return lengths[first], answer, asked, len(conversation.turns)


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
            grouped = (Grouped(file[name], file[f"{name}_firsts"]) for name in _GROUPED)
            arrays = [*grouped, *(file[name] for name in _BY_SESSION)]
            counts = json.loads(str(file["counts"]))
            sha256 = counts.pop("sha256")
            return Index(*arrays, **counts), sha256
    except (OSError, ValueError, KeyError, TypeError):
        return None


def cache(key: str, index: Index, sha256: str) -> None:
    """Write an index to the cache, if the folder is writable."""
    counts = {"skipped": index.skipped, "skipped_at": index.skipped_at, "dropped": index.dropped, "sha256": sha256}
    with contextlib.suppress(OSError):
        folder = cache_folder()
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, suffix=".part", delete=False) as file:
            np.savez(file, counts=np.array(json.dumps(counts)), **index.arrays)
        os.replace(file.name, folder / f"{key}.npz")
        for old in sorted(folder.glob("*.npz"), key=lambda path: -path.stat().st_mtime_ns)[_MAX_CACHED:]:
            old.unlink()
