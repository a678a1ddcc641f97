"""What a trace's record says of one request, whatever the trace's form."""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import msgspec


class RecordedTurn(msgspec.Struct, frozen=True, gc=False):
    """One request of a trace. `at_s`: when it was sent, on the trace's own clock. None: the trace does not say."""

    at_s: float
    input_tokens: int
    output_tokens: int
    session: str | None = None  # turns of one session belong together; None: a session of its own
    ends_s: float | None = None  # when its answer was complete
    blocks: tuple[str, ...] | None = None  # identities of the prompt's blocks: equal ones are equal text
    block_tokens: int = 0  # length of each but the last
    prefix_tokens: int | None = None  # of the prompt, how many are the same as in the turn before
    agent: str = ""  # a sub-agent's name; it works while the main one waits
    after: Literal["think", "tool"] = "think"  # what was waited for before it: a person, or a tool's results
    scope: str = ""  # what tells its blocks' identities from those of others, in front of each
    where: tuple[int, int] | None = None  # (offset, length) of it in the file, its blocks not read yet


class TraceFault(Exception):
    """A line that is not of the form that was named; the text is for people."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


Row = Mapping[str, Any]
# A line of a trace to the requests that it holds; TraceFault where it is none of that form.
Parser = Callable[[str], Iterable[RecordedTurn]]


_decode = msgspec.json.Decoder().decode


def json_line(line: str) -> Any:
    """The value that a line of JSON says."""
    try:
        return _decode(line)
    except (
        msgspec.MsgspecError,
        RecursionError,
    ):  # the slower one takes halves of surrogate pairs, and says where a fault is
        try:
            return json.loads(line)
        except (ValueError, RecursionError) as error:
            raise TraceFault(f"not JSON: {error}") from None


def json_object(line: str) -> dict[str, Any]:
    """The JSON object of a line."""
    value = json_line(line)
    if not isinstance(value, dict):
        raise TraceFault("must be a JSON object")
    return value


def number_of(row: Row, key: str) -> float:
    """A finite number, not negative."""
    value = row.get(key)
    if type(value) is int and 0 <= value < _PLAIN:  # as nearly all are
        return float(value)
    try:
        number = float("nan") if value is None or isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = float("nan")
    if not 0 <= number < float("inf"):
        what = "is missing" if value in (None, "") else f"is {value!r}"
        raise TraceFault(f"{key} {what}; it must be a number from 0 on")
    return number


_PLAIN = 1 << 53  # below, a whole number is a float without rounding


def count_of(row: Row, key: str) -> int:
    """A whole number from 0."""
    value = row.get(key)
    if type(value) is int and 0 <= value < _PLAIN:
        return value
    number = number_of(row, key)
    if not number.is_integer():
        raise TraceFault(f"{key} is {row[key]!r}; it must be a whole number")
    return int(number)


def blocks_of(row: Row, key: str, input_tokens: int, block_tokens: int) -> tuple[str, ...]:
    """The identities of a prompt's blocks: just as many as its tokens fill."""
    blocks = row.get(key)
    if not isinstance(blocks, list):
        raise TraceFault(f"{key} is missing; it must be a list, one identity for each {block_tokens} tokens")
    wanted = -(-input_tokens // block_tokens)
    if len(blocks) < wanted:
        raise TraceFault(
            f"{key} has {len(blocks)} identities, and {input_tokens} tokens fill {wanted} of {block_tokens}"
        )
    return tuple([str(block) for block in (blocks if len(blocks) == wanted else blocks[:wanted])])
