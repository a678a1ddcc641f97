"""A run directory is opened once: each file by the summary, the report, a comparison and the list of runs."""

import shutil
from dataclasses import replace
from pathlib import Path

import long_run
import many_scrapes
import opened_files
import pytest
import run_kinds
import summaries
from inferload.analysis.report import report, search_page
from long_run import LongRun, S

from inferload import cli
from inferload.base import rundir
from inferload.results.open_run import OpenRun
from inferload.results.run_list import RunList
from inferload.results.summarise import cache_figures
from inferload.results.summarise import turns as turns_module
from inferload.results.summarise.summarise import refresh
from inferload.turns import open_files

SIZE = LongRun(600, workers=3, sessions_per_s=8.0)
TURNS = tuple(f"{rundir.TURNS}/w{worker}-all.parquet" for worker in range(SIZE.workers))
SCRAPES = f"{rundir.SERVER_METRICS}/all.parquet"
SOURCES = (rundir.COUNTS, rundir.MANIFEST, SCRAPES, *TURNS)


def scraped(folder: Path, size: LongRun = SIZE, **changes: object) -> Path:
    many_scrapes.write(folder, 2, 20, long_run.ANCHOR.wall_ns + 10 * S, 5 * S)
    return long_run.write(folder, size, metrics_targets=many_scrapes.addresses(2), **changes)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run and a warm run after it, both with summaries."""
    folder = tmp_path_factory.mktemp("runs")
    scraped(folder / "cold")
    scraped(folder / "warm", replace(SIZE, seed=2), arm="warm", earlier={"arm": "cold", "folder": "cold"})
    for name in ("cold", "warm"):
        refresh(OpenRun(folder / name))
    return folder


def once(*names: str) -> dict[str, int]:
    return dict.fromkeys(names, 1)


def test_the_summary(runs: Path) -> None:
    with opened_files.counted(runs / "cold") as opens:
        summaries.summarised(runs / "cold")
    assert opens == once(*SOURCES)


def test_the_summary_of_a_warm_run_and_the_run_before_it(runs: Path) -> None:
    with opened_files.counted(runs) as opens:
        document = summaries.summarised(runs / "warm")
    assert document["cache"]["earlier"]["measures"]
    assert opens == once(*(f"{run}/{name}" for run in ("cold", "warm") for name in SOURCES))


def test_the_summary_in_many_passes(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns_module, "MOST_TURNS", 200)
    monkeypatch.setattr(turns_module, "PART_TURNS", 140)
    monkeypatch.setattr(cache_figures, "_MOST_TURNS", 200)
    with opened_files.counted(runs / "cold") as opens:
        assert summaries.summarised(runs / "cold")["percentiles_from"] == "sketches"
    assert opens == once(*SOURCES)


def test_so_many_files_that_none_stays_open(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = summaries.summarised(runs / "cold")
    monkeypatch.setattr(open_files, "MOST_OPEN", len(TURNS) - 1)
    run = OpenRun(runs / "cold")
    with opened_files.counted(runs / "cold") as opens:
        passes = [list(run.turns.batches(["turn_id"])) for _ in range(3)]
    assert passes[0] == passes[1] == passes[2]
    assert opens == once(rundir.MANIFEST) | dict.fromkeys(TURNS, 1 + len(passes))  # once for the metadata
    assert summaries.summarised(runs / "cold") == expected


def test_the_report(runs: Path, tmp_path: Path) -> None:
    with opened_files.counted(runs / "cold") as opens:
        assert cli.main(["report", str(runs / "cold"), "--junit", str(tmp_path / "junit.xml")]) == 0
    read = {name: count for name, count in opens.items() if not name.endswith(".tmp")}
    assert read == once(rundir.MANIFEST, rundir.SUMMARY, SCRAPES, *TURNS)


def test_the_report_of_a_run_without_a_summary(runs: Path, tmp_path: Path) -> None:
    run_dir = shutil.copytree(runs / "cold", tmp_path / "run")
    (run_dir / rundir.SUMMARY).unlink()
    with opened_files.counted(run_dir) as opens:
        assert cli.main(["report", str(run_dir)]) == 0
    read = {name: count for name, count in opens.items() if not name.endswith(".tmp")}
    # The summary and the report select other metrics, each in a store of its own that does not grow with the run.
    assert read == once(rundir.COUNTS, rundir.MANIFEST, rundir.SUMMARY, *TURNS) | {SCRAPES: 2}


def test_the_pages_of_a_search(tmp_path: Path) -> None:
    run_kinds.KINDS["search"](tmp_path)
    with opened_files.counted(tmp_path) as opens:
        search_page.make_search(tmp_path)
    read = {name: count for name, count in opens.items() if not name.endswith(".tmp")}
    assert read[f"points/8/{rundir.SUMMARY}"] == read[f"points/16/{rundir.DIAGNOSIS}"] == 1
    assert set(read.values()) == {1}


def test_no_file_stays_open_after_a_report(runs: Path) -> None:
    run = OpenRun(runs / "cold")
    before = set(Path("/proc/self/fd").iterdir())
    report.make(run)
    assert set(Path("/proc/self/fd").iterdir()) <= before
    assert run.summary.turns.sent


@pytest.mark.parametrize("options", [(), ("--class", "chat")])
def test_a_comparison(runs: Path, options: tuple[str, ...]) -> None:
    with opened_files.counted(runs) as opens:
        assert cli.main(["compare", str(runs / "cold"), str(runs / "warm"), *options]) == 0
    names = (rundir.MANIFEST, rundir.SUMMARY, SCRAPES)
    assert opens == once(*(f"{run}/{name}" for run in ("cold", "warm") for name in names))


def test_the_list_of_runs(runs: Path) -> None:
    listed = RunList(runs)
    with opened_files.counted(runs) as opens:
        assert listed.read() == listed.read()
    assert opens == once(*(f"{run}/{name}" for run in ("cold", "warm") for name in (rundir.MANIFEST, rundir.SUMMARY)))
