"""Best side of a comparison by goal, its certainty, and the pairs that are still needed."""

import html
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import summaries
from hypothesis import given
from hypothesis import strategies as st
from inferload.analysis.comparison import requirements
from inferload.analysis.comparison.best import BestSide, Decision, best_by_goal
from inferload.analysis.comparison.compare import Comparison, compare
from inferload.analysis.comparison.output import documents, tables
from inferload.analysis.comparison.output import text as output
from inferload.analysis.comparison.output.page import of_comparisons, summary_line
from inferload.analysis.comparison.read_sides import read_side
from inferload.analysis.comparison.sides import Run, Side, of_class
from inferload.analysis.data.figures import ALL, BALANCE, COST, figure, primary_of
from inferload.analysis.pages import texts as texts_of_pages
from made_sides import PRIMARY as TTFT
from made_sides import compared, first, having, measured, noisy, with_first
from msgspec import structs
from run_folders import write_run, write_runs
from searches import search_document

from inferload.results.documents.typed_documents import document_of
from inferload.results.prices import Prices
from inferload.scenario import language

TPOT, OUTPUT, GOODPUT, MEDIAN = map(
    figure, ("mean(tpot_ms)", "output_tok_per_s", "goodput_turns_per_s", "p50(ttft_ms)")
)


def side(label: str, ttft_ms: float, tpot_ms: float, output: float, jitter: float = 0.01, **fields: Any) -> Side:
    figures = {TTFT.name: ttft_ms, MEDIAN.name: ttft_ms, "p99(ttft_ms)": 3 * ttft_ms, TPOT.name: tpot_ms}
    figures |= {"p50(e2e_ms)": 40 * tpot_ms, OUTPUT.name: output, "turns_per_s": output / 100}
    return noisy(label, figures, jitter, **{"output_tokens": 100.0, **fields})


def three() -> list[Side]:
    return [
        side("full", 450, 42, 1200, prices=Prices(gpu_hour=2.0, gpus=1)),
        side("awq", 280, 28, 1800, prices=Prices(gpu_hour=2.0, gpus=1)),
        side("tp2", 380, 48, 2100, prices=Prices(gpu_hour=2.0, gpus=2)),
    ]


def decided(sides: Sequence[Side], *texts: str) -> Decision:
    (decision,) = best_by_goal(requiring(sides, *texts))
    return decision


def requiring(sides: Sequence[Side], *texts: str) -> list[Comparison]:
    required = requirements.parse(texts)
    return [replace(each, required=required) for each in with_first(sides)]


def results(sides: Sequence[Side], *texts: str) -> dict[str, BestSide]:
    return {best.figure.name: best for best in decided(sides, *texts).results}


def answer(best: BestSide) -> tuple[str | None, str]:
    return best.label, best.certainty


def test_each_goal_has_the_best_side_with_the_change_from_the_closest_other() -> None:
    found = results(three())
    assert {name: (*answer(best), best.rivals[0].label) for name, best in found.items()} == {
        TTFT.name: ("awq", "best", "tp2"),
        TPOT.name: ("awq", "best", "full"),
        OUTPUT.name: ("tp2", "best", "awq"),
        COST.name: ("awq", "best", "full"),
        BALANCE.name: ("awq", "best", "tp2"),
    }
    assert found[TTFT.name].rivals[0].row.change == pytest.approx(280 / 380 - 1, abs=0.03)
    assert all(best.more_pairs == 0 for best in found.values())
    assert (found[TTFT.name].worse, found[OUTPUT.name].worse) == ((), ("Mean TPOT",))
    assert found[COST.name].value == pytest.approx(2 / 3600 / 1800 * 1e6, rel=0.1)
    assert "tp2: worse than full: Mean TPOT" in output.text(with_first(three()))


def test_a_goal_that_a_side_lacks_has_no_best_side() -> None:
    sides = [side("a", 100, 10, 500), having(side("b", 90, 9, 550), {TPOT.name: None}, at=[3])]
    found = results(sides)
    assert list(found) == [TTFT.name, TPOT.name, OUTPUT.name, BALANCE.name], "no side has goodput or a price"
    assert answer(found[TPOT.name]) == (None, "not measured")
    assert "Mean TPOT: not known, or not above 0, on b" in output.text(with_first(sides))


def test_goodput_of_different_slos_has_no_best_side() -> None:
    sides = [having(side(label, 100, 10, 500), {GOODPUT.name: 5.0}) for label in "ab"]
    assert results(sides)[GOODPUT.name].certainty == "no difference found"
    assert GOODPUT.name not in results([having(sides[0], slo={"ttft_ms": 100.0}), sides[1]])


def test_the_best_of_equal_sides_is_not_certain() -> None:
    fast = results([side(name, 100, 10, 500, jitter=0.05) for name in "abcdef"])[TTFT.name]
    assert fast.certainty == "no difference found"
    assert len(fast.tied) == len(fast.rivals) == 5
    untested = results([first(member, 2) for member in three()])[TTFT.name]
    assert (*answer(untested), untested.more_pairs) == ("awq", "not tested", 4)


def test_the_pairs_that_are_still_needed_suffice() -> None:
    sides = [side("base", 100, 10, 500, jitter=0.1), side("new", 97, 10, 500, jitter=0.1)]
    fast = results(sides)[TTFT.name]
    assert fast.certainty == "no difference found"
    assert fast.more_pairs
    times = 1 + -(-fast.more_pairs // 8)  # repeats of the eight pairs, with their spread

    def repeated(one: Side) -> Side:
        runs = (replace(run, seed=(run.seed or 0) + 100 * at) for at in range(times) for run in one.runs)
        return replace(one, runs=tuple(runs))

    assert results(list(map(repeated, sides)))[TTFT.name].certainty == "best"


@given(st.lists(st.sampled_from([1.0, 1.001, 1.5, 3.0]), min_size=2, max_size=5))
def test_the_best_side_is_better_in_each_comparison(factors: list[float]) -> None:
    sides = [side(f"v{at}", 100 * factor, 10, 500) for at, factor in enumerate(factors)]
    fast = results(sides)[TTFT.name]
    best = next(one for one in sides if one.label == fast.label)
    answers = [compared(other, best).primary.answer for other in sides if other is not best]
    assert (fast.certainty == "best") == all(answer == "better" for answer in answers)
    assert len(fast.tied) == sum(answer != "better" for answer in answers)
    behind = sum(factor >= 1.5 * min(factors) for factor in factors)
    assert len(fast.tied) <= len(sides) - 1 - behind


def test_equal_sides_are_rarely_called_the_best() -> None:
    draws, named = 60, dict.fromkeys((TTFT.name, BALANCE.name), 0)
    for draw in range(draws):
        found = results([side(f"{draw} {name}", 100, 10, 500, jitter=0.05) for name in "abc"])
        named = {name: count + found[name].is_decided for name, count in named.items()}
    assert max(named.values()) / draws <= 0.05


# --- requirements


LINE = "VLLM_X='a b' vllm serve m --quantization awq"


def with_command(sides: Sequence[Side]) -> list[Side]:
    """Return three sides, the second of a variant with a command line."""
    full, awq, tp2 = sides
    return [full, having(awq, server={"variant": {"command_line": LINE}}), tp2]


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
    assert bool(document["winners"]) == any(row["best"] for row in document["best"]) == bool(holding)
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
    assert headline in html.unescape(of_comparisons(comparisons))
    best, last = output.text(comparisons).splitlines()[-2:]
    assert best.startswith("No side is left; of all, best in Mean TTFT; Mean TPOT; ")
    assert last == "No side is left; of all, best in Output: tp2", "without a command line"


def with_summary(member: Side, **document: Any) -> Side:
    return having(member, summary=summaries.summary(document))


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
    base, fast = side("base", 100, 10, 500), side("fast", 50, 5, 900, collapsed="overloaded")
    decision = decided([base, fast])
    assert decision.ruled_out == {"fast": ["overloaded in 8 of 8 runs"]}
    assert [winner.label for winner in decision.winners] == ["base"]
    assert not decided([having(base, collapsed="overloaded"), fast]).ruled_out


def test_the_answers_hold_for_the_server_starts_of_all_sides() -> None:
    sides = [having(one, start=one.label) for one in three()]
    assert decided(sides).holds_for == "these 3 server starts"
    assert decided([*sides[:2], three()[2]]).holds_for == "these 10 server starts"
    assert decided(three()).holds_for == ""


NAMES_AND_UNITS = re.compile(
    r"full|awq|tp2|other|bad|comparison\.json|--format json|TTFT|TPOT|token|turns/s|tok/s|GPU|Holm|Fisher|family-wise error|"
    r"exporter|nvidia-smi|bytes|--[a-z-]+|\S+ [<>] [\d.]+|vllm \d\S+|process_start_time_seconds|not valid|no reason recorded"
)
MEMORY = {"variant": {"gpu_memory_mb": {"1": 900.0}, "weights_gb": 16.0}}
STATED: dict[str, Callable[[list[Side]], list[Side]]] = {
    "without prices": lambda sides: [having(one, prices=Prices()) for one in sides],
    "priced": list,
    "served": lambda sides: [*(having(one, collapsed="overloaded", failed=9) for one in sides[:2]), sides[2]],
    "started": lambda sides: [having(one, start=None) for one in sides],
    "memory": lambda sides: [having(one, server=MEMORY) for one in sides],
    "close": lambda sides: [
        with_summary(
            side(one.label, 100, 10, 500, jitter=0.05, slo={"tpot_ms": 9.0}),
            latency={"tpot_ms": {"count": 500, "p99": 60.0}},
        )
        for one in sides
    ],
    "few": lambda sides: [first(one, 1) for one in sides],
    "apart": lambda sides: [*sides, side("bad", 10, 1, 9000, level="invalid")],
    "unknown": lambda sides: [sides[0], having(sides[1], {TPOT.name: None}), sides[2]],
}


@pytest.mark.parametrize("texts", [[], ["mean(ttft_ms) < 300"], ["mean(ttft_ms) < 277"], ["p97(ttft_ms) < 9"]])
@pytest.mark.parametrize("change", STATED)
def test_a_decision_in_chinese_has_no_words_in_english(texts: list[str], change: str) -> None:
    sides = STATED[change](three())
    with language.used("zh"):
        shown = output.text(requiring(sides, *texts)) + texts_of_pages.tr(summary_line(with_first(sides)))
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
    of_tpot = {"tpot_ms": {"count": 500, "p90": 40.0, "p99": 60.0}}
    sides = [with_summary(side(label, 100, 10, 500, slo=slo), latency=of_tpot) for label in "ab"]
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


@given(st.lists(st.tuples(*[st.sampled_from([1.0, 1.3, 1.9, 3.1])] * 3), min_size=2, max_size=5))
def test_the_balanced_side_has_the_smallest_largest_ratio_to_a_best_value(factors: list[tuple[float, ...]]) -> None:
    sides = [side(f"v{at}", 100 * a, 10 * b, 500 / c, jitter=0) for at, (a, b, c) in enumerate(factors)]
    best = [min(values) for values in zip(*factors, strict=True)]
    ratios = {f"v{at}": max(a / b for a, b in zip(each, best, strict=True)) for at, each in enumerate(factors)}
    found = results(sides)[BALANCE.name]
    assert ratios[found.label or ""] == min(ratios.values())
    assert (found.certainty == "best") == (list(ratios.values()).count(min(ratios.values())) == 1)


GPU_PAGES = [{"target": f"http://{host}:9400", "gpu": {"memory_mib": {"mean": 1.0, "max": 500.0}}} for host in "ab"]
ENGINE = {"target": "http://c:8000", "engines": [{}], "kv_cache_size_tokens": 4096}


@pytest.mark.parametrize(
    ("servers", "variant", "memory"),
    [
        ([*GPU_PAGES, ENGINE], {"weights_gb": 16.0}, {"gpu_memory_gb": 1.048576}),
        ([*GPU_PAGES, {"target": "http://c", "gpu": {}}], {"weights_gb": 16.0}, {"weights_gb": 16.0}),
        ([ENGINE], {"gpu_memory_mb": {"1": 900.0, "2": 900.0}}, {"gpu_memory_gb": 1.8}),
        ([ENGINE], {"gpu_memory_mb": {"1": 900.0}, "hardware": {"gpus": 2}}, {"kv_cache_size_tokens": 4096}),
        ([ENGINE], {"weights_gb": 16.0, "gpu_memory_mb": {}}, {"weights_gb": 16.0}),
        ([ENGINE, ENGINE], {}, {"kv_cache_size_tokens": 8192}),
        ([ENGINE, {**ENGINE, "kv_cache_size_tokens": None}], {}, {}),
    ],
)
def test_memory_is_measured_else_computed_else_the_room_of_the_cache(
    servers: list[dict[str, Any]], variant: dict[str, Any], memory: dict[str, float]
) -> None:
    sides = [with_summary(side(label, 100, 10, 500, server={"variant": variant}), servers=servers) for label in "ab"]
    goals = ("gpu_memory_gb", "weights_gb", "kv_cache_size_tokens")
    assert {name: best.value for name, best in results(sides).items() if name in goals} == pytest.approx(memory)


def test_the_highest_load_is_the_last_step_before_one_beyond_the_limits() -> None:
    def stepped(label: str, *p99_ms: float) -> Side:
        rest = {"turns": summaries.NO_TURNS, "rates": {"slo_attainment": 0.98}}
        steps = [
            {"step": at, "users": 2**at, "latency": {"ttft_ms": {"count": 100, "p99": value}}, **rest}
            for at, value in enumerate(p99_ms)
        ]
        return with_summary(side(label, 50, 10, 500), steps=steps)

    sides = [stepped("a", 100, 200, 400, 200), stepped("b", 100, 200, 250, 280)]
    highest = results(sides, "p99(ttft_ms) < 9999", "p99(ttft_ms) < 300")["highest_load"]
    assert (*answer(highest), highest.value) == ("b", "best", 8)
    assert "highest_load" not in results(sides), "fewer than 99 % of the turns are good"


def test_searches_are_sides_with_the_highest_load_that_holds(tmp_path: Path, command: Callable[..., str]) -> None:
    base, tuned = tmp_path / "base", tmp_path / "tuned"
    for folder, highest in ((base, 4.0), (tuned, 8.0)):
        found = search_document({highest: 0.99, 2 * highest: 0.5})
        folder.mkdir()
        (folder / "search.json").write_text(json.dumps(document_of(found)))
    shown = command("compare", base, tuned)
    assert re.search(r"Load within the limits +tuned +8 +base +\+100.00% .* not tested", shown)
    assert "note: tuned: " in shown
    (base / "search.json").write_text(json.dumps(document_of(structs.replace(found, answer=None))))
    assert "a sweep of loads, without an answer" in command("compare", base, tuned, code=2)


def test_the_last_line_is_the_command_line_of_the_best_side() -> None:
    comparisons = with_first(sides := with_command(three()))
    goals = "Mean TTFT; Mean TPOT; Cost of a million output tokens; Balance"
    assert output.text(comparisons).endswith(f"\nBest in {goals}: awq\n  {LINE}\nBest in Output: tp2\n")
    assert f"Balance: awq\n\n    {LINE}\n\nBest in Output: tp2" in output.markdown(comparisons)
    assert f"<code>{LINE}</code>" in html.unescape(of_comparisons(comparisons))
    document = documents.document(comparisons)
    assert [(each["side"], each["command"]) for each in document["winners"]] == [("awq", LINE), ("tp2", None)]
    single = output.text(with_first([first(one, 1) for one in sides[:2]]))
    assert single.endswith(f"No side is named the best. Not tested: {goals.replace('Cost', 'Output; Cost')}.\n")


@pytest.mark.parametrize("last", ["missing", "invalid", "in another side"])
def test_a_side_that_is_slower_in_each_pair_is_not_the_best(last: str) -> None:
    base = measured("base", 100, 101, 99, 100, 102, 101, 400)
    slower = measured("cand", 105, 106.5, 104, 104.5, 107, 106, 90)
    slower = having(slower, at=[6], level="invalid") if last == "invalid" else first(slower, 6)
    # "cand" lacks the slow seed 6 of the other sides.
    complete = measured("full", 110, 112, 109, 111, 112, 111, 440)
    fast = results([base, slower, *([complete] if last == "in another side" else [])])[TTFT.name]
    assert (*answer(fast), fast.rivals[0].label) == ("base", "best", "cand")
    assert fast.value == pytest.approx(100.5, abs=0.01), "over the pairs with cand"


def test_the_cost_is_tested_at_the_prices_of_the_sides() -> None:
    def priced(label: str, price: float) -> Side:
        return side(label, 100, 10, 500, jitter=0.05, prices=Prices(gpu_hour=price, gpus=1))

    base = priced("base", 2.0)
    assert answer(results([base, priced("new", 1.0)])[COST.name]) == ("new", "best")
    # The primary figure does not differ, so the p of the cost is multiplied.
    assert answer(results([base, priced("near", 1.93)])[COST.name]) == ("near", "no difference found")
    many = [priced(f"v{at}", 1.99) for at in range(9)]
    assert answer(results([base, priced("lucky", 1.94), *many])[COST.name]) == ("lucky", "no difference found")


def test_incomparable_and_invalid_sides_do_not_take_part() -> None:
    other = side("other", 10, 1, 9000, settings={"workload.kind": "agent"})
    bad = side("bad", 10, 1, 9000, level="invalid")
    fast = results([*three(), other, bad])[TTFT.name]
    assert {fast.label, *(rival.label for rival in fast.rivals)} == {"full", "awq", "tp2"}
    shown = output.text(with_first([*three(), other, bad]))
    assert "\nother takes no part: not comparable with full\nbad takes no part: not comparable with full\n" in shown
    for baseline, candidates in ((three()[0], [other, bad]), (bad, three())):
        last = output.text(with_first([baseline, *candidates])).splitlines()[-1]
        names = ", ".join(each.label for each in candidates)
        assert last == f"No side is named the best. Not comparable with {baseline.label}: {names}."


def test_keys_that_may_differ_may_differ_between_candidates() -> None:
    base, *others = (
        side(name, ttft_ms, 10, 500, settings={"arrivals.users": users})
        for name, ttft_ms, users in (("a", 100, 1), ("b", 80, 2), ("c", 60, 3))
    )
    (decision,) = best_by_goal([compared(base, candidate, "arrivals.users") for candidate in others])
    assert answer(decision.results[0]) == ("c", "best")


def test_the_ab_table(golden: Callable[[str, str], None]) -> None:
    golden("table-ab.txt", output.block([compare(*three()[:2], MEDIAN, ALL)]))


# Numbers of an article (Qwen2.5-7B, without and with AWQ): TTFT P50, P99, TPOT, E2E P50, QPS, tok/s.
PRINTED = {"A": (423.5, 892.1, 38.9, 1654.2, 12.3, 1892), "B": (287.2, 567.3, 26.4, 1123.8, 18.7, 2756)}


def test_gains_of_a_published_ab_table_are_reproduced() -> None:
    sides = [
        Side(label, (Run(Path(), label, dict(zip(tables.BLOCK_NAMES, values, strict=True)), ok_and_sent=(100, 100)),))
        for label, values in PRINTED.items()
    ]
    shown = output.block([compare(*sides, MEDIAN, ALL)])
    low = [having(one, {"turns_per_s": 0.0412}) for one in sides]
    assert re.search(r"Turns, turns/s +0\.0412 +0\.0412\n", output.block([compare(*low, MEDIAN, ALL)]))
    assert all(gain in shown for gain in ("TTFT: ↓ 32.2%", "QPS: ↑ 52.0%", "throughput: 1.46x"))
    assert shown.count("100/100 (100%)") == 2


def test_scenarios_of_a_sweep_without_a_run_of_the_baseline_are_left_out(
    tmp_path: Path, command: Callable[..., str]
) -> None:
    (tmp_path / "sweep.yaml").write_text("baseline: file.yaml:base\n")
    assert "contains no finished runs" in command("report", tmp_path, code=2)
    write_runs(tmp_path / "chat" / "aaa", 100.0)
    assert "contains no finished run of the baseline base; continue with" in command("report", tmp_path, code=2)
    for name in ("aaa", "base"):
        write_runs(tmp_path / "docs" / name, 100.0)
    assert "; left out, no finished run of the baseline base: chat" in command("report", tmp_path)


def test_the_working_directory_is_labelled_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path / "base" / "first", 1, 100.0)
    monkeypatch.chdir(tmp_path / "base")
    assert read_side(Path()).label == "base"
    monkeypatch.chdir("first")
    member = read_side(Path())
    assert (member.label, member.runs[0].label) == ("first", "first")
