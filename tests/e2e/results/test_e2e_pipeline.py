"""The sample workflows of docs/how-to/ci, executed step by step in bash against the simulator."""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import forge
import pytest
import yaml
from e2e_runs import PATIENCE_S, RunCase, Sandbox, run_cases
from locust_process import ROOT, summary_of

pytestmark = pytest.mark.timeout(300)


@dataclass(frozen=True)
class Job:
    """Job of a workflow: its environment and its steps without the installation."""

    environment: dict[str, str]
    steps: tuple[str, ...]


def github() -> Job:
    workflow = yaml.safe_load((ROOT / "docs" / "how-to" / "ci" / "github.yml").read_text())
    (job,) = workflow["jobs"].values()
    steps = [step["run"] for step in job["steps"] if "run" in step and step["name"] != "install"]
    return Job(workflow["env"], tuple(steps))


def gitlab() -> Job:
    workflow = yaml.safe_load((ROOT / "docs" / "how-to" / "ci" / "gitlab.yml").read_text())
    return Job(workflow["variables"], tuple(workflow["load-test"]["script"]))


JOBS = {"github": github, "gitlab": gitlab}


@dataclass(frozen=True)
class Ran:
    """Exit codes and outputs of the steps of a job, up to the first that failed."""

    folder: Path
    codes: list[int]
    texts: list[str]


def run_steps(folder: Path, job: Job, host: str) -> Ran:
    """Run each step in a shell, up to the first that fails. `inferload` is a fork, without the CPU time of its imports."""
    program = folder / "inferload"
    program.write_text(f'#!/bin/sh\nexec {forge.LOCUST.proxy()} -m inferload "$@"\n')
    program.chmod(0o700)
    own = {
        "SERVER": host,
        "PATH": f"{folder}:{os.environ['PATH']}",
        "GITHUB_ACTIONS": "true",
        "GITHUB_STEP_SUMMARY": str(folder / "step.md"),
        "CI_COMMIT_BRANCH": "main",
    }
    assert job.environment.keys() <= own.keys(), "the test replaces only the host"
    ran = Ran(folder, [], [])
    for step in job.steps:
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step],
            cwd=folder,
            env={**os.environ, **own},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=3 * PATIENCE_S,
            check=False,
        )
        ran.codes.append(done.returncode)
        ran.texts.append(done.stdout)
        if done.returncode:
            break
    return ran


def pipeline(sandbox: Sandbox, name: str, server: str) -> Ran:
    job = JOBS[name]()
    if server == "none":
        return run_steps(sandbox.folder, job, "http://127.0.0.1:1")
    host = sandbox.simulator().url
    ran = run_steps(sandbox.folder, job, host)
    if ran.codes == [0] * len(job.steps):  # compare the run with itself
        compare = Job(job.environment, tuple(step for step in job.steps if "inferload compare" in step))
        again = run_steps(sandbox.folder, compare, host)
        ran.codes.extend(again.codes)
        ran.texts.extend(again.texts)
    return ran


def cases(file: Path) -> dict[str | None, Any]:
    return {case.get("name"): case for case in ElementTree.parse(file).iter("testcase")}


@run_cases(pipeline, *((name, "simulator") for name in JOBS))
def test_sample_workflows_run_and_produce_their_artifacts(ended: Ran, run_case: RunCase) -> None:
    outcome = summary_of(ended.folder / "runs" / "now")["outcome"]
    assert ended.codes[0] == outcome["exit_code"], ended.texts[0]
    assert ended.texts[0].rstrip().splitlines()[-1].endswith(f": {outcome['headline']}")
    assert (ended.folder / "runs" / "now" / "report.html").is_file()
    checks = cases(ended.folder / "results" / "load.xml")
    assert any(case.find("failure") is not None for case in checks.values()) == (ended.codes[0] != 0)
    assert {"failed_ratio < 0.01", "p50(ttft_ms) < 5000"} < checks.keys()
    assert outcome["headline"] in (ended.folder / "results" / "load.md").read_text()
    if run_case.arguments[0] == "github":
        assert outcome["headline"] in (ended.folder / "step.md").read_text()
    if ended.codes[0] == 0:  # the measurement may be invalid on a busy machine
        assert ended.codes == [0] * (len(JOBS[run_case.arguments[0]]().steps) + 1), ended.texts
        assert "not statistical: compares two values without their spread" in ended.texts[-1]
        compared = cases(ended.folder / "results" / "compare.xml")
        assert compared["--max-change p50(ttft_ms) +50%"].find("failure") is None


@run_cases(pipeline, ("github", "none"))
def test_an_unreachable_server_is_explained_in_the_last_line_and_junit(ended: Ran) -> None:
    assert ended.codes == [2]
    reason = "no connection to http://127.0.0.1:1: Connection refused; is the server started, and the host right?"
    assert reason in "\n".join(ended.texts[0].rstrip().splitlines()[-2:])
    (failure,) = cases(ended.folder / "results" / "load.xml")["run"].findall("failure")
    assert failure.get("message") == f"not started: {reason}"
    assert f"::error title=inferload::run: not started: {reason}" in ended.texts[0].splitlines()
