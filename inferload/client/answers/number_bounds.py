"""Bounds of the numbers in a server's events, which are checked when decoded, and error texts of rejected events.

Every later step (64-bit columns, sums over turns, sketches, messages between processes) supports all numbers within these bounds.
"""

import re
from typing import Annotated, Any

import msgspec

MAX_TOKENS = 2**24  # of one turn: more than any model's context
MAX_OUTPUT_TOKENS = 2**20  # of one turn: its gaps between tokens are stored in memory, a number for each
MAX_TOKEN_ID = 2**31 - 1
MAX_MS = 1e9  # of a duration: 11 days

Tokens = Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKENS)]
OutputTokens = Annotated[int, msgspec.Meta(ge=0, le=MAX_OUTPUT_TOKENS)]
TokenId = Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKEN_ID)]
Milliseconds = Annotated[float, msgspec.Meta(ge=0, le=MAX_MS)]

# Raised by a msgspec decoder for data that is not the expected JSON; RecursionError: nested too deeply.
UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

_VALUE_CHARS = 40
_PATH = re.compile(r" - at `\$(.*)`$")
_STEP = re.compile(r"\.([^.\[]+)|\[(\d+)\]")


def refusal(error: Exception, data: bytes) -> bytes:
    """Return reason and data of an event that cannot be decoded, with field and value of a number out of range."""
    if isinstance(error, RecursionError):
        return b"nested too deeply: " + data
    if not isinstance(error, msgspec.ValidationError):
        return data
    return f"{error}{_value_at(str(error), data)}: ".encode("utf-8", "replace") + data


def _value_at(message: str, data: bytes) -> str:
    """Return `, got VALUE` with the value at the path at the end of a decoder's message; "" without one."""
    path = _PATH.search(message)
    try:
        value: Any = msgspec.json.decode(data)
        for key, index in _STEP.findall(path[1] if path else ""):
            value = value[key] if key else value[int(index)]
        shown = msgspec.json.encode(value)[:_VALUE_CHARS]
    except (*UNDECODABLE, LookupError, TypeError, ValueError):  # the last one of half a surrogate pair too
        return ""
    return f", got {shown.decode('utf-8', 'replace')}"
