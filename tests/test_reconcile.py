"""A turn's time divided into parts, and the books of both sides held against each other."""

from dataclasses import replace

import pandas as pd
import pytest
import synthetic_run as synthetic
from hypothesis import given
from hypothesis import strategies as st
from inferload.analysis import frames
from inferload.analysis.frames import RunFrames
from inferload.analysis.reconcile import BANDS, PARTS, bands, parts


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFrames:
    return frames.load(synthetic.write(tmp_path_factory.mktemp("runs") / "chat"))


def told(run: RunFrames, queue: float, prefill: float, decode: float) -> RunFrames:
    """The run with the server's own times on each turn."""
    own = {"server_queue_ms": queue, "server_ttft_ms": prefill, "server_generation_ms": decode}
    return replace(run, turns=run.turns.assign(**own))


def test_parts_of_a_turn_are_those_of_its_instants(run: RunFrames) -> None:
    table = parts(told(run, 10, 60, 395))
    assert len(table) == 35  # 36 planned in the window, one failed
    means = table[["total_ms", *PARTS, "server_ms"]].mean().round(6).tolist()
    #     total  lag  connect upload front end queue prefill decode server
    assert means == [502, 2, 0, 1, 34, 10, 60, 395, 499]


def test_without_the_servers_own_times_its_parts_are_not_known(run: RunFrames) -> None:
    table = parts(run)
    assert table[["front_end_ms", "queue_ms", "prefill_ms", "decode_ms"]].isna().all().all()
    assert table["server_ms"].round(6).eq(499).all()
    assert bands(table)[0].means["queue_ms"] is None


def test_a_run_without_turns_has_no_parts(run: RunFrames) -> None:
    empty = parts(replace(run, turns=run.turns.iloc[:0]))
    assert list(empty.columns) == ["turn_id", "target", "total_ms", *PARTS, "server_ms"]
    assert bands(empty) == ()


times = st.floats(0, 1e4)


@given(st.lists(st.tuples(*[times] * 7), min_size=1, max_size=60))
def test_the_parts_of_every_band_add_up_to_its_total(rows: list[tuple[float, ...]]) -> None:
    table = pd.DataFrame(rows, columns=list(PARTS))
    table["server_ms"] = table[["front_end_ms", "queue_ms", "prefill_ms", "decode_ms"]].sum(axis=1)
    table["total_ms"] = table[list(PARTS)].sum(axis=1)
    found = bands(table)
    assert found[0].turns == len(rows) == sum(band.turns for band in found[1:])
    for band in found:
        assert sum(value or 0.0 for name, value in band.means.items() if name != "server_ms") == pytest.approx(
            band.total_ms, abs=1e-6
        )
    totals = [band.total_ms for band in found[1:]]
    assert totals == pytest.approx(sorted(totals), abs=1e-6)
    assert [band.label for band in found[1:]] == [label for label, *_ in BANDS if label in {b.label for b in found}]
