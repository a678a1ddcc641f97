"""Conformity of a run to published rules: a generated corpus of 100 trajectories, and each rule violated."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import virtual
from agent_corpus import corpus
from e2e_runs import scenario
from msgspec.structs import replace

from inferload.results.documents.conformity_document import Conformity
from inferload.results.open_run import OpenRun
from inferload.results.summarise.counts import Counts
from inferload.results.summarise.turns import Turns
from inferload.results.verdict.conformity import CHECKS, conformity
from inferload.results.verdict.first_errors import FirstError, FirstErrors
from inferload.scenario import rule_sets
from inferload.turns.tally import Tally, TallySet

AGENTX = "agentx-harness-1.0.12/agentx"
USERS = 8


def document(path: Path) -> dict[str, Any]:
    return {
        "rules": "agentx",
        "workload": {
            **{"kind": "replay", "path": str(path), "format": "weka", "pacing": "pauses", "max_idle_s": 300},
            **{"max_system_idle_s": 10, "start": {"from_share": 0.25, "to_share": 0.75, "warmup_turns": 10}},
        },
        "arrivals": {"kind": "closed", "users": USERS, "spawn_per_s": 100},
        "phases": {"warmup_s": 1800, "warmup_until": "primed", "measure_s": 900, "drain_s": 600},
        "cache": {"isolate": "session"},
        "seed": 42,
    }


@pytest.fixture(scope="module")
def agentx(tmp_path_factory: pytest.TempPathFactory) -> virtual.VirtualRun:
    folder = tmp_path_factory.mktemp("agentx")
    path = corpus(folder / "corpus.jsonl", 100, turns=50)
    return virtual.run(folder, scenario(folder, **document(path)), "--report")


@pytest.fixture(scope="module")
def opened(agentx: virtual.VirtualRun) -> OpenRun:
    return OpenRun(agentx.run_dir)


def judged(run: OpenRun, counts: Counts) -> Conformity:
    return conformity(counts, Turns.of(run))


def changed(counts: Counts, **changes: Any) -> Counts:
    """Return counts of another scenario. `changes`: its keys, with `__` for dots."""
    other = counts.plan.scenario.changed({key.replace("__", "."): value for key, value in changes.items()})
    return replace(counts, plan=replace(counts.plan, scenario_text=other.resolved_text()))


def counted(counts: Counts, change: Callable[[str, Tally], None]) -> Counts:
    """Return counts with other tallies. `change`: gets the phase of each, and changes it."""
    tallies = TallySet.from_wire(counts.totals.tallies_wire)
    for (phase, *_rest), tally in tallies.items():
        change(phase, tally)
    return replace(counts, totals=replace(counts.totals, tallies_wire=tallies.to_wire()))


def violated(found: Conformity) -> list[str]:
    return [each.rule for each in found.rules if each.result == "violated"]


def test_a_run_of_a_corpus_in_the_published_form_conforms(agentx: virtual.VirtualRun) -> None:
    assert agentx.code == 0, agentx.text
    agentx.check_counts()
    found = agentx.summary["conformity"]
    assert found["conforms"] is True, found["text"]
    by_result = {
        result: [r["rule"] for r in found["rules"] if r["result"] == result]
        for result in ("default changed", "not checked")
    }
    assert by_result == {
        "default changed": ["planned measure phase", "sessions of the trace"],
        "not checked": ["corpus"],
    }
    text = found["text"]
    assert text.startswith(
        "conforms to agentx-harness 1.0.12 agentx: 23 rules checked. defaults changed: planned measure phase: 900 s"
    )
    assert text in " ".join(agentx.text.split())
    (corpus_rule,) = [each for each in found["rules"] if each["rule"] == "corpus"]
    assert agentx.manifest["workload"]["data"]["replay"]["sha256"] in corpus_rule["found"]
    report = (agentx.run_dir / "report.md").read_text()
    assert "Published rules" in report
    assert "coverage of the measure phase" in report


SCENARIOS: dict[str, dict[str, Any]] = {
    "ignore_eos": {"request__ignore_eos": False},
    "recorded_pauses": {"workload__pacing": "recorded"},
    "max_pause_s": {"workload__max_pause_s": 60},
    "max_context_tokens": {"workload__max_context_tokens": 9000},
    "isolate": {"cache__isolate": "run"},
    "max_system_idle_s": {"workload__max_system_idle_s": 20},
    "coverage": {"phases__measure_s": 1200},
}


@pytest.mark.parametrize("key", SCENARIOS)
def test_a_rule_that_the_scenario_violates_is_named(key: str, opened: OpenRun) -> None:
    found = judged(opened, changed(opened.counts, **SCENARIOS[key]))
    assert found.conforms is False
    assert violated(found) == [CHECKS[key].title]
    assert found.text.startswith(f"does not conform to agentx-harness 1.0.12 agentx: {CHECKS[key].title}: ")


def test_without_a_start_within_the_traces_no_user_is_primed(opened: OpenRun) -> None:
    found = judged(opened, changed(opened.counts, workload__start=None, phases__warmup_until=None))
    assert violated(found) == [CHECKS[key].title for key in ("begun", "primed")]


def test_a_rule_that_the_course_of_the_run_violates_is_named(opened: OpenRun) -> None:
    counts = opened.counts
    stopped = replace(counts, course=replace(counts.course, early_by="SIGINT"))
    assert violated(judged(opened, stopped)) == [CHECKS["not_cancelled"].title]
    windows = [
        dataclasses.replace(window, end_ns=window.start_ns + 300_000_000_000) if window.phase == "measure" else window
        for window in counts.course.windows
    ]
    short = judged(opened, replace(counts, course=replace(counts.course, windows=tuple(windows))))
    assert "measure phase: 300 s, wanted at least 900 s" in short.text


@pytest.mark.parametrize(("share", "names"), [(0.01, []), (0.02, ["overflow_ratio"])])
def test_prompts_that_are_too_long_are_at_most_a_hundredth(share: float, names: list[str], opened: OpenRun) -> None:
    errors = FirstErrors()
    errors.add(FirstError("http", 400, "replay", "This model's maximum context length is 4096 tokens", 1, "w"))
    counts = counted(opened.counts, lambda _phase, tally: tally.by_status.update({400: int(share * tally.ended)}))
    totals = replace(counts.totals, errors_wire=errors.to_wire())
    assert violated(judged(opened, replace(counts, totals=totals))) == [CHECKS[name].title for name in names]


def test_failed_turns_of_the_warm_up_and_of_the_measure_phase(opened: OpenRun) -> None:
    found = judged(opened, counted(opened.counts, lambda _phase, tally: setattr(tally, "failed", tally.ok)))
    assert violated(found) == [CHECKS["failed_primers"].title]
    assert "failed turns" in [each.rule for each in found.rules if each.result == "default changed"]


def test_the_sets_differ_where_the_packages_do(opened: OpenRun) -> None:
    """One run, by the rules of each package: AIPerf forbids a limit of each trace's gaps; the harness allows it."""
    by_name = {name: judged(opened, changed(opened.counts, rules=name)) for name in rule_sets.RULE_SETS}
    aiperf, mvp = by_name["aiperf-0.13.0/inferencex-agentx-mvp"], by_name["agentx-harness-1.0.12/inferencex-agentx-mvp"]
    assert violated(aiperf) == [CHECKS["max_idle_s"].title]
    assert mvp.conforms is True
    assert CHECKS["coverage"].title in [each.rule for each in mvp.rules]
    assert CHECKS["coverage"].title not in [each.rule for each in aiperf.rules]
    form = judged(opened, changed(opened.counts, rules="agentperf", slo={"ttft_ms": 5000, "tpot_ms": 50}))
    assert form.conforms is None
    assert form.text.startswith("has the form of AA-AgentPerf methodology: ")
    assert "private: only their form" in form.text


def test_records_or_a_corpus_that_are_missing_are_not_checked(opened: OpenRun, tmp_path: Path) -> None:
    found = conformity(changed(opened.counts, workload__path=str(tmp_path / "gone.jsonl")), None)
    unknown = {each.rule for each in found.rules if each.result == "not checked"}
    assert unknown == {
        CHECKS[key].title for key in ("corpus", "begun", "primed", "coverage", "warmup_turns", "sessions")
    }


def test_each_rule_has_a_check_and_a_source() -> None:
    for made in rule_sets.RULE_SETS.values():
        assert made.read
        assert all(key in CHECKS and made.file(key) for key in (*made.rules, *made.defaults))


def test_a_short_name_is_resolved_if_one_package_has_it() -> None:
    assert rule_sets.rule_set("agentx").name == AGENTX
    with pytest.raises(ValueError, match=r"several packages .*; use one of agentx-harness-1.0.12/.*, aiperf-0.13.0/"):
        rule_sets.rule_set("inferencex-agentx-mvp")
    with pytest.raises(ValueError, match="no such rules; use one of agentx-harness"):
        rule_sets.rule_set("agenty")
