"""Parsers of traces with one request a record: Mooncake, Bailian, Azure, BurstGPT, tables, and inferload's own."""

from msgspec import Struct

from inferload.workload.traces.turn import (
    RecordedTurn,
    Row,
    TraceFault,
    blocks_of,
    count_of,
    instant_s,
    is_missing,
    name_of,
    number_of,
)

MOONCAKE_BLOCK = 512
_KEYS = "timestamp input_length output_length hash_ids session_id delay type request_id context_mode"
# Other names that Dynamo accepts.
_ALIASES = {
    "created_time": "timestamp",
    "input_tokens": "input_length",
    "output_tokens": "output_length",
    "delay_ms": "delay",
}
MOONCAKE = (*_KEYS.split(), *_ALIASES)


def mooncake(row: Row) -> tuple[RecordedTurn]:
    """Parse `timestamp` in ms, `input_length`, `output_length`, optional `hash_ids` of 512 tokens, `session_id`, `delay` in ms.

    Requests with the same `session_id` follow each other, after `delay` if it is given. As AIPerf sends them, `input_length` is new
    text behind the history unless `context_mode` is an array of messages; with `hash_ids` it is the whole prompt, as for Dynamo.
    """
    if not _ALIASES.keys().isdisjoint(row):
        row = {_ALIASES.get(key, key): value for key, value in row.items()}
    tokens, session = count_of(row, "input_length"), name_of(row, "session_id")
    timed, hashed = not is_missing(row.get("timestamp")), not is_missing(row.get("hash_ids"))
    turn = RecordedTurn(
        number_of(row, "timestamp") / 1e3 if timed else 0.0,
        tokens,
        count_of(row, "output_length"),
        session=session,
        pause_s=None if is_missing(row.get("delay")) else number_of(row, "delay") / 1e3,
        blocks=blocks_of(row, tokens, MOONCAKE_BLOCK) if hashed else None,
        block_tokens=MOONCAKE_BLOCK,
        timed=timed,
        adds=session is not None and not hashed and row.get("context_mode") != "message_array_with_responses",
    )
    return (turn,)


BAILIAN_BLOCK = 16
BAILIAN = ("timestamp", "input_length", "output_length", "hash_ids", "chat_id", "parent_chat_id", "turn", "type")


def bailian(row: Row) -> tuple[RecordedTurn]:
    """Parse `timestamp` in s, `input_length`, `output_length`, `hash_ids` of 16 tokens each, `chat_id`, `parent_chat_id`.

    `chat_id` names a request; a conversation is a chain of requests with the `chat_id` of the request before, or -1.
    """
    tokens, parent = count_of(row, "input_length"), name_of(row, "parent_chat_id")
    turn = RecordedTurn(
        number_of(row, "timestamp"),
        tokens,
        count_of(row, "output_length"),
        session=name_of(row, "chat_id"),
        parent=None if parent == "-1" else parent,
        blocks=blocks_of(row, tokens, BAILIAN_BLOCK),
        block_tokens=BAILIAN_BLOCK,
    )
    return (turn,)


_OWN = {"at_s", "input_tokens", "output_tokens", "session", "ends_s", "hash_ids", "block_tokens"}


def own(row: Row) -> tuple[RecordedTurn]:
    """Parse `at_s`, `input_tokens`, `output_tokens`; optional: `session`, `ends_s`, `hash_ids` with `block_tokens`."""
    if unknown := row.keys() - _OWN:
        raise TraceFault(f"{min(unknown)}: unknown key")
    tokens = count_of(row, "input_tokens")
    hashed = not is_missing(row.get("hash_ids"))
    block_tokens = count_of(row, "block_tokens") if hashed else 0
    if hashed and not block_tokens:
        raise TraceFault("block_tokens is 0; it must be the tokens of the blocks of hash_ids")
    turn = RecordedTurn(
        number_of(row, "at_s"),
        tokens,
        count_of(row, "output_tokens"),
        session=name_of(row, "session"),
        ends_s=None if is_missing(row.get("ends_s")) else number_of(row, "ends_s"),
        blocks=blocks_of(row, tokens, block_tokens) if hashed else None,
        block_tokens=block_tokens,
    )
    return (turn,)


_UNITS_S = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


class TableColumns(Struct, frozen=True):
    """Names of the columns of a table. None: it has no such column. Times are dates (UTC without an offset) or numbers."""

    at: str = "at_s"
    input_tokens: str = "input_tokens"
    output_tokens: str = "output_tokens"
    session: str | None = None
    ends: str | None = None
    time_unit: str = "s"  # of times that are numbers
    lasts: str | None = None  # time from start to end
    images: str | None = None


AZURE = TableColumns("TIMESTAMP", "ContextTokens", "GeneratedTokens", images="NumImages")
BURSTGPT = TableColumns("Timestamp", "Request tokens", "Response tokens", "Session ID", lasts="Elapsed time")


def table(names: TableColumns, row: Row) -> tuple[RecordedTurn]:
    """Parse a row of a table. Columns of ends and images may be missing."""
    at_s = _time_s(names, names.at, row)
    ends_s, images = None, 0
    if names.ends is not None and not is_missing(row.get(names.ends)):
        ends_s = _time_s(names, names.ends, row)
    if names.lasts is not None and not is_missing(row.get(names.lasts)):
        ends_s = at_s + _time_s(names, names.lasts, row)
    if names.images is not None and not is_missing(row.get(names.images)):
        images = count_of(row, names.images)
    tokens = count_of(row, names.input_tokens), count_of(row, names.output_tokens)
    session = None if names.session is None else name_of(row, names.session)
    return (RecordedTurn(at_s, *tokens, session=session, ends_s=ends_s, images=images),)


def _time_s(names: TableColumns, name: str, row: Row) -> float:
    try:
        number = float(row[name])
    except ValueError:
        return instant_s(name, row[name])
    return (number if 0 < number < 1e30 else number_of(row, name)) * _UNITS_S[names.time_unit]
