"""action.yml with the inputs of the sample workflow, and the sample job of GitLab, executed step by step against the simulator."""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import composite_action
import forge
import pytest
import yaml
from composite_action import BASH, Caches
from e2e_runs import PATIENCE_S, RunCase, Sandbox, run_cases
from locust_process import ROOT, summary_of

CI = ROOT / "docs" / "how-to" / "ci"

pytestmark = pytest.mark.timeout(300)


@dataclass(frozen=True)
class Ran:
    """Exit codes and outputs of the shells of a job, up to the first that failed; where it left run and results."""

    folder: Path
    codes: list[int]
    texts: list[str]
    run_dir: str
    results: str


def variables(folder: Path) -> dict[str, str]:
    """Return variables of a job. `inferload` is a fork, without the CPU time of its imports."""
    program = folder / "inferload"
    program.write_text(f'#!/bin/sh\nexec {forge.LOCUST.proxy()} -m inferload "$@"\n')
    program.chmod(0o700)
    return {"PATH": f"{folder}:{os.environ['PATH']}", "GITHUB_STEP_SUMMARY": str(folder / "step.md")}


def github(folder: Path, host: str) -> Ran:
    """Run action.yml, without the installation, with the inputs of the sample: on the main branch, and then beside its own run."""
    (sample,) = yaml.safe_load((CI / "github.yml").read_text())["jobs"].values()
    made = composite_action.job(folder, Caches(folder / "caches"), {**sample["steps"][-1]["with"], "host": host})
    made.environment = variables(folder)
    made.run(install=False)
    if not made.failed:
        (compare,) = [step for step in composite_action.action()["runs"]["steps"] if "compare" in step["name"]]
        made.shell(compare)
    codes, texts = [code for _name, code, _text in made.ran], [text for _name, _code, text in made.ran]
    return Ran(folder, codes, texts, "inferload-ci/run", "inferload-ci/results")


def gitlab(folder: Path, host: str) -> Ran:
    """Run the script of the sample on the main branch, and then its comparison beside its own run."""
    document = yaml.safe_load((CI / "gitlab.yml").read_text())
    assert document["variables"].keys() == {"SERVER"}, "the test replaces only the host"
    script = document["load-test"]["script"]
    environment = {**os.environ, **variables(folder), "SERVER": host, "CI_COMMIT_BRANCH": "main"}
    ran = Ran(folder, [], [], "runs/now", "results")
    for text in (*script, script[-1]):
        done = subprocess.run(
            [*BASH, text],
            cwd=folder,
            env=environment,
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


JOBS = {"github": github, "gitlab": gitlab}


def pipeline(sandbox: Sandbox, name: str, server: str) -> Ran:
    host = "http://127.0.0.1:1" if server == "none" else sandbox.simulator().url
    return JOBS[name](sandbox.folder, host)


def cases(file: Path) -> dict[str | None, Any]:
    return {case.get("name"): case for case in ElementTree.parse(file).iter("testcase")}


@run_cases(pipeline, *((name, "simulator") for name in JOBS))
def test_sample_workflows_run_and_produce_their_artifacts(ended: Ran, run_case: RunCase) -> None:
    outcome = summary_of(ended.folder / ended.run_dir)["outcome"]
    assert ended.codes[0] == outcome["exit_code"], ended.texts[0]
    assert ended.texts[0].rstrip().splitlines()[-1].endswith(f": {outcome['headline']}")
    assert (ended.folder / ended.run_dir / "report.html").is_file()
    checks = cases(ended.folder / ended.results / "load.xml")
    assert any(case.find("failure") is not None for case in checks.values()) == (ended.codes[0] != 0)
    assert {"failed_ratio < 0.01", "p50(ttft_ms) < 5000"} < checks.keys()
    assert outcome["headline"] in (ended.folder / ended.results / "load.md").read_text()
    if run_case.arguments[0] == "github":
        assert outcome["headline"] in (ended.folder / "step.md").read_text()
    if ended.codes[0] == 0:  # the measurement may be invalid on a busy machine
        assert set(ended.codes) == {0}, ended.texts
        assert "not statistical: compares two values without their spread" in ended.texts[-1]
        compared = cases(ended.folder / ended.results / "compare.xml")
        assert compared["--max-change p50(ttft_ms) +50%"].find("failure") is None


@run_cases(pipeline, ("github", "none"))
def test_an_unreachable_server_is_explained_in_the_last_line_and_junit(ended: Ran) -> None:
    assert ended.codes == [2]
    reason = "no connection to http://127.0.0.1:1: Connection refused; is the server started, and the host right?"
    assert reason in "\n".join(ended.texts[0].rstrip().splitlines()[-2:])
    (failure,) = cases(ended.folder / ended.results / "load.xml")["run"].findall("failure")
    assert failure.get("message") == f"not started: {reason}"
    assert f"::error title=inferload::run: not started: {reason}" in ended.texts[0].splitlines()
