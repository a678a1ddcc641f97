"""Untrusted run directories: links, pipes and file names reach no file outside."""

import json
import os
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scrapes
import synthetic_run as synthetic
from inferload.analysis.data import frames
from inferload.analysis.report import report

from inferload import cli
from inferload.base import rundir
from inferload.base.errors import UsageError
from inferload.results.documents import typed_documents
from inferload.results.documents.manifest_document import Manifest
from inferload.results.open_run import OpenRun
from inferload.servers import scrapes_file
from inferload.turns import turns_file

WRITTEN = (rundir.TIMELINE, rundir.DIAGNOSIS, rundir.RECONCILE, rundir.REPORT_MD, rundir.REPORT_HTML)


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return synthetic.write(tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture
def run(complete: Path, tmp_path: Path) -> Path:
    return shutil.copytree(complete, tmp_path / "run")


def name_parts(file: Path, *names: object) -> None:
    """Set the part names in the metadata of a file."""
    table = pq.read_table(file)
    metadata = {**(table.schema.metadata or {}), b"inferload_parts": json.dumps(names).encode()}
    pq.write_table(table.replace_schema_metadata(metadata), file)


def test_part_names_in_turns_files_cannot_remove_files_outside(run: Path, tmp_path: Path) -> None:
    outside, folder = tmp_path / "precious", run / rundir.TURNS
    outside.write_text("mine")
    (folder / "notes.txt").write_text("mine")
    turns_file.join_parts(folder, "w0")
    part = turns_file.parts_of(folder, "w1")[0]
    part.rename(folder / "w0-00009.parquet")  # otherwise no parts are joined
    name_parts(folder / "w0-all.parquet", str(outside), "../../precious", "notes.txt", 7)
    turns_file.join_parts(folder, "w0")
    assert outside.read_text() == "mine"
    assert (folder / "notes.txt").read_text() == "mine"
    assert not (folder / "w0-00009.parquet").exists()


def test_part_names_in_scrapes_files_cannot_remove_files_outside(run: Path, tmp_path: Path) -> None:
    outside, folder = tmp_path / "precious", run / rundir.SERVER_METRICS
    outside.write_text("mine")
    (folder / "notes.txt").write_text("mine")
    scrapes_file.join_parts(folder)
    table = scrapes.table_of(run)
    name_parts(folder / scrapes_file.JOINED, str(outside), "../../precious", "notes.txt")
    scrapes_file.write_part(folder, 3, table)
    scrapes_file.join_parts(folder)
    assert outside.read_text() == "mine"
    assert (folder / "notes.txt").read_text() == "mine"
    assert [path.name for path in folder.glob("*.parquet")] == [scrapes_file.JOINED]


@pytest.mark.parametrize("ending", ["", ".part"])
def test_a_report_replaces_links_and_leaves_their_targets(run: Path, tmp_path: Path, ending: str) -> None:
    for name in WRITTEN:
        (tmp_path / name).write_text("mine")
        (run / (name + ending)).unlink(missing_ok=True)
        (run / (name + ending)).symlink_to(tmp_path / name)
    report.make(OpenRun(run))
    for name in WRITTEN:
        assert (tmp_path / name).read_text() == "mine"
        assert rundir.is_plain(run / name)


@pytest.mark.parametrize("kind", ["pipe", "link"])
def test_an_irregular_file_is_left_out_with_a_note(run: Path, tmp_path: Path, kind: str) -> None:
    names = (
        rundir.MARKS,
        rundir.LOCUST_HISTORY,
        f"{rundir.TURNS}/w0-0000.parquet",
        f"{rundir.SERVER_METRICS}/z.parquet",
    )
    for number, name in enumerate(names):
        path = run / name
        if kind == "link":
            target = tmp_path / f"target-{number}"
            target.write_bytes(path.read_bytes() if path.exists() else b"")
            path.unlink(missing_ok=True)
            path.symlink_to(target)
        else:
            path.unlink(missing_ok=True)
            os.mkfifo(path)
    notes = " ".join(frames.load(OpenRun(run)).notes)
    for name in names:
        assert f"{name} is not a regular file" in notes
    report.make(OpenRun(run))


def test_a_manifest_pipe_does_not_block(run: Path) -> None:
    for name in (rundir.MANIFEST, rundir.SUMMARY):
        (run / name).unlink()
        os.mkfifo(run / name)
    assert "run.json is not a regular file" in " ".join(frames.load(OpenRun(run)).notes)
    with pytest.raises(UsageError, match="not a regular file"):
        typed_documents.read(run / rundir.MANIFEST, Manifest)


@pytest.mark.parametrize("command", ["report", "compare"])
@pytest.mark.parametrize("kind", ["pipe", "json", "parquet", "deep"])
def test_commands_on_a_malicious_directory_end_without_a_traceback(
    run: Path, command: str, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if kind == "pipe":
        for name in (rundir.MANIFEST, f"{rundir.TURNS}/w0-0000.parquet", f"{rundir.SERVER_METRICS}/z.parquet"):
            (run / name).unlink(missing_ok=True)
            os.mkfifo(run / name)
    elif kind == "json":
        (run / rundir.MANIFEST).write_text('{"id": ' + "[" * 100_000)
        (run / rundir.SUMMARY).write_text('{"id": ' + "9" * 5_000 + "}")
    elif kind == "deep":  # JSON in the metadata and in a column
        deep = "[" * 100_000 + "]" * 100_000
        for file in (run / rundir.TURNS / "w0-all.parquet", run / rundir.SERVER_METRICS / scrapes_file.JOINED):
            table = pq.read_table(next(file.parent.glob("*.parquet")))
            if "labels" in table.column_names:
                labels = pa.array([deep] * len(table)).dictionary_encode()
                table = table.set_column(table.schema.get_field_index("labels"), "labels", labels)
            metadata = {**(table.schema.metadata or {}), b"inferload_parts": deep.encode()}
            pq.write_table(table.replace_schema_metadata(metadata), file)
    else:
        table = pa.table({"turn_id": ["a"], "event_ns": ["no list"]}, metadata={b"worker": b"\xff", b"run_id": b"\xff"})
        pq.write_table(table, run / rundir.TURNS / "w0-0000.parquet")
        pq.write_table(table, run / rundir.TURNS / "w2-all.parquet")
        name_parts(run / rundir.TURNS / "w2-all.parquet", 3)
        pq.write_table(table, run / rundir.SERVER_METRICS / scrapes_file.JOINED)
    sides = [str(run), str(run)] if command == "compare" else [str(run)]
    code = cli.main([command, *sides])
    assert code in (0, 1, 2)
    if code == 2:
        assert len(capsys.readouterr().err.strip().splitlines()) == 1
