"""summary.json and the terminal tables, from turns with known figures."""

import json
import re
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
import summaries
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from records import MS, S, turn
from turn_reference import count_all, count_turn

from inferload.base import numbers
from inferload.base.clock import Anchor
from inferload.figures.counting import count_delays
from inferload.figures.limits.slo import Slo
from inferload.figures.servers.server_figures import Server
from inferload.figures.table import Table, head_of
from inferload.figures.turn_figures import BY_KEY, HEADLINES, TURN_FIGURES
from inferload.figures.turn_values import ExactValues
from inferload.results import summary as summaries_of
from inferload.results import terminal_summary
from inferload.results.documents.figures_document import QUANTILES, Distribution, steady
from inferload.results.documents.summary_document import FirstExample, Run
from inferload.results.documents.typed_documents import document_of
from inferload.results.documents.verdict_document import Verdict
from inferload.results.summary import exact_block
from inferload.results.summary_input import (
    Counted,
    Gating,
    Steps,
    SummaryInput,
    Surroundings,
    Troubles,
    TurnValues,
    Values,
)
from inferload.results.tables import run_tables as of_run
from inferload.results.verdict.evidence import RunFacts
from inferload.results.verdict.phase_evidence import evidence_by_phase
from inferload.results.verdict.validity import judge
from inferload.turns.client_health import Beat, HealthSet
from inferload.turns.record import Failure, PhaseWindow, TurnRecord, stepped
from inferload.turns.remarks import MEANINGS, Remark
from inferload.turns.sketch import rank
from inferload.turns.tally import TallySet
from inferload.turns.turn_columns import TurnColumns, to_table

WINDOWS = (PhaseWindow("warmup", 0, 10 * S), PhaseWindow("measure", 10 * S, 70 * S), PhaseWindow("drain", 70 * S))
SECONDS = {"warmup": 10.0, "measure": 60.0, "drain": 4.0}
RUN = {
    "id": "r1",
    "scenario": "chat",
    "digest": "d",
    "seed": 7,
    "target": "http://server:8000",
    "model": "tiny",
    "engine": "vllm 0.32.0",
    "started_at": "2026-11-20T19:00:00Z",
    "versions": {"inferload": "0.1.0"},
}
SERVER = {
    "target": "http://server:8000",
    "kv_cache_usage": {"mean": 0.25, "max": 0.5},
    "requests_waiting": {"mean": 0.0, "max": 2.0},
    "requests_running": {"mean": 1.8, "max": 4.0},
    "prefix_cache_hit_rate": 0.64,
    "preemptions": 0,
    "prompt_tok_per_s": 1666.7,
    "generation_tok_per_s": None,
}
VALID = Verdict(measurement="valid")


def build(data: SummaryInput) -> dict[str, Any]:
    return document_of(summaries_of.build(data))


def run_tables(document: dict[str, Any]) -> tuple[Table, ...]:
    return of_run.run_tables(summaries.results(document))


def details(document: dict[str, Any]) -> str:
    return terminal_summary.details(summaries.summary(document))


def brief(document: dict[str, Any], load: str = "") -> str:
    return terminal_summary.brief(summaries.summary(document), load)


def slo_lines(document: dict[str, Any]) -> list[str]:
    return terminal_summary.slo_lines(summaries.results(document))


def sixty_seconds(count: int = 1200) -> list[TurnRecord]:
    """Return one turn every 50 ms of the measure phase: 40 to 41.199 ms to the first token, then four gaps of 10 ms."""
    minute = []
    for number in range(count):
        planned_ns = 10 * S + number * 50 * MS
        first_ns = 40 * MS + number * 1_000
        shift = turn(
            turn_id=f"t{number}",
            planned_ns=planned_ns,
            sent_ns=planned_ns + 2 * MS,
            written_ns=planned_ns + 3 * MS,
            first_event_ns=planned_ns + 2 * MS + first_ns,
            first_ns=planned_ns + 2 * MS + first_ns,
            first_visible_ns=None,
            last_ns=planned_ns + 42 * MS + first_ns,
            closed_ns=planned_ns + 43 * MS + first_ns,
            event_ns=array("q", [first_ns + k * 10 * MS for k in range(5)]),
            class_name="chat" if number % 3 else "agent",
        )
        minute.append(shift)
    return minute


def given_by(
    records: list[TurnRecord],
    slo: Slo | None = None,
    gates: Sequence[str] = (),
    *,
    run: Mapping[str, Any] = RUN,
    servers: Sequence[Mapping[str, Any]] = (SERVER,),
    **changes: Any,
) -> SummaryInput:
    tallies, health = TallySet(), HealthSet()
    for record in records:
        if record.turn_index == 0:
            tallies.at(record.phase, record.class_name).sessions_planned += 1
            tallies.at(record.phase, record.class_name).sessions_started += 1
        tallies.at(record.phase, record.class_name).turns_begun += 1
    count_all(tallies, records, WINDOWS, slo)
    count_delays(health, records, [0] * len(records))
    health.at("w1", "measure").beat(Beat([0.1, 0.2], [], 15.0, 60.0, 0.0))
    health.at("w2", "measure").beat(Beat([0.1, 0.4], [], 18.0, 60.0, 0.0))
    return SummaryInput(
        Surroundings(msgspec.convert(run, Run), "kernel", servers=msgspec.convert(servers, list[Server])),
        Counted(tallies, health, SECONDS),
        VALID,
        gating=Gating(gates),
        **changes,
    )


EMPTY = SummaryInput(Surroundings(msgspec.convert(RUN, Run), "user"), Counted(TallySet(), HealthSet(), {}), VALID)


def exact_of(records: list[TurnRecord]) -> Values:
    columns = TurnColumns()
    for record in records:
        columns.append(record)
    table = to_table(columns, Anchor(0, 0), "w1")
    exact = ExactValues(lambda names: [table.select(list(names))])
    return lambda name, of: exact.of(name) if of is None else exact.of(name, "class", of)


def test_the_document_has_the_documented_keys() -> None:
    summary = build(given_by(sixty_seconds(), Slo({"ttft_ms": 41}), gates=["p99(ttft_ms) < 2000"]))
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary
    assert set(summary) >= {
        *(
            "format",
            "run",
            "verdict",
            "window_s",
            "percentiles_from",
            "sessions",
            "turns",
            "stalls",
            "tokens_per_event",
        ),
        *("steps", "rates", "slo", "latency", "client", "servers", "by_class", "other_requests", "exceptions"),
        *("growth", "overload_not_judged", "stopped_answering", "notes"),
        *("steps", "rates", "latency", "client", "servers", "by_class", "other_requests", "exceptions", "users"),
        *("growth", "stopped_answering"),
    }
    assert set(summary["verdict"]) == {"measurement", "by_phase", "reasons", "gates", "passed"}
    assert set(summary["sessions"]) == {"planned", "dropped", "at_limit", "started", "completed"}
    assert set(summary["turns"]) >= {
        *("sent", "ok", "cancelled", "failed", "unfinished", "by_failure", "by_finish_reason", "by_phase"),
        *("output_tokens_from", "input_tokens_from", "first_errors", "remarks"),
    }
    assert set(summary["turns"]["by_phase"]) == {"warmup", "measure", "drain", "all"}
    assert set(summary["stalls"]) == {"turns_with_stall", "longest_ms", "turns_with_client_stall"}
    assert set(summary["rates"]) == {
        *("offered_sessions_per_s", "achieved_sessions_per_s", "turns_per_s", "output_tok_per_s", "input_tok_per_s"),
        *("total_tok_per_s", "goodput_turns_per_s", "slo_attainment", "failed_ratio", "dropped_ratio", "canary_failed"),
        *("canary_changed_ratio", "events_per_arrival", "texts_per_s", "fairness_index"),
    }
    assert list(summary["latency"]) == [figure.key for figure in TURN_FIGURES]
    for block in [*summary["latency"].values(), summary["client"]["delay_ms"], summary["client"]["loop_lag_ms"]]:
        assert list(block) == ["count", "mean", "p50", "p90", "p95", "p99", "p999", "min", "max", "intervals"]
        few = [name for name, q in QUANTILES.items() if block[name] is not None and not steady(block["count"], q)]
        assert list(block["intervals"]) == few
    assert set(summary["client"]) == {
        *(
            "delay_ms",
            "loop_lag_ms",
            "gc_pause_ms",
            "longest_pause_ms",
            "cpu_share",
            "steal_share",
            "stamps",
            "reader",
            "readers",
        ),
    }
    assert set(summary["by_class"]) == {"agent", "chat"}
    assert set(summary["by_class"]["chat"]) >= {"latency", "turns"}
    assert (summary["format"], summary["steps"]) == (1, [])
    assert summary["run"].items() >= RUN.items()
    assert summary["servers"][0].items() >= SERVER.items()


def test_every_rate_is_a_count_divided_by_its_window() -> None:
    summary = build(given_by(sixty_seconds(), Slo({"ttft_ms": 40.5994})))
    assert summary["rates"] == {
        "offered_sessions_per_s": 20.0,
        "achieved_sessions_per_s": 20.0,
        "turns_per_s": 1199 / 60,  # the last turn ends in the drain
        "output_tok_per_s": (1200 * 5 - 4) / 60,  # only the first event of the last turn is before the drain
        "input_tok_per_s": 1200 * 100 / 60,
        "goodput_turns_per_s": 10.0,
        "total_tok_per_s": pytest.approx((1200 * 5 - 4) / 60 + 1200 * 100 / 60),
        "slo_attainment": 0.5,
        "fairness_index": 1.0,
        "failed_ratio": 0.0,
        "dropped_ratio": 0.0,
        "canary_failed": None,
        "canary_changed_ratio": None,
        "events_per_arrival": 1.0,
        "texts_per_s": None,
    }
    assert summary["window_s"] == 60.0
    assert summary["tokens_per_event"]["mean"] == 1.0
    assert summary["client"]["cpu_share"] == 0.3  # of the worker with the highest share
    assert (summary["client"]["longest_pause_ms"], summary["client"]["steal_share"]) == (0.4, 0.0)


def test_percentiles_are_exact_from_records_and_approximate_from_sketches() -> None:
    records = sixty_seconds()
    near = build(given_by(records))
    exact = build(given_by(records, values=TurnValues(exact_of(records))))
    assert (near["percentiles_from"], exact["percentiles_from"]) == ("sketches", "records")
    ttft = exact["latency"]["ttft_ms"]
    assert ttft == {
        "count": 1200,
        "mean": pytest.approx(40.5995),
        "p50": 40.599,
        "p90": 41.079,
        "p95": 41.139,
        "p99": 41.187,
        "p999": 41.198,  # one of 1,200 samples is above it
        "min": 40.0,
        "max": 41.199,
        "intervals": {"p999": [41.195, None]},  # no upper limit: 1,200 samples are too few for it
    }
    for name, block in near["latency"].items():
        for key in ("count", "mean", *QUANTILES, "min", "max"):
            value, known = block[key], exact["latency"][name][key]
            assert value == (None if known is None else pytest.approx(known, rel=0.0025)), (name, key)
    assert exact["by_class"]["chat"]["latency"]["ttft_ms"]["count"] == 800
    assert (exact["latency"]["itl_ms"]["p99"], exact["latency"]["itl_ms"]["p999"]) == (10.0, 10.0)
    assert exact["latency"]["connect_ms"]["mean"] is None


def test_percentiles_of_incomplete_records_are_not_exact() -> None:
    records = sixty_seconds()
    assert build(given_by(records, values=TurnValues(exact_of(records[:-1]))))["percentiles_from"] == "sketches"


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=300))
def test_an_exact_block_is_the_nearest_rank_of_all_values(values: list[float]) -> None:
    block = exact_block(np.array(values))
    for name, q in (("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99)):
        placed = sorted(values)[rank(q, len(values)) - 1]
        assert block.statistic(name) == round(placed, 6)
        assert (name in block.intervals) == (len(values) * round(1 - q, 9) < 10)


@pytest.mark.parametrize(("q", "least"), [(0.5, 20), (0.9, 100), (0.95, 200), (0.99, 1000), (0.999, 10_000)])
def test_a_percentile_with_fewer_than_ten_samples_above_is_marked(q: float, least: int) -> None:
    assert (steady(least - 1, q), steady(least, q)) == (False, True)


def test_turns_are_counted_by_phase() -> None:
    warm = turn(phase="warmup", planned_ns=S, failure=Failure.HTTP_429, status=429)
    late = turn(phase="drain", planned_ns=71 * S, turn_index=1, failure=Failure.UNFINISHED, output_tokens=None)
    summary = build(given_by([warm, late, *sixty_seconds(10)]))
    turns = summary["turns"]
    assert (turns["sent"], turns["ok"], turns["failed"]) == (10, 10, 0)
    assert turns["by_phase"]["warmup"]["by_failure"] == {"http_429": 1}
    assert turns["by_phase"]["drain"]["unfinished"] == 1
    assert turns["by_phase"]["drain"]["output_tokens"] is None
    total = turns["by_phase"]["all"]
    assert (total["sent"], total["ok"], total["failed"], total["unfinished"]) == (12, 10, 1, 1)
    assert total["by_status"] == {"200": 11, "429": 1}


def test_without_gates_a_failed_turn_fails_the_run() -> None:
    failed = turn(phase="warmup", planned_ns=S, failure=Failure.CUT)
    assert build(given_by(sixty_seconds(5)))["verdict"]["passed"]
    assert not build(given_by([failed, *sixty_seconds(5)]))["verdict"]["passed"]
    gated = build(given_by([failed, *sixty_seconds(5)], gates=["failed_ratio < 0.01", "p99(ttft_ms) < 100"]))
    assert gated["verdict"]["passed"]
    assert gated["verdict"]["gates"][1] == {
        "gate": "p99(ttft_ms) < 100",
        "value": pytest.approx(40.004),
        "passed": True,
        "answer": "pass",
        "ground": "value",
        "simulated": False,
        **dict.fromkeys(("low", "high", "effective_n")),
        "note": "of 5 samples, fewer than 10 beyond it; 1,000 samples give 10",
    }
    unknown = build(given_by(sixty_seconds(5), gates=["mean(connect_ms) < 100"]))
    assert (unknown["verdict"]["passed"], unknown["verdict"]["gates"][0]["value"]) == (False, None)


def test_a_gate_on_a_class_is_of_the_turns_of_that_class() -> None:
    records = sixty_seconds()
    queries: list[tuple[str, str | None]] = []

    def batches(name: str, class_name: str | None) -> list[Any]:
        queries.append((name, class_name))
        return np.array_split(exact_of(records)(name, class_name), 200)

    texts = [
        "p97(ttft_ms){agent} < 41",
        "mean(ttft_ms){chat} < 41",
        "failed_ratio{agent} == 0",
        "turns_per_s{agent} > 7",
    ]
    exact = exact_of(records)
    document = given_by(records, gates=texts, values=TurnValues(exact, batches))
    gates = build(document)["verdict"]["gates"]
    assert [gate["gate"] for gate in gates] == texts
    assert gates[0]["value"] == np.sort(exact("ttft_ms", "agent"))[rank(0.97, 400) - 1]
    assert gates[1]["value"] == pytest.approx(np.mean(exact("ttft_ms", "chat")))
    assert [gate["value"] for gate in gates[2:]] == [0, 400 / 60]
    assert queries == [("ttft_ms", "agent"), ("ttft_ms", "chat")]
    near = build(replace(document, values=TurnValues(batches=batches)))["verdict"]["gates"]
    assert near[0]["value"] == pytest.approx(gates[0]["value"], rel=0.0025)


def test_rates_of_uncounted_tokens_are_unknown() -> None:
    uncounted = [replace(record, output_tokens=None, input_tokens=None) for record in sixty_seconds(100)]
    gates = ["output_tok_per_s > 1", "mean(tpot_ms) < 1e9", "input_tok_per_s > 1"]
    summary = build(given_by(uncounted, Slo({"tpot_ms": 50}), gates=gates))
    rates = summary["rates"]
    assert (rates["output_tok_per_s"], rates["input_tok_per_s"]) == (None, None)
    assert (rates["goodput_turns_per_s"], rates["slo_attainment"]) == (None, None)
    assert summary["notes"] == [
        "output tokens: 0 of 100 turns reported a usage; output_tok_per_s is unknown",
        "input tokens: 0 of 100 turns reported a usage; input_tok_per_s is unknown",
    ]
    assert [gate["note"] for gate in summary["verdict"]["gates"]] == [
        "output_tok_per_s is not known: no turn reported its output tokens (usage)",
        "tpot_ms is not known: no turn reported its output tokens (usage)",
        "input_tok_per_s is not known: no turn reported its input tokens (usage)",
    ]


@given(lost=st.integers(0, 200), failed=st.booleans())
def test_token_rates_are_of_the_turns_that_reported_their_tokens(lost: int, failed: bool) -> None:
    """Turns that time out after their first token have no usage; other servers leave it out of some answers."""
    failure = Failure.TIMEOUT_TURN if failed else None
    records = sixty_seconds(200)
    without = [replace(record, failure=failure, input_tokens=None, output_tokens=None) for record in records[:lost]]
    summary = build(given_by([*without, *records[lost:]], gates=["output_tok_per_s > 0"]))
    known = lost < 200
    rates, counted = summary["rates"], 200 - lost
    assert rates["input_tok_per_s"] == (pytest.approx(counted * 100 / 60) if known else None)
    assert rates["output_tok_per_s"] == (pytest.approx(counted * 5 / 60) if known else None)
    notes = [note for note in summary["notes"] if "reported a usage" in note]
    assert [note.split(";")[0] for note in notes] == [
        f"{tokens} tokens: {counted} of 200 turns reported a usage" for tokens in ("output", "input") if lost
    ]
    gate = summary["verdict"]["gates"][0]
    assert gate["passed"] == known
    if 0 < lost < 200:
        assert gate["note"] == f"of the {counted} of 200 turns that reported a usage"


def test_remarks_are_counted_and_their_first_example_is_in_a_note() -> None:
    records = sixty_seconds(10)
    records[0] = replace(records[0], remarks=(Remark.ODD_EVENT,))
    records[4] = replace(records[4], remarks=(Remark.ODD_EVENT, Remark.LOW_USAGE))
    first = {"text": "usage: null", "at_s": 1.0, "worker": "w0"}
    summary = build(given_by(records, troubles=Troubles(remarks={"odd_event": FirstExample(**first)})))
    assert summary["turns"]["remarks"] == {
        "odd_event": {"turns": 2, "first": first},
        "low_usage": {"turns": 1, "first": None},
    }
    assert summary["notes"] == [
        f"2 of 10 turns {MEANINGS[Remark.ODD_EVENT]} (first: usage: null)",
        f"1 of 10 turns {MEANINGS[Remark.LOW_USAGE]}",
    ]


@given(
    lengths=st.lists(
        st.tuples(st.sampled_from(["chat", "agent"]), st.integers(1, 500), st.none() | st.integers(1, 500)), max_size=12
    )
)
def test_a_note_names_each_class_with_answers_far_below_their_limits(
    lengths: list[tuple[str, int, int | None]],
) -> None:
    records = [
        replace(record, class_name=name, output_tokens=tokens, max_tokens=limit)
        for record, (name, tokens, limit) in zip(sixty_seconds(), lengths, strict=False)
    ]
    notes = "\n".join(build(given_by(records))["notes"])
    for name in ("chat", "agent"):
        limited = [(tokens, limit) for of, tokens, limit in lengths if of == name and limit is not None]
        tokens, limits = sum(tokens for tokens, _ in limited), sum(limit for _, limit in limited)
        assert (f"the answers of class {name} ended at" in notes) == (2 * tokens < limits)
        assert 2 * tokens >= limits or f"{tokens:,} of {limits:,} tokens" in notes


def test_failed_unfinished_and_dropped_turns_lower_goodput() -> None:
    records = sixty_seconds(8)
    records[0] = replace(records[0], failure=Failure.CUT)
    records[1] = replace(records[1], failure=Failure.UNFINISHED)
    document = given_by(records, Slo({"ttft_ms": 1000}))
    document.counted.tallies.at("measure", "chat").sessions_planned += 2
    document.counted.tallies.at("measure", "chat").sessions_dropped += 2
    rates = build(document)["rates"]
    assert (rates["slo_attainment"], rates["goodput_turns_per_s"]) == (0.6, 0.1)


def test_steps_have_the_keys_of_the_document() -> None:
    records = [replace(record, step=number % 2) for number, record in enumerate(sixty_seconds(100))]
    tallies = TallySet()
    for record in records:
        tallies.at("measure", record.class_name, record.step).turns_begun += 1
        count_turn(tallies, record, stepped(WINDOWS, (0, 2.5)), None)
    summary = build(replace(EMPTY, counted=Counted(tallies, HealthSet(), SECONDS), steps=Steps({0: 2.5, 1: 57.5})))
    assert [(step["step"], step["window_s"], step["turns"]["ok"]) for step in summary["steps"]] == [
        (0, 2.5, 50),
        (1, 57.5, 50),
    ]
    # Each step planned 50 turns; of the 100, 49 ended in the first 2.5 s.
    assert [step["rates"]["turns_per_s"] for step in summary["steps"]] == [49 / 2.5, 51 / 57.5]
    assert set(summary["steps"][0]) - {"step", "users", "sessions_per_s"} <= set(summary)


def test_an_empty_run_has_no_figures() -> None:
    verdict = judge(evidence_by_phase(TallySet(), HealthSet(), {}, RunFacts(stamps="kernel")))
    summary = build(replace(EMPTY, verdict=verdict))
    assert summary["verdict"]["measurement"] == "invalid"
    assert set(summary["rates"].values()) == {None}
    assert {block["count"] for block in summary["latency"].values()} == {0}
    assert (summary["client"]["cpu_share"], summary["client"]["delay_ms"]["max"]) == (None, None)
    assert "INVALID" in details(summary)


def test_tables_of_a_valid_run(golden: Callable[[str, str], None]) -> None:
    records = sixty_seconds()
    records[7] = replace(records[7], failure=Failure.HTTP_5XX, status=503)
    records[9] = replace(records[9], event_ns=array("q", [40 * MS, 340 * MS]), delay_ns=array("q", [30_000, 50_000]))
    gates = ["p99(ttft_ms) < 2000", "failed_ratio < 0.0001", "p999(ttft_ms) < 50", "mean(connect_ms) < 5"]
    document = given_by(records, Slo({"ttft_ms": 41}), gates=gates, values=TurnValues(exact_of(records)))
    golden("console-valid.txt", details(build(document)))
    golden("brief-valid.txt", brief(build(document), "5 users") + "\n")


def table_of(summary: dict[str, Any], key: str) -> Table:
    return next(table for table in run_tables(summary) if table.key == key)


def test_tables_of_several_classes_have_a_row_for_each() -> None:
    records = sixty_seconds()
    summary = build(given_by(records, values=TurnValues(exact_of(records))))
    table = table_of(summary, "classes")
    chat = summary["by_class"]["chat"]
    rows = [row for row in table.rows if row[1] == "chat"]
    equal = {
        name
        for name in chat["latency"]
        if f" {BY_KEY[name].title}," in table.note.partition("Equal")[2].replace(".", ",")
    }
    shown = [figure for figure in HEADLINES if figure.key not in equal]
    measures = [figure.key for figure in shown]
    assert [row[0] for row in rows] == [figure.head() for figure in shown]
    assert len(shown) >= 2
    assert [row[2] for row in rows] == [numbers.number(chat["latency"][measure]["mean"]) for measure in measures]
    assert f"chat {chat['turns']['sent']} sent, {chat['turns']['failed']} failed" in table.note
    alone = summary | {"by_class": {"chat": chat}}
    assert "by class" not in details(alone)


REQUEST = st.fixed_dictionaries(
    {
        "type": st.sampled_from(["GET", "POST", ""]),
        "name": st.text("abc/", min_size=1, max_size=9),
        "sent": st.integers(1, 999),
        "failed": st.integers(0, 9),
        **dict.fromkeys(("p50_ms", "p95_ms", "p99_ms"), st.one_of(st.none(), st.integers(1, 999))),
    }
)


@given(st.lists(REQUEST, max_size=9))
def test_requests_other_than_turns_are_on_the_terminal(requests: list[dict[str, Any]]) -> None:
    sent, failed = (sum(request[key] for request in requests) for key in ("sent", "failed"))
    summary = build(given_by(sixty_seconds(100)))
    summary["other_requests"] = {"sent": sent, "failed": failed, "by_name": requests}
    rows = [line for line in brief(summary).splitlines() if line.startswith("other ")]
    failed_first = sorted(requests, key=lambda request: not request["failed"])
    named = failed_first if len(requests) <= 3 else failed_first[:2]
    for row, request in zip(rows, named, strict=False):
        name = f"{request['type']} {request['name']}".strip()
        assert f" {name}: {request['sent']} sent, {request['failed']} failed; p50 " in row
    more = [f"{len(requests) - len(named)} more; {sent} sent, {failed} failed in all"] if len(requests) > 3 else []
    assert [row.removeprefix("other").strip() for row in rows[len(named) :]] == more
    shown = [row[1:3] for table in run_tables(summary) if table.key == "others" for row in table.rows]
    assert shown == [(request["sent"], request["failed"]) for request in requests]


def test_percentiles_of_few_tasks_and_reads_are_marked() -> None:
    records = [replace(record, delay_ns=array("q", [30_000])) for record in sixty_seconds(100)]
    summary = build(given_by(records))
    seconds = msgspec.to_builtins(exact_block(np.arange(1.0, 6.0)))
    task = dict.fromkeys(("begun", "done", "stalled", "cancelled_turns", "uncounted_turns", "input_per_output"), 0)
    summary["tasks"] = {"agent": task | {"completion_s": seconds, "cached_share": None, "cached_share_by_step": []}}
    (row,) = [line for line in details(summary).splitlines() if "whole task" in line]
    assert row.split("whole task, s")[1].split() == ["3", "3", "~", "5", "~", "5", "~", "1", "5"]
    assert "client delay 0.03 ms ~, event loop lag 0.4 ms ~" in brief(summary)


def test_the_slo_has_the_limits_of_the_classes_and_the_turns_that_missed_each() -> None:
    limits = {"chat": {"ttft_ms": 41.0, "e2e_ms": 1.0}, "agent": {"ttft_ms": 41.0, "e2e_ms": 2.0}}
    records = [replace(record, class_name=("chat", "agent")[i % 2]) for i, record in enumerate(sixty_seconds(20))]
    document = given_by(records, Slo({"ttft_ms": 41, "e2e_ms": 1}))
    counted = replace(document.counted, slo_of=lambda name: limits[name])
    summary = build(replace(document, counted=counted))
    assert summary["slo"]["limits"] == {"ttft_ms": 41.0, "e2e_ms": None}
    assert {name: block["slo"]["limits"] for name, block in summary["by_class"].items()} == limits
    assert summary["slo"]["missed"]["e2e_ms"] == summary["slo"]["turns"] == 20, "in spite of a missed TTFT"
    assert summary["rates"]["slo_attainment"] == summary["slo"]["met"] == 0
    for shown in (brief(summary), details(summary)):
        assert "E2E missed by" not in shown, "a share of all turns, with and without the limit"
    assert re.search(r"chat: TTFT <= 41 ms missed by [\d.]+ %; E2E <= 1 ms missed by 100 %", brief(summary))
    assert re.search(r"agent: TTFT <= 41 ms missed by [\d.]+ %; E2E <= 2 ms missed by 100 %", brief(summary))
    of_class = {row[0]: row for row in table_of(summary, "slo").texts}
    assert of_class["chat"][-1] == "1: missed by 100 %"
    assert of_class["agent"][-1] == "2: missed by 100 %"
    assert of_class["all"][-1] == "by class"


@given(st.dictionaries(st.text("abc", min_size=1), st.integers(1, 50), min_size=1, max_size=6), st.booleans())
def test_no_share_of_an_slo_is_of_turns_without_its_limit(turns: dict[str, int], one_slo: bool) -> None:
    """Classes of any size with one SLO, with a limit each, or with none: in the terminal, each share is of the turns of one SLO."""

    def of_class(index: int, count: int) -> dict[str, Any]:
        limits = {"ttft_ms": 10.0} if one_slo or index % 2 else {"e2e_ms": 20.0}
        return {"slo": {"limits": limits, "turns": count, "met": 0, "missed": dict.fromkeys(limits, count)}}

    by_class = {name: of_class(index, count) for index, (name, count) in enumerate(turns.items())}
    limits = {name: limit for part in by_class.values() for name, limit in part["slo"]["limits"].items()}
    differ = len({tuple(part["slo"]["limits"]) for part in by_class.values()}) > 1
    total = {
        "limits": dict.fromkeys(limits) if differ else limits,
        "turns": sum(turns.values()),
        "met": 0,
        "missed": {name: sum(part["slo"]["missed"].get(name, 0) for part in by_class.values()) for name in limits},
    }
    rates = {"slo_attainment": 0.0, "goodput_turns_per_s": 0.0}
    attained, *lines = slo_lines({"slo": total, "by_class": by_class, "rates": rates})
    assert attained == "0 % of turns met it; goodput 0 turns/s"
    assert all(share == "100 %" for line in lines for share in re.findall(r"missed by (.+?)(?:;|$)", line))
    assert len(lines) == (min(len(turns), 5) if differ else 1)
    # With a class that has no SLO, the run has no share of all turns, and each class with an SLO still has its own.
    some = {"slo": None, "by_class": by_class | {"d": {"slo": None}}, "rates": dict.fromkeys(rates)}
    assert len(slo_lines(some)) == min(len(turns), 5)
    assert slo_lines({"slo": None, "by_class": {"d": {"slo": None}}, "rates": dict.fromkeys(rates)}) == []


@pytest.mark.parametrize(
    ("server", "client", "expected"),
    [
        (0, 0, ["0", "none over 250"]),
        (1, 0, ["1", "300"]),
        (1, 1, ["1; 1 while the client was blocked", "300"]),
        (2, 3, ["2; 3 while the client was blocked", "300"]),
        (0, 2, ["0; 2 while the client was blocked", "none over 250 by the server"]),
    ],
)
def test_stalls_of_server_and_client_in_the_same_turn_are_not_added(
    server: int, client: int, expected: list[str]
) -> None:
    stalls = {
        "turns_with_stall": server,
        "turns_with_client_stall": client,
        "longest_ms": 300.0 if server else None,
    }
    texts = table_of(build(given_by(sixty_seconds(4))) | {"stalls": stalls}, "rates").texts
    (stalled,) = [row[1] for row in texts if row[0].startswith("turns with a stall")]
    (longest,) = [row[1] for row in texts if row[0].startswith("longest gap")]
    assert [stalled, longest] == expected


def test_the_table_by_step_has_rates_tails_and_turns_without_an_end() -> None:
    part = build(given_by(sixty_seconds()))
    turns = {"sent": 5, "ok": 2, "failed": 1, "unfinished": 2}
    step = {name: part[name] for name in ("latency", "rates")} | {"turns": turns, "step": 0, "users": 4}
    table = table_of(part | {"steps": [step]}, "steps")
    row = dict(zip([head_of(each).text for each in table.columns], table.texts[0], strict=True))
    assert (row["failed turns"], row["unfinished turns"], row["Turns, turns/s"]) == ("1", "2", "19.98")
    assert {"TTFT p99, ms", "ITL p99, ms"} <= set(row)


def test_marks_by_class_are_explained_below_each_table() -> None:
    document = build(given_by(sixty_seconds(4)))
    few = {"sent": 4, "ok": 4, "failed": 0, "unfinished": 0}
    of_figure = {"count": 4, "p50": 2.0, "p99": 3.0}
    of_class = {
        name: {"turns": few, "latency": {"lag_ms": of_figure | {"mean": mean}}}
        for name, mean in (("a", 1.0), ("b", 2.0))
    }
    table = table_of(document | {"by_class": of_class}, "other-classes")
    assert any("~" in text for row in table.texts for text in row)
    assert "~:" in table.note


def test_unknown_figures_have_no_text_of_their_own() -> None:
    slo = {"limits": {"ttft_ms": 100}, "turns": 0, "met": 0, "missed": {}}
    document = build(given_by(sixty_seconds(4))) | {"slo": slo, "stalls": {}}
    (shares,) = table_of(document, "slo").rows
    assert shares == ("all", 0, None, None)
    cells = {str(row[0]): row[1] for row in table_of(document, "rates").rows}
    assert cells["turns with a stall (a gap over 250 ms)"] is None


def test_failures_are_listed_once_and_with_the_servers_that_stopped() -> None:
    failed = [replace(record, failure=Failure.HTTP_5XX, status=503) for record in sixty_seconds(5)]
    stopped = {"target": "http://a", "at_s": 7.4, "by_failure": {"connect": 3}}
    text = details(build(given_by(failed)) | {"stopped_answering": [stopped]})
    assert "the server http://a stopped answering at 7.4 s" in text
    assert "5 of 5 turns failed" not in text.partition("\n")[2]


def test_turns_cancelled_before_the_first_token_are_not_reported_as_failed() -> None:
    times: dict[str, Any] = dict.fromkeys(("first_event_ns", "first_ns", "first_visible_ns", "last_ns"))
    ok = [replace(record, finish_reason="cancelled", event_ns=array("q"), **times) for record in sixty_seconds(5)]
    summary = build(given_by(ok))
    assert summary["turns"]["ok"] == 5
    failed = build(given_by([replace(record, failure=Failure.HTTP_5XX, status=503) for record in sixty_seconds(5)]))
    assert "\nlatency: no successful turn has a first token\n" in brief(summary)
    assert "\nlatency: no turn succeeded\n" in brief(failed)
    assert "\nlatency: no successful turn has a first token\n" in details(summary | {"latency": {}})
    assert "\nlatency: no turn succeeded\n" in details(failed | {"latency": {}})


@pytest.mark.parametrize("arm", ["cold", "warming"])
def test_the_short_summary_of_a_warm_run_has_the_run_before(arm: str) -> None:
    means = {"pairs": 120, "before_mean": 1518.0, "after_mean": 411.0, "difference_mean": -1107.0, "ratio_p50": 0.27}
    none = {"pairs": 0, "before_mean": None, "after_mean": None, "difference_mean": None, "ratio_p50": None}
    earlier = {"arm": arm, "run_dir": "run", "only_after": 0, "measures": {"ttft_ms": means, "e2e_ms": none}}
    summary = build(given_by(sixty_seconds(4))) | {"cache": {"arm": "warm", "block_size": 16, "earlier": earlier}}
    (line,) = [line for line in brief(summary).splitlines() if line.startswith("warm run")]
    assert line.split(maxsplit=2)[2] == f"the same turns as run: mean TTFT 411 against 1,518 ms {arm} (120 pairs)"


def test_the_short_summary_has_a_maximum_length_and_a_line_for_each_gate() -> None:
    gates = [f"p99(ttft_ms) < {limit}" for limit in range(1, 9)] + [f"p50(itl_ms) < {limit}" for limit in range(50, 59)]
    server = {"target": "http://server:8000", "requests_running": {"mean": 2.0, "max": 4.0}}
    records = [replace(record, failure=Failure.HTTP_5XX, status=503) for record in sixty_seconds()[:200]]
    document = given_by([*records, *sixty_seconds()[200:]], Slo({"ttft_ms": 41}), gates=gates, servers=[server] * 5)
    lines = brief(build(document), "5 users").splitlines()
    marked = {line.split(": ")[0] for line in lines if line.startswith("gate ")}
    assert marked == {*(f"gate FAILED  {gate}" for gate in gates[:8]), *(f"gate passed  {gate}" for gate in gates[8:])}
    assert lines[1 + len(gates)].startswith("gate "), "the gates follow the headline and the run, failed ones first"
    # With a gate, at most 25 with the bottleneck line, the report's path and the five lines at the end of the log.
    assert len(lines) - len(gates) <= 17
    assert max(map(len, lines)) <= 100
    assert any(line.startswith("server") and "4 more" in line for line in lines)


def test_tables_of_an_invalid_run_on_the_simulator(golden: Callable[[str, str], None]) -> None:
    document = given_by(sixty_seconds(30), run=RUN | {"engine": "simulator"}, servers=())
    counted = document.counted
    counted.health.at("w1", "measure").beat(Beat([80.0] * 60, [12.0], 59.5, 60.0, None))
    counted.health.at("w1", "warmup").beat(Beat([20.0] * 60, [], 1.0, 10.0, None))
    evidence = evidence_by_phase(
        counted.tallies, counted.health, SECONDS, RunFacts(stamps="kernel", workers=2, lost_workers=1)
    )
    summary = build(replace(document, verdict=judge(evidence)))
    text = details(summary)
    golden("console-invalid.txt", text)
    golden("brief-invalid.txt", brief(summary, "20/s Poisson") + "\n")
    deciding = ", ".join(dict.fromkeys(r["code"] for r in summary["verdict"]["reasons"] if r["phase"] == "measure"))
    summary["verdict"]["reasons"].append({"code": "cpu", "phase": "drain", "level": "suspect", "text": "busy"})
    assert f"measurement INVALID: {deciding}" in brief(summary, "").splitlines()
    headline, subject, measurement = text.splitlines()[:3]
    assert headline.startswith("invalid: ")
    assert "INVALID" in measurement
    assert "(simulator, not a real server)" in subject
    assert all("(INVALID)" in line for line in text.splitlines() if line.startswith(("Latency", "Business", "System")))


def test_several_servers_behind_one_address_have_a_line_in_place_of_figures() -> None:
    several = "2 servers behind http://h:8000: name each with --metrics-url; server figures are left out"
    left_out = {"target": "http://h:8000", "scrapes": 240, "window_s": 60.0, "replicas": 2}
    document = build(EMPTY)
    document |= {"servers": [left_out], "window_s": 60.0}
    assert f"server  {several}" in brief(document).splitlines()
    assert several in " ".join(details(document).split())
    assert "Not published" not in details(document)
    both = document | {
        "servers": [left_out, {"target": "http://i:8000", "requests_running": {"mean": 1.8, "max": 4.0}}]
    }
    rows = [row for row in brief(both).splitlines() if row.startswith("server ")]
    assert rows == [f"server  {several}", "server  http://i:8000: running 1.8/4 (gauges: mean/max)"]


def test_a_server_with_speculation_has_a_line_of_its_drafts() -> None:
    document = build(EMPTY)
    drafts = {"accepted_tok_per_s": 219.0, "acceptance_rate": 0.327, "acceptance_by_position": [0.6, 0.25]}
    document |= {
        "servers": [{"target": "http://h:8000", "requests_waiting": {"mean": 1, "max": 2}, "spec_decode": drafts}],
        "window_s": 60.0,
    }
    lines = brief(document).splitlines()
    assert "server       waiting 1/2 (gauges: mean/max)" in lines
    assert "speculation  accepted tok/s 219, drafts accepted 32.7 %, accepted by position 60 %, 25 %" in lines


def test_a_percentile_of_few_samples_counts_with_the_lower_end_of_its_interval() -> None:
    few, many = (Distribution(count=count, p99=61.0, intervals={"p99": [12.0, None]}) for count in (800, 1000))
    assert (few.certain("p99"), many.certain("p99")) == (12.0, 61.0)
    assert Distribution(count=5, p99=61.0).certain("p99") is None
    assert Distribution().certain("p99") is None
