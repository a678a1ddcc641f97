"""Folders of other clients as sides: the file that a reader knows is taken, hidden and other ones are not."""

import json
from pathlib import Path

import aiperf_files
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inferload.analysis.comparison.read_sides import read_side
from paths import DATA

from inferload import cli
from inferload.base.errors import UsageError

# Folders that clients write: the result, and files of other contents beside it.
AIPERF_JSON = (DATA / "results" / "aiperf.json").read_text()
BESIDE = {
    "profile_export.jsonl": '{"metadata": {"session_num": 0}, "metrics": {}}\n{"metadata": {}}\n',
    "inputs.json": '{"data": []}',
    "server_metrics_export.json": '{"schema_version": "1.0", "aiperf_version": "0.13.0", "metrics": {}, "summary": {}}',
    "profile_export_aiperf_timeslices.json": '{"timeslices": []}',
    "experiment_metadata.json": '{"cmd": "genai-bench benchmark"}',
    "results.pytorch.json": '[{"benchmark": {"name": "x"}}]',
    "plot.png": "\x89PNG",
    "report.html": "<html>",
    "notes.md": "| Setup | TTFT |\n|---|---|\n| a | 5 |\n",
    "profile_export_aiperf.csv": aiperf_files.csv_file(),
}
HIDDEN = (
    ".result.json",
    "._profile_export_aiperf.json",
    ".ipynb_checkpoints/r.json",
    "__MACOSX/._r.json",
    "logs/r.json",
    ".r.csv",
)


@given(
    beside=st.sets(st.sampled_from(sorted(BESIDE))),
    hidden=st.sets(st.sampled_from(HIDDEN)),
    client=st.sampled_from(["aiperf", "guidellm", "vllm-bench", "genai-bench"]),
)
@settings(max_examples=40)
def test_the_file_of_a_folder_that_a_reader_knows_is_taken(
    tmp_path_factory: pytest.TempPathFactory, beside: set[str], hidden: set[str], client: str
) -> None:
    folder = tmp_path_factory.mktemp("artifacts")
    text = (DATA / "results" / f"{client}.json").read_text()
    (folder / "result.json").write_text(text)
    for name in beside:
        (folder / name).write_text(BESIDE[name])
    for name in hidden:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text if name.endswith("json") else BESIDE["notes.md"])
    side = read_side(folder)
    assert [run.path.name for run in side.runs] == ["result.json"]
    named = " ".join(side.left_out)
    assert all((name in named) == name.endswith((".json", ".jsonl")) for name in beside)


def test_repeats_in_a_folder_are_all_read(tmp_path: Path) -> None:
    for position in (1, 11, 2):
        (tmp_path / f"{position}.json").write_text(AIPERF_JSON)
    assert len(read_side(tmp_path).runs) == 3


def test_a_folder_with_a_csv_of_aiperf_and_its_printed_table_has_one_result(tmp_path: Path) -> None:
    (tmp_path / "profile_export_aiperf.csv").write_text(aiperf_files.csv_file())
    (tmp_path / "profile_export_console.txt").write_text(aiperf_files.console())
    (run,) = read_side(tmp_path).runs
    assert run.path.name == "profile_export_aiperf.csv"
    (tmp_path / "more.csv").write_text(aiperf_files.csv_file())
    with pytest.raises(
        UsageError, match=r"2 texts with figures \(more.csv, profile_export_aiperf.csv\); name one of them"
    ):
        read_side(tmp_path)


@pytest.mark.parametrize("name", ["._r.json", ".r.json", "notes.txt", "r.html"])
def test_a_folder_without_a_result_is_refused_in_one_line(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / name).write_text(AIPERF_JSON if name.endswith("json") else "nothing")
    assert cli.main(["compare", str(tmp_path / "f"), str(DATA / "results" / "aiperf.json")]) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert "name a run directory, a folder of them, or another client's result file" in error


def test_a_damaged_result_in_a_folder_is_no_missing_repeat(tmp_path: Path) -> None:
    (tmp_path / "1.json").write_text(json.dumps(json.loads(AIPERF_JSON)))
    (tmp_path / "2.json").write_text(AIPERF_JSON[:-20])
    with pytest.raises(UsageError, match=r"2.json: cannot be read as JSON .* is the file complete\?"):
        read_side(tmp_path)


def test_a_file_with_a_result_and_another_document_is_not_left_out(tmp_path: Path) -> None:
    (tmp_path / "1.jsonl").write_text(json.dumps(json.loads(AIPERF_JSON)) + '\n{"a": 1}\n')
    with pytest.raises(UsageError, match=r"1.jsonl: no result of vllm bench serve.* \(its keys: a\)"):
        read_side(tmp_path)
