"""Sweeps on a virtual clock."""

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from inferload.deploy.servers.engines import ServerSpec, shell_line
from inferload.deploy.variants.variant import named
from locust_process import summary_of
from paths import SUPPORT

from inferload import cli
from inferload.base import rundir
from inferload.base.errors import UsageError
from inferload.base.virtual_orders import Order, Ordered
from inferload.campaign import virtual_runs
from inferload.campaign.journal import Entry, Journal, RunEnded
from inferload.campaign.sweep import definition
from inferload.campaign.sweep.definition import Sweep
from inferload.campaign.sweep.plan import starts
from inferload.campaign.sweep.runner import SweepRunner
from inferload.campaign.virtual_runs import Performer


def sweep(**changes: Any) -> Sweep:
    document = {
        "schema": 1,
        "name": "tiny",
        "engine": "simulator",
        "baseline": "t4-baseline",
        "scenarios": [{"scenario": "smoke", "set": ["phases={measure_s: 3}", "gates=[]"]}],
        "pairs": 2,
        "reports": False,
    }
    return Sweep.model_validate({**document, **changes})


@pytest.mark.parametrize("engine", ["vllm", "vllm-cpu"])
def test_the_clock_is_virtual_on_the_simulator_only(engine: str) -> None:
    with pytest.raises(UsageError, match=f"clock virtual needs engine simulator, not {engine}"):
        definition.check(sweep(engine=engine, clock="virtual"), "x")


def performed(planned: Sweep, folder: Path) -> Journal:
    folder.mkdir()
    loads, journal = planned.loads(), Journal(folder)
    SweepRunner(planned, folder, loads, journal, lambda text: None).perform(starts(planned, list(loads)))
    return journal


@pytest.mark.usefixtures("forked_programs")
def test_a_sweep_on_a_virtual_clock_has_the_runs_of_its_plan_and_a_best_variant(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    planned = sweep(clock="virtual", baseline="llama3-baseline", variants=["llama3-tp2"], pairs=3)
    journal = performed(planned, tmp_path / "sweep")
    assert [entry.cause for entry in journal.runs] == [None] * 6
    runs = [summary_of(tmp_path / "sweep" / entry.folder) for entry in journal.runs]
    assert len({run["run"]["seed"] for run in runs}) == 3
    sides = [str(tmp_path / "sweep/smoke" / name) for name in planned.all_variants]
    assert cli.main(["compare", *sides, "--require", "mean(ttft_ms) < 5000"]) == 0
    output = capsys.readouterr().out
    assert "server start" not in output  # each run has its own
    *_, said, command = output.splitlines()
    assert said.startswith("Best in Mean TTFT;")
    assert said.endswith(": llama3-tp2")
    assert command == f"  {shell_line(ServerSpec(variant=named('llama3-tp2')))}"
    assert all(run["window_s"] == 3 and run["turns"]["failed"] == 0 for run in runs)
    report = [sys.executable, "-m", "inferload", "report", str(tmp_path / "sweep" / journal.runs[0].folder)]
    assert subprocess.run(report, capture_output=True, check=False).returncode == 0
    assert "(virtual clock)" in (tmp_path / "sweep" / journal.runs[0].folder / rundir.REPORT_HTML).read_text()


@pytest.mark.usefixtures("forked_programs")
def test_the_index_of_a_sweep_names_the_sides_that_a_requirement_rules_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = ["schema: 1", "name: ruled-out", "engine: simulator", "clock: virtual", "baseline: t4-baseline", "pairs: 1"]
    lines += [
        "variants: [t4-prefix-caching]",
        "scenarios: [{scenario: smoke, set: ['phases={measure_s: 1}', 'gates=[]']}]",
    ]
    lines += ["reports: false", "require: [turns_per_s > 1e9]"]
    Path("plan.yaml").write_text("\n".join(lines))
    assert cli.main(["sweep", "plan.yaml", "--into", "out"]) == 0
    assert "NO SIDE IS LEFT: t4-baseline is ruled out by turns_per_s > 1e9" in Path("out/index.md").read_text()


@pytest.mark.usefixtures("forked_programs")
@pytest.mark.parametrize("keep", [True, False])
def test_a_sweep_that_was_interrupted_has_the_results_of_one_that_was_not(keep: bool, tmp_path: Path) -> None:
    """The second run of a start depends on the first one by the prefix cache, which starts anew with the server."""
    same = {"scenario": "smoke", "set": ["phases={measure_s: 1}", "gates=[]", "cache.isolate=none"]}
    planned = sweep(clock="virtual", scenarios=[same], restart="once", keep_cache=keep)
    whole = performed(planned, tmp_path / "whole")
    folder = tmp_path / "interrupted"
    folder.mkdir()
    loads, journal = planned.loads(), InterruptedJournal(folder)
    runner = SweepRunner(planned, folder, loads, journal, lambda text: None)
    with pytest.raises(KeyboardInterrupt):
        runner.perform(starts(planned, list(loads)))
    again = Journal(folder)
    assert len(again.runs) == 1
    SweepRunner(planned, folder, loads, again, lambda text: None).perform(starts(planned, list(loads)))
    assert [(entry.folder, entry.cause) for entry in again.runs] == [(entry.folder, None) for entry in whole.runs]
    for entry in whole.runs:
        one, other = (summary_of(tmp_path / name / entry.folder) for name in ("whole", "interrupted"))
        assert (one["latency"], one["servers"]) == (other["latency"], other["servers"])


class InterruptedJournal(Journal):
    """Journal of a sweep that the user interrupts after its first run."""

    def write(self, entry: Entry) -> None:
        super().write(entry)
        if isinstance(entry, RunEnded):
            raise KeyboardInterrupt


@pytest.mark.usefixtures("forked_programs")
def test_arguments_that_the_simulator_refuses_are_the_cause_of_each_run(tmp_path: Path) -> None:
    journal = performed(sweep(clock="virtual", set=["max-model-len=9999999"]), tmp_path / "sweep")
    assert len(journal.failures) == 2
    assert all("max-model-len" in str(entry.cause) for entry in journal.failures)


def order_of(folder: Path, measure_s: int) -> Order:
    """Order a run of a scenario in a folder."""
    words = ["--headless", "--scenario", "smoke", "--clock", "virtual", "--set", f"phases.measure_s={measure_s}"]
    run = Ordered(argv=[*words, "--no-report", "--run-dir", str(folder / "run")], log=str(folder / "run.log"))
    return Order(options=["--itl-ms", "5"], facts={}, seed=0, runs=[run])


@pytest.fixture(scope="module")
def performer() -> Iterator[Performer]:
    """A process of runs whose loop has a callback to wait for. It starts anew if it has ended."""
    with pytest.MonkeyPatch.context() as patch, Performer() as running:
        patch.setattr(virtual_runs, "_PROGRAM", "busy_virtual_runs")
        patch.setenv("PYTHONPATH", str(SUPPORT))
        yield running


def test_what_the_forking_process_waits_for_does_not_stop_a_run(performer: Performer, tmp_path: Path) -> None:
    (made,) = performer.perform(order_of(tmp_path, 1))
    assert made is not None
    assert made.exit_code == 0, (tmp_path / "run.log").read_text()


def processes_at_work(performer: Performer) -> list[psutil.Process]:
    """Wait for the program of a performer and its fork; return both."""
    found: list[psutil.Process] = []
    while len(found) < 2:
        time.sleep(0.02)
        if performer._process is not None:
            program = psutil.Process(performer._process.pid)
            found = [program, *program.children()]
    return found


def test_a_killed_sweep_leaves_no_process(performer: Performer, tmp_path: Path) -> None:
    threading.Thread(target=lambda: list(performer.perform(order_of(tmp_path, 1_000_000))), daemon=True).start()
    left = processes_at_work(performer)
    assert performer._process is not None
    assert performer._process.stdin is not None
    performer._process.stdin.close()  # as at the end of the sweep
    assert psutil.wait_procs(left, timeout=60)[1] == []


STUBBORN = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
time.sleep(600)
"""


@pytest.mark.parametrize("program", ["stubborn", pytest.param("inferload.locust.virtual_runs", marks=pytest.mark.soak)])
def test_an_interrupted_sweep_leaves_no_process(program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the program of the runs nor one that outlives the end of its input."""
    (tmp_path / "stubborn.py").write_text(STUBBORN)
    monkeypatch.setattr(virtual_runs, "_PROGRAM", program)
    monkeypatch.setattr(virtual_runs, "_END_S", 0.1 if program == "stubborn" else virtual_runs._END_S)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    left: list[psutil.Process] = []
    with suppress(KeyboardInterrupt), Performer() as running:
        threading.Thread(target=lambda: list(running.perform(order_of(tmp_path, 1_000_000))), daemon=True).start()
        left = processes_at_work(running)
        raise KeyboardInterrupt
    assert psutil.wait_procs(left, timeout=60)[1] == []
