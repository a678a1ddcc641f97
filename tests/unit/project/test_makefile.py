"""Makefile variables, and the groups of tests in tests/side_by_side.py."""

import subprocess
from pathlib import Path

import pytest
import side_by_side
from paths import ROOT


@pytest.mark.parametrize("arguments", [[], ["VENV_VLLM=.venv-vllm"], [f"VENV_VLLM={ROOT}/.venv-vllm"]])
def test_the_vllm_environment_is_an_absolute_path(arguments: list[str]) -> None:
    shown = subprocess.run(
        ["make", "--no-print-directory", "--eval=shown: ; @echo $$VENV_VLLM", "shown", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={"PATH": "/usr/bin:/bin"},
    )
    assert shown.stdout.strip() == str(ROOT / ".venv-vllm")


def test_every_test_file_is_in_one_group() -> None:
    run_files, *others = side_by_side.groups()
    every = sorted(side_by_side.TESTS.rglob("test_*.py"))
    assert sorted([*run_files, *(file for group in others for file in group)]) == every
    with_run_cases = {file for group in others for file in group if "(ended: " in file.read_text()}
    assert with_run_cases <= {Path(__file__)}
    assert sorted(file for group in side_by_side.vllm_groups() for file in group) == every
    with_server = {file for file in side_by_side.vllm_groups()[1] if "(vllm_server" in file.read_text()}
    assert with_server <= {Path(__file__)}


@pytest.mark.parametrize(
    ("codes", "expected"),
    [([0, 0, 0], 0), ([5, 0, 5], 0), ([5, 5, 5], 5), ([0, 0, 1], 1), ([1, 0, 0], 1), ([5, 2, 5], 2)],
)
def test_the_exit_code_is_the_first_failure_of_a_group(codes: list[int], expected: int) -> None:
    assert side_by_side.exit_code(codes) == expected
