"""State files of started servers, as runs and `inferload clean` read them."""

import json
import os
from pathlib import Path

import pytest

from inferload.base import deployments

GONE = 2**22 + 1  # above the highest process id


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("INFERLOAD_STATE", str(tmp_path))
    return tmp_path


def write(state: Path, port: int, pid: object) -> None:
    (state / f"{port}.json").write_text(json.dumps({"url": f"http://127.0.0.1:{port}", "pid": pid, "engine": "vllm"}))


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("http://127.0.0.1:8000/v1", True),
        ("http://localhost:8000", True),
        ("http://[::1]:8000", True),
        ("http://gpu-box:8000", False),
        ("http://127.0.0.1:8001", False),
        ("http://127.0.0.1", False),
    ],
)
def test_a_deployment_is_found_by_an_address_of_this_machine(state: Path, url: str, found: bool) -> None:
    write(state, 8000, os.getpid())
    assert (deployments.of_target(url) is not None) == found


@pytest.mark.parametrize("pid", [GONE, None, "7"])
def test_a_server_that_has_ended_is_not_a_deployment(state: Path, pid: object) -> None:
    write(state, 8000, pid)
    write(state, 8001, os.getpid())
    assert deployments.of_target("http://127.0.0.1:8000") is None
    assert deployments.running() == ["http://127.0.0.1:8001"]


@pytest.mark.parametrize("text", ["", "[1]", "{"])
def test_an_invalid_state_file_is_not_a_deployment(state: Path, text: str) -> None:
    (state / "8000.json").write_text(text)
    assert deployments.of_target("http://127.0.0.1:8000") is None
    assert deployments.running() == []
