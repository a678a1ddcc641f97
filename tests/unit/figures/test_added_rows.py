"""A measure, a limit of an SLO and a figure of servers are one row each: an added one is in every file and on every page."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest
from paths import ROOT, SUPPORT


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Where rows that a program adds are found, and their values there."""
    program = [sys.executable, str(SUPPORT / "added_rows.py"), str(tmp_path_factory.mktemp("rows"))]
    environment = os.environ | {"PYTHONPATH": str(SUPPORT)}
    ended = subprocess.run(program, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return dict(json.loads(ended.stdout))


def test_an_added_measure_is_on_every_page(found: dict[str, Any]) -> None:
    places = found["turns"]
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


def test_an_added_limit_is_where_the_others_are(found: dict[str, Any]) -> None:
    slo = found["slo"]
    assert slo["missed"] == [True, False]
    assert slo["reference"] == [
        "| `ttfo_ms` | number > 0 | - | time to first visible output, in ms; in an open loop from the planned start of the turn |"
    ]
    assert slo["error"] == "x.yaml:6: slo.tfo_ms: unknown key; did you mean ttfo_ms?"
    assert slo["plan"] == ["slo       TTFO <= 61 ms"]
    assert slo["terminal"][1] == "TTFO <= 61 ms missed by 50 %"
    assert slo["table"][-1] == "TTFO, ms"
    assert slo["lines"] == ["SLO: TTFO <= 61 ms"]
    assert slo["from plan"] == "TTFT, E2E and TTFO"
    assert slo["summary reference"]


def test_an_added_figure_of_servers_is_in_each_place(found: dict[str, Any]) -> None:
    servers = found["servers"]
    line = "| `requests_deferred` | mean, max |  | vllm:num_requests_deferred, summed over engines |"
    expected = {
        "summary": {"mean": 3, "max": 5},
        "engines": [4, 1],
        "gate": 5,
        "gate reference": [line],
        "report": [["requests deferred", "3 (max 5)"]],
        "glossary": ["requests_deferred"] * 2,
        "summary reference": 2,  # of a server and of an engine
        "timeline": [1, 2, 3, 4, 5],
        "live": [8, 8],
        "live target": [8, 8],
    }
    assert {place: servers[place] for place in expected} == expected
    assert "servers[0].requests_deferred" in servers["shape"]["servers"]
    assert ["requests", "deferred", "3", "(max", "5)"] in [line.split() for line in servers["terminal"].splitlines()]
    assert "deferred 3/5" in servers["brief"]
    assert "deferred" in servers["chart"]
