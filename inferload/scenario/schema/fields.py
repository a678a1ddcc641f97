"""Validated field types of a scenario: names, headers, request bodies, gates; immutable mappings for free-form values."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, Field, JsonValue, PlainSerializer

from inferload.figures.limits import abort_condition
from inferload.figures.limits.parsed_gate import parse_compared, parse_gate
from inferload.scenario.schema.endpoints import ENDPOINTS


class Frozen(Mapping[str, Any]):
    """Immutable mapping; equal to any mapping with the same items, copyable, picklable."""

    __slots__ = ("_items",)

    def __init__(self, items: Mapping[str, Any]) -> None:
        self._items = dict(items)

    def __getitem__(self, key: str) -> Any:
        return self._items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __repr__(self) -> str:
        return repr(self._items)


def freeze(value: Any) -> Any:
    """Return the value with mappings as `Frozen` and lists as tuples."""
    if isinstance(value, Mapping):
        return Frozen({key: freeze(item) for key, item in value.items()})
    return tuple(freeze(item) for item in value) if isinstance(value, list | tuple) else value


def thaw(value: Any) -> Any:
    """Return the frozen value as plain dicts and lists."""
    if isinstance(value, Mapping):
        return {key: thaw(item) for key, item in value.items()}
    return [thaw(item) for item in value] if isinstance(value, tuple) else value


# Body keys that inferload sets, and the keys of a scenario that control them.
RESERVED = {
    "model": "is --model of the run, or request.models",
    **{row.context_key: "comes from the workload" for row in ENDPOINTS.values() if row.streamed},
    "messages": "come from the workload",
    "system": "comes from the workload",
    "stream": "is always on",
    "stream_options": "are set by request.usage and request.continuous_usage",
    "max_tokens": "is workload.output_tokens",
    "max_completion_tokens": "is workload.output_tokens",
    "max_output_tokens": "is workload.output_tokens",
    "ignore_eos": "is request.ignore_eos",
    "cache_salt": "is set by cache.isolate",
    "n": "is always 1: one answer per turn",
}
# Words of the names of headers that carry credentials.
_SECRET_WORDS = {"apikey", "auth", "authorization", "cookie", "key", "password", "secret", "token"}


def secret_header(name: str) -> bool:
    """Return whether a word of the header's name marks a credential."""
    return not _SECRET_WORDS.isdisjoint(name.strip().lower().replace("_", "-").split("-"))


# Headers that inferload sets.
OWN_HEADERS = {"host", "content-length", "content-type", "transfer-encoding", "connection", "accept", "expect"}


def parsed_by(parse: Callable[[str], object]) -> AfterValidator:
    """Refuse a text that `parse` refuses; another one stays a text."""

    def checked(value: str) -> str:
        parse(value)
        return value

    return AfterValidator(checked)


def matching(pattern: str, problem: str) -> AfterValidator:
    """Refuse a text that does not match as a whole; `problem` says so."""

    def check(value: str) -> None:
        if not re.fullmatch(pattern, value):
            raise ValueError(problem)

    return parsed_by(check)


def word(most: int, use: str = "") -> AfterValidator:
    """Refuse a text that is no word of at most so many characters. `use`: why it must be one, for the error message."""
    pattern = rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{most - 1}}}"
    return matching(pattern, f"must be letters, digits, '.', '_' or '-', at most {most}{use}")


def _version(value: int) -> int:
    if value != 1:
        raise ValueError(f"is {value}; this version of inferload reads schema 1")
    return value


def _header_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", name):
        raise ValueError(f"{name!r} is not a valid header name")
    if name.lower() in OWN_HEADERS:
        raise ValueError(f"{name} is set by inferload; remove it")
    return name


def checked_headers(value: dict[str, str]) -> dict[str, str]:
    for name in map(_header_name, value):
        if secret_header(name):
            raise ValueError(f"{name}: credentials are not allowed in a scenario; use --api-key-file or OPENAI_API_KEY")
    return value


def _token_header(name: str) -> str:
    if name.lower() in ("set-cookie", "cookie"):
        raise ValueError(f"{name}: cookies are sent back by request.cookies; name the header of a token")
    return _header_name(name)


def _affinity_header(value: str) -> str:
    return next(iter(checked_headers({value: ""})))


def no_json(body: Mapping[str, Any]) -> str:
    """Return why the answers are no JSON, an option of vLLM; "" if they are."""
    if (encoding := body.get("encoding_format")) in ("bytes", "bytes_only"):
        return f"encoding_format is {encoding}, not JSON; use float or base64"
    return ""


def _extra_body(value: dict[str, JsonValue]) -> dict[str, JsonValue]:
    if problem := no_json(value):
        raise ValueError(problem)
    for key in value:
        if key in RESERVED:
            raise ValueError(f"{key} {RESERVED[key]}; remove it here")
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        raise ValueError("contains a number that is not finite; JSON has no such numbers") from None
    return value


Json = Annotated[
    dict[str, JsonValue], AfterValidator(_extra_body), AfterValidator(freeze), PlainSerializer(thaw, dict[str, Any])
]
Headers = Annotated[
    dict[str, Annotated[str, matching(r"[\x20-\x7e]*", "must be printable ASCII")]],
    AfterValidator(checked_headers),
    AfterValidator(freeze),
    PlainSerializer(thaw, dict[str, str]),
]
HeaderName = Annotated[str, AfterValidator(_affinity_header)]
TokenHeader = Annotated[str, AfterValidator(_token_header)]
Name = Annotated[str, word(64, ": it is part of the run directory's name")]
Version = Annotated[int, AfterValidator(_version)]
Salt = Annotated[str, word(100)]
AbortConditions = Annotated[tuple[Annotated[str, parsed_by(abort_condition.parse)], ...], Field(strict=False)]
Gate = Annotated[str, parsed_by(parse_gate)]
Term = Annotated[str, parsed_by(lambda text: parse_gate(f"{text} < 0"))]  # a figure as in a gate
Primary = Annotated[str, parsed_by(lambda text: text and parse_compared(text))]  # empty: by default


def _full_name(name: str) -> str:
    from inferload.scenario.rule_sets import rule_set  # of few scenarios

    return rule_set(name).name


Rules = Annotated[str, AfterValidator(_full_name)]
Gates = Annotated[tuple[Gate, ...], Field(strict=False)]
