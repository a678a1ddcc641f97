"""A small sweep on vLLM: two variants, a scenario, two pairs, a single start of each variant."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from inferload import cli

pytestmark = [pytest.mark.vllm, pytest.mark.soak, pytest.mark.timeout(1800)]

SCENARIO = """\
schema: 1
name: quick
workload: {kind: chat, prompt_tokens: 300, output_tokens: 8, turns: 3}
arrivals: {kind: closed, users: 2, spawn_per_s: 50}
phases: {measure_s: 4, drain_s: 30}
request: {ignore_eos: true}
"""
SWEEP = """\
schema: 1
name: real
engine: vllm-cpu
baseline: tiny-baseline
variants: [tiny-prefix-caching]
scenarios: [quick.yaml]
pairs: 2
restart: once
reports: false
cost: {gpu_hour_price: 2.5}
"""


def tokens_looked_up(run_dir: Path) -> float:
    """Return the prefix cache queries up to the last scrape: on a busy machine the measure phase may have no turn."""
    table = pq.read_table(run_dir / "server_metrics", filters=[("metric", "=", "vllm:prefix_cache_queries_total")])
    return float(max(table["value"].to_pylist(), default=0.0))


def test_a_sweep_of_two_variants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "quick.yaml").write_text(SCENARIO)
    (tmp_path / "sweep.yaml").write_text(SWEEP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LOCUST_SKIP_MONKEY_PATCH", raising=False)
    assert cli.main(["sweep", "sweep.yaml", "--into", "out"]) == 0
    queries = {"tiny-baseline": 0.0, "tiny-prefix-caching": 0.0}
    for name in ("tiny-baseline", "tiny-prefix-caching"):
        for pair in ("000", "001"):
            folder = tmp_path / "out" / "quick" / name / pair
            manifest = json.loads((folder / "run.json").read_text())
            assert manifest["engine"].startswith("vllm ")
            assert manifest["variant"]["name"] == name
            assert manifest["variant"]["memory_mb"] > 100
            assert manifest["variant"]["config"]["server"]["scheduler_config"]["max_num_batched_tokens"] == 4096
            queries[name] += tokens_looked_up(folder)
    assert queries["tiny-baseline"] == 0 < queries["tiny-prefix-caching"]
    index = (tmp_path / "out" / "index.md").read_text()
    assert "2 pairs: nothing is tested" in index
    assert "million output tok" in index
