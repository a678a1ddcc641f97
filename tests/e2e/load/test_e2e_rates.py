"""Rates and overload of runs against a simulator of known capacity."""

from pathlib import Path

import pytest
from e2e_runs import BUSY_MACHINE_CODES, FinishedRun, RunCase, RunPool, Sandbox, mostly_idle, run_cases, scenario
from rates_at import Cell, capacity_per_s, cells, check_at, run_on

MAX_NUM_SEQS, TTFT_MS, ITL_MS, TOKENS = 4, 50, 20, 18
CAPACITY_PER_S = MAX_NUM_SEQS / ((TTFT_MS + ITL_MS * (TOKENS - 1)) / 1e3)
MEASURE_S = 5

pytestmark = pytest.mark.timeout(180)


PACE = ("--ttft-ms", str(TTFT_MS), "--itl-ms", str(ITL_MS), "--max-num-seqs", str(MAX_NUM_SEQS))


def loaded(sandbox: Sandbox, mode: str, kind: str, load: float) -> FinishedRun:
    """Run an open loop at `load` times the capacity of the simulator, with a sufficient drain."""
    simulator = sandbox.simulator(*PACE, paced=False)
    file = scenario(
        sandbox.folder,
        arrivals={"kind": kind, "sessions_per_s": load * CAPACITY_PER_S},
        workload__output_tokens=TOKENS,
        phases={"warmup_s": 1, "measure_s": MEASURE_S, "drain_s": 60},
        gates=["turns_per_s > 15"],
    )
    fleet = sandbox.fleet(mode, "--host", simulator.url, "--scenario", str(file), "--on-invalid", "warn")
    return FinishedRun(sandbox.run_dir, fleet.exit_code(), fleet.text, simulator.stats()["requests"])


@mostly_idle
def overloaded(sandbox: Sandbox, mode: str, kind: str) -> FinishedRun:
    return loaded(sandbox, mode, kind, 4)


def half_loaded(sandbox: Sandbox, mode: str, kind: str) -> FinishedRun:
    return loaded(sandbox, mode, kind, 0.5)


@mostly_idle
def undrained(sandbox: Sandbox, mode: str) -> FinishedRun:
    """Run an overload with a gate, which also fails at the end of a drain that is too short for its queue."""
    simulator = sandbox.simulator(*PACE, paced=False)
    file = scenario(
        sandbox.folder,
        arrivals={"kind": "poisson", "sessions_per_s": 4 * CAPACITY_PER_S},
        workload__output_tokens=TOKENS,
        phases={"warmup_s": 1, "measure_s": MEASURE_S, "drain_s": 1},
        gates=["turns_per_s > 15"],
    )
    fleet = sandbox.fleet(mode, "--host", simulator.url, "--scenario", str(file))
    return FinishedRun(sandbox.run_dir, fleet.exit_code(), fleet.text, simulator.stats()["requests"])


@run_cases(undrained, ("processes",))
def test_a_failed_gate_is_not_hidden_by_the_overload_that_made_the_measurement_invalid(
    run_pool: RunPool, run_case: RunCase
) -> None:
    ended: FinishedRun = run_pool.result(run_case)
    outcome, verdict = ended.summary["outcome"], ended.summary["verdict"]
    invalid = {reason["code"] for reason in verdict["reasons"] if reason["level"] == "invalid"}
    assert "unfinished_drain" in invalid
    # On a busy machine a late client can be a second reason, or the overload can be unproven.
    proven = "; overloaded: " in outcome["headline"]
    assert ended.code == outcome["exit_code"] == (1 if proven and invalid == {"unfinished_drain"} else 3)
    assert outcome["headline"].startswith("failed: 1 of 1 gate failed; ")
    assert "; measurement invalid (" in outcome["headline"]
    assert outcome["headline"] in ended.text.splitlines()


@run_cases(overloaded, ("processes", "poisson"))
def test_overload_is_reported_and_rates_are_those_completed(run_pool: RunPool, run_case: RunCase) -> None:
    ended: FinishedRun = run_pool.result(run_case)
    check_at(ended, overloaded=True)
    summary = ended.summary
    rates, reasons = summary["rates"], summary["verdict"]["reasons"]
    assert rates["turns_per_s"] < 1.2 * CAPACITY_PER_S
    assert rates["offered_sessions_per_s"] > 3 * rates["turns_per_s"]
    busy = [reason for reason in reasons if reason["code"] in BUSY_MACHINE_CODES]
    first = next(reason for reason in reasons if reason not in busy)
    assert first["code"] == "overload"
    assert "turns/s offered" in first["text"]
    assert not any(reason["code"] == "littles_law" for reason in reasons)
    invalid = any(reason["level"] == "invalid" for reason in busy)
    assert summary["verdict"]["measurement"] == ("invalid" if invalid else "suspect")
    assert not summary["verdict"]["gates"][0]["passed"], "the gate is on the completed rate, not on the offered one"
    assert ended.idle_code == 1
    assert invalid or "\nmeasurement SUSPECT: overload" in ended.text  # further reasons on a busy machine
    assert summary["outcome"]["headline"].startswith("failed: 1 of 1 gate failed")
    assert summary["outcome"]["headline"] in ended.text.splitlines()


@run_cases(half_loaded, ("processes", "poisson"))
def test_below_the_capacity_no_overload_is_reported(run_pool: RunPool, run_case: RunCase) -> None:
    ended: FinishedRun = run_pool.result(run_case)
    check_at(ended, overloaded=False)
    assert ended.summary["turns"]["failed"] == 0


@pytest.mark.soak
@pytest.mark.parametrize("cell", cells(()))
def test_rates_and_overload_at_a_multiple_of_the_capacity(tmp_path: Path, cell: Cell) -> None:
    """Each arrival process and mode, with the capacity measured in a closed loop."""
    factor, kind, mode = cell
    measuring, sandbox = Sandbox(tmp_path / "capacity"), Sandbox(tmp_path)
    try:
        url = sandbox.simulator(*PACE, paced=False).url
        rate = factor * capacity_per_s(measuring, url, 2 * MAX_NUM_SEQS, TOKENS, 5)
        phases = {"warmup_s": 2, "measure_s": 20, "drain_s": 5}
        ended = run_on(sandbox, url, mode, {"kind": kind, "sessions_per_s": round(rate, 3)}, TOKENS, **phases)
        check_at(ended, factor > 1)
    finally:
        measuring.close()
        sandbox.close()
