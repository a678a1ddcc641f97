"""Traces in tables whose columns the user names, and instants in seconds since 1970."""

import csv
import json
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inferload.base.errors import UsageError
from inferload.scenario.schema.replay import Replay, TraceWindow
from inferload.workload.content.data import DataContext
from inferload.workload.replay import ReplaySessions
from inferload.workload.traces.formats import FORMATS
from inferload.workload.traces.index import TraceIndex
from inferload.workload.traces.turn import ended_s

UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


@given(
    requests=st.lists(
        st.tuples(st.integers(0, 10**6), st.integers(1, 99), st.integers(1, 99), st.sampled_from(["", "a", "b"])),
        min_size=1,
        max_size=8,
    ),
    names=st.permutations(["when", "prompt tokens", "out,put", "user", "until", "model"]),
    unit=st.sampled_from([*UNITS, "date", "date without an offset"]),
    epoch=st.booleans(),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_table_has_the_columns_that_the_user_names(
    *, tmp_path: Path, requests: list[tuple[int, int, int, str]], names: list[str], unit: str, epoch: bool
) -> None:
    def shown(at_ms: int) -> str:
        instant_ms = at_ms + (1_700_000_000_000 if epoch or unit not in UNITS else 0)
        if unit in UNITS:
            return str(instant_ms * UNITS[unit] // 1000) if unit != "s" else f"{instant_ms / 1000:.3f}"
        date = datetime.fromtimestamp(instant_ms / 1000, UTC)
        return date.isoformat() if unit == "date" else date.replace(tzinfo=None).isoformat(" ")

    file = tmp_path / "t.csv"
    with file.open("w", newline="") as out:
        table = csv.DictWriter(out, names)
        table.writeheader()
        for at_ms, prompt, answer, user in requests:
            cells = {"when": shown(at_ms), "prompt tokens": prompt, "out,put": answer, "user": user, "model": 'a "b"'}
            table.writerow(cells | {"until": shown(at_ms + 500)})
    columns = {
        "at": "when",
        "input_tokens": "prompt tokens",
        "output_tokens": "out,put",
        "session": "user",
        "ends": "until",
    }
    if unit in UNITS:
        columns["time_unit"] = unit
    workload = {"kind": "replay", "path": str(file), "format": "csv", "columns": columns, "pacing": "pauses"}
    opened = ReplaySessions(Replay.model_validate(workload), "replay", DataContext())
    turns = [turn for number in range(len(opened.index)) for turn in opened.index.session(number)]
    sent = [(turn.input_tokens, turn.output_tokens, turn.session or "") for turn in turns]
    assert Counter(sent) == Counter((prompt, answer, user) for _, prompt, answer, user in requests)
    assert all((turn.ends_s or 0) - turn.at_s == pytest.approx(0.5, abs=1e-3) for turn in turns)
    first_ms = min(at_ms for at_ms, *_ in requests)
    starts = {}
    for number, (at_ms, _, _, user) in enumerate(requests):
        key = user or number
        starts[key] = min(starts.get(key, at_ms), at_ms)
    assert list(opened.index.arrivals_s()) == pytest.approx(
        sorted((at - first_ms) / 1000 for at in starts.values()), abs=1e-3
    )


def opened(file: Path, text: str, form: str = "csv", **more: Any) -> ReplaySessions:
    file.write_text(text)
    names = {"at": "t", "input_tokens": "in", "output_tokens": "out"}
    columns = {"columns": names | more.pop("columns", {})} if form == "csv" else {}
    workload = {"kind": "replay", "path": str(file), "format": form, **columns, **more}
    return ReplaySessions(Replay.model_validate(workload), "replay", DataContext())


@pytest.mark.parametrize(
    ("text", "more", "message"),
    [
        ("t,in\n1,2", {}, "t.csv:1: the columns are t, in; out is missing"),
        ("", {}, "t.csv:1: the columns are none; t, in, out is missing"),
        ("t,in,in,out\n1,2,3,4", {}, "t.csv:1: column in is there twice; rename one of them"),
        ("t,in,out\n1,2,3\n1,2", {}, "t.csv:3: 2 fields, the header has 3"),
        ('t,in,out\n1,2,"3\n', {}, "t.csv:2: the file ends within a quoted field"),
        ('t,in,out\n1,2,"3"4\n', {}, "t.csv:2: not CSV: "),
        ("t,in,out\n1700000000000,2,3", {}, "t.csv:2: time 1700000000000 s, .* is it in another unit"),
        ("t,in,out\n5,2,3\n2024-05-01 00:00:00,2,3", {}, "t.csv:3: time 1714521600 s, .* is it in another unit"),
        ('{"timestamp": 1700000000000, "input_length": 2, "output_length": 3, "hash_ids": [1]}', {"form": "bailian"},
         ":1: time 1700000000000 s, .* is it in another unit"),
        ('{"timestamp": 0, "input_length": 999, "output_length": 3, "hash_ids": [1, 2, 3, 4, 5, 6, 7, 8]}', {"form": "mooncake"},
         ":1: hash_ids has 8 identities, but 999 tokens fill 2 of 512; .* jsonl with block_tokens"),
    ],
)  # fmt: skip
def test_a_trace_that_would_be_misread_is_refused(
    tmp_path: Path, text: str, more: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        opened(tmp_path / "t.csv", text, **more)


def test_an_index_and_quoted_lines_change_nothing_and_an_end_before_its_start_is_none(tmp_path: Path) -> None:
    text = '\ufeff,t,in,out,end,"user",Unnamed: 6,text\r\n0,1,2,3,0.4,a,x,"a\n\nb"\r\n\r\n1,4,5,6,9,a,y,c\r\n'
    sessions = opened(tmp_path / "t.csv", text, columns={"session": "user", "ends": "end"}, pacing="pauses")
    assert [(turn.at_s, turn.input_tokens, ended_s(turn)) for turn in sessions.index.session(0)] == [
        (1, 2, 1),
        (4, 5, 9),
    ]
    assert sessions.index.unused == {"text": 2}
    assert "1 turn with an end before the start: the end is not used" in sessions.in_words()


def test_epoch_seconds_are_printed_in_full(tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    lines = [{"at_s": at_s, "input_tokens": 1, "output_tokens": 1} for at_s in (1_700_000_001.25, 1_700_000_000)]
    file.write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(UsageError, match=r"time 1700000000 s is before 1700000001.25 s of an earlier request"):
        TraceIndex(file, "t", FORMATS["jsonl"], TraceWindow())
    own = {"kind": "replay", "path": str(file), "format": "jsonl"}
    with pytest.raises(ValueError, match=r"to_s 123456789 is not after from_s 123456789\.5"):
        Replay.model_validate(own | {"window": {"from_s": 123456789.5, "to_s": 123456789}})
