"""What the Makefile hands to the commands that it calls."""

import subprocess
from pathlib import Path

import pytest
import side_by_side
from paths import ROOT


@pytest.mark.parametrize("said", [[], ["VENV_VLLM=.venv-vllm"], [f"VENV_VLLM={ROOT}/.venv-vllm"]])
def test_the_environment_of_vllm_is_named_so_that_it_is_found_from_any_folder(said: list[str]) -> None:
    shown = subprocess.run(
        ["make", "--no-print-directory", "--eval=shown: ; @echo $$VENV_VLLM", "shown", *said],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={"PATH": "/usr/bin:/bin"},
    )
    assert shown.stdout.strip() == str(ROOT / ".venv-vllm")


def test_every_test_is_in_one_part_and_the_scenes_in_the_first() -> None:
    staged, *others = side_by_side.parts()
    assert sorted([*staged, *(file for part in others for file in part)]) == sorted(
        side_by_side.TESTS.rglob("test_*.py")
    )
    playing = {file for part in others for file in part if "(stage: Stage" in file.read_text()}
    assert playing <= {Path(__file__)}
    assert sorted(file for part in side_by_side.vllm_parts() for file in part) == sorted(
        side_by_side.TESTS.rglob("test_*.py")
    )
    shared = {file for file in side_by_side.vllm_parts()[1] if "(vllm_server" in file.read_text()}
    assert shared <= {Path(__file__)}


@pytest.mark.parametrize(
    ("codes", "one"), [([0, 0, 0], 0), ([5, 0, 5], 0), ([5, 5, 5], 5), ([0, 0, 1], 1), ([1, 0, 0], 1), ([5, 2, 5], 2)]
)
def test_a_failure_of_any_part_of_the_tests_is_one_of_all(codes: list[int], one: int) -> None:
    assert side_by_side.exit_code(codes) == one
