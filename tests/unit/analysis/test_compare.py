"""Comparisons: pairing, refusals, tests, files of other clients, and limits on a change."""

import json
import random
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import summaries
import yaml
from hypothesis import given
from hypothesis import strategies as st
from inferload.analysis.comparison import baselines, costs, max_change
from inferload.analysis.comparison.compare import Comparison, compare, table_rows
from inferload.analysis.comparison.output import documents, page, tables
from inferload.analysis.comparison.output import text as output
from inferload.analysis.comparison.plausible import faults
from inferload.analysis.comparison.read_sides import expanded, read_run, read_side, settings_of_load
from inferload.analysis.comparison.sides import NAMES, Run, Side, priced
from inferload.analysis.data.figures import ALL, figure
from paths import DATA
from run_folders import write_run

from inferload import cli
from inferload.base.errors import UsageError
from inferload.base.numbers import NOT_KNOWN, number
from inferload.figures.limits.gate import GateError
from inferload.results.open_run import OpenRun
from inferload.results.prices import Prices
from inferload.scenario.overrides import ADDED_LATER
from inferload.scenario.scenario import from_text

PRIMARY = figure("mean(ttft_ms)")


def run(
    seed: int, ttft_ms: float, start: str | None = None, tokens: float = 50.0, level: str = "valid", **settings: Any
) -> Run:
    figures: dict[str, float | None] = dict.fromkeys(NAMES)
    figures |= {"mean(ttft_ms)": ttft_ms, "turns_per_s": 1000 / ttft_ms, "mean(e2e_ms)": ttft_ms + 500}
    return Run(
        path=Path("x"),
        label=f"run-{seed}",
        figures=figures,
        seed=seed,
        start=start or f"start-{seed}-{ttft_ms}",
        level=level,
        reasons=() if level == "valid" else ("the client was late",),
        settings={"workload.kind": "chat", **settings},
        server={"engine": "vllm 0.32.0"},
        output_tokens=tokens,
        input_tokens=100.0,
    )


def sides(change: float, pairs: int, jitter: float = 0.02, seed: int = 1) -> tuple[Side, Side]:
    """Pairs with a common random factor of their schedule, and a smaller random factor of each run."""
    dice = random.Random(seed)
    before, after = [], []
    for pair in range(pairs):
        common = dice.gauss(0, 0.3)
        for runs, factor in ((before, 1.0), (after, 1.0 + change)):
            runs.append(run(pair, 100 * factor * 2.718 ** (common + dice.gauss(0, jitter))))
    return Side("base", tuple(before)), Side("new", tuple(reversed(after)))


def compared(baseline: Side, candidate: Side, *allowed: str) -> Comparison:
    return compare(baseline, candidate, PRIMARY, ALL, allowed)


def test_a_change_is_detected_despite_variation_between_pairs() -> None:
    comparison = compared(*sides(0.10, 8))
    assert comparison.primary.answer == "worse"
    assert comparison.regressed
    assert comparison.primary.change == pytest.approx(0.10, abs=0.04)
    assert compared(*sides(-0.10, 8)).primary.answer == "better"
    assert "WORSE, Mean TTFT is " in output.headline(comparison)


def test_a_comparison_with_the_simulator_is_marked() -> None:
    real, new = sides(0.10, 4)
    server = {"engine": "simulator", "stands for": "a model on a device"}
    simulated = new.with_runs(lambda run: replace(run, server=server))
    assert output.simulated((real, new)) == []
    (line,) = output.simulated((real, simulated))
    assert line == "new: Simulated server: stands for a model on a device."
    comparison = compared(real, simulated)
    assert line in output.text([comparison])
    assert line in output.markdown([comparison])
    assert line in page.of_comparisons([comparison])


def test_only_the_primary_figure_has_a_smallest_detectable_change() -> None:
    """It is computed for the level of the primary figure; others are tested at lower ones."""
    document = documents.document([compared(*sides(0.0, 8))])
    rows = document["candidates"][0]["figures"]
    assert len([row for row in rows if row["p"] is not None]) > 1
    assert [row["figure"] for row in rows if row["detectable"] is not None] == ["mean(ttft_ms)"]


def test_no_difference_is_printed_with_the_smallest_detectable_change() -> None:
    comparison = compared(*sides(0.0, 8))
    assert comparison.primary.answer == "no difference found"
    assert not comparison.regressed
    assert "smallest detectable change " in output.headline(comparison)


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
    members = [[run(seed, ms + seed, start) for seed in range(6)] for ms, start in zip((100, 200), starts, strict=True)]
    if not starts[0]:
        members[0] = [replace(one, start=None) for one in members[0]]
    comparison = compared(Side("base", tuple(members[0])), Side("new", tuple(members[1])))
    assert comparison.primary.answer == "worse"
    assert output.headline(comparison).endswith(f"; holds for {holds_for}")
    assert f"\nholds for {holds_for}: base has 6 runs on " in output.text([comparison])
    assert documents.document([comparison])["candidates"][0]["condition"]["holds_for"] == holds_for


def test_runs_are_paired_by_seed_and_unpaired_ones_are_named() -> None:
    before = Side("base", tuple(run(seed, 100.0 + seed) for seed in (1, 2, 3, 4)))
    after = Side("new", tuple(run(seed, 110.0 + seed) for seed in (4, 3, 2, 9)))
    comparison = compared(before, after)
    assert [(left.seed, right.seed) for left, right in comparison.pairs] == [(2, 2), (3, 3), (4, 4)]
    assert [left.label for left in comparison.unpaired] == ["run-1", "run-9"]
    assert "no run of this seed on the other side: run-1, run-9" in output.text([comparison])


def programs(folder: Path, kind: str, *digests: str | None, bundled: bool = False, recorded: bool = True) -> Side:
    """Return a side of runs with programs of these digests."""
    for seed, digest in enumerate(digests, 1):
        path = write_run(folder / str(seed), seed, 100)
        manifest = json.loads((path / "run.json").read_text())
        workloads = {
            "chat": "{kind: chat, prompt_tokens: 5, output_tokens: 5}",
            "tasks": "{kind: tasks}",
            "live_agent": "{kind: live_agent, agent: 'a.py:A'}",
        }
        workloads["mix"] = (
            "{kind: mix, classes: ["
            + ", ".join(f"{{name: {k}, workload: {workloads[k]}}}" for k in ("chat", "live_agent"))
            + "]}"
        )
        manifest["scenario"]["text"] = f"schema: 1\nname: s\nseed: {seed}\nworkload: {workloads[kind]}\n"
        if recorded:
            manifest["program"] = {"name": "support.py", "digest": digest, "bundled": bundled}
        (path / "run.json").write_text(json.dumps(manifest))
    return read_side(folder)


KINDS = ("chat", "tasks", "live_agent", "mix")


@pytest.mark.parametrize("kind", KINDS)
def test_runs_of_different_programs_are_compared_only_if_allowed(kind: str, tmp_path: Path) -> None:
    before = programs(tmp_path / "before", kind, *("a" * 64,) * 3)
    after = programs(tmp_path / "after", kind, *("b" * 64,) * 3)
    line = "locustfile: support.py (aaaaaaaaaaaaaaaa) against support.py (bbbbbbbbbbbbbbbb)"
    assert compared(before, after).differences.refusals == (line,)
    assert compared(before, after).primary.answer == "not comparable"
    allowed = compared(before, after, "locustfile").differences
    assert (allowed.refusals, allowed.compared) == ((), (line,))
    assert compared(before, programs(tmp_path / "same", kind, *("a" * 64,) * 3)).differences.refusals == ()
    mixed = programs(tmp_path / "mixed", kind, "a" * 64, "b" * 64)
    assert any("its runs differ in locustfile" in line for line in compared(mixed, before).differences.refusals)


@pytest.mark.parametrize("kind", KINDS)
def test_an_unknown_program_equals_none(kind: str, tmp_path: Path) -> None:
    unreadable = programs(tmp_path / "unreadable", kind, None, None)
    for other in (unreadable, programs(tmp_path / "known", kind, "a" * 64, "a" * 64)):
        assert any("locustfile: not recorded" in line for line in compared(unreadable, other).differences.refusals)
    assert compared(unreadable, unreadable, "locustfile").differences.refusals == ()
    missing = programs(tmp_path / "missing", kind, None, None, recorded=False)
    found = compared(missing, missing).differences.refusals
    assert bool(found) == (kind != "chat"), "a scenario alone determines the turns of a chat"


@pytest.mark.parametrize("kind", KINDS)
def test_the_locustfiles_of_inferload_are_compared_by_its_version(kind: str, tmp_path: Path) -> None:
    bundled = programs(tmp_path / "bundled", kind, None, None, bundled=True)
    assert compared(bundled, bundled).differences.refusals == ()
    own = programs(tmp_path / "own", kind, "a" * 64, "a" * 64)
    assert len(compared(bundled, own).differences.refusals) == 1
    if kind == "chat":  # as of a run on the virtual clock, which has no locustfile
        missing = programs(tmp_path / "missing", kind, None, None, recorded=False)
        assert compared(bundled, missing).differences.refusals == ()


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
        path = write_run(tmp_path / name / "1", 1, 100)
        manifest = json.loads((path / "run.json").read_text())
        manifest["scenario"]["text"] += f"\n{text}\n"
        (path / "run.json").write_text(json.dumps(manifest))
    sides = read_side(tmp_path / "one"), read_side(tmp_path / "other")
    for first, second in (sides, sides[::-1]):
        assert compared(first, second).differences.refusals == ()
    baselines.add(tmp_path / "b.json", [tmp_path / "one"])
    document = json.loads((tmp_path / "b.json").read_text())
    document["occasions"][0]["settings"] |= {"request.wrong_length": "stop", "abort_on": []}  # of an earlier version
    (tmp_path / "b.json").write_text(json.dumps(document))
    recorded = baselines.read(tmp_path / "b.json")
    for side in sides:
        assert compared(recorded, side).differences.refusals == ("seed: 1 against not set",)


def test_keys_without_a_part_in_the_digest_are_no_setting() -> None:
    """A scenario recorded before such a key has the same digest, and the same settings."""
    document = yaml.safe_load("{schema: 1, name: s, workload: {kind: chat, prompt_tokens: 5, output_tokens: 5}}")
    document |= {"arrivals": {"kind": "closed", "users": 1, "spawn_per_s": 1}, "phases": {"measure_s": 1}}
    scenario = from_text(yaml.safe_dump(document), "s.yaml")
    for path, default in ADDED_LATER.items():
        folder, _, key = path.rpartition(".")
        data = scenario.as_data()
        assert (data[folder] if folder else data)[key] == default
        assert settings_of_load({path: default, "workload.kind": "chat"}) == {"workload.kind": "chat"}


def test_a_baseline_has_one_program(tmp_path: Path) -> None:
    programs(tmp_path / "runs", "tasks", "a" * 64, "b" * 64)
    baselines.add(tmp_path / "b.json", [tmp_path / "runs" / "1"])
    with pytest.raises(UsageError, match=r"locustfile is support\.py \(b+\), but support\.py \(a+\) in occasion 1"):
        baselines.add(tmp_path / "b.json", [tmp_path / "runs" / "2"])


def test_different_workloads_are_compared_only_if_allowed() -> None:
    before, after = Side("base", (run(1, 100),)), Side("new", (run(1, 100, **{"workload.turns": 3}),))
    comparison = compared(before, after)
    assert comparison.primary.answer == "not comparable"
    assert (
        output.headline(comparison) == "new against base: not comparable because of workload.turns: not set against 3"
    )
    allowed = compared(before, after, "workload.turns")
    assert allowed.primary.answer == "not tested"
    assert "compared: workload.turns: not set against 3" in output.text([allowed])


def with_server(side: Side, second_half: dict[str, Any], **fields: Any) -> Side:
    """Return the side with a variant; the second half of its runs has other values of the server, and these fields."""
    server = {"engine": "vllm 0.32.0", "model": "m", "inferload": "1.0", "variant": variant("8")}
    half = len(side.runs) // 2
    first = tuple(replace(member, server=server) for member in side.runs[:half])
    second = tuple(replace(member, server={**server, **second_half}, **fields) for member in side.runs[half:])
    return replace(side, runs=(*first, *second))


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
    ],
)
def test_a_side_with_two_configurations_is_not_comparable(
    second_half: dict[str, Any], fields: dict[str, Any], line: str
) -> None:
    base, new = sides(0.10, 6)
    comparison = compared(with_server(base, {}), with_server(new, second_half, **fields))
    assert comparison.primary.answer == "not comparable"
    assert comparison.differences.refusals == (f"new: its runs differ in {line}",)


def test_answers_of_different_models_are_named() -> None:
    base, new = (with_server(side, {}) for side in sides(0.10, 6))
    for name, remark in (("n", "; answers of different models, whose quality is not compared"), ("/data/M", "")):
        other = new.with_runs(lambda run, name=name: replace(run, server={**run.server, "model": name}))
        assert compared(base, other).differences.compared == (f"model: m against {name}{remark}",)


def test_ports_starts_and_memory_may_differ_within_a_side() -> None:
    base, new = sides(0.10, 6)
    restarted = {"variant": variant("8", port="8001", started_at=1.0, memory_mb=5.0), "target": "http://h:8001"}
    assert compared(with_server(base, {}), with_server(new, restarted)).primary.answer == "worse"


def test_an_invalid_run_is_refused_and_a_suspect_one_noted() -> None:
    invalid = compared(Side("base", (run(1, 100),)), Side("new", (run(1, 90, level="invalid"),)))
    assert "new: run run-1 is not a valid measurement (the client was late)" in output.headline(invalid)
    suspect = compared(Side("base", (run(1, 100),)), Side("new", (run(1, 90, level="suspect"),)))
    assert "new: run run-1 is suspect (the client was late)" in output.text([suspect])


def test_an_invalid_run_is_left_out_with_its_pair() -> None:
    baseline, candidate = sides(0.10, 8)
    with_invalid = Side("base", (run(0, 9000.0, level="invalid"), *baseline.runs[1:]))
    comparison = compared(with_invalid, candidate)
    assert (comparison.primary.answer, len(comparison.pairs)) == ("worse", 7)
    assert comparison.primary.baseline is not None
    assert comparison.primary.baseline < 1000
    assert "base: left out with their pairs, measurement not valid: run-0" in output.text([comparison])


@pytest.mark.parametrize("last", ["missing", "invalid"])
def test_means_and_changes_are_over_the_pairs(last: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = Side("base", tuple(run(seed, ms) for seed, ms in enumerate((100, 101, 99, 100, 102, 400))))
    slower = [run(seed, ms) for seed, ms in enumerate((105, 106.5, 104, 104.5, 107))]
    new = Side("new", (*slower, *([] if last == "missing" else [run(5, 90, level="invalid")])))
    comparison = compared(base, new)
    assert comparison.primary.answer == "worse"
    assert comparison.primary.baseline == pytest.approx(100.4, abs=0.01)
    assert comparison.primary.candidate == pytest.approx(105.4, abs=0.01)
    assert "-29.95%" not in output.text([comparison])
    # Candidates with other pairs have their own column, or row, of the baseline.
    both = [comparison, compared(base, Side("all", base.runs))]
    assert re.search(
        r"\n  figure +base, pairs of new +new  base, pairs of all +all\n  runs +5 +5 +6 +6\n", output.text(both)
    )
    assert re.search(r" 100\.4  105\.4 \+4\.98% worse +126\.4 ", output.text(both))
    assert re.search(r"\n\| new against base, pairs of new \|.* 105\.4 \+4\.98% ", output.markdown(both))
    prices = Prices(2.5, 1)
    table = costs.table(table_rows([compared(*(priced(with_output(side), prices) for side in (base, new)))]))
    assert table is not None
    assert table.rows[1][4] == "+5.0%"
    for name, ttft_ms in (("old/1", 100), ("old/2", 400), ("new/1", 105)):
        write_run(tmp_path / name, int(name[-1]), ttft_ms)
    sides = [str(tmp_path / name) for name in ("old", "new")]
    assert cli.main(["compare", *sides, "--max-change", "mean(ttft_ms) +2%"]) == 4
    assert "FAILED: 100 to 105, +5.0%" in capsys.readouterr().out


def with_output(side: Side) -> Side:
    """Return the side with an output in proportion to 1 / TTFT."""
    return side.with_runs(
        lambda run: replace(run, figures={**run.figures, "output_tok_per_s": 1e5 / (run.value("mean(ttft_ms)") or 1)})
    )


def test_without_pairs_the_means_are_over_all_runs_and_marked() -> None:
    comparison = compared(Side("base", (run(1, 100), run(2, 120))), Side("new", (run(3, 110),)))
    assert comparison.primary.baseline == pytest.approx((100 * 120) ** 0.5)
    shown = output.text([comparison])
    assert "no pairs: the means are over all runs, of different seeds" in shown
    assert "Mean TTFT is not tested: no valid runs of the two sides have the same seed" in shown
    assert "left out" not in shown
    crossed = [(run(1, 100), run(2, 120, level="invalid")), (run(1, 90, level="invalid"), run(2, 110))]
    shown = output.text([compared(*(Side(label, runs) for label, runs in zip(("base", "new"), crossed, strict=True)))])
    assert "no pairs: the means are over all runs, of different seeds" in shown


def test_goodput_with_different_slos_is_not_compared() -> None:
    strict = replace(run(1, 100), slo={"ttft_ms": 500})
    comparison = compared(Side("base", (strict,)), Side("new", (replace(strict, slo={"ttft_ms": 5000}),)))
    assert "goodput_turns_per_s" not in [row.figure.name for row in comparison.rows]
    assert "goodput_turns_per_s" in [
        row.figure.name for row in compared(Side("a", (strict,)), Side("b", (strict,))).rows
    ]


@pytest.mark.parametrize("name", ["goodput_turns_per_s", "slo_attainment"])
def test_a_primary_figure_of_different_slos_is_not_comparable(name: str) -> None:
    def side(label: str, ttft_ms: float) -> Side:
        members = [replace(run(seed, 100), slo={"ttft_ms": ttft_ms}) for seed in range(6)]
        return Side(label, tuple(replace(one, figures={**one.figures, name: 2.0 + one.seed}) for one in members))  # type: ignore[operator]

    line = "slo: ttft_ms 500 against ttft_ms 5000: goodput, attainment and cost of good turns are not comparable"
    base, new = side("base", 500), side("new", 5000)
    comparison = compare(base, new, figure(name), ALL)
    assert output.headline(comparison) == f"new against base: not comparable because of {line}"
    assert f"note: {line}" in output.text([comparison])
    assert line in documents.json_text([comparison])
    assert compared(base, new).primary.answer == "no difference"
    assert f"note: {line}" in output.text([compared(base, new)])
    assert "slo:" not in output.text([compared(base, side("same", 500))])


def test_max_change_of_goodput_fails_with_different_slos(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = write_run(tmp_path / "old", 1, 100), write_run(tmp_path / "new", 1, 100)
    for folder, limit in ((old, 500), (new, 5000)):
        manifest, summary = (json.loads((folder / name).read_text()) for name in ("run.json", "summary.json"))
        manifest["scenario"]["text"] += f"slo: {{ttft_ms: {limit}}}\n"
        summary["rates"]["goodput_turns_per_s"] = 2.0
        (folder / "run.json").write_text(json.dumps(manifest))
        (folder / "summary.json").write_text(json.dumps(summary))
    argv = ["compare", str(old), str(new), "--max-change"]
    assert cli.main([*argv, "goodput_turns_per_s -5%"]) == 4
    assert "'goodput_turns_per_s -5%' FAILED: not comparable because of slo: ttft_ms 500 against ttft_ms 5000" in (
        capsys.readouterr().out
    )
    assert cli.main([*argv, "turns_per_s -5%"]) == 0


def test_the_block_of_incomparable_sides_has_no_gains(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = write_run(tmp_path / "old", 1, 100), write_run(tmp_path / "new", 1, 50)
    argv = ["compare", str(old), str(new), "--format", "block"]
    assert cli.main(argv) == 0
    assert "[gains of new]\n  TTFT: not measured\n  QPS: ↑ 0.0%\n  throughput: 1.00x\n" in capsys.readouterr().out
    summary = json.loads((new / "summary.json").read_text())
    summary["verdict"] = {
        "measurement": "invalid",
        "reasons": [{"code": "client_delay", "text": "the client was late"}],
    }
    (new / "summary.json").write_text(json.dumps(summary))
    assert cli.main(argv) == 0
    shown = capsys.readouterr().out
    line = "not comparable: new: run new is not a valid measurement (the client was late)"
    assert f"[gains of new]\n  {line}\n" in shown
    assert "new (not valid)" in shown
    assert "↑" not in shown
    assert "throughput: " not in shown
    other = write_run(tmp_path / "other", 1, 50, prompt=30)
    assert cli.main(["compare", str(old), str(other), "--format", "block"]) == 0
    assert "  not comparable: workload.prompt_tokens: 20 against 30\n" in capsys.readouterr().out


def test_tables_mark_invalid_and_incomparable_sides() -> None:
    base, new = Side("base", (run(1, 100),)), Side("new", (run(1, 50, level="invalid"),))
    comparison = compared(base, new)
    assert "new (not valid)" in output.text([comparison])
    assert "With the change" not in page.of_comparisons([comparison])
    table = costs.table(table_rows([compared(*(priced(with_output(side), Prices(2.5, 1)) for side in (base, new)))]))
    assert table is not None
    assert table.rows[1][0] == "new (not valid)"
    assert table.rows[1][4] == ""


def test_shorter_outputs_are_noted() -> None:
    comparison = compared(Side("base", (run(1, 100),)), Side("new", (run(1, 100, tokens=40.0),)))
    assert "the candidate's outputs are 20.0% shorter (40 against 50 tokens)" in output.text([comparison])


def test_costs_per_million_tokens_and_per_thousand_good_turns() -> None:
    def side(label: str, tokens: float, good: float, cached: float | None) -> Side:
        one = run(1, 100.0)
        figures = {**one.figures, "output_tok_per_s": tokens, "goodput_turns_per_s": good}
        return Side(label, (replace(one, figures=figures, cached_tokens=cached),))

    plain, cached, slow = side("plain", 1000, 10, 0), side("cached", 2000, 25, 90), side("slow", 500, 0, None)
    prices = Prices(2.5, 2, 0.1)
    base, *others = (priced(member, prices) for member in (plain, cached, slow))
    table = costs.table([(base, None), *((other, base) for other in others)])
    assert table is not None
    assert [row[3:] for row in table.texts] == [
        ["1.389", "", "138.9", "", "100 % of uncached"],
        ["0.6944", "-50.0%", "55.56", "-60.0%", "19 % of uncached"],
        ["2.778", "+100.0%", "none met the SLO", "", "not measured"],
    ]
    strict = cached.with_runs(lambda run: replace(run, slo={"ttft_ms": 500.0}))
    table = costs.table([(base, None), (priced(strict, prices), base)])
    assert table is not None
    assert table.texts[1][4:7] == ["-50.0%", "55.56", ""]  # good turns of different SLOs
    on_cpu = replace(plain.runs[0], server={"variant": {"hardware": {"gpus": 0}}})
    machine = replace(plain, runs=(on_cpu,))
    assert priced(machine, Prices(gpu_hour=2.5)).runs[0].prices.gpus == 1  # as `deploy up` and a sweep record it
    assert priced(machine, Prices(gpus=3)).runs[0].prices == Prices(gpus=3)
    assert priced(machine, Prices()).runs[0].prices == Prices()
    assert costs.table([(plain, None), (cached, plain)]) is None
    assert costs.note([plain]) == costs.WITHOUT_PRICE
    assert "(--gpus)" in costs.note([priced(plain, Prices(gpu_hour=2.5))])
    mixed = Side("mixed", (*priced(plain, prices).runs, *cached.runs))
    with pytest.raises(UsageError, match="mixed: its runs have different prices"):
        costs.of_side(mixed)


@pytest.mark.parametrize("argument", ["", "base="])
def test_a_side_without_a_path_is_not_the_working_directory(argument: str) -> None:
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


def test_a_figure_without_a_unit_has_no_comma() -> None:
    baseline, candidate = sides(0.10, 8)
    comparison = compare(baseline, candidate, figure("failed_ratio"), ALL)
    names = [row[0] for row in tables.effects(comparison).texts]
    assert "Failed turns (primary)" in names
    assert "Mean TTFT, ms" in names


def test_junit_counts_failed_and_skipped_figures() -> None:
    suite = ElementTree.fromstring(documents.junit([compared(*sides(0.3, 8))]))[0]
    assert suite.get("tests") == str(len(suite)) == str(len(ALL) + 1)  # with failed turns, which are unknown
    failed = [case.get("name") for case in suite if case.find("failure") is not None]
    assert failed == ["mean(ttft_ms)", "turns_per_s", "mean(e2e_ms)"]
    assert suite.get("failures") == "3"
    assert suite.get("skipped") == str(len(ALL) + 1 - 3)


# --- files


def test_a_side_is_a_run_or_a_folder_of_runs(tmp_path: Path) -> None:
    write_run(tmp_path / "base" / "b", 2, 90)
    write_run(tmp_path / "base" / "a", 3, 110, name="another-name")
    side = read_side(tmp_path / "base")
    assert [member.seed for member in side.runs] == [2, 3]
    assert side.mean("mean(ttft_ms)") == pytest.approx((90 * 110) ** 0.5)
    assert side.runs[0].settings == side.runs[1].settings
    assert read_side(tmp_path / "base" / "a").runs[0].value("total_tok_per_s") == 140
    assert side.runs[0].output_tokens == 50


def class_run(folder: Path, seed: int, ttft_ms: float, only: str | None) -> Path:
    """A run of a mix with the classes `a`, of 10 turns, and `b`; or of class `only` alone."""
    write_run(folder, seed, 10_000.0)
    manifest, summary = (json.loads((folder / name).read_text()) for name in ("run.json", "summary.json"))
    manifest["scenario"]["text"] = json.dumps({"workload": {"kind": "mix", "only": only}})
    block = {name: summary[name] for name in ("sessions", "rates")}
    block |= {
        "turns": {"ok": 9, "sent": 10, "failed": 1, "unfinished": 0},
        "latency": {"ttft_ms": {"count": 9, "mean": ttft_ms}},
    }
    summary["by_class"] = {"a": block} if only else {"a": block, "b": block}
    (folder / "run.json").write_text(json.dumps(manifest))
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def test_a_class_of_a_mix_is_compared_with_a_run_of_that_class(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alone, mix = class_run(tmp_path / "alone", 1, 100.0, "a"), class_run(tmp_path / "mix", 1, 150.0, None)
    assert cli.main(["compare", str(alone), str(mix), "--class", "a", "--format", "json"]) == 0
    (candidate,) = json.loads(capsys.readouterr().out)["candidates"]
    (ttft,) = [row for row in candidate["figures"] if row["figure"] == "mean(ttft_ms)"]
    assert (ttft["baseline"], ttft["candidate"]) == (100.0, 150.0)
    assert (candidate["pairs"], candidate["refusals"]) == (1, [])
    assert candidate["compared"] == ["only class: a against not set"]
    assert cli.main(["compare", str(alone), str(mix)]) == 0
    assert "workload.only: a against not set" in capsys.readouterr().out
    for options, message in (
        ([str(alone), str(mix), "--class", "b"], f"--class b: no such class in {alone}; it has a"),
        ([str(alone), str(RESULTS / "guidellm.json"), "--class", "a"], "has no classes; name run directories"),
        ([str(alone), str(mix), "--class", "a", "--gpu-hour-price", "2"], "omit --class or the prices"),
    ):
        assert cli.main(["compare", *options]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda path: None, "no such file or directory"),
        (lambda path: path.mkdir(), "no run directory, and contains none"),
        (
            lambda path: path.write_text("{}"),
            "no result of vllm bench serve, SGLang bench_serving, AIPerf, GuideLLM, genai-bench, inference-perf, EvalScope or",
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


def test_incomplete_runs_in_a_folder_are_left_out_and_named(tmp_path: Path) -> None:
    write_run(tmp_path / "base" / "000", 2, 90)
    write_run(tmp_path / "base" / ".broken-001-ab", 3, 110)
    (write_run(tmp_path / "base" / "002", 4, 95) / "summary.json").unlink()
    side = read_side(tmp_path / "base")
    assert ([member.label for member in side.runs], side.left_out) == (["000"], ("no summary: 002",))
    assert "base: left out, no summary: 002" in output.text([compared(side, side)])


def test_without_known_server_starts_the_gate_follows_the_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed in range(1, 8):
        write_run(tmp_path / "base" / str(seed), seed, 100 + seed)
        write_run(tmp_path / "new" / str(seed), seed, 120 + seed * 1.1)
    argv = ["compare", str(tmp_path / "base"), f"tuned={tmp_path / 'new'}", "--write", str(tmp_path / "out")]
    # Without a metrics page the server starts are unknown.
    assert cli.main([*argv, "--fail-on-regression"]) == 4
    assert "base has 7 runs on unknown server starts; tuned has 7 runs on unknown server" in capsys.readouterr().out
    same = ["compare", argv[1], f"again={argv[1]}", "--fail-on-regression"]
    assert cli.main(same) == 0
    assert cli.main([*same, "--strict"]) == 4
    assert "--strict: again: the verdict holds for the server starts of these runs" in capsys.readouterr().err
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        f"comparison.{suffix}" for suffix in ("html", "json", "md", "xml")
    }
    capsys.readouterr()
    assert cli.main([*argv, "--primary", "p95(tftt_ms)"]) == 2
    assert "did you mean ttft_ms?" in capsys.readouterr().err


RESULTS = DATA / "results"


@pytest.mark.parametrize("name", ["vllm-bench", "vllm-rs", "aiperf", "guidellm", "genai-bench"])
def test_results_of_other_clients_are_read(name: str) -> None:
    # All five measured one paced server: 20 streams, TTFT 50 ms, a gap of 10 ms, 100 tokens per turn.
    (result,) = read_side(RESULTS / f"{name}.json").runs
    assert result.output_tokens == 100
    assert result.concurrency == 20
    assert result.value("mean(ttft_ms)") == pytest.approx(50, rel=0.2)
    assert result.value("turns_per_s") == pytest.approx(19, rel=0.05)
    assert result.value("output_tok_per_s") == pytest.approx(1900, rel=0.05)
    for figure_name, truth in (("p50(itl_ms)", 10), ("mean(tpot_ms)", 10), ("p50(e2e_ms)", 1040)):
        value = result.value(figure_name)
        assert value is None or value == pytest.approx(truth, rel=0.05)
    assert faults(result.figures, result.concurrency, result.input_tokens, result.output_tokens) == []


@pytest.mark.parametrize(
    ("changes", "value", "note"),
    [
        ({"completed": 0, "failed": 560, "mean_ttft_ms": 0.0}, None, "560 of its 560 requests failed"),
        ({"mean_ttft_ms": float("nan")}, None, ""),
        ({"failed": 140}, 50.0, "140 of its 700 requests failed and are not in the latencies"),
    ],
)
def test_latencies_of_failed_requests_are_unknown(
    tmp_path: Path, changes: dict[str, Any], value: float | None, note: str
) -> None:
    file = tmp_path / "r.json"
    file.write_text(json.dumps(json.loads((RESULTS / "vllm-bench.json").read_text()) | changes))
    (result,) = read_side(file).runs
    assert result.value("mean(ttft_ms)") == (None if value is None else pytest.approx(value, rel=0.2))
    assert note in " ".join(result.notes)


@pytest.mark.parametrize(
    ("client", "changes", "notes"),
    [
        (
            "aiperf",
            {"request_count": {"avg": 380.0}, "error_request_count": {"avg": 20.0}},
            ["20 of its 400 requests failed and are not in the latencies"],
        ),
        (
            "aiperf",
            {"error_summary": [{"count": 3}, {"count": 2}], "was_cancelled": True},
            ["5 of its requests failed and are not in the latencies", "it was cancelled before its end"],
        ),
        ("aiperf", {"request_count": {"avg": 400.0}, "error_summary": [], "was_cancelled": False}, []),
        (
            "guidellm",
            {"request_totals": {"successful": 380, "incomplete": 19, "errored": 20, "total": 419}},
            [
                "20 of its 400 requests failed and are not in the latencies",
                "19 of its requests were unfinished at the end and are not in the latencies",
            ],
        ),
        ("guidellm", {"request_totals": {"successful": 400, "incomplete": 0, "errored": 0, "total": 400}}, []),
    ],
)
def test_failed_requests_of_another_client_are_noted(
    tmp_path: Path, client: str, changes: dict[str, Any], notes: list[str]
) -> None:
    document = json.loads((RESULTS / f"{client}.json").read_text())
    (document if client == "aiperf" else document["benchmarks"][0]["metrics"]).update(changes)
    file = tmp_path / "r.json"
    file.write_text(json.dumps(document))
    (result,) = read_side(file).runs
    assert list(result.notes[1:]) == notes


def test_the_tpot_of_guidellm_excludes_the_first_token() -> None:
    (result,) = read_side(RESULTS / "guidellm.json").runs
    assert result.value("mean(tpot_ms)") == pytest.approx(10, rel=0.03)
    assert result.value("mean(itl_ms)") is None


def test_results_of_two_clients_are_not_comparable() -> None:
    comparison = compared(read_side(RESULTS / "vllm-bench.json"), read_side(RESULTS / "aiperf.json"))
    assert output.headline(comparison).startswith(
        "aiperf against vllm-bench: not comparable because of client: vllm bench serve against AIPerf 0.13.0"
    )


# --- published figures


def test_mean_tokens_are_over_the_turns_that_reported_them(tmp_path: Path) -> None:
    """Rejected turns have tokens and are not successful; failed ones may have no count."""
    folder = write_run(tmp_path / "run", 1, 50.0)
    summary = json.loads((folder / "summary.json").read_text())
    counts = {"ok": 80, "output_tokens": 10_000, "output_tokens_from": 100}  # 20 of 100 turns were rejected
    tokens = {"input_tokens": 2_000, "input_tokens_from": 50, "cached_tokens": 500}
    summary["turns"]["by_phase"]["measure"] = summaries.NO_TURNS | counts | tokens
    (folder / "summary.json").write_text(json.dumps(summary))
    result = read_run(OpenRun(folder))
    assert (result.output_tokens, result.input_tokens, result.cached_tokens) == (100, 40, 10)


def test_only_other_clients_are_checked_for_contradictions() -> None:
    """The verdict of a run checks its own figures, over the turns and tokens of its window."""
    base, new = sides(0.1, 6)
    figures = {"output_tok_per_s": 3.0, "total_tok_per_s": 5.0}

    def changed(level: str) -> Side:
        return base.with_runs(lambda run: replace(run, figures={**run.figures, **figures}, level=level))

    assert compared(changed("valid"), new).implausible == ()
    assert len(compared(changed("not judged"), new).implausible) == 12


def test_token_rates_are_checked_against_turn_rates() -> None:
    figures = {"turns_per_s": 4.0, "output_tok_per_s": 500.0, "total_tok_per_s": 1200.0}
    messages = faults(figures, input_tokens=200.0, output_tokens=100.0)
    assert len(messages) == 1
    assert "output tokens: 400 tok/s by turns/s and tokens per turn, but 500 tok/s are reported" in messages[0]


# Qwen3-4B on a T4 with vLLM 0.8.4, blog post "vLLM 推理性能优化实验与分析", 2025-08-26: (req/s, tok/s, TTFT, TPOT, E2E).
PUBLISHED = {
    "chat": (
        {
            "baseline": (1.31, 611.47, 7983.40, 139.22, 29372.42),
            "chunked prefill 8192": (1.38, 643.33, 6631.39, 139.42, 27798.67),
        },
        ("+5.34%", "+5.21%", "-16.94%", "+0.14%", "-5.36%"),
    ),
    "agent, dynamic": (
        {"baseline": (3.52, 858.57, 2521.91, 106.28, 28348.81), "all": (3.88, 946.56, 892.64, 101.74, 25616.53)},
        ("+10.23%", "+10.25%", "-64.60%", "-4.27%", "-9.64%"),
    ),
    "agent, static": (
        {"baseline": (3.55, 867.10, 2346.06, 105.89, 28077.46), "all": (4.13, 1008.58, 834.21, 95.44, 24025.38)},
        ("+16.34%", "+16.32%", "-64.44%", "-9.87%", "-14.43%"),
    ),
}
COLUMNS = ("turns_per_s", "output_tok_per_s", "mean(ttft_ms)", "mean(tpot_ms)", "mean(e2e_ms)")


@pytest.mark.parametrize("table", list(PUBLISHED))
def test_percentages_of_published_tables_are_reproduced(table: str) -> None:
    rows, percentages = PUBLISHED[table]
    published = [
        Side(label, (Run(Path(), label, dict(zip(COLUMNS, values, strict=True))),)) for label, values in rows.items()
    ]
    (cells,) = tables.sides([(published[1], published[0])]).texts
    assert tuple(cell.partition(" ")[2] for cell in cells[2:] if "%" in cell) == percentages


@pytest.mark.parametrize("name", ["p95(ttft_ms){agent}", "preemptions", "max(requests_waiting)"])
def test_figures_of_a_class_or_of_a_server_are_refused(name: str) -> None:
    with pytest.raises(GateError, match="comparisons use figures of all turns"):
        figure(name)


# --- limits on a change


def test_max_change_compares_two_values_without_a_test(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = write_run(tmp_path / "old", 1, 100), write_run(tmp_path / "new", 1, 120)
    limits = ["mean(ttft_ms) +15%", "mean(ttft_ms) +20.1%", "turns_per_s -5%", "failed_ratio +0%", "p95(e2e_ms) +5%"]
    argv = ["compare", str(old), str(new), *(word for limit in limits for word in ("--max-change", limit))]
    files = ["--write", str(tmp_path / "out"), "--github"]
    assert cli.main([*argv, *files]) == 4
    shown = capsys.readouterr()
    single = "(not statistical: compares two values without their spread)"
    lines = [
        f"--max-change 'mean(ttft_ms) +15%' FAILED: 100 to 120, +20.0% {single}",
        f"--max-change 'mean(ttft_ms) +20.1%' passed: 100 to 120, +20.0% {single}",
        f"--max-change 'turns_per_s -5%' passed: 2 to 2, +0.0% {single}",
        f"--max-change 'failed_ratio +0%' passed: 0 to 0, +0.0% {single}",
        f"--max-change 'p95(e2e_ms) +5%' FAILED: p95(e2e_ms) is not measured on old {single}",
    ]
    assert [line for line in shown.out.splitlines() if line.startswith("--max-change")] == lines
    errors = [line for line in shown.err.splitlines() if line.startswith("::error")]
    assert [line.partition("::new: ")[2].replace("%25", "%") for line in errors] == [lines[0], lines[4]]
    (suite,) = ElementTree.parse(tmp_path / "out" / "comparison.xml").getroot()
    assert [case.get("message") for case in suite.iter("failure")] == [lines[0], lines[4]]
    assert suite.get("failures") == "2"
    assert suite.get("tests") == str(len(suite)) == str(len(ALL) + 1 + len(limits))
    document = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert [limit["passed"] for limit in document["candidates"][0]["max_change"]] == [False, True, True, True, False]
    assert "FAILED: 100 to 120" in (tmp_path / "out" / "comparison.md").read_text()
    assert "FAILED: 100 to 120" in (tmp_path / "out" / "comparison.html").read_text()
    assert cli.main([*argv[:3], "--max-change", limits[2]]) == 0
    other = write_run(tmp_path / "other", 1, 100, prompt=30)
    assert cli.main(["compare", str(old), str(other), "--max-change", limits[2]]) == 4
    assert "'turns_per_s -5%' FAILED: not comparable because of workload.prompt_tokens" in capsys.readouterr().out


@given(
    st.floats(0, 1e6),
    st.floats(0, 1e6),
    st.sampled_from(["+0", "+15", "+250", "-0", "-5", "-100", "+0.5", "-.5"]),
)
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


def test_the_difference_stands_beside_the_change_in_the_unit_of_the_figure() -> None:
    comparison = compared(*sides(0.10, 8))
    table = tables.effects(comparison)
    column = list(table.columns).index("difference")
    assert column == list(table.columns).index("change") + 1
    row = comparison.primary
    assert row.difference == pytest.approx((row.candidate or 0) - (row.baseline or 0))
    assert row.difference is not None
    assert table.texts[0][column] == f"+{number(row.difference)} ms"
    assert json.loads(documents.json_text([comparison]))["candidates"][0]["figures"][0]["difference"] == row.difference
    assert f"+{number(row.difference)} ms" in page.of_comparisons([comparison])


@pytest.mark.parametrize(
    ("before", "after", "shown"),
    [(0.0, 0.02, "+0.02"), (0.02, 0.0, "-0.02"), (0.0, 0.0, "0"), (None, 0.02, NOT_KNOWN)],
)
def test_the_difference_is_known_where_a_ratio_is_not(before: float | None, after: float, shown: str) -> None:
    failed = figure("failed_ratio")
    two = [
        each.with_runs(lambda run: replace(run, figures={**run.figures, failed.name: value}))  # noqa: B023
        for each, value in zip(sides(0.0, 8), (before, after), strict=True)
    ]
    table = tables.effects(compare(two[0], two[1], failed, ALL))
    assert table.texts[0][list(table.columns).index("difference")] == shown


@pytest.mark.parametrize("collapsed", ["overloaded", "over 10 % of the turns not served"])
def test_a_load_that_was_not_served_is_in_the_headline(collapsed: str) -> None:
    baseline, candidate = sides(1.2, 6)
    runs = tuple(replace(run, collapsed=collapsed if number < 4 else "") for number, run in enumerate(candidate.runs))
    found = compared(baseline, replace(candidate, runs=runs))
    assert f"new did not serve the load: {collapsed} in 4 of 6 runs" in output.headline(found)
    assert "did not serve the load" in output.brief(found)
    assert "did not serve" not in output.headline(compared(baseline, candidate))


def test_each_way_in_which_a_load_was_not_served_is_counted() -> None:
    ways = ("overloaded", "overloaded", "over 10 % of the turns not served", "", "", "")
    baseline, candidate = sides(1.2, 6)
    runs = tuple(replace(run, collapsed=how) for run, how in zip(candidate.runs, ways, strict=True))
    assert replace(candidate, runs=runs).collapsed == (
        "overloaded in 2 of 6 runs, over 10 % of the turns not served in 1 of 6 runs"
    )
    assert baseline.collapsed == ""


# --- pairs that do not vary


def fixed(factor: float, pairs: int, noise: float = 0.0) -> tuple[Side, Side]:
    """Pairs of different schedules, of which each has the same change. `noise`: relative, as of rounded figures."""
    dice = random.Random(3)
    found = []
    for label, ratio, most in (("base", 1.0, 0.0), ("new", factor, noise)):
        times = [(100.0 + 7 * seed) * ratio * (1 + dice.uniform(-most, most)) for seed in range(pairs)]
        side = Side(label, tuple(run(seed, time, start=f"{label}{seed}") for seed, time in enumerate(times)))
        found.append(side.with_runs(lambda one: replace(one, figures={**one.figures, "mean(e2e_ms)": None})))  # varies
    return found[0], found[1]


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


@pytest.mark.parametrize(("factor", "code"), [(1.0, 0), (1.0099, 0), (1.01, 4), (1.2, 4), (0.99, 0), (0.5, 0)])
@pytest.mark.parametrize("pairs", [3, 6])
def test_the_exit_code_follows_pairs_that_do_not_vary(tmp_path: Path, factor: float, code: int, pairs: int) -> None:
    for seed in range(1, pairs + 1):
        write_run(tmp_path / "base" / str(seed), seed, 100.0 + seed)
        write_run(tmp_path / "new" / str(seed), seed, (100.0 + seed) * factor)
    sides = [str(tmp_path / "base"), str(tmp_path / "new")]
    assert cli.main(["compare", *sides, "--fail-on-regression"]) == code


def test_two_pairs_are_too_few() -> None:
    for pairs in (fixed(1.5, 2), sides(0.5, 2)):
        assert (compared(*pairs).primary.answer, compared(*pairs).tested) == ("not tested", False)
        assert "not tested: 2 pairs of runs: a test needs 3, better 6 or more" in output.headline(compared(*pairs))


def test_pairs_that_vary_keep_the_t_test() -> None:
    for pairs in (3, 4, 5):
        row = compared(*sides(0.3, pairs)).primary
        assert (row.answer, row.effect and row.effect.by_both) == ("worse", False)
        assert row.p is not None
