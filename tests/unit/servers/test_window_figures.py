"""Server figures of a window, from scrapes with known values."""

import json

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from summaries import server_documents as servers_block
from summaries import server_entries as servers_entries

from inferload.figures.pages import metric_names as names
from inferload.figures.pages.page_names import names_on_pages
from inferload.figures.servers.server_figure import ROUTER
from inferload.figures.servers.server_figures import BY_KEY, SERVER_FIGURES
from inferload.figures.servers.server_formulas import Gauge
from inferload.servers.prefix_counts import prefix_cache
from inferload.servers.scrapes_file import ScrapeColumns
from inferload.servers.series import by_target, growth
from inferload.servers.window import ServerWindow
from inferload.servers.window_figures import USED

S = 1_000_000_000
SERVER = "http://server:8000"
Page = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def page(engine: str = "0", /, **figures: float) -> Page:
    """Return a page of one engine; keys are the names in server_names in lower case."""
    return {(getattr(names, key.upper()), (("engine", engine),)): value for key, value in figures.items()}


def table(*pages: Page | None, target: str = SERVER, every_s: float = 1.0) -> pa.Table:
    """Return one scrape per page, every `every_s` seconds from 0 s on; None: the server was down."""
    columns = ScrapeColumns()
    for number, figures in enumerate(pages):
        for (metric, labels), value in (figures or {}).items():
            columns.append(round(number * every_s * S), target, metric, labels, value)
    return columns.to_table()


def block(scrapes: pa.Table, start_s: float, end_s: float) -> dict[str, object]:
    (entry,) = servers_block(scrapes, round(start_s * S), round(end_s * S))
    json.dumps(entry, allow_nan=False)
    return entry


def test_counts_and_rates_are_between_the_scrapes_nearest_to_the_window() -> None:
    pages = [page(generation_tokens=100 * n, prompt_tokens=1000 + 10 * n, preemptions=n // 2) for n in range(11)]
    entry = block(table(*pages), 1.6, 8.4)
    assert entry["window_s"] == 6.0
    assert entry["scrapes"] == 7
    assert entry["generation_tok_per_s"] == 100
    assert entry["generation_tokens"] == 600
    assert entry["prompt_tok_per_s"] == 10
    assert entry["preemptions"] == 3
    assert entry["restarts"] == 0
    assert entry["longest_gap_s"] == 1.0


@given(st.floats(0.0, 3.9), st.integers(1, 8))
def test_a_page_is_silent_until_it_answers(took_s: float, at_s: int) -> None:
    """The time of a scrape is the middle of its request."""
    columns = ScrapeColumns()
    for begun_s, answered_s in [
        (second, second + took_s * (second == at_s)) for second in (*range(at_s + 1), at_s + 4)
    ]:
        wall_ns = round((begun_s + answered_s) / 2 * S)
        columns.append(wall_ns, SERVER, names.SCRAPE_DURATION, (), answered_s - begun_s)
    window = ServerWindow.of(by_target([columns.to_table()])[SERVER], 0, (at_s + 5) * S)
    assert window.longest_silence_s == pytest.approx(max(1.0 + took_s, 4.0 - took_s), abs=1e-6)


def test_unpublished_figures_are_none() -> None:
    entry = block(table(page(running=1), page(running=1), page(running=3)), 0, 2)
    unknown = {key for key, value in entry.items() if value is None}
    assert {
        "prefix_cache_hit_rate",
        "preemptions",
        "prompt_tok_per_s",
        "spec_decode",
        "ttft_ms",
        "cached_tokens",
        "kv_cache_size_tokens",
        "waiting_by_reason",
    } <= unknown
    assert entry["kv_cache_usage"] == {"mean": None, "max": None}
    assert entry["requests_running"] == {"mean": pytest.approx(5 / 3), "max": 3}


def test_gates_read_the_figures_of_a_server() -> None:
    pages = []
    for number in (1, 2, 3):
        shown: Page = {}
        for row in (row for row in SERVER_FIGURES if row.block != ROUTER):
            for reading in row.formula.readings:
                labels = (reading.label,) if reading.label else ()
                shown[reading.metric, labels] = 50.0 if isinstance(row.formula, Gauge) else 10.0 * number
        pages.append(shown)
    (entry,) = servers_entries(table(*pages), 0, 2 * S)
    for metric in (row for row in SERVER_FIGURES if row.block != ROUTER):
        for statistic in metric.statistics or (None,):
            assert metric.of(entry, statistic) is not None, metric.key
    assert BY_KEY["gpu_use"].of(entry, "max") == 0.5
    assert BY_KEY["queue_ms"].of(entry, "mean") == 1000
    assert BY_KEY["preemptions"].of(entry, None) == 20


def test_without_prefix_cache_queries_there_is_no_hit_rate() -> None:
    asked = [page(prefix_queries=500, prefix_hits=100)] * 3
    assert block(table(*asked), 0, 2)["prefix_cache_hit_rate"] is None


def test_counts_of_a_run_name_missing_scrapes() -> None:
    asked = [None, None, *(page(prefix_queries=1000 * n, prefix_hits=250 * n) for n in range(2, 6)), None]
    counted = prefix_cache(list(by_target([table(*asked)]).values()))
    assert (counted.queries, counted.hits, counted.between_wall_ns) == (3000, 750, (2 * S, 5 * S))
    assert counted.missed(2 * S, 5 * S) == []
    assert counted.missed(S, 5 * S) == ["begins 1.0 s after the first turn was sent, with the first successful scrape"]
    assert counted.missed(3 * S, 6 * S) == ["ends 1.0 s before the last turn ended, with the last successful scrape"]
    assert prefix_cache(list(by_target([table(page(running=1))]).values())).missed(0, S) == []


def test_earlier_prefix_cache_queries_are_reported() -> None:
    asked = [page(prefix_queries=1000 * n + 500, prefix_hits=250 * n) for n in range(4)]
    entry = block(table(*asked), 1, 3)
    assert entry["prefix_cache_hit_rate"] == 0.25
    assert (entry["prefix_cache_queries"], entry["prefix_cache_hits"]) == (2000, 500)
    assert entry["prefix_cache_queries_before"] == 1500
    assert entry["prefix_cache_queries_at_first_scrape"] == 500


@pytest.mark.parametrize("engines", [1, 2, 3])
def test_each_engine_has_a_prefix_cache(engines: int) -> None:
    pages = [
        {key: value for n in range(engines) for key, value in page(str(n), prefix_queries=now, prefix_hits=0).items()}
        for now in (0, 9)
    ]
    found = prefix_cache([*by_target([table(*pages)]).values()])
    assert (found.queries, found.servers, found.engines) == (9 * engines, 1, engines)


UP: Page = {(names.PROCESS_START, ()): 1700000000.0}
LATER: Page = {(names.PROCESS_START, ()): 1700000009.5}


def pods(started: Page, tokens: float) -> Page:
    """Return a page of two servers, each with the start time of its label; that of `b` changes."""
    figures: Page = {}
    for pod, start, count in (("a", UP, 1000 + tokens), ("b", started, tokens)):
        figures |= {(metric, (("pod", pod),)): value for (metric, _), value in start.items()}
        figures[names.GENERATION_TOKENS, (("engine", "0"), ("pod", pod))] = count
    return figures


def two_engines(second: int) -> Page:
    """Return a page of two engines that count 100 tokens a second, of which one restarts after 30 s."""
    reset = 1_000_000 + 100 * second if second < 30 else 100 * (second - 30)
    figures = page("0", generation_tokens=1_000_000 + 100 * second, running=1)
    return figures | page("1", generation_tokens=reset, running=1)


RESTARTS: dict[str, tuple[list[Page | None], dict[str, float]]] = {
    "shown by a counter": (
        [
            *(page(generation_tokens=n) for n in (1000, 1100, 1200)),
            None,
            *(page(generation_tokens=n) for n in (0, 50, 100)),
        ],
        {"restarts": 1, "generation_tokens": 300, "longest_gap_s": 2},
    ),
    "shown by the start time": (
        [page(generation_tokens=10) | UP, page(generation_tokens=25) | LATER],
        {"restarts": 1, "generation_tokens": 25},
    ),
    "of one engine": ([*map(two_engines, range(61))], {"restarts": 1, "generation_tokens": 6000 + 2900 + 3000}),
    "of one engine behind a running page": (
        [UP | page(prompt_tokens=1000, prefix_hits=500), UP | page(prompt_tokens=5, prefix_hits=600)],
        {"restarts": 1, "prompt_tokens": 5, "prefix_cache_hits": 100},
    ),
    "of the server with the label": ([pods(UP, 20), pods(LATER, 30)], {"restarts": 1, "generation_tokens": 10 + 30}),
    "of all counters of an engine": (
        [
            page(generation_tokens=1000, preemptions=2, prompt_tokens=50),
            page(generation_tokens=10, preemptions=3, prompt_tokens=60),
        ],
        {"restarts": 1, "generation_tokens": 10, "preemptions": 3, "prompt_tokens": 60},
    ),
    "twice while a counter is absent": (
        [
            page(running=1, generation_tokens=tokens, **({"preemptions": count} if count else {}))
            for tokens, count in ((100, 40), (200, 50), (10, 0), (20, 0), (5, 0), (15, 3))
        ],
        {"restarts": 2, "generation_tokens": 100 + 20 + 15, "preemptions": 10 + 3},
    ),
    "none, a counter appears": (
        [page(running=0), page(running=0, rejections=3), page(running=0, rejections=4)],
        {"restarts": 0, "rejections": 4},
    ),
}


@pytest.mark.parametrize(("pages", "expected"), RESTARTS.values(), ids=RESTARTS)
def test_growth_continues_after_a_restart(pages: list[Page | None], expected: dict[str, float]) -> None:
    entry = block(table(*pages), 0, len(pages) - 1)
    assert {key: entry[key] for key in expected} == expected


def first_used(at: dict[str, int], per_s: dict[str, float], *, down: range, end: int) -> pa.Table:
    """Return a scrape per second of a server that restarts; then each counter appears at its second in `at`."""

    def page_at(second: int) -> Page | None:
        if second in down:
            return None
        since, base = (second, 5000) if second < down.start else (second - down.stop, 0)
        known = [name for name, first in at.items() if second < down.start or second >= first]
        return page(running=1, **{name: base + per_s[name] * since for name in known})

    return table(*map(page_at, range(end + 1)))


def test_counters_that_appear_at_first_use_count_one_restart() -> None:
    per_s = {"prompt_tokens": 100.0, "generation_tokens": 50.0, "finished": 1.0, "prefix_hits": 5000.0}
    first = {"prompt_tokens": 33, "generation_tokens": 36, "finished": 40, "prefix_hits": 60}
    entry = block(first_used(first, per_s, down=range(28, 31), end=60), 0, 60)
    assert entry["restarts"] == 1
    assert (entry["prompt_tokens"], entry["generation_tokens"]) == (100 * 27 + 100 * 29, 50 * 27 + 50 * 29)
    assert entry["prefix_cache_hits"] == 5000 * 27 + 5000 * 29  # first seen above its old value


def test_a_restart_before_the_window_is_not_counted_in_it() -> None:
    per_s = {"prompt_tokens": 100.0, "preemptions": 0.1}
    scrapes = first_used({"prompt_tokens": 28, "preemptions": 65}, per_s, down=range(20, 25), end=120)
    entry = block(scrapes, 60, 120)
    assert (entry["restarts"], entry["prompt_tokens"]) == (0, 6000)
    assert block(scrapes, 0, 60)["restarts"] == 1


def test_old_metric_names_are_read_and_counted_once() -> None:
    old = {("vllm:gpu_cache_usage_perc", ()): 0.5, ("vllm:gpu_prefix_cache_queries_total", ()): 0.0}
    old |= {("vllm:gpu_prefix_cache_hits_total", ()): 0.0, ("vllm:time_per_output_token_seconds_count", ()): 0.0}
    later = old | {("vllm:gpu_prefix_cache_queries_total", ()): 10.0, ("vllm:gpu_prefix_cache_hits_total", ()): 9.0}
    entry = block(table(old, later), 0, 1)
    assert entry["kv_cache_usage"] == {"mean": 0.5, "max": 0.5}
    assert entry["prefix_cache_hit_rate"] == 0.9
    both = later | page(kv_cache_usage=0.25)
    assert block(table(both, both), 0, 1)["kv_cache_usage"] == {"mean": 0.25, "max": 0.25}
    assert "vllm:time_per_output_token_seconds_bucket" in names_on_pages([names.ITL + "_bucket"])


def histogram(family: str, bounds: list[str], seen: list[float]) -> Page:
    counts = {(family + "_bucket", (("le", le),)): float(sum(value <= float(le) for value in seen)) for le in bounds}
    return counts | {(family + "_count", ()): float(len(seen)), (family + "_sum", ()): sum(seen)}


def test_quantiles_of_a_histogram_are_brackets() -> None:
    bounds = ["0.1", "0.25", "1.0", "+Inf"]
    earlier = [0.05] * 1000  # before the window: not counted
    inside = [0.2] * 60 + [0.5] * 39 + [3.0]
    scrapes = table(histogram(names.TTFT, bounds, earlier), histogram(names.TTFT, bounds, earlier + inside))
    entry = block(scrapes, 0, 1)["ttft_ms"]
    assert entry == {"count": 100, "mean": pytest.approx(345), "p50": [100, 250], "p99": [250, 1000]}
    only_slow = table(histogram(names.TTFT, bounds, []), histogram(names.TTFT, bounds, [9.0]))
    assert block(only_slow, 0, 1)["ttft_ms"] == {"count": 1, "mean": 9000, "p50": [1000, None], "p99": [1000, None]}


def test_buckets_of_engines_that_write_bounds_in_other_ways_or_have_others_are_those_of_all() -> None:
    def at(seen: list[float]) -> Page:
        engines = ("a", ["0.5", "1.0", "+Inf"]), ("b", ["0.1", "1", "+Inf"])
        return {
            (metric, (*labels, ("instance", engine))): value
            for engine, bounds in engines
            for (metric, labels), value in histogram(names.TTFT, bounds, seen).items()
        }

    entry = block(table(at([]), at([0.2, 0.2, 0.9])), 0, 1)["ttft_ms"]
    assert entry == {"count": 6, "mean": pytest.approx(1300 / 3), "p50": [0, 1000], "p99": [0, 1000]}


@given(st.lists(st.floats(0, 2), min_size=1, max_size=60))
def test_the_bracket_contains_the_sample_quantile(samples: list[float]) -> None:
    bounds = ["0.25", "0.5", "1.0", "+Inf"]
    entry = block(table(histogram(names.ITL, bounds, []), histogram(names.ITL, bounds, samples)), 0, 1)["itl_ms"]
    assert isinstance(entry, dict)
    for name, q in (("p50", 0.5), ("p99", 0.99)):
        sample_ms = sorted(samples)[max(0, int(np.ceil(q * len(samples))) - 1)] * 1e3
        low, high = entry[name]
        assert low <= sample_ms <= (high if high is not None else np.inf)


def test_speculation_is_counted_per_position() -> None:
    def drafted(n: int) -> Page:
        figures = page(spec_drafts=10 * n, spec_draft_tokens=30 * n, spec_accepted=15 * n)
        positions = {"0": 9 * n, "1": 5 * n, "2": n}
        return figures | {
            (names.SPEC_ACCEPTED_PER_POS, (("engine", "0"), ("position", at))): float(count)
            for at, count in positions.items()
        }

    assert block(table(drafted(1), drafted(2)), 0, 1)["spec_decode"] == {
        "drafts": 10,
        "draft_tokens": 30,
        "accepted_tokens": 15,
        "drafted_tok_per_s": 30,
        "accepted_tok_per_s": 15,
        "acceptance_rate": 0.5,
        "mean_acceptance_length": 2.5,
        "acceptance_by_position": [0.9, 0.5, 0.1],
    }


def test_waiting_reasons_and_token_sources() -> None:
    def at(second: int) -> Page:
        figures: Page = {(names.WAITING_BY_REASON, (("reason", "capacity"),)): 2.0 * second}
        figures[names.WAITING_BY_REASON, (("reason", "deferred"),)] = 0.0
        figures[names.PROMPT_TOKENS_BY_SOURCE, (("source", "local_compute"),)] = 70.0 * second
        figures[names.PROMPT_TOKENS_BY_SOURCE, (("source", "local_cache_hit"),)] = 900.0 * second
        figures[names.CACHE_CONFIG, (("kv_cache_size_tokens", "4096"),)] = 1.0
        return figures

    entry = block(table(at(0), at(1), at(2)), 0, 2)
    assert entry["waiting_by_reason"] == {"capacity": {"mean": 2, "max": 4}, "deferred": {"mean": 0, "max": 0}}
    assert entry["prompt_tok_computed_per_s"] == 70
    assert entry["kv_cache_size_tokens"] == 4096


def test_every_target_has_an_entry() -> None:
    scrapes = pa.concat_tables([table(page(running=1), page(running=2)), table(page(running=5), target="http://b")])
    entries = servers_block(scrapes, 0, S, [SERVER, "http://never"])
    assert [entry["target"] for entry in entries] == ["http://b", "http://never", SERVER]
    assert [entry["window_s"] for entry in entries] == [None, None, 1.0]
    assert entries[0]["requests_running"] == {"mean": None, "max": None}
    assert servers_block(scrapes.slice(0, 0), 0, S) == []


BUSY = {"running": 50.0, "waiting": 0.0, "preemptions": 0.0}


def busy_at(at_s: list[float]) -> pa.Table:
    """Return scrapes at these seconds; 1000 tokens per second."""
    columns = ScrapeColumns()
    for second in at_s:
        for (metric, labels), value in page(**BUSY, generation_tokens=1000 * second).items():
            columns.append(round(second * S), SERVER, metric, labels, value)
    return columns.to_table()


UNKNOWN = dict.fromkeys(("window_s", "restarts", "preemptions", "generation_tokens", "generation_tok_per_s"))
QUARTERS, GAP = [number / 4 for number in range(21)], [*range(20), *range(40, 61)]
# Seconds of scrapes, begin and end of the window, configured interval, and what is known.
WINDOWS: list[tuple[list[float], float, float, float | None, dict[str, float | None]]] = [
    # An end of the window was not scraped.
    (QUARTERS, 0, 60, None, UNKNOWN | {"scrapes": 21, "longest_gap_s": 55, "gap_limit_s": 5, "running": 50}),
    ([55 + at for at in QUARTERS], 0, 60, None, UNKNOWN | {"scrapes": 21, "longest_gap_s": 55}),
    ([0, 1, 2, 100, 101], 30, 60, None, UNKNOWN | {"scrapes": 0, "prefix_cache_queries_before": None, "running": None}),
    ([0, 28, 62, 100], 30, 60, 0.25, UNKNOWN | {"scrapes": 0, "running": None}),
    ([1, 9], 100, 160, None, UNKNOWN | {"longest_gap_s": 60}),
    # A gap within it.
    (
        GAP,
        0,
        60,
        None,
        {"generation_tokens": 60_000, "preemptions": 0, "restarts": 0, "longest_gap_s": 21, "gap_limit_s": 5},
    ),
    ([27, *range(34, 61)], 30, 60, 0.25, {"scrapes": 27, "window_s": 33, "generation_tokens": 33_000}),
    # The limit of gaps depends on the interval.
    ([0, 10, 20, 30], 4, 24, None, {"gap_limit_s": 25, "window_s": 20, "generation_tokens": 20_000}),
    ([0, 10, 20, 30], 4, 24, 0.25, {"gap_limit_s": 5, "longest_gap_s": 10, "scrapes": 2}),
    ([0, 10, 20, 30], 12, 18, 10, {"window_s": 10, "scrapes": 2, "running": 50}),
    # The scrapes nearest to the ends.
    (
        [0, 1, 2, 3, 4, 5],
        0.4,
        1.4,
        None,
        {"scrapes": 2, "window_s": 1, "generation_tokens": 1000, "longest_gap_s": 0.6},
    ),
    ([0, 1, 2, 3, 4, 5], 0.6, 2.4, None, {"scrapes": 2, "window_s": 1, "generation_tokens": 1000, "longest_gap_s": 1}),
    ([0, 1, 2, 3, 4, 5], 1.5, 3.6, None, {"scrapes": 4, "window_s": 3, "generation_tokens": 3000, "longest_gap_s": 1}),
    ([0, 1, 2, 3, 4, 5], 1, 2, None, {"scrapes": 2, "window_s": 1, "generation_tokens": 1000, "longest_gap_s": 1}),
]


@pytest.mark.parametrize(("at_s", "start_s", "end_s", "interval_s", "expected"), WINDOWS)
def test_figures_of_a_window(
    at_s: list[float], start_s: float, end_s: float, interval_s: float | None, expected: dict[str, float | None]
) -> None:
    (entry,) = servers_block(busy_at(at_s), round(start_s * S), round(end_s * S), interval_s=interval_s)
    found = entry | {"running": entry["requests_running"]["max"]}
    assert {key: found[key] for key in expected} == pytest.approx(expected)


def test_gauges_exclude_distant_scrapes() -> None:
    quiet = table(*[None] * 34, *[page(running=1, generation_tokens=40_000)] * 27)
    (entry,) = servers_block(pa.concat_tables([busy_at([27]), quiet]), 30 * S, 60 * S, interval_s=0.25)
    assert entry["requests_running"] == {"mean": 1, "max": 1}


def test_gates_do_not_read_means_and_maxima_of_a_part_of_the_window() -> None:
    (entry,) = servers_entries(busy_at(GAP), 0, 60 * S)
    assert [BY_KEY["requests_waiting"].of(entry, statistic) for statistic in ("mean", "max")] == [None, None]
    assert BY_KEY["preemptions"].of(entry, None) == 0
    by_gauge = structs.replace(entry, prefix_cache_hit_rate=0.5, prefix_cache_hit_rate_from="gauge")
    assert BY_KEY["prefix_cache_hit_rate"].of(by_gauge, None) is None
    by_queries = structs.replace(by_gauge, prefix_cache_hit_rate_from="queries")
    assert BY_KEY["prefix_cache_hit_rate"].of(by_queries, None) == 0.5


@given(st.lists(st.lists(st.integers(0, 50), min_size=1, max_size=6), min_size=1, max_size=4))
def test_growth_adds_up_over_restarts(lives: list[list[int]]) -> None:
    values = np.concatenate([np.cumsum(steps) for steps in lives]).astype(np.float64)
    starts = np.cumsum([0] + [len(steps) for steps in lives])[1:-1]
    restarted = np.zeros(len(values), dtype=np.bool_)
    restarted[starts] = True
    grown = growth(values, restarted)
    assert grown[0] == 0
    assert grown[-1] == sum(map(sum, lives)) - lives[0][0]
    assert (np.diff(grown) >= 0).all()


def test_the_grid_keeps_gaps() -> None:
    server = by_target([table(page(running=1), page(running=2, waiting=7), page(running=3))])[SERVER]
    waiting = server.summed(names.WAITING)
    assert waiting is not None
    assert np.isnan(waiting).tolist() == [True, False, True]


ODD = st.sampled_from([float("nan"), float("inf"), float("-inf"), 1e308, -1e308, 1e19])
LABELS = {
    "le": ["0.5", "+Inf", "-Inf", "x", "nan", "1e308", ""],
    "position": ["0", "x", "-1", "9" * 5000],
    "kv_cache_size_tokens": ["9" * 5000, "x", "64"],
    "block_size": ["9" * 5000, "16"],
}
odd_labels = st.sampled_from(sorted((name, value) for name, values in LABELS.items() for value in values))


@given(st.lists(st.dictionaries(st.tuples(st.sampled_from(USED), odd_labels), ODD | st.floats(0, 1e6)), max_size=6))
def test_any_values_and_labels_give_figures(pages: list[dict[tuple[str, tuple[str, str]], float]]) -> None:
    scrapes = table(*[{(metric, (label,)): value for (metric, label), value in one.items()} for one in pages])
    for entry in servers_block(scrapes, 0, 4 * S):
        json.dumps(entry, allow_nan=False)
    prefix_cache(list(by_target([scrapes]).values()))


@given(st.dictionaries(st.sampled_from(LABELS["le"]), ODD | st.floats(0, 3), min_size=1))
def test_any_buckets_give_quantiles(buckets: dict[str, float]) -> None:
    last = {(names.TTFT + "_bucket", (("le", le),)): value for le, value in buckets.items()}
    last |= {(names.TTFT + "_count", ()): 2.0, (names.TTFT + "_sum", ()): 1.0}
    ttft = block(table(dict.fromkeys(last, 0.0), last), 0, 1)["ttft_ms"]
    assert isinstance(ttft, dict)
    assert (ttft["count"], ttft["mean"]) == (2, 500)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), 1e308])
def test_an_unusable_value_is_unknown_and_counted(value: float) -> None:
    pages = [page(running=2, generation_tokens=10 * at, kv_cache_usage=0.5) for at in range(4)]
    for metric in (names.RUNNING, names.GENERATION_TOKENS, names.KV_CACHE_USAGE):
        pages[2][metric, (("engine", "0"),)] = value
    entry = block(table(*pages), 0, 3)
    assert entry["samples_unusable"] == 3
    assert entry["requests_running"] == {"mean": 2, "max": 2}
    assert entry["kv_cache_usage"] == {"mean": 0.5, "max": 0.5}
    assert entry["generation_tokens"] == 30
    assert entry["restarts"] == 0


def test_a_metric_without_usable_values_is_unknown() -> None:
    entry = block(table(*[page(running=float("inf"), generation_tokens=float("inf"))] * 3), 0, 2)
    assert entry["requests_running"] == {"mean": None, "max": None}
    assert entry["samples_unusable"] == 6
    assert entry["generation_tokens"] is None
    assert entry["generation_tok_per_s"] is None
