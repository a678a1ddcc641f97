"""Typed access to the JSON of a request."""

import json
import re
from collections.abc import Mapping
from typing import Any

from .errors import invalid

MAX_NESTED = 100  # levels of lists and objects
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def parse_json(body: bytes) -> dict[str, Any]:
    """Parse the body as a JSON object. Raise ApiError if it is none."""
    try:
        document = json.loads(body.decode("utf-8"))
    except (
        ValueError,
        RecursionError,
    ) as error:  # no UTF-8, no JSON, a number of thousands of digits, unclosed brackets
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


def integer(document: Mapping[str, Any], key: str) -> int | None:
    """Integer, or None if absent."""
    value = document.get(key)
    if value is None or type(value) is int:
        return value
    raise invalid(key, "needs an integer")


def flag(document: Mapping[str, Any], key: str, default: bool = False) -> bool:
    """Boolean; the default if absent or null."""
    value = document.get(key)
    if value is None or isinstance(value, bool):
        return default if value is None else value
    raise invalid(key, "needs true or false")


def text(document: Mapping[str, Any], key: str) -> str | None:
    """String, or None if absent."""
    value = document.get(key)
    if value is None or isinstance(value, str):
        return value
    raise invalid(key, "needs a string")


def mapping(document: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Object; empty if absent."""
    value = document.get(key)
    if value is None or isinstance(value, dict):
        return value or {}
    raise invalid(key, "needs an object")


def items(document: Mapping[str, Any], key: str) -> list[Any] | None:
    """List, or None if absent."""
    value = document.get(key)
    if value is None or isinstance(value, list):
        return value
    raise invalid(key, "needs a list")
