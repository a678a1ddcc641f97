"""Several series of one metric against a simple model: parts add up, copies are one value, totals are not added."""

import itertools
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from summaries import server_documents as servers_block

from inferload.figures import metric_names as names
from inferload.servers.exposition import Labels, parse
from inferload.servers.parts import wholes
from inferload.servers.scraper import readings
from inferload.servers.scrapes_file import ScrapeColumns
from inferload.servers.text_format import pairs

S = 1_000_000_000
SERVER = "http://server"
PARTS = ("engine", "engine_id", "dp_rank", "model_name", "instance", "engine_type")
COPIES = ("tp_rank", "pp_rank", "ep_rank", "moe_ep_rank", "cp_rank", "dcp_rank", "attn_cp_rank", "tensor_parallel_rank")
TOTALS = (None, "", "all", "total", "ALL")  # None: the total lacks the label


@dataclass(frozen=True)
class Layout:
    """Labels of the series of a page. `parts`: those that add up; `copies`: ranks that each repeat them."""

    parts: list[dict[str, str]]
    copies: list[dict[str, str]]
    pid: bool
    totals: list[str | None] = field(default_factory=list)
    total_over: str = ""

    def series(self, values: list[float], random: Random, behind: bool) -> list[tuple[dict[str, str], float]]:
        """Return all series of a metric whose parts have these values. `behind`: copies may have a lower value."""
        lines = []
        for part, value in zip(self.parts, values, strict=True):
            ahead = random.randrange(len(self.copies))
            for number, copy in enumerate(self.copies):
                late = 1 if behind and number != ahead and value > 0 else 0
                process = {"pid": str(900 + number)} if self.pid else {}
                lines.append((part | copy | process, value - late))
        rest = [name for name in self.parts[0] if name != self.total_over]
        for mark in self.totals:
            groups = {tuple(part[name] for name in rest) for part in self.parts}
            for group in groups:
                labels = dict(zip(rest, group, strict=True)) | ({} if mark is None else {self.total_over: mark})
                of = (
                    value for part, value in zip(self.parts, values, strict=True) if [part[n] for n in rest] == [*group]
                )
                lines.append((labels, sum(of)))
        random.shuffle(lines)
        return lines


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    labels = draw(st.lists(st.sampled_from(PARTS), max_size=2, unique=True))
    sizes = [draw(st.integers(1, 3)) for _ in labels]
    parts = [dict(zip(labels, map(str, at), strict=True)) for at in itertools.product(*map(range, sizes))]
    ranks = draw(st.lists(st.sampled_from(COPIES), max_size=2, unique=True))
    widths = [draw(st.integers(1, 3)) for _ in ranks]
    copies = [dict(zip(ranks, map(str, at), strict=True)) for at in itertools.product(*map(range, widths))]
    totals = draw(st.lists(st.sampled_from(TOTALS), max_size=1)) if labels else []
    over = draw(st.sampled_from(labels)) if labels else ""
    return Layout(parts, copies, draw(st.booleans()) and bool(ranks), totals, over)


def rows(metric: str, series: list[tuple[dict[str, str], float]], **more: str) -> list[tuple[str, Labels, float]]:
    return [(metric, tuple(sorted((labels | more).items())), value) for labels, value in series]


def table(scrapes: list[list[tuple[str, Labels, float]]]) -> pa.Table:
    columns = ScrapeColumns()
    for second, page in enumerate(scrapes):
        for metric, labels, value in page:
            columns.append(second * S, SERVER, metric, labels, value)
    return columns.to_table()


def page(lines: list[tuple[str, Labels, float]]) -> str:
    return "".join(f"{metric}{{{pairs(dict(labels))}}} {value}\n" for metric, labels, value in lines)


def block(scrapes: list[list[tuple[str, Labels, float]]]) -> dict[str, Any]:
    (entry,) = servers_block(table(scrapes), 0, (len(scrapes) - 1) * S)
    return entry


@given(layouts(), st.data())
def test_a_gauge_is_the_sum_over_its_parts(layout: Layout, data: st.DataObject) -> None:
    random = data.draw(st.randoms(use_true_random=False))
    values = data.draw(
        st.lists(
            st.lists(st.integers(0, 9), min_size=len(layout.parts), max_size=len(layout.parts)), min_size=2, max_size=4
        )
    )
    scrapes = [
        rows(names.RUNNING, layout.series([float(v) for v in row], random, behind=not layout.totals)) for row in values
    ]
    shares = [rows(names.KV_CACHE_USAGE, layout.series([v / 10 for v in row], random, behind=False)) for row in values]
    entry = block(scrapes)
    truth = [sum(row) for row in values]
    assert entry["requests_running"] == {"mean": pytest.approx(np.mean(truth)), "max": max(truth)}
    assert [readings(parse(page(scrape)))[names.RUNNING] for scrape in scrapes] == truth
    if not layout.totals:  # a share has no total
        assert block(shares)["kv_cache_usage"]["max"] == max(max(row) for row in values) / 10
        assert readings(parse(page(shares[0])))["engines"] == len(layout.parts)


@given(layouts(), st.data())
def test_counters_and_histograms_grow_by_the_sum_over_their_parts(layout: Layout, data: st.DataObject) -> None:
    random = data.draw(st.randoms(use_true_random=False))
    width = len(layout.parts)
    lives = data.draw(
        st.lists(
            st.lists(st.lists(st.integers(1, 9), min_size=width, max_size=width), min_size=2, max_size=4),
            min_size=1,
            max_size=3,
        )
    )
    scrapes, growth = [], 0
    for life, steps in enumerate(lives):
        counts = np.cumsum(steps, axis=0) + 1000 * (
            len(lives) - life
        )  # each life begins below the end of the one before
        growth += int(counts[-1].sum() - (counts[0].sum() if life == 0 else 0))
        for count in counts.astype(float):
            lines = rows(names.GENERATION_TOKENS, layout.series(list(count), random, behind=False))
            lines += rows(names.TTFT + "_count", layout.series(list(count), random, behind=False))
            lines += rows(names.TTFT + "_sum", layout.series(list(count * 0.25), random, behind=False))
            for bound in ("0.5", "+Inf"):
                lines += rows(names.TTFT + "_bucket", layout.series(list(count), random, behind=False), le=bound)
            random.shuffle(lines)
            scrapes.append(lines)
    entry = block(scrapes)
    assert entry["generation_tokens"] == growth
    assert entry["ttft_ms"] == {"count": growth, "mean": pytest.approx(250), "p50": [0, 500], "p99": [0, 500]}


@given(layouts(), st.data())
def test_copies_that_come_and_go_are_no_restart(layout: Layout, data: st.DataObject) -> None:
    random = data.draw(st.randoms(use_true_random=False))
    steady = rows(names.RUNNING, layout.series([1.0] * len(layout.parts), random, behind=False))
    scrapes = []
    for second in range(5):
        count = 1000.0 + 10 * second
        lines = rows(
            names.GENERATION_TOKENS, layout.series([count] * len(layout.parts), random, behind=not layout.totals)
        )
        firsts = {whole.parts[0][0] for whole in wholes(tuple(labels for _, labels, _ in lines))}
        kept = [
            line for at, line in enumerate(lines) if at in firsts or len(layout.copies) == 1 or data.draw(st.booleans())
        ]
        present = {tuple(dict(labels).get(name) for name in layout.parts[0]) for _, labels, _ in kept}
        whole = len(present) >= len(layout.parts)
        scrapes.append((kept if whole else lines) + steady)
    entry = block(scrapes)
    assert entry["restarts"] == 0
    assert entry["generation_tokens"] == pytest.approx(40 * len(layout.parts), abs=len(layout.parts))


def test_running_requests_of_two_tensor_parallel_ranks_are_counted_once() -> None:
    lines = [(names.RUNNING, (("model_name", "m"), ("tp_rank", str(rank))), 4.0) for rank in range(2)]
    assert readings(parse(page(lines)))[names.RUNNING] == 4
    assert block([lines, lines])["requests_running"] == {"mean": 4, "max": 4}


def test_data_parallel_ranks_of_sglang_are_engines() -> None:
    lines = [
        (metric, (("dp_rank", str(rank)), ("pid", str(910 + rank)), ("tp_rank", str(rank))), value + rank)
        for metric, value in ((names.RUNNING, 3.0), (names.KV_CACHE_USAGE, 0.5))
        for rank in range(2)
    ]
    entry = block([lines, lines])
    assert entry["requests_running"]["max"] == 7
    assert [engine["engine"] for engine in entry["engines"]] == ["0", "1"]
    assert [engine["requests_running"]["max"] for engine in entry["engines"]] == [3, 4]


def test_ranks_of_two_data_parallel_engines_are_counted_once() -> None:
    values = ((names.RUNNING, 4.0), (names.KV_CACHE_USAGE, 0.5), (names.GENERATION_TOKENS, 1000.0))
    lines = [
        (metric, (("dp_rank", str(rank // 2)), ("pid", str(910 + rank)), ("tp_rank", str(rank))), value)
        for metric, value in values
        for rank in range(4)
    ]
    entry = block([lines, lines])
    assert (entry["requests_running"]["max"], entry["kv_cache_usage"]["max"]) == (8, 0.5)
    assert [engine["requests_running"]["max"] for engine in entry["engines"]] == [4, 4]
    assert (entry["restarts"], entry["generation_tokens"]) == (0, 0)


def test_processes_without_ranks_add_up() -> None:
    lines = [(names.RUNNING, (("model_name", "m"), ("pid", pid)), 2.0) for pid in ("7", "8", "9")]
    assert block([lines, lines])["requests_running"]["max"] == 6


def test_a_total_counts_while_its_parts_are_absent() -> None:
    """SGLang has priority="" beside the priorities that were used so far."""
    idle = [(names.RUNNING, (("priority", ""),), 0.0), (names.GENERATION_TOKENS, (("priority", ""),), 50.0)]
    busy = [(names.RUNNING, (("priority", text),), value) for text, value in (("", 5.0), ("1", 3.0), ("2", 2.0))]
    busy += [(names.GENERATION_TOKENS, (("priority", text),), value) for text, value in (("", 90.0), ("1", 30.0))]
    entry = block([idle, busy])
    assert entry["requests_running"] == {"mean": 2.5, "max": 5}
    assert entry["generation_tokens"] == 40


def test_totals_over_each_of_two_labels_are_not_added() -> None:
    cells = [(a, b, 1.0) for a in "xyz" for b in "uv"]
    labels = [(("a", a), ("b", b)) for a, b, _ in cells] + [(("a", a),) for a in "xyz"] + [(("b", b),) for b in "uv"]
    values = [1.0] * 6 + [2.0] * 3 + [3.0] * 2
    lines = [(names.RUNNING, part, value) for part, value in zip(labels, values, strict=True)]
    for several in (lines, [*lines, (names.RUNNING, (), 6.0)]):
        assert block([several, several])["requests_running"]["max"] == 6
