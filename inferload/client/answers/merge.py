"""Merge of JSON that is streamed in deltas, without knowledge of its fields. No I/O.

Text is appended, lists are joined by the `index` of their items, objects by key, any other value is replaced, and null is
nothing. Words that each delta of an object repeats, such as `id` and `type`, are replaced.
"""

from __future__ import annotations

from typing import Any

from inferload.workload.content.messages import sendable

_REPEATED = frozenset({"id", "type", "signature", "format", "role"})
# Lists of parts, each delta of which may continue the last one.
_PARTS = frozenset({"content", "reasoning_details", "thinking", "thinking_blocks"})
_FIELD_BYTES = 8  # of a value in JSON, about


class _Text:
    __slots__ = ("pieces",)

    def __init__(self, text: str) -> None:
        self.pieces = [text]


class _Items:
    __slots__ = ("by_index", "items")

    def __init__(self) -> None:
        self.items: list[Any] = []
        self.by_index: dict[int, dict[str, Any]] = {}


def grow(into: dict[str, Any], delta: dict[str, Any], *, append: frozenset[str] = frozenset()) -> int:
    """Merge a delta into an unfinished object; return by how many bytes it grew, about. `append`: exceptions of repeated words."""
    grown = 0
    for key, value in delta.items():
        known = into.get(key)
        if value is None:
            continue
        if isinstance(value, str):
            if key in _REPEATED and key not in append:
                grown += len(value) - len(known) if isinstance(known, str) else len(value) + len(key)
                into[key] = value or known or ""  # a blank replaces nothing
            elif isinstance(known, _Text):
                known.pieces.append(value)
                grown += len(value)
            else:
                into[key] = _Text((known if isinstance(known, str) else "") + value)
                grown += len(value) + len(key)
        elif isinstance(value, dict):
            if not isinstance(known, dict):
                known = into[key] = {}
            grown += grow(known, value, append=append) + _FIELD_BYTES
        elif isinstance(value, list):
            if not isinstance(known, _Items):
                known = into[key] = _Items()
            grown += _join(known, value, parts=key in _PARTS) + _FIELD_BYTES
        else:
            grown += 0 if key in into else _FIELD_BYTES + len(key)
            into[key] = value
    return grown


def grow_content(into: dict[str, Any], value: object) -> int:
    """Merge a content, a text or a list of parts, which may take turns, into that of an unfinished message."""
    known = into.get("content")
    if isinstance(value, str) and isinstance(known, _Items):
        return _join(known, [{"type": "text", "text": value}], parts=True) if value else 0
    if isinstance(value, dict | list) and isinstance(known, _Text):
        text = "".join(known.pieces)
        into["content"] = items = _Items()
        _join(items, [{"type": "text", "text": text}] if text else [], parts=True)
    return grow(into, {"content": [value] if isinstance(value, dict) else value})


def whole(value: Any) -> Any:
    """Return an unfinished value as JSON. Blank ids and signatures are left out: no server takes them."""
    if isinstance(value, _Text):
        return sendable("".join(value.pieces))
    if isinstance(value, str):
        return sendable(value)
    if isinstance(value, _Items):
        return [whole(item) for item in value.items]
    if isinstance(value, list):
        return [whole(item) for item in value]
    if isinstance(value, dict):
        each = ((sendable(key), whole(item)) for key, item in value.items())
        return {key: item for key, item in each if item != "" or not is_never_blank(key)}
    return value


def is_never_blank(key: str) -> bool:
    """Return True for the name of an id or of a signature."""
    return key == "id" or key.lower().endswith("signature")


def _join(into: _Items, items: list[Any], *, parts: bool) -> int:
    """Join the items of a delta to those of earlier ones: by index, or in the last part of the same type."""
    grown, before = 0, into.by_index.copy() if len(items) > 1 else into.by_index
    for number, item in enumerate(items):
        if not isinstance(item, dict):
            into.items.append(_new_list(item) if isinstance(item, list) else item)
            grown += _FIELD_BYTES + (len(item) if isinstance(item, str | list) else 0)
            continue
        index = item.get("index")
        index = index if isinstance(index, int) else None
        known = None if index is None else before.get(index)
        if known is not None and parts and item.get("type") and known.get("type") not in (None, item["type"]):
            known = None  # gateways count the parts of each type
        if known is None and parts and not number and index is None and into.items and _continues(into.items[-1], item):
            known = into.items[-1]
        if known is None:
            known = {}
            into.items.append(known)
            grown += _FIELD_BYTES
        if index is not None:
            into.by_index[index] = known
        grown += grow(known, item)
    return grown


def _new_list(items: list[Any]) -> _Items:
    new = _Items()
    _join(new, items, parts=False)
    return new


def _continues(last: Any, item: dict[str, Any]) -> bool:
    """Return True if a part has only more text for the last one."""
    return (
        isinstance(last, dict)
        and isinstance(item.get("type"), str)
        and item["type"] == last.get("type")
        and not last.get("signature")  # which ends a part
        and item.get("id") in (None, last.get("id"))
        and "index" not in last
        and all(value is None or isinstance(value, str | list) for value in item.values())
    )
