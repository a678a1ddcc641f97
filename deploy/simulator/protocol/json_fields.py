"""Typed access to the JSON of a request, as lenient as vLLM's models: "5" is a number, "yes" is true."""

import json
import re
from collections.abc import Mapping
from typing import Any

from .errors import ApiError, invalid

MAX_NESTED = 100  # levels of lists and objects
_TRUE = ("true", "1", "yes", "y", "on", "t")
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_FALSE = ("false", "0", "no", "n", "off", "f")


def parse_json(body: bytes) -> dict[str, Any]:
    """Parse the body as a JSON object. Raise ApiError if it is none."""
    if not body:
        raise invalid("", "is missing")
    try:
        document = json.loads(body.decode("utf-8"))
    except json.JSONDecodeError as error:
        raise invalid(str(error.pos), f"invalid JSON: {error.msg}") from None
    except UnicodeDecodeError as error:
        raise invalid(str(error.start), "invalid UTF-8") from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, or unclosed brackets
        raise invalid("", f"invalid JSON: {error}") from None
    if document is None:
        raise invalid("", "is missing")
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


def integer(document: Mapping[str, Any], key: str, lower: int | None = None, upper: int | None = None) -> int | None:
    """Integer, or None if absent."""
    value = document.get(key)
    if value is None:
        return None
    parsed = _integer_of(value)
    if parsed is None or (lower is not None and parsed < lower) or (upper is not None and parsed > upper):
        raise invalid(key, "needs an integer" + ("" if lower is None else f" of {lower} or more"))
    return parsed


def _integer_of(value: Any) -> int | None:
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    if isinstance(value, str):
        try:
            return int(value)
        except ValueError:
            return None
    return int(value) if isinstance(value, int) else None


def number(document: Mapping[str, Any], key: str) -> float | None:
    """Number, or None if absent."""
    value = document.get(key)
    if value is None:
        return None
    try:
        if isinstance(value, int | float | str):
            return float(value)
    except (ValueError, OverflowError):
        pass
    raise invalid(key, "needs a number")


def flag(document: Mapping[str, Any], key: str, default: bool = False) -> bool:
    """Boolean; the default if absent or null."""
    value = document.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or value in (0, 1):
        return bool(value)
    if isinstance(value, str) and value.lower() in _TRUE + _FALSE:
        return value.lower() in _TRUE
    raise invalid(key, "needs true or false")


def text(document: Mapping[str, Any], key: str) -> str | None:
    """String, or None if absent."""
    value = document.get(key)
    if value is None or isinstance(value, str):
        return value
    raise invalid(key, "needs a string")


def mapping(document: Mapping[str, Any], key: str) -> Mapping[str, Any] | None:
    """Object, or None if absent."""
    value = document.get(key)
    if value is None or isinstance(value, dict):
        return value
    raise invalid(key, "needs an object")


def items(document: Mapping[str, Any], key: str) -> list[Any] | None:
    """List, or None if absent."""
    value = document.get(key)
    if value is None or isinstance(value, list):
        return value
    raise invalid(key, "needs a list")


def check_ranges(document: Mapping[str, Any]) -> None:
    """Check the ranges of sampling parameters. Raise ApiError for a value out of range."""
    temperature, top_p, top_k = number(document, "temperature"), number(document, "top_p"), integer(document, "top_k")
    if temperature is not None and temperature < 0:
        raise ApiError(f"temperature: needs 0 or more, not {temperature}", param="temperature")
    if top_p is not None and not 0 < top_p <= 1:
        raise ApiError(f"top_p: needs a number above 0 and up to 1, not {top_p}", param="top_p")
    if top_k is not None and top_k < -1:
        raise ApiError(f"top_k: needs -1 or more, not {top_k}")
    for key in ("presence_penalty", "frequency_penalty"):
        penalty = number(document, key)
        if penalty is not None and not -2 <= penalty <= 2:
            raise ApiError(f"{key}: needs a number from -2 to 2, not {penalty}")
