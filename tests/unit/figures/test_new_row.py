"""A measure is one row: a row added to the table is in every file and on every page."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from paths import ROOT

SCRIPT = ROOT / "tests/support/new_row.py"


def test_a_new_row_of_the_table_is_on_every_page(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(SCRIPT.parent)}
    output = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert output.returncode == 0, output.stderr
    places = json.loads(output.stdout)
    assert places["summary"]["count"] > places["class"]["count"] > 0
    assert places["target"]["count"] > 0
    (gate,) = places["gates"]
    assert gate["passed"]
    assert gate["value"] == pytest.approx(places["summary"]["p95"])
    assert (gate["low"], gate["high"]) != (None, None)
    assert places["timeline"] > 5
    assert {"latency", "classes"} <= set(places["report"])
    assert places["comparison"] == {"Mean Normalized E2E": pytest.approx(places["summary"]["mean"])}
    assert places["live"] == ["Normalized E2E, ms"]
    assert places["live row"] == pytest.approx(places["summary"]["p50"], rel=1e-3)
    names = (
        "steps",
        "slowest",
        "tiles",
        "span",
        "terminal",
        "details",
        "chart",
        "glossary",
        "measures",
        "exporter",
        "dashboard",
    )
    missing = [place for place in names if not places[place]]
    assert not missing
