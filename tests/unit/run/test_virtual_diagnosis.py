"""Diagnosis of runs on a virtual clock with a provoked bottleneck: each is the first cause of its own run only."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import virtual
from e2e_runs import scenario

from inferload.base import rundir
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
            "workload__output_tokens": 60,
            "slo": {"tpot_ms": 20},
        },
    ),
    "speculation": (
        ("--speculative-config", '{"method": "ngram", "num_speculative_tokens": 4}', "--spec-acceptance", "0.05", *T4),
        {"arrivals__users": 2, "workload__output_tokens": 100},
    ),
    "kept-up": (T4, {"arrivals__users": 1, "workload__output_tokens": 20}),
}
# The simulator has no LoRA, grammars, KV transfer, and a single engine. Tests of the others: a client in test_e2e_overload.py, a
# full front end and evictions by synthetic figures in test_diagnosis.py.
_OTHERS = "deferred transfer-bound tier-load engines-unbalanced client-bound front-end-bound cache-miss-bound paused"
NOT_PROVOKED = {*_OTHERS.split(), *BETWEEN}


def test_each_rule_has_a_case_or_is_listed_without_one() -> None:
    assert {rule.code for rule in RULES} == set(CASES) | NOT_PROVOKED
    assert not set(CASES) & NOT_PROVOKED


def run_of(folder: Path, *flags: str, phases: dict[str, float], **changes: Any) -> tuple[virtual.VirtualRun, Any, str]:
    """Make a run against a server with these flags. Return it with diagnosis.json and report.md."""
    file = scenario(folder, phases=phases, server={"interval_s": 0.25}, **changes)
    run = virtual.run(folder, file, "--report", simulator=shlex.join(flags))
    document = rundir.read_object(run.run_dir / "diagnosis.json")
    return run, document, (run.run_dir / rundir.REPORT_MD).read_text()


@pytest.mark.parametrize("code", CASES)
def test_the_first_cause_is_the_provoked_one(code: str, tmp_path: Path) -> None:
    flags, changes = CASES[code]
    phases = {"warmup_s": 0, "measure_s": 8 if code == "kept-up" else 5, "drain_s": 30}
    run, document, page = run_of(tmp_path, *flags, phases=phases, **({"arrivals__spawn_per_s": 100} | changes))
    (server,) = document["servers"]
    causes = [finding["code"] for finding in server["findings"]]
    assert causes[:1] == [code], server
    assert server["advice"]
    assert "## Diagnosis" in page
    (figures,) = run.summary["servers"]
    assert any("no counter of tokens" in note for note in run.summary["notes"]) == bool(figures["preemptions"])
    if code != "queue-bound":
        return
    for key in ("prefill_ms", "decode_ms", "server_itl_ms", "kv", "finished"):
        assert server["evidence"][key] is not None
    (finding,) = document["run"]["findings"]
    assert finding["code"] == "saturated"
    assert "closed loop of 10 users" in finding["sentences"][0]
    assert "latency is set by the number of users" in page or "no throughput is stated as the limit" in page.lower()
    assert re.search(r"^diagnosis: .*queue-bound.*: \S+ (of 2 slots|running), \S+ waiting", run.text, re.MULTILINE)


def test_a_ramp_says_from_how_many_users_on_requests_waited(tmp_path: Path) -> None:
    """From 1 to 12 users against a server with three slots."""
    profile = {"kind": "linear", "from_users": 1, "to_users": 12, "end_s": 16}
    run, _, page = run_of(
        tmp_path,
        *("--ttft-ms", "20", "--itl-ms", "20", "--max-num-seqs", "3"),
        phases={"warmup_s": 0, "measure_s": 18, "drain_s": 60},
        arrivals={"kind": "closed", "users": 12, "spawn_per_s": 100, "profile": profile},
        workload__output_tokens=25,
    )
    assert "\ndiagnosis: queue-bound from 4 users on, 00:00:04: 3 of 3 slots, " in run.text  # at 4.4 s
    assert "| time | load | cause | evidence |" in page
    assert "hroughput at" not in page  # the load changed until the end
    assert "…" not in run.text.partition("diagnosis: ")[2].splitlines()[0]


def open_loop(folder: Path, sessions_per_s: float) -> tuple[virtual.VirtualRun, Any, str, str]:
    """Run against a server with a capacity of 2 turns/s. Return also the section of the report, and the lines."""
    run, document, page = run_of(
        folder,
        *("--ttft-ms", "20", "--itl-ms", "20", "--max-num-seqs", "1"),
        phases={"warmup_s": 2, "measure_s": 14, "drain_s": 60},
        arrivals={"kind": "constant", "sessions_per_s": sessions_per_s},
        workload__output_tokens=25,
    )
    assert run.code == 0, run.text
    return run, document, page.partition("\n## Diagnosis")[2].partition("\n## ")[0], "\n".join(document["lines"])


def test_an_open_loop_above_the_capacity_is_overloaded(tmp_path: Path) -> None:
    run, document, page, diagnosed = open_loop(tmp_path, 6)
    assert [finding["code"] for finding in document["run"]["findings"]] == ["overload"]
    assert re.search(r"\*\*Whole run\*\* Overloaded \(overload\)\. \S+ turns/s offered, \S+/s ended in \S+ s;", page)
    assert "inferload search" in page
    assert "the capacity" in page.lower()
    assert "overload" in run.codes
    assert run.summary["outcome"]["state"] == "suspect"
    assert re.match(r"overloaded: \S+ turns/s offered, \S+/s ended", run.summary["outcome"]["headline"])
    assert re.search(
        r"\ndiagnosis: (probably )?overload: \S+ turns/s offered, \S+/s ended.*waiting on average\n", run.text
    )
    assert "  Overloaded (overload)." in diagnosed


def test_an_open_loop_below_the_capacity_kept_up(tmp_path: Path) -> None:
    run, document, page, diagnosed = open_loop(tmp_path, 1)
    assert document["run"]["findings"] == []
    (server,) = document["servers"]
    assert [finding["code"] for finding in server["findings"]] == ["kept-up"]
    assert re.search(
        r"The server kept up \(kept-up\)\. 1 turns/s offered, \S+/s ended in 14 s, .*At most 1 of 1 sequence slots were in use",
        page,
    )
    assert "\ndiagnosis: kept-up: requests waited for capacity in " in run.text
    assert "  The server kept up (kept-up)." in diagnosed
    assert "No bottleneck found" not in page + run.text + diagnosed
