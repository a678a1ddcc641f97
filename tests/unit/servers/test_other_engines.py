"""Metrics pages of SGLang and TensorRT-LLM, written from their documentation, read like vLLM's."""

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
from inferload.servers.exposition import PromParser
from inferload.servers.scrapes_file import ScrapeColumns
from inferload.servers.series import by_target

PAGES = DATA / "pages"
S = 1_000_000_000
ENGINES = ("sglang", "tensorrt-llm")


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
        assert all(name.startswith(kind.prefixes) for name in (*kind.meaning, *kind.marks))


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
