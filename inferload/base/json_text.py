"""JSON texts from files that others may have written. No I/O."""

import json
import math
import re
import sys
from typing import Annotated, Any, NoReturn

import msgspec
from msgspec import Meta

from inferload.base.escaping import encodable, mapped

# Numbers of a typed document. Sums, products and quotients of them are finite.
Count = Annotated[int, Meta(ge=0, le=10**18)]
Number = Annotated[int, Meta(ge=-(10**18), le=10**18)] | Annotated[float, Meta(ge=-1e18, le=1e18)]
Instant = Annotated[int, Meta(ge=0, le=1 << 62)]  # nanoseconds; the difference of two has 64 bits
Seed = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]

MAX_DEPTH = 50  # levels; code that walks through a document is recursive

_TOO_DEEP = f"nested deeper than {MAX_DEPTH} levels"
_LARGEST = int(sys.float_info.max)
_MOST_SHOWN = 40  # characters of a number in an error
_SURROGATE = re.compile(r"[\ud800-\udfff]|\\u[dD][89a-fA-F]")
# Beginning of a value, of the rest of a number, or of an escape, at the end of a text.
_CUT_VALUE = re.compile(r"\s*(?:t(?:ru?)?|f(?:a(?:ls?)?)?|n(?:ul?)?|-|\.|\.?[0-9]*[eE][+-]?|\\?u?[0-9a-fA-F]{0,4})?\s*")


def means(text: str) -> Meta:
    """Return the meaning of a key, for its row in docs/reference/summary.md."""
    return Meta(description=text)


def parse(text: str | bytes) -> Any:
    """Return the value of a JSON text; ValueError if it is malformed, nested too deeply, or has a number that no float can have.

    A lone surrogate, which no output can encode, becomes its escape of six characters.
    """
    if isinstance(text, bytes):
        text = text.decode()
    try:
        value = json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    level = [value]
    for _ in range(MAX_DEPTH):
        for part in level:
            if type(part) is int and abs(part) > _LARGEST:
                raise ValueError(f"an integer of {len(str(part))} digits is beyond the range of numbers")
        inner = (part.values() if isinstance(part, dict) else part for part in level if isinstance(part, dict | list))
        level = [part for parts in inner for part in parts]
        if not level:
            return mapped(value, encodable) if _SURROGATE.search(text) else value
    raise ValueError(_TOO_DEEP)


def lines(document: Any) -> str:
    """Return a document as JSON with an indent of one space, and a line feed; ValueError if it has a NaN or an infinite number.

    Python's own indentation takes six times as long, and is the one of texts with a lone surrogate, which have no UTF-8.
    """
    text = json.dumps(document, ensure_ascii=False, allow_nan=False)
    try:
        return msgspec.json.format(text, indent=1) + "\n"
    except UnicodeEncodeError:
        return json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def is_cut(error: ValueError) -> bool:
    """Return True for an error of `parse` at the end of the text, as in a file whose writer was killed."""
    match error:
        case UnicodeDecodeError():
            return error.reason == "unexpected end of data"
        case json.JSONDecodeError() if error.msg != "Extra data":
            return error.msg.startswith("Unterminated string") or _CUT_VALUE.fullmatch(error.doc, error.pos) is not None
    return False


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number of JSON")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text[:_MOST_SHOWN]} is beyond the range of numbers")
    return value
