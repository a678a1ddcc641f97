"""Scenarios of endpoints whose answers are no streams: defaults, and what does not go together."""

from typing import Any

import pytest
from small_scenario import small

from inferload.scenario.files.yaml_text import ScenarioError
from inferload.scenario.scenario import Scenario, from_text
from inferload.workload.plan.describe import describe

TEXTS = {"kind": "texts", "texts_per_request": 3, "text_tokens": 20}
CHAT = {"kind": "chat", "prompt_tokens": 1, "output_tokens": 1}


def scenario(workload: dict[str, Any] = TEXTS, **changes: Any) -> Scenario:
    return small(workload=workload, arrivals={"kind": "constant", "sessions_per_s": 2}, **changes)


OF_RERANK = ("3 documents per request, 20 tokens each", "a query of 32 tokens", "2 turns/s, 6 texts/s, 184 input tok/s")


@pytest.mark.parametrize(
    ("endpoint", "request_of", "query", "lines"),
    [
        ("embeddings", {}, None, ("3 texts per request, 20 tokens each", "60 input tokens per request")),
        ("rerank", {"endpoint": "rerank"}, 32, OF_RERANK),
    ],
)
def test_defaults_and_plan(
    endpoint: str, request_of: dict[str, str], query: int | None, lines: tuple[str, ...]
) -> None:
    found = scenario(request=request_of)
    assert found.request.endpoint == endpoint
    assert found.as_data()["workload"]["query_tokens"] == query
    assert from_text(found.resolved_text(), "b") == found
    plan = describe(found)
    assert all(line in plan for line in lines), plan
    assert "output tok" not in plan.replace("and output tokens", "")


@pytest.mark.parametrize(
    ("workload", "changes", "message"),
    [
        ({"turns": 2}, {}, "workload.turns: unknown key"),
        ({"history": "none"}, {}, "workload.history: unknown key"),
        ({}, {"request": {"endpoint": "chat"}}, "do not go together; use request.endpoint embeddings, rerank, score"),
        (CHAT, {"request": {"endpoint": "score"}}, "score do not go together; use workload.kind texts"),
        ({"query_tokens": 5}, {}, "endpoint embeddings has no query; remove it"),
        ({"source": {"kind": "random"}}, {}, "is set, but source random has its own lengths; remove it"),
        ({}, {"request": {"ignore_eos": True}}, "endpoint embeddings does not support it"),
        *(
            ({}, {"request": {"extra_body": {key: "a"}}}, f"{key} comes from the workload; remove it")
            for key in ("query", "documents", "text_2", "input")
        ),
        ({}, {"request": {"extra_body": {"encoding_format": "bytes"}}}, "not JSON; use float or base64"),
        ({}, {"slo": {"tpot_ms": 5}}, "slo.tpot_ms is of streams, and endpoint embeddings has none; use slo.e2e_ms"),
        (
            {},
            {"phases": {"measure_s": 9, "warmup_s": 5, "warmup_until": "steady"}},
            "phases.warmup_until is of streams",
        ),
        ({}, {"gates": ["p99(itl_ms) < 5"]}, "itl_ms is of streams, and endpoint embeddings has none; use e2e_ms"),
        ({}, {"gates": ["output_tok_per_s > 5"]}, "output_tok_per_s is of streams"),
        ({}, {"abort_on": ["p50(ttft_ms) > 5 for 5s"]}, "ttft_ms is of streams"),
    ],
)
def test_what_does_not_go_together_is_refused_in_one_line(
    workload: dict[str, Any], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ScenarioError, match=r"^small.yaml:") as caught:
        scenario(workload if "kind" in workload else TEXTS | workload, **changes)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_chat_may_have_fields_that_are_texts_elsewhere() -> None:
    fields = {"query": "a", "documents": [{"text": "b"}]}  # documents: of vLLM's templates
    assert set(scenario(CHAT, request={"extra_body": fields}).request.extra_body) == {*fields}
