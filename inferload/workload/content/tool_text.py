"""Generated tool definitions: a JSON array of about a given number of tokens, the same for the same names."""

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import count
from random import Random
from typing import Any

import msgspec

from inferload.workload.content.words import WORDS

# Words and runs of punctuation: about the tokens of a byte-pair tokenizer for JSON of common words.
_TOKENS = re.compile(rb"\w+|[^\w\s]+")


@lru_cache(maxsize=64)
def tools_json(names: tuple[str, ...], tokens: int) -> bytes:
    """Return the definitions of these tools and of as many others as the tokens need; empty for 0 tokens."""
    if tokens <= 0:
        return b""
    tools: list[dict[str, Any]] = []
    for name in _names(names):
        tool = _tool(name, left := tokens - json_tokens(msgspec.json.encode(tools)))
        if left <= 0 and len(tools) >= len(names):
            break
        tools.append(tool)
    return msgspec.json.encode(tools)


@lru_cache(maxsize=64)
def json_tokens(text: bytes) -> int:
    """Estimate the tokens of a JSON text without a tokenizer."""
    return len(_TOKENS.findall(text))


def _names(names: Sequence[str]) -> Iterator[str]:
    yield from names
    yield from (f"tool_{number}" for number in count(len(names)))


def _tool(name: str, room: int) -> dict[str, Any]:
    """Return one definition of at most about 400 tokens, fewer if `room` is less."""
    rng = Random(f"tool/{name}")
    budget = max(8, min(room, 400) - 60)
    parameters = {rng.choice(WORDS): {"type": "string", "description": _sentence(rng, budget // 8)} for _ in range(2)}
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": _sentence(rng, budget - 2 * (budget // 8)),
            "parameters": {"type": "object", "properties": parameters, "required": list(parameters)[:1]},
        },
    }


def _sentence(rng: Random, words: int) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(max(1, words)))
