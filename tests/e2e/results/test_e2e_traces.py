"""--export-traces with a small collector: spans beside the turn records, and the trace context that the server receives."""

import re
from typing import Any

import pytest
from chat_events import ANSWER
from e2e_runs import FinishedRun, RunCase, Sandbox, check_counts, run_cases, scenario
from otlp_collector import Collector, attributes_of
from scripted_server import chunked, one_model, send

answer = one_model(send(chunked(*ANSWER)))


def traced(sandbox: Sandbox, mode: str, ratio: str) -> FinishedRun:
    """A run of 60 turns; the collector's spans and the requests at the server. The collector is slower than the end of a run."""
    server, collector = sandbox.server(answer), Collector(delay_s=1.5)
    file = scenario(sandbox.folder, phases__measure_s=None, phases__sessions=60)
    words = ("--export-traces", collector.url, "--trace-ratio", ratio)
    master = ("--host", server.url, "--scenario", str(file), "--on-invalid", "warn", *words)
    fleet = sandbox.fleet(mode, *master, worker_arguments=words)
    code = fleet.exit_code()
    collector.close()
    requests = [request for request in server.requests if request.startswith(b"POST /v1/chat/completions ")]
    return FinishedRun(sandbox.run_dir, code, fleet.text, seen={"collector": collector, "requests": requests})


def contexts(requests: list[bytes]) -> list[tuple[str, str, str]]:
    """(trace, span, flags) of the requests of a run, without that of the preflight."""
    matches = [re.search(rb"\r\ntraceparent: 00-([0-9a-f]{32})-([0-9a-f]{16})-(0[01])\r\n", each) for each in requests]
    return [(each[1].decode(), each[2].decode(), each[3].decode()) for each in matches if each is not None]


@run_cases(traced, ("processes", "1"), ("by_hand", "0.5"))
def test_every_sampled_turn_has_a_span_of_the_context_that_the_server_received(
    ended: FinishedRun, run_case: RunCase
) -> None:
    assert ended.code == 0, ended.text
    check_counts(ended)
    collector: Collector = ended.seen["collector"]
    received = contexts(ended.seen["requests"])
    assert len(received) == len(ended.turns) == len({trace for trace, _span, _flags in received}) == 60
    sampled = {(trace, span) for trace, span, flags in received if flags == "01"}
    assert {(span.trace_id.hex(), span.span_id.hex()) for span in collector.spans} == sampled
    assert len(collector.spans) == len(sampled)
    assert len(sampled) == 60 if run_case.arguments[1] == "1" else 10 < len(sampled) < 50
    assert collector.paths == {"/v1/traces"}
    assert {resource["service.name"] for resource in collector.resources} == {"inferload"}


@run_cases(traced, ("processes", "1"))
def test_a_span_has_the_figures_of_its_turn(ended: FinishedRun) -> None:
    turns = {turn["turn_id"]: turn for turn in ended.turns}
    run_id = ended.summary["run"]["id"]
    for span in ended.seen["collector"].spans:
        known = attributes_of(span)
        turn: dict[str, Any] = turns.pop(known["inferload.turn.id"])
        assert (span.name, span.kind, span.parent_span_id) == ("chat m", 3, b"")
        assert span.end_time_unix_nano - span.start_time_unix_nano == turn["closed_ns"] - turn["sent_ns"]
        (first,) = [event for event in span.events if event.name == "first token"]
        assert first.time_unix_nano - span.start_time_unix_nano == turn["first_ns"] - turn["sent_ns"]
        first_chunk_s = known.pop("gen_ai.response.time_to_first_chunk")
        assert first_chunk_s == pytest.approx((turn["first_event_ns"] - turn["sent_ns"]) / 1e9)
        for figure, start, end in (
            ("lag", "planned", "sent"),
            ("ttft", "sent", "first"),
            ("e2e", "sent", "last"),
            ("e2e_planned", "planned", "last"),
        ):
            span_ms = (turn[f"{end}_ns"] - turn[f"{start}_ns"]) / 1e6
            assert known.pop(f"inferload.{figure}_ms") == pytest.approx(span_ms)
        host, port = turn["target"].removeprefix("http://").split(":")
        assert known == {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "openai",
            "gen_ai.request.model": "m",
            "gen_ai.request.max_tokens": turn["max_tokens"],
            "gen_ai.request.stream": True,
            "gen_ai.response.finish_reasons": ["length"],
            "gen_ai.response.id": "chatcmpl-1",
            "gen_ai.usage.input_tokens": 7,
            "gen_ai.usage.output_tokens": 2,
            "gen_ai.usage.cache_read.input_tokens": 4,
            "gen_ai.conversation.id": turn["session_id"],
            "server.address": host,
            "server.port": int(port),
            "http.response.status_code": 200,
            "inferload.run.id": run_id,
            "inferload.turn.id": turn["turn_id"],
            "inferload.class": "chat",
            "inferload.phase": "measure",
        }
    assert not turns


def without_answer(sandbox: Sandbox) -> FinishedRun:
    """A run whose collector accepts connections and does not answer. One that is not there is the same for a run."""
    server, collector = sandbox.server(answer), Collector(delay_s=60)
    file = scenario(sandbox.folder, phases__measure_s=None, phases__sessions=20)
    words = ("--export-traces", collector.url, "--trace-ratio", "1")
    fleet = sandbox.fleet("local", "--host", server.url, "--scenario", str(file), "--on-invalid", "warn", *words)
    return FinishedRun(sandbox.run_dir, fleet.exit_code(), fleet.text)


@run_cases(without_answer, ())
def test_a_collector_that_does_not_answer_changes_no_result(ended: FinishedRun) -> None:
    assert ended.code == 0, ended.text
    assert ended.summary["turns"]["ok"] == 20
    assert re.search("the last spans were not sent within 5 s|Failed to export spans batch", ended.text), ended.text
    check_counts(ended)
