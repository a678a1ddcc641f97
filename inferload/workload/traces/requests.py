"""Parsers of traces with one request per line: Mooncake, Bailian, Azure 2023 and 2024, BurstGPT, and inferload's own."""

import csv
from collections.abc import Iterator

from msgspec import Struct

from inferload.workload.traces.turn import (
    Parser,
    RecordedTurn,
    Row,
    TraceFault,
    blocks_of,
    count_of,
    instant_s,
    json_object,
    number_of,
)

MOONCAKE_BLOCK = 512


def mooncake(line: str) -> tuple[RecordedTurn]:
    """Parse `timestamp` in ms, `input_length`, `output_length`, `hash_ids` of 512 tokens each."""
    row = json_object(line)
    tokens = count_of(row, "input_length")
    blocks = blocks_of(row, tokens, MOONCAKE_BLOCK)
    at_s = number_of(row, "timestamp") / 1e3
    return (RecordedTurn(at_s, tokens, count_of(row, "output_length"), blocks=blocks, block_tokens=MOONCAKE_BLOCK),)


BAILIAN_BLOCK = 16


def bailian(line: str) -> tuple[RecordedTurn]:
    """Parse `timestamp` in s, `input_length`, `output_length`, `hash_ids` of 16 tokens each, `chat_id`, `parent_chat_id`.

    `chat_id` names a request; a conversation is a chain of requests with the `chat_id` of the request before, or -1.
    """
    row = json_object(line)
    tokens = count_of(row, "input_length")
    parent, chat = row.get("parent_chat_id"), row.get("chat_id")
    turn = RecordedTurn(
        number_of(row, "timestamp"),
        tokens,
        count_of(row, "output_length"),
        session=None if chat is None else str(chat),
        parent=None if parent is None or str(parent) == "-1" else str(parent),
        blocks=blocks_of(row, tokens, BAILIAN_BLOCK),
        block_tokens=BAILIAN_BLOCK,
    )
    return (turn,)


def own(line: str) -> Iterator[RecordedTurn]:
    """Parse `at_s`, `input_tokens`, `output_tokens`; optional: `session`, `ends_s`, `hash_ids` with `block_tokens`."""
    row = json_object(line)
    unknown = set(row) - {"at_s", "input_tokens", "output_tokens", "session", "ends_s", "hash_ids", "block_tokens"}
    if unknown:
        raise TraceFault(f"{min(unknown)}: unknown key")
    tokens, session = count_of(row, "input_tokens"), row.get("session")
    block_tokens = count_of(row, "block_tokens") if "hash_ids" in row else 0
    if "hash_ids" in row and not block_tokens:
        raise TraceFault("block_tokens is 0; it must be the tokens of the blocks of hash_ids")
    yield RecordedTurn(
        number_of(row, "at_s"),
        tokens,
        count_of(row, "output_tokens"),
        session=None if session is None else str(session),
        ends_s=number_of(row, "ends_s") if "ends_s" in row else None,
        blocks=blocks_of(row, tokens, block_tokens) if "hash_ids" in row else None,
        block_tokens=block_tokens,
    )


def azure(header: str) -> Parser:
    """Parse `TIMESTAMP` (UTC; 2023: seven decimals, 2024: with an offset), `ContextTokens`, `GeneratedTokens`."""
    columns = _columns(header, ("TIMESTAMP", "ContextTokens", "GeneratedTokens"))

    def parse(line: str) -> Iterator[RecordedTurn]:
        row = _row(columns, line)
        yield RecordedTurn(
            instant_s("TIMESTAMP", row["TIMESTAMP"]), count_of(row, "ContextTokens"), count_of(row, "GeneratedTokens")
        )

    return parse


def burstgpt(header: str) -> Parser:
    """Parse `Timestamp` in s, `Request tokens`, `Response tokens`; since release 2.0 `Session ID`, `Elapsed time` in s."""
    columns = _columns(header, ("Timestamp", "Request tokens", "Response tokens"))

    def parse(line: str) -> Iterator[RecordedTurn]:
        row = _row(columns, line)
        at_s = number_of(row, "Timestamp")
        yield RecordedTurn(
            at_s,
            count_of(row, "Request tokens"),
            count_of(row, "Response tokens"),
            session=row.get("Session ID") or None,
            ends_s=at_s + number_of(row, "Elapsed time") if row.get("Elapsed time") else None,
        )

    return parse


_UNITS_S = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


class TableColumns(Struct, frozen=True):
    """Names of the columns of a table. None: it has no such column."""

    at: str = "at_s"
    input_tokens: str = "input_tokens"
    output_tokens: str = "output_tokens"
    session: str | None = None
    ends: str | None = None
    time_unit: str = "s"  # of times that are numbers


def table(names: TableColumns, header: str) -> Parser:
    """Parse a table with columns named by the user."""
    optional = [name for name in (names.session, names.ends) if name is not None]
    columns = _columns(header, (names.at, names.input_tokens, names.output_tokens, *optional))

    def at_s(row: Row, name: str) -> float:
        return number_of(row, name) * _UNITS_S[names.time_unit] if _is_number(row[name]) else instant_s(name, row[name])

    def parse(line: str) -> Iterator[RecordedTurn]:
        row = _row(columns, line)
        yield RecordedTurn(
            at_s(row, names.at),
            count_of(row, names.input_tokens),
            count_of(row, names.output_tokens),
            session=None if names.session is None else row[names.session].strip() or None,
            ends_s=at_s(row, names.ends) if names.ends is not None and row[names.ends].strip() else None,
        )

    return parse


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return not text.strip()  # a missing number
    return True


def _columns(header: str, required: tuple[str, ...]) -> list[str]:
    columns = [name.strip() for name in _cells(header)]
    missing = [name for name in required if name not in columns]
    if missing:
        raise TraceFault(f"the columns are {', '.join(columns) or 'none'}; {', '.join(missing)} is missing")
    return columns


def _cells(line: str) -> list[str]:
    try:
        return next(csv.reader([line.rstrip("\r\n")]), [])
    except csv.Error as error:
        raise TraceFault(f"not CSV: {error}") from None


def _row(columns: list[str], line: str) -> Row:
    cells = _cells(line)
    if len(cells) != len(columns):
        raise TraceFault(f"has {len(cells)} cells, the header has {len(columns)}")
    return dict(zip(columns, cells, strict=True))
