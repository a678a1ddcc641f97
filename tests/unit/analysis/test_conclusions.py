"""Conclusions of comparisons: worse figures in every headline, ties, one change everywhere, cache arms, labels of sides."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inferload.analysis.charts.load import FIGURES, Curve, LoadPoint, picture
from inferload.analysis.comparison.best import best_by_goal
from inferload.analysis.comparison.comparable import distinct, shortened
from inferload.analysis.comparison.compare import compare
from inferload.analysis.comparison.output import documents, page, tables
from inferload.analysis.comparison.output import text as output
from inferload.analysis.comparison.sides import NAMES, Side
from inferload.analysis.data.changes import signed
from inferload.analysis.data.figures import ALL, Term
from made_sides import PRIMARY, compared, first, having, made_run, measured, noisy, with_first
from run_folders import edited, write_run

from inferload.figures.table import head_of


def side(label: str, factors: Mapping[str, float], **fields: Any) -> Side:
    """Runs whose figures are 100 times a factor; runs of a pair differ by about 1 %."""
    return noisy(label, {entry.name: 100 * factors.get(entry.name, 1.0) for entry in ALL}, **fields)


# Changes that are far beyond the noise of the pairs, or none.
changes = st.fixed_dictionaries({entry.name: st.sampled_from([0.5, 1.0, 2.0]) for entry in ALL})


def named_as_worse(headline: str, primary: str) -> set[str]:
    """Titles that a headline calls worse."""
    also = set(re.findall(r"; worse: (.+?) is \d", headline))
    return also | ({primary} if f": WORSE, {primary} is " in headline else set())


@given(changes, st.sampled_from(ALL))
def test_the_headline_names_exactly_the_figures_that_are_worse(factors: dict[str, float], chosen: Term) -> None:
    comparison = compare(side("base", {}), side("new", factors), chosen, ALL)
    worse = [row.figure.title for row in comparison.worse]
    bad = [entry.title for entry in ALL if factors[entry.name] != 1 and not entry.change_is_good(factors[entry.name])]
    assert set(bad) <= set(worse)
    headline = output.headline(comparison)
    assert named_as_worse(headline, chosen.title) == set(worse)
    assert ("BETTER" in headline) == (comparison.primary.answer == "better" and not worse)
    assert ("MIXED" in headline) == (comparison.primary.answer == "better" and bool(worse))
    (document,) = documents.document([comparison])["candidates"]
    assert [row["figure"] for row in document["figures"] if row["answer"] == "worse"] == document["worse"]
    assert headline in output.text([comparison])
    assert headline in output.block([comparison])
    (level, annotation), *_ = output.annotations([comparison])
    assert (level == "error", annotation) == (bool(worse), headline)
    # A page of several candidates, as that of a sweep, has them in its first line.
    line = page.summary_line([comparison, compare(side("base", {}), side("same", {}), chosen, ALL)])
    assert set(re.findall(r"[:;] ([^;:]+) is worse", line.partition("; same against")[0])) == set(worse)


@given(changes)
def test_each_worse_figure_of_the_best_side_is_a_trade_off(factors: dict[str, float]) -> None:
    comparison = compared(side("base", {}), side("new", factors))
    worse = "; ".join(row.figure.title for row in comparison.worse)
    decisions = best_by_goal([comparison])
    results = [best for decision in decisions for best in decision.results]
    trade_offs = next((line for line in output.best_notes(decisions) if line.startswith("new: worse than base: ")), "")
    is_best = any((best.label, best.certainty) == ("new", "best") for best in results)
    assert trade_offs == (f"new: worse than base: {worse}" if is_best and worse else "")
    for best, row in ((best, row) for best in results for row in comparison.rows if row.figure == best.figure):
        # The table agrees with the comparison.
        assert (best.certainty == "best") == (row.answer in ("better", "worse"))
        assert (best.label == "new") == (row.figure.change_is_good(1 + (row.change or 0)))


def test_a_figure_without_a_test_is_named_with_its_reason() -> None:
    base, new = side("base", {}), side("new", {})
    lacking = compared(base, having(new, {"p99(itl_ms)": None}, at=[3]))
    assert "not tested: ITL, p99 (not known, or not above 0, on new (003))" in output.remarks(lacking)
    single = compared(first(base, 1), first(new, 1))
    assert output.headline(single).endswith("; not tested: 1 pair of runs: a test needs 3, better 6 or more")
    assert "no difference found" not in output.text([single])


# --- best side


def test_the_best_side_is_tested_against_the_closest_one() -> None:
    factors = {"base": 2.0, "one": 1.0, "two": 1.001}
    comparisons = with_first([side(label, {PRIMARY.name: factor}) for label, factor in factors.items()])
    result = best_by_goal(comparisons)[0].results[0]
    (tied,) = result.tied
    assert (result.certainty, {result.label, tied.label}) == ("tie", {"one", "two"})
    for shown in (output.text(comparisons), output.markdown(comparisons)):
        assert re.search(r"Mean TTFT .*tied with (one|two)(; (about \d+|over 1,000) more pairs?)?", shown)
    (row,) = [row for row in documents.document(comparisons)["best"] if row["figure"] == PRIMARY.name]
    assert (row["best"], row["answer"]) == (None, "tie")
    assert {row["best_value_of"], *row["tied"]} == {"one", "two"}


# --- one change


@given(st.lists(st.tuples(st.floats(1, 1e5), st.floats(1, 1e5)), min_size=1, max_size=9))
def test_a_change_is_one_number_everywhere(pairs: list[tuple[float, float]]) -> None:
    base, new = (
        Side(label, tuple(made_run(seed, dict.fromkeys(NAMES, value), label) for seed, value in enumerate(values)))
        for label, values in zip(("base", "new"), zip(*pairs, strict=True), strict=True)
    )
    comparison = compared(base, new)
    row = comparison.primary
    assert row.effect is not None
    assert row.change == pytest.approx(row.effect.ratio - 1, rel=1e-9, abs=1e-9)
    assert row.candidate == pytest.approx((row.baseline or 0) * row.effect.ratio)
    table = tables.sides([(base, None), (new, base)])
    column = [head_of(head).text for head in table.columns].index("Mean TTFT, ms")
    _, in_table = table.texts[1][column].split(maxsplit=1)
    in_effects = next(cells for cells in tables.effects(comparison).texts if "(primary)" in cells[0])[3]
    assert in_table.strip("()") == in_effects == signed(row.ratio or 0)
    assert len(page.curve(new).points) == len(pairs)


# --- cache arms

ARMS = (("run", "cold", 1500.0), ("run-warm", "warm", 400.0), ("run-warming", "warming", 9000.0))


def arm_run(folder: Path, arm: str, ttft_ms: float, seed: int) -> Path:
    write_run(folder, seed, ttft_ms)
    with edited(folder / "run.json") as manifest, edited(folder / "summary.json") as summary:
        manifest["started_at"] = f"2026-01-0{seed}T{len(folder.name):02}"
        summary["cache"] = {"arm": arm}
    return folder


def arms_folder(folder: Path, arms: Sequence[tuple[str, str, float]], seeds: int = 3, faster: float = 1.0) -> Path:
    for seed in range(1, seeds + 1):
        for name, arm, ttft_ms in arms:
            arm_run(folder / f"{seed}-{name}", arm, (ttft_ms + seed) * faster, seed)
    return folder


def two_folders(folder: Path, arms: Sequence[tuple[str, str, float]]) -> tuple[Path, Path]:
    """Write the runs of a baseline, and of a candidate in half the time, as of a sweep of the scenario `s`."""
    (folder / "sweep.yaml").write_text("baseline: base\n")
    base, new = (arms_folder(folder / "s" / name, arms, faster=at) for name, at in (("base", 1.0), ("new", 0.5)))
    return base, new


@pytest.mark.parametrize("order", list(permutations(ARMS)))
def test_arms_are_never_counted_together(
    tmp_path: Path, command: Callable[..., str], order: tuple[tuple[str, str, float], ...]
) -> None:
    base, new = two_folders(tmp_path, order)
    document = json.loads(command("compare", base, new, "--format", "json"))
    found = {
        (one["baseline"], one["candidate"]): next(row for row in one["figures"] if row["figure"] == PRIMARY.name)
        for one in (*document["candidates"], *document["arms"])
    }
    assert list(found) == [
        ("base, cold", "new, cold"),
        ("base, warm", "new, warm"),
        ("base, cold", "base, warm"),
        ("new, cold", "new, warm"),
    ]
    for (before, after), row in found.items():
        for label, value in ((before, row["baseline"]), (after, row["candidate"])):
            ttft_ms = 1502.0 if "cold" in label else 402.0
            assert value == pytest.approx(ttft_ms * (0.5 if "new" in label else 1.0), rel=1e-3)
    shown = command("compare", base, new)
    assert "base, warm against base, cold: BETTER, Mean TTFT is 73.2% lower" in shown
    assert "base, cold: left out, warmed the cache, not counted: 1-run-warming, 2-run-warming, 3-run-warming" in shown
    assert "9,00" not in shown


def test_every_entry_leaves_warming_runs_out(tmp_path: Path, command: Callable[..., str]) -> None:
    folder, _ = two_folders(tmp_path, [arm for arm in ARMS if arm[1] != "cold"])
    assert "new against base: BETTER, Mean TTFT is 50.0% lower" in command("report", tmp_path)
    assert command("report", folder).startswith("3 runs of s; left out: 3 runs that warmed a cache")
    assert "9,00" not in (folder / "index.html").read_text()
    single = folder / "1-run-warming"
    problem = "warmed the cache for the run after it, and is not counted; name that run"
    assert problem in command("compare", folder / "1-run-warm", single, code=2)
    assert problem in command("baseline", "add", tmp_path / "b.json", single, code=2)


def test_a_sweep_and_a_folder_compare_cold_and_warm_runs(tmp_path: Path, command: Callable[..., str]) -> None:
    folder, _ = two_folders(tmp_path, ARMS[:2])
    assert "s, cold: new, cold against base, cold: BETTER" in command("report", tmp_path)
    shown = (tmp_path / "index.html").read_text()
    assert "base, warm against base, cold: BETTER, Mean TTFT is 73.2% lower" in shown
    assert "<h2>Best by goal</h2>" in shown
    command("report", folder)
    shown = (folder / "index.html").read_text()
    assert re.search(r"warm against .*cold: BETTER, Mean TTFT is 73\.2% lower", shown)
    assert "964" not in shown


def test_a_baseline_has_one_arm(tmp_path: Path, command: Callable[..., str]) -> None:
    file = tmp_path / "b.json"
    cold, warm = (arm_run(tmp_path / name, arm, ttft_ms, 1) for name, arm, ttft_ms in ARMS[:2])
    command("baseline", "add", file, cold)
    assert "cache arm is warm, but cold in occasion run" in command("baseline", "add", file, warm, code=2)
    arms_folder(tmp_path / "new", ARMS[:2], seeds=1)
    document = json.loads(command("compare", "--baseline", file, tmp_path / "new", "--format", "json"))
    assert [row["candidate"] for row in document["candidates"][0]["figures"] if row["primary"]] == [1501.0]
    shown = command("compare", cold, warm)
    assert "compared: cache arm: cold against warm" in shown
    assert "run-warm against run: Mean TTFT is 73.3% lower" in shown


# --- labels and remarks


def with_argv(label: str, *argv: str, started_at: float = 0.0, path: str = "x") -> Side:
    variant = {"name": "tiny-all", "argv": ["vllm", *argv], "started_at": started_at, "memory_mb": started_at}
    return replace(having(measured(label, 1.0), start=None, server={"variant": variant}), path=Path(path))


@pytest.mark.parametrize(
    ("sides", "labels"),
    [
        (
            [
                with_argv("a", "--max-num-seqs", "8", "--port", "1"),
                with_argv("a", "--max-num-seqs", "16", "--port", "2"),
            ],
            ["a (--max-num-seqs 8)", "a (--max-num-seqs 16)"],
        ),
        ([with_argv("a", "--async"), with_argv("a")], ["a (--async)", "a (without --async)"]),
        ([with_argv("a", path="old/a"), with_argv("b"), with_argv("a", path="new/a")], ["old/a", "b", "new/a"]),
        ([with_argv("a"), with_argv("a")], ["a (1)", "a (2)"]),
    ],
)
def test_sides_of_one_name_are_told_apart(sides: list[Side], labels: list[str]) -> None:
    assert [one.label for one in distinct(sides)] == labels


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "b", "a (1)", "x"]), st.lists(st.sampled_from(["--x", "--y"])), st.sampled_from("xy")
        ),
        min_size=1,
        max_size=7,
    )
)
def test_labels_are_distinct(drawn: list[tuple[str, list[str], str]]) -> None:
    sides = [with_argv(label, *argv, path=path) for label, argv, path in drawn]
    labels = [one.label for one in distinct(sides)]
    assert len(set(labels)) == len(labels)
    given_labels = [label for label, *_ in drawn]
    alone = [label for label in given_labels if given_labels.count(label) == 1]
    assert [label for label in labels if label in alone] == alone


LONG = "20261130T091227Z-chat-a100-llama3-8b-simulator"


@pytest.mark.parametrize(
    ("given_names", "labels"),
    [
        ((f"{LONG}-fast", f"{LONG}-slow-tp2"), ("fast", "slow-tp2")),
        ((f"{LONG}-8", f"{LONG}-16"), ("A", "B")),
        ((LONG, LONG.replace("0912", "1012")), ("A", "B")),
        ((LONG, f"{LONG}-agent", "base"), ("A", "B", "base")),
        (("base", f"{LONG}-agent"), ("base", "B")),
        (("b", f"{LONG}-8"), ("b", f"{LONG}-8")),
        ((f"{LONG}-Fast", f"{LONG}-fast"), ("A", "B")),
        (("new", "old"), ("new", "old")),
    ],
)
def test_long_names_of_directories_are_shortened(given_names: Sequence[str], labels: Sequence[str]) -> None:
    sides = [having(measured(name, 100), label=name, path=Path(name)) for name in given_names]
    sides = [replace(side, path=Path("runs") / side.label) for side in sides]
    found = shortened(sides)
    assert tuple(side.label for side in found) == tuple(labels)
    assert [side.name or side.label for side in found] == [*given_names]
    assert [side.runs[0].label for side in found] == [*labels]
    assert shortened([replace(side, path=Path("x")) for side in sides]) == [
        replace(side, path=Path("x")) for side in sides
    ]


@given(st.lists(st.text("ab-1_", min_size=1, max_size=60), min_size=2, max_size=30, unique=True))
def test_shortened_labels_are_distinct(given_names: list[str]) -> None:
    sides = [replace(measured(name, 100), path=Path(name)) for name in given_names]
    labels = [side.label for side in shortened(sides)]
    assert len({*labels}) == len(labels)


def test_the_compared_lines_name_the_argument_that_differs() -> None:
    base = with_argv("a", "--max-num-seqs", "8")
    for seqs, lines in (("16", ("server arguments: --max-num-seqs 8 against --max-num-seqs 16",)), ("8", ())):
        assert compared(base, with_argv("b", "--max-num-seqs", seqs, started_at=5.0)).differences.compared == lines


@pytest.mark.parametrize(
    ("request_settings", "advised"),
    [
        ({"request.ignore_eos": True, "request.endpoint": "chat"}, False),
        ({"request.ignore_eos": False, "request.endpoint": "chat"}, True),
        ({"request.ignore_eos": False, "request.endpoint": "messages"}, False),
        ({"request.ignore_eos": False, "request.endpoint": "chat", "workload.kind": "live_agent"}, False),
        ({}, False),
    ],
)
@pytest.mark.parametrize("length", ["output_tokens", "input_tokens"])
def test_forced_lengths_are_advised_only_where_they_help(
    request_settings: dict[str, object], advised: bool, length: str
) -> None:
    base, new = (having(measured(name, 100), settings=request_settings) for name in ("base", "new"))
    warnings = " ".join(compared(base, having(new, **{length: 200.0})).differences.warnings)
    assert re.search(r"(100\.0% longer|4 times as long)", warnings)
    assert ("fix the lengths" in warnings) == (advised and length == "output_tokens")


@given(st.lists(st.sets(st.sampled_from(FIGURES)), min_size=2, max_size=4))
def test_points_that_are_not_drawn_are_named_beside_the_chart(known: list[set[str]]) -> None:
    points = [
        LoadPoint(f"{index} users", index, {name: 5.0 if name in names else None for name in FIGURES})
        for index, names in enumerate(known)
    ]
    drawn = picture([Curve("", "users", tuple(points))], {})
    if drawn is None:
        return
    lines = {trace["name"]: trace["text"] for trace in drawn.figure["data"]}
    for statistic in ("TTFT p50", "TTFT p95", "ITL p50", "ITL p95"):
        missing = [point.name for point in points if point.name not in lines.get(statistic, [])]
        named = re.search(rf"{statistic} [(](.+?)[)]", drawn.note)
        shown = [] if named is None else named[1].split("; ")
        assert shown == (["all points"] if len(missing) == len(points) else missing)


def test_worse_figures_are_in_the_headline_of_an_unknown_primary_figure() -> None:
    unknown = having(side("new", {"p99(itl_ms)": 2.0}), {PRIMARY.name: None}, start="one")
    headline = output.headline(compared(side("base", {}), unknown))
    assert headline.startswith(
        "new against base: WORSE, Mean TTFT is not tested: not known, or not above 0, on new; worse: ITL, p99 is "
    )
    assert headline.endswith("; holds for these 9 server starts")
