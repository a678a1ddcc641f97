"""Run directories of millions of turns, written row group by row group in little memory, with counts that agree with them.

Every row group of a worker holds the same turns, later and with ids of their own, so that one row group is counted for all.
Sessions have eight turns and cross the ends of row groups. One turn in ten belongs to a session of class agent, whose last four
turns are those of a sub-agent. Of a thousand turns two are cut, one is answered with status 503 and one is cancelled.
"""

from array import array
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import ended_counts
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from turn_reference import count_all

from inferload.base import rundir
from inferload.base.clock import Anchor
from inferload.figures.pages import metric_names as names
from inferload.results.summarise.counts import Counts, EndedWorker
from inferload.scenario import scenario as scenarios
from inferload.servers.scrapes_file import ScrapeColumns, write_part
from inferload.turns.record import Failure, PhaseWindow, TurnRecord
from inferload.turns.tally import TallySet
from inferload.turns.turn_columns import SCHEMA

NS = 1_000_000_000
MS = 1_000_000
START_WALL_NS = 1_795_000_000 * NS
START_NS = 5_000 * NS  # monotonic clock of the master
TARGET = "http://10.0.0.1:8000"
MODEL = "tiny"
RUN = "20261118T103640Z-1a59e000"
TURNS_PER_SESSION = 8
_AT_ONCE = 300  # sessions of a worker, a multiple of ten
_TAIL_S = 30  # from the last planned turn to the end of the load
_DRAIN_S = 5
_EVENTS = (5, 20)  # fewest and most of a turn, by default

SCENARIO = """
schema: 1
name: large
slo: {{ttft_ms: 800}}
workload: {{kind: chat, turns: 8, prompt_tokens: 100, output_tokens: 12}}
arrivals: {{kind: poisson, sessions_per_s: {sessions_per_s:g}}}
phases: {{warmup_s: 0, measure_s: {measure_s}, drain_s: 5}}
"""


@dataclass(frozen=True)
class Size:
    """Size of a run: `groups` row groups of `rows` turns for each of `workers`; `rows` is a multiple of ten."""

    workers: int
    groups: int
    rows: int
    turns_per_s: float
    events: tuple[int, int]  # fewest and most output events of a turn

    @property
    def turns(self) -> int:
        """Number of turns."""
        return self.workers * self.groups * self.rows

    @property
    def group_ns(self) -> int:
        """Time between the same turns of two row groups."""
        return round(self.rows * self.workers / self.turns_per_s * NS)

    @property
    def measure_s(self) -> int:
        """Length of the measure phase."""
        return int(self.groups * self.group_ns / NS) + _TAIL_S


@dataclass(frozen=True)
class _Group:
    """Turns of the first row group, in the order of their ends. Instants in ns since the start of the run, -1: none."""

    number: npt.NDArray[np.int64]  # in the order of their plan
    planned: npt.NDArray[np.int64]
    events: npt.NDArray[np.int64]  # of each turn
    event_ns: npt.NDArray[np.int64]  # since `sent`
    input_tokens: npt.NDArray[np.int64]

    @classmethod
    def drawn(cls, size: Size) -> "_Group":
        rng = np.random.default_rng(7)
        planned = np.sort(rng.integers(0, size.group_ns, size.rows))
        events = rng.integers(size.events[0], size.events[1] + 1, size.rows)
        events[np.arange(size.rows) % 1000 == 505] = 0
        gaps = (rng.gamma(16.0, 1.25, events.sum()) * MS).astype(np.int64)
        starts = (np.cumsum(events) - events)[events > 0]
        gaps[starts] = (rng.lognormal(np.log(120.0), 0.5, len(starts)) * MS).astype(np.int64)
        total = np.cumsum(gaps)
        before = np.repeat(total[starts] - gaps[starts], events[events > 0])
        group = cls(np.arange(size.rows), planned, events, total - before, rng.integers(60, 140, size.rows))
        order = np.argsort(group.closed, kind="stable")
        firsts = np.cumsum(events) - events
        flat = np.concatenate([np.arange(firsts[row], firsts[row] + events[row]) for row in order])
        return cls(order, planned[order], events[order], group.event_ns[flat], group.input_tokens[order])

    @cached_property
    def ends(self) -> npt.NDArray[np.int64]:
        return np.concatenate([[0], np.cumsum(self.events)])

    @property
    def sent(self) -> npt.NDArray[np.int64]:
        return self.planned + MS

    @property
    def streamed(self) -> npt.NDArray[np.bool_]:
        return self.events > 0

    @property
    def first(self) -> npt.NDArray[np.int64]:
        first = np.full(len(self.events), -1)
        first[self.streamed] = self.event_ns[self.ends[:-1][self.streamed]]
        return np.where(self.streamed, self.sent + first, -1)

    @property
    def last(self) -> npt.NDArray[np.int64]:
        last = np.full(len(self.events), -1)
        last[self.streamed] = self.event_ns[self.ends[1:][self.streamed] - 1]
        return np.where(self.streamed, self.sent + last, -1)

    @property
    def closed(self) -> npt.NDArray[np.int64]:
        return np.where(self.streamed, self.last, self.sent) + MS

    @property
    def failure(self) -> list[str | None]:
        failures: dict[int, str] = {101: Failure.CUT.value, 303: Failure.CUT.value, 505: Failure.HTTP_5XX.value}
        return [failures.get(number % 1000) for number in self.number.tolist()]

    @property
    def finish_reason(self) -> list[str | None]:
        reasons: dict[int, str | None] = {101: None, 303: None, 505: None, 707: "cancelled"}
        return [reasons.get(number % 1000, "length") for number in self.number.tolist()]

    def known_tokens(self, value: npt.NDArray[np.int64]) -> pa.Array:
        """Whole numbers of the turns that did not fail."""
        return pa.array(value, mask=np.array([failure is not None for failure in self.failure]))


def write(
    run_dir: Path,
    turns: int,
    *,
    workers: int = 4,
    turns_per_s: float = 500.0,
    events: tuple[int, int] = _EVENTS,
    scenario: str = SCENARIO,
) -> Size:
    """Write the run directory, without a summary; return its size: the turns are rounded down to equal row groups."""
    per_worker = turns // workers
    groups = -(-per_worker // 20_000)
    size = Size(workers, groups, per_worker // groups // 10 * 10, turns_per_s, events)
    for folder in (run_dir, run_dir / rundir.TURNS, run_dir / rundir.SERVER_METRICS):
        folder.mkdir(parents=True, exist_ok=True)
    group = _Group.drawn(size)
    for worker in range(workers):
        _write_turns(run_dir / rundir.TURNS, size, group, worker)
    _write_scrapes(run_dir / rundir.SERVER_METRICS, size, group)
    _write_history(run_dir / rundir.LOCUST_HISTORY, size)
    document = _counts(size, group, scenario)
    rundir.write_json(run_dir / rundir.COUNTS, document.to_wire())
    rundir.write_json(run_dir / rundir.MANIFEST, _manifest(size, document))
    return size


def _anchor(worker: int) -> Anchor:
    """Anchor of a worker: 300 ms after that of the master, on a clock of its own."""
    return Anchor(START_WALL_NS + 300 * MS, START_NS + 300 * MS + _offset_ns(worker))


def _offset_ns(worker: int) -> int:
    return worker * 777 * NS + worker


def _write_turns(folder: Path, size: Size, group: _Group, worker: int) -> None:
    anchor = _anchor(worker)
    metadata = {
        b"worker": f"w{worker}".encode(),
        b"run_id": RUN.encode(),
        b"anchor_wall_ns": str(anchor.wall_ns).encode(),
        b"anchor_mono_ns": str(anchor.mono_ns).encode(),
    }
    schema = SCHEMA.with_metadata(metadata)
    same = _same_columns(group, worker)
    with pq.ParquetWriter(folder / f"w{worker}-all.parquet", schema, compression="zstd") as writer:
        for number in range(size.groups):
            columns = same | _own_columns(size, group, worker, number)
            arrays = [columns.get(field.name, pa.nulls(size.rows, field.type)) for field in schema]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))


def _same_columns(group: _Group, worker: int) -> dict[str, pa.Array]:
    """Columns that are the same in all row groups of a worker."""
    rows, ends = len(group.number), pa.array(group.ends.astype(np.int32))
    columns: dict[str, Any] = {
        "class": np.where(group.number % 10 == 0, "agent", "chat"),
        "worker": np.full(rows, f"w{worker}"),
        "phase": np.full(rows, "measure"),
        "input_tokens": group.input_tokens,
        "output_tokens": group.known_tokens(group.events),
        "hidden_tokens": np.zeros(rows, dtype=np.int64),
        "cached_tokens": group.known_tokens(group.input_tokens // 3),
        "event_ns": pa.ListArray.from_arrays(ends, pa.array(group.event_ns)),
        "event_tokens": pa.ListArray.from_arrays(ends, pa.array(np.ones(len(group.event_ns), dtype=np.int32))),
        "client_delay_max_ns": np.full(rows, 90_000),
        "attempts": np.ones(rows),
        "target": np.full(rows, TARGET),
        "model": np.full(rows, MODEL),
        "max_tokens": np.full(rows, group.events.max()),
        "finish_reason": pa.array(group.finish_reason, pa.string()),
        "failure": pa.array(group.failure, pa.string()),
        "status": np.where(group.streamed, 200, 503),
    }
    return {name: pa.array(values).cast(SCHEMA.field(name).type) for name, values in columns.items()}


def _own_columns(size: Size, group: _Group, worker: int, number: int) -> dict[str, pa.Array]:
    """Ids and instants of a row group."""
    of_worker = group.number + number * size.rows
    index = of_worker // _AT_ONCE % TURNS_PER_SESSION
    session = of_worker // (_AT_ONCE * TURNS_PER_SESSION) * _AT_ONCE + of_worker % _AT_ONCE
    agent = (group.number % 10 == 0) & (index >= 4)
    root = _joined("s", session * size.workers + worker)
    columns: dict[str, Any] = {
        "session_id": pc.if_else(pa.array(agent), pc.binary_join_element_wise(root, "agent.1", "/"), root),
        "turn_index": np.where(agent, index - 4, index),
        "turn_id": pc.binary_join_element_wise(root, pa.array(index).cast(pa.string()), "."),
        "request_id": _joined("chatcmpl-", of_worker * size.workers + worker),
        "pause": pa.array(np.where(group.number % 10 == 0, "tool", "think"), mask=index == 0),
        "final": (index == TURNS_PER_SESSION - 1) & ~agent,
    }
    shift_ns = number * size.group_ns - 300 * MS
    instants = {
        "planned_ns": group.planned,
        "sent_ns": group.sent,
        "written_ns": group.sent + MS // 2,
        "first_event_ns": group.first,
        "first_ns": group.first,
        "first_visible_ns": group.first,
        "last_ns": group.last,
        "closed_ns": group.closed,
    }
    columns |= {name: pa.array(values + shift_ns, mask=values < 0) for name, values in instants.items()}
    return {name: pa.array(values).cast(SCHEMA.field(name).type) for name, values in columns.items()}


def _joined(prefix: str, numbers: npt.NDArray[np.int64]) -> pa.Array:
    return pc.binary_join_element_wise(prefix, pa.array(numbers).cast(pa.string()), "")


def _tallies(size: Size, group: _Group, windows: tuple[PhaseWindow, ...]) -> TallySet:
    """Counts of all turns: those of a row group, as often as there are row groups."""
    one = TallySet()
    records = list(_records(group))
    for record in records:
        one.at(record.phase, record.class_name).turns_begun += 1
    count_all(one, records, windows, None)
    tallies = TallySet()
    for _ in range(size.groups * size.workers):
        tallies.absorb(one)
    sessions = size.workers * _AT_ONCE * -(-size.groups * size.rows // (_AT_ONCE * TURNS_PER_SESSION))
    for class_name, count in (("agent", sessions // 10), ("chat", sessions - sessions // 10)):
        tallies.at("measure", class_name).sessions_planned += count
        tallies.at("measure", class_name).sessions_started += count
        tallies.at("measure", class_name).sessions_completed += count
        tallies.at("measure", class_name).window_sessions = count
    return tallies


def _records(group: _Group) -> list[TurnRecord]:
    """Turns of the first row group on the clock of the master; the turn index is unknown, so none opens a session."""
    names_ns = ("planned", "sent", "first", "last", "closed", "events", "input_tokens", "number")
    columns = zip(
        *(getattr(group, name).tolist() for name in names_ns), group.failure, group.finish_reason, strict=True
    )
    records, start = [], 0
    for planned, sent, first, last, closed, events, tokens, number, failure, reason in columns:
        offsets = array("q", group.event_ns[start : start + events].tolist())
        start += events
        streamed = {
            "first_event_ns": START_NS + first,
            "first_ns": START_NS + first,
            "first_visible_ns": START_NS + first,
            "last_ns": START_NS + last,
        }
        record = TurnRecord(
            "", "", 1, "agent" if number % 10 == 0 else "chat", "", "measure", START_NS + planned, START_NS + closed,
            sent_ns=START_NS + sent, written_ns=START_NS + sent + MS // 2, input_tokens=tokens,
            output_tokens=None if failure else events, cached_tokens=None if failure else tokens // 3,
            event_ns=offsets, event_tokens=array("i", [1] * events), finish_reason=reason,
            failure=None if failure is None else Failure(failure), status=200 if events else 503,
            **(streamed if events else {}),
        )  # fmt: skip
        records.append(record)
    return records


def _counts(size: Size, group: _Group, scenario: str) -> Counts:
    text = scenario.format(
        sessions_per_s=size.turns_per_s / TURNS_PER_SESSION, measure_s=size.measure_s, turns=size.turns
    )
    parsed = scenarios.from_text(text, "large.yaml")
    end_ns = START_NS + size.measure_s * NS
    windows = (PhaseWindow("measure", START_NS, end_ns), PhaseWindow("drain", end_ns, end_ns + _DRAIN_S * NS))
    per_worker = size.turns // size.workers
    workers = tuple(
        EndedWorker(f"w{k}", offset_ns=_offset_ns(k), turns=per_worker, written=per_worker, at_hand=per_worker)
        for k in range(size.workers)
    )
    about = {
        "id": RUN,
        "scenario": parsed.name,
        "digest": parsed.digest,
        "seed": parsed.seed,
        "target": TARGET,
        "model": MODEL,
        "engine": "vllm 0.32.0",
        "started_at": "2026-11-18T10:36:40.000+00:00",
        "versions": {"inferload": "0.1.0", "locust": "2.47.0", "python": "3.11", "server": "0.32.0"},
    }
    return ended_counts.ended(
        about,
        parsed,
        _tallies(size, group, windows),
        windows,
        workers,
        targets=(TARGET,),
        models=(MODEL,),
        metrics_targets=(TARGET,),
        anchor=Anchor(START_WALL_NS, START_NS),
    )


def _manifest(size: Size, counts: Counts) -> dict[str, Any]:
    """Return the manifest with the keys that the report and comparisons read."""
    return {
        "format": rundir.FORMAT,
        **{
            key: getattr(counts.run, key)
            for key in ("id", "seed", "target", "model", "engine", "started_at", "versions")
        },
        "scenario": {
            "name": counts.plan.scenario.name,
            "origin": counts.plan.origin,
            "digest": counts.plan.scenario.digest,
            "text": counts.plan.scenario_text,
        },
        "hosts": ["bench-1"],
        "anchor": {"wall_ns": START_WALL_NS, "mono_ns": START_NS},
        "phases": [
            {
                "phase": window.phase,
                "start_wall_ns": counts.course.anchor.to_wall_ns(window.start_ns),
                "end_wall_ns": counts.course.anchor.to_wall_ns(window.end_ns or window.start_ns),
            }
            for window in counts.course.windows
        ],
        "workers": [{"name": worker.name, "clock_offset_ns": worker.offset_ns} for worker in counts.workers.workers],
        "counts": {"turns": size.turns},
        "stop_reason": "the scenario's end",
        "complete": True,
    }


def _write_scrapes(folder: Path, size: Size, group: _Group) -> None:
    """Scrapes of one server once a second: counters agree with the turns within a row group, gauges are constant."""
    columns, engine = ScrapeColumns(), (("engine", "0"), ("model_name", MODEL))
    copies = size.groups * size.workers
    totals = {
        names.PROMPT_TOKENS: copies * group.input_tokens.sum(),
        names.GENERATION_TOKENS: copies * group.events.sum(),
        names.PREFIX_QUERIES: copies * group.input_tokens.sum(),
        names.PREFIX_HITS: copies * (group.input_tokens // 3).sum(),
    }
    for second in range(size.measure_s + _DRAIN_S):
        share = min(1.0, second / (size.measure_s - _TAIL_S))
        wall_ns = START_WALL_NS + second * NS
        for metric, total in totals.items():
            columns.append(wall_ns, TARGET, metric, engine, float(int(total * share)))
        busy = 0 < share < 1
        for metric, value in ((names.RUNNING, 200.0 * busy), (names.WAITING, 0.0), (names.PREEMPTIONS, 0.0)):
            columns.append(wall_ns, TARGET, metric, engine, value)
        columns.append(wall_ns, TARGET, names.KV_CACHE_USAGE, engine, 0.4 * busy)
    write_part(folder, 0, columns.to_table())


def _write_history(path: Path, size: Size) -> None:
    lines = ["Timestamp,User Count,Type,Name,Requests/s"]
    rows = ("chat", "agent", "Aggregated")
    for second in range(size.measure_s):
        lines += [f"{START_WALL_NS // NS + second},64,TURN,{name},{size.turns_per_s:.2f}" for name in rows]
    path.write_text("\n".join(lines) + "\n")
