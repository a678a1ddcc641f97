"""Run directory of many turns, generated with numpy: row groups and counts as a run of hours leaves them."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ended_counts
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from inferload.base import rundir
from inferload.base.clock import Anchor
from inferload.figures.turn_figures import TURN_FIGURES
from inferload.figures.turn_values import values_by_turn
from inferload.results.summarise.counts import Counts, EndedWorker
from inferload.scenario import scenario as scenarios
from inferload.turns.record import PHASES, Phase, PhaseWindow
from inferload.turns.tally import TallySet
from inferload.turns.turn_columns import SCHEMA

S, MS = 1_000_000_000, 1_000_000
RUN = "long"
ANCHOR = Anchor(wall_ns=1_790_000_000 * S, mono_ns=3 * S)
TARGETS = ("http://one:8000", "http://two:8000")
GROUP_ROWS = 20_000
TURNS_PER_SESSION = 5
_AGENT_EVERY = 5  # sessions

SCENARIO = """
schema: 1
name: long
workload:
  kind: mix
  classes:
    - {name: chat, share: 0.8, workload: {kind: chat, turns: 5, prompt_tokens: 20, output_tokens: 12}}
    - name: agent
      share: 0.2
      workload: {kind: agent, requests: 1, prompt_tokens: 20, output_tokens: 12, tools_tokens: 50, steps: 5,
                 system_prompt_tokens: 50,
                 tools: [{name: read, share: 1, time_s: 1, result_tokens: 10}]}
arrivals: {kind: poisson, sessions_per_s: 40}
phases: {warmup_s: 10, measure_s: 100000, drain_s: 10}
gates: ["p95(ttft_ms) < 800", "p99(itl_ms){chat} < 100", "mean(e2e_ms) < 5000"]
"""


@dataclass(frozen=True, slots=True)
class LongRun:
    """Size of a run."""

    turns: int
    workers: int = 4
    targets: tuple[str, ...] = TARGETS
    sessions_per_s: float = 40.0
    most_events: int = 20
    seed: int = 1
    scenario: str = SCENARIO

    @property
    def lasts_s(self) -> float:
        """Time from the first arrival to the last."""
        return self.turns / TURNS_PER_SESSION / self.sessions_per_s


def write(folder: Path, size: LongRun, **changes: Any) -> Path:
    """Write turn files, manifest and counts. `changes`: of the counts."""
    (folder / rundir.TURNS).mkdir(parents=True)
    (folder / rundir.SERVER_METRICS).mkdir(exist_ok=True)
    rundir.write_json(folder / rundir.MANIFEST, {"id": RUN})
    tallies, workers = TallySet(), []
    for worker in range(size.workers):
        name, turns = f"w{worker}", 0
        metadata = {b"worker": name.encode(), b"run_id": RUN.encode()}
        metadata |= {b"anchor_wall_ns": b"%d" % ANCHOR.wall_ns, b"anchor_mono_ns": b"%d" % ANCHOR.mono_ns}
        schema = SCHEMA.with_metadata(metadata)
        with pq.ParquetWriter(folder / rundir.TURNS / f"{name}-all.parquet", schema, compression="zstd") as writer:
            for table in _tables(size, worker):
                writer.write_table(table.replace_schema_metadata(metadata))
                _count(tallies, table)
                turns += len(table)
        workers.append(EndedWorker(name, turns=turns, at_hand=turns, written=turns))
    counts = _counts(size, tallies, workers)
    rundir.write_json(folder / rundir.COUNTS, counts.to_wire() | changes)
    return folder


def _tables(size: LongRun, worker: int) -> Iterator[pa.Table]:
    """Yield the turns of a worker in the order of their plans."""
    rng = np.random.default_rng((size.seed, worker))
    sessions = np.arange(worker, size.turns // TURNS_PER_SESSION, size.workers)
    index = np.repeat(sessions, TURNS_PER_SESSION)
    number = np.tile(np.arange(TURNS_PER_SESSION, dtype=np.int32), len(sessions))
    planned = (index / size.sessions_per_s * S).astype(np.int64) + number.astype(np.int64) * 2 * S
    planned += rng.integers(0, S, len(planned))
    order = np.argsort(planned, kind="stable")
    for start in range(0, len(order), GROUP_ROWS):
        rows = order[start : start + GROUP_ROWS]
        yield _table(size, worker, rng, (index[rows], number[rows], planned[rows]))


def _table(size: LongRun, worker: int, rng: np.random.Generator, turns: tuple[Any, Any, Any]) -> pa.Table:
    index, number, planned = turns
    count = len(index)
    agent = index % _AGENT_EVERY == 0
    events = rng.integers(5, size.most_events + 1, count)
    ends = np.concatenate([[0], np.cumsum(events)]).astype(np.int32)
    gaps = (rng.gamma(16.0, 1.25, ends[-1]) * MS).astype(np.int64)
    gaps[ends[:-1]] = (rng.lognormal(np.log(80.0), 0.4, count) * MS).astype(np.int64)
    flat = np.cumsum(gaps)
    flat -= np.repeat(flat[ends[:-1]] - gaps[ends[:-1]], events)
    sent = planned + (rng.gamma(2.0, 0.5, count) * MS).astype(np.int64)
    first, last = sent + flat[ends[:-1]], sent + flat[ends[1:] - 1]
    failed = rng.random(count)
    cut, unfinished = failed < 0.002, (failed >= 0.002) & (failed < 0.0025)
    bad = cut | unfinished
    prompt = 20 + number.astype(np.int64) * 32
    warm, over = planned < 10 * S, planned >= (size.lasts_s + 5) * S
    ids = [f"s{session}" for session in index.tolist()]
    final = number == TURNS_PER_SESSION - 1
    values: dict[str, Any] = {
        "turn_id": [f"{name}.{turn}" for name, turn in zip(ids, number.tolist(), strict=True)],
        "session_id": ids,
        "turn_index": number,
        "class": np.where(agent, "agent", "chat"),
        "worker": np.full(count, f"w{worker}"),
        "phase": np.where(warm, "warmup", np.where(over, "drain", "measure")),
        "planned_ns": planned,
        "sent_ns": sent,
        "written_ns": sent + MS // 5,
        "first_event_ns": first,
        "first_ns": first,
        "first_visible_ns": first,
        "last_ns": last,
        "closed_ns": last + MS,
        "input_tokens": prompt,
        "output_tokens": pa.array(events, mask=bad),
        "hidden_tokens": np.zeros(count, dtype=np.int64),
        "cached_tokens": prompt // 2,
        "connect_ns": pa.array(rng.integers(MS, 2 * MS, count), mask=number > 0),
        "event_ns": pa.ListArray.from_arrays(pa.array(ends), pa.array(flat)),
        "event_tokens": None,
        "client_delay_max_ns": rng.integers(10_000, 900_000, count),
        "attempts": np.ones(count, dtype=np.int32),
        "target": np.array(size.targets)[index % len(size.targets)],
        "model": np.full(count, "m"),
        "max_tokens": np.full(count, 12),
        "finish_reason": pa.array(np.where(rng.random(count) < 0.01, "cancelled", "length"), mask=bad),
        "request_id": [f"chatcmpl-{session:08x}-{turn}" for session, turn in zip(index, number, strict=True)],
        "failure": pa.array(np.where(cut, "cut", "unfinished"), mask=~bad),
        "status": np.full(count, 200, dtype=np.int32),
        "pause": pa.array(np.where(agent, "tool", "think"), mask=number == 0),
        "final": final & agent,
    }
    return pa.Table.from_arrays([_array(values.get(field.name), field.type, count) for field in SCHEMA], schema=SCHEMA)


def _array(values: Any, kind: pa.DataType, count: int) -> pa.Array:
    if values is None:
        return pa.nulls(count, kind)
    return (values if isinstance(values, pa.Array) else pa.array(values)).cast(kind)


def _count(tallies: TallySet, table: pa.Table) -> None:
    for phase in PHASES:
        for class_name in ("chat", "agent"):
            mine = pc.and_(pc.equal(table["phase"], phase), pc.equal(table["class"], class_name))
            _count_turns(tallies, phase, class_name, table.filter(mine))


def _count_turns(tallies: TallySet, phase: Phase, class_name: str, turns: pa.Table) -> None:
    if not len(turns):
        return
    tally = tallies.at(phase, class_name)
    well = turns.filter(pc.is_null(turns["failure"]))
    opened = pc.sum(pc.equal(turns["turn_index"], 0)).as_py()
    unfinished = pc.sum(pc.fill_null(pc.equal(turns["failure"], "unfinished"), False)).as_py()
    failed = len(turns) - len(well) - unfinished
    tally.sessions_planned += opened
    tally.sessions_started += opened
    tally.window_sessions += opened
    tally.turns_begun += len(turns)
    tally.requests += len(turns)
    tally.ok += len(well)
    tally.cancelled += pc.sum(pc.equal(well["finish_reason"], "cancelled")).as_py()
    tally.failed += failed
    tally.unfinished += unfinished
    if failed:
        tally.by_failure["cut"] = tally.by_failure.get("cut", 0) + failed
    for name in ("input_tokens", "output_tokens", "cached_tokens"):
        setattr(tally, name, getattr(tally, name) + pc.sum(turns[name]).as_py())
        setattr(tally, f"{name}_from", getattr(tally, f"{name}_from") + pc.count(turns[name]).as_py())
    tally.window_turns += len(well)
    for figure in TURN_FIGURES:
        values, _rows = values_by_turn(well, figure.key)
        if len(values):
            tally.sketch(figure.key).add_many(values)


def _counts(size: LongRun, tallies: TallySet, workers: list[EndedWorker]) -> Counts:
    ends_ns = [round(end_s * S) for end_s in (10, size.lasts_s + 5, size.lasts_s + 20)]
    starts_ns = [0, *ends_ns[:-1]]
    windows = [
        PhaseWindow(phase, ANCHOR.mono_ns + start_ns, ANCHOR.mono_ns + end_ns)
        for phase, start_ns, end_ns in zip(PHASES, starts_ns, ends_ns, strict=True)
    ]
    return ended_counts.ended(
        {"id": RUN, "scenario": "long"},
        scenarios.from_text(size.scenario, "long.yaml"),
        tallies,
        windows,
        workers,
        targets=size.targets,
        anchor=ANCHOR,
    )
