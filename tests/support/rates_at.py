"""Runs at a multiple of the server's capacity; checks of their rates and of overload from the turn files."""

import json
from collections.abc import Container, Iterable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from e2e_runs import FinishedRun, Sandbox, check_counts, check_files, scenario

from inferload.results.documents.figures_document import LEAST_SHARE

FACTORS = (0.5, 0.9, 1.2, 4.0)

# Of the offered turns that did not end in the measure phase. Between the two, noise decides whether overload is reported.
KEPT_UP, FELL_BEHIND = LEAST_SHARE, 0.2

Cell = tuple[float, str, str]  # factor, arrivals, mode


def cells(short: Container[Cell], factors: Iterable[float] = FACTORS) -> list[Any]:
    """Return all cells as pytest parameters; those not in `short` are soak tests."""
    every = product(factors, ("poisson", "constant"), ("local", "processes"))
    return [
        pytest.param(cell, marks=() if cell in short else pytest.mark.soak, id="-".join(map(str, cell)))
        for cell in every
    ]


def run_on(
    sandbox: Sandbox, url: str, mode: str, arrivals: dict[str, Any], tokens: int, **phases: float
) -> FinishedRun:
    """Run one-turn sessions with outputs of `tokens` tokens."""
    file = scenario(
        sandbox.folder, arrivals=arrivals, workload__output_tokens=tokens, phases=phases, gates=["turns_per_s > 0"]
    )
    fleet = sandbox.fleet(mode, "--host", url, "--scenario", str(file), "--on-invalid", "warn")
    return FinishedRun(sandbox.run_dir, fleet.exit_code(), fleet.text)


def capacity_per_s(sandbox: Sandbox, url: str, users: int, tokens: int, measure_s: float) -> float:
    """Measure the turns per second that a server completes in a closed loop."""
    arrivals = {"kind": "closed", "users": users, "spawn_per_s": 10 * users}
    ended = run_on(sandbox, url, "local", arrivals, tokens, warmup_s=2, measure_s=measure_s, drain_s=10)
    return float(ended.summary["rates"]["turns_per_s"])


def recomputed_rate(run: Path, rows: list[dict[str, Any]]) -> float:
    """Return the successful turns per second that ended in the measure phase."""
    manifest = json.loads((run / "run.json").read_text())
    phase = next(phase for phase in manifest["phases"] if phase["phase"] == "measure")
    anchors = {worker["name"]: worker["anchor"]["wall_ns"] - worker["wall_offset_ns"] for worker in manifest["workers"]}
    closed = [row["closed_ns"] + anchors[row["worker"]] for row in rows if row["failure"] is None]
    inside = [at for at in closed if phase["start_wall_ns"] <= at < phase["end_wall_ns"]]
    return len(inside) / ((phase["end_wall_ns"] - phase["start_wall_ns"]) / 1e9)


def check_at(ended: Any, overloaded: bool | None) -> None:
    """Check the rate against the turn files, and the report of overload. `overloaded`: None: either."""
    check_files(ended.run_dir)
    check_counts(ended)
    summary = ended.summary
    rates, recomputed = summary["rates"], recomputed_rate(ended.run_dir, ended.turns)
    figures = f"{rates['offered_sessions_per_s']:.2f}/s offered, {recomputed:.2f}/s recomputed, {summary['growth']}"
    print(figures)
    assert rates["turns_per_s"] == pytest.approx(recomputed, rel=0.03)
    reported = "overload" in {reason["code"] for reason in summary["verdict"]["reasons"]}
    assert overloaded in (reported, None), figures


def check_as_recorded(ended: Any) -> None:
    """Check the rate, and that overload is reported if the turn files show it. Skips the test if they decide nothing.

    The capacity during the run is not known: other work on the machine changes it.
    """
    offered = ended.summary["rates"]["offered_sessions_per_s"]
    behind = 1 - recomputed_rate(ended.run_dir, ended.turns) / offered
    decided = behind < KEPT_UP or behind > FELL_BEHIND
    check_at(ended, behind > FELL_BEHIND if decided else None)
    if not decided:
        pytest.skip(f"{behind:.1%} of the offered turns did not end: overload was not checked")
