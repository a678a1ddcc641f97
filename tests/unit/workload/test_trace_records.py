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

Request = tuple[float, int | None, int | None]  # start in s, tokens of prompt and answer; None: not recorded
Row = dict[str, Any]


def azure(request: Request) -> Row:
    return {
        "TIMESTAMP": f"2024-05-12 00:00:{request[0]:09.6f} UTC",
        "ContextTokens": request[1],
        "GeneratedTokens": request[2],
    }


def burstgpt(request: Request) -> Row:
    return {"Timestamp": request[0], "Request tokens": request[1], "Response tokens": request[2], "Session ID": None}


def blocks(request: Request, block: int) -> list[int]:
    return list(range(-(-(request[1] or 0) // block)))


def tracelab(request: Request) -> Row:
    events = [{"event_type": "text", "timestamp": f"2026-05-31T12:00:{request[0]:09.6f}Z"}]
    tokens = {"input_tokens_total": request[1], "output_tokens": request[2]}
    return {"session_id": f"s{request}", "timing_events": events, **tokens}


def attributes(request: Request, *names: str) -> Row:
    return {name: count for name, count in zip(names, request[1:], strict=True) if count is not None}


def times(request: Request) -> Row:
    return {"startTimeUnixNano": str(round(request[0] * 1e9)), "endTimeUnixNano": str(round(request[0] * 1e9))}


def otlp(request: Request) -> Row:
    usage = attributes(request, "gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens") | {
        "gen_ai.operation.name": "chat"
    }
    listed = [{"key": key, "value": {"intValue": str(value)}} for key, value in usage.items()]
    tool = {
        "attributes": [{"key": "gen_ai.operation.name", "value": {"stringValue": "execute_tool"}}],
        **times(request),
    }
    return {"resourceSpans": [{"scopeSpans": [{"spans": [tool, {"attributes": listed, **times(request)}]}]}]}


def openinference(request: Request) -> Row:
    counts = attributes(request, "prompt", "completion")
    return {
        "attributes": {"openinference": {"span": {"kind": "LLM"}}, "llm": {"token_count": counts}},
        **times(request),
    }


FORMS: Mapping[str, tuple[str, Callable[[Request], Row], bool]] = {  # format, record, whether keys may be added
    "mooncake": ("mooncake", lambda r: {"timestamp": r[0] * 1e3, "input_length": r[1], "output_length": r[2]}, True),
    "dynamo": ("mooncake", lambda r: {"created_time": r[0] * 1e3, "input_tokens": r[1], "output_tokens": r[2]}, True),
    "bailian": (
        "bailian",
        lambda r: {"timestamp": r[0], "input_length": r[1], "output_length": r[2], "hash_ids": blocks(r, 16)},
        True,
    ),
    "azure.csv": ("azure-2024", azure, True),
    "burstgpt.csv": ("burstgpt-2", burstgpt, True),
    "table.csv": ("csv", lambda r: {"at_s": r[0], "input_tokens": r[1], "output_tokens": r[2]}, True),
    "tracelab": ("tracelab", tracelab, True),
    "otlp": ("otel", otlp, False),
    "openinference": ("otel", openinference, False),
    "jsonl": ("jsonl", lambda r: {"at_s": r[0], "input_tokens": r[1], "output_tokens": r[2]}, False),
}
counts = st.integers(1, 2000)


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
    requests=st.lists(st.tuples(st.integers(0, 59), st.none() | counts, st.none() | counts), min_size=1, max_size=9),
    seed=st.integers(),
    empty=st.sampled_from([None, "", " ", "NaN", "null"]),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_any_records_of_a_format_are_sent_or_counted(
    tmp_path: Path, name: str, requests: list[Request], seed: int, empty: str | None
) -> None:
    form, record, extended = FORMS[name]
    requests.sort(key=lambda request: request[0])
    rows = []
    order = Random(seed)
    keys = None
    for request in requests:
        row = record(request) | ({"priority": 3, "Total cost": ""} if extended else {})
        keys = keys or order.sample(sorted(row), len(row))
        rows.append({key: empty if row[key] is None else row[key] for key in keys})
    whole = sorted(request[1:] for request in requests if None not in request)
    path = tmp_path / name
    if not whole:
        with pytest.raises(UsageError, match=r"no session to replay: .*\d without "):
            opened(path, form, rows)
        return
    sessions = opened(path, form, rows)
    index = sessions.index
    turns = [turn for number in range(len(index)) for turn in index.session(number)]
    assert sorted((turn.input_tokens, turn.output_tokens) for turn in turns if not turn.prefix_tokens) == whole
    assert sum(count for why, count in index.left_out.items() if why.startswith("without ")) == len(requests) - len(
        whole
    )
    assert dict(index.unused) == ({"priority": len(rows)} if extended else {})
    assert any("priority" in line for line in sessions.in_words()) == extended
    assert len(sessions.warnings()) == extended + sum("without " in why for why in index.left_out)
    begins = min(at for at, *tokens in requests if None not in tokens)
    assert sum(index.arrivals_s()) == pytest.approx(sum(at - begins for at, *tokens in requests if None not in tokens))


def asked(sessions: ReplaySessions, number: int) -> list[tuple[int, float, float | None, int]]:
    """Return prompt, pause before it, due time and images of each turn of a session."""
    asks = [turn.ask for turn in outline(sessions.script(number, Random(0), Notes()), number)]
    prompts = [sum(message.tokens or 0 for message in ask.messages) for ask in asks]
    images = [sum(len(message.images) for message in ask.messages) for ask in asks]
    return list(zip(prompts, [ask.pause_s for ask in asks], [ask.due_s for ask in asks], images, strict=True))


def test_sessions_and_delays_of_mooncake_lines(tmp_path: Path) -> None:
    def line(**keys: object) -> Row:
        return {"session_id": "a", "output_length": 10} | keys

    rows = [
        line(timestamp=1000, input_length=100),
        line(delay=2500, input_length=50),
        line(timestamp=9000, delay_ms=1500, input_length=30),
    ]
    sessions = opened(tmp_path / "t", "mooncake", rows)
    assert asked(sessions, 0) == [(100, 0, 0, 0), (160, 2.5, None, 0), (200, 0, 8, 0)]
    assert [turn[1] for turn in asked(opened(tmp_path / "t", "mooncake", rows, pacing="pauses"), 0)] == [0, 2.5, 1.5]
    assert "2 turns of sessions without hash_ids: input_length is new text behind the history" in sessions.in_words()
    whole = [line(timestamp=at, input_length=512 * at, hash_ids=list(range(at))) for at in (1, 2)]
    assert [turn[0] for turn in asked(opened(tmp_path / "t", "mooncake", whole), 0)] == [512, 1024]
    untimed = opened(tmp_path / "t", "mooncake", [line(input_length=100), line(delay=2500, input_length=50)])
    assert untimed.arrivals_s() is None
    assert asked(untimed, 0)[1] == (160, 2.5, None, 0)


def test_images_of_azures_multimodal_trace_are_sent(tmp_path: Path) -> None:
    rows = [azure((at, 100, 20)) | {"NumImages": images} for at, images in enumerate(("2", "", "0"))]
    sessions = opened(tmp_path / "t.csv", "azure-2025", rows, image_px=64)
    assert [asked(sessions, number)[0][3] for number in range(3)] == [2, 0, 0]
    assert "2 images, whose tokens are not in the planned lengths" in sessions.in_words()


def test_only_spans_of_requests_are_sent_and_failed_ones_are_counted(tmp_path: Path) -> None:
    def span(at_s: float, until_s: float, **more: Any) -> Row:
        usage = {"gen_ai.usage.input_tokens": 9, "gen_ai.usage.output_tokens": 3, "gen_ai.request.model": "m"}
        iso = {"start_time": f"2026-05-31T12:00:{at_s:04.1f}", "end_time": f"2026-05-31T12:00:{until_s:04.1f}"}
        named = {"gen_ai.operation.name": more.pop("operation", "chat")}
        return {"attributes": json.dumps(usage | named), **iso} | more

    spans = [
        span(0, 9, operation="invoke_agent"),
        span(1, 4),
        span(2, 3),  # while the one before is answered
        span(5, 6, status={"code": 2}),
        span(7, 8, operation="plan"),
        {"name": "without attributes"},
    ]
    sessions = opened(tmp_path / "t", "otel", [{"session_id": "x", "harness": "h", "spans": spans}])
    assert [turn.session for turn in sessions.index.session(0)] == ["x", "x"]
    assert sessions.index.left_out == {"that failed": 1}
    assert sessions.index.unused == {"gen_ai.request.model": 5}
    assert "1 turn began before the answer before had ended: sent after it" in sessions.in_words()


@pytest.mark.parametrize("zone", ["", "Z", "+00:00", " UTC", "utc", " GMT", " +00:00"])
@pytest.mark.parametrize("digits", ["", ".5", ".500000", ".500000000"])
def test_an_instant_is_read_with_any_digits_and_zone(zone: str, digits: str) -> None:
    assert instant_s("at", f"2024-05-12 00:00:01{digits}{zone}") == 1715472001 + (0.5 if digits else 0)
