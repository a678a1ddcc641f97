"""What the simulator is made to suffer from is what the diagnosis names: each cause is first on its own run and on no other."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from e2e_runs import FinishedRun, RunPool, Sandbox, mostly_idle, run_cases, scenario

from inferload.bottleneck.rules import RULES

TINY = ("--hardware", "cpu-tiny", "--max-model-len", "8192")
T4 = ("--hardware", "t4-qwen3-4b", "--max-model-len", "8192", "--seed", "3")

# Flags of the server, and what the scenario asks of it.
CASES: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "queue-bound": (("--max-num-seqs", "2", *TINY), {"arrivals__users": 10, "workload__output_tokens": 40}),
    "kv-bound": (
        ("--num-gpu-blocks-override", "520", "--block-size", "16", *TINY),
        {"arrivals__users": 6, "workload__prompt_tokens": 5000, "workload__output_tokens": 30},
    ),
    "preemption-thrash": (
        ("--num-gpu-blocks-override", "130", "--block-size", "16", "--hardware", "cpu-tiny", "--max-model-len", "2000"),
        {"arrivals__users": 40, "workload__prompt_tokens": 16, "workload__output_tokens": 120},
    ),
    "prefill-bound": (
        ("--max-num-batched-tokens", "512", "--no-enable-prefix-caching", *T4),
        {"arrivals__users": 8, "workload__prompt_tokens": 3000, "workload__output_tokens": 2},
    ),
    "decode-bound": (
        ("--max-num-seqs", "256", *T4),
        {
            "arrivals": {"kind": "closed", "users": 60, "spawn_per_s": 12},
            "workload__prompt_tokens": 10,
            "workload__output_tokens": 120,
            "slo": {"tpot_ms": 20},
        },
    ),
    "speculation": (
        (
            "--speculative-config",
            '{"method": "ngram", "num_speculative_tokens": 4}',
            "--spec-acceptance",
            "0.05",
            *T4,  # its steps are long beside what a crowded test machine adds
        ),
        {"arrivals__users": 2, "workload__output_tokens": 100},
    ),
    "kept-up": (T4, {"arrivals__users": 1, "workload__output_tokens": 60}),
}
# What this engine cannot be made to suffer from: LoRA, grammars, KV transfer; several engines. The others are shown elsewhere:
# a client in test_e2e_overload.py, a full front end and evictions by figures alone in test_diagnosis.py.
NOT_SHOWN = {"deferred", "engines-unbalanced", "client-bound", "front-end-bound", "cache-miss-bound"}


def test_each_rule_has_a_case_or_is_listed_without_one() -> None:
    assert {rule.code for rule in RULES} == set(CASES) | NOT_SHOWN
    assert not set(CASES) & NOT_SHOWN


def suffering(sandbox: Sandbox, code: str) -> FinishedRun:
    flags, asked = CASES[code]
    simulator = sandbox.simulator(*flags, paced=False)
    phases = {"warmup_s": 0, "measure_s": 8, "drain_s": 30}
    file = scenario(
        sandbox.folder, **({"arrivals__spawn_per_s": 100, "phases": phases, "server": {"interval_s": 0.25}} | asked)
    )
    fleet = sandbox.fleet(
        "local", "--host", simulator.url, "--scenario", str(file), "--on-invalid", "warn", report=True
    )
    return FinishedRun(sandbox.run_dir, fleet.exit_code(), fleet.text)


@run_cases(suffering, *((code,) for code in CASES))
def test_the_first_cause_is_the_provoked_one(run_pool: RunPool, run_case: Any) -> None:
    ended: FinishedRun = run_pool.result(run_case)
    (code,) = run_case.arguments
    document = json.loads((Path(ended.run_dir) / "diagnosis.json").read_text())
    (server,) = document["servers"]
    codes = [finding["code"] for finding in server["findings"]]
    # A crowded test machine makes the client late, and the simulator's own process too; both say nothing of the case at hand.
    told = [found for found in codes if found not in ("client-bound", "front-end-bound")]
    assert told[:1] == [code] or (not told and code == "kept-up"), json.dumps(server, indent=1)
    assert server["advice"]
    assert "## Diagnosis" in (Path(ended.run_dir) / "report.md").read_text()


@pytest.mark.parametrize("key", ["prefill_ms", "decode_ms", "server_itl_ms", "cache_tokens", "finished"])
@run_cases(suffering, ("queue-bound",))
def test_the_evidence_is_complete(run_pool: RunPool, run_case: Any, key: str) -> None:
    (server,) = json.loads((run_pool.result(run_case).run_dir / "diagnosis.json").read_text())["servers"]
    assert server["evidence"][key] is not None


@run_cases(suffering, ("queue-bound",))
def test_a_closed_loop_with_a_queue_is_saturated(run_pool: RunPool, run_case: Any) -> None:
    ended: FinishedRun = run_pool.result(run_case)
    document = json.loads((ended.run_dir / "diagnosis.json").read_text())
    (finding,) = document["run"]["findings"]
    assert finding["code"] == "saturated"
    assert "closed loop of 10 users" in finding["sentences"][0]
    assert "latency is set by the number of users" in (ended.run_dir / "report.md").read_text()
    assert re.search(r"^diagnosis: .* \(saturated\)\. ", ended.text, re.MULTILINE)


@mostly_idle
def open_loop(sandbox: Sandbox, sessions_per_s: float) -> FinishedRun:
    """A server of one place that takes 0.5 s for a turn: two turns a second."""
    simulator = sandbox.simulator("--ttft-ms", "20", "--itl-ms", "20", "--max-num-seqs", "1", paced=False)
    file = scenario(
        sandbox.folder,
        arrivals={"kind": "constant", "sessions_per_s": sessions_per_s},
        workload__output_tokens=25,
        phases={"warmup_s": 2, "measure_s": 8, "drain_s": 60},
    )
    fleet = sandbox.fleet(
        "local", "--host", simulator.url, "--scenario", str(file), "--on-invalid", "warn", report=True
    )
    return FinishedRun(sandbox.run_dir, fleet.exit_code(), fleet.text)


@run_cases(open_loop, (1,), (6,))
def test_an_open_loop_above_and_below_the_capacity(run_pool: RunPool, run_case: Any) -> None:
    ended: FinishedRun = run_pool.result(run_case)
    (sessions_per_s,) = run_case.arguments
    document = json.loads((ended.run_dir / "diagnosis.json").read_text())
    diagnosed = "\n".join(document["lines"])
    page = (ended.run_dir / "report.md").read_text().partition("\n## Diagnosis")[2].partition("\n## ")[0]
    if sessions_per_s == 6:
        assert [finding["code"] for finding in document["run"]["findings"]] == ["overload"]
        assert re.search(r"\*\*Whole run\*\* Overloaded \(overload\)\. \S+ turns/s offered, \S+/s ended", page)
        assert "inferload search" in page
        assert "the capacity" in page.lower()
        assert ended.summary["outcome"]["state"] == "suspect"
        assert "\ndiagnosis: Overloaded (overload). " in ended.text
        assert "  Overloaded (overload)." in diagnosed
        assert ended.code == 0
        return
    assert document["run"]["findings"] == []
    (server,) = document["servers"]
    told = [one for one in server["findings"] if one["code"] not in ("client-bound", "front-end-bound")]
    assert [one["code"] for one in told] in ([], ["kept-up"])
    if len(told) == len(server["findings"]):
        assert re.search(
            r"The server kept up \(kept-up\)\. \S+ turns/s offered, \S+/s ended, without .*At most \d+ requests ran",
            page,
        )
        assert "\ndiagnosis: The server kept up (kept-up). " in ended.text
        assert "  The server kept up (kept-up)." in diagnosed
    assert "No cause found" not in page + ended.text + diagnosed
