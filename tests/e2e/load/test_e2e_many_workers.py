"""A master with many workers, which the benchmark of `make bench-workers` plays."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from paths import ROOT
from simulator_process import Simulator

sys.path.insert(0, str(ROOT))

from benchmarks.workers import Fleet, measured


@pytest.mark.usefixtures("forked_programs")
def test_no_turn_session_or_record_of_many_workers_is_lost(tmp_path: Path, simulator: Callable[..., Simulator]) -> None:
    fleet = Fleet(workers=12, processes=1, turns_per_s=8, seconds=4, warmup_s=2)
    result = measured(fleet, tmp_path, simulator().url)
    assert result.lost == ()
    assert result.turns > fleet.workers * fleet.turns_per_s
