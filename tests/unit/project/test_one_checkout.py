"""A process has all parts of inferload from one checkout, or ends with the remedy."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from paths import ROOT

PARTS = ("inferload", "analysis", "deploy")
PRINT = "import inferload, inferload.analysis, inferload.deploy; print(inferload.__file__, inferload.analysis.__file__)"


def checkout(folder: Path, parts: tuple[str, ...] = PARTS) -> Path:
    """Return a copy of this checkout, as a worktree or a clone is one."""
    for part in parts:
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def imported(folder: Path, text: str = PRINT) -> subprocess.CompletedProcess[str]:
    """Run a program in a folder, with the environment that maps the parts to the checkout of this test."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    program = [sys.executable, "-c", text]
    return subprocess.run(program, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_another_checkout_in_the_environment_of_this_one_is_refused(tmp_path: Path) -> None:
    other = checkout(tmp_path / "worktree")
    for text in (PRINT, "import inferload.base.errors"):
        done = imported(other, text)
        assert done.returncode == 1
        error = done.stderr.splitlines()[-1]
        assert error.startswith(
            f"ImportError: inferload is from {other}/inferload, but inferload.analysis from {ROOT}/analysis, "
        )
        assert f"; run pip install --no-deps -e . in {other}, " in error


def test_only_the_parts_that_are_asked_for_are_imported(tmp_path: Path) -> None:
    done = imported(
        tmp_path, "import sys, inferload; print([name for name in sys.modules if name.startswith('inferload.')])"
    )
    assert done.stdout == "[]\n", done.stderr


def test_this_checkout_is_imported_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "clone").symlink_to(ROOT)
    done = imported(tmp_path / "clone")
    assert done.returncode == 0, done.stderr


def test_an_installed_wheel_has_the_parts_inside(tmp_path: Path) -> None:
    checkout(tmp_path, ("inferload",))
    for part in PARTS[1:]:
        shutil.copytree(ROOT / part, tmp_path / "inferload" / part)
    done = imported(tmp_path)
    assert done.stdout == f"{tmp_path}/inferload/__init__.py {tmp_path}/inferload/analysis/__init__.py\n", done.stderr
