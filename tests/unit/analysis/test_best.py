"""Best side of a comparison by goal, its certainty, and the pairs that are still needed."""

import html
import json
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import summaries
from hypothesis import given, settings
from hypothesis import strategies as st
from inferload.analysis.comparison import requirements
from inferload.analysis.comparison.best import BestSide, Decision, best_by_goal
from inferload.analysis.comparison.compare import Comparison, compare
from inferload.analysis.comparison.output import documents, tables
from inferload.analysis.comparison.output import text as output
from inferload.analysis.comparison.output.page import of_comparisons, summary_line
from inferload.analysis.comparison.read_sides import read_side
from inferload.analysis.comparison.sides import NAMES, Run, Side, of_class
from inferload.analysis.data.figures import ALL, BALANCE, COST, figure, primary_of
from inferload.analysis.pages import texts as texts_of_pages
from msgspec import structs
from run_folders import write_run
from searches import search_document

from inferload import cli
from inferload.figures.table import markdown, text
from inferload.results.documents.typed_documents import document_of
from inferload.results.prices import Prices
from inferload.scenario import language

TTFT, TPOT, OUTPUT, GOODPUT = map(figure, ("mean(ttft_ms)", "mean(tpot_ms)", "output_tok_per_s", "goodput_turns_per_s"))
MEDIAN = figure("p50(ttft_ms)")
PAIRS = 8


def side(label: str, ttft_ms: float, tpot_ms: float, output: float, jitter: float = 0.01, **more: Any) -> Side:
    """Eight runs with a seed each; `more` are further fields of each run."""
    dice = random.Random(label)
    runs = []
    for seed in range(PAIRS):
        common = random.Random(seed).gauss(0, 0.1)
        factor = 2.718 ** (common + dice.gauss(0, jitter))
        figures: dict[str, float | None] = dict.fromkeys(NAMES)
        figures |= {TTFT.name: ttft_ms * factor, TPOT.name: tpot_ms * factor, OUTPUT.name: output / factor}
        figures |= {
            "p50(ttft_ms)": ttft_ms * factor,
            "p99(ttft_ms)": 3 * ttft_ms * factor,
            "p50(e2e_ms)": 40 * tpot_ms * factor,
            "turns_per_s": output / factor / 100,
        }
        run = Run(
            path=Path(label),
            label=f"{seed:03d}",
            figures=figures,
            seed=seed,
            start=f"{label}-{seed}",
            level="valid",
            server={"engine": "vllm 0.32.0"},
            output_tokens=100.0,
            input_tokens=100.0,
            ok_and_sent=(100, 100),
        )
        runs.append(replace(run, **more))
    return Side(label, tuple(runs))


def three() -> list[Side]:
    return [
        side("full", 450, 42, 1200, prices=Prices(gpu_hour=2.0, gpus=1)),
        side("awq", 280, 28, 1800, prices=Prices(gpu_hour=2.0, gpus=1)),
        side("tp2", 380, 48, 2100, prices=Prices(gpu_hour=2.0, gpus=2)),
    ]


def compared(sides: Sequence[Side]) -> list[Comparison]:
    return [compare(sides[0], candidate, TTFT, ALL) for candidate in sides[1:]]


def results(sides: Sequence[Side]) -> dict[str, BestSide]:
    (decision,) = best_by_goal(compared(sides))
    return {best.figure.name: best for best in decision.results}


def with_ttft(member: Side, values: Sequence[float]) -> Side:
    """Return the side with these means of TTFT; runs without one are left out."""
    runs = zip(member.runs, values, strict=False)
    return replace(member, runs=tuple(replace(run, figures={**run.figures, TTFT.name: value}) for run, value in runs))


def test_each_goal_has_the_best_side_with_the_change_from_the_closest_other() -> None:
    found = results(three())
    assert {name: (best.label, best.certainty, best.rivals[0].label) for name, best in found.items()} == {
        TTFT.name: ("awq", "best", "tp2"),
        TPOT.name: ("awq", "best", "full"),
        OUTPUT.name: ("tp2", "best", "awq"),
        COST.name: ("awq", "best", "full"),
        BALANCE.name: ("awq", "best", "tp2"),
    }
    assert found[TTFT.name].rivals[0].row.change == pytest.approx(280 / 380 - 1, abs=0.03)
    assert all(best.more_pairs == 0 for best in found.values())
    assert found[TTFT.name].worse == ()
    assert found[OUTPUT.name].worse == ("Mean TPOT",)
    assert found[COST.name].value == pytest.approx(2 / 3600 / 1800 * 1e6, rel=0.1)
    assert "tp2: worse than full: Mean TPOT" in output.text(compared(three()))


def test_a_goal_that_a_side_lacks_has_no_best_side() -> None:
    sides = [side("a", 100, 10, 500), side("b", 90, 9, 550)]
    lacking = replace(sides[1].runs[3], figures={**sides[1].runs[3].figures, TPOT.name: None})
    sides[1] = replace(sides[1], runs=(*sides[1].runs[:3], lacking, *sides[1].runs[4:]))
    found = results(sides)
    assert list(found) == [TTFT.name, TPOT.name, OUTPUT.name, BALANCE.name], "no side has goodput or a price"
    assert (found[TPOT.name].label, found[TPOT.name].certainty) == (None, "not measured")
    assert found[TPOT.name].missing == "not known, or not above 0, on b"
    assert "Mean TPOT: not known, or not above 0, on b" in output.text(compared(sides))


def test_goodput_of_different_slos_has_no_best_side() -> None:
    sides = [side(name, 100, 10, 500, slo={"ttft_ms": limit}) for name, limit in (("a", 100.0), ("b", 200.0))]
    sides = [one.with_runs(lambda run: replace(run, figures={**run.figures, GOODPUT.name: 5.0})) for one in sides]
    assert GOODPUT.name not in results(sides)
    equal = [one.with_runs(lambda run: replace(run, slo={})) for one in sides]
    assert results(equal)[GOODPUT.name].certainty == "no difference found"


def test_the_best_of_equal_sides_is_not_certain() -> None:
    sides = [side(name, 100, 10, 500, jitter=0.05) for name in "abcdef"]
    fast = results(sides)[TTFT.name]
    assert fast.certainty == "no difference found"
    assert len(fast.tied) == len(fast.rivals) == 5
    few = [replace(member, runs=member.runs[:2]) for member in three()]
    untested = results(few)[TTFT.name]
    assert (untested.label, untested.certainty, untested.more_pairs) == ("awq", "not tested", 4)


def test_the_pairs_that_are_still_needed_suffice() -> None:
    sides = [side("base", 100, 10, 500, jitter=0.1), side("new", 97, 10, 500, jitter=0.1)]
    fast = results(sides)[TTFT.name]
    assert fast.certainty == "no difference found"
    assert fast.more_pairs is not None
    assert fast.more_pairs > 0
    times = -(-(PAIRS + fast.more_pairs) // PAIRS)  # repeats of the eight pairs, with their spread

    def repeated(one: Side) -> Side:
        runs = (replace(run, seed=(run.seed or 0) + 100 * at) for at in range(times) for run in one.runs)
        return replace(one, runs=tuple(runs))

    assert results(list(map(repeated, sides)))[TTFT.name].certainty == "best"


@settings(deadline=None)
@given(st.lists(st.sampled_from([1.0, 1.001, 1.5, 3.0]), min_size=2, max_size=5))
def test_the_best_side_is_better_in_each_comparison(factors: list[float]) -> None:
    sides = [side(f"v{at}", 100 * factor, 10, 500) for at, factor in enumerate(factors)]
    fast = results(sides)[TTFT.name]
    best = next(one for one in sides if one.label == fast.label)
    answers = [compare(other, best, TTFT, ALL).primary.answer for other in sides if other is not best]
    assert (fast.certainty == "best") == all(answer == "better" for answer in answers)
    assert len(fast.tied) == sum(answer != "better" for answer in answers)
    behind = sum(factor >= 1.5 * min(factors) for factor in factors)
    assert len(fast.tied) <= len(sides) - 1 - behind


def test_equal_sides_are_rarely_called_the_best() -> None:
    draws, named = 100, dict.fromkeys((TTFT.name, BALANCE.name), 0)
    for draw in range(draws):
        found = results([side(f"{draw} {name}", 100, 10, 500, jitter=0.05) for name in "abc"])
        named = {name: count + found[name].is_decided for name, count in named.items()}
    assert max(named.values()) / draws <= 0.05


# --- requirements


LINE = "VLLM_X='a b' vllm serve m --quantization awq"


def with_command(sides: Sequence[Side]) -> list[Side]:
    """Return three sides, the second of a variant with a command line."""
    full, awq, tp2 = sides
    return [full, awq.with_runs(lambda run: replace(run, server={"variant": {"command_line": LINE}})), tp2]


def decided(sides: Sequence[Side], *texts: str) -> Decision:
    (decision,) = best_by_goal(requiring(sides, *texts))
    return decision


def requiring(sides: Sequence[Side], *texts: str) -> list[Comparison]:
    required = requirements.parse(texts)
    return [replace(each, required=required) for each in compared(sides)]


@settings(deadline=None)
@given(st.floats(200, 600), st.floats(1000, 2500))
def test_sides_beyond_a_requirement_take_no_part(ttft_ms: float, output_rate: float) -> None:
    sides = three()
    comparisons = requiring(sides, f"mean(ttft_ms) < {ttft_ms}", f"output_tok_per_s >= {output_rate}")
    (decision,) = best_by_goal(comparisons)
    holding = {
        one.label
        for one in sides
        if (one.mean(TTFT.name) or 0) < ttft_ms and (one.mean(OUTPUT.name) or 0) >= output_rate
    }
    assert {one.label for one in sides} - holding == set(decision.ruled_out)
    for best in decision.results:
        assert {best.label, *(rival.label for rival in best.rivals)} == (holding or {one.label for one in sides})
        assert (best.certainty == "only side left") == (len(holding) == 1)
    document = documents.document(comparisons)
    assert bool(document["winners"]) == bool(holding)
    assert any(row["best"] for row in document["best"]) == bool(holding)
    for each in decision.checked:
        assert each.is_uncertain == (each.gate.holds(each.low) != each.gate.holds(each.high))
        assert ("uncertain" in each.text) == each.is_uncertain


@pytest.mark.parametrize("text", ["mean(ttft_ms) < 1", "p97(ttft_ms) < 1000000", "max(kv_cache_usage) < 1"])
def test_that_no_side_is_left_is_the_headline_and_the_best_of_those_that_served_the_load_are_named(text: str) -> None:
    sides = [*with_command(three()), side("broken", 1, 1, 9000, collapsed="overloaded")]
    comparisons = requiring(sides, text)
    assert list(decided(sides, text).ruled_out) == ["full", "awq", "tp2", "broken"]
    headline = f"NO SIDE IS LEFT: full is ruled out by {text} ("
    assert output.text(comparisons).startswith(headline)
    assert output.markdown(comparisons).replace("\\", "").startswith(f"**{headline}")
    assert "NO SIDE IS LEFT: full is ruled out by " in of_comparisons(comparisons)
    first, last = output.text(comparisons).splitlines()[-2:]
    assert first.startswith("No side is left; of all, best in Mean TTFT; Mean TPOT; ")
    assert last == "No side is left; of all, best in Output: tp2", "without a command line"


def with_summary(member: Side, **document: Any) -> Side:
    return member.with_runs(lambda run: replace(run, summary=summaries.summary(document)))


def test_the_gates_of_all_runs_are_requirements_unless_others_are_given() -> None:
    def gated(member: Side, value: float, *more: str) -> Side:
        gates = [{"gate": gate, "value": value, "passed": True} for gate in ("p97(e2e_ms) < 900", *more)]
        return with_summary(member, verdict={"gates": gates})

    full, awq, tp2 = three()
    sides = [gated(full, 1000.0), gated(awq, 800.0, "failed_ratio < 0.1"), gated(tp2, 850.0)]
    decision = decided(sides)
    assert [(each.label, each.holds) for each in decision.checked] == [("full", False), ("awq", True), ("tp2", True)]
    assert decision.ruled_out == {"full": ["p97(e2e_ms) < 900 (1,000, 95 % CI 1,000 to 1,000)"]}
    assert not decided(sides, "output_tok_per_s > 1").ruled_out
    assert not decided([full, *sides[1:]]).checked, "a side of another client has none"


def test_a_side_that_did_not_serve_its_load_is_ruled_out_unless_none_did() -> None:
    fast = side("fast", 50, 5, 900, collapsed="overloaded")
    decision = decided([side("base", 100, 10, 500), fast])
    assert decision.ruled_out == {"fast": ["overloaded in 8 of 8 runs"]}
    assert [winner.label for winner in decision.winners] == ["base"]
    assert not decided([side("base", 100, 10, 500, collapsed="overloaded"), fast]).ruled_out


def test_the_answers_hold_for_the_server_starts_of_all_sides() -> None:
    sides = [replace(one, runs=tuple(replace(run, start=one.label) for run in one.runs)) for one in three()]
    assert decided(sides).holds_for == "these 3 server starts"
    assert decided([*sides[:2], three()[2]]).holds_for == "these 10 server starts"
    assert decided(three()).holds_for == ""


NAMES_AND_UNITS = re.compile(
    r"full|awq|tp2|other|bad|TTFT|TPOT|token|turns/s|tok/s|GPU|Holm|Fisher|family-wise error|exporter|nvidia-smi|bytes|"
    r"--[a-z-]+|\S+ [<>] [\d.]+|vllm \d\S+|process_start_time_seconds|not valid|no reason recorded"
)


@pytest.mark.parametrize("texts", [[], ["mean(ttft_ms) < 300"], ["mean(ttft_ms) < 277"], ["p97(ttft_ms) < 9"]])
@pytest.mark.parametrize("change", ["", "priced", "served", "started", "memory", "close", "few", "apart", "unknown"])
def test_a_decision_in_chinese_has_no_words_in_english(texts: list[str], change: str) -> None:
    sides = three()
    if change == "served":
        sides = [one.with_runs(lambda run: replace(run, collapsed="overloaded", failed=9)) for one in sides[:2]]
        sides += [three()[2]]
    elif change == "started":
        sides = [one.with_runs(lambda run: replace(run, start=None)) for one in sides]
    elif change == "memory":
        memory = {"gpu_memory_mb": {"1": 900.0}, "weights_gb": 16.0}
        sides = [one.with_runs(lambda run: replace(run, server={"variant": memory})) for one in sides]
    elif change == "close":
        sides = [side(name, 100, 10, 500, jitter=0.05, slo={"tpot_ms": 9.0}) for name in ("full", "awq", "tp2")]
        sides = [with_summary(one, latency={"tpot_ms": {"count": 500, "p99": 60.0}}) for one in sides]
    elif change == "few":
        sides = [replace(one, runs=one.runs[:1]) for one in sides]
    elif change == "apart":
        sides += [side("bad", 10, 1, 9000, level="invalid")]
    elif change == "unknown":
        sides[1] = sides[1].with_runs(lambda run: replace(run, figures={**run.figures, TPOT.name: None}))
    elif change == "":
        sides = [one.with_runs(lambda run: replace(run, prices=Prices())) for one in sides]
    with language.used("zh"):
        shown = output.text(requiring(sides, *texts)) + texts_of_pages.tr(summary_line(compared(sides)))
    assert re.findall(r".*[A-Za-z]{3,}.*", NAMES_AND_UNITS.sub("", shown)) == []


# --- goals


@pytest.mark.parametrize(
    ("slo", "texts", "names"),
    [
        ({}, [], ["mean(ttft_ms)", "mean(tpot_ms)"]),
        (
            {"ttft_ms": 500.0, "tpot_ms": 50.0, "e2e_ms": 9000.0},
            [],
            ["mean(ttft_ms)", "p99(ttft_ms)", "p99(tpot_ms)", "p50(e2e_ms)"],
        ),
        ({}, ["p90(tpot_ms) < 99", "mean(tpot_ms) < 999"], ["p90(tpot_ms)", "mean(ttft_ms)"]),
        ({"ttft_ms": 500.0}, ["p50(ttft_ms) < 9999"], ["p50(ttft_ms)", "mean(tpot_ms)"]),
    ],
)
def test_a_latency_with_a_limit_is_judged_by_its_statistic(
    slo: dict[str, float], texts: list[str], names: list[str]
) -> None:
    sides = [side("a", 100, 10, 500, slo=slo), side("b", 90, 9, 550, slo=slo)]
    sides = [with_summary(one, latency={"tpot_ms": {"count": 500, "p90": 40.0, "p99": 60.0}}) for one in sides]
    required = requirements.parse(["failed_ratio < 1", *texts])
    comparisons = [replace(compare(*sides, primary_of(required), ALL), required=required[1:])]
    (decision,) = best_by_goal(comparisons)
    assert [best.figure.name for best in decision.results if best.figure.unit == "ms"] == names
    unsteady = "TPOT, p99: fewer than 10 samples beyond it on a, b"
    assert (unsteady in output.text(comparisons)) == ("p99(tpot_ms)" in names)


def test_a_class_of_turns_has_the_goals_of_its_slo() -> None:
    of_chat = {"chat": {"latency": {"tpot_ms": {"count": 500, "p99": 60.0}}}}
    sides = [with_summary(side(label, 100, 10, 500, slo={"tpot_ms": 50.0}), by_class=of_chat) for label in "ab"]
    assert results([of_class(one, "chat") for one in sides])["p99(tpot_ms)"].value == 60


@settings(deadline=None)
@given(st.lists(st.tuples(*[st.sampled_from([1.0, 1.3, 1.9, 3.1])] * 3), min_size=2, max_size=5))
def test_the_balanced_side_has_the_smallest_largest_ratio_to_a_best_value(factors: list[tuple[float, ...]]) -> None:
    sides = [side(f"v{at}", 100 * a, 10 * b, 500 / c, jitter=0) for at, (a, b, c) in enumerate(factors)]
    best = [min(values) for values in zip(*factors, strict=True)]
    ratios = {f"v{at}": max(a / b for a, b in zip(each, best, strict=True)) for at, each in enumerate(factors)}
    found = results(sides)[BALANCE.name]
    assert found.label is not None
    assert ratios[found.label] == min(ratios.values())
    assert (found.certainty == "best") == (list(ratios.values()).count(min(ratios.values())) == 1)


GPU_PAGES = [{"target": f"http://{host}:9400", "gpu": {"memory_mib": {"mean": 1.0, "max": 500.0}}} for host in "ab"]
ENGINE = {"target": "http://c:8000", "engines": [{}], "kv_cache_size_tokens": 4096}


@pytest.mark.parametrize(
    ("document", "variant", "name", "value"),
    [
        ({"servers": [*GPU_PAGES, ENGINE]}, {"weights_gb": 16.0}, "gpu_memory_gb", 1.048576),
        ({"servers": [*GPU_PAGES, {"target": "http://c", "gpu": {}}]}, {"weights_gb": 16.0}, "weights_gb", 16.0),
        ({"servers": [ENGINE]}, {"gpu_memory_mb": {"1": 900.0, "2": 900.0}}, "gpu_memory_gb", 1.8),
        ({"servers": [ENGINE]}, {"gpu_memory_mb": {"1": 900.0}, "hardware": {"gpus": 2}}, "kv_cache_size_tokens", 4096),
        ({"servers": [ENGINE]}, {"weights_gb": 16.0, "gpu_memory_mb": {}}, "weights_gb", 16.0),
        ({"servers": [ENGINE, ENGINE]}, {}, "kv_cache_size_tokens", 8192.0),
        ({"servers": [ENGINE, {**ENGINE, "kv_cache_size_tokens": None}]}, {}, None, None),
    ],
)
def test_memory_is_measured_else_computed_else_the_room_of_the_cache(
    document: dict[str, Any], variant: dict[str, Any], name: str | None, value: float | None
) -> None:
    sides = [with_summary(side(label, 100, 10, 500, server={"variant": variant}), **document) for label in "ab"]
    memory = {found for found in results(sides) if found in ("gpu_memory_gb", "weights_gb", "kv_cache_size_tokens")}
    assert memory == ({name} if name else set())
    if name:
        assert results(sides)[name].value == pytest.approx(value)


def test_the_highest_load_is_the_last_step_before_one_beyond_the_limits() -> None:
    def stepped(label: str, *p99_ms: float) -> Side:
        steps = [
            {
                "step": at,
                "users": 2**at,
                "latency": {"ttft_ms": {"count": 100, "p99": value}},
                "rates": {"slo_attainment": 0.98},
            }
            for at, value in enumerate(p99_ms)
        ]
        steps = [{**step, "turns": summaries.NO_TURNS} for step in steps]
        return with_summary(side(label, 50, 10, 500), steps=steps)

    sides = [stepped("a", 100, 200, 400, 200), stepped("b", 100, 200, 250, 280)]
    found = {best.figure.name: best for best in decided(sides, "p99(ttft_ms) < 9999", "p99(ttft_ms) < 300").results}
    highest = found["highest_load"]
    assert (highest.label, highest.value, highest.certainty) == ("b", 8, "best")
    assert "highest_load" not in results(sides), "fewer than 99 % of the turns are good"


def test_searches_are_sides_with_the_highest_load_that_holds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, highest in (("base", 4.0), ("tuned", 8.0)):
        found = search_document({highest: 0.99, 2 * highest: 0.5})
        (tmp_path / name).mkdir()
        (tmp_path / name / "search.json").write_text(json.dumps(document_of(found)))
    assert cli.main(["compare", str(tmp_path / "base"), str(tmp_path / "tuned")]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"Load within the limits +tuned +8 +base +\+100.00% .* not tested", shown)
    assert "note: tuned: " in shown
    (tmp_path / "base" / "search.json").write_text(json.dumps(document_of(structs.replace(found, answer=None))))
    assert cli.main(["compare", str(tmp_path / "base"), str(tmp_path / "tuned")]) == 2
    assert "a sweep of loads, without an answer" in capsys.readouterr().err


def test_the_last_line_is_the_command_line_of_the_best_side() -> None:
    comparisons = compared(sides := with_command(three()))
    goals = "Mean TTFT; Mean TPOT; Cost of a million output tokens; Balance"
    assert output.text(comparisons).endswith(f"\nBest in {goals}: awq\n  {LINE}\nBest in Output: tp2\n")
    assert f"Balance: awq\n\n    {LINE}\n\nBest in Output: tp2" in output.markdown(comparisons)
    assert f"<code>{LINE}</code>" in html.unescape(of_comparisons(comparisons))
    document = documents.document(comparisons)
    assert [(each["side"], each["command"]) for each in document["winners"]] == [("awq", LINE), ("tp2", None)]
    single = output.text(compared([replace(one, runs=one.runs[:1]) for one in sides[:2]]))
    assert single.endswith(f"No side is named the best. Not tested: {goals.replace('Cost', 'Output; Cost')}.\n")


@pytest.mark.parametrize("last", ["missing", "invalid", "in another side"])
def test_a_side_that_is_slower_in_each_pair_is_not_the_best(last: str) -> None:
    base = with_ttft(side("base", 100, 10, 500), (100, 101, 99, 100, 102, 101, 400))
    slower = with_ttft(side("cand", 100, 10, 500), (105, 106.5, 104, 104.5, 107, 106, 90))
    if last == "invalid":
        slower = replace(slower, runs=(*slower.runs[:6], replace(slower.runs[6], level="invalid")))
    else:
        slower = replace(slower, runs=slower.runs[:6])
    # "cand" lacks the slow seed 6 of the other sides.
    complete = with_ttft(side("full", 100, 10, 500), (110, 112, 109, 111, 112, 111, 440))
    sides = [base, slower, *([complete] if last == "in another side" else [])]
    fast = results(sides)[TTFT.name]
    assert (fast.label, fast.certainty, fast.rivals[0].label) == ("base", "best", "cand")
    assert fast.value == pytest.approx(100.5, abs=0.01), "over the pairs with cand"


def test_the_cost_is_tested_at_the_prices_of_the_sides() -> None:
    def priced(label: str, output: float, price: float) -> Side:
        return side(label, 100, 10, output, jitter=0.05, prices=Prices(gpu_hour=price, gpus=1))

    base = priced("base", 500, 2.0)
    cheap = results([base, priced("new", 500, 1.0)])[COST.name]
    assert (cheap.label, cheap.certainty) == ("new", "best")
    # The primary figure does not differ, so the p of the cost is multiplied.
    close = results([base, priced("near", 500, 1.89)])[COST.name]
    assert (close.label, close.certainty) == ("near", "no difference found")
    many = [priced(f"v{at}", 500, 1.99) for at in range(9)]
    several = results([base, priced("lucky", 500, 1.89), *many])[COST.name]
    assert (several.label, several.certainty) == ("lucky", "no difference found")


def test_incomparable_and_invalid_sides_do_not_take_part() -> None:
    other = side("other", 10, 1, 9000, settings={"workload.kind": "agent"})
    bad = side("bad", 10, 1, 9000, level="invalid")
    fast = results([*three(), other, bad])[TTFT.name]
    assert {fast.label, *(rival.label for rival in fast.rivals)} == {"full", "awq", "tp2"}
    shown = output.text(compared([*three(), other, bad]))
    assert "\nother takes no part: not comparable with full\nbad takes no part: not comparable with full\n" in shown
    for baseline, candidates in ((three()[0], [other, bad]), (bad, three())):
        last = output.text(compared([baseline, *candidates])).splitlines()[-1]
        names = ", ".join(each.label for each in candidates)
        assert last == f"No side is named the best. Not comparable with {baseline.label}: {names}."


def test_keys_that_may_differ_may_differ_between_candidates() -> None:
    sides = [
        side(name, ttft_ms, 10, 500, settings={"arrivals.users": users})
        for name, ttft_ms, users in (("a", 100, 1), ("b", 80, 2), ("c", 60, 3))
    ]
    allowed = [compare(sides[0], candidate, TTFT, ALL, ["arrivals.users"]) for candidate in sides[1:]]
    fast = best_by_goal(allowed)[0].results[0]
    assert (fast.label, fast.certainty) == ("c", "best")


def test_each_form_of_a_comparison_has_the_table() -> None:
    comparisons = compared(three())
    decisions = best_by_goal(comparisons)
    whole, narrow = tables.best(decisions), tables.best(decisions, whole=False)
    assert whole is not None
    assert narrow is not None
    assert text(narrow) in output.text(comparisons)
    assert markdown(whole, level=3) in output.markdown(comparisons)
    assert of_comparisons(comparisons).count("<h3>Best by goal</h3>") == 1
    first, *_ = json.loads(documents.json_text(comparisons))["best"]
    assert (first["figure"], first["best"], first["closest"]) == (TTFT.name, "awq", "tp2")
    assert first["low"] < first["change"] < first["high"] < 0


def test_the_ab_table(golden: Callable[[str, str], None]) -> None:
    golden("table-ab.txt", output.block([compare(*three()[:2], MEDIAN, ALL)]))


# Numbers of an article (Qwen2.5-7B, without and with AWQ): TTFT P50, P99, TPOT, E2E P50, QPS, tok/s.
PRINTED = {"A": (423.5, 892.1, 38.9, 1654.2, 12.3, 1892), "B": (287.2, 567.3, 26.4, 1123.8, 18.7, 2756)}


def test_gains_of_a_published_ab_table_are_reproduced() -> None:
    names = ("p50(ttft_ms)", "p99(ttft_ms)", "mean(tpot_ms)", "p50(e2e_ms)", "turns_per_s", "output_tok_per_s")
    sides = [
        Side(label, (Run(Path(), label, dict(zip(names, values, strict=True)), ok_and_sent=(100, 100)),))
        for label, values in PRINTED.items()
    ]
    shown = output.block([compare(*sides, MEDIAN, ALL)])
    low = [one.with_runs(lambda run: replace(run, figures={"turns_per_s": 0.0412})) for one in sides]
    assert re.search(r"Turns, turns/s +0\.0412 +0\.0412\n", output.block([compare(*low, MEDIAN, ALL)]))
    assert "TTFT: ↓ 32.2%" in shown
    assert "QPS: ↑ 52.0%" in shown
    assert "throughput: 1.46x" in shown
    assert shown.count("100/100 (100%)") == 2


def test_the_page_of_a_sweep_has_the_best_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, ttft_ms in (("base", 100.0), ("tuned", 80.0)):
        for seed in (1, 2, 3):
            write_run(tmp_path / "sw" / "s" / name / f"00{seed}", seed, ttft_ms + seed)
    (tmp_path / "sw" / "sweep.yaml").write_text("baseline: file.yaml:base\n")
    assert cli.main(["report", str(tmp_path / "sw")]) == 0
    page = (tmp_path / "sw" / "index.html").read_text()
    (row,) = re.findall(r"<tr>(?:(?!</tr>).)*Mean TTFT<.*?</tr>", page.partition("Best by goal")[2], re.DOTALL)
    assert "tuned" in row
    assert "best" in row


def test_scenarios_of_a_sweep_without_a_run_of_the_baseline_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("aaa", "zzz"):
        write_run(tmp_path / "sw" / "chat" / name / "001", 1, 100.0)
    (tmp_path / "sw" / "sweep.yaml").write_text("baseline: file.yaml:base\n")
    assert cli.main(["report", str(tmp_path / "sw")]) == 2
    assert "contains no finished run of the baseline base; continue with" in capsys.readouterr().err
    for name in ("aaa", "base"):
        write_run(tmp_path / "sw" / "docs" / name / "001", 1, 100.0)
    assert cli.main(["report", str(tmp_path / "sw")]) == 0
    assert "; left out, no finished run of the baseline base: chat" in capsys.readouterr().out
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "sweep.yaml").write_text("baseline: x\n")
    assert cli.main(["report", str(tmp_path / "empty")]) == 2
    assert "contains no finished runs" in capsys.readouterr().err


def test_the_working_directory_is_labelled_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path / "base" / "first", 1, 100.0)
    monkeypatch.chdir(tmp_path / "base")
    assert read_side(Path()).label == "base"
    monkeypatch.chdir("first")
    member = read_side(Path())
    assert (member.label, member.runs[0].label) == ("first", "first")
