"""Merge of JSON that is streamed in deltas, without knowledge of its fields. No I/O.

Text is appended, lists are joined by the `index` of their items, objects by key, any other value is replaced, and null is
nothing. Words that each delta of an object repeats, such as `id` and `type`, are replaced.
"""

from __future__ import annotations

from typing import Any

from inferload.workload.content.messages import sendable

# Words that are whole in each delta.
_REPEATED = frozenset({"id", "type", "signature", "format", "role", "channel", "phase", "status", "object"})
# Ends of keys of texts that some services give whole in each delta, others in pieces; least characters of a whole one.
_PERHAPS_REPEATED, _LEAST = ("name", "signature"), 8
# Lists of parts, each delta of which may continue the last one.
_PARTS = frozenset({"content", "reasoning_details", "thinking", "thinking_blocks", "summary"})


class _Text:
    __slots__ = ("pieces",)

    def __init__(self, text: str) -> None:
        self.pieces = [text]


class _Items:
    __slots__ = ("by_index", "items")

    def __init__(self) -> None:
        self.items: list[Any] = []
        self.by_index: dict[int, dict[str, Any]] = {}


def grow(into: dict[str, Any], delta: dict[str, Any], *, append: frozenset[str] = frozenset()) -> None:
    """Merge a delta into an unfinished object. `append`: exceptions of repeated words."""
    for key, value in delta.items():
        known = into.get(key)
        if isinstance(value, str):
            if key in _REPEATED and key not in append:
                into[key] = value or known or ""  # a blank replaces nothing
            elif isinstance(known, _Text):
                is_whole = len(value) >= _LEAST and key.endswith(_PERHAPS_REPEATED) and value.endswith(known.pieces[-1])
                if not is_whole or value != "".join(known.pieces):
                    known.pieces.append(value)
            else:
                into[key] = _Text((known if isinstance(known, str) else "") + value)
        elif isinstance(value, dict):
            if not isinstance(known, dict):
                known = into[key] = {}
            grow(known, value, append=append)
        elif isinstance(value, list):
            if not isinstance(known, _Items):
                known = into[key] = _Items()
            _join(known, value, parts=key in _PARTS)
        elif value is not None:
            into[key] = value


def grow_content(into: dict[str, Any], value: object) -> None:
    """Merge a content, a text or a list of parts, which may take turns, into that of an unfinished message."""
    known = into.get("content")
    if isinstance(value, str) and isinstance(known, _Items):
        value = [{"type": "text", "text": value}] if value else []
    elif isinstance(value, dict | list) and isinstance(known, _Text):
        text = "".join(known.pieces)
        grow(into, {"content": [{"type": "text", "text": text}] if text else []})
    grow(into, {"content": [value] if isinstance(value, dict) else value})


def whole(value: Any) -> Any:
    """Return an unfinished value as JSON. Blank ids and signatures are left out: no server takes them."""
    if isinstance(value, _Text):
        return sendable("".join(value.pieces))
    if isinstance(value, str):
        return sendable(value)
    if isinstance(value, _Items | list):
        return [whole(item) for item in (value.items if isinstance(value, _Items) else value)]
    if isinstance(value, dict):
        each = ((sendable(key), whole(item)) for key, item in value.items())
        return {key: item for key, item in each if item != "" or not (key == "id" or key.lower().endswith("signature"))}
    return value


def _join(into: _Items, items: list[Any], *, parts: bool) -> None:
    """Join the items of a delta to those of earlier ones: by index, or in the last part of the same type."""
    before = into.by_index.copy() if len(items) > 1 else into.by_index
    last = into.items[-1] if into.items and parts else None
    for item in items:
        if not isinstance(item, dict):
            into.items.append(item)
            continue
        index = item["index"] if isinstance(item.get("index"), int) else None
        known = last if index is None and _continues(last, item) else before.get(index)  # type: ignore[arg-type]
        if known is not None and parts and _is_other(known, item):
            known = None
        if known is None:
            known = {}
            into.items.append(known)
        if index is not None:
            into.by_index[index] = known
        grow(known, item)
        last = None


def _is_other(known: dict[str, Any], item: dict[str, Any]) -> bool:
    """Return True if a part has the index of another one: gateways count the parts of each type. Hidden data come whole."""
    names = ("id", "type") if "data" in item and "data" in known else ("type",)
    return any(item.get(name) and known.get(name) not in (None, item[name]) for name in names)


def _continues(last: Any, item: dict[str, Any]) -> bool:
    """Return True if a part has only more text for the last one."""
    return (
        isinstance(last, dict)
        and isinstance(item.get("type"), str)
        and item["type"] == last.get("type")
        and not last.get("signature")  # which ends a part
        and item.get("id") in (None, last.get("id"))
        and not {"index", "data"} & last.keys()
        and all(value is None or isinstance(value, str | list | bool) for value in item.values())
    )
