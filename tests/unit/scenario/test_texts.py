"""Scenarios of endpoints whose answers are no streams: defaults, and what does not go together."""

import pytest

from inferload.scenario.files.yaml_text import ScenarioError
from inferload.scenario.scenario import from_text
from inferload.workload.plan.describe import describe

SCENARIO = """\
schema: 1
name: a
workload: {kind: texts, texts_per_request: 3, text_tokens: 20%s}
arrivals: {kind: constant, sessions_per_s: 2}
phases: {measure_s: 10%s}
%s
"""


@pytest.mark.parametrize(
    ("endpoint", "query", "lines"),
    [
        ("embeddings", None, ("3 texts per request, 20 tokens each", "60 input tokens per request")),
        (
            "rerank",
            32,
            (
                "3 documents per request, 20 tokens each",
                "a query of 32 tokens",
                "2 turns/s, 6 texts/s, 184 input tok/s",
            ),
        ),
    ],
)
def test_defaults_and_plan(endpoint: str, query: int | None, lines: tuple[str, ...]) -> None:
    request = "" if endpoint == "embeddings" else f"request: {{endpoint: {endpoint}}}"
    scenario = from_text(SCENARIO % ("", "", request), "a")
    assert scenario.request.endpoint == endpoint
    assert scenario.as_data()["workload"]["query_tokens"] == query
    assert from_text(scenario.resolved_text(), "b") == scenario
    plan = describe(scenario)
    assert all(line in plan for line in lines), plan
    assert "output tok" not in plan.replace("and output tokens", "")


@pytest.mark.parametrize(
    ("workload", "phases", "more", "message"),
    [
        (", turns: 2", "", "", "workload.turns: unknown key"),
        (", history: none", "", "", "workload.history: unknown key"),
        (
            "",
            "",
            "request: {endpoint: chat}",
            "do not go together; use request.endpoint embeddings, rerank, score, pooling",
        ),
        (", query_tokens: 5", "", "", "endpoint embeddings has no query; remove it"),
        (", source: {kind: random}", "", "", "text_tokens is set, but source random has its own lengths; remove it"),
        ("", "", "request: {ignore_eos: true}", "endpoint embeddings does not support it"),
        *(
            ("", "", f"request: {{extra_body: {{{key}: a}}}}", f"{key} comes from the workload; remove it")
            for key in ("query", "documents", "text_2", "input")
        ),
        ("", "", "request: {extra_body: {encoding_format: bytes}}", "not JSON; use float or base64"),
        ("", "", "slo: {tpot_ms: 5}", "slo.tpot_ms is of streams, and endpoint embeddings has none; use slo.e2e_ms"),
        ("", ", warmup_s: 5, warmup_until: steady", "", "phases.warmup_until is of streams"),
        ("", "", 'gates: ["p99(itl_ms) < 5"]', "itl_ms is of streams, and endpoint embeddings has none; use e2e_ms"),
        ("", "", 'gates: ["output_tok_per_s > 5"]', "output_tok_per_s is of streams"),
        ("", "", 'abort_on: ["p50(ttft_ms) > 5 for 5s"]', "ttft_ms is of streams"),
    ],
)
def test_what_does_not_go_together_is_refused_in_one_line(workload: str, phases: str, more: str, message: str) -> None:
    with pytest.raises(ScenarioError, match=r"^a:") as caught:
        from_text(SCENARIO % (workload, phases, more), "a")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_chat_may_have_fields_that_are_texts_elsewhere() -> None:
    text = SCENARIO.replace("texts, texts_per_request: 3, text_tokens: 20", "chat, prompt_tokens: 1, output_tokens: 1")
    request = "request: {extra_body: {query: a, documents: [{text: b}]}}"  # documents: of vLLM's templates
    assert set(from_text(text % ("", "", request), "a").request.extra_body) == {"query", "documents"}


def test_an_endpoint_of_texts_takes_no_chat() -> None:
    text = SCENARIO.replace("texts, texts_per_request: 3, text_tokens: 20", "chat, prompt_tokens: 1, output_tokens: 1")
    with pytest.raises(
        ScenarioError, match=r"kind chat and request.endpoint score do not go together; use workload.kind texts"
    ):
        from_text(text % ("", "", "request: {endpoint: score}"), "a")
