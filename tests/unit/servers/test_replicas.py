"""Several servers behind one metrics address, and servers that restart: simulated pages of both, as tables of scrapes."""

import itertools
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from summaries import server_documents as servers_block

from inferload.figures.pages import metric_names as names
from inferload.servers.prefix_counts import prefix_cache
from inferload.servers.replicas import COUNTERS
from inferload.servers.scrapes_file import ScrapeColumns
from inferload.servers.series import ServerSeries, by_target

S = 1_000_000_000
SERVER = "http://server:8000"
EPOCH_S = 1.8e9
ORDERS = ("round robin", "reversed", "random", "sticky", "unequal")

Page = dict[tuple[str, tuple[tuple[str, str], ...]], float]
Scrape = tuple[float, Page]  # its second, and the page


@dataclass
class Process:
    """A simulated server: its start, and what it counted before the first scrape. Each counter grows at its own rate."""

    start_s: float
    per_s: float
    before: float = 0.0
    engine: str = "0"
    begins: float = 0.0  # second of the run at which it began to count

    def page(self, at_s: float, starts: bool) -> Page:
        labels = (("engine", self.engine),)
        grown = self.before + self.per_s * (at_s - self.begins)
        values: Page = {
            (name, labels): float(int(grown * times))
            for name, times in zip(COUNTERS, (7, 3, 0.1, 7, 0.1, 3, 0.1), strict=True)
        }
        values[names.RUNNING, labels] = 1.0
        if starts:
            values[names.PROCESS_START, ()] = self.start_s
        return values


def table(scrapes: list[Scrape]) -> pa.Table:
    columns = ScrapeColumns()
    for at_s, page in scrapes:
        for (metric, labels), value in page.items():
            columns.append(round(at_s * S), SERVER, metric, labels, value)
    return columns.to_table()


def series_of(scrapes: list[Scrape]) -> ServerSeries:
    (server,) = by_target([table(scrapes)]).values()
    return server


def entry_of(scrapes: list[Scrape]) -> dict[str, Any]:
    entry: dict[str, Any]
    (entry,) = servers_block(table(scrapes), round(scrapes[0][0] * S), round(scrapes[-1][0] * S))
    return entry


def picks(order: str, servers: int, scrapes: int, random: Random) -> list[int]:
    """Return the server of each scrape."""
    match order:
        case "round robin":
            return [scrape % servers for scrape in range(scrapes)]
        case "reversed":
            return [-scrape % servers for scrape in range(scrapes)]
        case "sticky":
            return [scrape // 8 % servers for scrape in range(scrapes)]
        case "unequal":
            return random.choices(range(servers), [8.0, *[1.0] * (servers - 1)], k=scrapes)
    return random.choices(range(servers), k=scrapes)


@dataclass
class Fleet:
    """Servers behind one address, scraped at an interval; `restarts`: (scrape, server) at which one begins anew."""

    servers: list[Process]
    order: list[int]
    every_s: float
    starts: bool
    restarts: dict[int, int] = field(default_factory=dict)

    def scrapes(self) -> list[Scrape]:
        running, scrapes = list(self.servers), []
        for scrape, pick in enumerate(self.order):
            at_s = scrape * self.every_s
            if (again := self.restarts.get(scrape)) is not None:
                old = running[again]
                running[again] = Process(EPOCH_S + at_s, old.per_s, engine=old.engine, begins=at_s)
            scrapes.append((at_s, running[pick].page(at_s, self.starts)))
        return scrapes


def come_back(order: list[int]) -> bool:
    """Return True if a server is scraped again after another."""
    visits = [pick for pick, _ in itertools.groupby(order)]
    return len(set(visits)) < len(visits)


@st.composite
def fleets(draw: st.DrawFn, starts: bool, most_before: float = 1e6) -> Fleet:
    count = draw(st.integers(2, 5))
    apart = draw(st.lists(st.integers(1, 10_000), min_size=count, max_size=count, unique=True))
    servers = [Process(EPOCH_S - each, draw(st.floats(10, 1000)), draw(st.floats(0, most_before))) for each in apart]
    order = picks(draw(st.sampled_from(ORDERS)), count, draw(st.integers(4, 120)), Random(draw(st.integers(0, 1000))))
    return Fleet(servers, order, draw(st.sampled_from([0.05, 0.25, 0.5])), starts)


def unknown(scrapes: list[Scrape]) -> None:
    """Check that the figures of the address are left out, and that nothing is taken for a restart."""
    server, entry = series_of(scrapes), entry_of(scrapes)
    assert not server.restarted.any()
    assert server.metrics == {}
    assert entry["replicas"] == server.replicas
    assert entry["scrapes"] == len(scrapes)
    figures = (
        "restarts",
        "prompt_tokens",
        "generation_tokens",
        "requests_finished",
        "prefix_cache_hit_rate",
        "engines",
    )
    assert [entry[name] for name in figures] == [None] * 5 + [[]]
    assert prefix_cache(list(by_target([table(scrapes)]).values())).queries is None


@given(fleets(starts=True))
def test_a_start_time_that_comes_back_is_of_another_server(fleet: Fleet) -> None:
    scrapes = fleet.scrapes()
    found = series_of(scrapes).replicas
    assert (found > 1) == come_back(fleet.order)
    assert found <= len(set(fleet.order))
    if found > 1:
        unknown(scrapes)


@given(fleets(starts=True), st.data())
def test_servers_are_told_apart_beside_their_restarts(fleet: Fleet, data: st.DataObject) -> None:
    scrape = data.draw(st.integers(1, len(fleet.order) - 1))
    fleet.restarts = {scrape: data.draw(st.integers(0, len(fleet.servers) - 1))}
    fleet.order = [number % len(fleet.servers) for number in range(len(fleet.order) + 4 * len(fleet.servers))]
    assert series_of(fleet.scrapes()).replicas == len(fleet.servers)


@given(st.integers(2, 8), st.floats(0, 1000))
def test_servers_in_turn_are_counted(count: int, per_s: float) -> None:
    servers = [Process(EPOCH_S - 10 * number, per_s) for number in range(count)]
    fleet = Fleet(servers, [scrape % count for scrape in range(2 * count + 1)], 0.25, starts=True)
    assert series_of(fleet.scrapes()).replicas == count


def decreases(scrapes: list[Scrape]) -> int:
    """Return the most decreases of a counter."""
    each = [[page[name, (("engine", "0"),)] for _, page in scrapes] for name in COUNTERS]
    return max(int((np.diff(values) < 0).sum()) for values in each)


@given(fleets(starts=False))
def test_counters_that_decrease_more_often_than_they_have_servers_are_of_several(fleet: Fleet) -> None:
    scrapes, count = fleet.scrapes(), len(fleet.servers)
    found = series_of(scrapes).replicas
    assert found <= count
    if decreases(scrapes) >= max(3, 2 * (count - 1)):
        unknown(scrapes)
        assert found > 1


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("count", [2, 3, 4])
def test_counters_tell_servers_apart_in_any_order(order: str, count: int) -> None:
    servers = [Process(EPOCH_S, 100.0 + number, 1000.0 * number) for number in range(count)]
    scrapes = {"sticky": 240, "unequal": 120}.get(order, 60)
    fleet = Fleet(servers, picks(order, count, scrapes, Random(1)), 0.25, starts=False)
    unknown(fleet.scrapes())


@pytest.mark.parametrize("every_s", [1.0, 5.0, 60.0])
def test_counters_tell_servers_apart_at_long_intervals(every_s: float) -> None:
    servers = [Process(EPOCH_S, 100.0, 50_000.0), Process(EPOCH_S, 90.0, 48_000.0)]
    unknown(Fleet(servers, picks("round robin", 2, 20, Random(1)), every_s, starts=False).scrapes())


def test_servers_that_started_together_are_told_apart_by_their_counters() -> None:
    servers = [Process(EPOCH_S + 0.01 * number, 100.0, 5000.0 * number) for number in range(2)]
    unknown(Fleet(servers, picks("round robin", 2, 12, Random(1)), 0.25, starts=True).scrapes())


@pytest.mark.parametrize("order", ORDERS)
def test_engine_labels_that_alternate_are_of_several_servers(order: str) -> None:
    servers = [Process(EPOCH_S, 100.0, engine=str(number)) for number in range(2)]
    fleet = Fleet(servers, picks(order, 2, 40, Random(1)), 0.25, starts=False)
    assert series_of(fleet.scrapes()).replicas == 2
    unknown(fleet.scrapes())


def test_engines_that_come_and_go_on_one_page_are_of_one_server() -> None:
    pages = [Process(EPOCH_S, 100.0, engine=str(number)) for number in range(2)]
    scrapes = []
    for scrape in range(20):
        shown = (pages, pages[:1], pages, pages[1:])[scrape % 4]
        scrapes.append(
            (0.25 * scrape, {key: value for each in shown for key, value in each.page(scrape, False).items()})
        )
    assert series_of(scrapes).replicas == 1


@st.composite
def lives(draw: st.DrawFn, starts: bool) -> tuple[list[Scrape], int]:
    """Return the scrapes of one server under a load, with restarts; and their number. Lives have 3 scrapes or more.

    A restart takes a second or more, which shows as a gap of scrapes, or is shorter than their interval.
    """
    every_s = draw(st.sampled_from([0.25, 1.0, 10.0]))
    per_s = draw(st.floats(10, 1000))
    count = draw(st.integers(2, 25))
    same = draw(st.booleans())  # each life is as long as the first one, as if a request kills the server
    length = draw(st.integers(3, 12))
    scrapes: list[Scrape] = []
    at_s = 0.0
    for number in range(count):
        begins = at_s - draw(st.floats(0, min(0.9 * every_s, 5.0)))
        process = Process(EPOCH_S + begins, per_s * draw(st.floats(0.7, 1.3)), begins=begins)
        process.before = draw(st.floats(0, 1e5)) if number == 0 else 0.0
        for _ in range(length if same else draw(st.integers(3, 12))):
            scrapes.append((at_s, process.page(at_s, starts)))
            at_s += every_s
        at_s += draw(st.floats(1.0, 30.0)) if every_s < 1 else draw(st.sampled_from([0.0, 3 * every_s]))
    return scrapes, count - 1


@given(lives(starts=True))
def test_a_start_time_that_never_comes_back_is_a_restart(case: tuple[list[Scrape], int]) -> None:
    scrapes, restarts = case
    server = series_of(scrapes)
    assert (server.replicas, int(server.restarted.sum())) == (1, restarts)


@given(lives(starts=False))
def test_a_server_that_restarts_also_in_a_loop_is_one(case: tuple[list[Scrape], int]) -> None:
    scrapes, _ = case
    server = series_of(scrapes)
    assert server.replicas == 1
    assert server.restarted.any() == (decreases(scrapes) > 0)


@pytest.mark.parametrize("switches", [3, 4, 5])
def test_servers_with_nearly_equal_counters_are_told_apart_by_two_decreases(switches: int) -> None:
    """A balancer per connection, without start times: no server counts that much in a quarter of a second."""
    servers = [Process(EPOCH_S, 100.0, 1000.0), Process(EPOCH_S, 100.0, 940.0)]
    order = [switch % 2 for switch in range(switches + 1) for _ in range(10)]
    scrapes = Fleet(servers, order, 0.25, starts=False).scrapes()
    assert decreases(scrapes) == (switches + 1) // 2
    unknown(scrapes)


@given(st.integers(1, 3), st.floats(0, 1000))
@example(3, 0.0)
def test_few_resets_of_the_counters_at_once_are_restarts(resets: int, per_s: float) -> None:
    """An engine behind a running page resets its counters within an interval."""
    scrapes: list[Scrape] = []
    for life in range(resets + 1):
        process = Process(EPOCH_S, per_s, 100.0 if life == 0 else 0.0, begins=2.5 * life)
        scrapes += [
            (2.5 * life + 0.25 * scrape, process.page(2.5 * life + 0.25 * scrape, False)) for scrape in range(10)
        ]
    server = series_of(scrapes)
    assert (server.replicas, bool(server.restarted.any())) == (1, True)


def test_the_fact_is_the_same_for_every_choice_of_metrics() -> None:
    servers = [Process(EPOCH_S, 100.0, 1000.0 * number) for number in range(2)]
    scrapes = table(Fleet(servers, picks("round robin", 2, 12, Random(1)), 0.25, starts=False).scrapes())
    chosen: tuple[list[str] | None, ...] = (None, [names.RUNNING], [names.PREFIX_QUERIES, names.PREFIX_HITS], [])
    assert [by_target([scrapes], metrics)[SERVER].replicas for metrics in chosen] == [2] * 4
