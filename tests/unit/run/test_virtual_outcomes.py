"""Outcomes of runs on a virtual clock."""

from pathlib import Path
from typing import Any

import pytest
import virtual

from inferload import cli
from inferload.base import rundir

CLOSED = {"kind": "closed", "users": 3, "spawn_per_s": 3}
OPEN = {"kind": "constant", "sessions_per_s": 4}
POISSON = {"kind": "poisson", "sessions_per_s": 3}


def made(folder: Path, arrivals: dict[str, Any], drain_s: float) -> virtual.VirtualRun:
    """Make a run whose turns last for longer than the load and a short drain."""
    workload = {"kind": "chat", "turns": 2, "prompt_tokens": 50, "output_tokens": 80, "think_time_s": 0.2}
    load = {"schema": 1, "name": "long", "workload": workload, "arrivals": arrivals}
    return virtual.run(folder, load | {"phases": {"measure_s": 2, "drain_s": drain_s}}, variant="t4-baseline")


@pytest.mark.parametrize("arrivals", [CLOSED, OPEN, POISSON], ids=["closed", "constant", "poisson"])
@pytest.mark.parametrize("drain_s", [0.1, 0.2, 60])
def test_unfinished_turns_are_recorded_and_no_record_is_missing(
    arrivals: dict[str, Any], drain_s: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made_run = made(tmp_path, arrivals, drain_s)
    run, summary, rows = made_run.run_dir, made_run.summary, made_run.turns
    unfinished = summary["turns"]["by_phase"]["all"]["unfinished"]
    assert (unfinished > 0) == (drain_s < 60)
    assert unfinished == sum(row["failure"] == "unfinished" for row in rows)
    assert summary["turn_records"] == {
        "counted": len(rows), "at_hand": len(rows), "held_back": 0, "lost": 0, "why": None,
    }  # fmt: skip
    assert summary["percentiles_from"] == "records"
    assert "records" not in (summary["overload_not_judged"] or "")
    assert summary["stopped_answering"] is not None
    assert rundir.read_object(run / rundir.MANIFEST)["complete"]
    codes = {reason["code"] for reason in summary["verdict"]["reasons"]}
    assert "lost_records" not in codes
    assert ("unfinished_drain" in codes) == (unfinished > 0)
    capsys.readouterr()
    assert cli.main(["report", str(run)]) == 0
    page = (run / rundir.REPORT_MD).read_text()
    for text in (capsys.readouterr().out, page):
        assert "records are missing" not in text
        assert "sketches" not in text
