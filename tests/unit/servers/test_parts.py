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


def dcgm(gpu: int, **more: str) -> dict[str, str]:
    return {"gpu": str(gpu), "UUID": f"GPU-{gpu}", "device": f"nvidia{gpu}", "modelName": "H", "Hostname": "n"} | more


# Labels of the series of two devices, with the whole of their power (300 W each) and memory (1000 MiB each, or an instance's part).
SHARED: dict[str, list[dict[str, str]]] = {
    "for each pod": [dcgm(gpu, pod=pod, container="c", namespace="ns") for gpu in (0, 1) for pod in ("a", "b", "c")],
    "relabelled": [dcgm(gpu, exported_pod=pod, instance="n:9400") for gpu in (0, 1) for pod in ("", "b")],
    "one idle": [dcgm(0), dcgm(1, pod="a"), dcgm(1, pod="b", vgpu="1")],
    "two exporters": [dcgm(gpu, instance=at) for gpu in (0, 1) for at in ("a:9400", "b:9400")],
    "two hosts": [{"gpu": "0", "Hostname": host, "pod": pod} for host in ("a", "b") for pod in ("x", "y")],
    "old names": [{"gpu": str(gpu), "uuid": f"GPU-{gpu}", "pod_name": pod} for gpu in (0, 1) for pod in ("x", "y")],
    "AMD": [
        {"gpu_id": str(gpu), "serial_number": f"S{gpu}", "hostname": "n", "pod": pod, "card_model": "M"}
        for gpu in (0, 1)
        for pod in ("x", "y")
    ],
    "number only": [{"gpu": str(gpu), "container": name} for gpu in (0, 1) for name in ("x", "y")],
    "unknown labels": [{"slot": "a"}, {"slot": "b"}],
}


@pytest.mark.parametrize("labels", SHARED.values(), ids=SHARED)
def test_a_device_is_counted_once_whatever_else_is_in_the_labels(labels: list[dict[str, str]]) -> None:
    values = {names.GPU_POWER: 300.0, names.GPU_MEMORY: 1000.0, names.GPU_USE: 50.0, names.GPU_SM_CLOCK: 900.0}
    lines = [(metric, tuple(sorted(each.items())), value) for metric, value in values.items() for each in labels]
    idle = [(metric, each, value / 2) for metric, each, value in lines]
    live = readings(parse(page(lines)))
    assert [live[metric] for metric in values] == [600, 2000, 50, 900]
    gpu = block([lines, idle])["gpu"]
    assert gpu["power_w"] == {"mean": 450, "max": 600}
    assert gpu["memory_mib"] == {"mean": 1500, "max": 2000}
    assert (gpu["use"]["max"], gpu["sm_clock_mhz"]["max"]) == (0.5, 900)


@pytest.mark.parametrize("parent", [True, False])
def test_instances_of_a_device_share_its_power_and_are_parts_of_its_memory(parent: bool) -> None:
    def lines(metric: str, whole: float, part: float) -> list[tuple[str, Labels, float]]:
        slices = [dcgm(0, GPU_I_ID=str(n), GPU_I_PROFILE="1g.10gb", pod=pod) for n in (7, 8) for pod in ("a", "b")]
        series = [(each, part) for each in slices] + [(dcgm(0), whole)] * parent
        return [(metric, tuple(sorted(each.items())), value) for each, value in series]

    gpus = lines(names.GPU_POWER, 300, 300) + lines(names.GPU_MEMORY, 5000, 2000)
    gpu = block([gpus, gpus])["gpu"]
    assert gpu["power_w"]["max"] == readings(parse(page(gpus)))[names.GPU_POWER] == 300
    assert gpu["memory_mib"]["max"] == (5000 if parent else 4000)


@pytest.mark.parametrize("label", ["pid", "worker_id", "process_id", "api_server_index", "api_process"])
def test_api_processes_repeat_the_gauges_of_an_engine_and_count_their_own_requests(label: str) -> None:
    def lines(second: int) -> list[tuple[str, Labels, float]]:
        own = [(("engine", str(engine)), (label, str(process))) for engine in (0, 1) for process in (7, 8, 9)]
        values = ((names.RUNNING, 4.0), (names.KV_CACHE_USAGE, 0.5), (names.GENERATION_TOKENS, 10.0 * second))
        return [(metric, labels, value) for labels in own for metric, value in values]

    entry = block([lines(1), lines(2)])
    live = readings(parse(page(lines(1))))
    assert entry["requests_running"]["max"] == live[names.RUNNING] == 8
    assert [engine["engine"] for engine in entry["engines"]] == ["0", "1"]
    assert live["engines"] == 2
    assert entry["generation_tokens"] == 60


def test_engines_of_several_servers_on_one_page_are_engines_of_their_own() -> None:
    own = [(("engine", str(engine)), ("instance", at), ("job", "vllm")) for at in ("a:1", "b:1") for engine in (0, 1)]
    own += [(("dp_rank", "0"), ("worker_id", worker)) for worker in ("x", "y")]
    for labels, expected in ((own[:4], ["0 a:1", "0 b:1", "1 a:1", "1 b:1"]), (own[4:], ["0 x", "0 y"])):
        lines = [(metric, each, 0.5) for metric in (names.KV_CACHE_USAGE, names.RUNNING) for each in labels]
        assert [engine["engine"] for engine in block([lines, lines])["engines"]] == expected
        assert readings(parse(page(lines)))["engines"] == len(expected)


@pytest.mark.parametrize("copies", [[], ["pid"], ["tp_rank"]])
def test_sizes_of_the_kv_cache_add_up_over_engines(copies: list[str]) -> None:
    of = [
        (("engine", str(n)), *((name, str(copy)) for name in copies))
        for n in (0, 1)
        for copy in (0, 1)[: len(copies) + 1]
    ]
    usage = [(names.KV_CACHE_USAGE, labels, 0.5) for labels in of]
    gauges = [("sglang:max_total_num_tokens", labels, 3000.0) for labels in of]
    config = [(names.CACHE_CONFIG, (*labels, ("kv_cache_size_tokens", "3000")), 1.0) for labels in of]
    for sizes in (gauges, config):
        entry = block([usage + sizes] * 2)
        assert entry["kv_cache_size_tokens"] == 6000
        assert [engine["kv_cache_size_tokens"] for engine in entry["engines"]] == [3000, 3000]
    assert block([usage + config[: len(config) // 2]] * 2)["kv_cache_size_tokens"] is None
    assert block([usage] * 2)["kv_cache_size_tokens"] is None
