"""Text with a known number of tokens: random words whose token costs do not depend on their neighbours.

The master calibrates a vocabulary once and sends it to every worker, so that equal words and seeds give equal text on all
machines. The texts of two sessions differ within their first few words.
"""

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from hashlib import shake_128
from random import Random
from typing import Any, Literal

from inferload.workload.content.word_table import MAX_COST, PASSAGE, TAIL, WordTable
from inferload.workload.content.words import WORDS

Tokenize = Callable[[str], list[int]]

# English on the tokenizers of current models: an assumption, stated wherever it is used.
TOKENS_PER_WORD = 1.3
# Tokens of a timestamp such as 2026-01-15 09:30:00 after and before a text, where no tokenizer counted it: one for each character,
# as Qwen's, and the blank after a text.
TIME_TOKENS = (20, 19)

_FIRSTS_CACHED = 4_096  # lengths for which the possible first words are cached


class KeyedRandom(Random):
    """Random numbers of a key, by SHAKE-128 (FIPS 202): the same on any machine, and a tenth of the start of Python's generator."""

    _FIRST_BYTES = 168  # of one permutation

    def __init__(self, key: str) -> None:
        self._source = shake_128(key.encode())
        self._bytes = self._source.digest(self._FIRST_BYTES)
        self._at = 0
        self.gauss_next = None

    def randbytes(self, n: int) -> bytes:
        """Return the next `n` bytes."""
        start, self._at = self._at, self._at + n
        if self._at > len(self._bytes):
            self._bytes = self._source.digest(2 * self._at)
        return self._bytes[start : self._at]

    def getrandbits(self, k: int, /) -> int:
        """Return the next `k` bits."""
        n = (k + 7) // 8
        return int.from_bytes(self.randbytes(n), "little") >> (8 * n - k)

    def random(self) -> float:
        """Return the next number in [0, 1), a multiple of 2**-53."""
        return self.getrandbits(53) * 2.0**-53


@dataclass(slots=True)
class Vocabulary:
    """Words and their costs in tokens.

    `words` follow a blank, `firsts` begin a text. `costs`, `first_costs`: tokens of each word; None: unknown, and
    `tokens_per_word` gives the number of words of a text. `joint`: separator of two texts that keeps the sum of their costs.
    `error`: largest relative error on the samples of the calibration; None: not calibrated.
    `time_tokens`: by timestamp, as TIME_TOKENS.
    """

    words: tuple[str, ...]
    costs: tuple[int, ...] | None = None
    firsts: tuple[str, ...] = ()
    first_costs: tuple[int, ...] = ()
    tokens_per_word: float = TOKENS_PER_WORD
    exactness: Literal["exact", "approximate"] = "approximate"
    error: float | None = None
    joint: str = " "
    time_tokens: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    _table: WordTable = field(init=False, repr=False, compare=False)
    _firsts_of: dict[int, tuple[int, list[int]]] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._table = WordTable(self.words, self.costs)

    @property
    def exact_from(self) -> int | None:
        """Smallest token count from which every count is possible. None: counts are approximate."""
        if self.costs is None or self._table.step > 1:
            return None
        costs, possible = set(self.first_costs), self._table.reachable
        gaps = [count for count in range(1, TAIL) if not any(possible(count - cost) for cost in costs)]
        return gaps[-1] + 1 if gaps else 1

    def text(self, n_tokens: int, rng: Random) -> str:
        """Return a text of `n_tokens` tokens, or of the next greater possible count, with at least one word."""
        if self.costs is None:
            return " ".join(self._table.draw(max(1, round(n_tokens / self.tokens_per_word)), rng)[0])
        count, starts = self._possible_starts(n_tokens)
        first = rng.choice(starts)
        words, left = [self.firsts[first]], count - self.first_costs[first]
        tail = 0 if self._table.single_token else TAIL
        while left > tail:
            drawn, cost = self._table.draw(max(1, (left - tail) // self._table.max_cost), rng)
            words += drawn
            left -= cost
        if left > 0:
            words += self._table.fill(left, rng)
        return " ".join(words)

    def beginning(self, text: str, n_tokens: int) -> str:
        """Return the first `n_tokens` tokens of a generated text: its words as far as they fit, then filling words.

        The first word is always included. An impossible count becomes the next greater possible one, as in `text`.
        """
        words = text.split(" ")
        if self.costs is None:
            return " ".join(words[: max(1, round(n_tokens / self.tokens_per_word))])
        if self._table.single_token and set(self.first_costs) == {1}:
            return " ".join(words[: max(1, n_tokens)])
        cost_of = dict(zip(self.words, self.costs, strict=True))
        left = n_tokens - dict(zip(self.firsts, self.first_costs, strict=True))[words[0]]
        while not self._table.reachable(left):
            left += 1
        result = words[:1]
        for word in words[1:]:
            if not self._table.reachable(left - cost_of[word]):
                break
            result.append(word)
            left -= cost_of[word]
        return " ".join([*result, *self._table.fill(left, Random(text[:PASSAGE]))])

    def _starts(self, tokens: int) -> list[int]:
        """Return the indexes of the first words after which the rest of the count is reachable."""
        return [number for number, cost in enumerate(self.first_costs) if self._table.reachable(tokens - cost)]

    def _possible_starts(self, n_tokens: int) -> tuple[int, list[int]]:
        """Return the count, or the next greater possible one, with the indexes of its first words."""
        result = self._firsts_of.get(n_tokens)
        if result is None:
            counts = range(max(1, n_tokens), n_tokens + TAIL)
            result = next((count, starts) for count in counts if (starts := self._starts(count)))
            if len(self._firsts_of) < _FIRSTS_CACHED:
                self._firsts_of[n_tokens] = result
        return result

    def to_wire(self) -> dict[str, Any]:
        """Return plain data for a message between processes."""
        values = {item.name: getattr(self, item.name) for item in fields(self) if item.init}
        return values | {"words": " ".join(self.words), "firsts": " ".join(self.firsts)}

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> "Vocabulary":
        """Return the vocabulary that `to_wire` wrote; a message has made lists of its tuples."""
        tuples = {
            "words": tuple(wire["words"].split()),
            "costs": None if wire["costs"] is None else tuple(wire["costs"]),
            "firsts": tuple(wire["firsts"].split()),
            "first_costs": tuple(wire["first_costs"]),
            "time_tokens": {time: tuple(tokens) for time, tokens in wire["time_tokens"].items()},
        }
        return cls(**{**wire, **tuples})


@functools.cache
def approximate(tokens_per_word: float = TOKENS_PER_WORD) -> Vocabulary:
    """Return the bundled words without a tokenizer, with a mean number of tokens per word."""
    return Vocabulary(WORDS, tokens_per_word=tokens_per_word)


# --- calibration ---------------------------------------------------------------------------------------------------

_SEPARATOR = "zqx"  # not part of any word of the list, so its tokens delimit words
_HEAD = "Apple"
_CHUNK = 100
_FIRSTS = 24
_FEWEST_FIRSTS = 4  # with fewer first words, texts would share prefixes
_JOINED, _JOINED_TOKENS = 64, 4
_SAMPLES = (1, 2, 3, 5, 17, 64, 200, 512)


def calibrate(tokenize: Tokenize, times: Sequence[str] = ()) -> Vocabulary:
    """Measure the cost of each word, and of timestamps, with fewer than 60 calls of `tokenize` (text -> token ids).

    The result is verified on samples.

    The cost of a word is the number of ids between two separators. Without meaningful ids (a server that only counts), words
    whose text has as many tokens as words cost one token each. Special tokens that the tokenizer adds are not counted. The
    result has the exactness and error of its counts.
    """
    plain = _without_specials(tokenize)
    costs = _costs(plain)
    known = [word for word in WORDS if 1 <= costs.get(word, 0) <= MAX_COST]
    single = [word for word in known if costs[word] == 1]
    if len(single) >= 256:  # enough for texts to differ, and every count is possible
        known = single
    if not known:
        return _approximation(plain, times)
    firsts = _firsts(plain, known[:: max(1, len(known) // _FIRSTS)][:_FIRSTS])
    for chosen, joint in _joints(firsts, costs, known):
        exact = Vocabulary(
            words=tuple(known),
            costs=tuple(costs[word] for word in known),
            firsts=tuple(chosen),
            first_costs=tuple(firsts[word] for word in chosen),
            tokens_per_word=sum(costs[word] for word in known) / len(known),
            exactness="exact",
            error=0.0,
            joint=joint,
            time_tokens=_time_tokens(plain, times, chosen[0], joint or " "),
        )
        too_coarse = exact.exact_from is None or exact.exact_from > TAIL // 2
        if not too_coarse and _verified(exact, plain) and (chosen == [*firsts] or _joins(exact, plain)):
            return exact
    return _approximation(plain, times)


def _joints(
    firsts: Mapping[str, int], costs: Mapping[str, int], known: Sequence[str]
) -> Iterator[tuple[list[str], str]]:
    """Yield candidates of first words and the separator of two texts, the simplest first, all first words last.

    A word may cost more at the start of a text than after a blank: a separator word of that extra cost compensates for it.
    """
    by_extra: dict[int, list[str]] = {}
    for word, cost in firsts.items():
        by_extra.setdefault(cost - costs[word], []).append(word)
    for extra, words in sorted(by_extra.items(), key=lambda item: (item[0] != 0, -len(item[1]))):
        filler = next((word for word in known if costs[word] == extra), None)
        if len(words) >= _FEWEST_FIRSTS and (extra == 0 or filler is not None):
            yield words, f" {filler} " if extra else " "
        elif len(words) >= _FEWEST_FIRSTS and extra < 0:
            yield words, ""
    yield [*firsts], " "


def _verified(vocabulary: Vocabulary, tokenize: Tokenize) -> bool:
    rng = Random("calibration")
    sizes = [size for size in _SAMPLES if size >= (vocabulary.exact_from or 1)]
    return all(len(tokenize(vocabulary.text(size, rng))) == size for size in sizes)


def _joins(vocabulary: Vocabulary, tokenize: Tokenize) -> bool:
    """Return whether the cost of many joined texts is the sum of their costs."""
    rng, size = Random("joints"), max(_JOINED_TOKENS, vocabulary.exact_from or 1)
    texts = [vocabulary.text(size, rng) for _ in range(_JOINED)]
    return len(tokenize(vocabulary.joint.join(texts))) == size * _JOINED


def _approximation(tokenize: Tokenize, times: Sequence[str]) -> Vocabulary:
    """Return words of unknown cost, with mean and largest error measured on samples."""
    rng = Random("calibration")
    words = Vocabulary(WORDS, tokens_per_word=1.0)
    counts = {size: len(tokenize(words.text(size, rng))) for size in (20, 50, 100, 200)}
    per_word = max(sum(counts.values()) / sum(counts), 1e-3)
    error = max(abs(count / (size * per_word) - 1) for size, count in counts.items())
    return Vocabulary(WORDS, tokens_per_word=per_word, error=error, time_tokens=_time_tokens(tokenize, times))


def _time_tokens(
    tokenize: Tokenize, times: Sequence[str], text: str = _HEAD, joint: str = " "
) -> dict[str, tuple[int, int]]:
    """Return the tokens of each timestamp after and before a text, with what separates them.

    The first one is counted by itself; the others differ from it as they do between separators.
    """
    if not times:
        return {}
    marks, alone = _separator_ids(tokenize), len(tokenize(text))
    first = len(tokenize(f"{text} {times[0]}")) - alone, len(tokenize(f"{times[0]}{joint}{text}")) - alone
    found = dict.fromkeys(times, first)
    for start in range(0, len(times), _CHUNK):
        chunk = (times[0], *times[start : start + _CHUNK])
        after, before = (_between(tokenize, marks, lead, chunk) for lead in (" ", "\n"))
        if after and before:
            counts = zip(chunk, after, before, strict=True)
            found |= {time: (first[0] + a - after[0], first[1] + b - before[0]) for time, a, b in counts}
    return found


def _without_specials(tokenize: Tokenize) -> Tokenize:
    """Return the tokenizer without its special tokens: the ids that two different words share at both ends."""
    first, second = tokenize("apple"), tokenize("music")
    if first == second:  # meaningless ids
        return tokenize
    before = shared_length(first, second)
    after = shared_length(first[before:][::-1], second[before:][::-1])
    return lambda text: tokenize(text)[before : -after or None]


def shared_length(first: Sequence[object], second: Sequence[object]) -> int:
    """Return the length of the common prefix."""
    low, high = 0, min(len(first), len(second))
    while low < high:  # by halves: comparing slices is faster than comparing elements
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _costs(tokenize: Tokenize) -> dict[str, int]:
    """Return the tokens of each word after a blank, for words whose tokens do not merge with their neighbours'."""
    marks = _separator_ids(tokenize)
    costs: dict[str, int] = {}
    for start in range(0, len(WORDS), _CHUNK):
        chunk = WORDS[start : start + _CHUNK]
        if marks[1] is None:
            if len(tokenize(" ".join(chunk))) == len(chunk):
                costs |= dict.fromkeys(chunk, 1)
            continue
        costs |= dict(zip(chunk, _between(tokenize, marks, " ", chunk), strict=False))
    return costs


def _firsts(tokenize: Tokenize, words: Sequence[str]) -> dict[str, int]:
    """Return the tokens of each word at the start of a text, for words that cost the same after a newline.

    Chat templates put a newline before a message.
    """
    costs = {word: len(tokenize(word)) for word in words}
    counts = _between(tokenize, _separator_ids(tokenize), "\n", words)
    if not counts:
        return costs
    # The cost of the newline itself is the most common difference.
    extra = {word: count - costs[word] for word, count in zip(words, counts, strict=True)}
    newline = Counter(extra.values()).most_common(1)[0][0]
    return {word: cost for word, cost in costs.items() if extra[word] == newline}


_Marks = tuple[list[int], list[int] | None]


def _between(tokenize: Tokenize, marks: _Marks, lead: str, texts: Sequence[str]) -> list[int]:
    """Return the number of tokens of each text with its lead; empty if the separators between them merge with a text."""
    head, separator = marks
    if separator is None:
        return []
    ids = tokenize(_HEAD + "".join(f"{lead}{text} {_SEPARATOR}" for text in texts))
    parts = _split(ids[len(head) :], separator)
    return [len(part) for part in parts[:-1]] if len(parts) == len(texts) + 1 and ids[: len(head)] == head else []


def _separator_ids(tokenize: Tokenize) -> _Marks:
    """Return the ids of the head and of the separator after a blank; None if equal text gives different ids."""
    once = tokenize(f"{_HEAD} {_SEPARATOR}")
    twice = tokenize(f"{_HEAD} {_SEPARATOR} {_SEPARATOR}")
    separator = twice[len(once) :]
    head = once[: len(once) - len(separator)]
    if not separator or head + separator + separator != twice:
        return [], None
    return head, separator


def _split(ids: Sequence[int], separator: Sequence[int]) -> list[list[int]]:
    """Return the ids between occurrences of the separator."""
    parts: list[list[int]] = [[]]
    position, width = 0, len(separator)
    while position < len(ids):
        if list(ids[position : position + width]) == list(separator):
            parts.append([])
            position += width
        else:
            parts[-1].append(ids[position])
            position += 1
    return parts
