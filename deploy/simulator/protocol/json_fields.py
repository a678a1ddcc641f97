"""Typed access to the JSON of a request."""

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from .errors import invalid

_T = TypeVar("_T")

MAX_NESTED = 100  # levels of lists and objects
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def parse_json(body: bytes) -> dict[str, Any]:
    """Parse the body as a JSON object. Raise ApiError if it is none."""
    try:
        document = json.loads(body.decode("utf-8-sig"))
    # No UTF-8, no JSON, a number of thousands of digits, unclosed brackets.
    except (ValueError, RecursionError) as error:
        raise invalid("", f"invalid JSON: {error}") from None
    if not isinstance(document, dict):
        raise invalid("", "needs an object")
    if body.count(b"[") + body.count(b"{") > MAX_NESTED and _nested_deeper(document, MAX_NESTED):
        raise invalid("", f"lists and objects nested deeper than {MAX_NESTED} levels")
    if _SURROGATE.search(body):
        _check_pairs(document)
    return document


def _nested_deeper(document: Any, levels: int) -> bool:
    """Return True if lists and objects are nested deeper than `levels`. Not recursive."""
    level = [document]
    for _ in range(levels):
        inner = (each.values() if isinstance(each, dict) else each for each in level)
        level = [each for values in inner for each in values if isinstance(each, dict | list)]
    return bool(level)


def _check_pairs(document: Mapping[str, Any]) -> None:
    """Raise ApiError for half a surrogate pair in an escape: such text has no UTF-8 encoding and cannot be echoed."""
    try:
        json.dumps(document, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise invalid("", "contains half a surrogate pair") from None


def _typed(kind: type[_T], expected: str) -> Callable[[Mapping[str, Any], str], _T | None]:
    """Return a reader of fields of a type: None if absent or null. It raises ApiError for a value of another type."""

    def read(document: Mapping[str, Any], key: str) -> _T | None:
        value = document.get(key)
        if value is not None and type(value) is not kind:
            raise invalid(key, f"needs {expected}")
        return value

    return read


text = _typed(str, "a string")
items = _typed(list, "a list")
mapping = _typed(dict, "an object")


def _list_of(kind: type[_T], expected: str) -> Callable[[Mapping[str, Any], str], list[_T] | None]:
    """Return a reader of lists of a type, without empty texts."""

    def read(document: Mapping[str, Any], key: str) -> list[_T] | None:
        values: list[Any] | None = items(document, key)
        if not all(type(value) is kind and value != "" for value in values or ()):
            raise invalid(key, f"needs a list of {expected}")
        return values

    return read


texts = _list_of(str, "texts that are not empty")
integers = _list_of(int, "integers")
_BOOLEANS = {
    **dict.fromkeys(("true", "t", "yes", "y", "on", "1"), True),
    **dict.fromkeys(("false", "f", "no", "n", "off", "0"), False),
}


def number(document: Mapping[str, Any], key: str) -> float | None:
    """Number, also as text or as a truth value, as vLLM's web framework reads it; None if absent or null."""
    value = document.get(key)
    try:
        value = float(value) if isinstance(value, str) else value
    except ValueError:
        raise invalid(key, "needs a number") from None
    if value is not None and not (isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))):
        raise invalid(key, "needs a finite number")
    return value


def integer(document: Mapping[str, Any], key: str) -> int | None:
    """Number without a fraction."""
    value = number(document, key)
    if value is not None and value != int(value):
        raise invalid(key, "needs an integer")
    return None if value is None else int(value)


def flag(document: Mapping[str, Any], key: str, default: bool = False) -> bool:
    """Boolean, also as 0, 1 or a word; the default if absent or null."""
    value = document.get(key)
    if isinstance(value, str):
        value = _BOOLEANS.get(value.lower(), value)
    if value not in (None, 0, 1):
        raise invalid(key, "needs true or false")
    return default if value is None else bool(value)
