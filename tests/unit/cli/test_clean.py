"""`inferload clean`: what it removes, what it keeps, and when it refuses."""

import json
import os
from pathlib import Path

import pytest
from paths import ROOT

from inferload.base import deployments
from inferload.cli import clean, main

GONE = 2**22 + 1  # above the highest process id


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the cache folder of an installed package, with each kind of content and a run beside it."""
    monkeypatch.setattr(deployments, "repository", lambda: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("INFERLOAD_STATE", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "a").mkdir(parents=True)
    folder = tmp_path / "inferload"
    for name in ("indexes/a.npz", "calibration.json", "models/tiny/config.json", "venv-vllm/bin/python"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("content")
    (folder / "deploy").mkdir()
    (folder / "deploy" / "8000.json").write_text(json.dumps({"url": "http://127.0.0.1:8000", "pid": GONE}))
    return folder


def test_caches_are_removed_and_runs_are_kept(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["clean"]) == 0
    shown = capsys.readouterr().out
    assert all(str(path) in shown for path in clean.folders())
    assert list(cache.iterdir()) == []
    assert (cache.parent / "runs" / "a").is_dir()
    assert main(["clean"]) == 0
    assert capsys.readouterr().out == "nothing to remove\n"


def test_a_server_that_was_not_stopped_is_not_forgotten(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = cache / "deploy" / "8001.json"
    state.parent.mkdir(exist_ok=True)
    state.write_text(json.dumps({"url": "http://server:8001", "pid": os.getpid()}))
    assert main(["clean"]) == 2
    assert (
        "http://server:8001: still running; stop all servers with inferload deploy down --all"
        in capsys.readouterr().err
    )
    assert (cache / "indexes").exists()


def test_the_page_lists_what_is_left() -> None:
    page = (ROOT / "docs" / "start" / "uninstall.md").read_text(encoding="utf-8")
    assert [text for text in clean.folders().values() if text not in page] == []
