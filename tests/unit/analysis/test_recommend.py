"""Recommendations: the best variant for each aim, its certainty, price and trade-offs."""

import json
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inferload.analysis.comparison.compare import compare
from inferload.analysis.comparison.recommend import AimResult, Recommendation, recommend
from inferload.analysis.comparison.recommend_searches import read_search, with_searches
from inferload.analysis.comparison.recommend_text import json_text, markdown, page, text
from inferload.analysis.comparison.sides import NAMES, Deployment, LoadFigures, Run, Side, deployment, read_side
from inferload.analysis.comparison.tables import ab_block, matrix
from inferload.analysis.comparison.variant_figures import AXES, SLOS, TTFT, max_load
from run_folders import write_run

from inferload import cli, rundir
from inferload.errors import UsageError
from inferload.results.cost import Prices

CHAT = SLOS[0]


def level(load: float, ttft_ms: float | None, tpot_ms: float | None = 30.0, **more: float | None) -> LoadFigures:
    return LoadFigures(load, "users", {"p95(ttft_ms)": ttft_ms, "p95(tpot_ms)": tpot_ms, "failed_ratio": 0.0} | more)


def side(label: str, ttft_ms: float, tpot_ms: float, output: float, jitter: float = 0.01, **more: Any) -> Side:
    """Eight runs with a seed each; `more` are further fields of each run."""
    dice = random.Random(label)
    runs = []
    for seed in range(8):
        common = random.Random(seed).gauss(0, 0.1)
        factor = 2.718 ** (common + dice.gauss(0, jitter))
        figures: dict[str, float | None] = dict.fromkeys(NAMES)
        figures |= {
            "p50(ttft_ms)": ttft_ms * factor,
            "mean(tpot_ms)": tpot_ms * factor,
            "output_tok_per_s": output / factor,
        }
        figures |= {
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


def hardware(gpus: int, gb: float, price: float | None = 2.0, quantization: str = "none") -> dict[str, Any]:
    """Fields of a run: GPUs, their total memory, the price of one GPU for an hour."""
    return {
        "deployment": Deployment(gpus, gb * 1000, 900.0, gpus, quantization),
        "prices": Prices(gpu_hour=price, gpus=gpus),
    }


def three(**more: Any) -> list[Side]:
    return [
        side("full", 450, 42, 1200, loads=(level(40, 300), level(80, 700)), **hardware(1, 16)),
        side("awq", 280, 28, 1800, loads=(level(40, 200), level(80, 400)), **hardware(1, 5, quantization="awq")),
        side("tp2", 380, 48, 2100, loads=(level(40, 250), level(80, 600)), **hardware(2, 16)),
    ]


def results(recommendation: Recommendation) -> dict[str, AimResult]:
    return {result.aim: result for result in recommendation.aims}


def of_section(page: str) -> str:
    """The section of recommendations of a page."""
    return page[page.index('<section id="recommendation-0">') :].partition("</section>")[0] + "</section>\n"


def test_each_aim_has_the_best_variant_with_gain_and_trade_offs() -> None:
    recommendation = recommend("chat", three())
    by_aim = results(recommendation)
    assert {aim: aim_result.variant for aim, aim_result in by_aim.items()} == {
        "lowest TTFT": "awq",
        "highest throughput": "tp2",
        "most users, chat": "awq",
        "most users, batch": None,
        "least memory": "awq",
        "lowest cost": "awq",
        "balanced": "awq",
    }
    fast, many = by_aim["lowest TTFT"], by_aim["highest throughput"]
    assert (fast.certainty, many.certainty) == ("certain", "certain")
    assert fast.change == pytest.approx(280 / 450 - 1, abs=0.03)
    assert fast.low is not None
    assert fast.high is not None
    assert fast.low < fast.change < fast.high < 0
    assert fast.trade_offs == ()
    assert [name for name, _ in many.trade_offs] == ["Mean TPOT", "cost", "GPUs"]
    assert by_aim["most users, chat"].value == 80
    assert "all met the SLO at the highest tested load (80 users)" in by_aim["most users, batch"].remark
    assert by_aim["least memory"].change == pytest.approx(5 / 16 - 1)
    assert by_aim["lowest cost"].change == pytest.approx(1200 / 1800 - 1, abs=0.03)
    assert by_aim["lowest cost"].certainty == "certain"
    assert recommendation.front == ("awq", "tp2")


def test_aims_without_measurements_have_no_variant() -> None:
    recommendation = recommend(
        "chat", [side("a", 100, 10, 500), side("b", 90, 9, 550, deployment=Deployment(memory_mb=100.0))]
    )
    by_aim = results(recommendation)
    assert (by_aim["least memory"].variant, by_aim["least memory"].remark) == (None, "not measured on a")
    assert by_aim["lowest cost"].variant is None
    assert by_aim["most users, chat"].remark.startswith("not measured: too few turns")
    assert json.loads(json_text([recommendation]))["scenarios"][0]["decisions"][4]["variant"] is None


def test_the_best_of_equal_variants_is_not_certain() -> None:
    sides = [side(name, 100, 10, 500, jitter=0.05) for name in "abcdef"]
    assert results(recommend("chat", sides))["lowest TTFT"].certainty == "no difference found"
    few = [replace(member, runs=member.runs[:2]) for member in three()]
    assert results(recommend("chat", few))["lowest TTFT"].certainty == "not tested"


def test_single_runs_of_one_server_have_no_best_variant(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sides = [write_run(tmp_path / name, 1, ttft_ms) for name, ttft_ms in (("base", 100.0), ("again", 99.5))]
    for folder, ttft_ms in zip(sides, (100.0, 99.5), strict=True):
        summary = json.loads((folder / "summary.json").read_text())
        summary["latency"]["ttft_ms"]["p50"] = ttft_ms
        (folder / "summary.json").write_text(json.dumps(summary))
    assert cli.main(["recommend", *map(str, sides), "--write", str(tmp_path / "out")]) == 0
    lines = capsys.readouterr().out.splitlines()
    at = lines.index("  lowest TTFT: not tested")
    few = "1 pair of runs: a test needs 3, better 6 or more"
    assert lines[at + 1 : at + 5] == [
        "      best value: again, TTFT, median: 99.5 ms",
        "      -0.5%",
        f"      trade-offs: figures not tested: {few}",
        f"      not tested against base: {few}",
    ]
    assert "  highest throughput: not tested" in lines
    assert "no significant difference" not in "\n".join(lines)
    assert "<b>" not in of_section((tmp_path / "out" / "recommendation.html").read_text())
    decisions = json.loads((tmp_path / "out" / "recommendation.json").read_text())["scenarios"][0]["decisions"]
    assert (decisions[0]["variant"], decisions[0]["best_value"]) == (None, "again")


def test_only_a_tested_winner_is_bold() -> None:
    shown = of_section(page([recommend("chat", three())]))
    # TTFT, throughput, cost and their balance; memory and loads are counted, not tested.
    assert re.findall("<b>(.+?)</b>", shown) == ["awq", "tp2", "awq", "awq"]
    same = [side(name, 100, 10, 500, jitter=0.05) for name in ("base", "again")]
    recommendation = recommend("chat", same)
    assert "<b>" not in of_section(page([recommendation]))
    assert "no significant difference" in text(recommendation)
    assert "a difference of this size needs about" in text(recommendation)


def test_the_baseline_wins_only_if_all_others_are_significantly_worse() -> None:
    sides = three()
    decided = results(recommend("chat", [sides[1], sides[0], sides[2]]))["lowest TTFT"]
    assert (decided.variant, decided.certainty) == ("awq", "certain")
    close = [sides[1], replace(sides[1], label="twin", runs=sides[0].runs[:2])]
    undecided = results(recommend("chat", close))["lowest TTFT"]
    assert (undecided.variant, undecided.certainty) == ("awq", "not tested")
    assert (
        undecided.remark
        == "it is the baseline; not tested against twin: 2 pairs of runs: a test needs 3, better 6 or more"
    )


def with_ttft(member: Side, values: Sequence[float]) -> Side:
    """Return the side with these medians of TTFT; runs without one are left out."""
    runs = zip(member.runs, values, strict=False)
    return replace(
        member, runs=tuple(replace(run, figures={**run.figures, "p50(ttft_ms)": value}) for run, value in runs)
    )


@pytest.mark.parametrize("last", ["missing", "invalid", "in another variant"])
def test_a_variant_that_is_slower_in_each_pair_is_not_recommended(last: str) -> None:
    base = with_ttft(side("base", 100, 10, 500), (100, 101, 99, 100, 102, 400))
    slower = with_ttft(side("cand", 100, 10, 500), (105, 106.5, 104, 104.5, 107, 90))
    if last == "invalid":
        slower = replace(slower, runs=(*slower.runs[:5], replace(slower.runs[5], level="invalid")))
    else:
        slower = replace(slower, runs=slower.runs[:5])
    # "cand" lacks the slow seed 5 of the other sides.
    complete = with_ttft(side("full", 100, 10, 500), (110, 112, 109, 111, 112, 440))
    sides = [base, slower, *([complete] if last == "in another variant" else [])]
    recommendation = recommend("chat", sides)
    fast = results(recommendation)["lowest TTFT"]
    assert (fast.variant, fast.certainty) == ("base", "certain")
    cand = recommendation.variants[1]
    assert cand.values["p50(ttft_ms)"] == pytest.approx(105.4, abs=0.01)
    assert cand.base is not None
    assert cand.base.values["p50(ttft_ms)"] == pytest.approx(100.4, abs=0.01)
    assert "base" in recommendation.front
    shown = text(recommendation)
    differ = last == "in another variant"
    assert ("Means are over the pairs of each variant" in shown) == differ
    # Both tables.
    assert len(re.findall(r"\n  base, pairs of cand  .*100 ", shown)) == (2 if differ else 0)
    assert len(re.findall(r"\n  base, pairs of full  .*126 ", shown)) == (2 if differ else 0)


def test_one_slow_pair_does_not_decide_the_best_variant() -> None:
    base = with_ttft(side("base", 100, 10, 500), (100, 100, 100, 100, 100, 100, 100, 5000))
    cand = with_ttft(side("cand", 100, 10, 500), (104, 105, 106, 104, 105, 106, 105, 4950))
    fast = results(recommend("chat", [base, cand]))["lowest TTFT"]
    assert (fast.variant, fast.certainty) == ("base", "certain")


def test_gpu_memory_is_not_compared_with_process_memory() -> None:
    base = side("base", 100, 10, 500, deployment=Deployment(memory_mb=100.0))
    new = side("new", 80, 8, 600, deployment=Deployment(gpu_memory_mb=9000.0))
    by_aim = results(recommend("chat", [base, new]))
    assert by_aim["balanced"].variant == "new"
    assert "memory" not in by_aim["balanced"].remark
    assert by_aim["lowest TTFT"].trade_offs == ()
    assert by_aim["least memory"].remark.startswith("not comparable: memory of GPUs on some")


def test_a_lower_cost_is_tested_with_correction_for_all_variants() -> None:
    def priced(label: str, output: float, price: float) -> Side:
        return side(label, 100, 10, output, jitter=0.05, prices=Prices(gpu_hour=price, gpus=1))

    base = priced("base", 500, 2.0)
    cheap = results(recommend("chat", [base, priced("new", 500, 1.0)]))["lowest cost"]
    assert (cheap.variant, cheap.certainty) == ("new", "certain")
    # The best of ten variants needs a larger gain than a single one.
    lucky = priced("lucky", 500, 1.89)
    alone = results(recommend("chat", [base, lucky]))["lowest cost"]
    many = [priced(f"v{at}", 500, 1.99) for at in range(9)]
    several = results(recommend("chat", [base, lucky, *many]))["lowest cost"]
    assert (alone.variant, alone.certainty) == ("lucky", "certain")
    assert (several.variant, several.certainty) == ("lucky", "no difference found")


def test_incomparable_and_invalid_variants_are_left_out_and_named() -> None:
    other = side("other", 10, 1, 9000, settings={"workload.kind": "agent"})
    bad = side("bad", 10, 1, 9000, level="invalid")
    recommendation = recommend("chat", [*three(), other, bad])
    assert {variant.side.label for variant in recommendation.variants} == {"full", "awq", "tp2"}
    assert "other: workload.kind: not set against agent" in recommendation.refusals
    assert "Left out, not comparable with full: bad: bad: run 000 is not a valid measurement" in text(recommendation)
    alone = recommend("chat", [bad])
    assert "NO VALID MEASUREMENT" in text(alone)
    assert text(alone).count("\n  bad (not valid) ") == 2  # the rows of both tables


@pytest.mark.parametrize(
    ("loads", "load", "broken"),
    [
        ([level(10, 300), level(20, 400), level(40, 900)], 20, True),
        ([level(10, 300), level(20, 400)], 20, False),
        ([level(10, 300), level(20, 900), level(40, 400)], 10, True),  # a load above one that broke the SLO is ignored
        ([level(10, 300), level(10, 900)], None, True),
        ([level(10, None)], None, False),
        ([level(10, 300, 60.0)], None, True),
        ([level(10, 300, failed_ratio=0.05)], None, True),
        ([level(10, 300), level(20, 400, None), level(40, None)], 10, False),
        # Few samples are left of a load whose turns failed, and one slow figure is enough for a miss.
        ([level(20, 300), level(40, 300), level(80, None, None, failed_ratio=0.95)], 40, True),
        ([level(20, 300), level(40, 900, None)], 20, True),
        ([level(20, 300), level(40, 300, failed_ratio=None)], 20, False),
    ],
)
def test_the_highest_load_that_meets_the_slo(loads: list[LoadFigures], load: float | None, broken: bool) -> None:
    limit = max_load(CHAT, loads)
    assert (limit.load, limit.missed_above) == (load, broken)


@pytest.mark.parametrize(
    ("baseline", "variant", "change", "remark"),
    [
        ([level(20, 300), level(40, 900)], "new", 1.0, "a higher load missed the SLO"),
        ([level(20, 900), level(40, 900)], "new", None, "a higher load missed the SLO"),
        ([level(20, 300), level(40, None)], None, None, "not measured: base not judged at 40 users"),
        ([level(20, 300), level(40, None), level(80, 900)], None, None, "not measured: base not judged at 40 users"),
        ([level(20, None), level(40, None)], None, None, "not measured: base not judged at 40 users"),
    ],
)
def test_most_users_needs_a_miss_of_each_other_variant(
    baseline: list[LoadFigures], variant: str | None, change: float | None, remark: str
) -> None:
    new = side("new", 90, 9, 550, loads=(level(20, 300), level(40, 300), level(80, 900)))
    sides = [side("base", 100, 10, 500, loads=tuple(baseline)), new]
    aim_result = results(recommend("chat", sides))["most users, chat"]
    assert (aim_result.variant, aim_result.value, aim_result.change) == (variant, 40, change)
    assert aim_result.remark.startswith(remark)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.floats(10, 1000), st.floats(1, 100), st.floats(10, 5000)), min_size=2, max_size=5))
def test_no_variant_of_the_pareto_front_is_dominated(points: list[tuple[float, float, float]]) -> None:
    sides = [
        replace(member, runs=member.runs[:1]) for member in (side(f"v{at}", *point) for at, point in enumerate(points))
    ]
    recommendation = recommend("chat", sides)
    values = {variant.side.label: variant.values for variant in recommendation.variants}
    assert recommendation.front
    for label in recommendation.front:
        own = values[label]
        assert not any(
            other["p50(ttft_ms)"] < own["p50(ttft_ms)"]  # type: ignore[operator]
            and other["mean(tpot_ms)"] < own["mean(tpot_ms)"]  # type: ignore[operator]
            and other["output_tok_per_s"] > own["output_tok_per_s"]  # type: ignore[operator]
            for other in values.values()
        )


@pytest.mark.parametrize("name", ["txt", "md", "json", "html"])
def test_the_text_forms_of_a_recommendation(name: str, golden: Callable[[str, str], None]) -> None:
    recommendation = recommend("chat", three())
    forms = {
        "txt": lambda: text(recommendation),
        "md": lambda: markdown(recommendation),
        "json": lambda: json_text([recommendation]),
        "html": lambda: page([recommendation]),
    }
    shown = forms[name]()
    if name == "html":  # the rest of the page is the page of a comparison
        shown = of_section(shown)
    golden(f"recommendation.{name}", shown)


def test_the_matrix_and_ab_tables(golden: Callable[[str, str], None]) -> None:
    sides = three()
    shown = "\n".join("  ".join(cell.ljust(14) for cell in row).rstrip() for row in matrix(sides))
    golden("tables-ab-matrix.txt", f"{ab_block([compare(*sides[:2], TTFT, AXES)])}\n{shown}\n")


# Numbers of an article (Qwen2.5-7B, without and with AWQ): TTFT P50, P99, TPOT, E2E P50, QPS, tok/s.
PRINTED = {"A": (423.5, 892.1, 38.9, 1654.2, 12.3, 1892), "B": (287.2, 567.3, 26.4, 1123.8, 18.7, 2756)}


def test_gains_of_a_published_ab_table_are_reproduced() -> None:
    names = ("p50(ttft_ms)", "p99(ttft_ms)", "mean(tpot_ms)", "p50(e2e_ms)", "turns_per_s", "output_tok_per_s")
    sides = [
        Side(label, (Run(Path(), label, dict(zip(names, values, strict=True)), ok_and_sent=(100, 100)),))
        for label, values in PRINTED.items()
    ]
    shown = ab_block([compare(*sides, TTFT, AXES)])
    assert "TTFT: ↓ 32.2%" in shown
    assert "QPS: ↑ 52.0%" in shown
    assert "throughput: 1.46x" in shown
    assert shown.count("100/100 (100%)") == 2


def test_low_rates_of_an_ab_table_have_three_digits() -> None:
    sides = [
        Side(label, (Run(Path(), label, dict.fromkeys(NAMES) | {"turns_per_s": value}),))
        for label, value in (("a", 0.0412), ("b", 0.05))
    ]
    (row,) = [row for row in ab_block([compare(*sides, TTFT, AXES)]).splitlines() if row.startswith("QPS")]
    assert [cell.strip() for cell in row.split("|")] == ["QPS", "0.0412", "0.05"]


def test_the_deployment_is_read_from_the_manifest() -> None:
    variant = {
        "engine": "vllm",
        "hardware": {"gpus": 2},
        "argv": ["vllm", "serve", "--tensor-parallel-size", "2", "--quantization=awq"],
        "gpu_memory_mb": {"GPU-a": 9000.0, "GPU-b": 9000.0},
        "memory_mb": 700.0,
    }
    assert deployment(variant) == Deployment(2, 18000.0, 700.0, 2, "awq")
    assert deployment({}) == Deployment()
    assert deployment(variant | {"engine": "simulator"}).memory_mb is None


def test_recommend_reads_run_folders_and_sweeps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, ttft_ms in (("base", 100.0), ("tuned", 80.0)):
        for seed in (1, 2):
            write_run(tmp_path / "sw" / "s" / name / f"00{seed}", seed, ttft_ms + seed)
    (tmp_path / "sw" / "sweep.yaml").write_text("baseline: file.yaml:tuned\n")
    assert cli.main(["recommend", str(tmp_path / "sw"), "--write", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out.startswith("s: best variant for each aim, against tuned")
    assert sorted(path.suffix for path in (tmp_path / "out").iterdir()) == [".html", ".json", ".md"]
    sides = [f"b={tmp_path / 'sw' / 's' / 'base'}", str(tmp_path / "sw" / "s" / "tuned")]
    assert cli.main(["recommend", *sides, "--format", "markdown"]) == 0
    assert "| lowest TTFT | not measured |" in capsys.readouterr().out
    twins = [write_run(tmp_path / name / "twin", 1, 100.0) for name in ("old", "new")]
    assert cli.main(["recommend", *map(str, twins)]) == 0
    assert f"against {twins[0]}\n" in capsys.readouterr().out
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "sweep.yaml").write_text("baseline: x\n")
    assert cli.main(["recommend", str(tmp_path / "empty")]) == 2
    assert "contains no finished runs" in capsys.readouterr().err


def test_scenarios_of_a_sweep_without_a_run_of_the_baseline_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("aaa", "zzz"):
        write_run(tmp_path / "sw" / "chat" / name / "001", 1, 100.0)
    (tmp_path / "sw" / "sweep.yaml").write_text("baseline: file.yaml:base\n")
    assert cli.main(["recommend", str(tmp_path / "sw")]) == 2
    assert "contains no finished run of the baseline base; continue with" in capsys.readouterr().err
    assert cli.main(["report", str(tmp_path / "sw")]) == 2
    for name in ("aaa", "base"):
        write_run(tmp_path / "sw" / "docs" / name / "001", 1, 100.0)
    assert cli.main(["recommend", str(tmp_path / "sw")]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("docs: best variant for each aim, against base")
    assert "chat: best" not in printed.out
    assert "left out, no finished run of the baseline base: chat" in printed.err
    assert cli.main(["report", str(tmp_path / "sw")]) == 0
    assert "; left out, no finished run of the baseline base: chat" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["recommend", "--search"])
def test_a_path_with_an_equals_sign_is_not_a_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    folder = searched(tmp_path / "users=8", 10.0, 12.0)
    if command == "--search":
        assert read_search(str(folder)).label == "users=8"
        assert read_search(f"new={folder}").label == "new"
    else:
        assert cli.main(["recommend", str(folder)]) == 2
        assert "folder of a search; use --search" in capsys.readouterr().err


def test_the_working_directory_is_labelled_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path / "base" / "first", 1, 100.0)
    monkeypatch.chdir(tmp_path / "base")
    assert read_side(Path()).label == "base"
    monkeypatch.chdir("first")
    member = read_side(Path())
    assert (member.label, member.runs[0].label) == ("first", "first")
    monkeypatch.chdir(searched(tmp_path / "new", 10.0, 12.0))
    assert read_search(".").label == "new"


def searched(folder: Path, holds: float | None, breaks: float | None, **more: Any) -> Path:
    """Write a search.json with an answer; the estimate is the middle of the bounds."""
    folder.mkdir(parents=True)
    estimate = None if holds is None or breaks is None else (holds + breaks) / 2
    answer = {"holds": holds, "breaks": breaks, "estimate": estimate, "text": "as found"}
    asked = {"slo": "p95(ttft_ms) < 800", "unit": "sessions/s", "scenario": {"name": "chat-open", "digest": "d"}}
    rundir.write_json(folder / rundir.SEARCH, asked | {"answer": answer} | more)
    return folder


def two() -> Recommendation:
    return recommend("chat", [side("base", 100, 10, 500), side("new", 90, 9, 550)])


@pytest.mark.parametrize(
    ("base", "new", "variant", "remark"),
    [
        ((10.0, 12.0), (12.0, 15.0), "new", "all other variants miss it at this load"),
        ((10.0, 13.0), (12.0, 15.0), "new", "the bounds of the searches overlap"),
        ((10.0, None), (12.0, 15.0), "new", "the bounds of the searches overlap"),
        ((None, 4.0), (None, 5.0), None, "no load met it with certainty"),
    ],
)
def test_searches_give_the_variant_with_the_highest_load(
    tmp_path: Path, base: tuple[float, float], new: tuple[float, float], variant: str | None, remark: str
) -> None:
    arguments = [f"{name}={searched(tmp_path / name, *at)}" for name, at in (("base", base), ("new", new))]
    row = with_searches(two(), [read_search(text) for text in arguments]).aims[-1]
    assert row.variant == variant
    assert remark in row.remark
    assert row.value == (None if variant is None else 12.0)
    if base == (10.0, 12.0):
        assert row.change == pytest.approx(13.5 / 11 - 1)
        assert "bounds of the gain: +0.0% to +50.0%" in row.remark


def test_searches_with_different_slos_are_separate_rows(tmp_path: Path) -> None:
    first = searched(tmp_path / "base", 10.0, 12.0)
    second = searched(tmp_path / "new", 99.0, 120.0, slo="p95(ttft_ms) < 9000")
    rows = with_searches(two(), [read_search(str(path)) for path in (first, second)]).aims[-2:]
    assert [(row.variant, row.change) for row in rows] == [("base", None), ("new", None)]
    assert all("the only searched variant" in row.remark for row in rows)


@pytest.mark.parametrize(
    ("holds", "breaks", "ended"), [(40.0, 15.0, "contradiction"), (40.0, 15.0, "budget"), (15.0, 15.0, "resolved")]
)
def test_a_contradictory_search_is_refused(tmp_path: Path, holds: float, breaks: float, ended: str) -> None:
    answer = {"holds": holds, "breaks": breaks, "estimate": 22.0, "text": "not resolved", "ended": ended}
    folder = searched(tmp_path / "new", None, None, answer=answer)
    with pytest.raises(
        UsageError, match=rf"^--search .*new: {holds:g} sessions/s held the SLO and 15 did not: no answer; "
    ):
        read_search(str(folder))


def test_recommend_takes_searches_and_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sides = [f"{name}={write_run(tmp_path / name, 1, 100.0)}" for name in ("base", "tuned")]
    search = searched(tmp_path / "s", 10.0, 12.0)
    assert cli.main(["recommend", *sides, "--search", f"base={search}"]) == 0
    assert "most users, searched with chat-open: base" in capsys.readouterr().out
    for options, message in (
        (["--search", f"x={search}"], "no such variant; name one of base, tuned"),
        (["--search", f"base={tmp_path}"], "contains no search.json"),
        ([str(search)], "folder of a search; use --search NAME=DIR"),
    ):
        assert cli.main(["recommend", *sides, *options]) == 2
        assert message in capsys.readouterr().err
    rundir.write_json(search / rundir.SEARCH, {"answer": None, "slo": "x", "unit": "users", "scenario": {"name": "s"}})
    assert cli.main(["recommend", *sides, "--search", f"base={search}"]) == 2
    assert "not a sweep of --rates" in capsys.readouterr().err
