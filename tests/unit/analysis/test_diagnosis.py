"""Diagnosis: each rule on its own case, the whole-run findings, and the generated page of rules."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import synthetic_run
from hypothesis import given
from hypothesis import strategies as st
from inferload.analysis.data import timeline
from inferload.analysis.data.frames import RunFrames, load
from inferload.analysis.data.turn_frames import Events, address_named
from inferload.analysis.diagnosis.advice import ADVICE
from inferload.analysis.diagnosis.client_view import FastestSecond, Queue, same_address
from inferload.analysis.diagnosis.diagnose import Diagnoses, causes, diagnose, document, run_sentences, sentences, table
from inferload.analysis.diagnosis.server_diagnosis import Diagnosis
from msgspec import structs
from paths import ROOT
from window_evidence import changed, window_evidence

from inferload import cli
from inferload.base import rundir
from inferload.base.deployments import Deployment
from inferload.figures.pages import metric_names as names
from inferload.figures.pages.page_kinds import DYNAMO, SGLANG, TGI, VLLM, PageKind
from inferload.results.open_run import OpenRun
from inferload.servers.bottleneck.evidence import (
    ClientReason,
    KvBlocks,
    Scrapes,
    max_num_seqs,
    standing_still,
    stream_interval,
)
from inferload.servers.bottleneck.rules import RULES, judge
from inferload.servers.scrapes_file import ScrapeColumns
from inferload.servers.series import Floats, MetricSeries, ServerSeries, by_target

DOCS = ROOT / "docs" / "reference" / "report.md"


def scrapes(running: float, capacity: float, kv: float, head: float = np.nan, deferred: float = 0.0) -> Scrapes:
    return Scrapes(
        np.arange(40) * 0.75, *(np.full(40, float(value)) for value in (running, capacity, deferred, kv, head))
    )


QUIET = window_evidence(
    scrapes(4, 0, 0.2),
    max_num_seqs=64,
    kv=KvBlocks(usable=625, size=16),
    server="vllm",
    preemptions=0,
    finished=100,
    computed_tok_per_s=100.0,
    generation_tok_per_s=400.0,
    queue_ms=0.1,
    prefill_ms=20.0,
    decode_ms=980.0,
    server_ttft_ms=20.0,
    server_itl_ms=10.0,
    server_cpu_share=0.2,
    client_ttft_ms=21.0,
    client_gap_ms=10.0,
    client_delay_p99_ms=0.2,
    client_cpu_share=0.1,
    tokens_per_event=1.0,
    itl_alone_ms=9.8,
    stream_interval=1,
)


def held(count: int, running: float = 0.0, asleep: bool = False) -> Scrapes:
    """Turns that wait for output at so many of the scrapes."""
    waiting = np.where(np.arange(40) < count, 3.0, 0.0)
    return structs.replace(scrapes(running, 0, 0.2), in_flight=waiting, asleep=np.full(40, asleep))


def deferred_at(count: int) -> Scrapes:
    return structs.replace(scrapes(4, 0, 0.2), deferred=(np.arange(40) < count) * 5.0)


def fetching_at(count: int, capacity: float = 0.0) -> Scrapes:
    """Two requests that fetch KV blocks at so many of the scrapes, where they are deferred."""
    waits = (np.arange(40) < count) * 2.0
    return structs.replace(scrapes(4, capacity, 0.2), deferred=waits, fetching=waits)


FETCHES = {"transfers": 100, "transfer_ms": 150.0, "queue_ms": 300.0, "prefill_ms": 1.0, "decode_ms": 990.0}
CASES: dict[str, dict[str, Any]] = {
    "kept-up": {},
    "client-bound": {"client_delay_p99_ms": 25.0},
    "stream-held": {"events_per_arrival": 20.0, "client_gap_ms": 0.02},
    "network-bound": {"client_ttft_ms": 132.0, "round_trip_ms": 110.0},
    "before-server": {"client_ttft_ms": 90.0, "behind": True},
    "front-end-bound": {"tokens_per_event": 1.7},
    "queue-bound": {"scrapes": scrapes(64, 9, 0.5, head=500)},
    "kv-bound": {"scrapes": scrapes(3, 5, 0.55, head=6000)},
    "preemption-thrash": {"preemptions": 40, "scrapes": scrapes(20, 3, 0.98, head=900)},
    "paused": {"scrapes": held(40)},
    "prefill-bound": {"scrapes": scrapes(20, 6, 0.3, head=900), "queue_ms": 90.0, "prefill_ms": 300.0},
    "decode-bound": {"itl_by_running": (10.0, 19.0), "server_itl_ms": 15.0, "scrapes": scrapes(50, 0, 0.6)},
    "cache-miss-bound": {"expected_hit_rate": 0.8, "counted_hit_rate": 0.2, "scrapes": scrapes(40, 0, 0.4)},
    "tier-load": {"queue_ms": 60.0, "load_ms": 50.0},
    "deferred": {"scrapes": scrapes(10, 0, 0.3, deferred=5.0)},
    "transfer-bound": FETCHES | {"scrapes": fetching_at(20)},
    "engines-unbalanced": {"engines_kv_spread": 0.6, "scrapes": scrapes(40, 0, 0.4)},
    "speculation": {"mean_acceptance_length": 1.05, "draft_tokens": 4, "scrapes": scrapes(40, 0, 0.4)},
}


def test_every_rule_has_a_case_and_advice() -> None:
    assert {rule.code for rule in RULES} == set(CASES) == set(ADVICE)
    assert all(ADVICE.values())


@pytest.mark.parametrize("code", list(CASES))
def test_each_rule_is_the_primary_cause_of_its_own_case_only(code: str) -> None:
    window = judge(changed(QUIET, **CASES[code]))
    assert window.primary is not None
    assert window.primary.code == code
    assert all(sentence and sentence == sentence.strip() for sentence in window.primary.sentences)


RISING = {"itl_by_running": (10.0, 19.0)}
BURSTS = structs.replace(scrapes(4, 0, 0.2), capacity=np.where(np.arange(40) < 4, 5.0, 0.0))

LATE = {"client_ttft_ms": 420.0, "client_reasons": (ClientReason("client_delay", "suspect", "late"),)}

TWO_RANKS = {"server": "vllm", "command": ("vllm", "serve", "-tp", "2")}

# Each threshold of a rule. Of a list: a value that reaches it, and one just short of it.
THRESHOLDS: list[tuple[str, dict[str, Any]]] = [
    ("decode-bound", {"itl_by_running": [(10.0, 11.6), (10.0, 11.5)]}),
    ("decode-bound", {"server_itl_ms": [13.1, 13.0], "itl_alone_ms": 10.0, "load_ratio": 1.4}),
    ("decode-bound", {"server_itl_ms": 20.0, "itl_alone_ms": 10.0, "load_ratio": [1.4, 1.3]}),
    ("decode-bound", {"server_itl_ms": [10.1, 10.0], "slo": {"itl_ms": 10.0}}),
    ("decode-bound", RISING | {"queue_ms": 0.0, "prefill_ms": [199.0, 200.0], "decode_ms": 800.0}),
    ("decode-bound", RISING | {"computed_tok_per_s": [399.0, 400.0]}),
    ("front-end-bound", {"tokens_per_event": [1.06, 1.05]}),
    ("front-end-bound", {"server_cpu_share": [0.91, 0.9]}),
    ("before-server", {"client_ttft_ms": 231.0, "server_ttft_ms": [209.9, 210.0]}),
    ("before-server", {"client_ttft_ms": [30.1, 30.0], "server_ttft_ms": 20.0}),
    ("network-bound", {"client_ttft_ms": 120.0, "round_trip_ms": [50.1, 50.0]}),
    # A busy client hides neither the network nor a known proxy.
    ("network-bound", LATE | {"round_trip_ms": [400.0, None]}),
    ("before-server", LATE | {"behind": [True, False]}),
    ("before-server", LATE | {"client_reasons": [(), LATE["client_reasons"]]}),
    ("stream-held", {"events_per_arrival": [2.01, 2.0], "client_delay_p99_ms": 0.0}),
    # A client that is late by seven gaps can have joined eight events, but not sixteen.
    ("stream-held", {"events_per_arrival": [16.0, 8.0], "client_delay_p99_ms": 70.0}),
    ("cache-miss-bound", {"expected_hit_rate": [0.51, 0.5], "counted_hit_rate": 0.4}),
    ("tier-load", {"queue_ms": 60.0, "prefill_ms": 40.0, "load_ms": [50.1, 50.0]}),
    ("tier-load", TWO_RANKS | {"queue_ms": 60.0, "prefill_ms": 40.0, "load_ms": [100.1, 100.0]}),
    ("tier-load", {"queue_ms": 0.0, "prefill_ms": 12.0, "load_ms": [10.0, 9.9]}),
    ("preemption-thrash", {"preemptions": [10, 9]}),
    ("preemption-thrash", {"preemptions": 10, "finished": [199, 200]}),
    ("queue-bound", {"scrapes": [scrapes(64, 9, 0.5, head=500), scrapes(63, 9, 0.5, head=500)]}),
    ("kv-bound", {"scrapes": [scrapes(3, 5, 0.5, head=5009), scrapes(3, 5, 0.5, head=4992)]}),
    # A cause that is left over: on average, half a request is in prefill.
    ("prefill-bound", CASES["prefill-bound"] | {"prefill_ms": [150.0, 149.0]}),
    ("prefill-bound", CASES["prefill-bound"] | {"queue_ms": [10.0, 9.9]}),
    ("deferred", {"scrapes": [scrapes(4, 0.4, 0.2, deferred=0.11), scrapes(4, 0.4, 0.2, deferred=0.1)]}),
    ("deferred", {"scrapes": [deferred_at(8), deferred_at(7)]}),
    ("transfer-bound", FETCHES | {"transfer_ms": 100.0, "scrapes": [fetching_at(8), fetching_at(7)]}),
    ("transfer-bound", FETCHES | {"transfer_ms": 100.0, "scrapes": [fetching_at(20), fetching_at(20, capacity=1.1)]}),
    # Blocks that have arrived wait until the step ends: a quarter of the time that requests wait, or it is no transfer.
    ("transfer-bound", FETCHES | {"transfer_ms": [75.1, 74.9], "scrapes": fetching_at(20)}),
    ("transfer-bound", FETCHES | {"transfer_ms": [150.0, 149.0]}),
    ("transfer-bound", FETCHES | {"decode_ms": [1199.0, 1200.0]}),
    ("transfer-bound", CASES["transfer-bound"] | {"transfers": [1, 0]}),
    # The queue time of a server that fetches is no queue; a prefill server, which only prefills, is bound only if it is busy.
    ("kept-up", {"queue_ms": 900.0, "transfers": [5, 0]}),
    ("prefill-bound", {"prefill_ms": [210.0, 209.0], "queue_ms": 0.0, "decode_ms": 0.0, "role": "prefill"}),
    ("before-server", {"client_ttft_ms": 420.0, "role": [None, "decode"]}),
    ("cache-miss-bound", CASES["cache-miss-bound"] | {"role": ["prefill", "decode"]}),
    ("engines-unbalanced", {"engines_kv_spread": [0.31, 0.3]}),
    ("client-bound", {"client_delay_p99_ms": [5.1, 5.0]}),
    ("paused", {"scrapes": [held(4), held(3)]}),
    ("paused", {"scrapes": [held(4), held(40, running=1)]}),
    ("paused", {"scrapes": held(40), "client_ttft_ms": [21.0, CASES["before-server"]["client_ttft_ms"]]}),
    ("paused", {"scrapes": [held(40, running=1, asleep=True), held(40, running=1)]}),
    # A long first step, at whose end the request is published: two of three turns are in prefill by its own times.
    ("paused", {"scrapes": held(4), "prefill_ms": [44.0, 46.0]}),
    ("kept-up", {"turns": [10, 9]}),
    ("kept-up", {"queue_ms": [249.0, 250.0], "scrapes": BURSTS}),
    # Requests that waited before the window: those in flight at its begin are at most 20 % of those that finished.
    ("kept-up", {"queue_ms": [900.0, 250.0], "finished": 40, "scrapes": BURSTS}),
    ("kept-up", {"queue_ms": 900.0, "finished": [19, 20]}),
    # Unknown figures are not taken as 0, and a configured interval is not blamed on the front end.
    ("preemption-thrash", {"preemptions": 40, "finished": [100, None]}),
    ("prefill-bound", {"prefill_ms": [900.0, 0.0], "queue_ms": 0.0, "decode_ms": 0.0}),
    ("prefill-bound", {"prefill_ms": 900.0, "queue_ms": [0.0, None], "decode_ms": 100.0}),
    ("prefill-bound", {"prefill_ms": 900.0, "decode_ms": [100.0, None]}),
    ("decode-bound", RISING | {"queue_ms": [0.1, None]}),
    ("decode-bound", RISING | {"prefill_ms": [20.0, None]}),
    ("front-end-bound", {"tokens_per_event": 4.0, "stream_interval": [1, 4]}),
    ("front-end-bound", {"tokens_per_event": 4.0, "stream_interval": [1, None]}),
    ("speculation", {"mean_acceptance_length": [1.29, 1.3], "draft_tokens": 4}),
]


def test_every_rule_has_a_near_situation_in_which_it_does_not_apply() -> None:
    assert {rule.code for rule in RULES} == {code for code, _ in THRESHOLDS}


@pytest.mark.parametrize(("code", "figures"), THRESHOLDS)
def test_a_rule_applies_from_its_threshold(code: str, figures: dict[str, Any]) -> None:
    for at, applies in enumerate((True, False)):
        these = {name: each[at] if isinstance(each, list) else each for name, each in figures.items()}
        assert (code in {finding.code for finding in judge(changed(QUIET, **these)).findings}) == applies


# Probable causes, of incomplete evidence: an unknown number of slots, or prompt of the head of the queue.
MOVING = structs.replace(scrapes(8, 3, 0.3), running=np.arange(40.0))
TIMES = {"queue_ms": 90.0, "prefill_ms": 300.0, "decode_ms": 200.0}
NOT_RUNNING = structs.replace(scrapes(20, 6, 0.3, head=900), running=np.full(40, np.nan))


@pytest.mark.parametrize(
    ("code", "figures"),
    [
        ("prefill-bound", {"max_num_seqs": None, "scrapes": MOVING} | TIMES),
        ("prefill-bound", {"scrapes": NOT_RUNNING} | TIMES),
        (None, {"scrapes": NOT_RUNNING} | TIMES | {"decode_ms": 980.0}),  # no proof of free slots
        ("kv-bound", {"max_num_seqs": None, "scrapes": structs.replace(MOVING, kv_usage=np.full(40, 0.99))} | TIMES),
        ("decode-bound", CASES["decode-bound"] | {"computed_tok_per_s": None}),
        ("decode-bound", CASES["decode-bound"] | {"generation_tok_per_s": None}),
        ("tier-load", CASES["tier-load"] | {"server": "vllm", "command": None}),  # of how many ranks
        ("tier-load", CASES["tier-load"] | {"load_ms": 81.0}),
        (None, {"troubled": True}),  # turns failed
        (None, {"queue_ms": 250.0, "scrapes": BURSTS}),
    ],
)
def test_a_finding_from_incomplete_evidence_is_probable(code: str | None, figures: dict[str, Any]) -> None:
    window = judge(changed(QUIET, **figures))
    found = [(finding.code, finding.probable) for finding in window.findings[:1]]
    assert found == ([] if code is None else [(code, True)])
    why = "mean queue time is 250 ms, but" if figures.get("scrapes") is BURSTS else "no rule holds."
    assert found or f"No bottleneck found: {why}" in sentences(Diagnosis("http://x", window))[0]


@pytest.mark.parametrize(("level", "first"), [("invalid", "client-bound"), ("suspect", "queue-bound")])
def test_a_client_reason_of_the_verdict_is_a_finding(level: str, first: str) -> None:
    late = (ClientReason("client_delay", level, "the client added up to 107 ms; use more workers"),)
    assert judge(changed(QUIET, client_delay_p99_ms=6.0, **CASES["queue-bound"])).findings[1].code == "client-bound"
    window = judge(changed(QUIET, client_delay_p99_ms=None, client_reasons=late, **CASES["queue-bound"]))
    assert {finding.code for finding in window.findings} == {"queue-bound", "client-bound"}
    assert window.findings[0].code == first
    sentences = next(finding.sentences for finding in window.findings if finding.code == "client-bound")
    assert sentences == ("the client added up to 107 ms",)


number = st.one_of(st.none(), st.floats(0, 1e6))


figures = st.fixed_dictionaries(
    {"prefill_ms": number, "decode_ms": number, "server_itl_ms": number, "preemptions": st.integers(0, 100)}
)


@given(st.floats(0, 300), st.floats(0, 50), st.floats(0, 1), figures)
def test_any_figures_give_a_diagnosis_in_words(
    running: float, waiting: float, usage: float, others: dict[str, Any]
) -> None:
    evidence = changed(QUIET, scrapes=scrapes(running, waiting, usage, head=100), **others)
    window = judge(evidence)
    weights = [finding.weight for finding in window.findings]
    assert weights == sorted(weights, reverse=True)
    assert sentences(Diagnosis("http://x", window))


def test_scrapes_without_a_queue_length_are_not_scrapes_without_a_queue() -> None:
    half = np.where(np.arange(40) % 2, np.nan, np.where(np.arange(40) % 8, 0.0, 3.0))
    evidence = changed(QUIET, scrapes=structs.replace(scrapes(4, 0, 0.2), capacity=half))
    assert evidence.waiting_share == 0.25


def test_scrapes_without_running_requests_are_not_an_idle_server(tmp_path: Path) -> None:
    run = run_with(tmp_path / "run")
    gaps = np.where(np.arange(len(scraped(run).wall_ns)) % 2, np.nan, 2.0)
    (diagnosis,) = diagnosed(with_series(run, names.RUNNING, "engine", {"0": gaps})).servers
    assert diagnosis.whole.evidence.itl.itl_by_running is None


@pytest.mark.parametrize(("share", "found"), [(0.6, True), (0.4, False), (None, False)])
def test_seconds_of_loads_are_compared_with_queue_and_prefill(tmp_path: Path, share: float | None, found: bool) -> None:
    run = run_with(tmp_path / "run")
    grown = np.arange(
        len(scraped(run).wall_ns), dtype=float
    )  # a request per scrape: 0.1 s in the queue, 0.3 s of prefill
    values = {names.FINISHED: 1.0, f"{names.QUEUE}_sum": 0.1, f"{names.PREFILL}_sum": 0.3}
    values |= {f"{names.QUEUE}_count": 1.0, f"{names.PREFILL}_count": 1.0}
    for name, each in (values if share is None else values | {names.LOAD_SECONDS: share * 0.4}).items():
        run = with_series(run, name, "engine", dict.fromkeys("01", each / 2 * grown))
    (diagnosis,) = diagnosed(run).servers
    assert ("tier-load" in {finding.code for finding in diagnosis.whole.findings}) == found


@pytest.mark.parametrize("second", [np.nan, 0.0])
def test_an_engine_without_a_queue_length_is_not_an_engine_without_a_queue(tmp_path: Path, second: float) -> None:
    run = run_with(tmp_path / "run")
    for name, values in ((names.KV_CACHE_USAGE, (0.2, 0.2)), (names.WAITING, (3.0, second))):
        each = [np.full(len(scraped(run).wall_ns), value) for value in values]
        run = with_series(run, name, "engine", dict(zip("01", each, strict=True)))
    codes = {finding.code for finding in diagnosed(run).servers[0].whole.findings}
    assert ("engines-unbalanced" in codes) == (second == 0.0)


def test_without_evidence_there_is_no_cause() -> None:
    nothing = np.array([], dtype=float)
    window = judge(window_evidence(Scrapes(nothing, nothing, nothing, nothing, nothing, nothing)))
    assert window.primary is None
    assert (
        sentences(Diagnosis("http://x", window))[0]
        == "No bottleneck found: the server does not publish the number of waiting requests."
    )


@pytest.mark.parametrize(
    ("argv", "slots", "interval"),
    [
        (None, None, None),
        (["vllm"], None, 1),
        (["vllm", "--max-num-seqs", "8", "--stream-interval", "5"], 8, 5),
        (["vllm", "--max-num-seqs=16", "--stream_interval=4"], 16, 4),
        (["vllm", "--max_num_seqs", "16", "--max-num-seqs", "1k"], 1000, 1),
        (["vllm", "--max-num-seqs", "$N", "--config", "x.yaml"], None, None),
    ],
)
def test_options_are_read_as_the_server_reads_them(
    argv: list[str] | None, slots: int | None, interval: int | None
) -> None:
    deployed = Deployment(argv=argv)
    assert (max_num_seqs(deployed), stream_interval(deployed)) == (slots, interval)
    assert max_num_seqs(structs.replace(deployed, config={"server": {"scheduler_config": {"max_num_seqs": 24}}})) == 24


def test_the_report_writes_the_diagnosis(tmp_path: Path) -> None:
    synthetic_run.write(tmp_path / "run", summary=None)
    synthetic_run.write(tmp_path / "other")
    summary = rundir.read_object(tmp_path / "other" / rundir.SUMMARY)
    late = {"phase": "measure", "code": "client_delay", "level": "invalid", "text": "the client was late; use more"}
    summary["verdict"] |= {"measurement": "invalid", "reasons": [late]}
    rundir.write_json(tmp_path / "other" / rundir.SUMMARY, summary)
    assert cli.main(["report", str(tmp_path / "run"), str(tmp_path / "other")]) == 0
    document = rundir.read_object(tmp_path / "run" / rundir.DIAGNOSIS)
    assert synthetic_run.TARGET in document["lines"]
    assert document["servers"][0]["history"]
    lines = "\n".join(rundir.read_object(tmp_path / "other" / rundir.DIAGNOSIS)["lines"])
    assert "(client-bound)" in lines
    assert "use 30 s or more for a reliable diagnosis" in lines


def test_a_run_without_turns_has_no_diagnosis(tmp_path: Path) -> None:
    synthetic_run.write(tmp_path)
    summary = rundir.read_object(tmp_path / rundir.SUMMARY)
    summary["turns"]["by_phase"]["all"] = {"sent": 0, "ok": 0, "failed": 0, "unfinished": 0}
    rundir.write_json(tmp_path / rundir.SUMMARY, summary)
    assert cli.main(["report", str(tmp_path)]) == 0
    document = rundir.read_object(tmp_path / rundir.DIAGNOSIS)
    assert (document["brief"], document["lines"]) == ("", [])


def test_the_rules_in_the_docs_are_generated_from_the_code() -> None:
    # Written by: python -m inferload.analysis.diagnosis.diagnose
    assert DOCS.read_text(encoding="utf-8").endswith("\n\n" + table())


def test_headroom_is_of_sequence_slots_and_kv_cache() -> None:
    busy = structs.replace(scrapes(30, 0, 0.4), running=np.linspace(10, 48, 40))
    (finding,) = judge(
        changed(QUIET, scrapes=busy, rates="3.20 turns/s offered, 3.19/s ended", server_itl_ms=11.0)
    ).findings
    assert finding.code == "kept-up"
    assert finding.sentences == (
        "3.20 turns/s offered, 3.19/s ended",
        "requests waited for capacity in 0 % of the scrapes",
        "at most 48 of 64 sequence slots were in use (75 %), 29 on average",
        "KV-cache usage was at most 40 %",
        "mean ITL is 11 ms, 9.8 ms in the second with the lowest ITL",
    )
    (unknown,) = judge(changed(QUIET, max_num_seqs=None, scrapes=scrapes(8, 0, 0.4))).findings
    assert "at most 8 requests ran, 8 on average; max-num-seqs is not known" in unknown.sentences


def test_an_unpublished_queue_gives_no_headroom() -> None:
    unknown = structs.replace(scrapes(4, 0, 0.2), capacity=np.full(40, np.nan))
    assert judge(changed(QUIET, scrapes=unknown)).primary is None
    (finding,) = judge(changed(QUIET, scrapes=unknown, rates="1 turns/s offered, 1/s ended")).findings
    assert not any("waited for capacity" in line for line in finding.sentences)


GROWTH = {"lasts_s": 9.0, "offered_per_s": 12.0, "ended_per_s": 3.2, "step": None}
GROWTH |= {"growth_per_s": 8.8, "low_per_s": 8.0, "high_per_s": 9.6}


def diagnosed(run: RunFrames) -> Diagnoses:
    return diagnose(run, timeline.build(run))


def run_with(path: Path, **changes: Any) -> RunFrames:
    """The synthetic run with a changed summary, without failed turns unless `changes` has some."""
    well = {"failed": 0, "by_failure": {}, "first_errors": [], "by_phase": {}}
    summary = synthetic_run.SUMMARY | {"turns": synthetic_run.SUMMARY["turns"] | well} | changes
    return load(OpenRun(synthetic_run.write(path, summary)))


def scraped(run: RunFrames) -> ServerSeries:
    return next(iter(run.servers.values()))


def with_series(run: RunFrames, name: str, label: str, values: dict[str, Floats]) -> RunFrames:
    """Return the run with another metric at its server: a series for each value of a label."""
    series = tuple(MetricSeries({label: text}, each) for text, each in values.items())
    server = replace(scraped(run), metrics=dict(scraped(run).metrics) | {name: series})
    return replace(run, servers={server.target: server})


def test_fewer_hits_than_an_unlimited_cache_would_have_are_a_finding(tmp_path: Path) -> None:
    tokens = dict.fromkeys(("turns", "input_tokens", "cacheable_tokens", "cached_tokens"), 0)
    cache = {
        "expected": tokens | {"hit_rate": 0.8, "notes": ["a server has 2 engines"]},
        "counted": {"queries": 4, "hits": 1, "hit_rate": 0.25},
    }
    (server,) = diagnosed(run_with(tmp_path / "run", cache=cache)).servers
    (finding,) = [finding for finding in server.whole.findings if finding.code == "cache-miss-bound"]
    assert finding.sentences == (
        "25 % of the prompt tokens were prefix-cache hits; an unlimited cache would have had 80 %",
        "these rates are approximate: a server has 2 engines",
    )
    small = cache | {"expected": tokens | {"hit_rate": 0.8, "engine_hit_rate": 0.3}}
    (server,) = diagnosed(run_with(tmp_path / "small", cache=small)).servers
    (finding,) = [finding for finding in server.whole.findings if finding.code == "cache-miss-bound"]
    assert finding.sentences[0].endswith("would have had 80 %, the memory of the engine about 30 %")
    loaded = cache | {"counted": {"queries": 4, "hits": 1, "hit_rate": 0.25, "loaded": 2}}  # 75 % of all tiers
    for name, other in (("unknown", cache | {"expected": None}), ("loaded", loaded)):
        (server,) = diagnosed(run_with(tmp_path / name, cache=other)).servers
        assert "cache-miss-bound" not in {finding.code for finding in server.whole.findings}


@pytest.mark.parametrize(
    ("gate", "attainment", "missed"),
    [
        ({"gate": "p95(ttft_ms){chat} < 100", "passed": False, "answer": "fail"}, None, True),
        ({"gate": "slo_attainment > 0.9", "passed": False, "answer": "fail"}, None, True),
        ({"gate": "p95(ttft_ms) < 100", "passed": False, "answer": "inconclusive"}, None, False),
        ({"gate": "p95(ttft_ms) < 900", "passed": True, "answer": "pass"}, 0.97, False),
        ({"gate": "turns_per_s > 900", "passed": False, "answer": "fail"}, None, False),
        ({"gate": "turns_per_s > 9", "passed": True, "answer": "pass"}, 0.2, True),
    ],
)
def test_missed_latencies_are_known_to_the_diagnosis(
    tmp_path: Path, gate: dict[str, Any], attainment: float | None, missed: bool
) -> None:
    verdict = synthetic_run.SUMMARY["verdict"] | {"gates": [gate | {"value": 674.0}]}
    rates = synthetic_run.SUMMARY["rates"] | {"slo_attainment": attainment}
    (server,) = diagnosed(run_with(tmp_path / "run", verdict=verdict, rates=rates)).servers
    assert bool(server.whole.evidence.run.missed) == missed


@pytest.mark.parametrize(
    ("page", "figures", "code", "holds"),
    [
        (VLLM, (0, 0, 0.1), "paused", True),
        (VLLM, (2, 0, 0.1), "paused", True),  # as after /pause?mode=keep
        (SGLANG, (0, 0, 0.1), "paused", False),  # requests in prefill are not among the running ones
        (TGI, (0, 0, np.nan), "paused", False),
        (VLLM, (8, 3, 0.1), "queue-bound", True),
        (DYNAMO, (8, 3, np.nan), "queue-bound", False),  # requests in flight, of which three wait in its queue
    ],
)
def test_running_requests_are_what_the_page_of_a_server_means_by_them(
    tmp_path: Path, page: PageKind, figures: tuple[float, ...], code: str, holds: bool
) -> None:
    run = run_with(tmp_path / "run")
    gauges = zip((names.RUNNING, names.WAITING, names.KV_CACHE_USAGE), figures, strict=True)
    for name, value in (*gauges, (names.PROMPT_TOKENS, 9.0), (names.GENERATION_TOKENS, 9.0)):
        run = with_series(run, name, "engine", {"0": np.full(len(scraped(run).wall_ns), value)})
    hanging = run.turns.with_columns({"first_s": run.turns["sent_s"] + 9.0})
    run = replace(run, turns=hanging, servers={synthetic_run.TARGET: replace(scraped(run), page=page)})
    assert (code in {finding.code for finding in diagnosed(run).servers[0].whole.findings}) == holds


@given(st.integers(3, 30), st.integers(0, 40), st.sampled_from(["running", "tokens"]))
def test_a_server_stands_still_if_nothing_changes_for_ten_seconds(lasts: int, changes: int, what: str) -> None:
    at_s = np.arange(lasts + 1.0)
    each = {"running": np.full(len(at_s), 3.0), "tokens": np.full(len(at_s), 900.0)}
    each[what][changes:] += 1
    before, after = at_s < changes, at_s >= changes
    expected = before & (before.sum() > 10) | after & (after.sum() > 10)
    assert standing_still(at_s, *each.values()).tolist() == expected.tolist()
    assert not standing_still(at_s, each["running"], at_s * np.nan).any()
    assert not standing_still(at_s, 0 * at_s, each["tokens"]).any()


def test_failed_turns_are_the_first_finding(tmp_path: Path) -> None:
    diagnosis = diagnosed(
        run_with(tmp_path / "run", turns=synthetic_run.SUMMARY["turns"], growth=GROWTH | {"state": "overloaded"})
    )
    assert [finding.code for finding in diagnosis.run] == ["failures", "overload"]
    course = "first failure at 8.5 s (10:36:48 UTC)"
    assert diagnosis.run[0].sentences[0] == f"1 of 44 turns failed (2.3 %): cut 1; {course}"
    assert diagnosis.run[0].brief.startswith(f"failures: {diagnosis.run[0].sentences[0]}; cut 200: ")
    assert run_sentences(diagnosis.run)[0] == "Turns failed (failures)."
    assert not any(server.primary is not None and server.primary.code == "kept-up" for server in diagnosis.servers)
    assert document(diagnosis)["run"]["findings"][0]["code"] == "failures"
    assert causes(diagnosis)[0].target == "Whole run"


@pytest.mark.parametrize(
    ("failed", "code", "probable"),
    [
        ({"http_4xx": 1}, "refused", False),
        ({"server_error": 5}, "refused", True),  # the first message says so
        ({"http_4xx": 1, "cut": 1}, "failures", False),
    ],
)
def test_turns_that_are_refused_at_any_load_say_nothing_about_the_server(
    tmp_path: Path, failed: dict[str, int], code: str, probable: bool
) -> None:
    first = [{"failure": "server_error", "status": 200, "text": "the prompt is too long", "at_s": 1.0}]
    counts = {"ok": 42, "failed": sum(failed.values()), "by_failure": failed, "by_status": {"400": 1}, "by_phase": {}}
    counts["first_errors"] = first * ("server_error" in failed)
    diagnosis = diagnosed(run_with(tmp_path / "run", turns=synthetic_run.SUMMARY["turns"] | counts))
    (finding,), (server,) = diagnosis.run, diagnosis.servers
    assert (finding.code, finding.probable) == (code, probable)
    assert any("refused at any load" in line for line in finding.sentences)
    assert (server.primary is None) == (code == "failures")


def test_a_few_turns_do_not_show_that_a_server_kept_up(tmp_path: Path) -> None:
    turns = synthetic_run.SUMMARY["turns"] | {"ok": 9, "failed": 0, "by_failure": {}, "by_phase": {}}
    run = run_with(tmp_path / "run", turns=turns, growth=GROWTH | {"state": "kept up"})
    assert (
        sentences(diagnosed(run).servers[0])[0] == "No bottleneck found: 9 turns ended well, and a statement needs 10."
    )
    assert not diagnosed(replace(run, servers={})).run


@pytest.mark.parametrize(
    ("gap_s", "streams_s", "found"), [(1.0, 0.8, [("serial", False)]), (1.0, 0.1, [("serial", True)]), (0.1, 0.8, [])]
)
def test_requests_that_wait_for_each_other_are_recognised_without_a_metrics_page(
    tmp_path: Path, gap_s: float, streams_s: float, found: list[tuple[str, bool]]
) -> None:
    run = run_with(tmp_path / "run")
    at_s = np.arange(len(run.turns), dtype=float)
    first_s = gap_s * (at_s + 1) - streams_s
    last_s = first_s + streams_s
    times = {"sent_s": 0.1 * at_s, "first_s": first_s, "last_s": last_s, "closed_s": last_s}
    alone = replace(run, turns=run.turns.with_columns(times), servers={})
    assert [(finding.code, finding.probable) for finding in diagnosed(alone).run] == found


@pytest.mark.parametrize(
    ("page", "finished", "reason", "codes"),
    [
        (VLLM, 44, "length", ["failures", "failed-between"]),
        (VLLM, 34, "abort", ["failures"]),
        (VLLM, 34, "error", ["failures"]),
        (SGLANG, 44, "length", ["failures"]),  # it counts those that it aborted, too
    ],
)
def test_failures_that_the_server_counts_as_finished_name_what_is_between(
    tmp_path: Path, page: PageKind, finished: int, reason: str, codes: list[str]
) -> None:
    turns = synthetic_run.SUMMARY["turns"] | {"ok": 34, "failed": 10, "by_failure": {"http_5xx": 10}, "by_phase": {}}
    run = run_with(tmp_path / "run", turns=turns)
    counts = {
        name: np.linspace(0, count, len(scraped(run).wall_ns))
        for name, count in (("stop", finished), (reason, 44 - finished))
    }
    server = replace(scraped(with_series(run, names.FINISHED, "finished_reason", counts)), page=page)
    found = {finding.code: finding.probable for finding in diagnosed(replace(run, servers={server.target: server})).run}
    assert found == {code: code == "failed-between" for code in codes}  # other clients may have sent as many requests


@given(st.lists(st.tuples(st.floats(0, 20), st.floats(0, 9)), max_size=30))
def test_turns_are_held_from_a_second_on(turns: list[tuple[float, float]]) -> None:
    sent, lasts = np.array(sorted(turns)).reshape(-1, 2).T
    at_s = np.arange(0, 30, 0.37)
    expected = [sum(sent + 1 <= at) - sum((sent + 1 <= at) & (sent + lasts - 0.5 <= at)) for at in at_s]
    assert Queue(sent, sent + lasts, sent, 9.0).held(at_s).tolist() == expected


def test_a_killed_run_has_the_failures_finding(tmp_path: Path) -> None:
    diagnosis = diagnosed(load(OpenRun(synthetic_run.write(tmp_path / "run", killed=True))))
    assert diagnosis.run[0].sentences[0] == "1 of 44 turns failed (2.3 %): cut 1; last success at 11.8 s"


OFFERED = "12 turns/s offered, 3.2/s ended"


@pytest.mark.parametrize(
    ("changes", "code", "probable", "texts"),
    [
        (
            {"state": "overloaded"},
            "overload",
            False,
            [f"{OFFERED} in 9 s; the number of turns in flight grew by 8.8/s"],
        ),
        ({"state": "unsettled"}, "overload", True, [f"{OFFERED} in 9 s; "]),
        ({"state": "undecided"}, "overload-undecided", False, [f"{OFFERED} in 9 s; "]),
        (
            {"state": "overloaded", "step": 2, "failed_per_s": 0.2, "kept_up_per_s": 3.1},
            "overload",
            False,
            [
                f"in step 2: {OFFERED} (0.2/s of them failed) in 9 s; ",
                "the capacity for turns of this kind is about 3/s",
                "the highest step without growth offered 3.1 turns/s",
            ],
        ),
    ],
)
def test_growing_turns_in_flight_are_overload(
    tmp_path: Path, changes: dict[str, Any], code: str, probable: bool, texts: list[str]
) -> None:
    diagnosis = diagnosed(run_with(tmp_path / "run", growth=GROWTH | changes))
    (finding,) = diagnosis.run
    assert (finding.code, finding.probable) == (code, probable)
    for sentence, text in zip(finding.sentences, texts, strict=False):
        assert sentence.startswith(text)
    assert any("the capacity" in sentence for sentence in finding.sentences) == (changes["state"] == "overloaded")
    assert not any(found.code == "kept-up" for server in diagnosis.servers for found in server.whole.findings)


def test_an_open_loop_without_metrics_can_have_kept_up_or_is_not_judged(tmp_path: Path) -> None:
    run = replace(run_with(tmp_path / "run", growth=GROWTH | {"state": "kept up"}), servers={})
    assert [finding.code for finding in diagnosed(run).run] == ["kept-up"]
    assert run.summary is not None
    why = "the rate changes without steps (arrivals.profile.kind linear)"
    for reason, found in ((None, []), (why, ["Overload not judged (overload-not-judged).", f"T{why[1:]}."])):
        unknown = structs.replace(run.summary, growth=None, overload_not_judged=reason)
        assert run_sentences(diagnosed(replace(run, summary=unknown)).run) == found


def test_a_metrics_page_that_stops_or_restarts_is_a_finding(tmp_path: Path) -> None:
    run = run_with(tmp_path / "run")
    (server,) = run.servers.values()
    count = int(np.searchsorted(run.since_start_s(server.wall_ns), 6.0))
    metrics = {
        name: tuple(structs.replace(series, values=series.values[:count], unusable=None) for series in several)
        for name, several in server.metrics.items()
    }
    early = replace(server, wall_ns=server.wall_ns[:count], metrics=metrics, restarted=server.restarted[:count])
    (finding,) = diagnosed(replace(run, servers={server.target: early})).run
    assert finding.code == "server-gone"
    assert finding.sentences == (
        f"the metrics page of {server.target} last answered at 5.0 s, the load ended at 11.0 s",
    )
    assert run.summary is not None
    lasts_s = next(span.end_s - span.start_s for span in run.phases if span.phase == "measure" and span.end_s)
    for last_s, codes in ((lasts_s, ["server-gone"]), (lasts_s / 2, [])):  # it joined, and died; it left
        entries = [structs.replace(run.summary.servers[0], target=server.target, seen_s=[0.0, last_s])]
        summary = structs.replace(run.summary, servers=entries)
        found = diagnosed(replace(run, summary=summary, servers={server.target: early})).run
        assert [finding.code for finding in found] == codes
    entries = [structs.replace(run.summary.servers[0], target="http://other")]  # it left before the measure phase
    gone = replace(run, summary=structs.replace(run.summary, servers=entries), servers={server.target: early})
    assert not diagnosed(gone).run
    again = replace(server, restarted=np.arange(len(server.wall_ns)) == 12)
    (finding,) = diagnosed(replace(run, servers={server.target: again})).run
    assert finding.code == "restarted"
    assert "3.0 s" in finding.sentences[0]


def test_a_router_has_no_diagnosis_and_is_cited_for_requests_that_wait_before_the_server(tmp_path: Path) -> None:
    run = run_with(tmp_path / "run")
    columns = ScrapeColumns()
    for at_s in range(13):
        for name, value in (("smg_worker_retries_total", 3.0 * at_s), ("smg_router_requests_total", 8.0 * at_s)):
            at_ns = synthetic_run.START_WALL_NS + at_s * synthetic_run.NS
            columns.append(at_ns, "http://router/metrics", name, (("endpoint", "chat"),), value)
    diagnoses = diagnosed(replace(run, servers=dict(run.servers) | by_target([columns.to_table()])))
    (server,) = diagnoses.servers
    assert server.target == synthetic_run.TARGET
    routers = server.whole.evidence.client.routers
    assert routers == ("the page of http://router/metrics has 27 retries in these 9 s",)
    (waits,) = [
        f
        for f in judge(changed(QUIET, **CASES["before-server"], routers=routers)).findings
        if f.code == "before-server"
    ]
    assert routers[0] in waits.sentences


def test_several_servers_behind_one_address_have_no_diagnosis(tmp_path: Path) -> None:
    run = run_with(tmp_path / "run")
    (server,) = run.servers.values()
    diagnoses = diagnosed(replace(run, servers={server.target: replace(server, metrics={}, replicas=2)}))
    text = f"2 servers behind {server.target}: name each with --metrics-url; server figures are left out"
    assert diagnoses.servers == ()
    known = document(diagnoses)
    assert known["left_out"] == {server.target: text}
    assert known["lines"] == [server.target, f"  {text}."]
    assert known["brief"] == text


@pytest.mark.parametrize(
    ("server", "target", "same"),
    [
        ("http://127.0.0.1:8000", "http://localhost:8000", True),
        ("http://127.0.0.1:8000", "http://127.0.0.1:8001", False),
        ("http://10.0.0.1:8000", "http://10.0.0.1:8000/prefix", True),
        ("http://10.0.0.1:8000", "http://gateway:8000", False),
    ],
)
def test_names_of_one_address_are_the_same(server: str, target: str, same: bool) -> None:
    assert same_address(server, target) == same


@pytest.mark.parametrize(
    ("named", "address"),
    [
        ("10.0.0.1:8000", "http://10.0.0.1:8000"),
        ("http://10.0.0.1:8000/metrics", "http://10.0.0.1:8000"),
        ("https://10.0.0.1/", "https://10.0.0.1"),
        ("10.0.0.1:8000, 10.0.0.2:8000", "http://10.0.0.2:8000"),  # nginx after a retry
        ("[::1]:8000", "http://[::1]:8000"),
    ],
)
def test_a_header_names_the_server_of_a_turn(named: str, address: str) -> None:
    assert address_named(named) == address


def streams(slowness: list[float], users: list[int], gap_s: float = 0.02) -> Events:
    """Events of users that stream all the time. `slowness`, `users`: of each of as many periods of two seconds."""
    at_s: list[float] = []
    for period, (factor, number_of_users) in enumerate(zip(slowness, users, strict=True)):
        times = np.arange(2 * period, 2 * period + 2, gap_s * factor)[1:]
        at_s += [at for at in times for _ in range(number_of_users)]
    gaps_ms = [1000 * gap_s * slowness[min(int(at // 2), len(slowness) - 1)] for at in at_s]
    return Events(np.array(at_s), np.ones(len(at_s)), np.array(gaps_ms), np.zeros(len(at_s), dtype=np.int32))


@given(st.lists(st.floats(1, 4), min_size=2, max_size=6), st.integers(1, 20))
def test_a_slow_second_of_a_constant_load_is_not_the_effect_of_the_load(slowness: list[float], users: int) -> None:
    events = streams(slowness, [users] * len(slowness))
    fastest = FastestSecond.of(events, 1.0)
    assert fastest is not None
    assert fastest.itl_ms == pytest.approx(20 * min(slowness), rel=0.01)
    for start_s in range(2 * len(slowness)):
        ratio = fastest.load_ratio(events.between(start_s, start_s + 1), start_s, start_s + 1)
        assert ratio is not None
        assert ratio < 1.3
    assert fastest.load_ratio(events.between(1, 1), 1, 1) is None


@given(st.integers(1, 10), st.integers(2, 8))
def test_a_slow_second_of_a_higher_load_is_its_effect(users: int, factor: int) -> None:
    events = streams([1, 3], [users, factor * users])
    fastest = FastestSecond.of(events, 1.0)
    assert fastest is not None
    assert fastest.load_ratio(events.between(2, 4), 2, 4) == pytest.approx(factor, rel=0.15)
