"""Series from samples in blocks: those of a plain reading of the rows, however the rows are divided into tables."""

import itertools
import math
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferload.base.errors import UsageError
from inferload.servers import scrape_store
from inferload.servers.scrape_store import Recent
from inferload.servers.scrapes_file import ScrapeColumns
from inferload.servers.series import by_target

TARGETS, METRICS = (
    ("http://a/metrics", "http://b/metrics"),
    ("vllm:num_requests_running", "vllm:kv_cache_usage_perc", "x:y"),
)
Row = tuple[int, str, str, str, float]
VALUES = st.one_of(st.floats(-1e6, 1e6), st.sampled_from([math.nan, math.inf, -math.inf, 1e18, 0.0]))
ROWS = st.lists(
    st.tuples(st.integers(0, 6), st.sampled_from(TARGETS), st.sampled_from(METRICS), st.sampled_from("01"), VALUES),
    unique_by=lambda row: row[:4],
    max_size=60,
)


def table(rows: list[Row]) -> pa.Table:
    columns = ScrapeColumns()
    for wall_ns, target, metric, engine, value in rows:
        columns.append(wall_ns, target, metric, (("engine", engine),), value)
    return columns.to_table()


def reference(rows: list[Row], target: str) -> tuple[list[int], dict[tuple[str, str], dict[int, float]]]:
    """Instants of a target, and the samples of each series by instant."""
    mine = [row for row in rows if row[1] == target]
    series: dict[tuple[str, str], dict[int, float]] = {}
    for wall_ns, _, metric, engine, value in mine:
        series.setdefault((metric, engine), {})[wall_ns] = value
    return sorted({row[0] for row in mine}), series


@given(ROWS, st.lists(st.integers(0, 60), max_size=4), st.integers(1, 40))
def test_series_do_not_depend_on_the_blocks(rows: list[Row], cuts: list[int], in_block: int) -> None:
    bounds = [0, *sorted(cuts), len(rows)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scrape_store, "_ROWS", in_block)
        patch.setattr(scrape_store, "_IN_MEMORY_BYTES", 200)  # most examples use the temporary file
        patch.setattr(scrape_store, "_MOST_ARRAYS", 2)
        servers = by_target(table(rows[begin:end]) for begin, end in itertools.pairwise(bounds))
    assert list(servers) == sorted({row[1] for row in rows})
    for target, server in servers.items():
        instants, series = reference(rows, target)
        assert server.wall_ns.tolist() == instants
        found = {(metric, one.labels["engine"]): one for metric in server.metrics for one in server.metrics[metric]}
        assert set(found) == set(series)
        for key, samples in series.items():
            usable = {at: value for at, value in samples.items() if abs(value) < 1e18}
            assert dict(known(instants, found[key].values)) == usable
            unusable = found[key].unusable
            marked = [] if unusable is None else np.array(instants)[unusable].tolist()
            assert marked == sorted(set(samples) - set(usable))


def known(instants: list[int], values: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> Mapping[int, float]:
    return {at: value for at, value in zip(instants, values.tolist(), strict=True) if not math.isnan(value)}


@given(ROWS)
def test_instants_are_those_of_all_samples(rows: list[Row]) -> None:
    for target, server in by_target([table(rows)], ["vllm:num_requests_running"]).items():
        assert server.wall_ns.tolist() == reference(rows, target)[0]
        assert set(server.metrics) <= {"vllm:num_requests_running"}


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), max_size=30), st.integers(0, 20))
def test_recent_results_are_bounded_and_right(asked: list[tuple[int, int]], most: int) -> None:
    recent: Recent[tuple[int, int], list[int]] = Recent(len, most)
    for key in asked:
        assert recent.get(key, lambda key=key: [key[0]] * key[1]) == [key[0]] * key[1]
        kept = [len(value) for value in recent._kept.values()]
        assert sum(kept) <= most or len(kept) <= 2
        assert next(reversed(recent._kept)) == key


def test_no_room_for_the_temporary_file_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        def seek(self, place: int) -> None: ...

        def write(self, content: bytes) -> None:
            raise OSError(28, "No space left on device")

        def close(self) -> None: ...

    monkeypatch.setattr(scrape_store.tempfile, "SpooledTemporaryFile", lambda **options: Full())
    with pytest.raises(
        UsageError, match=r"no room for \d+ bytes of scrapes \(No space left on device\); name another .* TMPDIR"
    ):
        by_target([table([(1, TARGETS[0], METRICS[0], "0", 1.0)])])
