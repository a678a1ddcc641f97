"""Findings and tables of a study: effects over pairs, published changes, grids, the highest load."""

import re
from collections.abc import Sequence
from math import exp

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inferload.analysis.data import ran as of_load
from inferload.analysis.data.ran import Ran
from inferload.analysis.study import findings, measured_rows, page, tables
from inferload.analysis.study.results import StudyResults, StudyRun
from msgspec import structs

from inferload.campaign.sweep.study import Study
from inferload.results.statistics import paired_runs
from inferload.scenario import language
from inferload.scenario.files import typed_yaml
from inferload.scenario.files.yaml_text import ScenarioError

TTFT, TPOT = "mean(ttft_ms)", "mean(tpot_ms)"
PLAN = """\
schema: 1
name: small
title: A small study
question: Is it faster?
source: {title: a text, date: 2026-01-01, setting: one run of each}
engine: simulator
quick: false
command: inferload study small
parts:
  only: {title: The only part, baseline: a, variants: [b], scenarios: [{scenario: s, name: s}]}
tables:
  - key: t
    title: Table
    part: only
    base: old
    figures: [mean(ttft_ms), mean(tpot_ms), prefix_cache_hit_rate]
    rows:
      - {label: old, variant: a, scenario: s, published: [200, 50, null]}
      - {label: new, variant: b, scenario: s, published: [100, 51, null]}
claims:
  - text: It halves TTFT
    table: t
    row: new
    figure: mean(ttft_ms)
    expect: lower
    least: 0.4
    why: {holds: the cache, fails: the cache is off}
  - text: TPOT stays
    table: t
    row: new
    figure: mean(tpot_ms)
    expect: no change
    why: {holds: decoding is the same, fails: decoding differs}
  - text: Most tokens hit
    source: section 2
    table: t
    row: new
    figure: prefix_cache_hit_rate
    holds: prefix_cache_hit_rate > 0.9
    why: {holds: equal prompts, fails: other prompts}
notes: [The text has one run of each.]
"""


def plan_of(text: str = PLAN) -> Study:
    return typed_yaml.from_text(text, "x", Study)


def run(variant: str, pair: int, load: float | None = None, level: str = "valid", **values: float | None) -> StudyRun:
    names = {"ttft": TTFT, "tpot": TPOT, "hits": "prefix_cache_hit_rate", "slo": "slo_attainment"}
    figures = {names[name]: value for name, value in values.items()}
    return StudyRun(part="only", variant=variant, scenario="s", pair=pair, load=load, level=level, values=figures)


def results(*runs: StudyRun) -> StudyResults:
    return StudyResults(
        started_at="2026-11-27T10:00:00Z",
        server="simulator 0.32.0",
        stands_for="tiny on a CPU",
        machine="Linux, 2 CPUs",
        inferload="0.1.0",
        runs=list(runs),
    )


def pairs(before: Sequence[float], after: Sequence[float], tpot: float = 50.0) -> list[StudyRun]:
    return [
        found
        for pair, (a, b) in enumerate(zip(before, after, strict=True))
        for found in (
            run("a", pair, ttft=a, tpot=50.0, hits=0.0),
            run("b", pair, ttft=b, tpot=tpot + (-1) ** pair, hits=0.95),
        )
    ]


BEFORE, AFTER = (200, 210, 190, 205, 195, 200), (100, 104, 97, 101, 99, 100)


def test_invalid_runs_are_named_and_not_counted() -> None:
    """The rest of a page: the stored ones of docs/studies."""
    text = page.markdown(plan_of(), results(*pairs(BEFORE, AFTER), run("b", 6, level="invalid", ttft=1.0)))
    assert "| Runs | 13 runs; 12 valid; 1 invalid |" in text
    assert "\n| new | 100.1 | 49.99 | 95 % |\n" in text
    assert "\n* Not valid and not counted: only/s/b/6:" in text


def ran(seconds: float, users: str = "16 users", tokens: float | None = 64.0) -> Ran:
    return Ran(users_or_rate=users, turns=100, window_s=seconds, input_tokens=256.0, output_tokens=tokens)


BOTH = "256 prompt tokens and 64 output tokens per turn"


@pytest.mark.parametrize(
    ("loads", "lines"),
    [
        ({"s": [ran(6.0), ran(6.5)]}, [("", f"16 users; 100 turns in 6 to 6.5 s per run; {BOTH}; 3 pairs")]),
        ({"s": [Ran(users_or_rate="4/s Poisson; session starts")]}, [("", "4/s Poisson; session starts; 3 pairs")]),
        (
            {"a": [ran(6.0, "1 user")], "b": [ran(6.0, "16 users")], "c": [ran(6.0, "4 users", None)]},
            [
                ("a, b", f"1 and 16 users; 100 turns in 6 s per run; {BOTH}"),
                ("c", "4 users; 100 turns in 6 s per run; 256 prompt tokens per turn"),
                ("", "3 pairs"),
            ],
        ),
        ({}, []),
    ],
)
def test_the_load_that_ran_is_a_line_for_each_load(loads: dict[str, list[Ran]], lines: list[tuple[str, str]]) -> None:
    assert of_load.lines(loads, of_load.runs_text(3, quick=False)) == lines


def test_a_heading_has_the_load_that_ran_else_that_of_the_plan() -> None:
    plan = plan_of(PLAN.replace("scenario: s, name: s", "scenario: smoke, name: s")).model_copy(update={"quick": True})
    assert "\n4 users; as planned; 6 pairs; shortened by --quick\n" in page.markdown(
        plan, results(*pairs(BEFORE, AFTER))
    )
    recorded = [structs.replace(each, ran=ran(2.0)) for each in pairs(BEFORE, AFTER)]
    assert "\n16 users; 100 turns in 2 s per run; " in page.markdown(plan, results(*recorded))


@pytest.mark.parametrize(("claims", "lines"), [(1, 2), (8, 16), (9, 9), (16, 16), (40, 17)])
def test_the_findings_fit_on_a_terminal(claims: int, lines: int) -> None:
    plan = plan_of()
    plan = plan.model_copy(update={"claims": (plan.claims[0],) * claims})
    found = page.summary(plan, results(*pairs(BEFORE, AFTER)))
    assert sum(each.count("\n") + 1 for each in found) == lines
    assert " ".join(found[0].replace("TTFT; p", "TTFT p").split()) == (
        "holds here: It halves TTFT published -50 %; here -49.9 % (-50.7 to -48.9 %, 6 pairs)"
    )


def test_the_html_page_has_the_same_tables_and_a_chart() -> None:
    html = page.html(plan_of(), results(*pairs(BEFORE, AFTER)), plotly="")
    assert "Simulated server: stands for tiny on a CPU" in html
    assert 'data-picture="t-chart"' in html
    assert "It halves TTFT" in html


@given(st.floats(-1, 1), st.floats(0.001, 0.2), st.sampled_from(["lower", "higher", "no change"]))
def test_an_answer_follows_from_the_interval(shift: float, noise: float, expect: str) -> None:
    after = [before * exp(shift + noise * (-1) ** pair * (1 + pair / 10)) for pair, before in enumerate(BEFORE)]
    text = PLAN.replace("expect: lower\n    least: 0.4", f"expect: {expect}").replace(
        "[200, 50, null]", "[null, 50, null]"
    )
    found = findings.finding(plan_of(text).claims[0], plan_of(text), results(*pairs(BEFORE, after)))
    old, new = measured_rows.measured(plan_of().tables[0], plan_of(), results(*pairs(BEFORE, after)))
    measured = measured_rows.row_effect(old, new, TTFT)
    assert measured is not None
    low, high = measured.low or 0.0, measured.high or 0.0
    if expect == "no change":
        within = [0.9 <= value <= 1.1 for value in (low, high)]
        beyond = low > 1.1 or high < 0.9
        assert found.answer == ("no change found" if all(within) else "change found" if beyond else "not decided")
        return
    small = max(1 - low, high - 1) < 0.01
    way = "none" if small or low <= 1 <= high else "lower" if high < 1 else "higher"
    assert found.answer == ("not found here" if way == "none" else "holds here" if way == expect else "opposite here")


@pytest.mark.parametrize("count", [1, 2])
def test_few_pairs_are_not_tested(count: int) -> None:
    found = findings.finding(plan_of().claims[0], plan_of(), results(*pairs(BEFORE[:count], AFTER[:count])))
    assert found.answer == "not tested"


@pytest.mark.parametrize(
    ("hits", "answer"),
    [
        ([0.95] * 3, "holds here"),
        ([0.1] * 3, "does not hold here"),
        ([0.95, 0.95, 0.1], "not decided"),
        ([0.95] * 2, "not tested"),
        ([0.95, 0.95, None], "not measured"),
    ],
)
def test_a_condition_is_met_by_all_runs_by_none_or_by_some(hits: list[float | None], answer: str) -> None:
    runs = [run("b", pair, hits=value) for pair, value in enumerate(hits)]
    assert findings.finding(plan_of().claims[2], plan_of(), results(*runs)).answer == answer
    invalid = [structs.replace(each, level="invalid") for each in runs]
    assert findings.finding(plan_of().claims[2], plan_of(), results(*invalid)).answer == "not measured"


@pytest.mark.parametrize(
    ("change", "text"), [(-0.0312, "-3.12"), (25.5, "+2,550"), (0.9999, "+100"), (9.996, "+1,000"), (0.0, "+0")]
)
def test_a_change_has_three_digits(change: float, text: str) -> None:
    assert findings.signed(change) == text


def test_published_changes_follow_from_published_values() -> None:
    old, new = plan_of().tables[0].rows
    assert measured_rows.published_change(plan_of().tables[0], old, new, TTFT) == -0.5
    assert measured_rows.published_change(plan_of().tables[0], old, new, "prefix_cache_hit_rate") is None


STEPS = (
    PLAN.partition("tables:")[0]
    + """\
tables:
  - {key: t, title: Steps, part: only, against_baseline: true, highest: slo_attainment >= 0.95, figures: [slo_attainment]}
"""
)


@given(st.lists(st.floats(0.01, 1), min_size=1, max_size=6), st.lists(st.floats(0.01, 1), min_size=1, max_size=6))
def test_the_highest_load_is_the_last_step_before_the_first_failure(a: list[float], b: list[float]) -> None:
    runs = [
        run(name, 0, load=float(step + 1), slo=value)
        for name, values in (("a", a), ("b", b))
        for step, value in enumerate(values)
    ]
    plan = plan_of(STEPS)
    rows = measured_rows.measured(plan.tables[0], plan, results(*runs))
    found = measured_rows.highest(plan.tables[0], rows)
    for name, values in (("a", a), ("b", b)):
        good = next((step for step, value in enumerate(values) if value < 0.95), len(values))
        assert found[name, "s"] == (float(good) if good else None)
    changes = [table for table in tables.of(plan.tables[0], rows, plan) if table.key == "t-changes"]
    assert len(changes[0].rows) == min(len(a), len(b))


GRID = (
    PLAN.partition("parts:")[0]
    + """\
parts:
  only: {title: P, baseline: base, scenarios: [{scenario: s, name: s}], grid: {x: [1, 2], y: [1, 2]}}
tables:
  - {key: t, title: Grid, part: only, grid: true, figures: [mean(ttft_ms), mean(tpot_ms)]}
"""
)


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5)), min_size=5, max_size=5))
def test_no_row_of_the_front_is_surpassed(values: list[tuple[int, int]]) -> None:
    plan = plan_of(GRID)
    runs = [
        run(variant, 0, ttft=float(ttft), tpot=float(tpot))
        for variant, (ttft, tpot) in zip(plan.parts["only"].labels, values, strict=True)
    ]
    rows = measured_rows.measured(plan.tables[0], plan, results(*runs))
    front = measured_rows.front(rows, plan.tables[0].figures)
    assert front
    by_label = {each.name: (each.value(TTFT) or 0, each.value(TPOT) or 0) for each in rows}
    for label, found in by_label.items():
        surpassed = any(o != found and o[0] <= found[0] and o[1] <= found[1] for o in by_label.values())
        assert (label in front) == (not surpassed)
    assert [table.key for table in tables.of(plan.tables[0], rows, plan)] == [
        "t-mean-ttft_ms",
        "t-mean-tpot_ms",
        "t-front",
    ]
    assert page.html(plan, results(*runs), plotly="").count('"heatmap"') == 2


def test_a_percentile_of_few_samples_is_marked_and_suspect_runs_have_their_reasons() -> None:
    short = [structs.replace(each, unsteady=[TTFT]) if each.pair == 3 else each for each in pairs(BEFORE, AFTER)]
    runs = [
        structs.replace(each, level="suspect", reasons={"steal": "8 %"}) if each.pair < 2 else each for each in short
    ]
    text = page.markdown(plan_of(), results(*runs))
    assert "| old | 199.9 ~ | 50 | 0 % |" in text
    assert "~: in a run, fewer than 10 samples beyond the percentile." in text
    assert "| Runs | 12 runs; 4 suspect (steal 4); 8 valid |" in text


@pytest.mark.parametrize(("factor", "expected"), [(1.0, "none"), (1.005, "none"), (1.02, "higher"), (0.9, "lower")])
def test_pairs_that_do_not_vary_are_a_change_from_one_percent_on(factor: float, expected: str) -> None:
    found = paired_runs.effect([100.0, 110.0, 95.0], [factor * value for value in (100.0, 110.0, 95.0)])
    assert findings.direction(found) == expected
    assert findings.effect_text(found).endswith("(the same in every pair, 3 pairs)")


CLAIM = """\
claims:
  - {{text: It is so, table: t, row: new, {keys}, why: {{holds: for a reason, fails: for another, smaller: for less}}}}
"""


def claimed(keys: str, *runs: StudyRun) -> findings.Finding:
    plan = plan_of(PLAN.partition("claims:")[0] + CLAIM.format(keys=keys))
    return findings.finding(plan.claims[0], plan, results(*(runs or pairs(BEFORE, AFTER))))


@pytest.mark.parametrize(
    ("keys", "answer", "why"),
    [
        ("figure: mean(ttft_ms), expect: lower", "holds here", "for a reason"),  # -50 % are published
        ("figure: mean(ttft_ms), expect: lower, least: 0.52", "smaller here", "for less"),
        ("figure: mean(ttft_ms), expect: higher", "opposite here", "for another"),
        ("figure: mean(ttft_ms), expect: no change, within: 0.6", "no change found", "for a reason"),
        ("figure: mean(ttft_ms), expect: no change, within: 0.4", "change found", "for another"),
        ("figure: mean(ttft_ms), expect: lower, when: mean(tpot_ms) > 60", "not reached", ""),
        ("figure: mean(ttft_ms), expect: best", "holds here", "for a reason"),
        ("figure: mean(tpot_ms), expect: best", "not found here", ""),
        ("expect: best", "not found here", ""),  # in all figures
        ("figure: mean(ttft_ms), expect: lower, against: new", "not found here", ""),
        ("figure: mean(ttft_ms), expect: lower, than: new", "not found here", ""),
    ],
)
def test_a_claim_is_answered_with_the_reason_that_fits(keys: str, answer: str, why: str) -> None:
    found = claimed(keys)
    assert (found.answer, found.why) == (answer, why)


def test_a_condition_is_checked_on_each_row_that_it_is_about() -> None:
    keys = "when: mean(ttft_ms) < 150, figure: mean(tpot_ms), holds: mean(tpot_ms) < 60"
    of_all = PLAN.partition("claims:")[0] + CLAIM.format(keys=keys).replace("row: new, ", "")
    plan = plan_of(of_all)
    for tpot, answer in ((50.0, "holds here"), (70.0, "does not hold here")):
        found = findings.finding(plan.claims[0], plan, results(*pairs(BEFORE, AFTER, tpot)))
        assert found.answer == answer
        assert found.here.startswith("new: Mean TTFT 100 ms, Mean TPOT ")


def test_the_changes_of_two_rows_are_compared() -> None:
    text = PLAN.replace(
        "      - {label: new, variant: b, scenario: s, published: [100, 51, null]}",
        "      - {label: new, variant: b, scenario: s}\n      - {label: old at 2, variant: a, scenario: s, load: 2}\n"
        "      - {label: new at 2, variant: b, scenario: s, load: 2}",
    ).replace("base: old", "against_baseline: true")
    plan = plan_of(
        text.partition("claims:")[0]
        + CLAIM.format(keys="figure: mean(ttft_ms), expect: higher, than: new").replace("row: new", "row: new at 2")
    )
    later = [run(name, pair, load=2.0, ttft=value) for pair, value in enumerate(BEFORE) for name in "ab"]
    found = findings.finding(plan.claims[0], plan, results(*pairs(BEFORE, AFTER), *later))
    assert found.answer == "holds here"
    assert found.here.endswith("against the change of new")


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ("figure: mean(ttft_ms), holds: mean(ttft_ms) < 1, expect: lower", "give exactly one of expect and holds"),
        ("expect: lower", "give its figure"),
        ("figure: mean(ttft_ms), expect: best, least: 0.1", "least belongs to expect: lower or higher"),
        ("figure: mean(ttft_ms), expect: lower, within: 0.1", "within belongs to expect: no change"),
        ("figure: mean(ttft_ms), expect: best, against: old", "against belongs to a change"),
        ("figure: mean(ttft_ms), expect: lower, against: old, than: old", "against and than are both given"),
        (
            "expect: lower, figure: mean(ttft_ms), against: old, sum_of: [mean(e2e_ms)]",
            "against and sum_of are both given",
        ),
        ("figure: mean(ttft_ms), expect: lower, sum_of: [mean(e2e_ms)]", "mean(e2e_ms) is no figure of table t"),
        ("figure: mean(ttft_ms), expect: lower, than: older", "older is no row of table t"),
        ("figure: mean(e2e_ms), expect: lower", "mean(e2e_ms) is no figure of table t"),
    ],
)
def test_mistakes_in_a_claim_are_named(keys: str, problem: str) -> None:
    with pytest.raises(ScenarioError, match=re.escape(problem)):
        claimed(keys)


def test_several_changes_are_translated_one_by_one() -> None:
    here = "Turns against x: -1 % (one pair); Output against x: -1 % (one pair)"
    with language.used("zh"):
        shown = tables.figures_of(findings.Finding(plan_of().claims[0], "not tested", "-2 %", here))
    assert shown == "原文 -2 %；本次轮次吞吐量，相对 x：-1 %（仅一对）；输出吞吐量，相对 x：-1 %（仅一对）"
