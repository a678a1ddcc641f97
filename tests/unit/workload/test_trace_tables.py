"""Traces in tables whose columns the user names, and instants in seconds since 1970."""

import csv
import json
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inferload.base.errors import UsageError
from inferload.scenario.schema.replay import Replay
from inferload.workload.content.data import DataContext
from inferload.workload.replay import ReplaySessions
from inferload.workload.traces.formats import FORMATS
from inferload.workload.traces.index import TimeWindow, TraceIndex

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


def test_columns_of_a_table_that_are_missing_are_named(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("time,in,out\n1,2,3\n")
    workload = {"kind": "replay", "path": str(file), "format": "csv", "columns": {"at": "start", "input_tokens": "in"}}
    message = "t.csv:1: the columns are time, in, out; start, output_tokens is missing"
    with pytest.raises(UsageError, match=message):
        ReplaySessions(Replay.model_validate(workload), "replay", DataContext())
    with pytest.raises(ValueError, match="columns: format azure-2023 has its own names; use format csv"):
        Replay.model_validate(workload | {"format": "azure-2023"})
    with pytest.raises(ValueError, match="pacing pauses: format csv has no end times of answers"):
        Replay.model_validate(workload | {"pacing": "pauses"})


def test_epoch_seconds_are_printed_in_full(tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    lines = [{"at_s": at_s, "input_tokens": 1, "output_tokens": 1} for at_s in (1_700_000_001.25, 1_700_000_000)]
    file.write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(UsageError, match=r"time 1700000000 s is before 1700000001.25 s of an earlier request"):
        TraceIndex(file, "t", FORMATS["jsonl"], TimeWindow())
    own = {"kind": "replay", "path": str(file), "format": "jsonl"}
    with pytest.raises(ValueError, match=r"to_s 123456789 is not after from_s 123456789\.5"):
        Replay.model_validate(own | {"window": {"from_s": 123456789.5, "to_s": 123456789}})
