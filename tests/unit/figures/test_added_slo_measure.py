"""A limit of an SLO is one row: an added one is a key of scenarios, judges turns, and is in each text on the SLO."""

import json
import subprocess
import sys

from paths import ROOT


def test_an_added_limit_is_where_the_others_are() -> None:
    program = [sys.executable, str(ROOT / "tests/support/added_slo_measure.py")]
    found = json.loads(subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=True).stdout)
    assert found["missed"] == [True, False]
    assert found["reference"] == [
        "| `ttfo_ms` | number > 0 | - | time to first visible output, in ms; in an open loop from the planned start of the turn |"
    ]
    assert found["error"] == "x.yaml:6: slo.tfo_ms: unknown key; did you mean ttfo_ms?"
    assert found["plan"] == ["slo       TTFO <= 61 ms"]
    assert found["terminal"][1] == "TTFO <= 61 ms missed by 50 %"
    assert found["table"][-1] == "TTFO, ms"
    assert found["lines"] == ["SLO: TTFO <= 61 ms"]
    assert found["from plan"] == "TTFT, E2E and TTFO"
    assert found["summary reference"]
