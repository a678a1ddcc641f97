"""What the Makefile hands to the commands that it calls."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


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
