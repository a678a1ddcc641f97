"""Makefile variables, and the groups of tests in tests/side_by_side.py."""

import subprocess
import sys
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
    groups = side_by_side.groups()
    every = sorted(side_by_side.TESTS.rglob("test_*.py"))
    assert sorted([*groups.together, *groups.starting, *groups.others]) == every
    outside = {file: file.read_text() for file in (*groups.starting, *groups.others) if file != Path(__file__)}
    assert [file for file, text in outside.items() if "(ended: " in text] == []


def test_only_soak_tests_start_another_vllm() -> None:
    """`make test-vllm` starts those of tests/conftest.py."""
    texts = {file: file.read_text() for file in side_by_side.TESTS.glob("vllm/test_*.py")}
    starting = {file: text for file, text in texts.items() if "vllm_servers.serving(" in text or "START" in text}
    assert [file for file, text in starting.items() if "pytest.mark.soak" not in text] == []
    assert (side_by_side.TESTS / "conftest.py").read_text().count("vllm_servers.serving(") == 3


PIP = """\
#!/bin/sh
echo 'Looking in indexes: somewhere'
for name in $(seq 30); do echo "Collecting package$name"; echo "  Downloading package$name-1.0-py3-none-any.whl (1.0 MB)"; done
echo 'Installing collected packages: a, b, c'
exit CODE
"""


@pytest.mark.parametrize(("code", "whole"), [(0, False), (3, True)])
def test_an_installation_shows_its_steps_and_only_if_it_fails_its_output(
    tmp_path: Path, code: int, whole: bool
) -> None:
    python = tmp_path / "python"
    python.write_text(PIP.replace("CODE", str(code)))
    python.chmod(0o755)
    words = ["tests/support/pip_install.sh", str(python), "-e", "."]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert "packages: 25 found, 25 downloaded\n" in done.stdout
    assert "installing 3 packages\n" in done.stdout
    assert ("Collecting package30" in done.stdout + done.stderr) is whole
    assert ("installed: -e ." in done.stdout) is not whole


TESTS = {
    "test_a.py": "def test_good(tmp_path): print('text')\ndef test_bad(capfd): assert 1 == 2",
    "test_b.py": "import os\ndef test_ends(): os._exit(7)\ndef test_not_begun(): pass",
    "test_c.py": "import os\ndef test_priority(): assert os.nice(0) >= 10\n",
    "test_e.py": "import os\ndef test_ends_well(): os._exit(0)\ndef test_lost(): pass",
    "test_d.py": "import pytest\n@pytest.mark.skip\ndef test_left_out(): pass\n",
}


def test_results_of_all_processes_are_reported(tmp_path: Path) -> None:
    for name, text in TESTS.items():
        (tmp_path / name).write_text(text)
    a, b, c, e, d = (tmp_path / name for name in TESTS)
    program = (
        "import pytest, sys\nfrom pathlib import Path\nimport side_by_side\n"
        "together, *starting, others = map(Path, sys.argv[1:])\n"
        "groups = side_by_side.Groups([together], starting, [others])\n"
        "side_by_side.SideBySide.pytest_collection = lambda self: None\n"
        "sys.exit(pytest.main(['-q', '-rA', '-p', 'no:cacheprovider', *sys.argv[1:]], [side_by_side.SideBySide(groups)]))"
    )
    words = [sys.executable, "-c", program, *map(str, (a, b, d, e, c))]
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, env={"PYTHONPATH": str(side_by_side.TESTS)}
    )
    assert done.returncode == 1, done.stderr
    assert "5 failed, 2 passed, 1 skipped" in done.stdout, done.stdout
    assert done.stdout.count("no result: the process of this test has ended") >= 3  # test_not_begun, those of test_e.py
    assert "the process of this test ended with exit code 7" in done.stdout
    assert "assert 1 == 2" in done.stdout
