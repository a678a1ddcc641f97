"""Runs at a multiple of a server's capacity, and the checks of their rates and of overload, by hand from the turn files."""

import json
from collections.abc import Container
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from e2e_runs import FinishedRun, Sandbox, check_counts, check_files, scenario

FACTORS = (0.5, 0.9, 1.2, 4.0)


Cell = tuple[float, str, str]  # factor, arrivals, mode


def cells(short: Container[Cell]) -> list[Any]:
    """Every run: those in `short` in each test run, the others in the soak tests."""
    every = product(FACTORS, ("poisson", "constant"), ("local", "processes"))
    return [
        pytest.param(cell, marks=() if cell in short else pytest.mark.soak, id="-".join(map(str, cell)))
        for cell in every
    ]


def run_on(
    sandbox: Sandbox, url: str, mode: str, arrivals: dict[str, Any], tokens: int, **phases: float
) -> FinishedRun:
    """One run of one-turn sessions with answers of `tokens` tokens."""
    file = scenario(
        sandbox.folder, arrivals=arrivals, workload__output_tokens=tokens, phases=phases, gates=["turns_per_s > 0"]
    )
    fleet = sandbox.fleet(mode, "--host", url, "--scenario", str(file), "--on-invalid", "warn")
    return FinishedRun(sandbox.run_dir, fleet.exit_code(), fleet.text)


def capacity_per_s(sandbox: Sandbox, url: str, users: int, tokens: int, measure_s: float) -> float:
    """Turns per second that a server completes in a closed loop of so many users."""
    arrivals = {"kind": "closed", "users": users, "spawn_per_s": 10 * users}
    ended = run_on(sandbox, url, "local", arrivals, tokens, warmup_s=2, measure_s=measure_s, drain_s=10)
    return float(ended.summary["rates"]["turns_per_s"])


def ended_by_hand(run: Path, rows: list[dict[str, Any]]) -> float:
    """Turns per second that ended well between the ends of the measure phase."""
    manifest = json.loads((run / "run.json").read_text())
    phase = next(one for one in manifest["phases"] if one["phase"] == "measure")
    anchors = {one["name"]: one["anchor"]["wall_ns"] - one["wall_offset_ns"] for one in manifest["workers"]}
    closed = [row["closed_ns"] + anchors[row["worker"]] for row in rows if row["failure"] is None]
    inside = [at for at in closed if phase["start_wall_ns"] <= at < phase["end_wall_ns"]]
    return len(inside) / ((phase["end_wall_ns"] - phase["start_wall_ns"]) / 1e9)


def check_at(ended: FinishedRun, overloaded: bool | None) -> None:
    """The served rate is that of a count by hand, and overload is reported where it is expected (None: may be or not)."""
    check_files(ended.run_dir)
    check_counts(ended)
    summary = ended.summary
    rates, by_hand = summary["rates"], ended_by_hand(ended.run_dir, ended.turns)
    figures = f"{rates['offered_sessions_per_s']:.2f}/s offered, {by_hand:.2f}/s by hand, {summary['growth']}"
    print(figures)
    assert rates["turns_per_s"] == pytest.approx(by_hand, rel=0.03)
    reported = "overload" in {reason["code"] for reason in summary["verdict"]["reasons"]}
    assert overloaded in (reported, None), figures
