"""Comparisons: pairing, refusals, tests, files of other clients, and limits on a change."""

import json
import random
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import summaries
from hypothesis import given
from hypothesis import strategies as st
from inferload.analysis.comparison import baselines, costs, max_change
from inferload.analysis.comparison.compare import Comparison, compare, table_rows
from inferload.analysis.comparison.output import documents, page, tables
from inferload.analysis.comparison.output import text as output
from inferload.analysis.comparison.plausible import faults
from inferload.analysis.comparison.read_sides import expanded, read_run, read_side, settings_of_load
from inferload.analysis.comparison.sides import Run, Side, priced
from inferload.analysis.data.figures import ALL, figure
from made_sides import PRIMARY, compared, first, having, measured, of_seeds, sides
from paths import DATA
from run_folders import edited, write_run, write_runs

from inferload import cli
from inferload.base.errors import UsageError
from inferload.base.numbers import NOT_KNOWN
from inferload.figures.limits.gate import GateError
from inferload.results.open_run import OpenRun
from inferload.results.prices import Prices
from inferload.scenario.overrides import ADDED_LATER
from inferload.scenario.scenario import from_text


@pytest.mark.parametrize(
    ("change", "pairs", "answer", "words"),
    [
        (0.10, 8, "worse", "WORSE, Mean TTFT is "),
        (-0.10, 8, "better", "BETTER, Mean TTFT is "),
        (0.0, 8, "no difference found", "smallest detectable change "),
        (0.3, 3, "worse", "p = "),
        (0.3, 5, "worse", "p "),
        (0.5, 2, "not tested", "not tested: 2 pairs of runs: a test needs 3, better 6 or more"),
    ],
)
def test_a_change_is_detected_despite_variation_between_pairs(
    change: float, pairs: int, answer: str, words: str
) -> None:
    found = compared(*sides(change, pairs))
    assert (found.primary.answer, found.regressed) == (answer, answer == "worse")
    assert words in output.headline(found)
    assert found.primary.change == pytest.approx(change, abs=0.05)
    assert pairs == 8 or not (found.primary.effect and found.primary.effect.by_both)


def test_a_comparison_with_the_simulator_is_marked() -> None:
    real, new = sides(0.10, 4)
    simulated = having(new, server={"engine": "simulator", "stands for": "a model on a device"})
    assert output.simulated((real, new)) == []
    (line,) = output.simulated((real, simulated))
    assert line == "new: Simulated server: stands for a model on a device."
    for form in (output.text, output.markdown, page.of_comparisons):
        assert line in form([compared(real, simulated)])


@pytest.mark.parametrize(
    ("starts", "holds_for"),
    [
        (("one", "two"), "these two server starts"),
        (("one", "one"), "this server start"),
        (("one", None), "these 7 server starts"),
        (("", "two"), "the server starts of these runs, which are not known (no process_start_time_seconds)"),
    ],
)
def test_a_verdict_on_shared_server_starts_names_them(starts: tuple[str | None, str | None], holds_for: str) -> None:
    base, new = measured("base", *range(100, 106)), measured("new", *range(200, 206))
    base = having(base, start=starts[0] or None)
    comparison = compared(base, new if starts[1] is None else having(new, start=starts[1]))
    assert comparison.primary.answer == "worse"
    assert output.headline(comparison).endswith(f"; holds for {holds_for}")
    assert f"\nholds for {holds_for}: base has 6 runs on " in output.text([comparison])
    assert documents.document([comparison])["candidates"][0]["condition"]["holds_for"] == holds_for


def test_runs_are_paired_by_seed_and_unpaired_ones_are_named() -> None:
    comparison = compared(measured("base", 100, 100, 100, 100), of_seeds("new", 3, 2, 1, 9))
    assert [(left.seed, right.seed) for left, right in comparison.pairs] == [(1, 1), (2, 2), (3, 3)]
    assert [left.label for left in comparison.unpaired] == ["run-0", "run-9"]
    assert "no run of this seed on the other side: run-0, run-9" in output.text([comparison])


A, B = "a" * 64, "b" * 64
WORKLOADS = {
    "chat": "{kind: chat, prompt_tokens: 5, output_tokens: 5}",
    "tasks": "{kind: tasks}",
    "live_agent": "{kind: live_agent, agent: 'a.py:A'}",
    "mix": "{kind: mix, classes: [{name: a, workload: {kind: chat, prompt_tokens: 5, output_tokens: 5}}, "
    "{name: b, workload: {kind: live_agent, agent: 'a.py:A'}}]}",
}
PROGRAMS: dict[str, list[dict[str, Any] | None]] = {
    **{name: [{"digest": digest} for digest in (A, own)] for name, own in (("own", A), ("mixed", B))},
    "other": [{"digest": B}] * 2,
    "unreadable": [{"digest": None}] * 2,
    "missing": [None] * 2,
    "of inferload": [{"digest": None, "bundled": True}] * 2,
}


def programs(folder: Path, kind: str, of: str) -> Side:
    """Return a side of two runs of a workload with programs of PROGRAMS."""
    for seed, program in enumerate(PROGRAMS[of], 1):
        with edited(write_run(folder / of / str(seed), seed, 100) / "run.json") as manifest:
            manifest["scenario"]["text"] = f"schema: 1\nname: s\nseed: {seed}\nworkload: {WORKLOADS[kind]}\n"
            if program is not None:
                manifest["program"] = {"name": "support.py", "bundled": False, **program}
    return read_side(folder / of)


@pytest.mark.parametrize("kind", WORKLOADS)
@pytest.mark.parametrize(
    ("before", "after", "refusal"),
    [
        ("own", "own", ""),
        ("own", "other", "locustfile: support.py (aaaaaaaaaaaaaaaa) against support.py (bbbbbbbbbbbbbbbb)"),
        ("mixed", "own", "mixed: its runs differ in locustfile"),
        ("unreadable", "unreadable", "locustfile: not recorded"),
        ("unreadable", "own", "locustfile: not recorded"),
        ("of inferload", "of inferload", ""),
        ("of inferload", "own", " against support.py (aaaaaaaaaaaaaaaa)"),
        # The scenario alone determines the turns of a chat, as of a run on the virtual clock, which has no locustfile.
        ("missing", "missing", "unless chat: locustfile: not recorded"),
        ("of inferload", "missing", "unless chat: locustfile: not recorded"),
    ],
)
def test_runs_of_different_programs_are_compared_only_if_allowed(
    before: str, after: str, refusal: str, kind: str, tmp_path: Path
) -> None:
    first = programs(tmp_path, kind, before)
    second = first if before == after else programs(tmp_path, kind, after)
    found = compared(first, second)
    text = "" if kind == "chat" and "unless" in refusal else refusal.removeprefix("unless chat: ")
    assert bool(found.differences.refusals) == bool(text) == (found.primary.answer == "not comparable")
    assert text in "; ".join(found.differences.refusals)
    allowed = compared(first, second, "locustfile").differences
    assert before == "mixed" or allowed.refusals == ()
    assert (text in "; ".join(allowed.compared)) == (text == "" or " against " in text)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("", "request: {wrong_length: stop}"),
        ("", "request: {wrong_length: warn}"),
        ("request: {wrong_length: stop}", "request: {wrong_length: warn}"),
        ("", "abort_on: []"),
        ("abort_on: []", "abort_on: ['failed_ratio > 0.5 for 5s']"),
    ],
)
def test_keys_that_change_no_load_are_no_setting(one: str, other: str, tmp_path: Path) -> None:
    for name, text in (("one", one), ("other", other)):
        with edited(write_run(tmp_path / name / "1", 1, 100) / "run.json") as manifest:
            manifest["scenario"]["text"] += f"\n{text}\n"
    read = [read_side(tmp_path / name) for name in ("one", "other")]
    for pair in (read, read[::-1]):
        assert compared(*pair).differences.refusals == ()
    file = tmp_path / "b.json"
    baselines.add(file, [tmp_path / "one"])
    with edited(file) as document:  # of an earlier version
        document["occasions"][0]["settings"] |= {"request.wrong_length": "stop", "abort_on": []}
    for side in read:
        assert compared(baselines.read(file), side).differences.refusals == ("seed: 1 against not set",)


def test_keys_without_a_part_in_the_digest_are_no_setting() -> None:
    """A scenario recorded before such a key has the same digest, and the same settings."""
    parts = "arrivals: {kind: closed, users: 1, spawn_per_s: 1}\nphases: {measure_s: 1}\n"
    data = from_text(f"schema: 1\nname: s\nworkload: {WORKLOADS['chat']}\n{parts}", "s.yaml").as_data()
    for path, default in ADDED_LATER.items():
        folder, _, key = path.rpartition(".")
        assert (data[folder] if folder else data)[key] == default
        assert settings_of_load({path: default, "workload.kind": "chat"}) == {"workload.kind": "chat"}


def test_different_workloads_are_compared_only_if_allowed() -> None:
    settings = {"workload.kind": "chat", "workload.turns": 3}
    before, after = measured("base", 100), having(measured("new", 100), settings=settings)
    comparison = compared(before, after)
    line = "workload.turns: not set against 3"
    assert output.headline(comparison) == f"new against base: not comparable because of {line}"
    allowed = compared(before, after, "workload.turns")
    assert (comparison.primary.answer, allowed.primary.answer) == ("not comparable", "not tested")
    assert f"compared: {line}" in output.text([allowed])


@given(st.integers(0, 60), st.integers(0, 60))
def test_many_differences_are_counted_and_folded_with_those_of_both_sides_first(both: int, one: int) -> None:
    keys = {f"a.{number:02}": 1 for number in range(one)} | {f"z.{number:02}": 1 for number in range(both)}
    base, new = sides(0.0, pairs=1)
    others = {key: 2 for key in keys if key.startswith("z")}
    comparison = compared(having(base, settings=keys), having(new, settings=others))
    all_of_them, (count, left_out) = list(comparison.differences.refusals), output.folded(comparison)
    assert [line[0] for line in all_of_them] == ["z"] * both + ["a"] * one
    shown = [line for line in output.remarks(comparison) if line.startswith("not comparable: ")]
    kept = [f"not comparable: {line}" for line in all_of_them[: len(all_of_them) - len(left_out)]]
    assert shown == (kept if not left_out else [*kept, count])
    assert len(shown) <= 6
    assert f" {len(left_out)} more" in count or not left_out
    of_page = page.of_comparisons([comparison])
    assert of_page.count(f"{len(left_out)} more differences</summary>") == bool(left_out)
    assert all(line in of_page for line in all_of_them)


def with_server(side: Side, second_half: dict[str, Any], **fields: Any) -> Side:
    """Return the side with a variant; the second half of its runs has other values of the server, and these fields."""
    server = {"engine": "vllm 0.32.0", "model": "m", "inferload": "1.0", "variant": variant("8")}
    later = range(len(side.runs) // 2, len(side.runs))
    return having(having(side, server=server), at=later, server={**server, **second_half}, **fields)


def variant(max_num_seqs: str, name: str = "v", port: str = "8000", **more: Any) -> dict[str, Any]:
    return {"name": name, "argv": ["/x/vllm", "serve", "--port", port, "--max-num-seqs", max_num_seqs], **more}


@pytest.mark.parametrize(
    ("second_half", "fields", "line"),
    [
        ({"variant": variant("256")}, {}, "server arguments: --max-num-seqs 256, --max-num-seqs 8"),
        ({"variant": variant("8", "w")}, {}, "variant: v, w"),
        ({"model": "n"}, {}, "model: m, n"),
        ({"engine": "vllm 0.33.0"}, {}, "engine: vllm 0.32.0, vllm 0.33.0"),
        ({"inferload": "1.1"}, {}, "inferload: 1.0, 1.1"),
        ({}, {"slo": {"ttft_ms": 500.0}}, "slo: none, ttft_ms 500"),
        ({"variant": variant("8", port="8001", started_at=1.0, memory_mb=5.0), "target": "http://h:8001"}, {}, ""),
    ],
)
def test_a_side_with_two_configurations_is_not_comparable(
    second_half: dict[str, Any], fields: dict[str, Any], line: str
) -> None:
    base, new = sides(0.10, 6)
    comparison = compared(with_server(base, {}), with_server(new, second_half, **fields))
    assert comparison.primary.answer == ("not comparable" if line else "worse")
    assert comparison.differences.refusals == ((f"new: its runs differ in {line}",) if line else ())


def test_answers_of_different_models_are_named() -> None:
    base, new = (with_server(side, {}) for side in sides(0.10, 6))
    for name, remark in (("n", "; answers of different models, whose quality is not compared"), ("/data/M", "")):
        other = having(new, server={**new.runs[0].server, "model": name})
        assert compared(base, other).differences.compared == (f"model: m against {name}{remark}",)


def test_an_invalid_run_is_refused_and_a_suspect_one_noted() -> None:
    base, new = measured("base", 100), measured("new", 90)
    reasons = ("the client was late",)
    invalid = compared(base, having(new, level="invalid", reasons=reasons))
    assert "new: run run-0 is not a valid measurement (the client was late)" in output.headline(invalid)
    suspect = compared(base, having(new, level="suspect", reasons=reasons))
    assert "new: run run-0 is suspect (the client was late)" in output.text([suspect])
    assert "new (not valid)" in output.text([invalid])
    assert "With the change" not in page.of_comparisons([invalid])
    prices = Prices(2.5, 1)
    (table,) = costs.table(table_rows([compared(*(priced(with_output(each), prices) for each in invalid.paired))]))
    assert (table.rows[1][0], table.rows[1][4]) == ("new (not valid)", "")


def test_an_invalid_run_is_left_out_with_its_pair() -> None:
    baseline, candidate = sides(0.10, 8)
    comparison = compared(having(baseline, {PRIMARY.name: 9000.0}, at=[0], level="invalid"), candidate)
    assert (comparison.primary.answer, len(comparison.pairs)) == ("worse", 7)
    assert (comparison.primary.baseline or 9000) < 1000
    assert "base: left out with their pairs, measurement not valid: run-0" in output.text([comparison])


def with_output(side: Side) -> Side:
    """Return the side with an output in proportion to 1 / TTFT."""
    return side.with_runs(
        lambda run: replace(run, figures={**run.figures, "output_tok_per_s": 1e5 / (run.value(PRIMARY.name) or 1)})
    )


@pytest.mark.parametrize("last", ["missing", "invalid"])
def test_means_and_changes_are_over_the_pairs(last: str) -> None:
    base = measured("base", 100, 101, 99, 100, 102, 400)
    new = measured("new", 105, 106.5, 104, 104.5, 107, 90)
    new = first(new, 5) if last == "missing" else having(new, at=[5], level="invalid")
    comparison = compared(base, new)
    row = comparison.primary
    assert (row.answer, row.baseline, row.candidate) == (
        "worse", pytest.approx(100.4, abs=0.01), pytest.approx(105.4, abs=0.01)
    )  # fmt: skip
    assert "-29.95%" not in output.text([comparison])
    # Candidates with other pairs have their own column, or row, of the baseline.
    both = [comparison, compared(base, replace(base, label="all"))]
    heads = r"\n  figure +base, pairs of new +new  base, pairs of all +all\n  runs +5 +5 +6 +6\n"
    assert re.search(heads, output.text(both))
    assert re.search(r" 100\.4  105\.4 \+4\.98% worse +126\.4 ", output.text(both))
    assert re.search(r"\n\| new against base, pairs of new \|.* 105\.4 \+4\.98% ", output.markdown(both))
    prices = Prices(2.5, 1)
    (table,) = costs.table(table_rows([compared(*(priced(with_output(side), prices) for side in (base, new)))]))
    assert table.rows[1][4] == "+5.0%"


def test_without_pairs_the_means_are_over_all_runs_and_marked() -> None:
    comparison = compared(measured("base", 100, 120), of_seeds("new", 3))
    assert comparison.primary.baseline == pytest.approx((100 * 120) ** 0.5)
    shown = output.text([comparison])
    assert "Mean TTFT is not tested: no valid runs of the two sides have the same seed" in shown
    assert "left out" not in shown
    base, new = (
        having(measured(label, 100, 120), at=[at], level="invalid") for at, label in enumerate(("base", "new"))
    )
    for text in (shown, output.text([compared(base, new)])):
        assert "no pairs: the means are over all runs, of different seeds" in text


def test_goodput_with_different_slos_is_not_compared() -> None:
    base, new = (having(measured("a", 100), slo={"ttft_ms": limit}) for limit in (500.0, 5000.0))
    figures = [{row.figure.name for row in compared(base, other).rows} for other in (new, base)]
    assert figures[1] - figures[0] == {"goodput_turns_per_s"}


def test_energy_is_compared_where_a_side_has_it() -> None:
    def side(label: str, joules: float | None) -> Side:
        return having(measured(label, *[100] * 6), {"j_per_output_token": joules})

    rows = [compared(side("a", a), side("b", b)).rows for a, b in ((2.0, 1.0), (None, 1.0), (None, None))]
    assert [[row.answer for row in of if row.figure.name == "j_per_output_token"] for of in rows] == [
        ["better"],
        ["not known"],
        [],
    ]


@pytest.mark.parametrize("name", ["goodput_turns_per_s", "slo_attainment"])
def test_a_primary_figure_of_different_slos_is_not_comparable(name: str) -> None:
    def side(label: str, ttft_ms: float) -> Side:
        return having(measured(label, *[100] * 6), {name: 2.0}, slo={"ttft_ms": ttft_ms})

    line = "slo: ttft_ms 500 against ttft_ms 5000: goodput, attainment and cost of good turns are not comparable"
    base, new = side("base", 500), side("new", 5000)
    comparison, of_ttft = compare(base, new, figure(name), ALL), compared(base, new)
    assert output.headline(comparison) == f"new against base: not comparable because of {line}"
    assert line in documents.json_text([comparison])
    assert of_ttft.primary.answer == "no difference"
    assert all(f"note: {line}" in output.text([each]) for each in (comparison, of_ttft))
    assert "slo:" not in output.text([compared(base, side("same", 500))])


def test_max_change_of_goodput_fails_with_different_slos(tmp_path: Path, command: Callable[..., str]) -> None:
    old, new = write_run(tmp_path / "old", 1, 100), write_run(tmp_path / "new", 1, 100)
    for folder, limit in ((old, 500), (new, 5000)):
        with edited(folder / "run.json") as manifest, edited(folder / "summary.json") as summary:
            manifest["scenario"]["text"] += f"slo: {{ttft_ms: {limit}}}\n"
            summary["rates"]["goodput_turns_per_s"] = 2.0
    words = ("compare", old, new, "--max-change")
    failed = "'goodput_turns_per_s -5%' FAILED: not comparable because of slo: ttft_ms 500 against ttft_ms 5000"
    assert failed in command(*words, "goodput_turns_per_s -5%", code=4)
    command(*words, "turns_per_s -5%")


def test_the_block_of_incomparable_sides_has_no_gains(tmp_path: Path, command: Callable[..., str]) -> None:
    old, new = write_run(tmp_path / "old", 1, 100), write_run(tmp_path / "new", 1, 50)
    words = ("compare", old, new, "--format", "block")
    assert "[gains of new]\n  TTFT: not measured\n  QPS: ↑ 0.0%\n  throughput: 1.00x\n" in command(*words)
    with edited(new / "summary.json") as summary:
        reasons = [{"code": "client_delay", "text": "the client was late"}]
        summary["verdict"] = {"measurement": "invalid", "reasons": reasons}
    shown = command(*words)
    line = "not comparable: new is not a valid measurement (the client was late)"
    assert f"[gains of new]\n  {line}\n" in shown
    assert "new (not valid)" in shown
    assert not re.search("↑|throughput: ", shown)
    assert "Significance level" not in command("compare", old, new), "nothing was tested"
    other = write_run(tmp_path / "other", 1, 50, prompt=30)
    assert "  not comparable: workload.prompt_tokens: 20 against 30\n" in command(words[0], old, other, *words[3:])


def test_shorter_outputs_are_noted() -> None:
    base, new = measured("base", 100), measured("new", 100)
    for tokens, line in (
        (40.0, "the candidate's outputs are 20.0% shorter (40 against 50 tokens)"),
        (0.0, "the length of outputs is not known on both sides"),
        (None, "the length of outputs is not known on both sides"),
    ):
        assert line in output.text([compared(base, having(new, output_tokens=tokens))])


def test_costs_per_million_tokens_and_per_thousand_good_turns() -> None:
    def side(label: str, tokens: float, good: float, cached: float | None) -> Side:
        figures = {"output_tok_per_s": tokens, "goodput_turns_per_s": good}
        return having(measured(label, 100), figures, cached_tokens=cached)

    plain, cached, slow = side("plain", 1000, 10, 0), side("cached", 2000, 25, 90), side("slow", 500, 0, None)
    prices = Prices(2.5, 2, 0.1)
    base, *others = (priced(member, prices) for member in (plain, cached, slow))
    strict = having(others[0], slo={"ttft_ms": 500.0})
    (table,) = costs.table([(base, None), *((other, base) for other in (*others, strict))])
    assert [row[3:] for row in table.texts] == [
        ["1.389", "", "138.9", "", "100 % of uncached"],
        ["0.6944", "-50.0%", "55.56", "-60.0%", "19 % of uncached"],
        ["2.778", "+100.0%", "none met the SLO", "", "not measured"],
        ["0.6944", "-50.0%", "55.56", "", "19 % of uncached"],  # good turns of different SLOs
    ]
    machine = having(plain, server={"variant": {"hardware": {"gpus": 0}}})
    assert priced(machine, Prices(gpu_hour=2.5)).runs[0].prices.gpus == 1  # as `deploy up` and a sweep record it
    assert priced(machine, Prices(gpus=3)).runs[0].prices == Prices(gpus=3)
    assert priced(machine, Prices()).runs[0].prices == Prices()
    assert costs.table([(plain, None), (cached, plain)]) == []
    assert costs.note([plain]) == costs.WITHOUT_PRICE
    assert "(--gpus)" in costs.note([priced(plain, Prices(gpu_hour=2.5))])
    with pytest.raises(UsageError, match="mixed: its runs have different prices"):
        costs.of_side(Side("mixed", (*base.runs, *cached.runs)))


def test_a_side_without_a_path_is_not_the_working_directory() -> None:
    for argument in ("", "base="):
        with pytest.raises(UsageError, match="no path"):
            expanded(argument)


@pytest.mark.parametrize(
    ("form", "name"), [(output.text, "txt"), (output.markdown, "md"), (documents.json_text, "json")]
)
def test_the_text_forms_of_a_comparison(
    form: Callable[[list[Comparison]], str], name: str, golden: Callable[[str, str], None]
) -> None:
    baseline, candidate = sides(0.10, 8)
    other = Side("same", sides(0.0, 8, seed=5)[1].runs)
    both = [compared(baseline, candidate), compared(baseline, other)]
    golden(f"comparison.{name}", form(both[:1] if name == "json" else both))


def test_junit_counts_failed_and_skipped_figures() -> None:
    suite = ElementTree.fromstring(documents.junit([compared(*sides(0.3, 8))]))[0]
    failed = [case.get("name") for case in suite if case.find("failure") is not None]
    assert failed == ["mean(ttft_ms)", "turns_per_s", "mean(e2e_ms)"]
    cases = len(ALL) + 1  # with failed turns, which are unknown
    counts = {"tests": cases, "failures": 3, "skipped": cases - 3}
    assert {name: int(suite.get(name, "")) for name in counts} == counts
    assert len(suite) == cases


# --- files


def test_a_side_is_a_run_or_a_folder_of_runs_without_the_incomplete_ones(tmp_path: Path) -> None:
    base = tmp_path / "base"
    write_run(base / "b", 2, 90)
    write_run(base / "a", 3, 110, name="another-name")
    write_run(base / ".broken-001-ab", 3, 110)
    (write_run(base / "002", 4, 95) / "summary.json").unlink()
    side = read_side(base)
    assert ([member.seed for member in side.runs], side.left_out) == ([2, 3], ("no summary: 002",))
    assert "base: left out, no summary: 002" in output.text([compared(side, side)])
    assert side.mean("mean(ttft_ms)") == pytest.approx((90 * 110) ** 0.5)
    assert side.runs[0].settings == side.runs[1].settings
    assert side.runs[0].output_tokens == 50
    assert read_side(base / "a").runs[0].value("total_tok_per_s") == 140


def class_run(folder: Path, seed: int, ttft_ms: float, only: str | None) -> Path:
    """A run of a mix with the classes `a`, of 10 turns, and `b`; or of class `only` alone."""
    write_run(folder, seed, 10_000.0)
    with edited(folder / "run.json") as manifest, edited(folder / "summary.json") as summary:
        manifest["scenario"]["text"] = json.dumps({"workload": {"kind": "mix", "only": only}})
        block = {name: summary[name] for name in ("sessions", "rates")}
        block |= {
            "turns": {"ok": 9, "sent": 10, "failed": 1, "unfinished": 0},
            "latency": {"ttft_ms": {"count": 9, "mean": ttft_ms}},
        }
        summary["by_class"] = {"a": block} if only else {"a": block, "b": block}
    return folder


def test_a_class_of_a_mix_is_compared_with_a_run_of_that_class(tmp_path: Path, command: Callable[..., str]) -> None:
    alone, mix = class_run(tmp_path / "alone", 1, 100.0, "a"), class_run(tmp_path / "mix", 1, 150.0, None)
    (candidate,) = json.loads(command("compare", alone, mix, "--class", "a", "--format", "json"))["candidates"]
    (ttft,) = [row for row in candidate["figures"] if row["figure"] == "mean(ttft_ms)"]
    assert (ttft["baseline"], ttft["candidate"]) == (100.0, 150.0)
    assert (candidate["pairs"], candidate["refusals"]) == (1, [])
    assert candidate["compared"] == ["only class: a against not set"]
    assert "workload.only: a against not set" in command("compare", alone, mix)
    for options, message in (
        ([], f"compare: {alone}: no candidate"),
        ([mix, "--class", "b"], f"--class b: no such class in {alone}; choose from a"),
        ([RESULTS / "guidellm.json", "--class", "a"], "has no classes; name run directories"),
        ([mix, "--class", "a", "--gpu-hour-price", "2"], "omit --class or the prices"),
    ):
        assert message in command("compare", alone, *options, code=2)


@pytest.mark.parametrize("other", ["a", "b", None])
def test_other_answers_to_the_canary_prompts_without_load_are_a_remark(
    other: str | None, tmp_path: Path, command: Callable[..., str]
) -> None:
    runs = [write_run(tmp_path / name, 1, 100.0) for name in ("one", "two")]
    for folder, digest in zip(runs, ("a", other), strict=True):
        with edited(folder / "summary.json") as summary:
            summary["canary"] = digest and {"asked": 9, "by_class": {"ok": 9}, "references_sha256": digest}
    text = "the answers to the canary prompts without load differ between the sides"
    assert (text in command("compare", *runs)) == (other == "b")


def test_each_class_is_compared_with_itself_alone_and_the_one_that_loses_most_is_named(
    tmp_path: Path, command: Callable[..., str]
) -> None:
    alone = [class_run(tmp_path / f"alone-{name}", 1, 100.0, name) for name in "ab"]
    mix = class_run(tmp_path / "mix", 1, 150.0, None)
    attained = {alone[0]: {"a": 0.9}, alone[1]: {"b": 0.96}, mix: {"a": 0.85, "b": 0.6}}
    for folder, of_class in attained.items():
        with edited(folder / "summary.json") as summary:
            of_a = summary["by_class"]["a"]
            summary["by_class"] = {
                name: of_a | {"rates": {"slo_attainment": share}} for name, share in of_class.items()
            }
    words = ("compare", *alone, mix, "--class", "a", "--class", "b")
    found = command(*words)
    assert "Loses most: b, 36.0 points of its SLO attainment." in found
    assert "not tested: 1 pair of runs: a test needs 3" in found
    found = json.loads(command(*words, "--format", "json"))["candidates"]
    shares = [
        (row["baseline"], row["candidate"]) for each in found for row in each["figures"] if "slo" in row["figure"]
    ]
    assert shares == [(0.9, 0.85), (0.96, 0.6)]
    assert "No class attains less of its SLO." in command("compare", mix, alone[0], alone[1], *words[-4:])
    with edited(mix / "run.json") as manifest:
        manifest["scenario"]["text"] = json.dumps({"workload": {"kind": "mix"}, "slo": {"ttft_ms": 1}})
    found = command(*words)
    assert "It is not known which class loses most: attainment of a and b is not known or not comparable." in found
    assert "Loses most" not in found
    assert "--class c: 0 of the sides has turns of it" in command(*words, "--class", "c", code=2)


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda path: None, "no such file or directory"),
        (lambda path: path.mkdir(), "no run directory, and contains none"),
        (
            lambda path: path.write_text("{}"),
            "no result of vllm bench serve, SGLang bench_serving, AIPerf, GuideLLM, genai-bench, ",
        ),
        (lambda path: (write_run(path, 1, 100) / "summary.json").unlink(), "the run ended before it was written"),
        (lambda path: path.write_text('{"request_throughput": 1'), "cannot be read as JSON"),
        (
            lambda path: path.write_text('{"aiperf_version": "1", "input_config": 3}'),
            "looks like a result of AIPerf 1, but",
        ),
    ],
)
def test_a_path_without_results_is_refused(tmp_path: Path, write: Callable[[Path], object], message: str) -> None:
    write(tmp_path / "x")
    with pytest.raises(UsageError, match=message):
        read_side(tmp_path / "x")


def test_without_known_server_starts_the_gate_follows_the_figures(tmp_path: Path, command: Callable[..., str]) -> None:
    base = write_runs(tmp_path / "base", *(100 + seed for seed in range(1, 8)))
    new = write_runs(tmp_path / "new", *(120 + seed * 1.1 for seed in range(1, 8)))
    words = ("compare", base, f"tuned={new}", "--write", tmp_path / "out")
    # Without a metrics page the server starts are unknown.
    shown = command(*words, "--fail-on-regression", code=4)
    assert "base has 7 runs on unknown server starts; tuned has 7 runs on unknown server" in shown
    same = ("compare", base, f"again={base}", "--fail-on-regression")
    command(*same)
    refused = "--strict: again: the verdict holds for the server starts of these runs"
    assert refused in command(*same, "--strict", code=4)
    suffixes = {path.name for path in (tmp_path / "out").iterdir()}
    assert suffixes == {f"comparison.{suffix}" for suffix in ("html", "json", "md", "xml")}
    assert "did you mean ttft_ms?" in command(*words, "--primary", "p95(tftt_ms)", code=2)


RESULTS = DATA / "results"
LEFT_OUT = "and are not in the latencies"


@pytest.mark.parametrize("name", ["vllm-bench", "vllm-rs", "aiperf", "guidellm", "genai-bench"])
def test_results_of_other_clients_are_read(name: str) -> None:
    # All five measured one paced server: 20 streams, TTFT 50 ms, a gap of 10 ms, 100 tokens per turn.
    (result,) = read_side(RESULTS / f"{name}.json").runs
    assert (result.output_tokens, result.concurrency) == (100, 20)
    assert result.value("mean(ttft_ms)") == pytest.approx(50, rel=0.2)
    assert result.value("turns_per_s") == pytest.approx(19, rel=0.05)
    assert result.value("output_tok_per_s") == pytest.approx(1900, rel=0.05)
    assert (result.value("mean(itl_ms)") is None) == (name in ("guidellm", "genai-bench"))
    # The TPOT of GuideLLM is without the first token.
    for figure_name, truth in (("p50(itl_ms)", 10), ("mean(tpot_ms)", 10), ("p50(e2e_ms)", 1040)):
        value = result.value(figure_name)
        assert value is None or value == pytest.approx(truth, rel=0.03 if name == "guidellm" else 0.05)
    assert faults(result.figures, result.concurrency, result.input_tokens, result.output_tokens) == []


@pytest.mark.parametrize(
    ("client", "changes", "ttft_ms", "notes"),
    [
        (
            "vllm-bench",
            {"completed": 0, "failed": 560, "mean_ttft_ms": 0.0},
            None,
            [f"560 of its 560 requests failed {LEFT_OUT}"],
        ),
        ("vllm-bench", {"mean_ttft_ms": float("nan")}, None, []),
        ("vllm-bench", {"failed": 140}, 50, [f"140 of its 700 requests failed {LEFT_OUT}"]),
        (
            "aiperf",
            {"request_count": {"avg": 380.0}, "error_request_count": {"avg": 20.0}},
            50,
            [f"20 of its 400 requests failed {LEFT_OUT}"],
        ),
        (
            "aiperf",
            {"error_summary": [{"count": 3}, {"count": 2}], "was_cancelled": True},
            50,
            [f"5 of its requests failed {LEFT_OUT}", "it was cancelled before its end"],
        ),
        ("aiperf", {"request_count": {"avg": 400.0}, "error_summary": [], "was_cancelled": False}, 50, []),
        (
            "guidellm",
            {"request_totals": {"successful": 380, "incomplete": 19, "errored": 20, "total": 419}},
            50,
            [f"20 of its 400 requests failed {LEFT_OUT}", f"19 of its requests were unfinished at the end {LEFT_OUT}"],
        ),
        ("guidellm", {"request_totals": {"successful": 400, "incomplete": 0, "errored": 0, "total": 400}}, 50, []),
    ],
)
def test_failed_requests_of_another_client_are_noted_and_have_no_latency(
    tmp_path: Path, client: str, changes: dict[str, Any], ttft_ms: float | None, notes: list[str]
) -> None:
    file = Path(shutil.copy(RESULTS / f"{client}.json", tmp_path))
    with edited(file) as document:
        (document["benchmarks"][0]["metrics"] if client == "guidellm" else document).update(changes)
    (result,) = read_side(file).runs
    assert result.value("mean(ttft_ms)") == (ttft_ms and pytest.approx(ttft_ms, rel=0.2))
    assert [note for note in result.notes if "of its" in note or "cancelled" in note] == notes


def test_results_of_two_clients_are_not_comparable() -> None:
    comparison = compared(read_side(RESULTS / "vllm-bench.json"), read_side(RESULTS / "aiperf.json"))
    assert output.headline(comparison).startswith(
        "aiperf against vllm-bench: not comparable because of client: vllm bench serve against AIPerf 0.13.0"
    )


# --- published figures


def test_mean_tokens_are_over_the_turns_that_reported_them(tmp_path: Path) -> None:
    """Rejected turns have tokens and are not successful; failed ones may have no count."""
    folder = write_run(tmp_path / "run", 1, 50.0)
    counts = {"ok": 80, "output_tokens": 10_000, "output_tokens_from": 100}  # 20 of 100 turns were rejected
    tokens = {"input_tokens": 2_000, "input_tokens_from": 50, "cached_tokens": 500}
    with edited(folder / "summary.json") as summary:
        summary["turns"]["by_phase"]["measure"] = summaries.NO_TURNS | counts | tokens
    result = read_run(OpenRun(folder))
    assert (result.output_tokens, result.input_tokens, result.cached_tokens) == (100, 40, 10)


def test_only_other_clients_are_checked_for_contradictions() -> None:
    """The verdict of a run checks its own figures, over the turns and tokens of its window."""
    base, new = sides(0.1, 6)
    for level, faults_found in (("valid", 0), ("not judged", 12)):
        odd = having(base, {"output_tok_per_s": 3.0, "total_tok_per_s": 5.0}, level=level)
        assert len(compared(odd, new).implausible) == faults_found


def test_token_rates_are_checked_against_turn_rates() -> None:
    figures = {"turns_per_s": 4.0, "output_tok_per_s": 500.0, "total_tok_per_s": 1200.0}
    (message,) = faults(figures, input_tokens=200.0, output_tokens=100.0)
    assert "output tokens: 400 tok/s by turns/s and tokens per turn, but 500 tok/s are reported" in message


# Qwen3-4B on a T4 with vLLM 0.8.4, blog post "vLLM 推理性能优化实验与分析", 2025-08-26: (req/s, tok/s, TTFT, TPOT, E2E).
PUBLISHED = [
    (
        (1.31, 611.47, 7983.40, 139.22, 29372.42),
        (1.38, 643.33, 6631.39, 139.42, 27798.67),
        ("+5.34%", "+5.21%", "-16.94%", "+0.14%", "-5.36%"),
    ),  # chunked prefill 8192
    (
        (3.52, 858.57, 2521.91, 106.28, 28348.81),
        (3.88, 946.56, 892.64, 101.74, 25616.53),
        ("+10.23%", "+10.25%", "-64.60%", "-4.27%", "-9.64%"),
    ),  # all, dynamic agent
    (
        (3.55, 867.10, 2346.06, 105.89, 28077.46),
        (4.13, 1008.58, 834.21, 95.44, 24025.38),
        ("+16.34%", "+16.32%", "-64.44%", "-9.87%", "-14.43%"),
    ),  # all, static agent
]
COLUMNS = ("turns_per_s", "output_tok_per_s", "mean(ttft_ms)", "mean(tpot_ms)", "mean(e2e_ms)")


@pytest.mark.parametrize(("before", "after", "percentages"), PUBLISHED)
def test_percentages_of_published_tables_are_reproduced(
    before: tuple[float, ...], after: tuple[float, ...], percentages: tuple[str, ...]
) -> None:
    base, new = (
        Side(label, (Run(Path(), label, dict(zip(COLUMNS, values, strict=True))),))
        for label, values in (("base", before), ("new", after))
    )
    (cells,) = tables.sides([(new, base)]).texts
    assert tuple(cell.partition(" ")[2] for cell in cells[2:] if "%" in cell) == percentages


@pytest.mark.parametrize("name", ["p95(ttft_ms){agent}", "preemptions", "max(requests_waiting)"])
def test_figures_of_a_class_or_of_a_server_are_refused(name: str) -> None:
    with pytest.raises(GateError, match="comparisons use figures of all turns"):
        figure(name)


# --- limits on a change


def test_max_change_compares_two_values_without_a_test(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = write_run(tmp_path / "old", 1, 100), write_run(tmp_path / "new", 1, 120)
    single = "(not statistical: compares two values without their spread)"
    limits = {
        "mean(ttft_ms) +15%": "FAILED: 100 to 120, +20.0%",
        "mean(ttft_ms) +20.1%": "passed: 100 to 120, +20.0%",
        "turns_per_s -5%": "passed: 2 to 2, +0.0%",
        "failed_ratio +0%": "passed: 0 to 0, +0.0%",
        "p95(e2e_ms) +5%": "FAILED: p95(e2e_ms) is not measured on old",
    }
    lines = [f"--max-change {limit!r} {found} {single}" for limit, found in limits.items()]
    failed = [line for line in lines if "FAILED" in line]
    argv = ["compare", str(old), str(new), *(word for limit in limits for word in ("--max-change", limit))]
    assert cli.main([*argv, "--write", str(tmp_path / "out"), "--github"]) == 4
    shown = capsys.readouterr()
    assert [line for line in shown.out.splitlines() if line.startswith("--max-change")] == lines
    errors = [line for line in shown.err.splitlines() if line.startswith("::error")]
    assert [line.partition("::new: ")[2].replace("%25", "%") for line in errors] == failed
    (suite,) = ElementTree.parse(tmp_path / "out" / "comparison.xml").getroot()
    assert [case.get("message") for case in suite.iter("failure")] == failed
    assert suite.get("failures") == "2"
    assert suite.get("tests") == str(len(suite)) == str(len(ALL) + 1 + len(limits))
    document = json.loads((tmp_path / "out" / "comparison.json").read_text())
    passed = [limit["passed"] for limit in document["candidates"][0]["max_change"]]
    assert passed == [line not in failed for line in lines]
    assert all("FAILED: 100 to 120" in (tmp_path / f"out/comparison.{form}").read_text() for form in ("md", "html"))
    limit = ["--max-change", "turns_per_s -5%"]
    assert cli.main([*argv[:3], *limit]) == 0
    other = write_run(tmp_path / "other", 1, 100, prompt=30)
    assert cli.main(["compare", str(old), str(other), *limit]) == 4
    assert "'turns_per_s -5%' FAILED: not comparable because of workload.prompt_tokens" in capsys.readouterr().out
    runs = write_runs(tmp_path / "runs", 100, 400), write_runs(tmp_path / "fewer", 105)
    assert cli.main(["compare", *map(str, runs), "--max-change", "mean(ttft_ms) +2%"]) == 4
    assert "FAILED: 100 to 105, +5.0%" in capsys.readouterr().out, "over the pairs"


@given(st.floats(0, 1e6), st.floats(0, 1e6), st.sampled_from(["+0", "+15", "+250", "-0", "-5", "-100", "+0.5", "-.5"]))
def test_max_change_fails_on_a_larger_change_in_its_direction(before: float, after: float, percent: str) -> None:
    def side(value: float) -> Side:
        return Side("x", (Run(Path("x"), "x", {"turns_per_s": value}),))

    result = max_change.check(max_change.parse(f"turns_per_s {percent}%"), side(before), side(after), ())
    beyond = after - before * (1 + float(percent) / 100)
    assert result.passed == (beyond <= 0 if percent[0] == "+" else beyond >= 0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("p95(ttft_ms)", "no figure with a signed percentage; write it as 'p95\\(ttft_ms\\) \\+15%'"),
        ("p95(ttft_ms) 15%", "no figure with a signed percentage"),
        ("p95(ttft_ms) +15", "no figure with a signed percentage"),
        ("p95(tftt_ms) +15%", "did you mean ttft_ms"),
    ],
)
def test_an_invalid_max_change_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=f"--max-change '{re.escape(text)}': .*{message}"):
        max_change.parse(text)


@pytest.mark.parametrize(
    ("before", "after", "shown"), [(0.0, 0.02, "+0.02"), (0.02, 0.0, "-0.02"), (0.0, 0.0, "0"), (None, 0.02, NOT_KNOWN)]
)
def test_the_difference_is_known_where_a_ratio_is_not(before: float | None, after: float, shown: str) -> None:
    failed = figure("failed_ratio")
    base, new = (having(each, {failed.name: value}) for each, value in zip(sides(0.0, 8), (before, after), strict=True))
    table = tables.effects(compare(base, new, failed, ALL))
    assert table.texts[0][0] == "Failed turns (primary)", "a figure without a unit has no comma"
    assert table.texts[0][list(table.columns).index("difference")] == shown


def test_each_way_in_which_a_load_was_not_served_is_counted() -> None:
    baseline, candidate = sides(1.2, 6)
    few, share = "overloaded in 2 of 6 runs", "over 10 % of the turns not served"
    candidate = having(having(candidate, at=[0, 1], collapsed="overloaded"), at=[2], collapsed=share)
    assert (baseline.collapsed, candidate.collapsed) == ("", f"{few}, {share} in 1 of 6 runs")
    for more, says in ([3], True), ([], False):
        found = compared(baseline, having(candidate, at=more, collapsed=share))
        assert ("new did not serve the load: overloaded in 2" in output.headline(found)) == says
        assert ("did not serve the load" in output.brief(found)) == says


# --- pairs that do not vary


def fixed(factor: float, pairs: int, noise: float = 0.0) -> tuple[Side, Side]:
    """Pairs of different schedules, of which each has the same change. `noise`: relative, as of rounded figures."""
    dice = random.Random(3)
    times = [100.0 + 7 * seed for seed in range(pairs)]
    base = measured("base", *times)
    new = measured("new", *(time * factor * (1 + dice.uniform(-noise, noise)) for time in times))
    base, new = (having(side, {"mean(e2e_ms)": None}) for side in (base, new))  # varies
    return base, new


changes = st.one_of(st.floats(0.01, 3.0), st.floats(-0.7, -0.01), st.floats(-0.0099, 0.0099), st.just(0.0))


@given(change=changes, pairs=st.integers(3, 15), noise=st.sampled_from([0.0, 1e-15, 1e-9, 1e-7]))
def test_pairs_that_do_not_vary_have_no_p(change: float, pairs: int, noise: float) -> None:
    found = compared(*fixed(1 + change, pairs, noise))
    row, headline, shown = found.primary, output.headline(found), output.text([found])
    assert found.tested
    assert (row.p, row.effect and row.effect.p, row.effect and row.effect.p_sign_flip) == (None, None, None)
    assert (tables.interval(row), row.effect and row.effect.low) == ("", None)
    assert "p = " not in headline
    assert "p <" not in headline
    assert "CI" not in headline
    (document,) = documents.document([found])["candidates"]
    figures = {each["figure"]: each for each in document["figures"]}
    mean = figures[PRIMARY.name]
    assert (mean["p"], mean["p_sign_flip"], mean["low"], mean["high"], mean["detectable"]) == (None,) * 5
    assert mean["same_in_every_pair"] == (abs(change) >= 0.01)
    if abs(change) < 0.01:
        assert (row.answer, found.regressed) == ("no difference", False)
        assert "no difference in Mean TTFT" in headline
    else:
        assert row.answer == ("worse" if change > 0 else "better")
        assert found.regressed == (change > 0)
        assert f"the same in every pair ({pairs} pairs)" in headline
        assert f"{row.answer}, the same in every pair" in shown


@pytest.mark.parametrize(
    ("factor", "pairs", "code"),
    [(1.0, 3, 0), (1.0099, 6, 0), (1.01, 3, 4), (1.2, 6, 4), (0.99, 6, 0), (0.5, 3, 0), (1.5, 2, 0)],
)
def test_the_exit_code_follows_pairs_that_do_not_vary(
    tmp_path: Path, factor: float, pairs: int, code: int, command: Callable[..., str]
) -> None:
    times = [101.0 + seed for seed in range(pairs)]
    base, new = write_runs(tmp_path / "base", *times), write_runs(tmp_path / "new", *(time * factor for time in times))
    shown = command("compare", base, new, "--fail-on-regression", code=code)
    assert ("not tested: 2 pairs of runs: a test needs 3, better 6 or more" in shown) == (pairs == 2)
