"""Gates: evaluation, unknown values, and parse errors."""

import math
import os
import re
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
import summaries
from hypothesis import assume, example, given
from hypothesis import strategies as st
from inferload.analysis.pages import gate_reference
from paths import ROOT

from inferload.base.errors import UsageError
from inferload.figures.client_figures import BY_KEY as CLIENT
from inferload.figures.limits.gate import Gate, GateError
from inferload.figures.limits.gate_grammar import (
    MEASURE_NAMES,
    NAMES_WITH_STATISTIC,
    PLAIN_NAMES,
    check_class,
    parse,
)
from inferload.figures.rate_figures import rates
from inferload.figures.servers.server_figures import SERVER_FIGURES
from inferload.figures.turn_values import SLICES
from inferload.results.documents.verdict_document import GateResult
from inferload.results.statistics.intervals import Interval, mean_interval, quantile_interval
from inferload.results.summary import exact_block
from inferload.results.verdict import gates as gating
from inferload.results.verdict.gate_decision import ABOVE, BELOW
from inferload.results.verdict.gate_text import interval_and_note, value_text
from inferload.run.process import run_spec
from inferload.scenario import scenario as scenarios
from inferload.scenario.files.yaml_text import ScenarioError
from inferload.scenario.schema import tasks
from inferload.turns.remarks import MEANINGS, Remark
from inferload.turns.tally import Tally

SUMMARY: dict[str, Any] = {
    "turns": {"sent": 210, "ok": 190, "failed": 10, "unfinished": 10},
    "sessions": {"planned": 50, "dropped": 5, "started": 45, "completed": 40},
    "rates": {
        **{"output_tok_per_s": 1234.5, "slo_attainment": None, "turns_per_s": 3},
        **{"failed_ratio": 0.05, "dropped_ratio": 0.1},
    },
    "latency": {
        "ttft_ms": {"count": 190, "mean": 80.0, "p50": 70.0, "p90": 150.0, "p99": None, "min": 20.0, "max": 400.0},
    },
    "client": {"delay_ms": {"count": 10_000, "mean": 0.1, "p99": 0.4, "max": 2.0}, "cpu_share": 0.7},
    "by_class": {
        "agent": {
            "turns": {"sent": 20, "ok": 15, "failed": 5, "unfinished": 0},
            "sessions": {"planned": 10, "dropped": 1},
            "rates": {"turns_per_s": 0.5, "failed_ratio": 0.25, "dropped_ratio": 0.1},
            "latency": {"ttft_ms": {"count": 15, "mean": 800.0, "p95": 1200.0, "max": 1500.0}},
        }
    },
    "servers": [
        {
            "target": "http://a:8000",
            "scrapes": 40,
            "engines": [{"engine": "0"}],
            "kv_cache_usage": {"mean": 0.5, "max": 0.9},
            "requests_waiting": {"mean": 1.5, "max": 4.0},
            "prefix_cache_hit_rate": 0.6,
            "preemptions": 0,
            "queue_ms": {"count": 9, "mean": 12.0, "p50": [10.0, 20.0]},
            "spec_decode": None,
            "gpu": None,
        }
    ],
    "other_requests": {
        "sent": 40,
        "failed": 3,
        "by_name": [
            {"type": "GET", "name": "/health", "sent": 30, "failed": 3},
            {"type": "POST", "name": "/items/{id}", "sent": 10, "failed": 0},
        ],
    },
}


def evaluate(gate: Gate, document: dict[str, Any], *sources: Any) -> GateResult:
    return gating.evaluate(gate, summaries.results(document), *sources)


def second_server(**changes: Any) -> dict[str, Any]:
    """Return the summary with a second server."""
    (first,) = SUMMARY["servers"]
    return SUMMARY | {"servers": [first, first | {"target": "http://b:8000"} | changes]}


@pytest.mark.parametrize(
    ("text", "value", "passed"),
    [
        ("mean(ttft_ms) < 80", 80.0, False),
        ("mean(ttft_ms) <= 80", 80.0, True),
        ("max(ttft_ms)>399.5", 400.0, True),
        ("  p50( ttft_ms )>=7e1 ", 70.0, True),
        ("failed_ratio < 0.05", 0.05, False),
        ("dropped_ratio < 0.2", 0.1, True),
        ("output_tok_per_s > 1000", 1234.5, True),
        ("turns_per_s >= 3", 3.0, True),
        ("p99(client_delay_ms) < 1", 0.4, True),
        ("client_cpu_share < 0.8", 0.7, True),
        ("min(ttft_ms) > -1", 20.0, True),
        ("failed_ratio == 0.05", 0.05, True),
        ("max(requests_waiting) < 5", 4.0, True),
        ("mean(requests_waiting) == 0", 1.5, False),
        ("mean(kv_cache_usage) < 0.5", 0.5, False),
        ("prefix_cache_hit_rate > 0.5", 0.6, True),
        ("preemptions == 0", 0.0, True),
        ("mean(queue_ms) <= 12", 12.0, True),
        ("max(ttft_ms){agent} < 900", 1500.0, False),
        ("mean( ttft_ms ) { agent } < 900", 800.0, True),
        ("failed_ratio{agent} < 0.3", 0.25, True),
        ("dropped_ratio{agent} < 0.1", 0.1, False),
        ("turns_per_s{agent} > 0.4", 0.5, True),
        ("failed_ratio{GET /health} < 0.01", 0.1, False),
        ("failed_ratio{POST /items/{id}} == 0", 0.0, True),
    ],
)
def test_gates_are_evaluated_on_a_summary(text: str, value: float, passed: bool) -> None:
    result = evaluate(parse(text), SUMMARY)
    assert (result.gate, result.value, result.passed, result.note) == (text.strip(), value, passed, None)


@pytest.mark.parametrize(
    ("source", "note"), [("counters", None), ("power gauges", "is from power gauges: mean power x")]
)
def test_a_gate_on_energy_says_what_it_is_from(source: str, note: str | None) -> None:
    document = SUMMARY | {
        "rates": {"j_per_output_token": 0.4},
        "energy": {"gpus": 2, "joules": 500.0, "from": source},
    }
    result = evaluate(parse("j_per_output_token < 0.5"), document)
    assert (result.value, result.passed) == (0.4, True)
    assert result.note is note or (note is not None and note in str(result.note))


@pytest.mark.parametrize(
    "text",
    ["p99(ttft_ms) < 1e9", "p95(ttft_ms) < 1e9", "slo_attainment >= 0", "max(itl_ms) < 1e9", "mean(tpot_ms) > 0"],
)
def test_an_unknown_value_does_not_pass(text: str) -> None:
    result = evaluate(parse(text), SUMMARY)
    assert (result.value, result.passed) == (None, False)
    assert result.note is not None
    assert "is not known" in result.note


@pytest.mark.parametrize(
    ("text", "summary", "note"),
    [
        ("preemptions == 0", SUMMARY | {"servers": []}, "preemptions was not measured: no metrics page reported it"),
        (
            "preemptions == 0",
            second_server(scrapes=0, engines=[], preemptions=None),
            "preemptions was not measured at http://b:8000: its metrics page has no value of it for the window",
        ),
        (
            "max(requests_waiting) < 5",
            second_server(longest_gap_s=55.04, gap_limit_s=5.0),
            "requests_waiting was not measured at http://b:8000: its metrics page was not scraped for 55 s",
        ),
        (
            "restarts == 0",
            second_server(longest_gap_s=55.0, gap_limit_s=5.0, restarts=None),
            "restarts was not measured at http://b:8000: its metrics page was not scraped for 55 s",
        ),
        (
            "restarts == 0",
            second_server(longest_gap_s=55.0, gap_limit_s=5.0, restarts=None, replicas=3),
            "restarts was not measured at 3 servers behind http://b:8000: name each with --metrics-url",
        ),
        ("acceptance_rate > 0", SUMMARY, "acceptance_rate was not measured at http://a:8000: its metrics page has no"),
        ("max(gpu_use) > 0", SUMMARY, "gpu_use was not measured: no metrics page reported it"),
        ("j_per_output_token < 9", SUMMARY, "j_per_output_token is not known: no page of a GPU exporter was scraped"),
        (
            "j_per_good_turn < 9",
            SUMMARY | {"energy": {"gpus": 2, "why": "http://g has no gauge"}},
            "j_per_good_turn is not known: http://g has no gauge",
        ),
        (
            "j_per_good_turn < 9",
            SUMMARY | {"energy": {"gpus": 2, "joules": 5.0}, "rates": {"goodput_turns_per_s": 0.0}},
            "j_per_good_turn is not known: no turn met the SLO",
        ),
        (
            "mean(ttft_ms){chat} > 0",
            SUMMARY | {"by_class": {"ask": {}, "rag": {}}},
            "no turn of class chat was planned in the measure phase; classes with turns: ask, rag",
        ),
        ("failed_ratio{GET /ready} < 1", SUMMARY, "no request GET /ready was sent"),
        (
            "failed_ratio{GET /ready} < 1",
            SUMMARY | {"other_requests": {"sent": 0, "failed": 0}},
            "no request GET /ready",
        ),
    ],
)
def test_an_unmeasured_value_does_not_pass_and_has_a_reason(text: str, summary: dict[str, Any], note: str) -> None:
    result = evaluate(parse(text), summary)
    assert (result.value, result.passed, result.answer) == (None, False, "fail")
    assert result.note is not None
    assert result.note.startswith(note)


@pytest.mark.parametrize(
    ("text", "value", "passed", "target"),
    [
        ("max(requests_waiting) < 5", 7.0, False, "http://b:8000"),
        ("max(requests_waiting) > 5", 4.0, False, "http://a:8000"),
        ("prefix_cache_hit_rate > 0.5", 0.3, False, "http://b:8000"),
        ("preemptions == 0", 2.0, False, "http://b:8000"),
        ("preemptions <= 2", 2.0, True, "http://b:8000"),
    ],
)
def test_a_server_metric_must_hold_for_each_server(text: str, value: float, passed: bool, target: str) -> None:
    busier = {"requests_waiting": {"mean": 2.0, "max": 7.0}, "prefix_cache_hit_rate": 0.3, "preemptions": 2}
    result = evaluate(parse(text), second_server(**busier))
    assert (result.value, result.passed) == (value, passed)
    assert result.note == f"the worst of 2 servers: {target}"


def test_gpu_exporters_are_excluded_from_engine_metrics() -> None:
    gpu = {"use": {"mean": 0.4, "max": 0.8}}
    summary = second_server(engines=[], gpu=gpu, kv_cache_usage={"mean": None, "max": None})
    assert evaluate(parse("max(kv_cache_usage) < 1"), summary).value == 0.9
    assert evaluate(parse("mean(gpu_use) > 0.5"), summary).value == 0.4


def test_ratios_without_turns_are_unknown() -> None:
    empty = SUMMARY | {"rates": rates(Tally(), 60.0)}
    assert [evaluate(parse(f"{name} < 1"), empty).passed for name in ("failed_ratio", "dropped_ratio")] == [
        False,
        False,
    ]


def test_a_percentile_of_few_samples_is_noted() -> None:
    result = evaluate(parse("p99(ttft_ms) < 390"), SUMMARY, lambda measure, q: {("ttft_ms", 0.99): 380.0}[measure, q])
    assert (result.value, result.passed) == (380.0, True)
    assert result.note == "of 190 samples, fewer than 10 beyond it; 1,000 samples give 10"
    steady = evaluate(parse("p75(ttft_ms) < 390"), SUMMARY, lambda measure, q: 90.0)
    assert (steady.value, steady.note) == (90.0, None)
    low = evaluate(parse("p1(ttft_ms) > 10"), SUMMARY, lambda measure, q: 20.0)
    assert low.note == "of 190 samples, fewer than 10 beyond it; 1,000 samples give 10"


@pytest.mark.parametrize(
    ("name", "q"),
    [("p5", 0.05), ("p50", 0.5), ("p75", 0.75), ("p99", 0.99), ("p999", 0.999), ("p99.9", 0.999), ("p9999", 0.9999)],
)
def test_percentile_names_are_parsed(name: str, q: float) -> None:
    assert parse(f"{name}(itl_ms) < 1").q == pytest.approx(q, rel=1e-12)


@pytest.mark.parametrize(
    ("text", "character", "problem"),
    [
        ("p99(tttf_ms) < 2000", 5, "unknown measure tttf_ms; did you mean ttft_ms?"),
        ("p99(zzz) < 2000", 5, "unknown measure zzz; choose from lag_ms, connect_ms"),
        ("fail_ratio < 0.01", 1, "unknown name fail_ratio; did you mean failed_ratio?"),
        ("ttft_ms < 2000", 1, "ttft_ms needs a statistic; write p99(ttft_ms)"),
        ("avg(ttft_ms) < 2000", 1, "avg is no statistic; use mean, min, max"),
        ("meen(ttft_ms) < 2000", 1, "meen is no statistic; did you mean mean?"),
        ("p100(ttft_ms) < 2000", 1, "p100 is no percentile; use max"),
        ("p0(ttft_ms) < 2000", 1, "p0 is no percentile; use min"),
        ("p99(ttft_ms < 2000", 13, "a closing bracket is missing after ttft_ms"),
        ("p99() < 2000", 5, "a measure is missing"),
        ("p99(ttft_ms) == 2000", 14, "one of < <= > >= is missing"),
        ("failed_ratio = 0", 14, "one of < <= > >= == is missing"),
        ("max(requests_wating) < 5", 5, "unknown measure requests_wating; did you mean requests_waiting?"),
        ("preemption == 0", 1, "unknown name preemption; did you mean preemptions?"),
        (
            "requests_waiting < 5",
            1,
            "requests_waiting needs a statistic; write mean(requests_waiting) or max(requests_wai",
        ),
        (
            "p95(requests_waiting) < 5",
            1,
            "requests_waiting has no p95; write mean(requests_waiting) or max(requests_wai",
        ),
        ("max(preemptions) < 5", 5, "preemptions has no statistic; write preemptions alone"),
        ("p99(failed_ratio) < 5", 5, "failed_ratio has no statistic; write failed_ratio alone"),
        ("preemptions{agent} == 0", 12, "preemptions is a server metric and has no classes; remove {agent}"),
        ("p99(client_delay_ms){agent} < 1", 21, "client_delay_ms is not recorded by class; remove {agent}"),
        ("j_per_good_turn{agent} < 1", 16, "j_per_good_turn is not recorded by class; remove {agent}"),
        ("p99(ttft_ms){GET /health} < 1", 13, "other requests have only failed_ratio; the name of a"),
        ("p99(ttft_ms){} < 1", 14, "the name of a class or of a request is missing"),
        ("p99(ttft_ms){agent < 1", 14, "a closing brace is missing after {"),
        ("p99(ttft_ms{agent}) < 1", 12, "a closing bracket is missing after ttft_ms"),
        ("p99(ttft_ms)", 13, "one of < <= > >= is missing"),
        ("p99(ttft_ms) <", 15, "a number is missing after <"),
        ("p99(ttft_ms) < soon", 16, "a number is missing after <"),
        ("p99(ttft_ms) < nan", 16, "a number is missing after <"),
        ("p99(ttft_ms) < 2000 ms", 21, "nothing may follow the limit 2000"),
        ("p99(ttft_ms) < 2s", 17, "nothing may follow the limit 2"),
        ("p99(ttft_ms) < 1e999", 16, "1e999 is too large for a limit"),
        ("", 1, "a name is missing"),
        ("< 3", 1, "a name is missing"),
    ],
)
def test_a_malformed_gate_is_refused_with_its_position(text: str, character: int, problem: str) -> None:
    with pytest.raises(GateError) as caught:
        parse(text)
    assert str(caught.value).startswith(f"gate {text!r}, character {character}: {problem}")
    assert caught.value.position == character - 1


PIECES = ["p99", "(", ")", "ttft_ms", "<", ">", "<=", "3", ".", "mean", "{", "}", "GET /", "==", "preemptions"]


@given(st.text(max_size=40) | st.lists(st.sampled_from(PIECES)).map("".join))
def test_any_text_is_a_gate_or_a_gate_error(text: str) -> None:
    gate, position = None, 0
    try:
        gate = parse(text)
    except GateError as error:
        position = error.position
    assert 0 <= position <= len(text)
    assert gate is None or gate.name in NAMES_WITH_STATISTIC + PLAIN_NAMES


SIGNS = ["<", "<=", ">", ">="]
CLASSES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}", fullmatch=True)
# Locust's type and name of a request; the name may hold any character, braces included.
REQUESTS = st.builds(
    "{} {}".format, st.sampled_from(["GET", "POST", "grpc"]), st.text(min_size=1).map(str.strip)
).filter(lambda name: name == name.strip())
TURN_TERMS = st.sampled_from(MEASURE_NAMES).flatmap(
    lambda name: st.tuples(
        st.sampled_from(["p50", "p999", "mean", "max"]),
        st.just(name),
        st.none() if name in CLIENT else st.none() | CLASSES,
        st.sampled_from(SIGNS),
    )
)
SERVER_TERMS = st.sampled_from(SERVER_FIGURES).flatmap(
    lambda metric: st.tuples(
        st.sampled_from(metric.statistics or (None,)), st.just(metric.key), st.none(), st.sampled_from([*SIGNS, "=="])
    )
)
RATIO_TERMS = st.tuples(st.none(), st.just("failed_ratio"), CLASSES | REQUESTS, st.sampled_from([*SIGNS, "=="]))


@given(TURN_TERMS | SERVER_TERMS | RATIO_TERMS, st.floats(0, 1e9), st.sampled_from(["", " ", "  "]))
def test_a_written_gate_is_read_back(term: tuple[str | None, str, str | None, str], limit: float, space: str) -> None:
    statistic, name, selector, sign = term
    words = [name if statistic is None else f"{statistic}({name})", f"{{{selector}}}" if selector else "", sign]
    gate = parse(space.join([*words, repr(limit)]))
    assert (gate.statistic, gate.name, gate.selector, gate.sign, gate.limit) == (statistic, name, selector, sign, limit)
    assert gate == parse(gate.text)
    assert gate.holds(limit) == (sign in ("<=", ">=", "=="))
    assert not gate.holds(None)


def test_an_unknown_class_is_named() -> None:
    check_class(parse("p95(ttft_ms){agent} < 1"), ("chat", "agent"))
    check_class(parse("failed_ratio{GET /health} < 1"), ("chat", "agent"))
    check_class(parse("p95(ttft_ms){ask} < 1"), None)
    text = tasks.SCENARIO + "gates: ['p95(ttft_ms){ask} < 1']\n"
    assert scenarios.from_text(text, "x").class_names is None, "tasks name their classes during the run"
    with pytest.raises(GateError, match=r"character 14: unknown class agnt; did you mean agent\?"):
        check_class(parse("p95(ttft_ms){agnt} < 1"), ("chat", "agent"))
    with pytest.raises(ScenarioError, match=r": gate .*: unknown class x; choose from chat"):
        scenarios.load("smoke").changed({"gates": ["failed_ratio{x} < 1"]})


def test_gates_of_the_command_line_are_added() -> None:
    mixed = scenarios.load("mixed")
    added = run_spec.gates_of(mixed, ["p95(ttft_ms){agent} < 900", *mixed.gates])
    assert added == (*mixed.gates, "p95(ttft_ms){agent} < 900")
    form = ["p95(ttft_ms){agent} < 900"]
    assert run_spec.gates_of(mixed, ["failed_ratio < 1"], form) == (*form,), "those of the form are all gates"
    assert run_spec.gates_of(mixed, ["failed_ratio < 1"], []) == ()
    for text, problem in (("p95(tttf_ms) < 9", "did you mean ttft_ms?"), ("failed_ratio{agnt} < 1", "mean agent?")):
        with pytest.raises(UsageError) as caught:
            run_spec.gates_of(mixed, [text])
        assert str(caught.value).startswith(f"--gate: gate {text!r}, character ")
        assert str(caught.value).endswith(problem)
        with pytest.raises(UsageError, match=r"^gates: gate "):
            run_spec.gates_of(mixed, [], [text])


@pytest.mark.parametrize(
    ("name", "text"),
    [("smoke", "texts_per_s > 1"), ("embeddings", "p95(ttft_ms) < 9"), ("embeddings", "p95(server_ttft_ms) < 9")],
)
def test_a_gate_of_other_answers_is_refused_before_the_run(name: str, text: str) -> None:
    scenario = scenarios.load(name)
    with pytest.raises(UsageError, match=r"^--gate: .* is of [a-z ]+, and endpoint \w+ has none; use "):
        run_spec.gates_of(scenario, [text])
    for change in ({"gates": [text]}, {"abort_on": [f"{text} for 5s"]}):
        with pytest.raises(ScenarioError, match=" has none; use "):
            scenario.changed(change)
    own = scenarios.from_text(tasks.SCENARIO, "x").changed({"gates": ["texts_per_s > 1"]})
    assert own.gates == ("texts_per_s > 1",), "tasks may send requests of texts"


DRAWS = 300 if os.environ.get("INFERLOAD_SOAK") else 150
OPPOSITE = {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}
ENDS = st.none() | st.floats(0, 1e4)
MEASURED = st.tuples(
    st.sampled_from([None, "p50", "p95", "p99"]), st.sampled_from(MEASURE_NAMES), st.sampled_from(SIGNS)
)


LARGEST = st.sampled_from(["at the limit", "above the limit", "not known"])


@given(
    MEASURED,
    st.floats(0.01, 1e4),
    st.tuples(st.floats(1.0, 100.0), st.booleans()),
    st.tuples(ENDS, ENDS, st.floats(1, 1e4)),
    LARGEST,
)
@example(("p95", "ttft_ms", "<"), 36.0, (800 / 36, True), (None, None, 31.0), "at the limit")
@example(("p95", "ttft_ms", "<"), 36.0, (800 / 36, True), (None, None, 2.0), "at the limit")
@example(("p95", "ttft_ms", "<"), 36.0, (800 / 36, True), (None, None, 80.0), "above the limit")
@example(("p99", "ttft_ms", "<"), 100.0, (1.05, True), (None, None, 80.0), "at the limit")
@example(("p99", "ttft_ms", "<"), 100.0, (11.0, False), (None, None, 1.1), "above the limit")
def test_a_value_far_from_its_limit_needs_no_interval_on_either_side(
    term: tuple[str | None, str, str],
    value: float,
    distance: tuple[float, bool],
    drawn: tuple[float | None, float | None, float],
    largest: str,
) -> None:
    """Any measure, direction and interval: a gate and its opposite are decided, or open, alike."""
    factor, below = distance
    rules = BELOW if below else ABOVE
    assume(min(abs(factor - least) for least, _ in rules) > 1e-6)
    statistic, name, sign = term
    limit = value * factor if below else value / factor
    interval = Interval(*drawn, 10.0)

    def result(sign: str, interval: Interval) -> GateResult:
        gate = parse(f"{statistic or 'mean'}({name}) {sign} {limit!r}")
        most = {"at the limit": gate.limit, "above the limit": gate.limit * 1.001, "not known": None}[largest]
        block = {"max": most, str(gate.statistic): value}
        document = {
            "latency": {name: block},
            "client": {name.removeprefix("client_"): block} if name in CLIENT else {},
            "turns": {"ok": 9},
            "window_s": 9.0,
        }
        found = evaluate(gate, document, None, lambda measure, q: interval)
        assert found.passed == gate.holds(value)
        return found

    here, there = result(sign, interval), result(OPPOSITE[sign], interval)
    assert here.answer == {"pass": "fail", "fail": "pass"}.get(there.answer, there.answer)
    q = {"p50": 0.5, "p95": 0.95, "p99": 0.99}.get(str(statistic), 0.95 if below else 0.5)
    beyond = interval.effective * (1 - q if below else q)
    assume(min(abs(beyond - needed) for _, needed in rules) > 1e-6)
    far = any(factor > least and beyond > needed for least, needed in rules) and (
        largest == "at the limit" or not below
    )
    without = result(sign, Interval(None, None, interval.effective, 10.0))
    if far:
        assert without.ground == "distance"
        assert without.answer == ("pass" if here.passed else "fail") == here.answer
        side = "below the limit, and no sample is above it" if below else "above the limit"
        assert str(without.note).endswith(f" times {side}")
        assert interval_and_note(without) == without.note
    else:
        assert without.answer == "inconclusive"


def passed_of(gate: str, turns: int, run: Callable[[np.random.Generator, int], tuple[np.ndarray, np.ndarray]]) -> float:
    """Return the share of simulated runs that pass. `run` returns the ends and the times (ms) of the turns."""
    dice, parsed, passed = np.random.default_rng(turns), parse(gate), 0
    for _ in range(DRAWS):
        ends, values = run(dice, turns)
        document = {
            "latency": {"ttft_ms": msgspec.to_builtins(exact_block(values))},
            "client": {},
            "turns": {"ok": turns},
            "window_s": float(ends.max()),
        }
        cuts = np.searchsorted(np.sort(ends), np.linspace(0, ends.max(), SLICES + 1)[1:-1])
        slices = np.split(values[np.argsort(ends)], cuts)

        def interval(name: str, q: float | None, of: list[np.ndarray] = slices) -> Interval:
            return mean_interval(of) if q is None else quantile_interval(of, q)

        passed += evaluate(parsed, document, None, interval).answer == "pass"
    return passed / DRAWS


@pytest.mark.parametrize(
    ("gate", "slow", "turns", "most"),
    [
        *(("p95(ttft_ms) < 500", 0.06, turns, most) for turns, most in ((30, 0.2), (75, 0.03), (400, 0.03))),
        *(("p99(ttft_ms) < 500", 0.02, turns, most) for turns, most in ((100, 0.0), (150, 0.08), (300, 0.03))),
    ],
)
def test_a_second_mode_above_the_limit_is_rarely_missed(gate: str, slow: float, turns: int, most: float) -> None:
    """Turns of 40 ms, and a share of 1,000 ms that is larger than the percentile leaves: the gate fails in truth."""

    def run(dice: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
        return np.arange(1.0, count + 1), np.where(dice.random(count) < slow, 1000.0, 40.0)

    assert passed_of(gate, turns, run) <= most


@pytest.mark.parametrize("turns", [30, 100, 270])
def test_a_queue_with_a_limit_below_its_percentile_rarely_passes(turns: int) -> None:
    """One queue (M/M/1, stationary from its start) at 80 % of its capacity; its times are exponential with mean 1 / (1 - load)."""
    load = 0.8

    def run(dice: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
        gaps, services, times = dice.exponential(1 / load, count), dice.exponential(1.0, count), np.empty(count)
        waiting = dice.exponential(1 / (1 - load)) * (dice.random() < load)
        for at in range(count):
            times[at] = waiting + services[at]
            waiting = max(0.0, times[at] - gaps[at])
        return np.cumsum(gaps) + times, times

    assert passed_of(f"p95(ttft_ms) < {0.99 * math.log(20) / (1 - load)}", turns, run) <= 0.05


@pytest.mark.parametrize("known", [{"tpot_ms": {"count": 2, "mean": 12.0}}, {}])
def test_a_gate_on_a_figure_by_token_names_turns_without_it(known: dict[str, Any]) -> None:
    turns = {
        "sent": 5,
        "ok": 5,
        "output_tokens_from": 5,
        "remarks": {"held_text": {"turns": 3}, "odd_event": {"turns": 1}},
    }
    document = {"turns": turns, "latency": known}
    reason = f"3 of 5 turns {MEANINGS[Remark.HELD_TEXT]}"
    result = evaluate(parse("mean(tpot_ms) < 20"), document)
    assert (result.passed, result.note) == ((True, reason) if known else (False, f"tpot_ms is not known: {reason}"))
    assert evaluate(parse("mean(ttft_ms) < 20"), document).note == "ttft_ms is not known"


def test_the_gate_reference_is_generated() -> None:
    page = (ROOT / "docs/reference/gates.md").read_text(encoding="utf-8")
    tables = gate_reference.document()
    assert page.endswith(f"-->\n\n{tables.rstrip()}\n"), "python -m inferload.analysis.pages.gate_reference"
    for name in NAMES_WITH_STATISTIC + PLAIN_NAMES:
        assert f"| `{name}` |" in tables
    for text in re.findall(r"^\| `(.+?)` \| ", page.partition("## Confidence intervals")[0], re.MULTILINE):
        parse(text)


@given(value=st.floats(0, 1e6), limit=st.sampled_from((0.5, 10.0, 499.96, 500.0, 30_000.0)))
def test_a_value_is_told_apart_from_its_limit(value: float, limit: float) -> None:
    assert all(parse(f"p95(ttft_ms) < {limit}").shown(of) == "not known" for of in (None, math.nan, math.inf))
    shown = parse(f"p95(ttft_ms) < {limit}").shown(value)
    assert shown.endswith(" ms")
    assert (shown == parse(f"p95(ttft_ms) < {limit}").shown(limit)) <= (value == pytest.approx(limit, rel=1e-12))


@pytest.mark.parametrize(
    ("gate", "value", "text"),
    [
        ("p95(ttft_ms) < 500", 412.3, "412 ms"),
        ("p95(ttft_ms) < 500", 499.96, "499.96 ms"),
        ("output_tok_per_s > 300", 310.1, "310 tok/s"),
        ("failed_ratio < 0.01", 0.02778, "0.0278"),
        ("p95(ttft_ms) < 500", None, "not known"),
        ("abort_on failed_ratio > 0.5 for 5s", 0.75, "0.75"),
    ],
)
def test_a_value_has_its_unit(gate: str, value: float | None, text: str) -> None:
    assert value_text(GateResult(gate=gate, value=value, passed=False), value) == text
