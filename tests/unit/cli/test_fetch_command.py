"""`inferload fetch`: where the file goes, what is printed, and that scenarios and studies find the file."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from file_server import FileServer, Reply, serving
from paths import ROOT

from inferload.campaign.sweep import study as definition
from inferload.cli import download, fetch, main
from inferload.scenario import scenario
from inferload.scenario.files import catalog, data_files
from inferload.scenario.files.data_files import DATA_SETS, DataSet

TALK = [
    {"from": "human", "value": "Which river is long? " * 9},
    {"from": "gpt", "value": "The Nile is a long one. " * 9},
]
CONTENT = json.dumps([{"id": f"{number}", "conversations": TALK} for number in range(40)]).encode()
NAME = DATA_SETS["sharegpt"].file


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    """Serve a small file in place of ShareGPT's; the working directory is empty."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(download, "PAUSE_S", 0)
    with serving() as server:
        server.reset(CONTENT)
        small = DataSet(NAME, "a file", len(CONTENT), hashlib.sha256(CONTENT).hexdigest(), (server.url,))
        rows: Mapping[str, DataSet] = {"sharegpt": small}
        for module in (data_files, fetch):
            monkeypatch.setattr(module, "DATA_SETS", rows)
        yield server


def test_the_chat_scenario_and_the_study_find_the_file(
    files: FileServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "chat-sharegpt"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert error.endswith("; inferload fetch sharegpt downloads it\n")
    assert main(["study", "chat", "--dry-run"]) == 0
    missing = f"inferload: {NAME}: not in the current folder; inferload fetch sharegpt downloads it\n"
    assert capsys.readouterr().err == missing
    assert main(["fetch", "sharegpt"]) == 0
    assert capsys.readouterr().out == f"{NAME}: 0 MB, SHA-256 is right\n"
    assert main(["plan", "chat-sharegpt"]) == 0
    assert "40 conversations" in capsys.readouterr().out
    assert main(["study", "chat", "--dry-run"]) == 0
    assert capsys.readouterr().err == ""
    study = definition.load(Path("chat"))
    assert any("chat-sharegpt" in str(load) for load in study.resolved("simulator").parts["burst"].scenarios)


def test_the_bundled_file_names_are_those_of_the_table() -> None:
    source = scenario.load("chat-sharegpt").workload.source
    assert source.path in {data_set.file for data_set in DATA_SETS.values()}
    for path in (catalog.folder() / "studies").glob("*.yaml"):
        for part in definition.load(path).parts.values():
            assert part.with_file is None or data_files.name_of(part.with_file.path)


def test_a_missing_study_file_matters_only_to_runs_that_would_read_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    study = definition.load(Path("chat"))
    assert study.missing_files("simulator", quick=False) == [NAME]
    assert study.missing_files("simulator", quick=True) == []
    assert study.only(["open"]).missing_files("simulator", quick=False) == []


def test_a_second_command_downloads_nothing(files: FileServer, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        assert main(["fetch", "sharegpt", "--into", "data/sets"]) == 0
    assert capsys.readouterr().out.endswith(f"data/sets/{NAME}: already there, 0 MB, SHA-256 is right\n")
    assert len(files.ranges) == 1


@pytest.mark.parametrize("content", [b"", CONTENT[:-1], b"x" * len(CONTENT)])
def test_another_file_of_that_name_is_not_replaced(
    files: FileServer, tmp_path: Path, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / NAME).write_bytes(content)
    assert main(["fetch", "sharegpt"]) == 2
    assert f"{NAME}: is there with another content; rename it" in capsys.readouterr().err
    assert (tmp_path / NAME).read_bytes() == content
    assert files.ranges == []


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("ftp://mirror/a", "--from ftp://mirror/a: not an http or https address"),
        ("mirror/a", "--from mirror/a: not an http or https address"),
        ("http://", "not an http or https address"),
        ("http://[mirror/a", "not an http or https address"),
        ("http://mirror:x/a", "not an http or https address"),
        ("http://me:secret@mirror/a", "--from: contains a user or password"),
    ],
)
def test_sources_that_are_no_address_are_refused(
    files: FileServer, source: str, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fetch", "sharegpt", "--from", source]) == 2
    error = capsys.readouterr().err
    assert problem in error
    assert "secret" not in error
    assert error.count("\n") == 1


def test_a_source_of_your_own_replaces_the_known_ones(
    files: FileServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files.reset(CONTENT, Reply(status=404))
    assert main(["fetch", "sharegpt", "--from", f"{files.url}?mirror"]) == 2
    assert capsys.readouterr().err == (
        f"inferload: {NAME}: not downloaded: 127.0.0.1:{files.server_port}: HTTP 404; name another source with --from, "
        "or check the network and its proxy (HTTPS_PROXY)\n"
    )
    assert len(files.ranges) == 1


def test_a_folder_that_cannot_be_written_is_named(
    files: FileServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    for folder in ("file", "file/below", "/proc/1/none"):
        assert main(["fetch", "sharegpt", "--into", folder]) == 2
        assert f"--into {folder}: " in capsys.readouterr().err


def test_ctrl_c_keeps_the_part_and_tells_how_to_go_on(
    files: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(_progress: object, done_bytes: int) -> None:
        if done_bytes > 1000:
            raise KeyboardInterrupt

    monkeypatch.setattr(download, "CHUNK_BYTES", 100)
    with monkeypatch.context() as patch:
        patch.setattr(fetch.Watching, "at", interrupt)
        assert main(["fetch", "sharegpt"]) == 130
    part = f"{NAME}.part"
    assert capsys.readouterr().err == f"inferload: interrupted; {part} is kept: repeat the command to continue\n"
    size = (tmp_path / part).stat().st_size
    assert size > 1000
    assert main(["fetch", "sharegpt"]) == 0
    assert files.ranges == [None, f"bytes={size}-"]


@pytest.mark.parametrize(
    ("path", "remedy"),
    [
        (NAME, "inferload fetch sharegpt downloads it"),
        (f"data/{NAME}", "inferload fetch sharegpt --into data downloads it"),
        (f"/my data/{NAME}", "inferload fetch sharegpt --into '/my data' downloads it"),
        ("own.json", "paths are relative to the current directory, then to the scenario's folder"),
    ],
)
def test_the_remedy_for_a_missing_file(path: str, remedy: str) -> None:
    with pytest.raises(data_files.Missing) as missing:
        data_files.find(path)
    assert str(missing.value).endswith(f"; {remedy}")


def test_the_progress_is_of_what_was_left_to_download(capsys: pytest.CaptureFixture[str]) -> None:
    shares: list[float] = []
    watch = fetch.Watching(shares.append, 100)
    for done in (60, 80, 100, 20, 100):  # continued, then begun anew by a server without ranges
        watch.at(done)
    assert shares == [0, 0.5, 1, 0, 1]
    fetch.Watching(shares.append, 100).at(100)
    assert shares[-1] == 0
    watch.note("https://me:secret@host: \x1b[2J")
    text = capsys.readouterr().err
    assert text.startswith("inferload: https://")
    assert "secret" not in text
    assert "\x1b" not in text


def test_the_pages_name_the_command() -> None:
    for page in ("docs/how-to/data.md", "docs/how-to/studies.md"):
        assert "inferload fetch sharegpt" in (ROOT / page).read_text(encoding="utf-8")
