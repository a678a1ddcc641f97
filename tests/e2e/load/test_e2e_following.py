"""Servers that join and leave during a run of two workers, and a mark from another process."""

import csv
import json

import pytest
from e2e_runs import (
    FinishedRun,
    Sandbox,
    check_counts,
    mark,
    marks_of,
    run_cases,
    scenario,
    wait_for_measure_phase,
    wait_until,
)

from inferload.base import rundir
from inferload.cli.mark import send

pytestmark = pytest.mark.timeout(240)


def followed(sandbox: Sandbox) -> FinishedRun:
    """One server, then another beside it, then only that one; all want a key."""
    first, second = (sandbox.simulator("--api-key", "sesame-key-0123").url for _ in range(2))
    hosts, key = sandbox.folder / "hosts", sandbox.folder / "key"
    hosts.write_text(f"{first}\n")
    key.write_text("sesame-key-0123")
    file = scenario(
        sandbox.folder,
        arrivals={"kind": "closed", "users": 4, "spawn_per_s": 50},
        workload__output_tokens=4,
        phases={"measure_s": 120, "drain_s": 20},
    )
    words = ("--host", str(hosts), "--scenario", str(file), "--api-key-file", str(key), "--on-invalid", "warn")
    fleet = sandbox.fleet("processes", *words, "--on-stop", "pass", report=True)
    wait_for_measure_phase(sandbox.run_dir)
    send(sandbox.run_dir, "a second server")
    for number, text in enumerate((f"{first}\n# half", f"{first}\n{second}\n", f"{second}\n")):
        hosts.write_text(text)
        wait_until(
            lambda number=number: len([m for m in marks_of(sandbox.run_dir) if m["kind"] == "targets"]) >= number,
            "a change of the servers",
        )
    return sandbox.interrupted(fleet)


@run_cases(followed, ())
def test_a_run_follows_its_servers(ended: FinishedRun) -> None:
    assert ended.code == 0, ended.text
    check_counts(ended)
    first, second = ended.summary["by_target"]
    assert all(split["turns"]["ok"] == split["turns"]["sent"] > 0 for split in ended.summary["by_target"].values())
    assert [entry["seen_s"] is None for entry in ended.summary["servers"]] == [False, False]
    texts = [line["text"] for line in marks_of(ended.run_dir) if line["kind"] == "targets"]
    assert texts == [f"2 servers: +{second}", f"1 server: -{first}"]
    assert mark(ended.run_dir, "mark") is not None
    assert [part["begins"] for part in ended.summary["by_phase"]] == ["start", "a second server", *texts]
    with (ended.run_dir / "timeline.csv").open() as file:
        counts = [row["targets"] for row in csv.DictReader(file)]
    assert list(dict.fromkeys(counts)) in (["1", "2", "1"], ["1", "2"])
    causes = json.loads((ended.run_dir / rundir.DIAGNOSIS).read_text())["lines"]
    assert not any(code in line for line in causes for code in ("server-gone", "outlier", "routing"))
