"""Metrics page of the simulator against vLLM 0.32."""

import re

from api_cases import shape
from paths import GOLDEN
from simulator_requests import CHAT, Start, chat

from inferload.figures.pages import metric_names

SPECULATION = ("--hardware", "cpu-tiny", "--speculative-config", '{"num_speculative_tokens": 3}')
READ = {
    value
    for name, value in vars(metric_names).items()
    if name.isupper() and isinstance(value, str) and value.startswith(("vllm:", "process_"))
    if not value.startswith(metric_names.OF_CONNECTORS)
}


def lines_of(page: str) -> set[str]:
    """Structure of the metrics of vLLM on a page; labels of the cache's info metric, of which vLLM has more, only by name."""
    lines = set(shape(page).splitlines())
    return {line for line in lines if not line.startswith(("inferload_", "vllm:cache_config_info{"))}


def test_the_page_has_the_metrics_that_are_read_with_vllms_labels_and_bounds(simulator: Start) -> None:
    server = simulator(*SPECULATION)
    server.json("POST", CHAT, chat())
    page = server.metrics_text()
    recorded = "".join((GOLDEN / f"vllm-metrics-0.32{part}.txt").read_text() for part in ("", "-speculation"))
    assert lines_of(page) <= set(recorded.splitlines())
    ours, labels = (
        set(re.findall(r"^vllm:cache_config_info\{(.*)\}$", text, re.M)) for text in (shape(page), recorded)
    )
    assert set(ours.pop().split(",")) <= set(labels.pop().split(","))
    names = {re.split(r"[{ ]", line)[0] for line in page.splitlines() if not line.startswith("#")}
    assert names | {metric_names.split_suffix(name)[0] for name in names} >= READ


def test_drafted_and_accepted_tokens_are_counted(simulator: Start) -> None:
    server = simulator(*SPECULATION)
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
