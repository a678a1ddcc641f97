"""action.yml and the sample pipelines: their schemas, their scripts, and which run is the baseline of which."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from composite_action import Caches, Job, action, job
from paths import ROOT

BIN = Path(sys.executable).parent
SAMPLES = ROOT / "docs" / "how-to" / "ci"
SCENARIO = {"scenario": "smoke", "host": "http://s:1"}
# Programs that leave the number of the workflow run in the folder of the run, and say which runs are compared.
INFERLOAD = """#!/bin/bash
if [ "$1" = compare ]; then echo "$(cat "$2/number") with $(cat "$3/number")"; printf '<%s>' "$@"; exit "${COMPARE_CODE:-0}"; fi
printf '<%s>' "$@"
mkdir -p inferload-ci/run && echo "$NUMBER" > inferload-ci/run/number
exit "${RUN_CODE:-0}"
"""
PYTHON = '#!/bin/bash\necho "$@"\nif [ "$2" = venv ]; then mkdir -p "$3/bin" && cp "$0" "$3/bin/python"; fi\n'


@pytest.mark.parametrize(
    ("schema", "file"),
    [
        ("github-actions", ROOT / "action.yml"),
        ("github-workflows", SAMPLES / "github.yml"),
        ("gitlab-ci", SAMPLES / "gitlab.yml"),
    ],
)
def test_the_files_are_valid(schema: str, file: Path) -> None:
    words = [BIN / "check-jsonschema", "--builtin-schema", f"vendor.{schema}", file]
    checked = subprocess.run(words, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout


def test_scripts_pass_shellcheck_and_actions_have_versions() -> None:
    steps = action()["runs"]["steps"]
    scripts = "\n".join(f"(\n{step['run']}\n)" for step in steps if "run" in step)
    words = [BIN / "shellcheck", "--shell", "bash", "-"]
    checked = subprocess.run(words, input=scripts, capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stdout) == (0, "")
    assert [step["uses"] for step in steps if not re.search(r"@v\d", step.get("uses", "@v1"))] == []


def test_the_sample_gives_inputs_of_the_action() -> None:
    (sample,) = yaml.safe_load((SAMPLES / "github.yml").read_text())["jobs"].values()
    given = sample["steps"][-1]["with"].keys()
    required = {name for name, row in action()["inputs"].items() if row.get("required")}
    assert required <= given <= action()["inputs"].keys()


@pytest.fixture
def workflow(tmp_path: Path) -> Callable[..., Job]:
    """Return a function that runs a job of one repository in a fresh workspace."""
    caches = Caches(tmp_path / "caches")
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, text in (("inferload", INFERLOAD), ("python3", PYTHON)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)

    def run(number: int, branch: str = "main", run_code: int = 0, compare_code: int = 0, **given: str) -> Job:
        folder = tmp_path / f"workspace-{number}"
        folder.mkdir()
        made = job(folder, caches, SCENARIO | given, number=number, branch=branch)
        made.environment = {
            "PATH": f"{programs}:/usr/bin:/bin",
            "RUNNER_TEMP": str(folder),
            "GITHUB_PATH": str(folder / "path"),
            "NUMBER": str(number),
            "RUN_CODE": str(run_code),
            "COMPARE_CODE": str(compare_code),
        }
        return made.run()

    return run


def compared(made: Job) -> str:
    """Return the first line of the comparison; empty if there was none."""
    (text,) = [text for name, _code, text in made.ran if name.startswith("compare")] or [""]
    return text.partition("\n")[0]


NOTHING = "no earlier run of the main branch is kept: nothing to compare with"


def test_each_run_is_compared_with_the_newest_of_the_main_branch(workflow: Callable[..., Job]) -> None:
    assert compared(workflow(1)) == NOTHING
    assert compared(workflow(2)) == "1 with 2"
    assert compared(workflow(3, "feature")) == "2 with 3"  # not kept
    failed = workflow(4, run_code=1)
    assert (compared(failed), failed.failed, failed.names["steps.run.outputs.exit-code"]) == ("", True, "1")
    assert failed.uploaded == ["inferload-ci/results", "inferload-ci/run"]
    worse = workflow(5, compare_code=4)
    assert (compared(worse), worse.failed) == ("2 with 5", True)
    assert compared(workflow(6, "feature")) == "5 with 6"
    assert compared(workflow(7, baseline="load")) == NOTHING  # the others are of `load-test`
    assert compared(workflow(8, **{"baseline-branch": "trunk"})) == "5 with 8"  # main is a branch like any other
    assert compared(workflow(9)) == "5 with 9"


def test_options_are_words_and_values_without_quotes(workflow: Callable[..., Job]) -> None:
    options = "--abort-on failed_ratio > 0.5 for 5s\n\n  --insecure\n--gate p95(ttft_ms) < 800; $(touch evil)\n"
    workflow(1)
    made = workflow(2, options=options, **{"max-change": "p50(ttft_ms) +50%\noutput_tok_per_s -20%"})
    texts = {name: text for name, _code, text in made.ran}
    assert "<run><smoke><--host><http://s:1><--run-dir><inferload-ci/run>" in texts["load test"]
    ended = "<--abort-on><failed_ratio > 0.5 for 5s><--insecure><--gate><p95(ttft_ms) < 800; $(touch evil)>"
    assert texts["load test"].endswith(f"<--github>{ended}")
    (text,) = [text for name, text in texts.items() if name.startswith("compare")]
    assert text.endswith("<--max-change><p50(ttft_ms) +50%><--max-change><output_tok_per_s -20%>")
    assert not (made.folder / "evil").exists()


@pytest.mark.parametrize(("given", "package"), [({}, str(ROOT)), ({"package": "inferload==0.1.0"}, "inferload==0.1.0")])
def test_inferload_of_the_version_of_the_action_is_installed(
    workflow: Callable[..., Job], given: dict[str, str], package: str
) -> None:
    made = workflow(1, **given)
    (text,) = [text for name, _code, text in made.ran if name == "install"]
    environment = made.folder / "inferload"
    assert text.splitlines() == [f"-m venv {environment}", f"-m pip install --quiet {package}"]
    assert (made.folder / "path").read_text() == f"{environment}/bin\n"
