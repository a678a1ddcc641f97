"""Diagnosis of runs on a simulator with a provoked bottleneck: each is the first cause of its own run only."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from e2e_runs import FinishedRun, RunPool, Sandbox, mostly_idle, run_cases, scenario

from inferload.servers.bottleneck.rules import BETWEEN, RULES

TINY = ("--hardware", "cpu-tiny", "--max-model-len", "8192")
T4 = ("--hardware", "t4-qwen3-4b", "--max-model-len", "8192", "--seed", "3")

# Flags of the server, and changes of the scenario.
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
            "workload__output_tokens": 60,  # so that requests finish on a busy machine too: the server counts their times then
            "slo": {"tpot_ms": 20},
        },
    ),
    "speculation": (
        (
            "--speculative-config",
            '{"method": "ngram", "num_speculative_tokens": 4}',
            "--spec-acceptance",
            "0.05",
            *T4,  # its steps are long compared with delays of a busy machine
        ),
        {"arrivals__users": 2, "workload__output_tokens": 100},
    ),
    "kept-up": (T4, {"arrivals__users": 1, "workload__output_tokens": 60}),
}
# The simulator has no LoRA, grammars, KV transfer, and a single engine. Tests of the others: a client in test_e2e_overload.py, a
# full front end and evictions by synthetic figures in test_diagnosis.py.
NOT_PROVOKED = {"deferred", "engines-unbalanced", "client-bound", "front-end-bound", "cache-miss-bound", *BETWEEN}
OF_A_BUSY_MACHINE = ("client-bound", "front-end-bound", *BETWEEN)


def test_each_rule_has_a_case_or_is_listed_without_one() -> None:
    assert {rule.code for rule in RULES} == set(CASES) | NOT_PROVOKED
    assert not set(CASES) & NOT_PROVOKED


def provoked(sandbox: Sandbox, code: str) -> FinishedRun:
    flags, changes = CASES[code]
    simulator = sandbox.simulator(*flags, paced=False)
    phases = {"warmup_s": 0, "measure_s": 8, "drain_s": 30}
    file = scenario(
        sandbox.folder, **({"arrivals__spawn_per_s": 100, "phases": phases, "server": {"interval_s": 0.25}} | changes)
    )
    fleet = sandbox.fleet(
        "local", "--host", simulator.url, "--scenario", str(file), "--on-invalid", "warn", report=True
    )
    return FinishedRun(sandbox.run_dir, fleet.exit_code(), fleet.text)


@run_cases(provoked, *((code,) for code in CASES))
def test_the_first_cause_is_the_provoked_one(run_pool: RunPool, run_case: Any) -> None:
    ended: FinishedRun = run_pool.result(run_case)
    (code,) = run_case.arguments
    document = json.loads((Path(ended.run_dir) / "diagnosis.json").read_text())
    (server,) = document["servers"]
    codes = [finding["code"] for finding in server["findings"]]
    causes = [cause for cause in codes if cause not in OF_A_BUSY_MACHINE]
    assert causes[:1] == [code] or (not causes and code == "kept-up"), json.dumps(server, indent=1)
    assert server["advice"]
    assert "## Diagnosis" in (Path(ended.run_dir) / "report.md").read_text()


@pytest.mark.parametrize("key", ["prefill_ms", "decode_ms", "server_itl_ms", "kv", "finished"])
@run_cases(provoked, ("queue-bound",))
def test_the_evidence_is_complete(run_pool: RunPool, run_case: Any, key: str) -> None:
    (server,) = json.loads((run_pool.result(run_case).run_dir / "diagnosis.json").read_text())["servers"]
    assert server["evidence"][key] is not None


@run_cases(provoked, ("queue-bound",))
def test_a_closed_loop_with_a_queue_is_saturated(run_pool: RunPool, run_case: Any) -> None:
    ended: FinishedRun = run_pool.result(run_case)
    document = json.loads((ended.run_dir / "diagnosis.json").read_text())
    (finding,) = document["run"]["findings"]
    assert finding["code"] == "saturated"
    assert "closed loop of 10 users" in finding["sentences"][0]
    page = (ended.run_dir / "report.md").read_text()
    assert "latency is set by the number of users" in page or "no throughput is stated as the limit" in page.lower()
    assert re.search(r"^diagnosis: .*queue-bound.*: \S+ (of 2 slots|running), \S+ waiting", ended.text, re.MULTILINE)


def ramped(sandbox: Sandbox) -> FinishedRun:
    """Run from 1 to 12 users against a server with three slots."""
    simulator = sandbox.simulator("--ttft-ms", "20", "--itl-ms", "20", "--max-num-seqs", "3", paced=False)
    profile = {"kind": "linear", "from_users": 1, "to_users": 12, "end_s": 24}
    file = scenario(
        sandbox.folder,
        arrivals={"kind": "closed", "users": 12, "spawn_per_s": 100, "profile": profile},
        workload__output_tokens=25,
        phases={"warmup_s": 0, "measure_s": 26, "drain_s": 60},
        server={"interval_s": 0.25},
    )
    fleet = sandbox.fleet(
        "local", "--host", simulator.url, "--scenario", str(file), "--on-invalid", "warn", report=True
    )
    return FinishedRun(sandbox.run_dir, fleet.exit_code(), fleet.text)


@run_cases(ramped, ())
def test_a_ramp_says_from_how_many_users_on_requests_waited(run_pool: RunPool, run_case: Any) -> None:
    ended: FinishedRun = run_pool.result(run_case)
    found = re.search(r"\ndiagnosis: .*queue-bound from (\d+) users on, \d\d:\d\d:\d\d: (\S+) running, ", ended.text)
    assert found is not None, ended.text
    assert 3 <= int(found[1]) <= 6  # the user count is that of a whole second
    assert float(found[2]) <= 3
    page = (ended.run_dir / "report.md").read_text()
    assert "| time | load | cause | evidence |" in page
    assert "hroughput at" not in page  # the load changed until the end
    assert "…" not in ended.text.partition("diagnosis: ")[2].splitlines()[0]


@mostly_idle
def open_loop(sandbox: Sandbox, sessions_per_s: float) -> FinishedRun:
    """Run against a server with a capacity of 2 turns/s."""
    simulator = sandbox.simulator("--ttft-ms", "20", "--itl-ms", "20", "--max-num-seqs", "1", paced=False)
    file = scenario(
        sandbox.folder,
        arrivals={"kind": "constant", "sessions_per_s": sessions_per_s},
        workload__output_tokens=25,
        phases={"warmup_s": 2, "measure_s": 14, "drain_s": 60},
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
        assert re.search(
            r"\*\*Whole run\*\* Overloaded \(overload\)\. \S+ turns/s offered, \S+/s ended in \S+ s;", page
        )
        assert "inferload search" in page
        assert "the capacity" in page.lower()
        assert "overload" in ended.codes
        assert ended.summary["outcome"]["state"] in ("suspect", "invalid")  # invalid on a busy machine
        assert re.search(
            r"\ndiagnosis: (probably )?overload: \S+ turns/s offered, \S+/s ended.*waiting on average\n", ended.text
        )
        assert "  Overloaded (overload)." in diagnosed
        assert ended.idle_code == 0, ended.text
        return
    assert document["run"]["findings"] == []
    (server,) = document["servers"]
    findings = [finding for finding in server["findings"] if finding["code"] not in OF_A_BUSY_MACHINE]
    assert [finding["code"] for finding in findings] in ([], ["kept-up"])
    if len(findings) == len(server["findings"]):
        assert re.search(
            r"The server kept up \(kept-up\)\. \S+ turns/s offered, \S+/s ended in \S+ s, without .*At most \d+ requests ran",
            page,
        )
        assert "\ndiagnosis: kept-up: requests waited for capacity in " in ended.text
        assert "  The server kept up (kept-up)." in diagnosed
    assert "No cause found" not in page + ended.text + diagnosed
