"""Records of traces in each format: any order of keys, keys that are not used, values that are missing, and sessions."""

import csv
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inferload.base.errors import UsageError
from inferload.scenario.schema.replay import Replay
from inferload.workload.content.data import DataContext, Notes
from inferload.workload.content.script import outline
from inferload.workload.replay import ReplaySessions
from inferload.workload.traces.turn import instant_s

Row = dict[str, Any]
Request = tuple[float, int | None, int | None]  # start in s, tokens of prompt and answer; None: not recorded


def keyed(*names: str, scale: float = 1.0, **more: object) -> Callable[[Request], Row]:
    """Return the function that makes a record of three keys, the time in 1 / scale s."""
    return lambda request: dict(zip(names, (request[0] * scale, *request[1:]), strict=True)) | more


def azure(request: Request) -> Row:
    date = f"2024-05-12 00:00:{request[0]:09.6f} UTC"
    return {"TIMESTAMP": date, "ContextTokens": request[1], "GeneratedTokens": request[2]}


def tracelab(request: Request) -> Row:
    events = [{"event_type": "text", "timestamp": f"2026-05-31T12:00:{request[0]:09.6f}Z"}]
    tokens = {"input_tokens_total": request[1], "output_tokens": request[2]}
    return {"session_id": f"s{request}", "timing_events": events, **tokens}


def span(request: Request, **attributes: object) -> Row:
    times = dict.fromkeys(("startTimeUnixNano", "endTimeUnixNano"), str(round((1 + request[0]) * 1e9)))
    return {"attributes": attributes} | times


def otlp(request: Request) -> Row:
    usage = keyed("", "gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens")(request)
    named = {"gen_ai.operation.name": "chat"} | usage
    attributes = [{"key": key, "value": {"value": value}} for key, value in named.items()]
    return {"resourceSpans": [{"scopeSpans": [{"spans": [span(request) | {"attributes": attributes}]}]}]}


def openinference(request: Request) -> Row:
    usage = keyed("", "prompt", "completion")(request)
    return span(request, openinference={"span": {"kind": "LLM"}}, llm={"token_count": usage})


def columns(request: Request) -> Row:
    usage = keyed("", "attributes.llm.token_count.prompt", "attributes.llm.token_count.completion")(request)
    return span(request) | {"context.trace_id": str(request), "attributes.openinference.span.kind": "LLM"} | usage


OWN, MOONCAKE = ("at_s", "input_tokens", "output_tokens"), ("timestamp", "input_length", "output_length")
BURSTGPT = ("Timestamp", "Request tokens", "Response tokens")
FORMS: Mapping[str, tuple[str, Callable[[Request], Row], bool]] = {  # format, record, whether keys may be added
    "mooncake": ("mooncake", keyed(*MOONCAKE, scale=1e3), True),
    "dynamo": ("mooncake", keyed("created_time", *OWN[1:], scale=1e3), True),
    "bailian": ("bailian", lambda row: keyed(*MOONCAKE, hash_ids=[*range(-(-(row[1] or 0) // 16))])(row), True),
    "azure.csv": ("azure-2024", azure, True),
    "burstgpt.csv": ("burstgpt-2", keyed(*BURSTGPT, **{"Session ID": None}), True),
    "table.csv": ("csv", keyed(*OWN), True),
    "tracelab": ("tracelab", tracelab, True),
    "otlp": ("otel", otlp, False),
    "openinference": ("otel", openinference, False),
    "openinference as columns": ("otel", columns, False),
    "jsonl": ("jsonl", keyed(*OWN), False),
    "nulls": ("jsonl", keyed(*OWN, **dict.fromkeys(("session", "ends_s", "hash_ids", "block_tokens"))), False),
    "no identities": ("jsonl", keyed(*OWN, hash_ids=[]), False),
    "mooncake without identities": ("mooncake", keyed(*MOONCAKE, scale=1e3, hash_ids=[]), True),
}
counts = st.none() | st.integers(1, 2000)


def opened(path: Path, form: str, rows: list[Row], **more: object) -> ReplaySessions:
    if path.suffix == ".csv":
        with path.open("w", newline="") as out:
            table = csv.DictWriter(out, rows[0])
            table.writeheader()
            table.writerows(rows)
    else:
        path.write_text("\n".join(map(json.dumps, rows)))
    workload = {"kind": "replay", "path": str(path), "format": form} | more
    return ReplaySessions(Replay.model_validate(workload), "replay", DataContext())


@given(
    name=st.sampled_from(sorted(FORMS)),
    requests=st.lists(st.tuples(st.integers(0, 59), counts, counts), min_size=1, max_size=9, unique=True),
    seed=st.integers(),
    empty=st.sampled_from([None, "", " ", "NaN", "null"]),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_any_records_of_a_format_are_sent_or_counted(
    tmp_path: Path, name: str, requests: list[Request], seed: int, empty: str | None
) -> None:
    form, record, extended = FORMS[name]
    requests.sort(key=lambda request: request[0])
    more = {"priority": 3, "model": "m", "Total cost": ""} if extended else {}
    rows = [record(request) | more for request in requests]
    keys = Random(seed).sample(sorted(rows[0]), len(rows[0]))
    rows = [{key: empty if row[key] is None else row[key] for key in keys} for row in rows]
    whole = sorted(tuple(tokens) for _, *tokens in requests if None not in tokens)
    if not whole:
        with pytest.raises(UsageError, match=r"no session to replay: .*\d without "):
            opened(tmp_path / name, form, rows)
        return
    sessions = opened(tmp_path / name, form, rows)
    index = sessions.index
    turns = [turn for number in range(len(index)) for turn in index.session(number)]
    assert sorted((turn.input_tokens, turn.output_tokens) for turn in turns) == whole
    assert sum(index.left_out.values()) == len(requests) - len(whole)
    assert dict(index.unused) == ({"priority": len(rows)} if extended else {})
    assert len(sessions.warnings()) == extended + len(index.left_out)
    assert set(index.losses()) <= set(sessions.in_words())
    starts_s = [at_s for at_s, *tokens in requests if None not in tokens]
    assert list(index.arrivals_s()) == pytest.approx([at_s - starts_s[0] for at_s in starts_s])


def asked(sessions: ReplaySessions, number: int = 0) -> list[tuple[int, float, float | None, int]]:
    """Return prompt, pause before it, due time and images of each turn of a session."""
    asks = [turn.ask for turn in outline(sessions.script(number, Random(0), Notes()), number)]
    prompts = [sum(message.tokens or 0 for message in ask.messages) for ask in asks]
    images = [sum(len(message.images) for message in ask.messages) for ask in asks]
    return list(zip(prompts, [ask.pause_s for ask in asks], [ask.due_s for ask in asks], images, strict=True))


def test_sessions_and_delays_of_mooncake_lines(tmp_path: Path) -> None:
    def lines(*keys: Row, **more: object) -> ReplaySessions:
        rows = [{"session_id": "a", "output_length": 10} | each for each in keys]
        return opened(tmp_path / "t", "mooncake", rows, **more)

    first, second = {"timestamp": 1000, "input_length": 100}, {"delay": 2500, "input_length": 50}
    third = {"timestamp": 9000, "delay": 1500, "input_length": 30}
    sessions = lines(first, second, third)
    assert asked(sessions) == [(100, 0, 0, 0), (160, 2.5, None, 0), (200, 0, 8, 0)]
    assert [turn[1] for turn in asked(lines(first, second, third, pacing="pauses"))] == [0, 2.5, 1.5]
    whole = [{"timestamp": at, "input_length": 512 * at, "hash_ids": list(range(at))} for at in (1, 2)]
    assert [turn[0] for turn in asked(lines(*whole))] == [512, 1024]
    array = {"context_mode": "message_array_with_responses", "input_length": 100}
    assert [turn[0] for turn in asked(lines({"timestamp": 0} | array, array | {"input_length": 300}))] == [100, 300]
    untimed = lines({"input_length": 100}, second)
    assert (untimed.arrivals_s(), asked(untimed)[1]) == (None, (160, 2.5, None, 0))
    mixed = lines(first, {"session_id": "b", "input_length": 100}, {"session_id": None, "input_length": 7})
    assert (len(mixed.index), sum(mixed.index.left_out.values()), mixed.index.turns) == (1, 2, 1)


def test_images_of_azures_multimodal_trace_are_sent(tmp_path: Path) -> None:
    rows = [azure((at, 100, 20)) | {"NumImages": images} for at, images in enumerate(("2", "", "0"))]
    sessions = opened(tmp_path / "t.csv", "azure-2025", rows, image_px=64)
    assert [asked(sessions, number)[0][3] for number in range(3)] == [2, 0, 0]
    told = "2 images, each one of 64 that servers may cache, whose tokens are not in the planned lengths"
    assert told in sessions.in_words()


def test_only_spans_of_requests_are_sent_and_failed_ones_are_counted(tmp_path: Path) -> None:
    def span(at_s: int, until_s: int, operation: str = "chat", reason: str = "stop", **more: Any) -> Row:
        usage = {"gen_ai.usage.input_tokens": 9, "gen_ai.usage.output_tokens": 3, "gen_ai.usage.image.input_tokens": 1}
        kind = {"gen_ai.operation.name": operation, "gen_ai.response.finish_reasons": [reason]}
        times = {key: f"2026-05-31T12:00:{s:02}" for key, s in (("start_time", at_s), ("end_time", until_s))}
        return {"attributes": json.dumps(usage | kind), **times} | more

    states: tuple[Row, ...] = ({"status": {"code": 2}}, {"status": {"status_code": "ERROR"}}, {"error.type": "timeout"})
    failed, untimed = [span(5, 6, **state) for state in states], span(7, 8, start_time=None, startTimeUnixNano="0")
    others = [span(0, 9, "invoke_agent"), span(7, 8, "plan"), {"name": "without attributes"}, span(7, 8, "stream")]
    others.append({"attributes": [{"key": "user", "value": None}]})
    spans = [*others, span(2, 3), span(1, 4, reason="tool_calls"), span(3, 5), span(6, 7), untimed, *failed]
    sessions = opened(tmp_path / "t", "otel", [{"session_id": "x", "harness": "h", "spans": spans}])
    turns = [(turn.session, turn.after, turn.agent) for turn in sessions.index.session(0)]
    assert turns == [("x", "think", ""), ("x", "tool", "2"), ("x", "think", "2"), ("x", "think", "2")]
    begun = [(turn.ask.due_s, turn.path) for turn in outline(sessions.script(0, Random(0), Notes()), 0)]
    assert sorted(begun) == [(0, ""), (1, "/2"), (2, "/2"), (5, "/2")]
    assert sessions.index.left_out == {"that failed": 3, "without start_time": 1, "of the unknown operation stream": 1}
    assert sessions.index.unused == {"gen_ai.usage.image.input_tokens": 11}
    assert (
        "2 turns began before the answer before had ended: sent beside it, as of another agent" in sessions.in_words()
    )


@pytest.mark.parametrize("zone", ["", "Z", "+00:00", " UTC", "utc", " GMT", " +00:00"])
@pytest.mark.parametrize("digits", ["", ".5", ".500000", ".500000000"])
def test_an_instant_is_read_with_any_digits_and_zone(zone: str, digits: str) -> None:
    assert instant_s("at", f"2024-05-12 00:00:01{digits}{zone}") == 1715472001 + (0.5 if digits else 0)
