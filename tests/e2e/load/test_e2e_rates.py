"""Rates and overload of two workers, at a capacity that was measured. Other runs: tests/unit/run/test_virtual_rates.py."""

from pathlib import Path

import pytest
from e2e_runs import Sandbox
from rates_at import capacity_per_s, check_as_recorded, run_on

MAX_NUM_SEQS, TOKENS = 4, 18

pytestmark = [pytest.mark.soak, pytest.mark.timeout(180)]


@pytest.mark.parametrize("factor", [0.9, 1.2, 4.0])
@pytest.mark.parametrize("kind", ["poisson", "constant"])
def test_rates_and_overload_at_a_multiple_of_the_capacity(tmp_path: Path, kind: str, factor: float) -> None:
    measuring, sandbox = Sandbox(tmp_path / "capacity"), Sandbox(tmp_path)
    try:
        pace = ("--ttft-ms", "50", "--itl-ms", "20", "--max-num-seqs", str(MAX_NUM_SEQS))
        url = sandbox.simulator(*pace, paced=False).url
        rate = factor * capacity_per_s(measuring, url, 2 * MAX_NUM_SEQS, TOKENS, 5)
        phases = {"warmup_s": 2, "measure_s": 20, "drain_s": 5}
        ended = run_on(sandbox, url, "processes", {"kind": kind, "sessions_per_s": round(rate, 3)}, TOKENS, **phases)
        check_as_recorded(ended)
    finally:
        measuring.close()
        sandbox.close()
