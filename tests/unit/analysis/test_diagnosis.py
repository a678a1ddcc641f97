"""Diagnosis: each rule holds on its own case and is the cause of no other's; sentences, documents, and the page of rules."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import synthetic_run
from hypothesis import given
from hypothesis import strategies as st
from inferload.analysis.data.frames import RunFrames, load
from inferload.analysis.diagnosis.advice import ADVICE
from inferload.analysis.diagnosis.diagnose import (
    Diagnosis,
    causes,
    diagnose,
    document,
    judge,
    run_sentences,
    sentences,
    table,
)
from paths import ROOT

from inferload import cli, rundir
from inferload.bottleneck.evidence import ClientReason, Scrapes, WindowEvidence, max_num_seqs, stream_interval
from inferload.bottleneck.rules import RULES

DOCS = ROOT / "docs" / "report.md"


def scrapes(running: float, capacity: float, kv: float, head: float = np.nan, deferred: float = 0.0) -> Scrapes:
    return Scrapes(*(np.full(40, float(value)) for value in (running, capacity, deferred, kv, head)))


QUIET = WindowEvidence(
    start_s=0.0,
    end_s=30.0,
    target="http://x",
    scrapes=scrapes(4, 0, 0.2),
    max_num_seqs=64,
    cache_tokens=10_000,
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
    client_itl_p50_ms=10.0,
    client_delay_p99_ms=0.2,
    client_cpu_share=0.1,
    tokens_per_event=1.0,
    itl_alone_ms=9.8,
    stream_interval=1,
)

CASES: dict[str, dict[str, Any]] = {
    "kept-up": {},
    "client-bound": {"client_delay_p99_ms": 25.0},
    "front-end-bound": {"tokens_per_event": 1.7, "client_ttft_ms": 90.0},
    "queue-bound": {"scrapes": scrapes(64, 9, 0.5, head=500)},
    "kv-bound": {"scrapes": scrapes(3, 5, 0.55, head=6000)},
    "preemption-thrash": {"preemptions": 40, "scrapes": scrapes(20, 3, 0.98, head=900)},
    "prefill-bound": {"scrapes": scrapes(20, 6, 0.3, head=900)},
    "decode-bound": {"itl_by_running": (10.0, 19.0), "server_itl_ms": 15.0, "scrapes": scrapes(50, 0, 0.6)},
    "cache-miss-bound": {"expected_hit_rate": 0.8, "counted_hit_rate": 0.2, "scrapes": scrapes(40, 0, 0.4)},
    "deferred": {"scrapes": scrapes(10, 0, 0.3, deferred=5.0)},
    "engines-unbalanced": {"engines_kv_spread": 0.6, "scrapes": scrapes(40, 0, 0.4)},
    "speculation": {"mean_acceptance_length": 1.05, "draft_tokens": 4, "scrapes": scrapes(40, 0, 0.4)},
}


def test_every_rule_has_a_case_and_advice() -> None:
    assert {rule.code for rule in RULES} == set(CASES) == set(ADVICE)
    assert all(ADVICE.values())


@pytest.mark.parametrize("code", list(CASES))
def test_a_rule_is_the_cause_of_its_own_case_and_of_no_other(code: str) -> None:
    window = judge(replace(QUIET, **CASES[code]))
    assert window.primary is not None
    assert window.primary.code == code
    assert all(sentence and sentence == sentence.strip() for sentence in window.primary.sentences)


def test_a_cap_that_nobody_told_is_probable() -> None:
    window = judge(replace(QUIET, max_num_seqs=None, scrapes=scrapes(8, 3, 0.4, head=300)))
    assert window.primary is not None
    assert (window.primary.code, window.primary.probable) == ("queue-bound", True)


def test_what_was_not_shown_is_probable() -> None:
    # Nobody knows how many may run, nor how long the head of the queue is.
    unknown = replace(QUIET, max_num_seqs=None, scrapes=scrapes(8, 3, 0.3))
    moving = replace(unknown.scrapes, running=np.arange(40.0))
    (first, *_others) = judge(replace(unknown, scrapes=moving)).findings
    assert (first.code, first.probable) == ("prefill-bound", True)
    full = replace(unknown, scrapes=replace(moving, kv_usage=np.full(40, 0.99)))
    (first, *_others) = judge(full).findings
    assert (first.code, first.probable) == ("kv-bound", True)


def test_where_all_places_are_taken_they_bind() -> None:
    full = judge(replace(QUIET, max_num_seqs=8, scrapes=scrapes(8, 3, 0.9, head=100))).findings[0]
    assert (full.code, full.probable) == ("queue-bound", True)
    running = np.where(np.arange(40) % 4 == 0, 7.0, 8.0)
    mostly = replace(scrapes(8, 3, 0.4, head=100), running=running)
    found = judge(replace(QUIET, max_num_seqs=8, scrapes=mostly)).findings[0]
    assert (found.code, found.probable) == ("queue-bound", True)


def test_places_are_of_each_engine() -> None:
    # Ten run on two engines of eight places each.
    found = judge(replace(QUIET, max_num_seqs=8, engines=2, scrapes=scrapes(10, 3, 0.4, head=9000))).findings[0]
    assert found.code != "queue-bound"
    assert found.probable


@pytest.mark.parametrize(("interval", "blamed"), [(1, True), (4, False), (None, False)])
def test_events_that_are_gathered_on_purpose_blame_nobody(interval: int | None, blamed: bool) -> None:
    window = judge(replace(QUIET, tokens_per_event=4.0, stream_interval=interval))
    assert ("front-end-bound" in [finding.code for finding in window.findings]) == blamed


def test_usage_near_a_half_can_be_full() -> None:
    # One request holds half of the cache, and the next prompt needs more than the other half.
    window = judge(replace(QUIET, max_num_seqs=None, scrapes=scrapes(1, 5, 0.51, head=5200)))
    assert window.primary is not None
    assert window.primary.code == "kv-bound"


def test_a_client_that_is_a_little_late_contributes() -> None:
    window = judge(replace(QUIET, client_delay_p99_ms=6.0, **CASES["queue-bound"]))
    assert [finding.code for finding in window.findings] == ["queue-bound", "client-bound"]


@pytest.mark.parametrize(("level", "first"), [("invalid", "client-bound"), ("suspect", "queue-bound")])
def test_what_the_verdict_says_against_the_client_counts_where_its_percentile_is_not_printed(
    level: str, first: str
) -> None:
    late = (ClientReason("client_delay", level, "the client added up to 107 ms; use more workers"),)
    window = judge(replace(QUIET, client_delay_p99_ms=None, client_reasons=late, **CASES["queue-bound"]))
    assert {finding.code for finding in window.findings} == {"queue-bound", "client-bound"}
    assert window.findings[0].code == first
    sentences = next(finding.sentences for finding in window.findings if finding.code == "client-bound")
    assert sentences == ("the client added up to 107 ms",)


number = st.one_of(st.none(), st.floats(0, 1e6))


figures = st.fixed_dictionaries(
    {"prefill_ms": number, "decode_ms": number, "server_itl_ms": number, "preemptions": st.integers(0, 100)}
)


@given(st.floats(0, 300), st.floats(0, 50), st.floats(0, 1), figures)
def test_any_figures_have_a_diagnosis_that_can_be_said(
    running: float, waiting: float, usage: float, others: dict[str, Any]
) -> None:
    evidence = replace(QUIET, scrapes=scrapes(running, waiting, usage, head=100), **others)
    window = judge(evidence)
    weights = [finding.weight for finding in window.findings]
    assert weights == sorted(weights, reverse=True)
    assert sentences(Diagnosis("http://x", (window,), window, short=False))


def test_nothing_known_is_no_cause() -> None:
    nothing = np.array([], dtype=float)
    window = judge(WindowEvidence(0.0, 30.0, "http://x", Scrapes(nothing, nothing, nothing, nothing, nothing)))
    assert window.primary is None
    assert (
        sentences(Diagnosis("http://x", (window,), window, short=False))[0]
        == "No cause found: the server does not publish the number of waiting requests."
    )


@pytest.mark.parametrize(
    ("variant", "cap"),
    [
        (None, None),
        ({"argv": ["vllm", "serve", "m", "--max-num-seqs", "8"]}, 8),
        ({"argv": ["vllm", "--max-num-seqs=16"]}, 16),
        ({"argv": ["vllm"], "config": {"server": {"scheduler_config": {"max_num_seqs": 24}}}}, 24),
    ],
)
def test_the_cap_comes_from_what_was_deployed(variant: dict[str, Any] | None, cap: int | None) -> None:
    assert max_num_seqs({"variant": variant}) == cap


@pytest.mark.parametrize(
    ("argv", "interval"),
    [(None, None), (["vllm"], 1), (["x", "--stream-interval", "5"], 5), (["x", "--tokens-per-event=4"], 4)],
)
def test_gathering_comes_from_what_was_deployed(argv: list[str] | None, interval: int | None) -> None:
    assert stream_interval({"variant": {"argv": argv}}) == interval


def test_the_report_writes_the_diagnosis(tmp_path: Path) -> None:
    synthetic_run.write(tmp_path / "run", summary=None)
    synthetic_run.write(tmp_path / "other")
    summary = rundir.read_json(tmp_path / "other" / rundir.SUMMARY)
    late = {"phase": "measure", "code": "client_delay", "level": "invalid", "text": "the client was late; use more"}
    summary["verdict"] |= {"measurement": "invalid", "reasons": [late]}
    rundir.write_json(tmp_path / "other" / rundir.SUMMARY, summary)
    assert cli.main(["report", str(tmp_path / "run"), str(tmp_path / "other")]) == 0
    document = rundir.read_json(tmp_path / "run" / rundir.DIAGNOSIS)
    assert synthetic_run.TARGET in document["lines"]
    assert "use 30 s or more for a reliable diagnosis" in "\n".join(document["lines"])
    assert document["servers"][0]["windows"]
    assert "(client-bound)" in "\n".join(rundir.read_json(tmp_path / "other" / rundir.DIAGNOSIS)["lines"])


def test_a_run_without_turns_has_no_diagnosis(tmp_path: Path) -> None:
    synthetic_run.write(tmp_path)
    summary = rundir.read_json(tmp_path / rundir.SUMMARY)
    summary["turns"]["by_phase"]["all"] = {"sent": 0, "ok": 0, "failed": 0, "by_failure": {}}
    rundir.write_json(tmp_path / rundir.SUMMARY, summary)
    assert cli.main(["report", str(tmp_path)]) == 0
    document = rundir.read_json(tmp_path / rundir.DIAGNOSIS)
    assert (document["brief"], document["lines"]) == ("", [])


def test_the_page_of_rules_is_the_table_in_the_code() -> None:
    # Written by: python -m inferload.analysis.diagnosis.diagnose
    assert DOCS.read_text(encoding="utf-8").endswith("\n\n" + table())


def test_a_server_of_a_run_with_failed_turns_did_not_keep_up() -> None:
    window = judge(replace(QUIET, troubled=True))
    assert window.primary is None
    (sentence, *_others) = sentences(Diagnosis("http://x", (window,), window, short=False))
    assert sentence == "No other cause found: no rule holds."


def test_the_headroom_is_of_the_places_and_the_cache() -> None:
    busy = replace(scrapes(30, 0, 0.4), running=np.linspace(10, 48, 40))
    (found,) = judge(
        replace(QUIET, scrapes=busy, rates="3.20 turns/s offered, 3.19/s ended", server_itl_ms=11.0)
    ).findings
    assert found.code == "kept-up"
    assert found.sentences == (
        "3.20 turns/s offered, 3.19/s ended",
        "requests waited for capacity in 0 % of the scrapes",
        "at most 48 of 64 sequence slots were in use (75 %), 29 on average",
        "KV-cache usage was at most 40 %",
        "mean ITL is 11 ms, 9.8 ms in the second with the lowest ITL",
    )


def test_a_queue_that_is_not_published_is_no_headroom() -> None:
    unknown = replace(scrapes(4, 0, 0.2), capacity=np.full(40, np.nan))
    assert judge(replace(QUIET, scrapes=unknown)).primary is None
    (found,) = judge(replace(QUIET, scrapes=unknown, rates="1 turns/s offered, 1/s ended")).findings
    assert not any("waited for capacity" in line for line in found.sentences)


GROWTH = {
    **{
        "lasts_s": 9.0,
        "offered_per_s": 12.0,
        "ended_per_s": 3.2,
        "growth_per_s": 8.8,
        "low_per_s": 8.0,
        "high_per_s": 9.6,
    },
    "step": None,
}


def run_with(path: Path, **changes: Any) -> RunFrames:
    """The small run, its summary changed; without failed turns unless `changes` has some."""
    well = {"failed": 0, "by_failure": {}, "first_errors": {}, "by_phase": {}}
    summary = synthetic_run.SUMMARY | {"turns": synthetic_run.SUMMARY["turns"] | well} | changes
    return load(synthetic_run.write(path, summary))


def test_failed_turns_are_the_first_finding(tmp_path: Path) -> None:
    found = diagnose(
        run_with(tmp_path / "run", turns=synthetic_run.SUMMARY["turns"], growth=GROWTH | {"state": "overloaded"})
    )
    assert [finding.code for finding in found.run] == ["failures", "overload"]
    assert found.run[0].sentences[0] == "1 of 44 turns failed (2.3 %): cut 1"
    assert run_sentences(found.run)[0] == "Turns failed (failures)."
    assert not any(one.primary is not None and one.primary.code == "kept-up" for one in found.servers)
    assert document(found)["run"]["findings"][0]["code"] == "failures"
    assert causes(found)[0].target == "Whole run"


def test_a_killed_run_has_its_failures_too(tmp_path: Path) -> None:
    found = diagnose(load(synthetic_run.write(tmp_path / "run", killed=True)))
    assert found.run[0].sentences[0] == "1 of 44 turns failed (2.3 %): cut 1"


@pytest.mark.parametrize(
    ("state", "code", "probable"), [("overloaded", "overload", False), ("unsettled", "overload", True)]
)
def test_an_open_loop_that_grows_is_overloaded(tmp_path: Path, state: str, code: str, probable: bool) -> None:
    (finding,) = diagnose(run_with(tmp_path / "run", growth=GROWTH | {"state": state})).run
    assert (finding.code, finding.probable) == (code, probable)
    assert finding.sentences[0].startswith(
        "12 turns/s offered, 3.2/s ended; the number of turns in flight grew by 8.8/s"
    )


def test_the_capacity_is_of_turns_that_ended_well(tmp_path: Path) -> None:
    grew = GROWTH | {"state": "overloaded", "step": 2, "failed_per_s": 0.2, "kept_up_per_s": 3.1}
    (finding,) = diagnose(run_with(tmp_path / "run", growth=grew)).run
    assert finding.sentences[0].startswith("in step 2: 12 turns/s offered, 3.2/s ended (0.2/s of them failed); ")
    assert "the capacity for turns of this kind is about 3/s" in finding.sentences
    assert "the highest step without growth offered 3.1 turns/s" in finding.sentences


def test_an_open_loop_without_metrics_can_keep_up(tmp_path: Path) -> None:
    run = replace(run_with(tmp_path / "run", growth=GROWTH | {"state": "kept up"}), servers={})
    (finding,) = diagnose(run).run
    assert finding.code == "kept-up"
    assert diagnose(replace(run, summary=(run.summary or {}) | {"growth": None})).run == ()


def test_an_open_loop_whose_rate_changes_is_not_judged(tmp_path: Path) -> None:
    why = "the rate changes without steps (arrivals.profile.kind linear)"
    (finding,) = diagnose(run_with(tmp_path / "run", growth=None, overload_not_judged=why)).run
    assert (finding.code, finding.sentences) == ("overload-not-judged", (why,))
    assert run_sentences([finding])[0] == "Overload not judged (overload-not-judged)."


def test_a_metrics_page_that_ends_early_is_said(tmp_path: Path) -> None:
    run = run_with(tmp_path / "run")
    (server,) = run.servers.values()
    kept = int(np.searchsorted(run.since_start_s(server.wall_ns), 6.0))
    metrics = {
        name: tuple(replace(one, values=one.values[:kept], unusable=None) for one in several)
        for name, several in server.metrics.items()
    }
    early = replace(
        server, wall_ns=server.wall_ns[:kept], metrics=metrics, restarted=server.restarted[:kept], _grown={}
    )
    (finding,) = diagnose(replace(run, servers={server.target: early})).run
    assert finding.code == "server-gone"
    assert finding.sentences == (
        f"the metrics page of {server.target} last answered at 5.0 s, the load ended at 11.0 s",
    )
    again = replace(server, restarted=np.arange(len(server.wall_ns)) == 12, _grown={})
    (finding,) = diagnose(replace(run, servers={server.target: again})).run
    assert finding.code == "restarted"
    assert "3.0 s" in finding.sentences[0]
