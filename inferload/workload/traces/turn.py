"""One recorded request, common to all formats of traces, and helpers of their parsers."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from math import isnan
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from inferload.workload.json_values import decode_json


class RecordedTurn(msgspec.Struct, frozen=True, gc=False):
    """Request of a trace. `at_s`: start time on the clock of the trace, if it is `timed`. None: not recorded.

    `adds`: its input tokens are new text behind the history of its session. `completed` returns whole prompts and times.
    """

    at_s: float
    input_tokens: int
    output_tokens: int
    session: str | None = None  # None: a separate session
    parent: str | None = None  # session of an earlier turn that this one continues
    ends_s: float | None = None  # end time of the answer
    pause_s: float | None = None  # recorded time between the answer before, of the same agent, and this request
    blocks: tuple[str, ...] | None = None  # identities of the prompt's blocks: equal ones are equal text
    block_tokens: int = 0  # tokens of each block but the last; tokens beyond the blocks are text of this turn
    prefix_tokens: int | None = None  # tokens of the prompt that it shares with the previous turn
    agent: str = ""  # path of a sub-agent: its name after those of the sub-agents that started it, separated by /
    after: Literal["think", "tool"] = "think"  # kind of pause before it: a person, or tools
    scope: str = ""  # prefix of its block identities
    where: tuple[int, int] | None = None  # (offset, length) in the file, if its blocks are not read yet
    timed: bool = True
    adds: bool = False
    calls: bool = False  # its answer calls tools, which the next turn of the session waits for
    images: int = 0


def ended_s(turn: RecordedTurn) -> float:
    """Return the end of a turn's answer, or its start if no end after it is recorded."""
    return turn.at_s if turn.ends_s is None else max(turn.at_s, turn.ends_s)


def completed(turns: Sequence[RecordedTurn]) -> list[RecordedTurn]:
    """Return the turns of a session, given as in the file, by time. One without a time follows that before by its pause."""
    whole = list(turns[:1])
    for turn in turns[1:]:
        before = whole[-1]
        at_s = turn.at_s if turn.timed else ended_s(before) + (turn.pause_s or 0.0)
        tokens = before.input_tokens + before.output_tokens if turn.adds else 0
        whole.append(replace(turn, at_s=at_s, input_tokens=tokens + turn.input_tokens))
    whole.sort(key=lambda turn: turn.at_s)
    return [
        replace(turn, after="tool") if before is not None and before.calls else turn
        for before, turn in zip([None, *whole], whole, strict=False)
    ]


class TraceFault(Exception):
    """Line that is not in the given format. `text`: error message."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


class Missing(TraceFault):
    """Request without a value that it needs. It is left out, and counted by the text."""


Row = Mapping[str, Any]
# Record of a trace -> its requests, and reasons why others are left out; TraceFault for a record in another format.
Parser = Callable[[Any], Iterable[RecordedTurn | str]]

_NO_VALUE = {"", "nan", "null", "none", "na", "n/a", "-", "\\n"}  # cells without a value, in lower case


def is_missing(value: object) -> bool:
    """Return whether a value of JSON or a cell of a table is none."""
    if isinstance(value, str):
        return value.strip().lower() in _NO_VALUE
    return isnan(value) if isinstance(value, float) else value is None or (isinstance(value, list | dict) and not value)


def beyond(*known: str) -> Callable[[Row], Sequence[str]]:
    """Return the function from a record to its unknown keys with a value. Models and the index of a table do not count."""
    names = frozenset((*known, "model", "Model", ""))

    def unknown(row: Row) -> Sequence[str]:
        if names.issuperset(row):
            return ()
        return [key for key in row.keys() - names if not is_missing(row[key]) and not key.startswith("Unnamed: ")]

    return unknown


def name_of(row: Row, *keys: str) -> str | None:
    """Return the first name that a record has, as a text; None without one."""
    for key in keys:
        value = row.get(key)
        if not is_missing(value):  # whole numbers of a column in which others are missing are floats
            return str(int(value) if isinstance(value, float) and value.is_integer() else value).strip()
    return None


def json_value(text: bytes) -> Any:
    """Return the value of a text in JSON. TraceFault for another text, UnicodeDecodeError for one that is not UTF-8."""
    try:
        return decode_json(text)
    except UnicodeDecodeError:
        raise
    except ValueError as error:
        raise TraceFault(f"not JSON: {error}") from None


def json_object(text: bytes) -> dict[str, Any]:
    """Return the JSON object of a text. TraceFault for any other value."""
    value = json_value(text)
    if not isinstance(value, dict):
        raise TraceFault("must be a JSON object")
    return value


def number_of(row: Row, key: str) -> float:
    """Return a finite number of at least 0. Missing for none, TraceFault for any other value."""
    value = row.get(key)
    if type(value) is int and 0 <= value < _PLAIN:  # most values
        return float(value)
    try:
        number = float("nan") if value is None or isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = float("nan")
    if 0 <= number < float("inf"):
        return number
    if is_missing(value):
        raise Missing(f"without {key}")
    raise TraceFault(f"{key} is {value!r}; it must be a number of at least 0")


_PLAIN, _DIGITS = 1 << 53, 16  # integers that are smaller, or have fewer digits, are floats without rounding


def count_of(row: Row, key: str) -> int:
    """Return an integer of at least 0. Missing for none, TraceFault for any other value."""
    value = row.get(key)
    if type(value) is int and 0 <= value < _PLAIN:
        return value
    if type(value) is str and value.isdecimal() and len(value) < _DIGITS:  # most cells
        return int(value)
    number = number_of(row, key)
    if not number.is_integer():
        raise TraceFault(f"{key} is {row[key]!r}; it must be a whole number")
    return int(number)


def blocks_of(row: Row, input_tokens: int, block_tokens: int) -> tuple[str, ...]:
    """Return the identities of a prompt's blocks, as many as its tokens fill. TraceFault for fewer, or more than one more."""
    blocks = row.get("hash_ids")
    if is_missing(blocks):
        raise Missing("without hash_ids")
    if not isinstance(blocks, list):
        raise TraceFault(f"hash_ids is no list; it must have one identity for each {block_tokens} tokens")
    count = -(-input_tokens // block_tokens)
    if input_tokens and not count <= len(blocks) <= count + 1:
        raise TraceFault(
            f"hash_ids has {len(blocks)} identities, but {input_tokens} tokens fill {count} of {block_tokens}; "
            "blocks of another size need format jsonl with block_tokens"
        )
    return tuple([str(block) for block in (blocks if len(blocks) == count else blocks[:count])])


def instant_s(name: str, text: object) -> float:
    """Return a date and time as seconds since 1970; UTC without an offset. Digits beyond microseconds are cut."""
    if is_missing(text):
        raise Missing(f"without {name}")
    try:
        instant = datetime.fromisoformat(_ZONE.sub(lambda zone: "Z" if zone[0].strip() else "", str(text).strip()))
    except ValueError:
        raise TraceFault(f"{name} is {text!r}; it must be a date and time") from None
    return (instant if instant.tzinfo else instant.replace(tzinfo=UTC)).timestamp()


_ZONE = re.compile(r"\s*(?:UTC|GMT)$|\s+(?=[+-]\d)", re.I)
