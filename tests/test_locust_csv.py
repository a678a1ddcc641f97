"""The CSV files in Locust's form hold what Locust's own tables do."""

import locust.stats
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferload.swarm import locust_csv


@given(st.lists(st.floats(0.01, 1e5), max_size=60))
def test_percentiles_are_those_of_locust(values_ms: list[float]) -> None:
    entry = locust.stats.RequestStats(use_response_times_cache=False).get("chat", "TURN")
    for value in values_ms:
        entry.log(value, 0)
    expected = [entry.get_response_time_percentile(q) for q in locust_csv.PERCENTILES]
    shown = locust_csv._percentiles(entry)
    assert shown == (pytest.approx(expected, abs=0.0006) if values_ms else ["N/A"] * len(expected))
