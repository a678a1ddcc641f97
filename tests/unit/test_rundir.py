"""Creation of the run directory, and removal if the run did not start."""

import json
from pathlib import Path

from inferload import rundir
from inferload.client.connection.redaction import Redaction
from inferload.master.lifecycle.marks import Marks
from inferload.measure.clock import Anchor

HALF = "\ud83d"  # half of a character: UTF-8 cannot represent it


def test_an_empty_run_directory_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "run"
    rundir.create(path)
    rundir.withdraw(path)
    assert not path.exists()


def test_a_run_directory_with_files_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "run"
    rundir.create(path)
    (path / rundir.TURNS / "w0-00001.parquet").write_text("turns")
    rundir.withdraw(path)
    assert [str(file.relative_to(path)) for file in path.rglob("*") if file.is_file()] == ["turns/w0-00001.parquet"]


def test_documents_and_marks_can_contain_lone_surrogates(tmp_path: Path) -> None:
    document = {"name": f"/{HALF}"}
    rundir.write_json(tmp_path / rundir.SUMMARY, document)
    assert rundir.read_json(tmp_path / rundir.SUMMARY) == document
    rundir.write_text(tmp_path / rundir.REPORT_MD, HALF)
    assert rundir.read_text(tmp_path / rundir.REPORT_MD) == "\\ud83d"
    marks = Marks(tmp_path / rundir.MARKS, Anchor.take(), Redaction())
    marks.add("note", HALF)
    assert marks.error is None
    assert json.loads((tmp_path / rundir.MARKS).read_text("utf-8"))["text"] == HALF
