"""What may stand in single fields of a scenario: names, headers, what a request may carry, gates."""

import json
import re
from typing import Annotated, Any

from pydantic import AfterValidator, Field, JsonValue, PlainSerializer

from inferload.results import abort_conditions
from inferload.scenario.schema.frozen import freeze, thaw
from inferload.verdict import gates

# What inferload writes into every request itself, and where a scenario says it instead.
RESERVED = {
    "model": "is --model of the run, or request.models",
    "messages": "come from the workload",
    "prompt": "comes from the workload",
    "input": "comes from the workload",
    "system": "comes from the workload",
    "stream": "is always on",
    "stream_options": "are set by request.continuous_usage",
    "max_tokens": "is workload.output_tokens",
    "max_completion_tokens": "is workload.output_tokens",
    "max_output_tokens": "is workload.output_tokens",
    "ignore_eos": "is request.ignore_eos",
    "cache_salt": "is set by cache.isolate",
    "n": "is always 1: one answer a turn",
}
# Headers that carry a key, or that the sender itself must set so that the request can be read.
_SECRET_WORDS = {"apikey", "auth", "authorization", "cookie", "key", "password", "secret", "token"}


def secret_header(name: str) -> bool:
    """Whether a header's name says that its value is a key: one of its words is such a word."""
    return not _SECRET_WORDS.isdisjoint(name.strip().lower().replace("_", "-").split("-"))


OWN_HEADERS = {"host", "content-length", "content-type", "transfer-encoding", "connection", "accept", "expect"}


def _name(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", value):
        raise ValueError("must be letters, digits, '.', '_' or '-', at most 64: it names the run's directory")
    return value


def _version(value: int) -> int:
    if value != 1:
        raise ValueError(f"is {value}; this version reads schema 1")
    return value


def _gate(value: str) -> str:
    gates.parse(value)
    return value


def _abort_condition(value: str) -> str:
    abort_conditions.parse(value)
    return value


def _header(value: str) -> str:
    if not re.fullmatch(r"[\x20-\x7e]*", value):
        raise ValueError("may hold printable ASCII only")
    return value


def _salt(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", value):
        raise ValueError("must be letters, digits, '.', '_' or '-', at most 100")
    return value


def checked_headers(value: dict[str, str]) -> dict[str, str]:
    for name in value:
        if not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", name):
            raise ValueError(f"{name!r} is no header name")
        if secret_header(name):
            raise ValueError(f"{name}: a key does not belong into a scenario; use --api-key-file or OPENAI_API_KEY")
        if name.lower() in OWN_HEADERS:
            raise ValueError(f"{name} is set by inferload itself; remove it")
    return value


def _affinity_header(value: str) -> str:
    return next(iter(checked_headers({value: ""})))


def _extra_body(value: dict[str, JsonValue]) -> dict[str, JsonValue]:
    for key in value:
        if key in RESERVED:
            raise ValueError(f"{key} {RESERVED[key]}; remove it here")
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        raise ValueError("holds a number that is not finite; JSON has none") from None
    return value


Json = Annotated[
    dict[str, JsonValue], AfterValidator(_extra_body), AfterValidator(freeze), PlainSerializer(thaw, dict[str, Any])
]
Headers = Annotated[
    dict[str, Annotated[str, AfterValidator(_header)]],
    AfterValidator(checked_headers),
    AfterValidator(freeze),
    PlainSerializer(thaw, dict[str, str]),
]
HeaderName = Annotated[str, AfterValidator(_affinity_header)]
Name = Annotated[str, AfterValidator(_name)]
Version = Annotated[int, AfterValidator(_version)]
Salt = Annotated[str, AfterValidator(_salt)]
AbortConditions = Annotated[tuple[Annotated[str, AfterValidator(_abort_condition)], ...], Field(strict=False)]
Gates = Annotated[tuple[Annotated[str, AfterValidator(_gate)], ...], Field(strict=False)]
