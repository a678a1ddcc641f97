"""Metrics pages of engines other than vLLM and of front ends, read like vLLM's. Their sources: tests/data/pages/README.md."""

import http.server
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from inferload.analysis.data import timeline
from paths import DATA
from summaries import server_documents as servers_block

from inferload.base.tls import TlsSettings
from inferload.client.client import Credentials
from inferload.client.connection.target import Target
from inferload.figures import metric_names as names
from inferload.figures.page_kinds import KINDS, Meaning
from inferload.figures.page_names import kind_of, meanings_of, page_meanings
from inferload.figures.server_figures import KEPT_PREFIXES
from inferload.run.master.lifecycle import preflight
from inferload.run.process.run_spec import RunSpec
from inferload.run.process.settings import ProcessSettings
from inferload.scenario import scenario as scenarios
from inferload.servers import window_figures
from inferload.servers.exposition import PromParser
from inferload.servers.scrapes_file import ScrapeColumns
from inferload.servers.series import by_target

PAGES = DATA / "pages"
S = 1_000_000_000
ENGINES = ("sglang", "tensorrt-llm")
NOTHING = {"mean": None, "max": None}


def scraped(engine: str) -> Any:
    """Return two scrapes of an engine's pages, 10 s apart, as a table."""
    columns, parser = ScrapeColumns(), PromParser(KEPT_PREFIXES)
    for number in (1, 2):
        for sample in parser.parse((PAGES / f"{engine}-{number}.prom").read_text()):
            columns.append((number - 1) * 10 * S, "http://server", sample.metric, sample.labels, sample.value)
    return columns.to_table()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_page_of_another_engine_gives_the_same_figures(engine: str) -> None:
    (entry,) = servers_block(scraped(engine), 0, 10 * S)
    assert entry["requests_running"] == {"mean": 3, "max": 6}
    assert entry["requests_waiting"] == {"mean": 1.5, "max": 3}
    assert entry["kv_cache_usage"] == {"mean": 0.125, "max": 0.25}
    assert entry["requests_finished"] == 50
    assert entry["ttft_ms"]["count"] == entry["e2e_ms"]["count"] == entry["queue_ms"]["count"] == 50
    assert entry["ttft_ms"]["mean"] == pytest.approx(160)
    assert entry["queue_ms"]["mean"] == pytest.approx(150)


def test_figures_that_only_one_engine_publishes() -> None:
    (sglang,) = servers_block(scraped("sglang"), 0, 10 * S)
    assert sglang["generation_tok_per_s"] == 50
    assert sglang["prompt_tok_per_s"] == 500
    assert sglang["cached_tokens"] == 2000
    assert (sglang["prefix_cache_hit_rate"], sglang["prefix_cache_hit_rate_from"]) == (0.4, "prompt tokens")
    assert sglang["prefix_cache_queries"] is None
    assert sglang["preemptions"] == 2
    assert sglang["kv_cache_size_tokens"] == 4800
    assert sglang["itl_ms"]["mean"] == pytest.approx(15)
    (trtllm,) = servers_block(scraped("tensorrt-llm"), 0, 10 * S)
    assert trtllm["prefix_cache_hit_rate"] == pytest.approx(0.3)
    assert trtllm["prefix_cache_hit_rate_from"] == "gauge"
    assert trtllm["itl_ms"] is trtllm["generation_tok_per_s"] is trtllm["preemptions"] is None


# Figures of a real page over 10 s in which its counters grew from 0, computed by hand from the page.
OF_PAGES: dict[str, tuple[str, dict[str, Any]]] = {
    "llamacpp-xllamacpp-2026.10.11549": (
        "llama.cpp",
        {
            "requests_running": {"mean": 0, "max": 0},
            "requests_waiting": {"mean": 0, "max": 0},
            "prompt_tokens": 5257 + 4367,
            "prompt_tok_per_s": 962.4,
            "prompt_tok_computed_per_s": 525.7,
            "cached_tokens": 4367,
            "prefix_cache_hit_rate": 4367 / 9624,
            "prefix_cache_hit_rate_from": "prompt tokens",
            "generation_tokens": 5930,
            "generation_tok_per_s": 593.0,
            "prefill_tok_per_s": 5257 / 2.16141,
            "decode_tok_per_s": 5930 / 20.4969,
            "spec_decode": None,
            "kv_cache_usage": NOTHING,
            "requests_finished": None,
            "preemptions": None,
            "ttft_ms": None,
            "e2e_ms": None,
        },
    ),
    "dynamo-1.6.1-disaggregated-frontend": (
        "dynamo",
        {
            "requests_running": {"mean": 0, "max": 0},
            "requests_waiting": {"mean": 0, "max": 0},
            "requests_before_first_token": {"mean": 0, "max": 0},
            "prompt_tokens": 4929,
            "generation_tokens": 673,
            "requests_finished": 30,
            "requests_failed": 2,
            "failures_by_reason": {"request.not_found": 2},
            "rejections": 0,
            "slots": 8,
            "kv_block_tokens": 16,
            "ttft_ms": (30, 1e3 * 2.6895386119999998 / 30),
            "itl_ms": (643, 1e3 * 5.348043776000002 / 643),
            "e2e_ms": (30, 1e3 * 8.060817762 / 30),
            "cached_tokens": None,
            "prefix_cache_hit_rate": None,
            "kv_cache_usage": NOTHING,
            "migrations": None,
        },
    ),
    "dynamo-1.6.1-decode-mocker": (
        "dynamo-worker",
        {
            "requests_running": {"mean": 0, "max": 0},
            "kv_cache_usage": {"mean": 0, "max": 0},
            "preemptions": 0,
            "ttft_ms": (30, 1e3 * 2.3472925429999996 / 30),
            "itl_ms": (643, 1e3 * 5.363430509000006 / 643),
            "e2e_ms": (30, 1e3 * 7.71085707 / 30),
            "prompt_tokens": None,
            "generation_tokens": None,
            "requests_finished": None,
        },
    ),
    "dynamo-1.6.1-prefill-mocker": (
        "dynamo-worker",
        {"requests_running": NOTHING, "ttft_ms": None, "prompt_tokens": None, "requests_finished": None, "engines": []},
    ),
}


def grown_page(page: str, target: str = "http://server", without: tuple[str, ...] = ()) -> Any:
    """Return a page as a table of two scrapes 10 s apart, its counters 0 in the first. `without`: metrics to leave out."""
    columns = ScrapeColumns()
    for sample in PromParser(KEPT_PREFIXES).parse((PAGES / f"{page}.prom").read_text()):
        if sample.metric not in without:
            counter = sample.metric.endswith(("_total", "_sum", "_count", "_bucket"))
            columns.append(0, target, sample.metric, sample.labels, 0.0 if counter else sample.value)
            columns.append(10 * S, target, sample.metric, sample.labels, sample.value)
    return columns.to_table()


@pytest.mark.parametrize("page", OF_PAGES)
def test_a_real_page_gives_its_figures(page: str) -> None:
    kind, expected = OF_PAGES[page]
    (entry,) = servers_block(grown_page(page), 0, 10 * S)
    assert entry["page"] == kind
    for key, value in expected.items():
        if isinstance(value, tuple):
            assert (entry[key]["count"], entry[key]["mean"]) == (value[0], pytest.approx(value[1])), key
        else:
            assert entry[key] == (pytest.approx(value) if isinstance(value, float) else value), key


def test_computed_tokens_are_not_taken_for_all_prompt_tokens() -> None:
    """Versions of llama.cpp without a counter of cached tokens do not tell how many the prompts had."""
    page, cached = "llamacpp-xllamacpp-2026.10.11549", "llamacpp:prompt_tokens_cached_total"
    (entry,) = servers_block(grown_page(page, without=(cached,)), 0, 10 * S)
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
    servers = by_target([grown_page(page, f"http://{page}") for page in pages])
    together = window_figures.together(window_figures.windows_of(servers, 0, 10 * S))
    _, expected = OF_PAGES["dynamo-1.6.1-disaggregated-frontend"]
    for key in ("prompt_tokens", "generation_tokens", "requests_finished", "requests_failed"):
        assert together[key] == expected[key]
    assert together["engine_e2e_ms"] == pytest.approx(expected["e2e_ms"][1])
    assert together["kv_cache_usage"] == 0  # of the worker


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
    for engine in ENGINES:
        metrics = {sample.metric for sample in PromParser().parse((PAGES / f"{engine}-1.prom").read_text())}
        assert key_of(metrics) == engine
    assert key_of({"trtllm:request_success_total"}) == "tensorrt-llm"
    assert key_of({"vllm:num_requests_running", "sglang:num_running_reqs"}) == "vllm"
    assert kind_of({"process_cpu_seconds_total"}) is None


def test_of_two_names_of_one_metric_one_counts() -> None:
    both = {"trtllm_num_requests_running", "trtllm_num_active_requests"}
    running = (Meaning(names.RUNNING),)
    assert page_meanings(both) == {"trtllm_num_requests_running": running, "trtllm_num_active_requests": ()}
    assert page_meanings({"trtllm_num_active_requests"}) == {"trtllm_num_active_requests": running}
    assert meanings_of("trtllm:time_to_first_token_seconds_bucket") == (Meaning(names.TTFT + "_bucket"),)


def test_every_name_maps_to_a_known_metric() -> None:
    ours = {value for value in vars(names).values() if isinstance(value, str)}
    for kind in KINDS:
        assert kind.metrics <= ours
        assert all(name.startswith(kind.prefixes) for name in kind.meaning)


@pytest.fixture
def trtllm_serve() -> Iterator[str]:
    """A server with JSON at /metrics and the page at /prometheus/metrics."""
    page = (PAGES / "tensorrt-llm-1.prom").read_bytes()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = page if self.path == "/prometheus/metrics" else b"[]"
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_the_metrics_page_is_found_if_the_usual_path_is_json(trtllm_serve: str) -> None:
    spec = RunSpec(scenarios.load("smoke"), "x", (Target.parse(trtllm_serve),), None, None, 1, 1.0, {})
    pages = preflight._metrics(spec, ProcessSettings(Credentials(None), (), TlsSettings(None, False), None))
    assert pages == {f"{trtllm_serve}/prometheus/metrics": "tensorrt-llm"}
