"""Several servers together."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferload.figures.servers import server_figures as figures
from inferload.figures.servers.server_formulas import UNKNOWN, Floats, Reading, Statistic
from inferload.servers.servers_window import ServersWindow


@dataclass
class Server:
    """A server with a value per reading; those that it lacks are unknown."""

    values: dict[str, float] = field(default_factory=dict)
    in_front: bool = False
    part: float = 1.0
    role_name: str | None = None

    def publishes(self, metric: str) -> bool:
        return any(name.startswith(metric) for name in self.values)

    def gauge(self, reading: Reading, statistic: Statistic) -> Floats:
        return self.delta(reading)

    def delta(self, reading: Reading) -> Floats:
        return np.asarray(self.values[reading.name]) if reading.name in self.values else UNKNOWN

    def per_s(self, reading: Reading) -> Floats:
        return self.delta(reading)

    def restarts(self) -> Floats:
        return np.asarray(1.0)


def server(ttft_s: float, requests: int, kv: float, waiting: int) -> Server:
    total, count = (reading.name for reading in figures.TTFT.formula.readings)
    (usage,), (queue,), (finished,) = (
        [reading.name for reading in row.formula.readings]
        for row in (figures.KV_CACHE_USAGE, figures.WAITING, figures.FINISHED)
    )
    return Server({total: ttft_s * requests, count: requests, usage: kv, queue: waiting, finished: requests})


servers = st.builds(server, st.floats(0.001, 10), st.integers(1, 1000), st.floats(0, 1), st.integers(0, 50))


@pytest.mark.parametrize(("queries", "share"), [((100.0, 0.0), (0.4, np.nan)), ((0.0, 0.0), (0.4, 0.0))])
def test_hits_of_a_tier_are_unknown_in_a_second_without_lookups(
    queries: tuple[float, float], share: tuple[float, float]
) -> None:
    """Prompt tokens count later. They are the whole only on a page without lookups, or if its own cache is off."""
    row = figures.BY_KEY["host_hit_share"]
    hits, looked_up, prompts = (reading.name for reading in row.formula.readings)
    of_seconds: dict[str, Any] = {hits: [40.0, 0.0], looked_up: [*queries], prompts: [100.0, 50.0]}
    assert np.array_equal(row.formula.value(Server(of_seconds)), share, equal_nan=True)


@given(st.lists(servers, min_size=1, max_size=5), st.booleans())
def test_counters_add_up_shares_are_the_highest_and_means_are_by_request(each: list[Server], whole: bool) -> None:
    group = ServersWindow(each, whole=whole)
    (usage,), (queue,), (finished,) = (
        [reading.name for reading in row.formula.readings]
        for row in (figures.KV_CACHE_USAGE, figures.WAITING, figures.FINISHED)
    )
    total, count = (reading.name for reading in figures.TTFT.formula.readings)
    assert figures.KV_CACHE_USAGE.number(group) == max(one.values[usage] for one in each)
    assert figures.WAITING.number(group) == sum(one.values[queue] for one in each)
    assert figures.FINISHED.number(group) == sum(one.values[finished] for one in each)
    mean_s = sum(one.values[total] for one in each) / sum(one.values[count] for one in each)
    assert figures.TTFT.number(group) == pytest.approx(1e3 * mean_s)
    assert figures.RESTARTS.number(group) == len(each)


@given(st.lists(servers, min_size=1, max_size=3), st.lists(servers, min_size=1, max_size=3), st.booleans())
def test_requests_that_a_page_in_front_counts_are_not_counted_again(
    engines: list[Server], front: list[Server], whole: bool
) -> None:
    for one in front:
        one.in_front = True
    group, lacks = ServersWindow([*engines, *front], whole=whole), Server(in_front=True)
    for row in (figures.FINISHED, figures.TTFT):
        assert row.number(group) == row.number(ServersWindow(front))
        assert row.number(ServersWindow([lacks, *engines], whole=whole)) == row.number(ServersWindow(engines))
    for row in (figures.WAITING, figures.KV_CACHE_USAGE):
        assert row.number(group) == row.number(ServersWindow(engines))
        assert row.number(ServersWindow([Server(), *front], whole=whole)) == row.number(ServersWindow(front))


@given(st.lists(servers, min_size=1, max_size=4))
def test_a_figure_that_a_server_lacks_is_left_out_or_unknown(each: list[Server]) -> None:
    lacks = [*each, Server()]
    assert figures.FINISHED.number(ServersWindow(lacks)) == figures.FINISHED.number(ServersWindow(each))
    assert figures.FINISHED.number(ServersWindow(lacks, whole=True)) is None
    assert figures.FINISHED.number(ServersWindow([Server()])) is None
