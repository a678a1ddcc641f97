"""Metrics pages of engines other than vLLM and of front ends, read like vLLM's. Their sources: tests/data/pages/README.md."""

import contextlib
import itertools
import socket
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from inferload.analysis.data import timeline
from paths import DATA
from scripted_server import ScriptedServer, page
from summaries import server_documents as servers_block

from inferload.base.tls import TlsSettings
from inferload.client.client import Credentials
from inferload.client.connection.target import Target
from inferload.figures.limits import gate_grammar
from inferload.figures.pages import metric_names as names
from inferload.figures.pages.page_kinds import KINDS, PageKind
from inferload.figures.pages.page_names import kind_of, meanings_of, names_on_pages, owner, page_meanings
from inferload.figures.servers.server_entry import MeanAndMax
from inferload.figures.servers.server_figures import KEPT_PREFIXES, SERVER_FIGURES, Server
from inferload.figures.servers.server_formulas import HistogramMean
from inferload.results.summarise import summarise
from inferload.results.tables.server_tables import servers_tables
from inferload.results.verdict import gates
from inferload.run.live.bottleneck import LiveDiagnosis
from inferload.run.live.live_recorder import _Target
from inferload.run.live.scrape_window import LiveWindow
from inferload.run.master.lifecycle import preflight
from inferload.run.process.run_spec import RunSpec
from inferload.run.process.settings import ProcessSettings
from inferload.scenario import scenario as scenarios
from inferload.servers import prefix_counts, window_figures
from inferload.servers.exposition import PromParser, Sample
from inferload.servers.page_samples import PageSamples
from inferload.servers.scraper import readings
from inferload.servers.scrapes_file import ScrapeColumns
from inferload.servers.series import by_target
from inferload.servers.window import ServerWindow, windows_of
from inferload.turns.tally import Tally

PAGES = DATA / "pages"
S = 1_000_000_000
ENGINES = ("sglang", "tensorrt-llm")


# Figures of pages over 10 s, computed by hand from the pages; empty: not known. The counters of a single page grew from 0.
OF_PAGES = {
    "sglang": """page=sglang requests_running.mean=3 requests_running.max=6 requests_waiting.mean=1.5 kv_cache_usage.max=0.25
        requests_finished=50 ttft_ms.count=50 ttft_ms.mean=160 queue_ms.mean=150 itl_ms.mean=15 e2e_ms.count=50
        generation_tok_per_s=50 prompt_tok_per_s=500 cached_tokens=2000 prefix_cache_hit_rate=0.4
        prefix_cache_hit_rate_from=prompt_tokens prefix_cache_queries= preemptions=2 kv_cache_size_tokens=4800""",
    "tensorrt-llm": """page=tensorrt-llm requests_running.mean=3 requests_running.max=6 requests_waiting.mean=1.5
        kv_cache_usage.max=0.25 requests_finished=50 ttft_ms.count=50 ttft_ms.mean=160 queue_ms.mean=150 e2e_ms.count=50
        prefix_cache_hit_rate=0.3 prefix_cache_hit_rate_from=gauge itl_ms= generation_tok_per_s= preemptions=""",
    "llamacpp-xllamacpp-2026.10.11549": """page=llama.cpp requests_running.max=0 requests_waiting.max=0 prompt_tokens=9624
        prompt_tok_per_s=962.4 prompt_tok_computed_per_s=525.7 cached_tokens=4367 prefix_cache_hit_rate=4367/9624
        prefix_cache_hit_rate_from=prompt_tokens generation_tokens=5930 generation_tok_per_s=593
        prefill_tok_per_s=5257/2.16141 decode_tok_per_s=5930/20.4969 spec_decode= kv_cache_usage.max= requests_finished=
        preemptions= ttft_ms= e2e_ms=""",
    "sglang-router-0.3.2": """page=sglang-router router.requests=6 router.attempts=9 router.failed=3 router.retries=3 ttft_ms=
        e2e_ms= requests_finished= requests_running.max= router.queue_ms=""",
    "vllm-router-0.1.17": """page=vllm-router router.requests=6 router.attempts=9 router.failed=3 router.retries=3 ttft_ms=
        e2e_ms= requests_finished= requests_running.max= router.queue_ms=""",
    "dynamo-1.6.1-disaggregated-frontend": """page=dynamo requests_running.max=0 requests_waiting.max=0
        requests_before_first_token.max=0 prompt_tokens=4929 generation_tokens=673 requests_finished=30 requests_failed=2
        failures_by_reason.request.not_found=2 rejections=0 slots=8 kv_block_tokens=16 ttft_ms.count=30
        ttft_ms.mean=2689.538612/30 itl_ms.count=643 itl_ms.mean=5348.043776/643 e2e_ms.count=30 e2e_ms.mean=8060.817762/30
        cached_tokens=2592 prefix_cache_hit_rate=2592/4929 prefix_cache_hit_rate_from=prompt_tokens kv_cache_usage.max=
        migrations=""",
    "dynamo-1.6.1-decode-mocker": """page=dynamo-worker requests_running.max=0 kv_cache_usage.max=0 preemptions=0
        ttft_ms.count=30 ttft_ms.mean=2347.292543/30 itl_ms.count=643 itl_ms.mean=5363.430509/643 e2e_ms.count=30
        e2e_ms.mean=7710.85707/30 prompt_tokens= generation_tokens= requests_finished=""",
    "vllm-0.32-offloading": """page=vllm prefix_cache_hit_rate=0.4 tiers.device_hit_share=0.4 tiers.host_hit_share=0.15
        tiers.disk_hit_share=0.05 tiers.p2p_hit_share=0.025 tiers.external_hit_share=0 tiers.loaded_gb=3 tiers.load_gb_per_s=2
        tiers.load_ms=50 tiers.stored_gb=6 tiers.store_gb_per_s=3 tiers.tier_read_gb=1 tiers.tier_read_gb_per_s=0.5
        tiers.tier_written_gb=2 tiers.offload_failures=6""",
    "vllm-0.32-example-connector": """page=vllm prefix_cache_hit_rate=3840/13233 cached_tokens=5760
        tiers.device_hit_share=3840/13233 tiers.external_hit_share=1920/13233 tiers.host_hit_share=0 tiers.loaded_gb=""",
    "vllm-older-offloading": """page=vllm prefix_cache_hit_rate=0.4 tiers.device_hit_share=0.4 tiers.external_hit_share=0.225
        tiers.host_hit_share= tiers.loaded_gb=3 tiers.load_gb_per_s=2 tiers.load_ms=50 tiers.stored_gb=6 tiers.store_gb_per_s=3
        tiers.tier_read_gb= tiers.offload_failures=""",
    "vllm-0.32-mooncake-lmcache": """page=vllm prefix_cache_hit_rate= tiers.external_hit_share=0.5 tiers.device_hit_share=0
        tiers.loaded_gb=3 tiers.load_gb_per_s=3 tiers.load_ms=100 tiers.stored_gb=5 tiers.store_gb_per_s= tiers.tier_read_gb=7""",
    "sglang-hicache": """page=sglang prefix_cache_hit_rate=0.25 cached_tokens=1250 tiers.device_hit_share=0.2
        tiers.host_hit_share=0.04 tiers.external_hit_share=0.01 tiers.disk_hit_share= tiers.loaded_gb=2 tiers.load_gb_per_s=8
        tiers.load_ms=50 tiers.stored_gb=1 tiers.store_gb_per_s=2 tiers.tier_read_gb=""",
    "dynamo-1.6.1-prefill-mocker": """page=dynamo-worker requests_running.max= ttft_ms= prompt_tokens= requests_finished=""",
}


def scrapes_of(page: str) -> list[list[Sample]]:
    """Return the samples of a page at 0 and 10 s."""
    files = [PAGES / f"{page}-{number}.prom" for number in (1, 2)] if page in ENGINES else [PAGES / f"{page}.prom"]
    scrapes = [PromParser(KEPT_PREFIXES).parse(file.read_text()) for file in files]
    counted = ("_total", "_sum", "_count", "_bucket")
    begin = [each._replace(value=0.0) if each.metric.endswith(counted) else each for each in scrapes[-1]]
    return scrapes if len(scrapes) == 2 else [begin, *scrapes]


def scraped(page: str, target: str = "http://server", without: tuple[str, ...] = ()) -> Any:
    """Return these scrapes as a table. `without`: metrics to leave out."""
    columns = ScrapeColumns()
    for at_s, samples in zip((0, 10), scrapes_of(page), strict=True):
        for sample in samples:
            if sample.metric not in without:
                columns.append(at_s * S, target, sample.metric, sample.labels, sample.value)
    return columns.to_table()


@pytest.mark.parametrize("page", OF_PAGES)
def test_a_page_gives_its_figures(page: str) -> None:
    (entry,) = servers_block(scraped(page), 0, 10 * S)
    live = LiveWindow([(at_s, readings(samples)) for at_s, samples in zip((0.0, 10.0), scrapes_of(page), strict=True)])
    for key, text in (each.split("=") for each in OF_PAGES[page].split()):
        name, _, part = key.partition(".")
        value = entry[name][part] if part and entry[name] is not None else entry[name]
        if not text[:1].isdigit():
            assert value == (text.replace("_", " ") if name.endswith("_from") else text or None), key
            continue
        number, _, of = text.partition("/")
        assert value == pytest.approx(float(number) / float(of or 1)), key
        for row in SERVER_FIGURES:
            if row.entry_key == key and not row.statistics and page not in ENGINES:
                assert row.number(live) == pytest.approx(value), key
    assert live.in_front == (page == "dynamo-1.6.1-disaggregated-frontend" or "router" in page)
    target = _Target(LiveDiagnosis(None, {}))
    target.note({"up": True, "wall_ns": 10 * S, "gauges": live.scrapes[-1][1]})
    assert (target.peer(page, 11 * S) is None) == (live.in_front or not live.publishes(names.RUNNING))


@pytest.mark.parametrize("page", [page for page in OF_PAGES if "tiers." in OF_PAGES[page]])
def test_hits_by_source_add_up_to_all_cached_tokens(page: str) -> None:
    table = scraped(page)
    (entry,), (series,) = servers_block(table, 0, 10 * S), by_target([table], window_figures.USED).values()
    counts = prefix_counts.prefix_cache([series])
    if names.PROMPT_TOKENS_CACHED in series.metrics:
        assert sum(entry["tiers"]["hits"].values()) == entry["cached_tokens"]
    assert counts.loaded == sum(entry["tiers"]["hits"].values()) - entry["tiers"]["hits"].get("device", 0) > 0


def test_a_server_that_uses_its_own_memory_only_has_no_tiers() -> None:
    columns = ScrapeColumns()
    for at_s, source in itertools.product((0, 10), ("device", "host", "disk", "p2p", "external_unspecified")):
        hits = 4000.0 if at_s and source == "device" else 0.0
        columns.append(at_s * S, "http://server", names.CACHED_BY_SOURCE, (("source", source),), hits)
        columns.append(
            at_s * S, "http://server", "vllm:kv_offload_total_bytes_total", (("transfer_type", source),), 0.0
        )
    assert servers_block(columns.to_table(), 0, 10 * S)[0]["tiers"] is None


@pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if kind.meaning and kind.has_own_names], ids=lambda kind: kind.key
)
def test_each_figure_that_a_kind_of_page_has_names_for_is_read_from_it(kind: PageKind) -> None:
    columns = ScrapeColumns()
    for at_s in (0, 10):
        for name in kind.meaning:
            suffixes = ("_sum", "_count") if {each.metric for each in kind.meanings(name)} & FAMILIES else ("",)
            for labels in {tuple((label, value.strip("*")) for label, value in of.only) for of in kind.meanings(name)}:
                for suffix in suffixes:
                    columns.append(at_s * S, "http://server", name + suffix, labels, float(1 + at_s))
    (series,) = by_target([columns.to_table()], window_figures.USED).values()
    window = ServerWindow.of(series, 0, 10 * S)
    named = {row.key for row in SERVER_FIGURES if row.of_engines and row.names_on(kind)}
    assert {row.key for row in SERVER_FIGURES if row.number(window) is not None and row.of_engines} == named
    assert all(row.lacking(kind) for row in SERVER_FIGURES if row.of_engines and row.key not in named)


FAMILIES = {row.formula.family for row in SERVER_FIGURES if isinstance(row.formula, HistogramMean)}
NAMES = sorted(
    {name + suffix for kind in KINDS for name in kind.meaning for suffix in ("", "_sum")} | {names.RUNNING, "go_gc"}
)


@given(st.sets(st.sampled_from(NAMES)))
def test_each_part_of_a_metric_has_one_name_of_a_page(page: set[str]) -> None:
    meanings = page_meanings(page)
    assert meanings.keys() == page
    parts = [(owner(name).key, each.metric, each.added, each.only) for name in page for each in meanings[name]]
    assert len(parts) == len(set(parts))
    for name, found in meanings.items():
        known = meanings_of(name, kind_of(page))
        assert set(found) <= set(known)
        assert all(page.issuperset(each.beside) for each in found)
        assert name in names_on_pages(each.metric for each in meanings_of(name))
        others = {part[1] for part in parts}
        assert found or all(each.metric in others or each.beside for each in known)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.kind == "router"], ids=lambda kind: kind.key)
def test_a_router_is_no_server(kind: PageKind) -> None:
    """Each figure that its row names is known, none of an engine is, and it is in no sum and no table of servers."""
    columns = ScrapeColumns()
    meant = {each.metric for name in kind.meaning for each in kind.meanings(name)}
    for at_s, value in ((0, 0.0), (10, 6.0)):
        for name in dict.fromkeys(kind.names_of(metric)[0] for metric in sorted(meant)):
            for each in kind.meanings(name):
                suffixes = ("_sum", "_count") if each.metric == names.ROUTER_QUEUE else ("",)
                for suffix in suffixes:
                    columns.append(at_s * S, "http://router", name + suffix, (("worker", "a"), *each.only), value)
        for server in ("http://a", "http://b"):
            for metric in (names.RUNNING, names.FINISHED, names.GENERATION_TOKENS):
                columns.append(at_s * S, server, metric, (), value)
    windows = windows_of(by_target([columns.to_table()]), 0, 10 * S)
    entries = {entry.target: entry for entry in window_figures.entries(windows)}
    router = entries["http://router"]
    for row in SERVER_FIGURES:
        read = {names.split_suffix(reading.metric)[0] for reading in row.formula.readings}
        value = row.in_entry(router)
        known = getattr(value, "mean", value) is not None
        assert known == bool(read & meant) or row.key == "restarts", row.key
    together = window_figures.together(windows)
    assert (together["requests_finished"], together["requests_running"]) == (12, 6)
    assert not any(key.startswith("router") for key in together)
    shown = {each.key: each for each in servers_tables([*entries.values()], together)}
    assert shown["routers"].columns == ("", "http://router")
    assert shown["servers"].columns == ("", "http://a", "http://b", "all servers")
    assert "publish" not in shown["routers"].note + str([row for row in shown["servers"].rows if "router" in str(row)])


# Pages of other forms: their lines with the count c, their kind, and figures while c grows from 0 to 10.
FORMS = {
    "vLLM in Ray Serve, with counters of two names": (
        """ray_vllm_num_requests_running{WorkerId="a",engine="0",model_name="m"} 2
ray_vllm_num_requests_running{WorkerId="b",engine="0",model_name="m"} 3
ray_vllm_prompt_tokens{WorkerId="a",engine="0",model_name="m"} c
ray_vllm_prompt_tokens_total{WorkerId="a",engine="0",model_name="m"} c
ray_vllm_time_to_first_token_seconds_sum{WorkerId="a"} c
ray_vllm_time_to_first_token_seconds_count{WorkerId="a"} c
ray_node_cpu_utilization 7
""",
        "vllm requests_running.max=5 prompt_tokens=10 ttft_ms.count=10 unknown_series=",
    ),
    "a router with names of its engines": (
        """vllm:current_qps{server="http://a"} 1
vllm:num_requests_running{server="http://a"} 2
vllm:num_requests_waiting{server="http://a"} 2
vllm:gpu_prefix_cache_queries_total{server="http://a"} c
vllm:num_incoming_requests_total{model="m"} c
""",
        "production-stack router.requests=10 router.in_flight.max=2 requests_running.max= requests_waiting.max= engines=",
    ),
    "an idle router with names of its engines": (
        """router_cpu_usage_percent 3
vllm:num_requests_running{server="http://a"} 2
""",
        "production-stack router.in_flight.max=2 requests_running.max= engines=",
    ),
    "LMDeploy, whose requests wait in two places": (
        """lmdeploy:num_requests_running{engine="0"} 3
lmdeploy:num_requests_waiting{engine="0"} 4
lmdeploy:num_api_requests_waiting{engine="0"} 5
""",
        "lmdeploy requests_waiting.max=9 engines.0.requests_running.max=3 engines.0.requests_waiting.max=9 engines.1=",
    ),
    "sglang-router 0.1": (
        """sgl_router_requests_total{route="/v1/chat/completions"} c
sgl_router_processed_requests_total{worker="http://a"} c
sgl_router_cb_outcomes_total{worker="http://a",outcome="success"} c
""",
        "vllm-router router.requests=10 router.attempts_by_server.http://a=10 router.failed=",
    ),
    "two kinds of engines on a page of Prometheus": (
        """vllm:num_requests_running{instance="a",engine="0"} 2
vllm:generation_tokens_total{instance="a",engine="0"} c
sglang:num_running_reqs{instance="b",engine_type="unified"} 3
sglang:generation_tokens_total{instance="b",engine_type="unified"} c
dynamo_frontend_inflight_requests{instance="c"} 5
dynamo_frontend_output_tokens_total{instance="c"} c
""",
        "dynamo requests_running.max=5 generation_tokens=20",
    ),
    "llm-d with new names beside old ones": (
        """inference_objective_request_total{model_name="m"} c
llm_d_epp_request_total{model_name="m",target_model_name="m"} c
llm_d_epp_request_running{model_name="m",target_model_name="m"} 4
""",
        "llm-d router.requests=10 router.in_flight.max=4",
    ),
    "AMD, two chips with one serial number": (
        """amd_gpu_package_power{gpu_id="0",serial_number="s"} 700
amd_gpu_power_usage{gpu_id="0",serial_number="s"} 690
amd_gpu_gfx_activity{gpu_id="0",serial_number="s"} 50
amd_gpu_used_vram{gpu_id="0",serial_number="s"} 1000
amd_gpu_used_vram{gpu_id="1",serial_number="s"} 1000
amd_gpu_clock{gpu_id="0",serial_number="s",clock_index="2",clock_type="system"} 2100
amd_gpu_clock{gpu_id="0",serial_number="s",clock_index="8",clock_type="memory"} 900
""",
        "amd gpu.power_w.max=700 gpu.use.max=0.5 gpu.memory_mib.max=2000 gpu.sm_clock_mhz.max=2100 engines=",
    ),
}


@pytest.mark.parametrize(("text", "expected"), FORMS.values(), ids=FORMS)
def test_a_page_of_another_form_gives_its_figures(text: str, expected: str) -> None:
    columns, pages = ScrapeColumns(), PageSamples()
    for at_s in (0, 5, 10):
        for sample in pages.read(text.replace(" c\n", f" {at_s}\n"), at_s * S).stored:
            columns.append(at_s * S, "http://server", sample.metric, sample.labels, sample.value)
    (entry,) = servers_block(columns.to_table(), 0, 10 * S)
    page, *figures = expected.split()
    assert entry["page"] == page
    for key, value in (each.split("=") for each in figures):
        found: Any = entry
        for name in key.split(".", 2 if key.startswith("router") else -1):
            found = dict(enumerate(found)).get(int(name)) if isinstance(found, list) else found and found[name]
        assert (found or None) == (float(value) if value else None), key


def test_computed_tokens_are_not_taken_for_all_prompt_tokens() -> None:
    """Versions of llama.cpp without a counter of cached tokens do not tell how many the prompts had."""
    page, cached = "llamacpp-xllamacpp-2026.10.11549", "llamacpp:prompt_tokens_cached_total"
    (entry,) = servers_block(scraped(page, without=(cached,)), 0, 10 * S)
    assert entry["prompt_tok_computed_per_s"] == pytest.approx(525.7)
    assert entry["prompt_tokens"] is entry["prompt_tok_per_s"] is entry["prefix_cache_hit_rate"] is None


def test_names_of_parts_are_of_one_engine() -> None:
    """So a restart that one counter shows is one of all: the others may have passed their old values since."""
    columns = ScrapeColumns()
    for at_s, cached, predicted in ((0, 50.0, 100.0), (5, 80.0, 20.0), (10, 90.0, 30.0)):
        for metric, value in (
            ("prompt_tokens", cached),
            ("prompt_tokens_cached", cached),
            ("tokens_predicted", predicted),
        ):
            columns.append(at_s * S, "http://server", f"llamacpp:{metric}_total", (), value)
    (entry,) = servers_block(columns.to_table(), 0, 10 * S)
    assert (entry["restarts"], entry["generation_tokens"], entry["prompt_tokens"]) == (1, 30, 2 * 90)


def test_a_front_end_and_its_workers_count_each_request_once() -> None:
    pages = [page for page in OF_PAGES if page.startswith("dynamo")]
    servers = by_target([scraped(page, f"http://{page}") for page in pages])
    together = window_figures.together(windows_of(servers, 0, 10 * S))
    assert [together[key] for key in ("prompt_tokens", "generation_tokens", "requests_finished")] == [4929, 673, 30]
    assert together["engine_e2e_ms"] == pytest.approx(8060.817762 / 30)
    assert together["kv_cache_usage"] == 0  # of the worker
    assert prefix_counts.prefix_cache([*servers.values()]).block_size == 16
    note = servers_tables(window_figures.entries(windows_of(servers, 0, 10 * S)), together)[0].note
    assert "frontend, failed requests by reason: 2 request.not_found." in note
    assert "Dynamo's frontend does not publish: KV cache usage; " in note


@pytest.mark.parametrize(("pages", "in_flight"), [(["frontend", "decode"], 5), (["decode"], 4), (["llamacpp"], 4)])
def test_requests_in_a_front_end_are_not_counted_again_at_its_workers(pages: list[str], in_flight: float) -> None:
    entries = [
        Server(target=name, page=kind, requests_running=MeanAndMax(mean=running), requests_waiting=MeanAndMax(mean=1))
        for name, kind, running in (
            ("frontend", "dynamo", 5),
            ("decode", "dynamo-worker", 3),
            ("llamacpp", "llama.cpp", 3),
        )
        if name in pages
    ]
    assert summarise._in_flight(entries, 1, Tally()) == in_flight


@pytest.mark.parametrize(
    ("pages", "gate", "value", "note"),
    [
        (["llamacpp"], "max(kv_cache_usage) < 1", None, "http://llamacpp: llama.cpp does not publish it"),
        (["llamacpp"], "generation_tokens > 1", 5930, None),
        # A worker lacks what its front end has, and the other way round.
        (["frontend", "decode"], "generation_tokens > 1", 673, None),
        (["frontend", "decode"], "max(kv_cache_usage) < 1", 0, None),
        (
            ["decode"],
            "generation_tokens > 1",
            None,
            "http://decode: its metrics page has no value of it for the window",
        ),
        (["frontend"], "max(kv_cache_usage) < 1", None, "http://frontend: Dynamo's frontend does not publish it"),
    ],
)
def test_a_gate_is_on_the_servers_that_can_have_the_figure(
    pages: list[str], gate: str, value: float | None, note: str | None
) -> None:
    tables = [scraped(page, f"http://{name}") for name in pages for page in OF_PAGES if name in page]
    servers = window_figures.entries(windows_of(by_target(tables), 0, 10 * S))
    found, why = gates._server_value(gate_grammar.parse(gate), servers)
    assert found == value
    assert why is None if note is None else note in str(why)


@given(
    st.lists(st.sampled_from(["node_cpu_seconds_total", "http_requests", "go_gc"]), min_size=1, max_size=30),
    st.booleans(),
)
def test_a_page_of_no_known_engine_is_named_with_its_series(metrics: list[str], known: bool) -> None:
    columns = ScrapeColumns()
    for at_s in (0, 10):
        for number, metric in enumerate(metrics):
            columns.append(at_s * S, "http://server", metric, (("n", str(number)),), 1.0)
        columns.append(at_s * S, "http://server", names.PROCESS_START, (), 1.0)
        if known:
            columns.append(at_s * S, "http://server", names.GPU_USE, (("gpu", "0"),), 50.0)
    entries = window_figures.entries(windows_of(by_target([columns.to_table()], window_figures.USED), 0, 10 * S))
    assert [entry.unknown_series for entry in entries] == [None if known else len(metrics) + 1]
    note = servers_tables(entries, {})[0].note
    assert (f"http://server: {len(metrics) + 1} series of no known engine." in note) != known


def test_the_timeline_has_the_hit_rate() -> None:
    sglang, trtllm = (by_target([scraped(engine)])["http://server"] for engine in ENGINES)
    at_s = np.array([0.0, 10.0])
    counted = timeline._server(sglang, at_s, 11)["prefix_cache_hit_rate"]
    assert counted[~np.isnan(counted)].tolist() == [pytest.approx(0.4)]
    rates = timeline._server(trtllm, at_s, 11)["prefix_cache_hit_rate"]
    assert rates[~np.isnan(rates)].tolist() == [0.2, 0.4]


def key_of(metrics: set[str]) -> str | None:
    kind = kind_of(metrics)
    return None if kind is None else kind.key


def test_an_engine_is_identified_by_its_page() -> None:
    assert key_of({"trtllm:request_success_total"}) == "tensorrt-llm"
    assert key_of({"vllm:num_requests_running", "sglang:num_running_reqs"}) == "vllm"
    assert key_of({"vllm:gpu_prefix_cache_queries_total", "router_cpu_usage_percent"}) == "production-stack"
    assert kind_of({"process_cpu_seconds_total"}) is None


def test_every_name_maps_to_a_known_metric() -> None:
    ours = {names.split_suffix(value)[0] for value in vars(names).values() if isinstance(value, str)}
    for kind in KINDS:
        assert kind.metrics <= ours
        assert all(name.startswith(KEPT_PREFIXES) for name in kind.meaning)


def test_the_metrics_page_is_found_if_the_usual_path_is_json() -> None:
    text = (PAGES / "tensorrt-llm-1.prom").read_text()

    def answer(sock: socket.socket, request: bytes) -> None:
        sock.sendall(page(text if request.startswith(b"GET /prometheus/metrics ") else []))

    with contextlib.closing(ScriptedServer([answer])) as server:
        spec = RunSpec(scenarios.load("smoke"), "x", (Target.parse(server.url),), None, None, 1, 1.0, {})
        pages = preflight._metrics(spec, ProcessSettings(Credentials(None), (), TlsSettings(None, False), None))
        assert pages == {f"{server.url}/prometheus/metrics": "tensorrt-llm"}
