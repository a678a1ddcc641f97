"""Rates and overload of runs on a virtual clock, against a simulator of known capacity."""

import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import virtual
from e2e_runs import scenario
from rates_at import check_at

MAX_NUM_SEQS, TTFT_MS, ITL_MS, TOKENS = 4, 50, 20, 18
CAPACITY_PER_S = MAX_NUM_SEQS / ((TTFT_MS + ITL_MS * (TOKENS - 1)) / 1e3)
SIMULATOR = f"--ttft-ms {TTFT_MS} --itl-ms {ITL_MS} --max-num-seqs {MAX_NUM_SEQS}"


def loaded(folder: Path, load: float, kind: str, *, measure_s: float, drain_s: float, gate: str) -> virtual.VirtualRun:
    """Run an open loop at `load` times the capacity of the simulator."""
    file = scenario(
        folder,
        arrivals={"kind": kind, "sessions_per_s": round(load * CAPACITY_PER_S, 3)},
        workload__output_tokens=TOKENS,
        phases={"warmup_s": 1, "measure_s": measure_s, "drain_s": drain_s},
        gates=[gate],
    )
    return virtual.run(folder, file, simulator=SIMULATOR)


def test_a_closed_loop_reaches_the_capacity(tmp_path: Path) -> None:
    file = scenario(tmp_path, arrivals__users=8, workload__output_tokens=TOKENS, phases={"measure_s": 20})
    rates: dict[str, Any] = virtual.run(tmp_path, file, simulator=SIMULATOR).summary["rates"]
    assert rates["turns_per_s"] == pytest.approx(CAPACITY_PER_S, rel=0.02)


@pytest.mark.parametrize(("load", "kind"), [*product((0.9, 1.2), ("poisson", "constant"))])
def test_rates_and_overload_at_a_multiple_of_the_capacity(load: float, kind: str, tmp_path: Path) -> None:
    run = loaded(tmp_path, load, kind, measure_s=20 if load > 1 else 6, drain_s=5, gate="turns_per_s > 0")
    check_at(run, load > 1)
    if load < 1:
        assert run.summary["turns"]["failed"] == 0
        assert run.code == 0, run.text


def test_overload_is_reported_and_rates_are_those_completed(tmp_path: Path) -> None:
    run = loaded(tmp_path, 4, "poisson", measure_s=5, drain_s=60, gate="turns_per_s > 15")
    check_at(run, overloaded=True)
    summary = run.summary
    rates, verdict = summary["rates"], summary["verdict"]
    assert rates["turns_per_s"] < 1.05 * CAPACITY_PER_S
    assert rates["offered_sessions_per_s"] > 3 * rates["turns_per_s"]
    (reason,) = verdict["reasons"]
    assert reason["code"] == "overload"
    assert "turns/s offered" in reason["text"]
    assert verdict["measurement"] == "suspect"
    assert not verdict["gates"][0]["passed"], "the gate is on the completed rate, not on the offered one"
    assert run.code == 1
    assert re.search("^measurement SUSPECT: overload$", run.text, re.MULTILINE)
    assert summary["outcome"]["headline"].startswith("failed: 1 of 1 gate failed")
    assert summary["outcome"]["headline"] in run.text.splitlines()


def test_a_failed_gate_is_not_hidden_by_the_overload_that_made_the_measurement_invalid(tmp_path: Path) -> None:
    """The gate also fails at the end of a drain that is too short for the queue."""
    run = loaded(tmp_path, 4, "poisson", measure_s=5, drain_s=1, gate="turns_per_s > 15")
    outcome, verdict = run.summary["outcome"], run.summary["verdict"]
    assert {reason["code"] for reason in verdict["reasons"] if reason["level"] == "invalid"} == {"unfinished_drain"}
    assert run.code == outcome["exit_code"] == 1
    assert outcome["headline"].startswith("failed: 1 of 1 gate failed; ")
    assert "; measurement invalid (" in outcome["headline"]
    assert "; overloaded: " in outcome["headline"]
    assert outcome["headline"] in run.text.splitlines()
