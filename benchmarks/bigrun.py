"""`make bench-report`: time and memory of the report of a large synthetic run.

Writes the run directory of an hour, with 100,000 turns and 10 million events on 4 workers and three vLLM servers scraped four
times a second, then runs the report in a separate process on two cores. The directory is kept below .cache/bench for later
runs.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from inferload import rundir, scrapes_file
from inferload.measure.turn_columns import SCHEMA
from inferload.server_metrics import metric_names as names
from inferload.server_metrics.exposition import Sample, parse

NS = 1_000_000_000
MS = 1_000_000
START_WALL_NS = 1_795_000_000 * NS
MASTER_MONO_NS = 5_000 * NS
PAGE = Path(__file__).parent.parent / "tests" / "golden" / "vllm-0.32-metrics.txt"
FOLDER = Path(".cache/bench/bigrun")
WARMUP_S = DRAIN_S = 20.0
CORES = 2

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RunSize:
    """Size of the run, and limits of its report."""

    length_s: int = 3600
    turns: int = 100_000
    events_per_turn: int = 100
    workers: int = 4
    servers: int = 3
    scrapes_per_s: int = 4
    limit_s: float = 30.0
    limit_mb: float = 1500.0
    limit_page_mb: float = 5.0

    @property
    def targets(self) -> tuple[str, ...]:
        """Addresses of the servers."""
        return tuple(f"http://10.0.0.{number + 1}:8000" for number in range(self.servers))


@dataclass(frozen=True, slots=True)
class Turns:
    """Synthetic turns of a worker. Times in ns since the start of the run, events relative to `sent_ns`."""

    planned_ns: Ints
    sent_ns: Ints
    events_ns: Ints  # turns x events
    server: Ints

    @property
    def ttft_ms(self) -> Floats:
        """Time from send to first event."""
        first: Floats = self.events_ns[:, 0] / MS
        return first


def turns_of(size: RunSize, worker: int, rng: np.random.Generator) -> Turns:
    """Generate turns. Load, TTFT and gaps rise and fall twice in the run; one gap in 2,000 is a stall."""
    count = size.turns // size.workers
    planned_s = np.sort(rng.uniform(0.5, size.length_s - DRAIN_S, count))
    load = 1 + 0.6 * np.sin(planned_s / size.length_s * 4 * np.pi)
    sent_s = planned_s + rng.gamma(2.0, 0.0005, count)
    gaps_ms = rng.gamma(16.0, 1.25, (count, size.events_per_turn)) * load[:, None]
    gaps_ms[rng.random(gaps_ms.shape) < 0.0005] += 400.0
    gaps_ms[:, 0] = rng.lognormal(np.log(120.0), 0.5, count) * load**2
    events_ns = np.cumsum((gaps_ms * MS).astype(np.int64), axis=1)
    server = (np.arange(count) * size.workers + worker) % size.servers
    return Turns((planned_s * NS).astype(np.int64), (sent_s * NS).astype(np.int64), events_ns, server.astype(np.int64))


def table_of(size: RunSize, turns: Turns, worker: int, rng: np.random.Generator) -> pa.Table:
    """Return the table of a worker's file, with times since its anchor, 300 ms after that of the master."""
    count, name, anchor_ns = len(turns.planned_ns), f"w{worker}", 300 * MS
    sent, last = turns.sent_ns - anchor_ns, turns.sent_ns - anchor_ns + turns.events_ns[:, -1]
    first = sent + turns.events_ns[:, 0]
    prompt = np.minimum(16_000, rng.lognormal(np.log(600.0), 1.0, count)).astype(np.int64)
    failed = rng.random(count) < 0.002
    number = np.arange(count) * size.workers + worker
    warm, over = turns.planned_ns < WARMUP_S * NS, turns.planned_ns >= (size.length_s - 2 * DRAIN_S) * NS
    ends = np.arange(0, count * size.events_per_turn + 1, size.events_per_turn, dtype=np.int32)
    flat = turns.events_ns.reshape(-1)
    values: dict[str, Any] = {
        "turn_id": [f"t{n}" for n in number],
        "session_id": [f"s{n // 8}" for n in number],
        "turn_index": number % 8,
        "class": np.where(number % 10 == 0, "agent", "chat"),
        "worker": np.full(count, name),
        "phase": np.where(warm, "warmup", np.where(over, "drain", "measure")),
        "planned_ns": turns.planned_ns - anchor_ns,
        "sent_ns": sent,
        "written_ns": sent + MS // 2,
        "first_event_ns": first,
        "first_ns": first,
        "first_visible_ns": first,
        "last_ns": last,
        "closed_ns": last + MS,
        "input_tokens": prompt,
        "output_tokens": pa.array(np.full(count, size.events_per_turn), mask=failed),
        "cached_tokens": (prompt * rng.beta(2, 3, count)).astype(np.int64),
        "event_ns": pa.ListArray.from_arrays(pa.array(ends), pa.array(flat)),
        "event_tokens": pa.ListArray.from_arrays(pa.array(ends), pa.array(np.ones(len(flat), dtype=np.int32))),
        "client_delay_max_ns": rng.integers(10_000, 900_000, count),
        "attempts": np.ones(count, dtype=np.int32),
        "target": np.array(size.targets)[turns.server],
        "model": np.full(count, "meta-llama/Llama-3.1-8B-Instruct"),
        "finish_reason": pa.array(np.full(count, "length"), mask=failed),
        "request_id": [f"chatcmpl-{n:016x}" for n in number],
        "server_queue_ms": turns.ttft_ms * 0.2,
        "server_ttft_ms": turns.ttft_ms * 0.7,
        "server_generation_ms": (turns.events_ns[:, -1] - turns.events_ns[:, 0]) / MS,
        "failure": pa.array(np.full(count, "cut"), mask=~failed),
        "status": np.full(count, 200, dtype=np.int32),
        "final": number % 8 == 7,
    }
    columns = [_array(values.get(field.name), field.type, count) for field in SCHEMA]
    metadata = {
        b"worker": name.encode(),
        b"anchor_mono_ns": str(MASTER_MONO_NS + anchor_ns + offset_ns(worker)).encode(),
        b"anchor_wall_ns": str(START_WALL_NS + anchor_ns).encode(),
    }
    return pa.Table.from_arrays(columns, schema=SCHEMA.with_metadata(metadata))


def _array(values: Any, kind: pa.DataType, count: int) -> pa.Array:
    return pa.nulls(count, kind) if values is None else pa.array(values).cast(kind)


def offset_ns(worker: int) -> int:
    """Return the offset of a worker's monotonic clock from that of the master."""
    return worker * 777 * NS + worker


def write(path: Path, size: RunSize) -> Path:
    """Write the run directory."""
    for folder in (path, path / rundir.TURNS, path / rundir.SERVER_METRICS):
        folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(7)
    ttft_ms = []
    for worker in range(size.workers):
        turns = turns_of(size, worker, rng)
        table = table_of(size, turns, worker, rng)
        pq.write_table(table, path / rundir.TURNS / f"w{worker}-all.parquet", row_group_size=20_000, compression="zstd")
        ttft_ms.append(turns.ttft_ms)
    _write_scrapes(path / rundir.SERVER_METRICS / scrapes_file.JOINED, size)
    _write_history(path / rundir.LOCUST_HISTORY, size)
    (path / rundir.MARKS).write_text(
        json.dumps({"wall_ns": START_WALL_NS + 1000 * NS, "kind": "users", "text": "users changed by hand"}) + "\n"
    )
    document = manifest(size)
    rundir.write_json(path / rundir.MANIFEST, document)
    rundir.write_json(path / rundir.SUMMARY, summary(size, document, np.concatenate(ttft_ms)))
    return path


def _write_scrapes(path: Path, size: RunSize) -> None:
    """Write the scrapes with a row group per ten seconds, as in the scraper's joined file."""
    prefixes = names.KEPT_PREFIXES
    samples = parse(PAGE.read_text(), prefixes)
    with pq.ParquetWriter(path, scrapes_file.SCHEMA, compression="zstd") as writer:
        for start_s in range(0, size.length_s, 10):
            writer.write_table(_scrapes(size, samples, np.arange(start_s, min(start_s + 10, size.length_s), 1.0)))


def _scrapes(size: RunSize, samples: list[Sample], seconds: Floats) -> pa.Table:
    at_s = (seconds[:, None] + np.arange(size.scrapes_per_s) / size.scrapes_per_s).reshape(-1)
    series = [(target, sample) for target in size.targets for sample in samples]
    values = np.stack([_values(size, sample, at_s) for _, sample in series], axis=1)
    indexes = np.tile(np.arange(len(series), dtype=np.int32), len(at_s))

    def words(of_series: list[str]) -> pa.DictionaryArray:
        distinct = list(dict.fromkeys(of_series))
        code = {word: number for number, word in enumerate(distinct)}
        codes = np.array([code[word] for word in of_series], dtype=np.int32)
        return pa.DictionaryArray.from_arrays(pa.array(codes[indexes]), pa.array(distinct, pa.string()))

    columns = [
        pa.array(np.repeat(START_WALL_NS + (at_s * NS).astype(np.int64), len(series))),
        words([target for target, _ in series]),
        words([sample.metric for _, sample in series]),
        words([scrapes_file.labels_json(sample.labels) for _, sample in series]),
        pa.array(values.reshape(-1)),
    ]
    return pa.Table.from_arrays(columns, schema=scrapes_file.SCHEMA)


def _values(size: RunSize, sample: Sample, at_s: Floats) -> Floats:
    """Values of a series: counters grow evenly to the totals of the turns, gauges follow the load, others are constant."""
    share, load = at_s / size.length_s, 1 + 0.6 * np.sin(at_s / size.length_s * 4 * np.pi)
    turns = size.turns / size.servers
    if sample.metric in _GAUGES:
        return _GAUGES[sample.metric] * load
    if sample.metric == names.WAITING_BY_REASON:
        return np.floor(2 * load) * (dict(sample.labels).get("reason") == names.CAPACITY)
    if sample.metric in _TOTALS:
        return np.floor(_TOTALS[sample.metric] * turns * share)
    if sample.metric.endswith(("_count", "_sum", "_bucket")):
        part = min(1.0, float(dict(sample.labels).get("le", "inf")) / 10) if sample.metric.endswith("_bucket") else 1.0
        whole = turns * (size.events_per_turn if "inter_token" in sample.metric else 1)
        return np.floor(whole * share * part) * (0.02 if sample.metric.endswith("_sum") else 1.0)
    return np.full(len(at_s), sample.value)


_GAUGES = {names.KV_CACHE_USAGE: 0.5, names.RUNNING: 20.0, names.WAITING: 2.0}
_TOTALS = {
    names.PROMPT_TOKENS: 950.0,
    names.PREFIX_QUERIES: 950.0,
    names.PREFIX_HITS: 380.0,
    names.GENERATION_TOKENS: 100.0,
    names.FINISHED: 0.2,
    names.PREEMPTIONS: 0.01,
    names.PROMPT_TOKENS_BY_SOURCE: 570.0,
}


def _write_history(path: Path, size: RunSize) -> None:
    lines = ["Timestamp,User Count,Type,Name,Requests/s"]
    for second in range(size.length_s):
        lines += [f"{START_WALL_NS // NS + second},64,TURN,{name},{size.turns / size.length_s:.2f}" for name in _ROWS]
    path.write_text("\n".join(lines) + "\n")


_ROWS = ("chat", "agent", "Aggregated")


def manifest(size: RunSize) -> dict[str, Any]:
    """Return the manifest of the run."""
    ends = (0.0, WARMUP_S, size.length_s - DRAIN_S, float(size.length_s))
    return {
        "format": 1,
        "id": "20261118T103640Z-b19b19b1",
        "scenario": {"name": "bigrun", "digest": "0" * 20, "text": "schema: 1\nname: bigrun\nslo: {ttft_ms: 800}\n"},
        "seed": 7,
        "target": size.targets[0],
        "model": "meta-llama/Llama-3.1-8B-Instruct",
        "engine": "vllm 0.32.0",
        "versions": {"inferload": "made up", "locust": "2.47.0", "server": "0.32.0"},
        "hosts": [f"load-{number}" for number in range(size.workers)],
        "started_at": "2026-11-18T10:36:40Z",
        "anchor": {"wall_ns": START_WALL_NS, "mono_ns": MASTER_MONO_NS},
        "phases": [
            {
                "phase": name,
                "start_wall_ns": START_WALL_NS + round(begin * NS),
                "end_wall_ns": START_WALL_NS + round(end * NS),
            }
            for name, begin, end in zip(("warmup", "measure", "drain"), ends[:-1], ends[1:], strict=True)
        ],
        "workers": [{"name": f"w{k}", "clock_offset_ns": offset_ns(k)} for k in range(size.workers)],
        "stop_reason": "the scenario's end",
    }


def summary(size: RunSize, document: dict[str, Any], ttft_ms: Floats) -> dict[str, Any]:
    """Return the part of a summary required for the report."""
    quantiles = dict(zip(("p50", "p90", "p95", "p99", "p999"), (0.5, 0.9, 0.95, 0.99, 0.999), strict=True))
    block = {name: float(np.quantile(ttft_ms, q)) for name, q in quantiles.items()}
    ends = {
        "count": len(ttft_ms),
        "mean": float(ttft_ms.mean()),
        "min": float(ttft_ms.min()),
        "max": float(ttft_ms.max()),
    }
    return {
        "format": 1,
        "run": {key: document[key] for key in ("id", "seed", "target", "model", "engine", "started_at", "versions")}
        | {"scenario": "bigrun", "digest": document["scenario"]["digest"]},
        "verdict": {"measurement": "valid", "reasons": [], "gates": [], "passed": True},
        "window_s": size.length_s - WARMUP_S - DRAIN_S,
        "percentiles_from": "records",
        "turns": {"sent": size.turns, "ok": size.turns, "failed": 0, "unfinished": 0, "by_failure": {}, "by_phase": {}},
        "steps": [],
        "rates": {"turns_per_s": size.turns / size.length_s},
        "latency": {"ttft_ms": block | ends},
        "servers": [{"target": target} for target in size.targets],
    }


def measure(path: Path, size: RunSize) -> dict[str, float]:
    """Create the report in a separate process. Return wall time, CPU time, peak memory and page size."""
    command = [sys.executable, "-m", "inferload", "report", str(path)]
    cores = sorted(os.sched_getaffinity(0))[:CORES]
    start_s = time.monotonic()
    process = subprocess.run(
        command, check=False, capture_output=True, text=True, preexec_fn=lambda: os.sched_setaffinity(0, cores)
    )
    took_s = time.monotonic() - start_s
    if process.returncode:
        raise SystemExit(f"inferload report ended with {process.returncode}:\n{process.stderr}")
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "took_s": took_s,
        "cpu_s": usage.ru_utime + usage.ru_stime,
        "memory_mb": usage.ru_maxrss / 1000,
        "page_mb": (path / rundir.REPORT_HTML).stat().st_size / 1e6,
    }


def complaints(path: Path, size: RunSize, result: dict[str, float]) -> Iterator[str]:
    """Yield texts on exceeded limits and on turns missing in the report."""
    limits = {"took_s": size.limit_s, "memory_mb": size.limit_mb, "page_mb": size.limit_page_mb}
    for name, limit in limits.items():
        if result[name] > limit:
            yield f"{name} is {result[name]:.1f}, above {limit:g}"
    lines = (path / rundir.TIMELINE).read_text().splitlines()
    columns = lines[0].split(",")
    column = columns.index("turns_started")
    started = sum(int(line.split(",")[column] or 0) for line in lines[1:])
    if started != size.turns:
        yield f"the timeline has {started} turns of {size.turns}"


def main() -> int:
    """Measure the report and print its cost. Return exit code 1 for exceeded limits or missing turns."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--at", type=Path, default=FOLDER, help="run directory, written if missing (%(default)s)")
    at = parser.parse_args().at
    size = RunSize()
    if not (at / rundir.SUMMARY).is_file():
        print(f"writing {at} ...", flush=True)
        write(at, size)
    result = measure(at, size)
    print(
        f"{size.turns:,} turns, {size.turns * size.events_per_turn:,} events, {size.length_s // 60} min, {size.workers} workers, "
        f"{size.servers} servers, {CORES} cores:\n"
        f"  merge, diagnosis and report {result['took_s']:.1f} s (limit {size.limit_s:g}; {result['cpu_s']:.1f} s CPU time), "
        f"{result['memory_mb']:.0f} MB (limit {size.limit_mb:g}), page {result['page_mb']:.2f} MB (limit {size.limit_page_mb:g})"
    )
    failures = list(complaints(at, size, result))
    for text in failures:
        print(f"FAILED: {text}")
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
