"""Studies: bundled files, plans, command line, and the stored pages of docs/studies."""

import re
import shlex
from functools import cache
from pathlib import Path

import pytest
from inferload.analysis.study import page
from inferload.analysis.study.results import StudyResults, read_results
from paths import DATA, ROOT

from inferload import cli
from inferload.base.errors import UsageError
from inferload.campaign import pairs
from inferload.campaign.commands import study as commands
from inferload.campaign.sweep import study as definition
from inferload.campaign.sweep.definition import Engine
from inferload.campaign.sweep.study import STUDY, Study
from inferload.scenario.files import catalog, typed_yaml

BUNDLED = sorted((catalog.folder() / "studies").glob("*.yaml"))
ENGINES: tuple[Engine, ...] = ("simulator", "vllm", "vllm-cpu")
LISTED = "agents chat features matrix pressure riddle sets speculation throughput triangle users"
NAMES = set(LISTED.split())
ARTICLES = DATA / "articles"
STORED = sorted((ROOT / "docs" / "studies").glob("*.json"))
SMALL = """\
schema: 1
name: small
title: A small study
question: Is it faster?
source: {title: a text, date: 2026-01-01, setting: one run}
parts:
  only:
    title: The only part
    baseline: tiny-baseline
    variants: [tiny-all]
    scenarios: [smoke]
    pairs: 1
    measure_s: 2
    reports: false
    engines: {vllm-cpu: {left_out: it is too slow}}
tables:
  - key: t
    title: Table
    part: only
    base: old
    figures: [mean(ttft_ms)]
    rows: [{label: old, published: [2]}, {label: new, variant: tiny-all, published: [1]}]
claims:
  - {text: It is faster, table: t, row: new, figure: mean(ttft_ms), expect: lower, why: {holds: no reason, fails: not no reason}}
"""


loaded = cache(definition.load)


@cache
def planned(path: Path, engine: Engine, quick: bool = False) -> Study:
    return loaded(path).resolved(engine, quick)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("path", BUNDLED, ids=lambda path: path.stem)
def test_each_row_of_a_bundled_study_has_runs(path: Path, quick: bool, engine: Engine) -> None:
    study = loaded(path)
    plan = planned(path, engine, quick)
    assert set(plan.parts) | set(plan.left_out) == set(study.parts)
    for table in plan.tables:
        if table.part in plan.left_out:
            continue
        part = plan.parts[table.part]
        assert {row.scenario for row in table.rows} <= set(part.scenario_names)
        if not quick:  # which may leave out variants
            rows = {row.variant for row in table.rows} - set(part.labels)
            assert not rows or engine == "vllm-cpu", rows
        assert table.base is None or {row.name: row.variant for row in table.rows}[table.base] in part.labels
        assert not table.grid or len(part.grid) == 2
    for name, part in plan.parts.items():
        assert part.engine == engine
        assert part.pairs == 1 or not quick, name
    if quick and engine == "simulator":  # `quick` sets each field
        stored = typed_yaml.from_text(typed_yaml.to_text(plan, defaults=False), "x", Study)
        assert stored.model_dump() == plan.model_dump()


@pytest.mark.parametrize("engine", ENGINES)
def test_each_part_of_a_bundled_study_has_pairs_enough_for_a_test(engine: Engine) -> None:
    parts = [(path.stem, *item) for path in BUNDLED for item in planned(path, engine).parts.items()]
    assert [(study, name) for study, name, part in parts if part.pairs < pairs.FEWEST] == []


@pytest.mark.parametrize("path", BUNDLED, ids=lambda path: path.stem)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_terminal_shows_plan_and_findings_of_a_bundled_study_in_30_lines(path: Path, engine: Engine) -> None:
    plan = planned(path, engine)
    if plan.parts:
        shown = [*commands._summary_lines(plan, Path("no"), False), *page.summary(plan, StudyResults())]
        assert len("\n".join(shown).splitlines()) <= 26  # of 30, beside a blank line, the headline and two paths


def test_all_studies_are_bundled_and_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert {loaded(path).name for path in BUNDLED} == {path.stem for path in BUNDLED} == NAMES
    assert cli.main(["study", "list"]) == 0
    assert {line.partition(" ")[0] for line in capsys.readouterr().out.splitlines()} == NAMES


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    return path


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        ("part: only", "part: other", "no part other; choose from only"),
        ("base: old", "base: none", "base none is no row; choose from old, new"),
        ("published: [1]", "published: [1, 2]", "2 published values for 1 figures"),
        ("    base: old\n", "", "table t has no base"),
        ("[mean(ttft_ms)]", "[mean(ttft)]", "ttft"),
        ("baseline: tiny-baseline", "baseline: tiny-basline", "did you mean tiny-baseline?"),
        ("pairs: 1", "pairs: 0", "parts.only.pairs"),
    ],
)
def test_mistakes_in_a_study_are_named(
    before: str, after: str, problem: str, small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert before in SMALL
    small.write_text(SMALL.replace(before, after))
    assert cli.main(["study", str(small), "--dry-run"]) == 2
    assert problem in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "study: needs NAME or --resume DIR"),
        (["no-such"], "no-such: no such file, and none of the bundled studies; bundled are agents, "),
        (["{small}", "--engine", "vllm-cpu"], "--engine vllm-cpu: runs no part of small: only: it is too slow"),
        (["{small}", "--part", "x"], "--part x: no part of small; choose from only"),
        (["--resume", "{folder}"], "contains no study; give the folder of a study"),
        (["x", "--resume", "{folder}"], "the folder has its own plan; remove NAME"),
        (["--quick", "--resume", "{folder}"], "the folder has its own plan; remove --quick"),
    ],
)
def test_mistakes_on_the_command_line_are_one_line(
    arguments: list[str], problem: str, small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [word.format(small=small, folder=small.parent) for word in arguments]
    assert cli.main(["study", *words]) == 2
    error = capsys.readouterr().err
    assert problem in error
    assert error.count("\n") == 1


def test_running_servers_replace_those_that_a_study_starts(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hosts = ["--host", "tiny-baseline=http://a:1", "tiny-all=http://b:1"]
    for words, servers in ((hosts, "running servers"), ([], "starts of simulator")):
        assert cli.main(["study", str(small), *words, "--dry-run", "--into", str(small.parent / "out")]) == 0
        assert f"only: 2 runs on 2 {servers}, about" in capsys.readouterr().out
    assert not (small.parent / "out").exists()
    for words, problem in (
        (["--host", "tiny-all=http://b:1"], "runs no part of small: only: no --host of its baseline, tiny-baseline"),
        ([*hosts, "x=http://c:1"], "--host x: no variant of small; choose from tiny-baseline, tiny-all"),
        ([*hosts, "--engine", "vllm"], "--host: the servers run already; remove --engine"),
        (["--host", "http://a"], "http://a: write a side as NAME=URL"),
    ):
        assert cli.main(["study", str(small), *words, "--dry-run"]) == 2
        assert problem in capsys.readouterr().err


def test_the_lines_for_running_servers_run_each_part_without_a_grid(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (ROOT / "docs/how-to/studies.md").read_text(encoding="utf-8")
    lines = commands.hosts_page()
    assert f"campaign.commands.study -->\n```sh\n{lines}```" in page, "python -m inferload.campaign.commands.study"
    monkeypatch.chdir(tmp_path)
    for line, path in zip(lines.splitlines(), BUNDLED, strict=True):
        grids = [name for name, part in loaded(path).parts.items() if part.grid]
        if len(grids) == len(loaded(path).parts):
            assert line.startswith(f"# {path.stem}: ")
        else:
            assert cli.main([*shlex.split(line)[1:], "--dry-run"]) == 0
            assert capsys.readouterr().out.count("left out: ") == len(grids)


def stored(small: Path) -> Path:
    """Return the folder of a study without a run."""
    folder = small.parent / "out"
    folder.mkdir()
    study = definition.load(small).resolved("simulator", quick=True)
    (folder / STUDY).write_text(typed_yaml.to_text(study, defaults=False))
    return folder


def test_the_clock_of_a_study_can_be_chosen(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = definition.load(Path("riddle"))
    for chosen, clock in ((None, "virtual"), ("real", "real"), ("virtual", "virtual")):
        assert {part.clock for part in study.resolved("simulator", clock=chosen).parts.values()} == {clock}
    assert cli.main(["study", str(small), "--engine", "vllm", "--clock", "virtual", "--dry-run"]) == 2
    assert "clock virtual needs engine simulator, not vllm" in capsys.readouterr().err


def test_a_study_with_a_plan_is_resumed_with_its_own(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = stored(small)
    small.unlink()
    assert cli.main(["study", "--resume", str(folder), "--dry-run"]) == 0
    assert "only: 2 runs on 2 starts" in capsys.readouterr().out
    assert cli.main(["study", "agents", "--into", str(folder)]) == 2
    assert f"already contains runs; use --resume {folder}" in capsys.readouterr().err


def test_a_data_file_replaces_the_stand_in(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = SMALL.replace("    engines:", "    with_file: {path: data.json, sweep: {scenarios: [demo]}}\n    engines:")
    study: Study = typed_yaml.from_text(text, "x", Study)
    monkeypatch.chdir(small.parent)
    assert study.resolved("simulator").parts["only"].scenario_names == ("smoke",)
    (small.parent / "data.json").write_text("[]")
    assert study.resolved("simulator").parts["only"].scenario_names == ("demo",)


def test_a_part_alone_has_its_tables_and_claims() -> None:
    study = definition.load(Path("riddle")).only(["off"])
    assert [table.part for table in study.tables] == ["off"]
    assert {claim.table for claim in study.claims} == {"off"}


def test_a_folder_without_runs_has_no_page(small: Path) -> None:
    folder = stored(small)
    with pytest.raises(UsageError, match="no finished run; continue with: inferload study --resume"):
        page.make_study(folder)


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_the_pages_of_a_study_follow_from_its_results(path: Path) -> None:
    command_line = "python -m inferload.analysis.study.page docs/studies"
    for written, text in page.stored(path).items():
        assert text == written.read_text(encoding="utf-8"), f"run: {command_line}"


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_no_run_behind_a_published_page_is_invalid(path: Path) -> None:
    assert {run.level for run in read_results(path).runs} <= {"valid", "suspect"}


# Data of the sources; the two of the blog post have one file.
SOURCES = {"agents": "000", "chat": "000", "matrix": "001", "throughput": "001", "riddle": "004"}


@pytest.mark.parametrize("path", BUNDLED, ids=lambda path: path.stem)
def test_published_values_stand_in_the_source(path: Path) -> None:
    rows = [row for table in loaded(path).tables for row in table.rows]
    values = {value for row in rows for value in row.published if value is not None}
    assert bool(values) == (path.stem in SOURCES)
    if values:
        texts = [file.read_text(encoding="utf-8") for file in ARTICLES.glob(f"{SOURCES[path.stem]}-*")]
        printed = {float(number) for text in texts for number in re.findall(r"\d+(?:\.\d+)?", text)}
        assert values <= printed
