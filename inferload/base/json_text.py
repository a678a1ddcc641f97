"""JSON texts from files that others may have written. No I/O."""

import json
from typing import Annotated, Any, NoReturn

from msgspec import Meta

# Numbers of a typed document. Sums, products and quotients of them are finite.
Count = Annotated[int, Meta(ge=0, le=10**18)]
Number = Annotated[int, Meta(ge=-(10**18), le=10**18)] | Annotated[float, Meta(ge=-1e18, le=1e18)]
Instant = Annotated[int, Meta(ge=0, le=1 << 62)]  # nanoseconds; the difference of two has 64 bits
Seed = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]

MAX_DEPTH = 50  # levels; code that walks through a document is recursive


def parse(text: str | bytes) -> Any:
    """Return the value of a JSON text; ValueError if it is malformed, nested too deeply, or has NaN or an infinity."""
    try:
        value = json.loads(text, parse_constant=_refuse)
    except RecursionError:
        raise ValueError(f"nested deeper than {MAX_DEPTH} levels") from None
    level = [value]
    for _ in range(MAX_DEPTH):
        inner = (part.values() if isinstance(part, dict) else part for part in level if isinstance(part, dict | list))
        level = [part for parts in inner for part in parts]
        if not level:
            return value
    raise ValueError(f"nested deeper than {MAX_DEPTH} levels")


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number of JSON")
