"""Metrics page and log of the simulator against vLLM 0.32."""

import re
from typing import Any

import pytest
from api_cases import shape
from inferload.deploy.simulator.metrics.engine_metrics import Gauges, RecentHits
from inferload.deploy.simulator.server.server_log import Totals, engine_line, speculation_line, throughput
from paths import GOLDEN
from simulator_requests import CHAT, QUICK, Start, chat

OURS = "inferload_"


def without_ours(text: str) -> str:
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith(OURS))


def test_the_page_has_the_metrics_of_vllm(simulator: Start) -> None:
    server = simulator(*QUICK, "--max-model-len", "32768")
    server.json("POST", CHAT, chat())
    assert without_ours(shape(server.metrics_text())) == (GOLDEN / "vllm-metrics-0.32.txt").read_text()


def test_speculation_and_parsers_add_their_metrics(simulator: Start) -> None:
    speculation = '{"method": "ngram", "num_speculative_tokens": 3}'
    flags = ("--hardware", "cpu-tiny", "--speculative-config", speculation, "--tool-call-parser", "hermes")
    page = simulator(*flags).metrics_text()
    recorded = (GOLDEN / "vllm-metrics-0.32-speculation.txt").read_text()
    assert shape(page, "vllm:spec_decode") == recorded
    assert len(shape(page, "vllm:tool_call_parser").splitlines()) == 2 + 2 * 12


def test_drafted_and_accepted_tokens_are_counted(simulator: Start) -> None:
    speculation = '{"method": "ngram", "num_speculative_tokens": 3}'
    server = simulator("--hardware", "cpu-tiny", "--speculative-config", speculation)
    server.json("POST", CHAT, {**chat(), "max_tokens": 60})
    drafts = server.metric("vllm:spec_decode_num_drafts_total")
    drafted = server.metric("vllm:spec_decode_num_draft_tokens_total")
    accepted = server.metric("vllm:spec_decode_num_accepted_tokens_total")
    assert 0 < accepted < drafted <= 3 * drafts
    by_position = [
        server.metric(
            f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",model_name="simulator",position="{i}"'
        )
        for i in range(3)
    ]
    assert sum(by_position) == accepted
    server.chaos(kind="restart_counters")
    assert server.metric("vllm:spec_decode_num_drafts_total") == 0


def test_several_choices_are_counted_as_in_vllm(simulator: Start) -> None:
    server = simulator(*QUICK)
    server.json("POST", CHAT, chat(n=3))
    assert server.metric("vllm:request_params_n_sum") == 3
    assert server.metric("vllm:request_params_n_count") == 1
    assert server.metric("vllm:e2e_request_latency_seconds_count") == 3
    assert server.metric("vllm:request_max_num_generation_tokens_sum") == 6
    assert server.metric("vllm:generation_tokens_total") == 18


def test_http_requests_are_counted_by_handler(simulator: Start) -> None:
    server = simulator(*QUICK)
    server.json("POST", CHAT, chat())
    server.call("POST", CHAT, {"messages": []})
    server.call("GET", "/nowhere")
    server.call("GET", "/health")
    page = server.metrics_text()
    assert 'http_requests_total{handler="/v1/chat/completions",method="POST",status="2xx"} 1.0' in page
    assert 'http_requests_total{handler="/v1/chat/completions",method="POST",status="4xx"} 1.0' in page
    assert 'http_requests_total{handler="none",method="GET",status="4xx"} 1.0' in page
    assert 'handler="/health"' not in page


GAUGES = Gauges(running=2, waiting=3, kv_cache_usage=0.256, prefix_queries=0, prefix_hits=0, preemptions=0)
# Lines of a real vLLM 0.32, with GPU instead of CPU.
REAL = (
    "Engine 000: Avg prompt throughput: 113.7 tokens/s, Avg generation throughput: 75.3 tokens/s, Running: 2 reqs, "
    "Waiting: 3 reqs, GPU KV cache usage: 25.6%, Prefix cache hit rate: 53.3%"
)
REAL_SPECULATION = (
    "SpecDecoding metrics: Mean acceptance length: 3.93, Accepted throughput: 4.40 tokens/s, "
    "Drafted throughput: 4.40 tokens/s, Accepted: 44 tokens, Drafted: 44 tokens, "
    "Per-position acceptance rate: 1.000, 1.000, 0.933, Avg Draft acceptance rate: 100.0%"
)


class TestLog:
    def test_log_lines_equal_vllms(self) -> None:
        assert engine_line(113.68, 75.31, GAUGES, 0.5331) == REAL
        assert engine_line(113.68, 75.31, GAUGES, None) == REAL.rpartition(",")[0]
        before, now = Totals(0, 0, 0), Totals(10_000_000_000, 5, 60, 15, 44, 44, (15, 15, 14))
        assert speculation_line(before, now) == REAL_SPECULATION
        assert speculation_line(now, Totals(20_000_000_000, 9, 90, 15, 44, 44, (15, 15, 14))) is None

    def test_throughput_is_per_interval_and_0_after_a_restart(self) -> None:
        assert throughput(Totals(0, 100, 50), Totals(10_000_000_000, 300, 150)) == (20.0, 10.0)
        assert throughput(Totals(0, 100, 50), Totals(10_000_000_000, 0, 0)) == (0.0, 0.0)

    def test_the_hit_rate_is_of_the_last_1000_requests(self) -> None:
        hits = RecentHits()
        assert hits.rate is None
        hits.observe(1000, 0)
        for _ in range(1000):
            hits.observe(10, 5)
        assert hits.rate == 0.5

    @pytest.mark.parametrize("quiet", [False, True])
    def test_the_log_is_written_per_interval_until_the_engine_is_idle(self, quiet: bool, monkeypatch: Any) -> None:
        from inferload.deploy.simulator.metrics.engine_metrics import Metrics
        from inferload.deploy.simulator.server import server_log

        class Clockwork:
            """An engine stub with planned calls on a simulated clock."""

            def __init__(self) -> None:
                self.metrics = Metrics(1000)
                self.planned: list[tuple[int, Any]] = []

            def gauges(self) -> Gauges:
                return GAUGES

            def call_at(self, due_ns: int, action: Any) -> None:
                self.planned.append((due_ns, action))

        engine, lines, now = Clockwork(), [], [0]
        monkeypatch.setattr(server_log.clock, "now_ns", lambda: now[0])
        log = server_log.LogWriter(engine, lines.append)  # type: ignore[arg-type]
        log.start(0)
        if not quiet:
            engine.metrics.first_token(0.1, 100, 40)
            engine.metrics.generation_tokens += 30
        for _ in range(4):
            now[0], tick = engine.planned.pop()
            tick()
        assert now[0] == 40_000_000_000
        # As in vLLM, the interval after the last tokens is logged with zeros, later ones are not.
        assert len(lines) == (0 if quiet else 2)
        if lines:
            assert re.fullmatch(
                r"\(APIServer pid=\d+\) INFO \d\d-\d\d \d\d:\d\d:\d\d \[loggers.py:335\] Engine 000: Avg prompt throughput: "
                r"6.0 tokens/s, Avg generation throughput: 3.0 tokens/s, .* Prefix cache hit rate: 40.0%\n",
                lines[0],
            )
