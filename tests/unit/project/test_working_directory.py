"""The working directory: a folder there may have the name of the package or of a sub-package."""

import subprocess
import sys
from pathlib import Path

import pytest
from paths import ROOT

LOCUSTFILE = """
from inferload.users import InferenceUser
import inferload
from inferload import analysis, deploy, results, scenarios

print(*(module.__file__ for module in (inferload, analysis, deploy, results, scenarios)))


class Asks(InferenceUser):
    tasks = [print]
"""
PARTS = ("inferload", "analysis", "deploy", "inferload/results", "scenarios")


@pytest.fixture(params=["the clone", "another folder"])
def working_directory(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return a folder with a folder `inferload`: a link to the clone, or one with the names of sub-packages."""
    folder = tmp_path / "inferload"
    if request.param == "the clone":
        folder.symlink_to(ROOT)
    else:
        for name in ("analysis", "deploy", "locust", "process", "results", "scenarios"):
            (folder / name).mkdir(parents=True)
    return tmp_path


def output(folder: Path, *arguments: str) -> str:
    command = [sys.executable, *arguments]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("-m", "inferload", "deploy", "show", "tiny-all"), "tiny-all"),
        (
            ("-m", "locust", "-f", "mine.py", "--list"),
            " ".join(str(ROOT / part / "__init__.py") for part in PARTS),
        ),
    ],
    ids=["inferload", "locust"],
)
def test_a_folder_named_inferload_is_not_the_package(
    working_directory: Path, arguments: tuple[str, ...], expected: str
) -> None:
    (working_directory / "mine.py").write_text(LOCUSTFILE)
    assert expected in output(working_directory, *arguments)
