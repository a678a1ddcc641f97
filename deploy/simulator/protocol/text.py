"""Tokenisation by words: each word is one token, in prompts and in answers."""

import hashlib
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_ONSETS = ("b", "d", "f", "g", "k", "l", "m", "n", "p", "r", "s", "t", "v")
_SYLLABLES = tuple(onset + vowel for onset in _ONSETS for vowel in "aeiou")[:64]

# 4,096 words of four letters, so that all plain events have the same length.
VOCABULARY: tuple[str, ...] = tuple(first + second for first in _SYLLABLES for second in _SYLLABLES)
SPACED: tuple[bytes, ...] = tuple(b" " + word.encode() for word in VOCABULARY)
_IDS = {word: number for number, word in enumerate(VOCABULARY)}
_FIRST_HASH = len(VOCABULARY)  # ids from here on are hashes

MESSAGE_OPEN = "<|im_start|>"
MESSAGE_CLOSE = "<|im_end|>"


@dataclass(frozen=True, slots=True)
class WordSequence:
    """Words of an answer: word i is a function of two numbers, and no word repeats within 4,096."""

    start: int
    stride: int  # odd, so that all words are visited

    def word(self, index: int) -> str:
        """Token `index` (from 0), without the leading space."""
        return VOCABULARY[(self.start + index * self.stride) & 4095]

    def words(self, first: int, count: int) -> list[str]:
        """Tokens [first, first + count)."""
        start = self.start + first * self.stride
        return [VOCABULARY[index & 4095] for index in range(start, start + count * self.stride, self.stride)]


def answer_of(seed: int, tokens: Sequence[str], request_seed: int | str | None) -> tuple[WordSequence, int]:
    """Return the answer to a prompt, and a seed for its length. Deterministic across processes."""
    digest = hashlib.blake2b(f"{seed}/{request_seed}/".encode(), digest_size=16)
    digest.update(" ".join(tokens).encode("utf-8", "surrogatepass"))
    bits = int.from_bytes(digest.digest(), "big")
    return WordSequence(bits & 4095, ((bits >> 12) & 2047) * 2 + 1), bits >> 24


def chat_tokens(
    messages: Iterable[tuple[str, str, Sequence[str]]], tools: str = "", open_turn: bool = True
) -> list[str]:
    """Tokens of messages in a chat template: 3 more per message, and 2 to open the answer.

    A message is its role, its text, and the tokens of its tool calls.
    """
    tokens = tools.split()
    for role, text, calls in messages:
        tokens += (MESSAGE_OPEN, role, *text.split(), *calls, MESSAGE_CLOSE)
    if open_turn:
        tokens += (MESSAGE_OPEN, "assistant")
    return tokens


def token_ids(tokens: Iterable[str]) -> list[int]:
    """Token ids of words. Ids of words outside the vocabulary are hashes."""
    return [_IDS[token] if token in _IDS else _FIRST_HASH + _hash(token) for token in tokens]


def _hash(token: str) -> int:
    return zlib.crc32(token.encode("utf-8", "surrogatepass")) & 0x7FFFFFFF
