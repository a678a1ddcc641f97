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

from inferload.figures.pages import metric_names as names
from inferload.servers.exposition import Labels, PromParser
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
    assert [readings(PromParser().parse(page(scrape)))[names.RUNNING] for scrape in scrapes] == truth
    if not layout.totals:  # a share has no total
        assert block(shares)["kv_cache_usage"]["max"] == max(max(row) for row in values) / 10
        assert readings(PromParser().parse(page(shares[0])))["engines"] == len(layout.parts)


@given(layouts(), st.data())
def test_the_live_queue_of_each_engine_is_that_of_the_summary(layout: Layout, data: st.DataObject) -> None:
    random = data.draw(st.randoms(use_true_random=False))
    values = data.draw(st.lists(st.integers(0, 9), min_size=len(layout.parts), max_size=len(layout.parts)))
    lines = []
    for metric in (names.KV_CACHE_USAGE, names.RUNNING):
        lines += rows(metric, layout.series([float(value) for value in values], random, behind=False))
    entry, live = block([lines, lines]), readings(PromParser().parse(page(lines)))
    engines = {engine["engine"]: engine["requests_running"]["max"] for engine in entry["engines"]}
    assert len(engines) == len(entry["engines"])
    found = {name.partition("@")[2]: value for name, value in live.items() if "@" in name}
    assert found == {name: value for name, value in engines.items() if name is not None}
    assert not found or layout.totals or sum(found.values()) == live[names.RUNNING]


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
        firsts = {
            whole.parts[0][0] for whole in wholes(names.GENERATION_TOKENS, tuple(labels for _, labels, _ in lines))
        }
        kept = [
            line for at, line in enumerate(lines) if at in firsts or len(layout.copies) == 1 or data.draw(st.booleans())
        ]
        present = {tuple(dict(labels).get(name) for name in layout.parts[0]) for _, labels, _ in kept}
        whole = len(present) >= len(layout.parts)
        scrapes.append((kept if whole else lines) + steady)
    entry = block(scrapes)
    assert entry["restarts"] == 0
    assert entry["generation_tokens"] == pytest.approx(40 * len(layout.parts), abs=len(layout.parts))


def ranks(**labels: list[int]) -> list[Labels]:
    """Return the labels of series, of which each is a row of these columns."""
    rows_of = zip(*labels.values(), strict=True)
    return [tuple(sorted(zip(labels, map(str, row), strict=True))) for row in rows_of]


# Series of a gauge of 4 and a counter of 10 per second each: engines, and what gauge and counter are in all.
ENGINES: dict[str, tuple[list[Labels], list[str | None], int, int]] = {
    "two tensor-parallel ranks": (ranks(tp_rank=[0, 1]), [None], 4, 10),
    "data-parallel ranks of SGLang": (ranks(dp_rank=[0, 1], pid=[8, 9], tp_rank=[0, 1]), ["0", "1"], 8, 20),
    "ranks of two of them": (ranks(dp_rank=[0, 0, 1, 1], pid=[6, 7, 8, 9], tp_rank=[0, 1, 2, 3]), ["0", "1"], 8, 20),
    "processes without ranks and engines": (ranks(pid=[7, 8, 9]), ["7", "8", "9"], 12, 30),
    **{
        f"API processes by {label}": (ranks(engine=[0, 0, 1, 1], **{label: [7, 8, 7, 8]}), ["0", "1"], 8, 40)
        for label in ("pid", "worker_id", "process_id", "api_server_index", "api_process")
    },
    "two servers of two engines": (
        ranks(engine=[0, 1, 0, 1], instance=[5, 5, 6, 6]),
        ["0 5", "0 6", "1 5", "1 6"],
        16,
        40,
    ),
    "a label like a parameter": (ranks(engine=[0, 0], metric=[5, 6]), ["0 5", "0 6"], 8, 20),
    "workers of Dynamo": (ranks(dp_rank=[0, 0], worker_id=[5, 6]), ["0 5", "0 6"], 8, 20),
}


@pytest.mark.parametrize(("series", "engines", "running", "per_s"), ENGINES.values(), ids=ENGINES)
def test_engines_and_processes(series: list[Labels], engines: list[str | None], running: int, per_s: int) -> None:
    def lines(second: int) -> list[tuple[str, Labels, float]]:
        values = ((names.RUNNING, 4.0), (names.KV_CACHE_USAGE, 0.5), (names.GENERATION_TOKENS, 10.0 * second))
        return [(metric, labels, value) for labels in series for metric, value in values]

    def sized(metric: str, *, label: bool) -> list[tuple[str, Labels, float]]:
        return [(metric, (*each, *[("kv_cache_size_tokens", "3000")] * label), 3000.0) for each in series]

    entry, live = block([lines(1), lines(2)]), readings(PromParser().parse(page(lines(1))))
    assert entry["requests_running"]["max"] == live[names.RUNNING] == running
    assert [engine["engine"] for engine in entry["engines"]] == engines
    assert (live["engines"], entry["kv_cache_usage"]["max"]) == (len(engines), 0.5)
    assert (entry["restarts"], entry["generation_tokens"], entry["kv_cache_size_tokens"]) == (0, per_s, None)
    for sizes in (sized(names.CACHE_CONFIG, label=True), sized("sglang:max_total_num_tokens", label=False)):
        entry = block([lines(1) + sizes] * 2)
        assert entry["kv_cache_size_tokens"] == 3000 * len(engines)
        assert {engine["kv_cache_size_tokens"] for engine in entry["engines"]} == {3000}


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


def dcgm(gpu: int, **more: str) -> dict[str, str]:
    return {"gpu": str(gpu), "UUID": f"GPU-{gpu}", "device": f"nvidia{gpu}", "modelName": "H", "Hostname": "n"} | more


# Labels of the series of two devices.
SHARED: dict[str, list[dict[str, str]]] = {
    "for each pod": [dcgm(gpu, pod=pod, container="c", namespace="ns") for gpu in (0, 1) for pod in ("a", "b", "c")],
    "relabelled": [dcgm(gpu, exported_pod=pod, instance="n:9400") for gpu in (0, 1) for pod in ("", "b")],
    "one idle": [dcgm(0), dcgm(1, pod="a"), dcgm(1, pod="b", vgpu="1")],
    "two exporters": [dcgm(gpu, instance=at) for gpu in (0, 1) for at in ("a:9400", "b:9400")],
    "two hosts": [{"gpu": "0", "Hostname": host, "pod": pod} for host in ("a", "b") for pod in ("x", "y")],
    "old names": [{"gpu": str(gpu), "uuid": f"GPU-{gpu}", "pod_name": pod} for gpu in (0, 1) for pod in ("x", "y")],
    "AMD": [{"gpu_id": gpu, "serial_number": f"S{gpu}", "hostname": "n", "pod": pod} for gpu in "01" for pod in "xy"],
    "not set": [{"gpu_id": gpu, "serial_number": "N/A", "hostname": "n", "pod": pod} for gpu in "01" for pod in "xy"],
    "number only": [{"gpu": str(gpu), "container": name} for gpu in (0, 1) for name in ("x", "y")],
    "unknown labels": [{"slot": "a"}, {"slot": "b"}],
}
SLICES = [dcgm(0, GPU_I_ID=str(n), GPU_I_PROFILE="1g.10gb", pod=pod) for n in (7, 8) for pod in ("a", "b")]


def of_gpus(metric: str, series: list[dict[str, str]], value: float) -> list[tuple[str, Labels, float]]:
    return [(metric, tuple(sorted(each.items())), value) for each in series]


@pytest.mark.parametrize("labels", SHARED.values(), ids=SHARED)
def test_a_device_is_counted_once_whatever_else_is_in_the_labels(labels: list[dict[str, str]]) -> None:
    values = {names.GPU_POWER: 300.0, names.GPU_MEMORY: 1000.0, names.GPU_USE: 50.0, names.GPU_SM_CLOCK: 900.0}
    lines = [line for metric, value in values.items() for line in of_gpus(metric, labels, value)]
    live, gpu = (
        readings(PromParser().parse(page(lines))),
        block([lines, [(*line[:2], line[2] / 2) for line in lines]])["gpu"],
    )
    assert [live[metric] for metric in values] == [600, 2000, 50, 900]
    assert (gpu["power_w"], gpu["memory_mib"]) == ({"mean": 450, "max": 600}, {"mean": 1500, "max": 2000})
    assert (gpu["use"]["max"], gpu["sm_clock_mhz"]["max"]) == (0.5, 900)


@pytest.mark.parametrize("device", [[dcgm(0)], []])
def test_instances_of_a_device_share_its_power_and_are_parts_of_its_memory(device: list[dict[str, str]]) -> None:
    lines = of_gpus(names.GPU_POWER, SLICES + device, 300) + of_gpus(names.GPU_MEMORY, device, 5000)
    lines += of_gpus(names.GPU_MEMORY, SLICES, 2000)
    gpu = block([lines, lines])["gpu"]
    assert gpu["power_w"]["max"] == readings(PromParser().parse(page(lines)))[names.GPU_POWER] == 300
    assert gpu["memory_mib"]["max"] == (5000 if device else 4000)
