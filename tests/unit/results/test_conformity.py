"""Conformity of a run to published rules: a generated corpus of 100 trajectories, and each rule violated."""

import dataclasses
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import virtual
from agent_corpus import corpus
from e2e_runs import scenario
from msgspec.structs import replace
from small_scenario import small

from inferload.results.documents.verdict_document import Conformity
from inferload.results.open_run import OpenRun
from inferload.results.summarise.counts import Counts
from inferload.results.summarise.turns import Turns
from inferload.results.verdict.conformity import CHECKS, conformity
from inferload.results.verdict.first_errors import FirstError, FirstErrors
from inferload.scenario import rule_sets
from inferload.turns.tally import TallySet

AGENTX = "agentx-harness-1.0.12/agentx"
USERS = 3


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
        "server": {"interval_s": 5},  # a virtual run costs little but its scrapes
        "seed": 42,
    }


@pytest.fixture(scope="module")
def agentx(tmp_path_factory: pytest.TempPathFactory) -> virtual.VirtualRun:
    folder = tmp_path_factory.mktemp("agentx")
    path = corpus(folder / "corpus.jsonl", 100, turns=30)
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
        "conforms to agentx-harness-1.0.12/agentx: 23 rules checked. defaults changed: planned measure phase: 900 s"
    )
    assert text in " ".join(agentx.text.split())
    (corpus_rule,) = [each for each in found["rules"] if each["rule"] == "corpus"]
    assert agentx.manifest["workload"]["data"]["replay"]["sha256"] in corpus_rule["found"]
    report = (agentx.run_dir / "report.md").read_text()
    assert "Published rules" in report
    assert "coverage of the measure phase" in report


def stopped(counts: Counts) -> Counts:
    return replace(counts, course=replace(counts.course, early_by="SIGINT"))


def short(counts: Counts) -> Counts:
    """Return counts of a measure phase of 300 s."""
    windows = [
        dataclasses.replace(window, end_ns=window.start_ns + 300_000_000_000) if window.phase == "measure" else window
        for window in counts.course.windows
    ]
    return replace(counts, course=replace(counts.course, windows=tuple(windows)))


def failed(counts: Counts, share: float = 1.0, text: str = "") -> Counts:
    """Return counts in which a share of all turns failed with status 400. `text`: of the first of them."""
    errors = FirstErrors()
    errors.add(FirstError("http", 400, "replay", text, 1, "w"))
    tallies = TallySet.from_wire(counts.totals.tallies_wire)
    for _key, tally in tallies.items():
        tally.failed = int(share * tally.ok)
        tally.ok -= tally.failed
        tally.by_status[400] = tally.failed
    return replace(counts, totals=replace(counts.totals, tallies_wire=tallies.to_wire(), errors_wire=errors.to_wire()))


LONG = "This model's maximum context length is 4096 tokens"
OTHER = "no such model"


@pytest.mark.parametrize(
    ("keys", "change"),
    [
        ("ignore_eos", {"request__ignore_eos": False}),
        ("recorded_pauses", {"workload__pacing": "recorded"}),
        ("recorded_pauses", {"workload__speed": 2}),
        ("max_pause_s", {"workload__max_pause_s": 60}),
        ("max_context_tokens", {"workload__max_context_tokens": 9000}),
        ("isolate", {"cache__isolate": "run"}),
        ("max_system_idle_s", {"workload__max_system_idle_s": 20}),
        ("coverage", {"phases__measure_s": 1200}),
        ("begun primed", {"workload__start": None, "phases__warmup_until": None}),
        ("not_cancelled", stopped),
        ("least_measured_s", short),
        ("failed_primers overflow_ratio", partial(failed, text=LONG)),
        ("failed_primers", partial(failed, share=0.5, text=OTHER)),
    ],
)
def test_a_violated_rule_is_named(keys: str, change: Any, opened: OpenRun) -> None:
    counts = opened.counts
    found = judged(opened, changed(counts, **change) if isinstance(change, dict) else change(counts))
    assert found.conforms is False
    assert violated(found) == [CHECKS[key].title for key in keys.split()]
    assert found.text.startswith(f"does not conform to agentx-harness-1.0.12/agentx: {violated(found)[0]}: ")


@pytest.mark.parametrize(
    ("share", "text", "result"),
    [(0.01, LONG, "ok"), (0.02, LONG, "violated"), (0.01, OTHER, "ok"), (0.3, OTHER, "not known")],
)
def test_prompts_that_are_too_long_are_at_most_a_hundredth(
    share: float, text: str, result: str, opened: OpenRun
) -> None:
    """Behind the first text of a status there may be prompts that are too long."""
    found = {each.rule: each.result for each in judged(opened, failed(opened.counts, share, text)).rules}
    assert found[CHECKS["overflow_ratio"].title] == result
    assert (found["failed turns"] == "default changed") == (share > 0.1)


def test_the_sets_differ_where_the_packages_do(opened: OpenRun) -> None:
    """One run, by the rules of each package: AIPerf forbids a limit of each trace's gaps; the harness allows it."""
    names = [made.name for made in rule_sets.RULE_SETS]
    by_name = {name: judged(opened, changed(opened.counts, rules=name)) for name in names}
    aiperf, mvp = by_name["aiperf-0.13.0/inferencex-agentx-mvp"], by_name["agentx-harness-1.0.12/inferencex-agentx-mvp"]
    assert violated(aiperf) == [CHECKS["max_idle_s"].title]
    assert mvp.conforms is True
    assert CHECKS["coverage"].title in [each.rule for each in mvp.rules]
    assert CHECKS["coverage"].title not in [each.rule for each in aiperf.rules]
    form = judged(opened, changed(opened.counts, rules="agentperf", slo={"ttft_ms": 5000, "tpot_ms": 50}))
    assert form.conforms is None
    assert form.text.startswith("has the form of agentperf: ")
    assert "private: only their form" in form.text


def test_without_records_or_a_corpus_a_run_is_not_known_to_conform(opened: OpenRun, tmp_path: Path) -> None:
    found = conformity(changed(opened.counts, workload__path=str(tmp_path / "gone.jsonl")), None)
    unknown = {each.rule for each in found.rules if each.result == "not known"}
    keys = ("corpus", "begun", "primed", "coverage", "warmup_turns", "sessions")
    assert (found.conforms, unknown) == (None, {CHECKS[key].title for key in keys})
    assert found.text.startswith("is not known to conform to agentx-harness-1.0.12/agentx: 18 rules checked. defaults")
    assert "begin within their traces (turn records are missing)" in found.text


def test_of_records_that_are_not_whole_nothing_is_known(opened: OpenRun) -> None:
    counts = replace(opened.counts, workers=replace(opened.counts.workers, complete=False))
    found = judged(opened, counts)
    assert (found.conforms, [each.rule for each in found.rules if each.result == "not known"]) == (
        None,
        [CHECKS[key].title for key in ("begun", "primed", "coverage")],
    )


def test_another_workload_does_not_conform(opened: OpenRun) -> None:
    text = small(rules="agentx").resolved_text()
    found = judged(opened, replace(opened.counts, plan=replace(opened.counts.plan, scenario_text=text)))
    assert {CHECKS[key].title for key in ("format", "recorded_pauses", "begun", "primed")} <= set(violated(found))


def test_each_rule_has_a_check_and_a_source() -> None:
    for made in rule_sets.RULE_SETS:
        assert made.read
        assert all(key in CHECKS and made.file(key) for key in (*made.rules, *made.defaults))


def test_a_short_name_is_resolved_if_one_package_has_it() -> None:
    assert rule_sets.rule_set("agentx").name == AGENTX
    with pytest.raises(ValueError, match=r"several packages .*; choose from agentx-harness-1.0.12/.*, aiperf-0.13.0/"):
        rule_sets.rule_set("inferencex-agentx-mvp")
    with pytest.raises(ValueError, match=r"no such rules; did you mean agentperf\?"):
        rule_sets.rule_set("agenty")
