"""One recorded request, common to all formats of traces, and helpers of their parsers."""

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

from inferload.workload.json_values import decode_json


class RecordedTurn(msgspec.Struct, frozen=True, gc=False):
    """Request of a trace. `at_s`: start time on the clock of the trace. None: not recorded."""

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


class TraceFault(Exception):
    """Line that is not in the given format. `text`: error message."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


Row = Mapping[str, Any]
# Line of a trace -> its requests; TraceFault for a line in another format.
Parser = Callable[[str], Iterable[RecordedTurn]]


def json_line(line: str) -> Any:
    """Return the value of a line of JSON. TraceFault for invalid JSON."""
    try:
        return decode_json(line.encode("utf-8", "surrogatepass"))
    except ValueError as error:
        raise TraceFault(f"not JSON: {error}") from None


def json_object(line: str) -> dict[str, Any]:
    """Return the JSON object of a line. TraceFault for any other value."""
    value = json_line(line)
    if not isinstance(value, dict):
        raise TraceFault("must be a JSON object")
    return value


def number_of(row: Row, key: str) -> float:
    """Return a finite number of at least 0. TraceFault for any other value."""
    value = row.get(key)
    if type(value) is int and 0 <= value < _PLAIN:  # most values
        return float(value)
    try:
        number = float("nan") if value is None or isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = float("nan")
    if not 0 <= number < float("inf"):
        problem = "is missing" if value in (None, "") else f"is {value!r}"
        raise TraceFault(f"{key} {problem}; it must be a number of at least 0")
    return number


_PLAIN = 1 << 53  # smaller integers are floats without rounding


def count_of(row: Row, key: str) -> int:
    """Return an integer of at least 0. TraceFault for any other value."""
    value = row.get(key)
    if type(value) is int and 0 <= value < _PLAIN:
        return value
    number = number_of(row, key)
    if not number.is_integer():
        raise TraceFault(f"{key} is {row[key]!r}; it must be a whole number")
    return int(number)


def blocks_of(row: Row, input_tokens: int, block_tokens: int) -> tuple[str, ...]:
    """Return the identities of a prompt's blocks, as many as its tokens fill. TraceFault for too few."""
    blocks = row.get("hash_ids")
    if not isinstance(blocks, list):
        raise TraceFault(f"hash_ids is missing; it must be a list, one identity for each {block_tokens} tokens")
    count = -(-input_tokens // block_tokens)
    if len(blocks) < count:
        raise TraceFault(
            f"hash_ids has {len(blocks)} identities, but {input_tokens} tokens fill {count} of {block_tokens}"
        )
    return tuple([str(block) for block in (blocks if len(blocks) == count else blocks[:count])])


def instant_s(name: str, text: object) -> float:
    """Return a date and time as seconds since 1970; UTC without an offset. Digits beyond microseconds are cut."""
    head, point, tail = str(text).strip().partition(".")
    digits = tail[: len(tail) - len(tail.lstrip("0123456789"))]
    try:
        instant = datetime.fromisoformat(head + (f".{digits[:6]:0<6}" if point else "") + tail[len(digits) :])
    except ValueError:
        raise TraceFault(f"{name} is {text!r}; it must be a date and time") from None
    return (instant if instant.tzinfo else instant.replace(tzinfo=UTC)).timestamp()
