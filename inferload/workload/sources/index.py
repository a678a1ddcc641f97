"""Where each session of a file lies and how long it is, so that any of them can be read without the others.

Built by going through the file once, and kept in a cache folder under the file's path, size and time of change.
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

from inferload.workload.sources.file_records import Raw
from inferload.workload.sources.parsing import Exchange, Skip, Talk

Ints = npt.NDArray[np.int64]

VERSION = 5  # of what is kept; another one is built anew


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
    """Sessions of a file. Lengths are characters, or tokens where a tokenizer counted them; -1: not known."""

    starts: Ints  # of each record, grouped by session
    sizes: Ints
    firsts: Ints  # session s has the records firsts[s] : firsts[s + 1]
    prompts: Ints  # of each session: its first message
    answers: Ints  # its first answer
    known: Ints  # turns until the first whose answer's length is neither recorded nor given
    totals: Ints  # all that is said in it
    asked: Ints  # of that, what is no answer
    turns: Ints
    texts: Ints  # of every text by itself, in order
    first_texts: Ints  # session s has the texts first_texts[s] : first_texts[s + 1]
    skipped: Mapping[str, int]  # records left out, by why
    skipped_at: Mapping[str, int]  # start of the first of them, by why
    dropped: Mapping[str, int]  # parts of the others that are not said, by kind

    def __len__(self) -> int:
        return len(self.prompts)

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of where everything is and how long."""
        whole = hashlib.sha256()
        for name in _ARRAYS:
            whole.update(getattr(self, name).astype("<i8").tobytes())
        return whole.hexdigest()

    def records(self, session: int) -> list[tuple[int, int]]:
        """(start, size) of a session's records, in order."""
        span = slice(self.firsts[session], self.firsts[session + 1])
        return list(zip(self.starts[span].tolist(), self.sizes[span].tolist(), strict=True))

    def lengths(self, session: int) -> list[int]:
        """Lengths of all that is said in a session, in order."""
        found: list[int] = self.texts[self.first_texts[session] : self.first_texts[session + 1]].tolist()
        return found


def build(records: Iterable[Raw], talk_of: Callable[[Raw], Talk | Skip], length: Callable[[str], int]) -> Index:
    """Go through all records. `length`: what a text counts as, characters or tokens."""
    skipped: Counter[str] = Counter()
    skipped_at: dict[str, int] = {}
    dropped: Counter[str] = Counter()
    grouped: dict[str | int, list[tuple[int, ...]]] = {}
    known: dict[str | int, list[bool]] = {}
    texts: dict[str | int, list[int]] = {}
    for number, record in enumerate(records):
        talk = talk_of(record)
        if isinstance(talk, str):
            skipped[talk] += 1
            skipped_at.setdefault(talk, record.start)
            continue
        dropped.update(talk.dropped)
        key: str | int = number if talk.session is None else talk.session
        lengths = [length(text) for text in talk.texts()]
        grouped.setdefault(key, []).append((record.start, record.size, *_summary(talk, lengths)))
        texts.setdefault(key, []).extend(lengths)
        known.setdefault(key, []).extend(_has_length(turn) for turn in talk.turns)
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
    """Where each session begins when they stand one after the other, and where the last one ends."""
    ends = np.cumsum(np.array([len(session) for session in sessions], np.int64))
    return np.concatenate((np.zeros(1, np.int64), ends))


def _has_length(turn: Exchange) -> bool:
    return turn.answer is not None or turn.output_tokens is not None


def _known(turns: list[bool]) -> int:
    """How many turns there are before the first without a length."""
    return next((place for place, known in enumerate(turns) if not known), len(turns))


def _summary(talk: Talk, lengths: list[int]) -> tuple[int, int, int, int, int]:
    """Of a talk: its first message, its first answer (-1: not known), all together, all but answers, and how many turns."""
    first = len(talk.lead)
    answer = -1 if talk.turns[0].answer is None else lengths[first + 1]
    place, asked = first, sum(lengths[:first])
    for turn in talk.turns:
        asked += lengths[place]
        place += 1 if turn.answer is None else 2
    return lengths[first], answer, sum(lengths), asked, len(talk.turns)


# -- kept between runs


_KEPT = 32  # indexes; the oldest go first


def cache_folder() -> Path:
    """Where indexes are kept: below XDG_CACHE_HOME, else ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "inferload" / "indexes"


def key_of(path: Path, *what: Any) -> str:
    """Under what the index of a file is kept: its path, size and time of change, and all else that shapes the index."""
    stat = path.stat()
    said = json.dumps([VERSION, str(path), stat.st_size, stat.st_mtime_ns, *what], default=str)
    return hashlib.sha256(said.encode()).hexdigest()[:32]


def kept(key: str) -> tuple[Index, str] | None:
    """The index of that key and its file's digest; None where none is kept that can be read."""
    try:
        with np.load(cache_folder() / f"{key}.npz", allow_pickle=False) as found:
            arrays = {name: found[name] for name in _ARRAYS}
            said = json.loads(str(found["said"]))
        sha256 = said.pop("sha256")
        return Index(**arrays, **said), sha256
    except (OSError, ValueError, KeyError, TypeError):
        return None


def keep(key: str, index: Index, sha256: str) -> None:
    """Keep an index; where the folder cannot be written it is built anew next time."""
    counts = {name: dict(getattr(index, name)) for name in ("skipped", "skipped_at", "dropped")}
    said = json.dumps({**counts, "sha256": sha256})
    with contextlib.suppress(OSError):
        folder = cache_folder()
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, suffix=".part", delete=False) as file:
            np.savez(file, said=np.array(said), **{name: getattr(index, name) for name in _ARRAYS})
        os.replace(file.name, folder / f"{key}.npz")
        for old in sorted(folder.glob("*.npz"), key=lambda path: -path.stat().st_mtime_ns)[_KEPT:]:
            old.unlink()
