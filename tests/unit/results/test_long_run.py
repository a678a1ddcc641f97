"""The summary of a run of many turns: the same figures as of few turns, in memory that hardly grows with the run."""

import json
import shutil
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import long_run
import many_scrapes
import pyarrow as pa
import pytest
import recomputed
import summaries
from long_run import LongRun, S

from inferload.results import agent_tasks
from inferload.results.open_run import OpenRun
from inferload.results.summarise import cache_figures, summarise
from inferload.results.summarise import turns as turns_module
from inferload.results.summarise.turns import Turns

SMALL = LongRun(3000, workers=3)
# Peak of the process's own memory: ru_maxrss would include that of the process that started it.
PEAK = """
import json, sys
from pathlib import Path
from inferload.results.summarise.summarise import summarise
from inferload.results.open_run import OpenRun
from inferload.results.documents.typed_documents import document_of
document = document_of(summarise(Path(sys.argv[1])))
peak_kb, = (line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
figures = {key: document[key] for key in ("percentiles_from", "notes")} | {"sent": document["turns"]["by_phase"]["all"]["sent"]}
servers = {"servers": sum(server["scrapes"] > 0 for server in document["servers"])}
print(json.dumps(figures | servers | {"peak_mb": int(peak_kb) / 1024}))
"""
# A workload whose sessions cannot be repeated, so that no hits are expected.
TASKS = """
schema: 1
name: long
workload: {kind: tasks}
arrivals: {kind: closed, users: 10, spawn_per_s: 10}
phases: {warmup_s: 10, measure_s: 100000, drain_s: 10}
gates: ["p95(ttft_ms) < 800", "p99(itl_ms){chat} < 100", "mean(e2e_ms) < 5000"]
"""


def summarised(run_dir: Path) -> dict[str, Any]:
    """Return figures of the summary, and the peak memory of a process that makes it."""
    ran = subprocess.run([sys.executable, "-c", PEAK, str(run_dir)], capture_output=True, text=True, check=True)
    figures: dict[str, Any] = json.loads(ran.stdout)
    return figures


def limited(monkeypatch: pytest.MonkeyPatch, turns: int) -> None:
    monkeypatch.setattr(turns_module, "MOST_TURNS", turns)
    monkeypatch.setattr(turns_module, "PART_TURNS", turns)


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return long_run.write(tmp_path_factory.mktemp("runs") / "cold", SMALL)


@pytest.fixture(scope="module")
def exact(run_dir: Path) -> dict[str, Any]:
    """The summary of the run."""
    return summaries.summarised(run_dir)


def test_the_summary_is_that_of_the_records(
    run_dir: Path, exact: dict[str, Any], golden: Callable[[str, str], None]
) -> None:
    document = exact
    rows = OpenRun(run_dir).turns.table().to_pylist()
    measured = [row for row in rows if row["phase"] == "measure"]
    recomputed.check_latency(document["latency"], measured, 1e-9)
    for column, key in (("class", "by_class"), ("target", "by_target")):
        for name, block in document[key].items():
            mine = [row for row in measured if row[column] == name]
            assert block["turns"]["sent"] == len(mine)
            recomputed.check_latency(block["latency"], mine, 1e-9)
    golden("summary-generated.json", json.dumps(document, indent=1, sort_keys=True) + "\n")


def test_beyond_the_limit_percentiles_are_within_the_error_of_sketches(
    run_dir: Path, exact: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    limited(monkeypatch, 1000)
    near = summaries.summarised(run_dir)
    assert near["percentiles_from"] == "sketches"
    assert near["notes"] == ["3,000 turns: percentiles from sketches, within 0.25 %"]
    for part in ((), ("by_class", "chat"), ("by_target", long_run.TARGETS[1])):
        blocks, known = near, exact
        for key in part:
            blocks, known = blocks[key], known[key]
        for name, block in known["latency"].items():
            for key, value in block.items():
                if key != "intervals":
                    expected = None if value is None else pytest.approx(value, rel=0.0025, abs=1e-5)
                    assert blocks["latency"][name][key] == expected, (part, name, key)
    for gate, other in zip(exact["verdict"]["gates"], near["verdict"]["gates"], strict=True):
        assert other["effective_n"] == pytest.approx(gate["effective_n"], rel=0.1), gate
        for end in ("low", "high"):
            assert other[end] == (None if gate[end] is None else pytest.approx(gate[end], rel=0.006)), gate
    same = ("tasks", "growth", "stopped_answering", "turns", "cache", "rates", "sessions")
    assert [near[key] for key in same] == [exact[key] for key in same]
    assert near["by_target"]["http://one:8000"]["turns"] == exact["by_target"]["http://one:8000"]["turns"]


def test_parts_hold_whole_sessions(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limited(monkeypatch, 700)
    turns = Turns.of(OpenRun(run_dir))
    assert turns is not None
    parts = list(turns.by_session(agent_tasks.COLUMNS, agent_tasks.facts, turns.parts))
    roots = [set(part["root"].to_pylist()) for part in parts]
    assert len(parts) == 5
    assert sum(map(len, parts)) == SMALL.turns
    assert sum(map(len, roots)) == len(set.union(*roots)) == SMALL.turns // long_run.TURNS_PER_SESSION


def test_pairs_do_not_depend_on_the_parts(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_figures, "_MOST_TURNS", 2000)  # without the expected hits
    warm = run_dir.with_name("warm")
    long_run.write(warm, replace(SMALL, seed=2), arm="warm", earlier={"arm": "cold", "folder": run_dir.name})
    together = summaries.summarised(warm)["cache"]["earlier"]
    assert together["measures"]["ttft_ms"]["pairs"] > 1500
    limited(monkeypatch, 700)
    for name, measure in summaries.summarised(warm)["cache"]["earlier"]["measures"].items():
        assert measure == pytest.approx(together["measures"][name]), name


def test_too_long_for_the_expected_hits(run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    note = "3,000 turns: too many to compute the expected prefix-cache hits"
    for name in ("_MOST_TURNS", "_MOST_TEXTS"):
        with monkeypatch.context() as patch:
            patch.setattr(cache_figures, name, 2000)
            document = summaries.summarised(run_dir)
            assert (document["cache"]["expected"], document["cache"]["per_turn"]) == (None, None)
            assert document["notes"] == [note], name
    monkeypatch.setattr(cache_figures, "_MOST_TURNS", 2000)
    short = replace(SMALL, turns=1000)
    (tmp_path / run_dir.name).symlink_to(run_dir)
    warm = long_run.write(tmp_path / "warm", short, arm="warm", earlier={"arm": "cold", "folder": run_dir.name})
    assert summaries.summarised(warm)["notes"] == [f"{run_dir.name}: {note}"]


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Arrow with one thread: how far several read ahead of each other is left to chance."""
    threads = pa.cpu_count(), pa.io_thread_count()
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    yield
    pa.set_cpu_count(threads[0])
    pa.set_io_thread_count(threads[1])


def peak_bytes(run_dir: Path) -> int:
    """Return the most memory that Python, numpy and Arrow allocated for a summary; of a process it varies with the allocator."""
    pool, usual = pa.proxy_memory_pool(pa.default_memory_pool()), pa.default_memory_pool()
    pa.set_memory_pool(pool)
    tracemalloc.start()
    try:
        summarise.summarise(run_dir)
        return int(pool.max_memory()) + tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(usual)


@pytest.mark.usefixtures("one_thread")
def test_memory_per_turn_is_bounded(tmp_path: Path) -> None:
    few, many = (long_run.write(tmp_path / str(turns), LongRun(turns, scenario=TASKS)) for turns in (1000, 3000))
    assert peak_bytes(many) - peak_bytes(few) < 2000 * 1000  # 2,600 with a Python object per turn


def scraped(folder: Path, servers: int, pages: int) -> Path:
    """Write a short run, and pages of servers over its measure phase."""
    many_scrapes.write(folder, servers, pages, long_run.ANCHOR.wall_ns + 10 * S, 100 * S // pages)
    size = LongRun(200, sessions_per_s=0.4, scenario=TASKS)
    return long_run.write(folder, size, metrics_targets=many_scrapes.addresses(servers))


@pytest.mark.usefixtures("one_thread")
def test_memory_per_sample_of_a_server_is_bounded(tmp_path: Path) -> None:
    few, many = (scraped(tmp_path / str(pages), 1, pages) for pages in (1000, 2000))
    assert peak_bytes(many) - peak_bytes(few) < 1000 * many_scrapes.PAGE * 3  # 117 with the whole table in memory


@pytest.mark.soak
@pytest.mark.parametrize(("servers", "pages"), [(1, 2200), (50, 44)])
def test_memory_does_not_grow_with_the_samples_of_servers(tmp_path: Path, servers: int, pages: int) -> None:
    few, many = (summarised(scraped(tmp_path / str(count), servers, count)) for count in (pages, 10 * pages))
    assert (few["servers"], many["servers"]) == (servers, servers)
    assert many["peak_mb"] <= 1.1 * few["peak_mb"]


@pytest.mark.soak
@pytest.mark.parametrize("servers", [1, 50])
def test_twenty_million_samples(tmp_path: Path, servers: int) -> None:
    figures = summarised(scraped(tmp_path, servers, 20_000_000 // many_scrapes.PAGE // servers))
    print(figures)
    assert figures["peak_mb"] < 700


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("size", "source"),
    [
        (LongRun(10_000_000), "sketches"),
        (LongRun(1_500_000), "records"),
        (LongRun(500_000), "records"),  # with expected hits
    ],
    ids=["10 million turns", "exact", "expected hits"],
)
def test_a_long_run_is_summarised_in_bounded_memory(size: LongRun, source: str, tmp_path: Path) -> None:
    figures = summarised(long_run.write(tmp_path / "run", size))
    shutil.rmtree(tmp_path / "run")  # gigabytes
    print(figures)
    assert figures["sent"] == size.turns
    assert figures["percentiles_from"] == source
    assert figures["peak_mb"] < 1500
