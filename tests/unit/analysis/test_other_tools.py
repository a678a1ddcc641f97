"""`inferload compare` with result files of other tools."""

import json
from pathlib import Path
from typing import Any

import pytest
from paths import DATA

from inferload import cli

RESULTS = DATA / "results"


def sglang(rate: float, ttft_ms: float) -> dict[str, Any]:
    latencies = {
        f"{q}_{name}_ms": ttft_ms for q in ("mean", "median", "p99") for name in ("ttft", "tpot", "itl", "e2e_latency")
    }
    counts = {
        "completed": 60,
        "total_output_tokens": 6000,
        "total_output_tokens_retokenized": 5990,
        "request_throughput": 2.0,
    }
    return {"backend": "vllm", "request_rate": rate, "output_throughput": 200.0, **counts, **latencies}


def test_files_of_other_tools_are_compared_by_what_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def compared(*sides: object) -> tuple[int, str, str]:
        return cli.main(["compare", *map(str, sides)]), *capsys.readouterr()

    files = [tmp_path / "vllm-result.json", tmp_path / "later.jsonl"]  # a name does not make it a result of vLLM
    for file, change in zip(files, (1.0, 0.8), strict=True):
        file.write_text("".join(json.dumps(sglang(rate, 50.0 * rate * change)) + "\n" for rate in (1.0, 2.0)))
    code, text, _ = compared(f"{files[0]}:2", f"{files[1]}:2")
    assert code == 0
    assert "100" in text
    assert "-20" in text
    assert "its runs differ in request_rate: 1.0, 2.0; name one result as FILE:N" in compared(*files)[1]
    mixed = compared(RESULTS / "vllm-bench.json", f"{files[0]}:1")[1]
    assert "client: vllm bench serve against SGLang bench_serving: clocks and definitions differ" in mixed
    (tmp_path / "old.json").write_text(json.dumps({"benchmarks": [{"benchmarks": [], "args": {}}]}))
    code, _, complaint = compared(RESULTS / "guidellm.json", tmp_path / "old.json")
    assert code == 2
    assert "a result of GuideLLM 0.1, which is not read; results are read from GuideLLM 0.2 on" in complaint
    assert complaint.count("\n") == 1
