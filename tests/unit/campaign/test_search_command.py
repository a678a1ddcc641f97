"""`inferload search`: refusals, plans and points, resumption, the page, and a search on the simulator."""

import json
import re
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import summaries
import synthetic_run
from e2e_runs import wait_until
from inferload.analysis.report import search_charts, search_page
from msgspec import structs
from own_commands import begin
from run_folders import edited
from searches import SLO, look_of, search_document

from inferload import cli
from inferload.base import rundir
from inferload.base.errors import UsageError
from inferload.campaign import process
from inferload.campaign import search as points
from inferload.campaign import search_plan as asked
from inferload.campaign.attainment import bracket, slo
from inferload.campaign.attainment.answer import document
from inferload.campaign.attainment.bracket import Settings
from inferload.campaign.attainment.point import Look
from inferload.campaign.attainment.text import going, line, summed_up
from inferload.campaign.attainment.window import Samples, Window
from inferload.campaign.journal import Journal, RunEnded
from inferload.cli import search_command
from inferload.scenario import scenario as scenarios
from inferload.scenario.files.yaml_text import as_yaml
from inferload.turns import turns_file
from inferload.turns.remarks import MEANINGS, Remark

HOST = ["--host", "http://127.0.0.1:9"]
SHORT = """\
schema: 1
name: short-open
workload: {{kind: chat, prompt_tokens: {prompt}, output_tokens: {output}, turns: 1}}
arrivals: {{kind: constant, sessions_per_s: 4}}
phases: {{warmup_s: {warmup_s}, measure_s: {measure_s}, drain_s: 10}}
"""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--slo", "p95(tfft_ms) < 800"], "did you mean ttft_ms?"),
        (["--slo", SLO, "--start", "0"], "--start 0: not a number greater than 0"),
        (["--slo", SLO, "--start", "nan"], "--start nan: not a number greater than 0"),
        (["--slo", SLO, "--rates", "1,x"], "--rates x: not a number greater than 0"),
        (["--slo", SLO, "--budget", "soon"], "--budget soon: not a time"),
        (["--slo", SLO, "--budget", "20s"], "--budget 20s: one point takes about"),
        (["--slo", SLO, "--precision", "5"], "--precision 5: from 0.01 to 1"),
        (["--scenario", "embeddings", "--slo", SLO], "endpoint embeddings has no streams; use e2e_ms and failed_ratio"),
        ([], "--slo is missing"),
        (["--tier", "fast", "--tier", "b=x"], '--tier fast=: write it as NAME=SLO, as --tier "fast=p95(ttft_ms)<500"'),
        (["--tier", f"a={SLO}"], "--tier: only one; give --slo, or several tiers"),
        (["--tier", f"a={SLO}", "--tier", f"a={SLO}"], "--tier: a name is given twice"),
        (["--slo", SLO, "--tier", f"a={SLO}", "--tier", f"b={SLO}"], "--tier: not with --slo"),
        (["--tier", f"a={SLO}", "--tier", "b=p95(tfft_ms) < 800"], "did you mean ttft_ms?"),
    ],
)
def test_invalid_options_are_refused_before_any_load(
    options: list[str], message: str, command: Callable[..., str], tmp_path: Path
) -> None:
    into = tmp_path / "search"
    assert message in command("search", "--scenario", "chat-open", *HOST, "--into", into, *options, code=2)
    assert not into.exists()


def test_a_dry_run_prints_the_plan(command: Callable[..., str], tmp_path: Path) -> None:
    into = tmp_path / "search"
    options = ["--slo", SLO, "--budget", "30m", "--point", "2m", "--warmup", "10s", "--dry-run", "--into", into]
    printed = command("search", "--scenario", "chat-open", *HOST, *options)
    assert "from 2 sessions/s, at most 30 min: about 12 points" in printed
    assert "no prefix of a point is cached before it" in printed
    assert not into.exists()


PROFILE = {"kind": "steps", "steps": [{"users": 2, "for_s": 5}, {"users": 4, "for_s": 5}]}


@pytest.mark.parametrize(
    ("name", "changes", "options", "code", "text"),
    [
        ("chat-open", {"phases": {"warmup_turns": 20}}, (), 0, "at most 60 s of warm-up and 2 min measured"),
        ("chat-open", {"phases": {"warmup_turns": 20}}, ("--warmup", "0s"), 2, "phases: warmup_turns needs warmup_s"),
        ("smoke", {"arrivals": {"users": 20, "profile": PROFILE}}, (), 0, "from 4 users"),  # the highest number
        ("chat-open", {"arrivals": {"max_in_flight": 16, "when_full": "delay"}}, (), 2, "arrivals.max_in_flight"),
        ("chat-open", {"arrivals": {"max_in_flight": 16, "when_full": "drop"}}, (), 2, "arrivals.max_in_flight"),
    ],
)
def test_a_changed_scenario_is_planned_or_refused(
    *, name: str, changes: dict[str, Any], options: tuple[str, ...], code: int, text: str,
    command: Callable[..., str], tmp_path: Path,
) -> None:  # fmt: skip
    file = written(tmp_path / "changed.yaml", name, **changes)
    words = ["--scenario", file, *HOST, "--slo", SLO, "--point", "2m", "--dry-run", *options]
    assert text in command("search", *words, code=code)


def written(file: Path, name: str = "chat-open", **changes: dict[str, Any]) -> Path:
    """Write a bundled scenario with other values of some keys."""
    data = scenarios.load(name).as_data()
    for key, values in changes.items():
        data[key] |= values
    file.write_text(as_yaml(data), encoding="utf-8")
    return file


def plan_of(**changes: Any) -> asked.SearchPlan:
    defaults = {
        "scenario": "chat-open", "host": "http://127.0.0.1:9", "slo": SLO, "budget_s": 600.0, "window_s": 40.0,
        "warmup_s": 5.0, "guess": 2.0, "precision": 0.15, "seed": 3, "rates": (), "options": {}, "extra": (),
    }  # fmt: skip
    return asked.SearchPlan(**{**defaults, **changes})


def test_a_point_is_the_scenario_at_its_load_without_gates() -> None:
    loaded, closed = scenarios.load("chat-open"), scenarios.load("chat")
    point = scenarios.from_text(asked.at(loaded, "chat-open", plan_of(), 3.5, 17), "point")
    assert point.as_data()["arrivals"]["sessions_per_s"] == 3.5
    assert (point.phases.warmup_s, point.phases.measure_s, point.seed, point.gates) == (5.0, 40.0, 17, ())
    assert point.cache == loaded.cache
    users = scenarios.from_text(asked.at(closed, "chat", plan_of(), 7.0, 1), "point").as_data()["arrivals"]
    assert users["users"] == 7


def test_a_point_with_a_warm_arm_takes_twice_as_long(tmp_path: Path) -> None:
    cold, warm = (
        scenarios.load(str(written(tmp_path / f"{arm}.yaml", cache={"arm": arm}))) for arm in ("cold", "warm")
    )
    assert plan_of().settings(warm).look_s == 2 * plan_of().settings(cold).look_s
    assert plan_of(rates=(1.0, 2.0)).settings(warm).most_looks == 2


def test_the_tiers_of_a_plan_are_printed_stored_and_in_the_pages(command: Callable[..., str], tmp_path: Path) -> None:
    tiers = ["--tier", f"fast={SLO}", "--tier", "slow = p95(ttft_ms) < 2000"]
    printed = command("search", "--scenario", "chat-open", *HOST, *tiers, "--dry-run", "--into", tmp_path / "s")
    assert f"hold fast: {SLO}; slow: p95(ttft_ms) < 2000" in printed
    plan = plan_of(tiers={"fast": SLO, "slow": "p95(ttft_ms) < 2000"})
    plan.write(tmp_path)
    assert asked.read(tmp_path) == plan
    assert [each.conditions[0].limit for each in plan.of_tiers(scenarios.load("chat-open"))] == [800, 2000]
    fast, slow = (
        structs.replace(search_document({4: share}), tier=name) for name, share in (("fast", 0.9), ("slow", 0.99))
    )
    document = structs.replace(fast, tiers=(slow,))
    assert [line.partition(":")[0] for line in summed_up(document) if not line.startswith(" ")] == ["fast", "slow"]
    text = search_page.markdown(document)
    assert "| SLO fast |" in text
    assert "Points: slow" in text
    assert search_page.headline(document).startswith("fast: ")
    assert 'id="points-slow"' in search_page.html(document, plotly="")


def test_the_plan_is_stored_for_resumption(tmp_path: Path) -> None:
    plan = plan_of(rates=(1.0, 2.0), extra=("--processes", "2"))
    plan.write(tmp_path)
    assert asked.read(tmp_path) == plan
    with pytest.raises(UsageError, match="no search was started there"):
        asked.read(tmp_path / "other")


def test_keys_in_headers_are_not_stored_and_required_on_resumption(tmp_path: Path, command: Callable[..., str]) -> None:
    plan_of(options={"header": ["X-Team: blue", "X-Api-Key: sesame"]}).write(tmp_path)
    assert "sesame" not in (tmp_path / asked.PLAN).read_text()
    again = ("search", "--resume", tmp_path, "--dry-run")
    key = ("--header", "X-Api-Key: sesame")
    assert "keys are not stored; give again --header 'X-Api-Key: ...'" in command(*again, code=2)
    headers = {"header": ["X-Team: blue", "x-api-key: sesame"]}
    assert asked.read(tmp_path, ["x-api-key: sesame", "X-Other: 1"]).options == headers
    command(*again, *key)
    command(*again, *key, "--header", "X-Other: 1", code=2)
    behind = ("search", "--scenario", "chat-open", *HOST, "--slo", SLO, "--", *key)
    assert "write it before --" in command(*behind, code=2)


def write_plan(folder: Path) -> Path:
    file = written(folder / "scenario.yaml")
    digest = scenarios.load(str(file)).digest
    plan_of(scenario=str(file), options={"model": "m"}, scenario_digest=digest).write(folder)
    return file


def test_a_resumed_search_takes_a_new_budget(tmp_path: Path, command: Callable[..., str]) -> None:
    write_plan(tmp_path)
    same = ["--point", "40s", "--slo", SLO, "--start", "2", "--model", "m", "--budget", "2h"]
    assert "at most 2 h" in command("search", "--resume", tmp_path, *same, "--dry-run")
    assert "at most 10 min" in command("search", "--resume", tmp_path, "--dry-run")


@pytest.mark.parametrize(
    "option",
    [
        ("--slo", "p95(ttft_ms) < 900"), ("--point", "50s"), ("--warmup", "0"), ("--start", "3"), ("--rates", "1,2"),
        ("--precision", "0.2"), ("--seed", "4"), ("--model", "n"), ("--into", "elsewhere"), ("--host", "http://a:1"),
    ],
)  # fmt: skip
def test_a_resumed_search_refuses_changed_options(
    option: tuple[str, str], tmp_path: Path, command: Callable[..., str]
) -> None:
    write_plan(tmp_path)
    assert option[0] in command("search", "--resume", tmp_path, *option, "--dry-run", code=2)


def test_a_resumed_search_refuses_a_changed_scenario(tmp_path: Path, command: Callable[..., str]) -> None:
    file = write_plan(tmp_path)
    file.write_text(file.read_text(encoding="utf-8").replace("drain_s: ", "drain_s: 1"), encoding="utf-8")
    assert "has changed" in command("search", "--resume", tmp_path, "--dry-run", code=2)


@pytest.mark.parametrize("of", ["search", "ab"])
def test_code_that_a_folder_names_is_confirmed_by_the_command_line(
    of: str, tmp_path: Path, command: Callable[..., str]
) -> None:
    file = written(tmp_path / "scenario.yaml", "agent-live", workload={"agent": "clerk.py:Clerk"})
    if of == "search":
        plan_of(scenario=str(file), scenario_digest=scenarios.load(str(file)).digest).write(tmp_path)
    else:
        sides = {"A": "http://a:1", "B": "http://b:1"}
        (tmp_path / "ab.yaml").write_text(as_yaml({"schema": 1, "sides": sides, "scenario": str(file), "pairs": 2}))
    words = (of, "--resume", tmp_path, "--dry-run")
    question = f"executes Python code (clerk.py:Clerk); if it is yours, confirm it with --scenario {file}"
    assert question in command(*words, code=2)
    command(*words, "--scenario", "chat", code=2)
    command(*words, "--scenario", file)


@pytest.mark.parametrize(
    ("extra", "code"),
    [
        *((each.split(), 2) for each in ("-f a.py", "-fa.py", "--locustfile=a.py", "--locust a.py", "--config a.conf")),
        (["--processes", "2", "--config-users", "[]"], 0),
    ],
)
def test_options_of_locust_that_name_code_are_confirmed_by_the_command_line(
    extra: list[str], code: int, tmp_path: Path, command: Callable[..., str]
) -> None:
    write_plan(tmp_path)
    with edited(tmp_path / asked.PLAN) as plan:
        plan["extra"] = extra
    words = ("search", "--resume", tmp_path, "--dry-run")
    assert ("name code" in command(*words, code=code)) == (code == 2)
    command(*words, "--", *extra)


def test_the_window_of_a_run_corrects_worker_clocks_and_has_its_dropped_sessions(tmp_path: Path) -> None:
    run_dir = synthetic_run.write(tmp_path / "run")
    conditions = slo.parse("p95(ttft_ms) < 800 and mean(tpot_ms) < 50 and failed_ratio < 0.5")
    window = points.window(run_dir, conditions)
    ttft, tpot, failed = window.samples
    assert np.median(ttft.value) == pytest.approx(100, abs=1)
    assert np.isinf(ttft.value).sum() == np.isinf(failed.value).sum() == 1
    assert np.isfinite(tpot.value).all()
    assert len(tpot.value) == len(ttft.value) - 1
    assert np.diff(np.sort(ttft.at_s)) == pytest.approx(0.25, abs=1e-6)
    assert 0 <= ttft.at_s.min() < ttft.at_s.max() < window.lasts_s
    assert window.good == len(ttft.value) - 1
    assert points.window(run_dir, slo.parse("mean(ttft_ms) < 800")).good is None
    dropped = points.window(run_dir, conditions, 7).samples
    for before, after in ((ttft, dropped[0]), (failed, dropped[2])):  # they miss every limit
        assert np.isinf(after.value).sum() == np.isinf(before.value).sum() + 7
        assert len(after.at_s) == len(after.value)


def test_a_point_with_missing_turn_records_is_refused(tmp_path: Path) -> None:
    run_dir = synthetic_run.write(tmp_path / "run")
    conditions = slo.parse("p95(ttft_ms) < 800")
    with edited(run_dir / "run.json") as manifest:
        for worker in manifest["workers"]:
            worker["turns"] = turns_file.rows_of(run_dir / rundir.TURNS, worker["name"])
    points.window(run_dir, conditions)
    turns_file.remove_worker(run_dir / rundir.TURNS, "w1")
    with pytest.raises(UsageError, match="turn records are in the run directory"):
        points.window(run_dir, conditions)


def test_doubts_about_a_point_are_printed_with_it() -> None:
    reasons = [
        {"phase": "warmup", "level": "suspect", "code": "cpu", "text": "a worker was busy"},
        {"phase": "measure", "level": "suspect", "code": "cpu", "text": "a worker was busy; use more workers"},
    ]
    counts = {"ok": 5, "remarks": {"hidden_tokens": {"turns": 3}}}
    marked = summaries.summary({"verdict": {"reasons": reasons}, "turns": counts})
    remarks = points.remarks_of(marked, slo.parse("p95(ttft_ms) < 800"))
    of_tokens = f"3 of 5 turns {MEANINGS[Remark.HIDDEN_TOKENS]}"
    assert points.remarks_of(marked, slo.parse("p95(tpot_ms) < 80")) == (*remarks, of_tokens)
    wrong = summaries.summary({"canary": {"asked": 9, "wrong": 1, "by_class": {"cut": 1, "ok": 8}}})
    assert points.remarks_of(wrong) == ("1 of 9 canary answers wrong: cut 1",)
    at_s = np.arange(0, 60, 0.05)
    window = Window(60.0, (Samples(at_s, np.full(len(at_s), 10.0)),), at_s, at_s + 0.1)
    settings = Settings(slo.parse(SLO), 20.0, 1000.0, 60.0, 5.0)
    (point,) = bracket.points_of(settings, [Look(20.0, (window,), 65.0, remarks=remarks)])
    assert point.remarks == ("a worker was busy; use more workers",)
    assert line(point, 1, 65.0, "sessions/s").endswith("; but a worker was busy")
    twice = structs.replace(point, remarks=(*remarks, "the clock jumped; set it"))
    assert line(twice, 1, 65.0, "sessions/s").endswith("; but a worker was busy (and 1 more)")
    result = document(settings, [point], "budget", "sessions/s")
    assert result.points[0].remarks == point.remarks
    assert any("measured with doubts: 1 of 1 loads" in text for text in summed_up(result))
    (lost,) = bracket.points_of(settings, [Look(20.0, (), 65.0, invalid=True, cause="it was late; use more workers")])
    assert line(lost, 1, 65.0, "sessions/s").endswith("no limit of the server: it was late")


def test_the_line_of_a_load_has_its_verdict_by_a_higher_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    looks = {40.0: look_of(40.0, 1600, 80.0), 2.0: look_of(2.0, 60, 20.0)}
    runner = SimpleNamespace(earlier=lambda: [], look=lambda load, _number: [looks[load]])
    monkeypatch.setattr(search_command, "PointRunner", lambda *_: runner)
    plan, closed = plan_of(slo="mean(tpot_ms) < 50"), scenarios.load("chat")
    campaign = search_command._Campaign(tmp_path, plan, closed, Journal(tmp_path))
    for number, load in enumerate(looks):
        campaign.look(load, number)
    high, low = capsys.readouterr().out.splitlines()
    assert "40 users: breaks; " in high
    assert "2 users: holds; " in low
    assert low.endswith(", met at a higher load")


def test_the_limit_of_failed_turns_beside_gaps_is_printed() -> None:
    at_s = np.arange(0, 400, 0.05)
    failed = np.arange(len(at_s)) % 2 == 1
    samples = (Samples(at_s[~failed], np.full(4000, 20.0)), Samples(at_s, np.where(failed, np.inf, 0.0)))
    window = Window(400.0, samples, at_s, at_s + 0.1, ok=~failed)
    settings = Settings(slo.parse("p95(itl_ms) < 50"), 20.0, 1000.0, 400.0, 5.0)
    (point,) = bracket.points_of(settings, [Look(20.0, (window,), 405.0)])
    assert point.verdict == "breaks"
    text = line(point, 1, 65.0, "sessions/s")
    assert "p95(itl_ms) 20: 100 % within" in text
    assert "not served 0.5: 50 % within" in text
    page = search_page.markdown(document(settings, [point], "budget", "sessions/s"))
    assert "p95(itl_ms) < 50 and failed_ratio < 0.05" in page
    assert "| breaks | 20; 100 % within" in page


def test_a_share_below_1_is_not_printed_as_100_percent() -> None:
    at_s = np.arange(0, 4000, 0.02)
    value = np.where(np.arange(len(at_s)) == 9, 900.0, 300.0)
    window = Window(4000.0, (Samples(at_s, value),), at_s, at_s + 0.1)
    (point,) = bracket.points_of(Settings(slo.parse(SLO), 50.0, 1000.0, 4000.0, 5.0), [Look(50.0, (window,), 4005.0)])
    assert "p95(ttft_ms) 300: over 99.99 % within (" in line(point, 1, 65.0, "sessions/s")


@pytest.mark.parametrize(
    ("latest", "expected"),
    [
        (None, "starting"),
        ({"phase": None, "elapsed_s": 0.0, "measured_s": None, "in_flight": 0}, "about to begin · 0 in flight"),
        ({"phase": "warmup", "elapsed_s": 1.6, "measured_s": None, "in_flight": 3}, "warm-up 2 of 5 s · 3 in flight"),
        ({"phase": "measure", "elapsed_s": 9.2, "measured_s": 4.2, "in_flight": 7}, "measure 4 of 40 s · 7 in flight"),
        ({"phase": "drain", "elapsed_s": 46.0, "measured_s": 41.0, "in_flight": 2}, "drain · 2 in flight"),
    ],
)
def test_the_progress_line_of_a_running_point(latest: dict[str, Any] | None, expected: str) -> None:
    assert going(latest, 5.0, 40.0) == expected


def test_the_last_complete_line_of_a_progress_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "01.progress"
    assert points.latest(file) is None
    file.write_text("".join(json.dumps({"in_flight": number}) + "\n" for number in range(200)) + '{"in_fl')
    assert points.latest(file) == {"in_flight": 199}


def test_a_second_interrupt_ends_the_run(tmp_path: Path) -> None:
    """On SIGTERM the run sends SIGINT to its parent again and continues."""
    code = (
        "import os, signal\n"
        "signal.signal(signal.SIGTERM, lambda *_: os.kill(os.getppid(), signal.SIGINT))\n"
        "print('ready', flush=True)\n"
        "while True: signal.pause()"
    )
    log = tmp_path / "log"
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        child, begun = process.begin([sys.executable, "-S", "-c", code], log)
        wait_until(lambda: log.read_text() == "ready\n", "the run")
        with pytest.raises(KeyboardInterrupt):
            begun.end(60.0)
        assert not begun.alive()
        child.wait(10)
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("forked_programs")
def test_a_killed_rate_sweep_is_resumed(tmp_path: Path, simulator: Any) -> None:
    (tmp_path / "scenario.yaml").write_text(SHORT.format(prompt=20, output=4, warmup_s=0, measure_s=1))
    host = simulator("--ttft-ms", "5", "--itl-ms", "1").url
    out = tmp_path / "out"
    options = ["--scenario", "scenario.yaml", "--host", host, "--slo", "p95(ttft_ms)<5000", "--rates", "20,40"]
    killed = begin(tmp_path, "search", *options, "--into", "out")
    orphan = wait_until(lambda: out.is_dir() and list(Journal(out).under_way.values()), "a run")[0]
    killed.kill()
    killed.wait()
    assert orphan.alive()
    resumed = begin(tmp_path, "search", "--resume", "out")
    output = resumed.communicate()[0]
    assert not orphan.alive()
    assert resumed.returncode in (0, 1), output  # 1 if a busy machine makes both points invalid
    document = json.loads((out / "search.json").read_text())
    found = [(point["level"], point["runs"]) for point in document["points"]]
    assert found == [(20, ["points/01"]), (40, ["points/02"])]
    assert [entry.folder for entry in Journal(out).runs] == ["points/01", "points/02"]
    for entry in Journal(out).runs:
        assert entry.cause is None
        assert json.loads((out / entry.folder / "summary.json").read_text())["turns"]["sent"] > 10
    assert Journal(out).under_way == {}


@pytest.mark.soak
def test_an_unreachable_server_is_refused_at_the_first_point(command: Callable[..., str], tmp_path: Path) -> None:
    words = ["--scenario", "chat-open", *HOST, "--slo", SLO, "--point", "1s", "--warmup", "0", "--into", tmp_path / "s"]
    problem = "the first point could not be made: no connection to http://127.0.0.1:9"
    assert problem in command("search", *words, code=2)


def test_the_pages_of_a_search(golden: Callable[..., Any]) -> None:
    document = search_document({4.0: 0.995, 8.0: 0.985, 12.0: 0.95, 16.0: 0.7})
    golden("search.md", search_page.markdown(document))
    page = search_page.html(document, plotly="")
    assert "a worker used 99 % of a core" in page
    assert "no steady value" in page
    plain = structs.replace(document, answer=None)  # as of a sweep of rates
    assert search_page.headline(plain).startswith("Sweep of chat-open at 6 loads")
    assert "Sweep: chat-open" in search_page.markdown(plain)


SERVER: dict[str, Any] = {
    "model": "m",
    "engine": "vllm 0.32.0",
    "variant": {"name": "a", "argv": ["--max-num-seqs", "8"]},
}


def performer(folder: Path, servers: list[dict[str, Any]]) -> points.PointRunner:
    """Search with one run per server; the last one is the run of the next look."""
    journal = Journal(folder)
    for number, server in enumerate(servers, 1):
        name = f"points/{number:02}"
        (folder / name).mkdir(parents=True)
        rundir.write_json(folder / name / rundir.MANIFEST, server)
        journal.write(RunEnded(folder=name, exit_code=0, took_s=60.0, level=2.0, cause="no summary in this test"))
    plan, scenario = plan_of(), scenarios.load("chat-open")
    return points.PointRunner(folder, plan, scenario, plan.of_tiers(scenario), journal)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"model": "n"}, "model n, but m in points/01"),
        ({"engine": "vllm 0.33.0"}, "engine vllm 0.33.0, but vllm 0.32.0 in points/01"),
        ({"variant": {**SERVER["variant"], "name": "b"}}, "variant b, but a in points/01"),
        ({"variant": None}, "variant unknown, but a in points/01"),
        (
            {"variant": {"name": "a", "argv": ["--max-num-seqs", "9"]}},
            "server arguments differ from those in points/01",
        ),
    ],
)
def test_points_on_another_server_are_refused(
    change: dict[str, Any], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = performer(tmp_path, [SERVER, SERVER])

    def run(runner: points.Runner, name: str, *_: Any, **facts: Any) -> RunEnded:
        (tmp_path / name).mkdir()
        rundir.write_json(tmp_path / name / rundir.MANIFEST, {**SERVER, **change})
        runner.journal.write(RunEnded(folder=name, exit_code=0, took_s=60.0, level=2.0))
        return runner.journal.runs[-1]

    monkeypatch.setattr(points.Runner, "run", run)
    remedy = f"start that server again and continue with --resume {tmp_path}, or start a new search"
    with pytest.raises(UsageError, match=f"^{re.escape(f'{tmp_path}: points/03: {text}; {remedy}')}$"):
        search.look(3.0, 2)
    assert [entry.folder for entry in Journal(tmp_path).runs] == ["points/01", "points/02"]
    # A search of two servers is not resumed; one whose /version did not answer once is.
    with pytest.raises(UsageError, match=f"points/02: {text}; start a new search$"):
        performer(tmp_path / "other", [SERVER, {**SERVER, **change}]).earlier()
    unread = {**SERVER, "engine": "unknown"}
    assert len(performer(tmp_path / "same", [{}, SERVER, unread, SERVER]).earlier()) == 4


def test_an_slo_of_means_has_the_chart_of_its_failed_turns() -> None:
    settings = Settings(slo.parse("mean(ttft_ms) < 100"), 10.0, 1000.0, 60.0, 5.0)
    at_s = np.arange(0, 60, 0.05)
    none_failed = Samples(at_s, np.zeros(len(at_s)))
    steady = Window(60.0, (Samples(at_s, np.full(len(at_s), 50.0)), none_failed), at_s, at_s + 0.1)
    over = Window(60.0, (Samples(at_s, at_s * 100), none_failed), at_s, at_s * 2 + 1)
    looks = [Look(4.0, (steady,), 65.0), Look(8.0, (over,), 65.0)]
    picture = search_charts.picture(document(settings, bracket.points_of(settings, looks), "budget", "sessions/s"))
    assert picture is not None
    named = {(trace["name"], trace["yaxis"]) for trace in picture.figure["data"]}
    assert {("mean(ttft_ms)", "y2"), ("not served within its limit", "y")} <= named
    (cross,) = (trace for trace in picture.figure["data"] if trace["name"] == "overloaded")
    assert (cross["x"], cross["y"]) == ([8.0], [0.0])


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_a_search_on_the_simulator(tmp_path: Path, simulator: Any) -> None:
    """The search ends within its budget, can be resumed, and writes its pages."""
    file, into = tmp_path / "scenario.yaml", tmp_path / "search"
    file.write_text(SHORT.format(prompt=200, output=16, warmup_s=2, measure_s=15).replace("constant", "poisson"))
    server = simulator("--hardware", "t4-qwen3-4b", "--max-num-seqs", "8")
    options = ["--slo", "mean(ttft_ms)<1500", "--budget", "4m", "--point", "15s", "--into", str(into)]
    assert cli.main(["search", "--scenario", str(file), "--host", server.url, *options]) in (0, 1)
    result = json.loads((into / "search.json").read_text())
    assert result["spent"]["looks"] >= 3
    assert result["answer"]["text"]
    assert {"search.html", "search.md"} <= {path.name for path in into.iterdir()}
    assert {run for point in result["points"] for run in point["runs"]} == {
        f"points/{number:02}" for number in range(1, result["spent"]["looks"] + 1)
    }
    assert cli.main(["search", "--resume", str(into)]) in (0, 1)
    levels = [point["level"] for point in result["points"]]
    again = json.loads((into / "search.json").read_text())
    assert [point["level"] for point in again["points"]][: len(levels)] == levels


@pytest.mark.usefixtures("forked_programs")
def test_variants_are_searched_one_after_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Callable[..., str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["search", "--scenario", "smoke", "--slo", "mean(ttft_ms)<800", "--clock", "virtual", "--warmup", "0s"]
    words += ["--variants", "tiny-all,tiny-seqs-1", "--rates", "1", "--point", "5s", "--into", "out"]
    assert command(*words, "--dry-run").count("sweep of smoke at 1 users") == 2
    assert not Path("out").exists()
    command(*words)
    table = Path("out/variants.md").read_text(encoding="utf-8")
    assert table.startswith("## Highest load that holds mean(ttft_ms)<800")
    assert [re.findall(r"[\w-]+", line)[0] for line in table.splitlines()[4:]] == ["tiny-all", "tiny-seqs-1"]
    second = Path("out/tiny-seqs-1")
    shutil.rmtree(second / "points")
    for name in ("search.json", "journal.jsonl"):
        (second / name).unlink()
    problem = "the folder has its own plan; remove --variants and --engine"
    assert problem in command("search", "--resume", "out", "--engine", "simulator", code=2)
    assert "== tiny-all ==" not in command("search", "--resume", "out")
    assert Path("out/variants.md").read_text(encoding="utf-8") == table


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        (["--host", "http://a:1"], "--host: not with --variants"),
        (["--variants", "tiny-all,tiny-all"], "one is named twice"),
        (["--variants", "tiny-al"], "variant tiny-al: unknown; did you mean tiny-all?"),
        (["--engine", "vllm"], "its model is generated, for --engine vllm-cpu or simulator only"),
        (["--clock", "virtual", "--engine", "vllm"], "--clock virtual needs the simulator"),
        (["--slo", "x<1"], "--slo: "),
        (
            ["--variants", "", "--host", "http://a:1", "--engine", "vllm"],
            "--engine: of servers that are started for --variants",
        ),
    ],
)
def test_a_search_of_variants_is_refused_before_it_starts_a_server(
    more: list[str], problem: str, command: Callable[..., str]
) -> None:
    words = ["search", "--scenario", "smoke", "--slo", "mean(ttft_ms)<800", "--variants", "tiny-all"]
    shown = command(*words, *more, code=2)
    assert problem in shown
    assert shown.count("\n") == 1
