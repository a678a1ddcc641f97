"""A crash of the server while turns stream."""

import os
import signal

import summaries
import surfaces
from e2e_runs import FinishedRun, Sandbox, check_counts, run_cases, scenario, wait_for_measure_phase, wait_until

from inferload.results.documents.summary_document import Stopped
from inferload.results.verdict import failures

# Against a server that refuses connections a closed loop without pauses would send thousands of turns.
PACED = {"kind": "constant", "sessions_per_s": 8}


def crashed(sandbox: Sandbox) -> FinishedRun:
    """Kill the server while turns stream."""
    simulator = sandbox.simulator()
    # Long enough for later turns even if a busy machine delays the kill.
    phases = {"warmup_s": 0, "measure_s": 8, "drain_s": 20}
    file = scenario(sandbox.folder, arrivals=PACED, phases=phases, workload__output_tokens=40)
    words = ["--host", simulator.url, "--scenario", str(file), "--on-invalid", "warn", "--details"]
    fleet = sandbox.fleet("processes", *words, report=True)
    wait_for_measure_phase(sandbox.run_dir)
    wait_until(lambda: simulator.stats()["requests"]["finished"] > 2, "successful turns")
    os.kill(simulator.process.pid, signal.SIGKILL)
    return FinishedRun(sandbox.run_dir, fleet.exit_code(), fleet.text)


@run_cases(crashed, ())
def test_a_crashed_server_is_the_first_finding(ended: FinishedRun) -> None:
    turns = ended.summary["turns"]
    (stopped,) = ended.summary["stopped_answering"]
    after = [row for row in ended.turns if row["failure"] in ("connect", "cut")]
    assert sum(stopped["by_failure"].values()) == len(after) > 2
    assert {error["failure"] for error in turns["first_errors"]} == set(stopped["by_failure"])
    first = next(error for error in turns["first_errors"] if error["failure"] == "connect")
    assert "refused" in first["text"].lower()
    assert first["at_s"] >= stopped["at_s"]
    assert first["worker"] in {row["worker"] for row in ended.turns}
    tables = ended.text[ended.text.rindex("Failed turns by class") :]
    assert first["text"] in " ".join(tables.split())
    assert f"stopped answering at {stopped['at_s']:.1f} s" in tables
    surfaces.check_failures_first(ended.run_dir)
    page = (ended.run_dir / "report.md").read_text()
    cause = next(line for line in page.replace("\\", "").splitlines() if line.startswith("| Cause | "))
    assert failures.stopped_text(Stopped(**stopped), summaries.summary(ended.summary)) in cause
    assert f"first failure at {min(error['at_s'] for error in turns['first_errors']):.1f} s" in cause
    assert f"last success at {turns['last_ok_s']:.1f} s" in cause
    assert "metrics page" in page.partition("\n## Diagnosis")[2].partition("\n## ")[0]
    assert ended.code == 1, ended.text
    check_counts(ended)
