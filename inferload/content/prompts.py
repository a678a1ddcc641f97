"""Text with a known number of tokens: words whose cost is known wherever they stand, drawn at random.

A vocabulary is calibrated once, on the master, and shipped to every worker; the same words and seeds then give the same
text everywhere. A session's text differs from any other's within its first few words.
"""

import functools
import math
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal

import numpy as np

from inferload.content.words import WORDS

Tokenize = Callable[[str], list[int]]
_Words = np.ndarray[Any, np.dtype[np.object_]]
_Picks = np.ndarray[Any, np.dtype[np.uint16]]
_Costs = np.ndarray[Any, np.dtype[np.int64]]

# English on the tokenizers of today's models: a guess that is stated wherever it is used.
TOKENS_PER_WORD = 1.3

_MAX_COST = 16  # a word that falls into more tokens than this is left out
_TAIL = 256  # the last tokens are chosen word by word; beyond any gap that costs up to 16 can leave
_TABLE = 1 << 16  # one 16-bit random number names one word
_PASSAGE = 64  # words of a ready-made passage; a long text begins with single words and goes on in passages
_PASSAGES = _TABLE // _PASSAGE
_LONG = 1024  # so many words at once are taken as passages: half a megabyte of single words would hold up every stream
_LOOKED_UP = 64  # from so many words on it is cheaper to look them up in an array than one by one
_PLACES_KEPT = 4_096  # lengths for which the first words that they allow are remembered
_STRIDE = 40_503  # odd, so that its multiples visit all of a table whose size is a power of two


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Words and what they cost in tokens.

    `words` follow a blank, `firsts` begin a text. `costs`, `first_costs`: tokens of each; None: not known, then a text
    has as many words as `tokens_per_word` says. `joint`: what stands between two texts, so that both together cost what
    they cost one by one. `error`: largest relative error on the samples of the calibration; None:
    never checked. `exact_from`: the smallest count from which every count can be made.
    """

    words: tuple[str, ...]
    costs: tuple[int, ...] | None = None
    firsts: tuple[str, ...] = ()
    first_costs: tuple[int, ...] = ()
    tokens_per_word: float = TOKENS_PER_WORD
    exactness: Literal["exact", "approximate"] = "approximate"
    error: float | None = None
    joint: str = " "
    _reach: tuple[bool, ...] = field(init=False, repr=False, compare=False)
    _table: tuple[str, ...] = field(init=False, repr=False, compare=False)
    _array: _Words = field(init=False, repr=False, compare=False)
    _cost_array: _Costs = field(init=False, repr=False, compare=False)
    _passages: tuple[str, ...] = field(init=False, repr=False, compare=False)
    _passage_costs: tuple[int, ...] = field(init=False, repr=False, compare=False)
    _by_cost: Mapping[int, tuple[str, ...]] = field(init=False, repr=False, compare=False)
    _step: int = field(init=False, repr=False, compare=False)
    _dearest: int = field(init=False, repr=False, compare=False)
    _each: int | None = field(init=False, repr=False, compare=False)  # tokens of each; 0: unknown, None: they differ
    _begun: dict[int, tuple[int, list[int]]] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        size = len(self.words)
        costs = self.costs or ()
        object.__setattr__(self, "_step", math.gcd(*costs))
        object.__setattr__(self, "_dearest", max(costs, default=0))
        object.__setattr__(self, "_each", 0 if not costs else 1 if set(costs) == {1} else None)
        object.__setattr__(self, "_reach", _sums_of(set(costs), _TAIL + _MAX_COST))
        by_cost: dict[int, tuple[str, ...]] = {}
        for word, cost in zip(self.words, costs, strict=False):
            by_cost[cost] = (*by_cost.get(cost, ()), word)
        object.__setattr__(self, "_by_cost", by_cost)
        object.__setattr__(self, "_table", tuple(self.words[i % size] for i in range(_TABLE)))
        object.__setattr__(self, "_array", np.array(self.words, dtype=object))
        object.__setattr__(self, "_cost_array", np.array(costs, dtype=np.int64))
        places = [[(i * _PASSAGE + j) * _STRIDE % _TABLE for j in range(_PASSAGE)] for i in range(_PASSAGES)]
        passages = tuple(" ".join(map(self._table.__getitem__, place)) for place in places)
        object.__setattr__(self, "_passages", passages)
        spent = tuple(self._spent(np.array(place, dtype=np.uint16)) for place in places) if costs else ()
        object.__setattr__(self, "_passage_costs", spent)

    @property
    def exact_from(self) -> int | None:
        """The smallest token count from which every count can be made exactly; None: counts are approximate."""
        if self.costs is None or self._step > 1:
            return None
        gaps = [n for n in range(1, _TAIL) if not self._starts(n)]
        return gaps[-1] + 1 if gaps else 1

    def text(self, n_tokens: int, rng: Random) -> str:
        """A text of so many tokens, at least one word. Below `exact_from` the next greater count that can be made."""
        if self.costs is None:
            return " ".join(self._bulk(max(1, round(n_tokens / self.tokens_per_word)), rng)[0])
        wanted, places = self._beginnings(n_tokens)
        place = rng.choice(places)
        words, left = [self.firsts[place]], wanted - self.first_costs[place]
        dearest = self._dearest
        tail = 0 if self._each == 1 else _TAIL
        while left > tail:
            some, spent = self._bulk(max(1, (left - tail) // dearest), rng)
            words += some
            left -= spent
        if left > 0:
            words += self._filled(left, rng)
        return " ".join(words)

    def beginning(self, text: str, n_tokens: int) -> str:
        """The first tokens of a text that was made here: its words as far as they fit, then others that fill the rest.

        Its first word is there whatever it costs; as in `text`, of a count that cannot be made there is the next greater one.
        """
        words = text.split(" ")
        if self.costs is None:
            return " ".join(words[: max(1, round(n_tokens / self.tokens_per_word))])
        if self.costs == (1,) * len(self.costs) and set(self.first_costs) == {1}:
            return " ".join(words[: max(1, n_tokens)])
        cost_of = dict(zip(self.words, self.costs, strict=True))
        left = n_tokens - dict(zip(self.firsts, self.first_costs, strict=True))[words[0]]
        while not self._can(left):
            left += 1
        kept = words[:1]
        for word in words[1:]:
            if not self._can(left - cost_of[word]):
                break
            kept.append(word)
            left -= cost_of[word]
        return " ".join([*kept, *self._filled(left, Random(text[:_PASSAGE]))])

    def _filled(self, left: int, rng: Random) -> list[str]:
        """Words that follow others, drawn one by one, of just so many tokens."""
        words = []
        while left > 0:
            fits = [cost for cost in self._by_cost if self._can(left - cost)]
            cost = rng.choices(fits, [len(self._by_cost[cost]) for cost in fits])[0]
            words.append(rng.choice(self._by_cost[cost]))
            left -= cost
        return words

    def _bulk(self, count: int, rng: Random) -> tuple[list[str], int]:
        """So many words at random and what they cost (0 where costs are unknown); of many words most come in passages."""
        if count >= _LONG:
            words, cost = self._bulk(_PASSAGE + count % _PASSAGE, rng)  # no two texts begin alike
            picks = np.frombuffer(rng.randbytes(2 * (count // _PASSAGE - 1)), "<u2") % _PASSAGES
            words += map(self._passages.__getitem__, picks.tolist())
            return words, cost + (
                sum(map(self._passage_costs.__getitem__, picks.tolist())) if self._passage_costs else 0
            )
        drawn = rng.randbytes(2 * count)  # little-endian: the same words on any machine
        if count < _LOOKED_UP and self._each is not None:
            table = self._table
            return [table[pick] for pick in struct.unpack(f"<{count}H", drawn)], count * self._each
        picks = np.frombuffer(drawn, "<u2")
        return self._array[picks % len(self.words)].tolist(), self._spent(picks)

    def _spent(self, picks: _Picks) -> int:
        """What these words of the table cost together; 0 where costs are unknown."""
        if self._each is not None:
            return len(picks) * self._each
        return int(self._cost_array[picks % len(self.words)].sum())

    def _can(self, tokens: int) -> bool:
        """Whether some words after the first add up to this count."""
        if tokens < len(self._reach):
            return tokens >= 0 and self._reach[tokens]
        return tokens % self._step == 0

    def _starts(self, tokens: int) -> list[int]:
        """The first words after which the rest of the count can be made."""
        return [i for i, cost in enumerate(self.first_costs) if self._can(tokens - cost)]

    def _beginnings(self, n_tokens: int) -> tuple[int, list[int]]:
        """The count itself, or the next greater one that can be made, with the first words for it."""
        found = self._begun.get(n_tokens)
        if found is None:
            counts = range(max(1, n_tokens), n_tokens + _TAIL)
            found = next((count, starts) for count in counts if (starts := self._starts(count)))
            if len(self._begun) < _PLACES_KEPT:
                self._begun[n_tokens] = found
        return found

    def to_wire(self) -> dict[str, Any]:
        """Plain lists, numbers and text, for a message between processes."""
        return {
            "words": " ".join(self.words),
            "costs": None if self.costs is None else list(self.costs),
            "firsts": " ".join(self.firsts),
            "first_costs": list(self.first_costs),
            "tokens_per_word": self.tokens_per_word,
            "exactness": self.exactness,
            "error": self.error,
            "joint": self.joint,
        }

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> "Vocabulary":
        """The vocabulary that `to_wire` wrote."""
        return cls(
            words=tuple(wire["words"].split()),
            costs=None if wire["costs"] is None else tuple(wire["costs"]),
            firsts=tuple(wire["firsts"].split()),
            first_costs=tuple(wire["first_costs"]),
            tokens_per_word=wire["tokens_per_word"],
            exactness=wire["exactness"],
            error=wire["error"],
            joint=wire["joint"],
        )


@functools.cache
def approximate(tokens_per_word: float = TOKENS_PER_WORD) -> Vocabulary:
    """The bundled words without a tokenizer: so many tokens a word, on average."""
    return Vocabulary(WORDS, tokens_per_word=tokens_per_word)


def _sums_of(costs: set[int], up_to: int) -> tuple[bool, ...]:
    """For 0 .. up_to: whether it is a sum of the costs, each taken any number of times."""
    reach = [True]
    for total in range(1, up_to + 1):
        reach.append(any(cost <= total and reach[total - cost] for cost in costs))
    return tuple(reach)


# --- calibration ---------------------------------------------------------------------------------------------------

_SEPARATOR = "zqx"  # in no word of the list, so its tokens mark where a word begins and ends
_HEAD = "Apple"
_CHUNK = 100
_FIRSTS = 24
_FEWEST_FIRSTS = 4  # texts that all began alike would share more than their blocks
_JOINED, _JOINED_TOKENS = 64, 4
_SAMPLES = (1, 2, 3, 5, 17, 64, 200, 512)


def calibrate(tokenize: Tokenize, candidates: Sequence[str] = WORDS) -> Vocabulary:
    """Find each word's cost with fewer than 60 calls of `tokenize` (text -> token ids), and prove it on samples.

    A word's cost is read between two separators, so ids must mean something; where they do not (a server that only
    counts) a text as long as its words says that each costs one. Special tokens that the tokenizer adds are left out of
    the counts. The result says itself whether its counts are exact, and how far off the samples were.
    """
    plain = _without_specials(tokenize)
    costs = _costs(plain, candidates)
    known = [word for word in candidates if 1 <= costs.get(word, 0) <= _MAX_COST]
    single = [word for word in known if costs[word] == 1]
    if len(single) >= 256:  # enough to tell texts apart, and any count can be made of them
        known = single
    if not known:
        return _approximation(plain, candidates)
    firsts = _firsts(plain, known[:: max(1, len(known) // _FIRSTS)][:_FIRSTS])
    for these, joint in _joints(firsts, costs, known):
        exact = Vocabulary(
            words=tuple(known),
            costs=tuple(costs[word] for word in known),
            firsts=tuple(these),
            first_costs=tuple(firsts[word] for word in these),
            tokens_per_word=sum(costs[word] for word in known) / len(known),
            exactness="exact",
            error=0.0,
            joint=joint,
        )
        few = exact.exact_from is None or exact.exact_from > _TAIL // 2
        if not few and _proven(exact, plain) and (these == [*firsts] or _joins(exact, plain)):
            return exact
    return _approximation(plain, candidates)


def _joints(
    firsts: Mapping[str, int], costs: Mapping[str, int], known: Sequence[str]
) -> Iterator[tuple[list[str], str]]:
    """First words and what may stand between two texts, the plainest first; at last all words, whatever joins cost.

    A word may cost more where it begins a text than behind a blank: then a word that costs the difference makes up for it.
    """
    by_more: dict[int, list[str]] = {}
    for word, cost in firsts.items():
        by_more.setdefault(cost - costs[word], []).append(word)
    for more, words in sorted(by_more.items(), key=lambda item: (item[0] != 0, -len(item[1]))):
        filler = next((word for word in known if costs[word] == more), None)
        if len(words) >= _FEWEST_FIRSTS and (more == 0 or filler is not None):
            yield words, f" {filler} " if more else " "
        elif len(words) >= _FEWEST_FIRSTS and more < 0:
            yield words, ""
    yield [*firsts], " "


def _proven(vocabulary: Vocabulary, tokenize: Tokenize) -> bool:
    rng = Random("calibration")
    sizes = [size for size in _SAMPLES if size >= (vocabulary.exact_from or 1)]
    return all(len(tokenize(vocabulary.text(size, rng))) == size for size in sizes)


def _joins(vocabulary: Vocabulary, tokenize: Tokenize) -> bool:
    """Whether many texts in a row cost what they cost one by one, whatever words meet."""
    rng, size = Random("joints"), max(_JOINED_TOKENS, vocabulary.exact_from or 1)
    texts = [vocabulary.text(size, rng) for _ in range(_JOINED)]
    return len(tokenize(vocabulary.joint.join(texts))) == size * _JOINED


def _approximation(tokenize: Tokenize, candidates: Sequence[str]) -> Vocabulary:
    """Words of unknown cost, their mean and the spread measured on a few samples."""
    rng = Random("calibration")
    words = Vocabulary(tuple(candidates), tokens_per_word=1.0)
    counts = {size: len(tokenize(words.text(size, rng))) for size in (20, 50, 100, 200)}
    per_word = max(sum(counts.values()) / sum(counts), 1e-3)
    error = max(abs(count / (size * per_word) - 1) for size, count in counts.items())
    return Vocabulary(tuple(candidates), tokens_per_word=per_word, error=error)


def _without_specials(tokenize: Tokenize) -> Tokenize:
    """The tokenizer less what it puts around every text: what two unlike words share at their ends."""
    one, other = tokenize("apple"), tokenize("music")
    if one == other:  # ids that mean nothing
        return tokenize
    before = shared_length(one, other)
    after = shared_length(one[before:][::-1], other[before:][::-1])
    return lambda text: tokenize(text)[before : -after or None]


def shared_length(one: Sequence[int], other: Sequence[int]) -> int:
    """Length of the common beginning."""
    pairs = zip(one, other, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def _costs(tokenize: Tokenize, candidates: Sequence[str]) -> dict[str, int]:
    """Tokens of each word behind a blank, for those whose tokens can be told from their neighbours'."""
    head, separator = _separator_ids(tokenize)
    costs: dict[str, int] = {}
    for start in range(0, len(candidates), _CHUNK):
        chunk = candidates[start : start + _CHUNK]
        if separator is None:
            if len(tokenize(" ".join(chunk))) == len(chunk):
                costs |= dict.fromkeys(chunk, 1)
            continue
        ids = tokenize(_HEAD + "".join(f" {word} {_SEPARATOR}" for word in chunk))
        parts = _split(ids[len(head) :], separator)
        if len(parts) == len(chunk) + 1 and ids[: len(head)] == head:
            costs |= {word: len(part) for word, part in zip(chunk, parts, strict=False)}
    return costs


def _firsts(tokenize: Tokenize, words: Sequence[str]) -> dict[str, int]:
    """Tokens of each word where it begins a text, of those that cost no other behind a line end: chat templates put one."""
    costs = {word: len(tokenize(word)) for word in words}
    head, separator = _separator_ids(tokenize)
    if separator is None:
        return costs
    ids = tokenize(_HEAD + "".join(f"\n{word} {_SEPARATOR}" for word in words))
    parts = _split(ids[len(head) :], separator)
    if len(parts) != len(words) + 1:
        return costs
    # The line end itself costs the same everywhere, whatever that is: what most words show.
    more = {word: len(part) - costs[word] for word, part in zip(words, parts, strict=False)}
    usual = Counter(more.values()).most_common(1)[0][0]
    return {word: cost for word, cost in costs.items() if more[word] == usual}


def _separator_ids(tokenize: Tokenize) -> tuple[list[int], list[int] | None]:
    """The ids of the text's head and of the separator behind a blank; None where ids do not repeat as the text does."""
    once = tokenize(f"{_HEAD} {_SEPARATOR}")
    twice = tokenize(f"{_HEAD} {_SEPARATOR} {_SEPARATOR}")
    separator = twice[len(once) :]
    head = once[: len(once) - len(separator)]
    if not separator or head + separator + separator != twice:
        return [], None
    return head, separator


def _split(ids: Sequence[int], separator: Sequence[int]) -> list[list[int]]:
    """The ids between occurrences of the separator."""
    parts: list[list[int]] = [[]]
    place, width = 0, len(separator)
    while place < len(ids):
        if list(ids[place : place + width]) == list(separator):
            parts.append([])
            place += width
        else:
            parts[-1].append(ids[place])
            place += 1
    return parts
