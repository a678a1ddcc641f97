"""Baseline files: added occasions, refusals, and the verdict on a candidate."""

import json
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inferload.analysis.comparison import baselines
from inferload.analysis.comparison.read_sides import read_side
from inferload.analysis.comparison.sides import Side
from made_sides import made_run
from run_folders import edited, write_run

from inferload.base.errors import UsageError
from inferload.figures.pages.metric_names import PROCESS_START
from inferload.results.statistics.baseline_stats import effect
from inferload.servers.scrapes_file import ScrapeColumns, write_part


def history(tmp_path: Path, count: int, starts: bool = True) -> Path:
    """A baseline file of `count` occasions, about 3 % apart, with one server start each or with unknown starts."""
    dice, file = random.Random(4), tmp_path / "b.json"
    runs = [write_run(tmp_path / "runs" / str(day), 1, 100 * (1 + dice.gauss(0, 0.03))) for day in range(1, count + 1)]
    for day, run_dir in enumerate(runs, 1):
        with edited(run_dir / "run.json") as manifest:
            manifest["started_at"] = f"2026-02-{day:02d}T08:00:00"
    baselines.add(file, runs)
    with edited(file) as document:
        for occasion in document["occasions"]:
            occasion["start"] = f"engine at {occasion['label']}" if starts else None
    return file


def test_added_runs_are_read_back_as_occasions(tmp_path: Path) -> None:
    file = history(tmp_path, 3)
    side = baselines.read(file)
    assert [run.label for run in side.runs] == ["1", "2", "3"]
    assert side.runs[0].settings["workload.kind"] == "chat"
    assert side.runs[0].settings["seed"] == "1"
    assert side.mean("mean(ttft_ms)") == pytest.approx(100, rel=0.05)
    assert baselines.is_baseline(file)
    assert not baselines.is_baseline(tmp_path)


def test_a_verdict_on_occasions_of_unknown_starts_names_them(tmp_path: Path, command: Callable[..., str]) -> None:
    file = history(tmp_path, 8, starts=False)
    slow, same = write_run(tmp_path / "slow", 1, 200), write_run(tmp_path / "same", 1, 100)
    words = ("compare", "--baseline", file, "--fail-on-regression")
    reason = "b.json has 8 occasions on unknown server starts: a restart alone may change"
    assert reason in command(*words, slow, code=4)
    command(*words, same)
    command(*words, same, "--strict", code=4)
    lines = "; ".join(baselines.summary_lines(baselines.read(file)))
    assert "a verdict holds for the server starts of these occasions, which are not known" in lines


def test_a_run_in_the_baseline_file_is_refused(tmp_path: Path, command: Callable[..., str]) -> None:
    file = history(tmp_path, 8)
    before = file.read_text()
    words = ("compare", "--baseline", file)
    assert "already in the file, as 3; name another run" in command(*words, tmp_path / "runs" / "3", code=2)
    shutil.copytree(tmp_path / "runs" / "5", tmp_path / "several" / "old")
    write_run(tmp_path / "several" / "earlier", 1, 100)
    assert "old: already in the file, as 5" in command(*words, tmp_path / "several", code=2)
    with pytest.raises(UsageError, match="already in the file, as 2"):
        baselines.add(file, [tmp_path / "runs" / "2"])
    assert file.read_text() == before


def test_a_candidate_on_the_server_start_of_an_occasion_is_refused(tmp_path: Path) -> None:
    side = baselines.read(history(tmp_path, 8))
    same = replace(side.runs[4], started_at="2026-03-01T08:00:00")
    fresh = replace(same, start="engine at 9999")
    with pytest.raises(UsageError, match="same server start as occasion 5"):
        baselines.candidate(Side("new", (fresh, same)), side)
    assert len(baselines.candidate(Side("new", (fresh, fresh)), side).runs) == 1


def test_tokens_and_turns_of_an_occasion_are_of_all_its_runs() -> None:
    def averaged(*runs: tuple[float | None, tuple[int, int] | None]) -> tuple[object, ...]:
        made = [
            made_run(1, {}, input_tokens=tokens, output_tokens=40.0, cached_tokens=tokens, ok_and_sent=turns)
            for tokens, turns in runs
        ]
        (run,) = baselines.candidate(Side("new", tuple(made)), Side("b", ())).runs
        return run.input_tokens, run.output_tokens, run.cached_tokens, run.ok_and_sent

    assert averaged((10.0, (8, 9)), (30.0, (5, 7))) == (20.0, 40.0, 20.0, (13, 16))
    assert averaged((10.0, (8, 9)), (None, None)) == (None, 40.0, None, None)


def long_running(tmp_path: Path, gap_s: float = 3600.0, count: int = 8, cache: str = "") -> list[Path]:
    """Runs of 90 s each on one server, `gap_s` apart."""
    dice, folders = random.Random(4), []
    for index in range(count):
        folder = write_run(tmp_path / "one-server" / str(index), 1, 100 * (1 + dice.gauss(0, 0.03)))
        began_s = 1_770_000_000 + index * (gap_s + 90)
        with edited(folder / "run.json") as manifest:
            manifest["scenario"]["text"] += cache
            manifest["started_at"] = datetime.fromtimestamp(began_s, UTC).isoformat(timespec="milliseconds")
            manifest["anchor"] = {"wall_ns": int(began_s * 1e9)}
            manifest["phases"] = [{"phase": "drain", "end_wall_ns": int((began_s + 90) * 1e9)}]
        scrapes = ScrapeColumns()
        scrapes.append(int(began_s * 1e9), "s:1", PROCESS_START, (), 1_760_000_000.0)
        (folder / "server_metrics").mkdir()
        write_part(folder / "server_metrics", 0, scrapes.to_table())
        folders.append(folder)
    return folders


def test_runs_on_virtual_clocks_have_the_start_of_their_variant(tmp_path: Path) -> None:
    for folder, seed in zip(long_running(tmp_path, count=3), (1, 1, 2), strict=True):
        with edited(folder / "run.json") as manifest:
            manifest |= {"clock": "virtual", "variant": {"name": "v", "started_at": f"virtual, seed {seed}"}}
    one, other, own = (run.start for run in read_side(tmp_path / "one-server").runs)
    assert one == other != own


def test_a_verdict_on_occasions_of_one_server_start_holds_for_it_only(
    tmp_path: Path, command: Callable[..., str]
) -> None:
    *earlier, same = long_running(tmp_path, count=9)
    file = tmp_path / "b.json"
    reason = "b.json has 8 occasions on 1 server start: a restart alone may change the figures"
    assert f"a verdict holds for this server start only ({reason})" in command("baseline", "add", file, *earlier)
    words = ("compare", "--baseline", file, "--fail-on-regression")
    assert f"holds for this server start: {reason}" in command(*words, same)
    command(*words, same, "--strict", code=4)
    slow = write_run(tmp_path / "slow", 1, 150)
    shown = command(*words, slow, "--write", tmp_path / "out", code=4)
    assert "slow against b.json: WORSE, Mean TTFT is" in shown
    assert "against 8 occasions; " in shown
    document = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert document["candidates"][0]["condition"]["reason"] == reason


@pytest.mark.parametrize(
    ("gap_s", "cache", "why"),
    [
        (3500.0, "", "only 58 min are between them; restart the server between occasions, or leave 60 min"),
        (3600.0, "cache: {isolate: none}\n", "1 may have prefix-cache hits on prompts of earlier runs"),
        (3600.0, "cache: {salt: x}\n", "1 may have prefix-cache hits on prompts of earlier runs"),
    ],
)
def test_occasions_on_one_server_start_are_an_hour_apart_without_shared_cache(
    tmp_path: Path, gap_s: float, cache: str, why: str
) -> None:
    earlier, later = long_running(tmp_path, gap_s, 2, cache)
    file = tmp_path / "b.json"
    baselines.add(file, [earlier])
    with pytest.raises(UsageError, match=f"same server start as occasion 0, and .*{why}"):
        baselines.add(file, [later])
    if not cache:
        with edited(file) as document:
            document["occasions"][0]["lasted_s"] = None  # the run ended without its last phase
        with pytest.raises(UsageError, match="the time between them is unknown"):
            baselines.add(file, [later])


def test_a_regression_exceeds_the_variation_between_occasions(tmp_path: Path, command: Callable[..., str]) -> None:
    slow, same = write_run(tmp_path / "slow", 1, 125), write_run(tmp_path / "same", 1, 101)
    words = ("compare", "--baseline", history(tmp_path, 8), "--fail-on-regression")
    assert "no difference found in Mean TTFT" in command(*words, same)
    junit, written = tmp_path / "out" / "j.xml", tmp_path / "out" / "c.md"
    shown = command(*words, slow, "--junit", junit, "--markdown", written, code=4)
    assert "slow against b.json: WORSE, Mean TTFT is 2" in shown
    assert "against 8 occasions" in shown
    assert "t-test of the candidate against the spread of the occasions of the baseline" in shown
    failed = ElementTree.parse(junit).findall(".//failure")
    assert str(failed[0].get("message")).startswith("Mean TTFT is 2")
    assert "**slow against b.json: WORSE" in written.read_text()


def test_no_verdict_with_fewer_than_eight_occasions(tmp_path: Path, command: Callable[..., str]) -> None:
    slow = write_run(tmp_path / "slow", 1, 200)
    words = ("compare", "--baseline", history(tmp_path, 7), slow, "--fail-on-regression")
    few = "not tested: 7 occasions in b.json, 8 are required for the variation between days and restarts"
    assert few in command(*words)
    command(*words, "--strict", code=4)
    warning = "::warning title=inferload compare::slow against b.json: Mean TTFT is"
    assert warning in command(*words, "--github")


def test_a_run_with_another_seed_or_workload_is_refused(tmp_path: Path, command: Callable[..., str]) -> None:
    file = history(tmp_path, 8)
    other, longer = write_run(tmp_path / "other", 2, 100), write_run(tmp_path / "longer", 1, 100, prompt=30)
    for run_dir, problem in (
        (other, "seed is 2, but 1 in occasion 1; a baseline has one scenario and one seed"),
        (longer, "prompt_tokens is 30, but 20"),
    ):
        with pytest.raises(UsageError, match=problem):
            baselines.add(file, [run_dir])
    assert "not comparable because of seed: 1 against 2" in command("compare", "--baseline", file, other)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"variant": {"name": "fp8", "argv": ["vllm", "serve", "--quantization", "fp8"]}}, "server arguments is "),
        ({"versions": {"inferload": "9.9"}}, "inferload is 9.9, but not set in occasion 1"),
        ({"model": "other"}, "model is other, but not set in occasion 1"),
        ({"program": {"name": "a.py", "digest": "b", "bundled": False}}, r"locustfile is a\.py \(b\), but not set in"),
        ("slo: {ttft_ms: 500}\n", "slo is ttft_ms 500, but none in occasion 1"),
    ],
)
def test_an_occasion_of_another_configuration_is_refused(
    tmp_path: Path, change: dict[str, object] | str, message: str
) -> None:
    file = history(tmp_path, 1)
    before = file.read_text()
    same, other = (write_run(tmp_path / "both" / name, 1, 100) for name in "12")
    with edited(other / "run.json") as manifest:
        manifest |= {"started_at": "2026-03-01T08:00:00", **({} if isinstance(change, str) else change)}
        manifest["scenario"]["text"] += change if isinstance(change, str) else ""
    with pytest.raises(UsageError, match=message):
        baselines.add(file, [other])
    assert file.read_text() == before
    with pytest.raises(UsageError, match="both: its runs have different settings; add each separately"):
        baselines.add(tmp_path / "new.json", [same.parent])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "no baseline file; create it with: inferload baseline add"),
        ('{"kind": "inferload baseline", "format": 9}', "format 9 is not supported"),
        ('{"kind": "inferload baseline", "format": 1, "occasions": [{}]}', "an occasion is incomplete"),
        ("[", "not JSON"),
    ],
)
def test_an_invalid_baseline_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "b.json").write_text(text)
    with pytest.raises(UsageError, match=message):
        baselines.read(tmp_path / "b.json")


def test_show_lists_occasions_and_figures(tmp_path: Path, command: Callable[..., str]) -> None:
    shown = command("baseline", "show", history(tmp_path, 2)).splitlines()
    assert shown[:2] == ["b.json: 2 occasions on 2 days", "  no verdict yet: 8 occasions are required, 6 more"]
    assert any(line.startswith("  mean(ttft_ms): ") for line in shown)


@given(st.lists(st.floats(1, 1000), min_size=2, max_size=12), st.floats(1, 1000), st.floats(0.5, 20))
def test_the_effect_is_scale_invariant_and_inside_its_interval(
    earlier: list[float], candidate: float, factor: float
) -> None:
    plain, scaled = effect(earlier, candidate), effect([factor * value for value in earlier], factor * candidate)
    assert scaled.ratio == pytest.approx(plain.ratio, rel=1e-9)
    assert plain.low is not None
    assert plain.high is not None
    assert plain.low <= plain.ratio <= plain.high


@pytest.mark.parametrize(("ttft_ms", "code"), [(100.0, 0), (100.9, 0), (101.0, 4), (99.0, 0)])
def test_occasions_that_do_not_vary_have_no_p(
    tmp_path: Path, command: Callable[..., str], ttft_ms: float, code: int
) -> None:
    file, new = history(tmp_path, 8), write_run(tmp_path / "new", 1, ttft_ms)
    with edited(file) as document:
        for occasion in document["occasions"]:
            occasion["figures"] = {"mean(ttft_ms)": 100.0}
    shown = command("compare", "--baseline", file, new, "--fail-on-regression", code=code)
    headline = next(line for line in shown.splitlines() if line.startswith("new against"))
    assert "p = " not in headline
    assert ("no difference in Mean TTFT" in headline) == (ttft_ms < 101 and ttft_ms != 99.0)
    assert ("the same from every occasion (8 occasions)" in headline) == (ttft_ms in (101.0, 99.0))
