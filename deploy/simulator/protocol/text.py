"""Words instead of tokens: one word between blanks is one token, on the way in and on the way out."""

import hashlib
import zlib
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

_ONSETS = ("b", "d", "f", "g", "k", "l", "m", "n", "p", "r", "s", "t", "v")
_SYLLABLES = tuple(onset + vowel for onset in _ONSETS for vowel in "aeiou")[:64]

# 4,096 words of four letters: all plain events have one length.
VOCABULARY: tuple[str, ...] = tuple(first + second for first in _SYLLABLES for second in _SYLLABLES)
SPACED: tuple[bytes, ...] = tuple(b" " + word.encode() for word in VOCABULARY)
_IDS = {word: number for number, word in enumerate(VOCABULARY)}
_FOREIGN_IDS = 1 << 31  # words outside the vocabulary get ids from the vocabulary's size up to this
ID_LIMIT = len(VOCABULARY) + _FOREIGN_IDS  # every token id is below

_SLICED = 16
_ROUNDS = VOCABULARY * (_SLICED + 1)  # strides are below one round

MESSAGE_OPEN = "<|im_start|>"
MESSAGE_CLOSE = "<|im_end|>"


@dataclass(frozen=True, slots=True)
class Answer:
    """Words of one answer: word i is a function of the two numbers, and no word repeats within 4,096."""

    start: int
    stride: int  # odd, so that the walk visits every word

    def word(self, index: int) -> str:
        """Token `index` (from 0) as it stands in the history afterwards."""
        return VOCABULARY[(self.start + index * self.stride) & 4095]

    def words(self, first: int, count: int) -> list[str]:
        """Tokens [first, first + count)."""
        stride = self.stride
        if count <= _SLICED:  # a block of the KV cache
            start = (self.start + first * stride) & 4095
            return list(_ROUNDS[start : start + count * stride : stride])
        start = self.start + first * stride
        return [VOCABULARY[place & 4095] for place in range(start, start + count * stride, stride)]

    def text(self, first: int, count: int) -> str:
        """Tokens [first, first + count) as text to be appended; only the very first has no blank before it."""
        words = " ".join(self.words(first, count))
        return words if first == 0 or not words else " " + words


def answer_of(seed: int, tokens: Sequence[str], request_seed: int | str | None) -> tuple[Answer, int]:
    """The answer to a prompt, and a number to seed its length with; the same in every process for the same arguments."""
    digest = hashlib.blake2b(f"{seed}/{request_seed}/".encode(), digest_size=16)
    digest.update(" ".join(tokens).encode("utf-8", "surrogatepass"))
    bits = int.from_bytes(digest.digest(), "big")
    return Answer(bits & 4095, ((bits >> 12) & 2047) * 2 + 1), bits >> 24


def chat_tokens(
    messages: Iterable[tuple[str, str]],
    tools: str = "",
    open_turn: bool = True,
    calls: Mapping[int, Sequence[str]] | None = None,
) -> list[str]:
    """(role, text) pairs as the tokens of a chat template: 3 more for each message, 2 for the answer's opening.

    `calls` has the tokens of a message's tool calls by the message's place; they follow its text.
    """
    tokens = tools.split()
    for place, (role, text) in enumerate(messages):
        tokens += (MESSAGE_OPEN, role)
        tokens += text.split()
        tokens += (calls or {}).get(place, ())
        tokens.append(MESSAGE_CLOSE)
    if open_turn:
        tokens += (MESSAGE_OPEN, "assistant")
    return tokens


class Lexicon:
    """Token ids of words and back. Ids of foreign words are hashes; the last 65,536 of them can be turned back."""

    def __init__(self, keep: int = 65_536) -> None:
        self._keep = keep
        self._foreign: OrderedDict[int, str] = OrderedDict()

    def encode(self, tokens: Iterable[str]) -> list[int]:
        """Token ids; a foreign word's id is remembered."""
        ids = []
        for token in tokens:
            number = _IDS.get(token)
            if number is None:
                number = len(VOCABULARY) + zlib.crc32(token.encode("utf-8", "surrogatepass")) % _FOREIGN_IDS
                self._foreign[number] = token
                if len(self._foreign) > self._keep:
                    self._foreign.popitem(last=False)
            ids.append(number)
        return ids

    def decode(self, ids: Iterable[int]) -> list[str]:
        """The words of token ids; one that was never seen, or is forgotten, becomes `<id>`."""
        return [
            VOCABULARY[number] if 0 <= number < len(VOCABULARY) else self._foreign.get(number, f"<{number}>")
            for number in ids
        ]
