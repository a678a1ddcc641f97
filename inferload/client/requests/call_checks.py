"""Checks of the arguments of a locustfile task's call: names, numbers and headers."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from inferload.base.errors import UsageError, instead
from inferload.client.turn_record import MOST_MAX_TOKENS
from inferload.scenario.schema.endpoints import ENDPOINTS
from inferload.scenario.schema.fields import checked_headers

MOST_NAME_CHARACTERS = 100
_NAME = re.compile(r"[^\s{}]+")  # a blank marks other requests in gates, such as GET /health

OWN = (
    *("name", "max_tokens", "model", "temperature", "tools", "tool_choice", "headers", "timeout_s", "cancel_after_s"),
    *("catch_response", "extra_body"),
)
_OF_ANSWERS = ("max_tokens", "temperature", "tools", "tool_choice")
# Fields that the arguments set, and the way to set them.
_WRITTEN = {
    **{row.context_key: "is the first argument" for row in ENDPOINTS.values() if row.streamed},
    "stream": "is always on",
    "stream_options": "is always {'include_usage': True}",
    "n": "is always 1: one answer per turn",
    "max_completion_tokens": "is max_tokens here",
    "max_output_tokens": "is max_tokens here",
}


class CallError(UsageError, TypeError):
    """Invalid call: one line with the argument and the remedy. No request is counted."""


def check_not_written(method: str, name: str) -> None:
    """CallError for a field that the arguments set."""
    if name in _WRITTEN:
        raise CallError(f"{method}: {name} {_WRITTEN[name]}; leave it out")


def check_field(method: str, known: frozenset[str], name: str, also: Sequence[str] = ()) -> None:
    """CallError for a field that is none of the API's `known` ones: most are misspelled. `also`: other arguments of the method."""
    if name in known:
        return
    check_not_written(method, name)
    own_field = f"put a server-specific field into extra_body={{{name!r}: ...}}"
    remedy = instead(name, [*also, *OWN, *sorted(known)], own_field)
    raise CallError(f"{method}: unknown argument {name!r}; {remedy}")


def check_own(method: str, own: Mapping[str, Any], streamed: bool = True) -> None:
    """CallError for an invalid value of an argument that all methods have. `streamed`: those of answers with text are valid."""
    if not streamed and (name := next((key for key in own if key in _OF_ANSWERS), None)) is not None:
        raise CallError(f"{method}: {name} is of answers with text; leave it out")
    for key in ("timeout_s", "cancel_after_s"):
        value = own.get(key)
        if value is not None and not (isinstance(value, int | float) and value > 0):
            raise CallError(f"{method}: {key} is {value!r}; give seconds above 0")
    limit = own.get("max_tokens")
    whole = isinstance(limit, int) and not isinstance(limit, bool)
    if limit is not None and not (whole and 0 < limit <= MOST_MAX_TOKENS):
        raise CallError(f"{method}: max_tokens is {limit!r}; give a whole number from 1 to {MOST_MAX_TOKENS:,}")
    model = own.get("model")
    if model is not None and not (isinstance(model, str) and model.isprintable()):
        raise CallError(f"{method}: model is {model!r}; give the name of a model")
    name = own.get("name")
    if name is not None and not (isinstance(name, str) and _NAME.fullmatch(name) and name.isprintable()):
        raise CallError(f"{method}: name is {name!r}; give a word without blanks and braces, for tables and gates")
    if name is not None and len(name) > MOST_NAME_CHARACTERS:
        raise CallError(f"{method}: name has {len(name)} characters; give at most {MOST_NAME_CHARACTERS}")
    tools = own.get("tools")
    if tools is not None and not (isinstance(tools, list | tuple) and all(isinstance(tool, Mapping) for tool in tools)):
        raise CallError(f"{method}: tools is {type(tools).__name__}; give a list of tool definitions")


def headers_of(method: str, headers: Any) -> tuple[tuple[str, str], ...]:
    """Return the headers of a call. CallError for invalid ones."""
    if headers is None:
        return ()
    if not isinstance(headers, Mapping) or not all(isinstance(text, str) for pair in headers.items() for text in pair):
        raise CallError(f"{method}: headers is {type(headers).__name__}; give a dict of texts")
    for name, value in headers.items():
        if not (value.isascii() and value.isprintable()):
            raise CallError(f"{method}: header {name}: must be printable ASCII")
    try:
        return tuple(checked_headers(dict(headers)).items())
    except ValueError as error:
        raise CallError(f"{method}: header {str(error).replace('a scenario', 'a locustfile')}") from error


def input_of(method: str, value: Any, *, name: str, kind: type, items: str) -> Any:
    """Return a text, or a list of items of a kind, which must not be empty. CallError names what is wrong."""
    if isinstance(value, str) and value:
        return value
    if isinstance(value, list | tuple) and value and all(isinstance(item, kind) for item in value):
        return value
    problem = "empty" if value in ("", [], ()) else type(value).__name__
    raise CallError(f"{method}: {name} is {problem}; give text, or a list of {items}")
