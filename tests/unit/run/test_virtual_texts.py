"""Runs on a virtual clock of endpoints whose answers are no streams: what is recorded, printed and compared."""

import json
from pathlib import Path

import pytest
import virtual

from inferload.figures import metric_names as names
from inferload.scenario.schema.endpoints import OF_TEXTS, WITH_QUERY

TEXTS = {"kind": "texts", "texts_per_request": {"dist": "uniform", "min": 1, "max": 5}, "text_tokens": 20}
OF_STREAMS = (
    "TTFT",
    "ITL",
    "TPOT",
    "output tok",
    "Output, tok/s",
    "output tokens planned",
    "with a stall",
    "other clients",
)


def scenario(endpoint: str) -> dict[str, object]:
    return {
        "schema": 1,
        "name": "texts",
        "workload": TEXTS,
        "arrivals": {"kind": "closed", "users": 2, "spawn_per_s": 9},
        "phases": {"measure_s": 3},
        "request": {"endpoint": endpoint},
        "gates": ["p95(e2e_ms) < 1000", "texts_per_s > 1"],
    }


@pytest.mark.parametrize("endpoint", OF_TEXTS)
def test_a_run_has_figures_of_texts_and_none_of_streams(endpoint: str, tmp_path: Path) -> None:
    run = virtual.run(tmp_path, scenario(endpoint), "--report", "--details")
    assert run.code == 0, run.text
    rows, summary = run.turns, run.summary
    assert len(rows) > 20
    for row in rows:
        assert row["sent_ns"] < row["first_event_ns"] <= row["last_ns"] == row["closed_ns"]
        assert row["input_tokens"] == 20 * row["texts"] + (32 if endpoint in WITH_QUERY else 0)
        unknown = (
            "first_ns",
            "first_visible_ns",
            "event_ns",
            "event_tokens",
            "output_tokens",
            "finish_reason",
            "failure",
        )
        assert {row[name] for name in unknown} == {None}
    latency, rates, turns = summary["latency"], summary["rates"], summary["turns"]
    assert [latency[name].get("count", 0) for name in ("ttft_ms", "itl_ms", "tpot_ms", "ttfo_ms")] == [0] * 4
    assert (latency["e2e_ms"]["count"], turns["whole"]) == (turns["ok"], turns["sent"])
    assert turns["texts"] == sum(row["texts"] for row in rows if row["phase"] == "measure")
    assert (rates["output_tok_per_s"], rates["total_tok_per_s"], turns["output_tokens"]) == (None, None, None)
    assert rates["texts_per_s"] > rates["turns_per_s"] > 0
    assert rates["input_tok_per_s"] > 20 * rates["texts_per_s"] * 0.9
    (server,) = summary["servers"]
    assert (server.get("ttft_ms"), server.get("generation_tokens")) == (None, None)
    assert any("count a request for each text" in note for note in summary["notes"])
    before, after = run.counted_by_server(names.PROMPT_TOKENS)
    assert after - before == sum(row["input_tokens"] for row in rows)
    assert run.counted_by_server(names.GENERATION_TOKENS)[1] == 0
    report = (run.run_dir / "report.md").read_text().partition("<summary>Definitions")[0]
    printed = run.text.partition("passed: 2 of 2 gates")[2] + report
    assert "prompt tokens | adds up" in report
    named = ("no TTFT, ITL", "is the E2E", "are set (virtual clock)", "throughput higher")  # also effects of advice
    lines = [line for line in printed.splitlines() if not any(words in line for words in named)]
    assert [line for line in lines if any(word in line for word in OF_STREAMS)] == []


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
            self.turn("rerank", {"query": "one", "documents": texts}),
        ]
        assert [reply.record.texts for reply in replies] == [2, 2, 2, 1, 1, 2]
        assert all(reply.ok and reply.ttft_ms is None and reply.e2e_ms > 0 for reply in replies), replies
        assert [reply.input_tokens for reply in replies] == [3, 4, 4, 1, 3, 4]
        assert self.chat("Hi", max_tokens=3).output_tokens == 3
"""


def test_tasks_send_texts_and_chats_in_one_run(tmp_path: Path) -> None:
    locustfile = tmp_path / "mine.py"
    locustfile.write_text(LOCUSTFILE)
    run = virtual.run(tmp_path, None, "-u", "1", "-t", "3s", "--gate", "p95(ttft_ms) < 100", locustfile=locustfile)
    assert run.code == 0, run.text
    turns = run.summary["turns"]
    assert (run.summary["exceptions"]["count"], turns["failed"]) == (0, 0)
    assert 0 < turns["whole"] < turns["ok"]
    assert run.summary["rates"]["output_tok_per_s"] > 0


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("self.embeddings([])", "embeddings: input is empty; give a text, or a list of texts"),
        ("self.embeddings('a', max_tokens=5)", "embeddings: max_tokens is of answers with text; leave it out"),
        ("self.turn('rerank', ['a'])", "rerank: give a dict with query and documents"),
        ("self.score('a', 5)", "score: text_2 is int; give a text, or a list of texts"),
    ],
)
def test_an_invalid_call_is_one_line(call: str, error: str, tmp_path: Path) -> None:
    locustfile = tmp_path / "mine.py"
    locustfile.write_text(LOCUSTFILE.partition("        texts =")[0] + f"        {call}\n")
    run = virtual.run(tmp_path, None, "-u", "1", "-t", "1s", locustfile=locustfile)
    (raised, *_more) = run.summary["exceptions"]["by_message"]
    assert error in json.dumps(raised), raised
