"""Small run directory with known figures: two workers with different clocks, one server, 12 s.

Turns start every 250 ms from 0.5 s on and are equal: sent 2 ms after the plan, first token after 100 ms, then 20 gaps of 20 ms,
closed 1 ms after the last event. Every tenth turn has class agent; the stream of turn 30 is truncated.
"""

import csv
import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import summaries

from inferload.base import rundir
from inferload.figures.pages import metric_names as names
from inferload.servers.scrapes_file import ScrapeColumns, write_part
from inferload.turns.turn_columns import SCHEMA

NS = 1_000_000_000
MS = 1_000_000
START_WALL_NS = 1_795_000_000 * NS
MASTER_MONO_NS = 5_000 * NS
TARGET = "http://127.0.0.1:8000"
TURNS = 44
EVENTS = 21
FAILED = 30
OFFSETS_NS = {"w0": 0, "w1": 777 * NS + 123}
PHASES = (("warmup", 0, 2), ("measure", 2, 11), ("drain", 11, 12))

_INSTANTS_MS = {
    "planned": 0,
    "sent": 2,
    "written": 3,
    "first_event": 100,
    "first": 102,
    "first_visible": 102,
    "last": 502,
    "closed": 503,
}


def planned_ms(number: int) -> int:
    """Return the planned start of a turn since the start of the run."""
    return 500 + 250 * number


def write(path: Path, summary: dict[str, Any] | None = None, killed: bool = False, **manifest: Any) -> Path:
    """Write the run directory. `killed`: as after kill -9, without a summary and with a truncated line."""
    for name, content in _data().items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    document = MANIFEST | manifest
    if killed:
        document |= {"phases": [dict(document["phases"][0]), document["phases"][1] | {"end_wall_ns": None}]}
    rundir.write_json(path / rundir.MANIFEST, document)
    with (path / rundir.MARKS).open("w") as file:
        for at_s, text in ((3.0, "users changed by hand: 4 -> 8"), (7.5, "worker w1 was silent for 2.1 s")):
            mark = {"t_s": at_s, "wall_ns": START_WALL_NS + round(at_s * NS), "kind": "users", "text": text}
            file.write(json.dumps(mark) + "\n")
        if killed:
            file.write('{"t_s": 9.0, "wall')
    if not killed:
        rundir.write_json(path / rundir.SUMMARY, _judged(summary or SUMMARY))
    return path


@cache
def _data() -> dict[str, bytes]:
    """Return the files of turns, scrapes and Locust's history, which all of these runs have, by their names."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for each in (rundir.TURNS, rundir.SERVER_METRICS):
            (folder / each).mkdir()
        _write_turns(folder / rundir.TURNS)
        write_part(folder / rundir.SERVER_METRICS, 0, scrapes())
        _write_history(folder / rundir.LOCUST_HISTORY)
        return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _judged(summary: dict[str, Any]) -> dict[str, Any]:
    """Return a summary with the outcome of its figures, unless it states another one or none."""
    if summary.get("outcome") != SUMMARY["outcome"] or "turns" not in summary:
        return summary
    figures = {key: value for key, value in summary.items() if key != "outcome"}
    return summary | {"outcome": msgspec.to_builtins(summaries.summary(figures).outcome)}


def scrapes() -> pa.Table:
    """Return four scrapes per second for 12 s, none between 5 and 7.5 s; 84 tokens/s, one preemption at 8.1 s."""
    columns = ScrapeColumns()
    for quarter in range(49):
        at_s = quarter / 4
        if 5 < at_s < 7.5:
            continue
        engine = (("engine", "0"), ("model_name", "tiny"))
        figures: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {
            (names.KV_CACHE_USAGE, engine): 0.25 + at_s / 100,
            (names.RUNNING, engine): 2.0,
            (names.WAITING, engine): 1.0 if 8 <= at_s < 9 else 0.0,
            (names.PREFIX_QUERIES, engine): 400.0 * at_s,
            (names.PREFIX_HITS, engine): 100.0 * at_s,
            (names.PREEMPTIONS, engine): float(at_s > 8.1),
            (names.PROMPT_TOKENS, engine): 5_000_000 + 400.0 * at_s,
            (names.GENERATION_TOKENS, engine): 1_000_000 + 84.0 * at_s,
        }
        for (metric, labels), value in figures.items():
            columns.append(START_WALL_NS + round(at_s * NS), TARGET, metric, labels, value)
    return columns.to_table()


def _write_turns(folder: Path) -> None:
    for stripe, (worker, offset_ns) in enumerate(OFFSETS_NS.items()):
        # The anchor of the worker is 300 ms later, on clocks ahead of the master's.
        anchor_ns = 300 * MS
        metadata = {
            b"worker": worker.encode(),
            b"run_id": MANIFEST["id"].encode(),
            b"anchor_mono_ns": str(MASTER_MONO_NS + anchor_ns + offset_ns).encode(),
            b"anchor_wall_ns": str(START_WALL_NS + anchor_ns + 40 * MS).encode(),
        }
        rows = [_turn(number, worker, anchor_ns) for number in range(stripe, TURNS, 2)]
        table = pa.Table.from_pylist(rows, schema=SCHEMA).replace_schema_metadata(metadata)
        pq.write_table(table.slice(0, 10), folder / f"{worker}-0000.parquet")
        pq.write_table(table.slice(10), folder / f"{worker}-0001.parquet")


def _turn(number: int, worker: str, anchor_ns: int) -> dict[str, Any]:
    start_ns = planned_ms(number) * MS - anchor_ns
    failed = number == FAILED
    row: dict[str, Any] = {f"{name}_ns": start_ns + ms * MS for name, ms in _INSTANTS_MS.items()}
    row |= {
        "turn_id": f"t{number}",
        "session_id": f"s{number // 4}",
        "turn_index": number % 4,
        "class": "agent" if number % 10 == 0 else "chat",
        "worker": worker,
        "phase": next(name for name, begin, end in PHASES if begin * 1000 <= planned_ms(number) < end * 1000),
        "input_tokens": 100,
        "output_tokens": None if failed else EVENTS,
        "hidden_tokens": 0,
        "event_ns": [(100 + 20 * event) * MS for event in range(EVENTS)],
        "event_tokens": [1] * EVENTS if number % 2 else None,
        "attempts": 1,
        "target": TARGET,
        "model": "tiny",
        "failure": "cut" if failed else None,
        "status": 200,
    }
    return row


def _write_history(path: Path) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["Timestamp", "User Count", "Type", "Name", "Requests/s"])
        for second in range(11):
            for name in ("chat", "Aggregated"):
                writer.writerow([START_WALL_NS // NS + second, 4 if second < 3 else 8, "TURN", name, "4.0"])


MANIFEST: dict[str, Any] = {
    "format": 1,
    "id": "20261118T103640Z-0badcafe",
    "scenario": {"name": "chat", "digest": "4f1d0c7a9b3e5d2f8a6c", "text": "schema: 1\nname: chat\n"},
    "seed": 7,
    "target": TARGET,
    "model": "tiny",
    "engine": "vllm 0.32.0",
    "variant": None,
    "versions": {"inferload": "0.1.0", "locust": "2.47.0", "server": "0.32.0"},
    "hosts": ["bench-1"],
    "started_at": "2026-11-18T10:36:40Z",
    "anchor": {"wall_ns": START_WALL_NS, "mono_ns": MASTER_MONO_NS},
    "phases": [
        {"phase": name, "start_wall_ns": START_WALL_NS + begin * NS, "end_wall_ns": START_WALL_NS + end * NS}
        for name, begin, end in PHASES
    ],
    "workers": [{"name": name, "clock_offset_ns": offset_ns} for name, offset_ns in OFFSETS_NS.items()],
    "counts": {"turns": TURNS},
    "load": {
        "users_or_rate": "4 to 8 users",
        "detail": "changed by hand once; 100 prompt, 21 output tokens planned",
        "rows": [
            [
                "arrivals",
                [
                    "closed loop: 4 users, all started at once",
                    "a user starts its next session when one ends: a slow server reduces the load",
                ],
            ],
            ["by hand", ["at 3.0 s users changed by hand: 4 -> 8"]],
        ],
    },
    "stop_reason": "the scenario's end",
}


def _latency(count: int, median: float, tail: bool = True) -> dict[str, Any]:
    block = {"count": count, "mean": median * 1.04, "p50": median, "p90": median * 1.2, "p95": median * 1.4}
    rest = {"p99": median * 1.9 if tail else None, "p999": None, "min": median * 0.8, "max": median * 2.25}
    return block | rest


_LATENCY = {
    "e2e_ms": _latency(35, 500.0, tail=False),
    "ttft_ms": _latency(35, 100.25, tail=False),
    "itl_ms": _latency(700, 20.0),
    "tpot_ms": _latency(35, 20.0, tail=False),
    "lag_ms": _latency(35, 2.0, tail=False),
    "connect_ms": _latency(0, 0.0, tail=False),
}
_TURNS = {"sent": 36, "ok": 35, "failed": 1, "unfinished": 0}

SUMMARY: dict[str, Any] = {
    "format": 1,
    "outcome": {"state": "failed", "headline": "failed: 2 of 3 gates failed; 1 of 44 turns failed", "exit_code": 1},
    "run": {key: MANIFEST[key] for key in ("id", "seed", "target", "model", "engine", "started_at", "versions")}
    | {"scenario": "chat", "digest": MANIFEST["scenario"]["digest"]},
    "verdict": {
        "measurement": "valid",
        "reasons": [],
        "gates": [
            {"gate": "p99(itl_ms) < 50", "value": 38.0, "passed": True},
            {"gate": "failed_ratio < 0.01", "value": 0.0278, "passed": False},
            {"gate": "p99(ttft_ms) < 2000", "value": None, "passed": False, "note": "ttft_ms is not known"},
        ],
        "passed": False,
    },
    "window_s": 9.0,
    "percentiles_from": "records",
    "sessions": {"planned": 9, "dropped": 0, "started": 9, "completed": 8},
    "turns": _TURNS
    | {
        "by_failure": {"cut": 1},
        "first_errors": [
            {
                "failure": "cut",
                "status": 200,
                "class": "chat",
                "text": "the stream ended without [DONE] or a finish reason",
                "at_s": 8.503,
                "worker": "w0",
            }
        ],
        "by_phase": {
            "warmup": {"sent": 6, "ok": 6, "failed": 0, "unfinished": 0},
            "measure": _TURNS,
            "drain": {"sent": 2, "ok": 2, "failed": 0, "unfinished": 0},
            "all": {"sent": 44, "ok": 43, "failed": 1, "unfinished": 0},
        },
    },
    "stopped_answering": [],
    "stalls": {"turns_with_stall": 0, "longest_ms": 45.0},
    "tokens_per_event": {"mean": 1.0},
    "steps": [],
    "rates": {
        "offered_sessions_per_s": 1.0,
        "achieved_sessions_per_s": 1.0,
        "turns_per_s": 3.888889,
        "output_tok_per_s": 81.66667,
        "input_tok_per_s": 400.0,
        "goodput_turns_per_s": None,
        "slo_attainment": None,
    },
    "latency": _LATENCY,
    "client": {
        "delay_ms": _latency(735, 0.04),
        "loop_lag_ms": _latency(900, 0.2),
        "cpu_share": 0.07,
        "stamps": "kernel",
    },
    "servers": [
        {
            "target": TARGET,
            "kv_cache_usage": {"mean": 0.31, "max": 0.36},
            "requests_waiting": {"mean": 0.1, "max": 1.0},
            "requests_running": {"mean": 2.0, "max": 2.0},
            "prefix_cache_hit_rate": 0.25,
            "preemptions": 1,
            "prompt_tok_per_s": 400.0,
            "generation_tok_per_s": 84.0,
            "spec_decode": None,
            "ttft_ms": {"mean": 96.5, "p50": [80.0, 100.0], "p99": [250.0, None]},
        }
    ],
    "by_class": {
        "chat": {
            "turns": {"sent": 32, "ok": 31, "failed": 1, "unfinished": 0},
            "latency": {"ttft_ms": _latency(31, 100.0, tail=False)},
        },
        "agent": {
            "turns": {"sent": 4, "ok": 4, "failed": 0, "unfinished": 0},
            "latency": {"ttft_ms": _latency(4, 101.0, tail=False)},
        },
    },
}
