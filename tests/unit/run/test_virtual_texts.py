"""Runs on a virtual clock of endpoints whose answers are no streams: what is recorded and printed."""

import re
from pathlib import Path

import pytest
import virtual
from e2e_runs import scenario
from paths import ROOT

from inferload.figures.pages import metric_names as names
from inferload.scenario.schema.endpoints import OF_TEXTS, WITH_QUERY

TEXTS = {"kind": "texts", "texts_per_request": {"dist": "uniform", "min": 1, "max": 5}, "text_tokens": 20}
OF_STREAMS = re.compile("TTFT|ITL|TPOT|output tok|Output, tok/s|with a stall|other clients")
# Where they are named; the last one: effects of advice.
NAMED = re.compile(r"no TTFT, ITL|is the E2E|are set \(virtual clock\)|throughput higher")
UNKNOWN = ("first_ns", "first_visible_ns", "event_ns", "event_tokens", "output_tokens", "finish_reason", "failure")


@pytest.mark.parametrize("endpoint", OF_TEXTS)
def test_a_run_has_figures_of_texts_and_none_of_streams(endpoint: str, tmp_path: Path) -> None:
    gates = ["p95(e2e_ms) < 1000", "texts_per_s > 1"]
    file = scenario(tmp_path, workload=TEXTS, phases__measure_s=0.5, request={"endpoint": endpoint}, gates=gates)
    run = virtual.run(tmp_path, file, "--report", "--details", simulator=virtual.PACED)
    assert run.code == 0, run.text
    rows, summary = run.turns, run.summary
    for row in rows:
        assert row["sent_ns"] < row["first_event_ns"] <= row["last_ns"] == row["closed_ns"]
        assert row["input_tokens"] == 20 * row["texts"] + (32 if endpoint in WITH_QUERY else 0)
        assert {row[name] for name in UNKNOWN} == {None}
    latency, rates, turns = summary["latency"], summary["rates"], summary["turns"]
    assert [latency[name].get("count", 0) for name in ("ttft_ms", "itl_ms", "tpot_ms", "ttfo_ms")] == [0] * 4
    assert (latency["e2e_ms"]["count"], turns["whole"]) == (turns["ok"], turns["sent"])
    assert turns["texts"] == sum(row["texts"] for row in rows if row["phase"] == "measure")
    assert (rates["output_tok_per_s"], rates["total_tok_per_s"], turns["output_tokens"]) == (None, None, None)
    assert rates["input_tok_per_s"] > 18 * rates["texts_per_s"] > 18 * rates["turns_per_s"] > 0
    (server,) = summary["servers"]
    assert (server.get("ttft_ms"), server.get("generation_tokens")) == (None, None)
    before, after = run.counted_by_server(names.PROMPT_TOKENS)
    assert after - before == sum(row["input_tokens"] for row in rows)
    before, after = run.counted_by_server(f"{names.E2E}_count")  # each text is a request without output
    assert after - before == sum(row["texts"] for row in rows) + (len(rows) if endpoint in WITH_QUERY else 0)
    assert run.counted_by_server(names.GENERATION_TOKENS)[1] == 0
    report = (run.run_dir / "report.md").read_text().partition("<summary>Definitions")[0]
    assert "prompt tokens | adds up" in report
    printed = (run.text.partition("passed: 2 of 2 gates")[2] + report).splitlines()
    assert [line for line in printed if OF_STREAMS.search(line) and not NAMED.search(line)] == []


def test_the_example_of_embeddings_md_runs(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "how-to" / "embeddings.md").read_text()
    file = tmp_path / "search.py"
    file.write_text(re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0])
    run = virtual.run(tmp_path, None, "--users", "2", "--run-time", "3s", locustfile=file)
    assert run.code == 0, run.text
    assert {row["class"] for row in run.turns} == {"find"}


LOCUSTFILE = """
from locust import constant, task
from inferload.users import InferenceUser

class Mine(InferenceUser):
    wait_time = constant(0.1)

    @task
    def ask(self):
        texts = ["one two", "three"]
        replies = [
            self.embeddings(texts, encoding_format="float"),
            self.rerank("one", texts, top_n=1),
            self.score("one", texts),
            self.pooling("one"),
            self.turn("embeddings", [5, 6, 7]),
        ]
        assert [reply.record.texts for reply in replies] == [2, 2, 2, 1, 1]
        assert all(reply.ok and reply.ttft_ms is None and reply.e2e_ms > 0 for reply in replies), replies
        assert [reply.input_tokens for reply in replies] == [3, 4, 4, 1, 3]
        assert self.chat("Hi", max_tokens=3).output_tokens == 3
"""


def test_tasks_send_texts_and_chats_in_one_run(tmp_path: Path) -> None:
    locustfile = tmp_path / "mine.py"
    locustfile.write_text(LOCUSTFILE)
    run = virtual.run(tmp_path, None, "-u", "1", "-t", "3s", "--gate", "p95(ttft_ms) < 100", locustfile=locustfile)
    assert run.code == 0, run.text
    assert run.summary["exceptions"]["count"] == 0
    assert 0 < run.summary["turns"]["whole"] < run.summary["turns"]["ok"]
    assert run.summary["rates"]["output_tok_per_s"] > 0
