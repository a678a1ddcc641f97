"""Lenient reading of an event that the decoder of its type refuses: what fits or can be converted is used. No I/O.

Servers, gateways and bridges send null for lists, objects for JSON text, numbers as text, text as a list of parts, half of a
surrogate pair, NaN, and lines that are no JSON. None of these may cost the measurement an answer.
"""

import json
import math
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from inferload.workload.content.messages import sendable

Event = TypeVar("Event", bound=msgspec.Struct)

_JSON_TEXT = frozenset({"arguments", "input", "partial_json"})  # fields with JSON as text
# Fields of which the pieces are joined later, with halves of a surrogate pair.
_STREAMED = _JSON_TEXT | {"content", "text", "reasoning", "reasoning_content", "thinking"}
_PART_TEXTS = ("text", "thinking", "reasoning", "summary", "content", "value")  # keys of the text of a part
_THOUGHTS = frozenset({"thinking", "reasoning"})  # types of parts with reasoning
_WORDS = ("type", "value", "name", "reason")  # keys of the word that an object stands for
_DEPTH = 8  # Mistral has texts in lists of parts in lists of parts
_UNUSABLE = object()
_BOM = "\ufeff"


class Broken(Exception):
    """The data is JSON that is incomplete, damaged or nested too deeply."""


class Read(msgspec.Struct):
    """Events that were read from the data of one. `odd`: something of them was converted or left out."""

    events: list[Any] = []
    odd: bool = False


def read(data: bytes, kind: type[Event], prepare: Callable[[dict[str, Any]], None] | None = None) -> Read:
    """Read the data of one event as `kind`; no event if the data is no object, as null or a heartbeat.

    Several objects on a line each are several events: some servers leave out the empty line between them. `prepare` changes
    an object before it is read. Raise Broken for damaged JSON.
    """
    result = Read()
    for document in documents(data):
        if not isinstance(document, dict):
            result.odd = True
            continue
        if prepare is not None:
            prepare(document)
        event = _struct(document, _type_of(kind), result)
        if event is _UNUSABLE:
            result.odd = True
        else:
            result.events.append(event)
    return result


def text_of(value: object, depth: int = _DEPTH) -> tuple[str, str]:
    """Return visible text and reasoning of a text, a part or a list of parts. `depth`: levels of parts that are read."""
    if isinstance(value, str):
        return sendable(value), ""
    if isinstance(value, list) and depth:
        both = [text_of(part, depth - 1) for part in value]
        return "".join(text for text, _ in both), "".join(thought for _, thought in both)
    if isinstance(value, dict) and depth:
        inner = next((value[key] for key in _PART_TEXTS if value.get(key)), "")
        text, thought = text_of(inner, depth - 1)
        kind = value.get("type")
        return ("", text + thought) if isinstance(kind, str) and kind in _THOUGHTS else (text, thought)
    return (str(value), "") if _is_number(value) else ("", "")


def documents(data: bytes) -> list[Any]:
    text = data.decode("utf-8", "replace").strip().removeprefix(_BOM)
    try:
        return [_loads(text)]
    except ValueError:
        lines = [line for line in text.split("\n") if line.strip()]
    except RecursionError as error:
        raise Broken from error
    if not text.startswith("{"):
        return [None]
    try:
        return [_loads(line) for line in lines]
    except (ValueError, RecursionError) as error:
        raise Broken from error


def _loads(text: str) -> Any:
    return json.loads(text, strict=False, parse_int=_whole)


def _whole(digits: str) -> int | float:
    """Numbers beyond 64 bits are in no field: Python refuses to convert those of more than 4,300 digits."""
    return int(digits) if len(digits) < 20 else float(digits)


@cache
def _type_of(kind: type) -> inspect.StructType:
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    return info


def _struct(value: Any, kind: inspect.StructType, result: Read) -> Any:
    """Return a struct of the usable fields; _UNUSABLE if a required one is missing."""
    if not isinstance(value, dict):
        return _UNUSABLE
    fields = {}
    for field in kind.fields:
        if field.encode_name not in value:
            usable = _UNUSABLE
        else:
            usable = _value(value[field.encode_name], field.type, field.encode_name, result)
            result.odd = result.odd or usable is _UNUSABLE
        if usable is not _UNUSABLE:
            fields[field.name] = usable
        elif field.required:
            return _UNUSABLE
    return kind.cls(**fields)


def _value(value: Any, kind: inspect.Type, name: str, result: Read) -> Any:
    """Return a value of the type; _UNUSABLE if there is none."""
    if isinstance(kind, inspect.UnionType):
        if value is None and any(isinstance(option, inspect.NoneType) for option in kind.types):
            return None
        return next(
            (usable for option in kind.types if (usable := _value(value, option, name, result)) is not _UNUSABLE),
            _UNUSABLE,
        )
    if isinstance(kind, inspect.StrType):
        return _text(value, name, result)
    if isinstance(kind, inspect.IntType | inspect.FloatType):
        return _number(value, kind, result)
    if isinstance(kind, inspect.ListType):
        return _list(value, kind, name, result)
    if isinstance(kind, inspect.StructType):
        return _struct(value, kind, result)
    if isinstance(kind, inspect.RawType):
        return _UNUSABLE
    return value if isinstance(kind, inspect.AnyType) else _UNUSABLE


def _list(value: Any, kind: inspect.ListType, name: str, result: Read) -> Any:
    if isinstance(value, dict):
        value, result.odd = [value] if value else [], True
    if not isinstance(value, list):
        return _UNUSABLE
    read_each = [_value(each, kind.item_type, name, result) for each in value]
    usable = [each for each in read_each if each is not _UNUSABLE]
    result.odd = result.odd or len(usable) < len(value)
    return usable


def _text(value: Any, name: str, result: Read) -> Any:
    if isinstance(value, str):
        text = sendable(value)
        result.odd = result.odd or text != value or "\ufffd" in text
        return value if name in _STREAMED else text
    result.odd = True
    if value is None or isinstance(value, bool):
        return _UNUSABLE
    if name in _JSON_TEXT:
        return sendable(json.dumps(value, ensure_ascii=False))
    if isinstance(value, dict) and (
        word := next((value[key] for key in _WORDS if isinstance(value.get(key), str)), None)
    ):
        return sendable(word)
    text, thought = text_of(value)
    return text or thought or _UNUSABLE


def _number(value: Any, kind: inspect.IntType | inspect.FloatType, result: Read) -> Any:
    if isinstance(value, str):
        result.odd = True
        try:
            value = float(value)
        except ValueError:
            return _UNUSABLE
    if not _is_number(value) or not math.isfinite(value):
        return _UNUSABLE
    if (kind.ge is not None and value < kind.ge) or (kind.le is not None and value > kind.le):
        return _UNUSABLE
    if isinstance(kind, inspect.FloatType):
        return float(value)
    return int(value) if value == int(value) else _UNUSABLE


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
