"""A run whose workers do not share a disk, and `inferload collect`, which brings it together: from a path and over ssh."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import locust_process
import pyarrow.parquet as pq
import pytest
from e2e_runs import CROWDED, PATIENCE_S, Ended, Place, Scene, Stage, mark, marks_of, quiet_port, scenario, scenes
from sshd import MACHINES, SshServer

from inferload import cli, turnfile
from inferload.cli import overssh

Said = pytest.CaptureFixture[str]


def apart(place: Place) -> Ended:
    """Two workers: one beside the master, the other in a directory of its own, to which the master's path means another place."""
    simulator = place.simulator()
    file = scenario(place.folder, phases={"warmup_s": 60, "warmup_turns": 30, "measure_s": 2, "drain_s": 20})
    port = str(quiet_port())
    here, there = place.folder / "here", place.folder / "there"
    for folder in (here, there):
        folder.mkdir()
    start = locust_process.start
    master = start(
        *("--headless", "--master", "--expect-workers", "2", "--master-bind-host", "127.0.0.1"),
        *("--master-bind-port", port, "--host", simulator.url, "--scenario", str(file), "--no-report"),
        *("--run-dir", "/proc/self/cwd/run"),  # in each process its own working directory
        cwd=here,
    )
    to_master = ("--worker", "--master-host", "127.0.0.1", "--master-port", port)
    workers = [start(*to_master, cwd=here), start(*to_master, "--run-dir", "runs/mine", cwd=there)]
    try:
        code = master.exit_code(PATIENCE_S)
        assert [worker.exit_code(20) for worker in workers] == [0, 0]
    finally:
        for one in (master, *workers):
            one.kill()
    return Ended(here / "run", code, master.text, seen={"there": there})


pytestmark = scenes(apart, ())


@pytest.fixture
def run_dir(stage: Stage, scene: Scene, tmp_path: Path) -> Path:
    """A copy of the master's run directory as the run left it."""
    ended: Ended = stage.result(scene)
    copy = tmp_path / "run"
    shutil.copytree(ended.run_dir, copy)
    return copy


def there(stage: Stage, scene: Scene) -> Path:
    """The other worker's run directory."""
    folder: Path = stage.result(scene).seen["there"]
    return folder / "runs" / "mine"


def printed(capfd: pytest.CaptureFixture[str], name: str, turns: int) -> str:
    """All that was printed, by sub-commands too; it begins with the worker whose turns came."""
    text = capfd.readouterr().out
    assert text.startswith(f"{name}: {turns} turns from ")
    return text


def documents(run_dir: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """run.json and summary.json."""
    manifest, summary = (json.loads((run_dir / name).read_text()) for name in ("run.json", "summary.json"))
    return manifest, summary


def collect(run_dir: Path, *words: str) -> int:
    return cli.main(["collect", str(run_dir), "--no-report", *words])


def test_the_run_says_what_is_where(stage: Stage, scene: Scene, run_dir: Path) -> None:
    ended: Ended = stage.result(scene)
    assert "Traceback" not in ended.text, ended.text
    manifest, summary = documents(run_dir)
    assert summary["percentiles_from"] == "sketches"
    folders = {worker["folder"]: worker["turns"] for worker in manifest["workers"]}
    assert set(folders) == {"/proc/self/cwd/run", str(there(stage, scene))}
    assert sum(folders.values()) == summary["turns"]["by_phase"]["all"]["sent"]
    assert len(turnfile.read_turns(run_dir)) == folders["/proc/self/cwd/run"]


def test_a_warm_up_ends_by_count(stage: Stage, scene: Scene, run_dir: Path) -> None:
    manifest, summary = documents(run_dir)
    told = mark(run_dir, "warmup_over")
    assert told is not None
    assert int(told["text"].removesuffix(" turns were over")) >= 30
    assert [one["phase"] for one in manifest["phases"]] == ["warmup", "measure", "drain"]
    warmup, measure, _drain = manifest["phases"]
    assert warmup["end_wall_ns"] == measure["start_wall_ns"] > told["wall_ns"]
    assert measure["end_wall_ns"] - measure["start_wall_ns"] == 2e9
    assert summary["window_s"] == 2
    assert summary["turns"]["by_phase"]["warmup"]["sent"] >= 30
    begins = [one["phase"] for one in marks_of(run_dir) if one["kind"] == "phase"]
    assert begins == ["warmup", "measure", "drain"]


def test_collected_turns_give_the_summary_that_one_disk_would_have(
    stage: Stage, scene: Scene, run_dir: Path, capfd: Said
) -> None:
    before, was = documents(run_dir)
    assert collect(run_dir, "--from", str(there(stage, scene).parent)) == 0  # the directory that holds it
    manifest, summary = documents(run_dir)
    assert summary["percentiles_from"] == "records"
    assert len(turnfile.read_turns(run_dir)) == summary["turns"]["by_phase"]["all"]["sent"]
    unchanged = ("run", "window_s", "sessions", "turns", "rates", "stalls", "client", "servers", "steps")
    assert {name: summary[name] for name in unchanged} == {name: was[name] for name in unchanged}
    assert {one["code"] for one in summary["verdict"]["reasons"]} - CROWDED == set()
    for name, block in summary["latency"].items():
        assert block["count"] == was["latency"][name]["count"]
        if block["p50"] is not None:
            assert block["p50"] == pytest.approx(was["latency"][name]["p50"], rel=0.003, abs=0.001)
    assert summary["cache"]["expected"]["turns"] == summary["turns"]["by_phase"]["all"]["sent"]
    assert summary["tasks"] is not None
    other = next(worker for worker in manifest["workers"] if "collected_from" in worker)
    assert other["folder"] == str(there(stage, scene))
    assert {name: value for name, value in manifest.items() if name != "workers"} == {
        name: value for name, value in before.items() if name != "workers"
    }
    assert re.search(r"latency (\[\w+\] )?\(exact", printed(capfd, other["name"], other["turns"]))

    files = {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file()}
    assert collect(run_dir, "--from", str(there(stage, scene))) == 0  # once more, and nothing changes
    assert {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file()} == files


def test_what_is_missing_is_named_and_what_came_is_kept(
    stage: Stage, scene: Scene, run_dir: Path, tmp_path: Path, capsys: Said
) -> None:
    manifest, summary = documents(run_dir)
    other = next(worker for worker in manifest["workers"] if worker["folder"] == str(there(stage, scene)))
    assert collect(run_dir) == 1
    said = capsys.readouterr()
    assert said.out == f"{other['name']}: {other['turns']} turns are on {other['host']} in {other['folder']}\n"
    assert said.err.startswith(f"inferload: turns of {other['name']} are not all here")

    short = tmp_path / "short"
    shutil.copytree(there(stage, scene), short)
    file = next((short / "turns").iterdir())
    table = pq.read_table(file)
    pq.write_table(table.slice(0, len(table) - 1), file)
    assert collect(run_dir, "--from", str(short)) == 1
    assert f"{other['turns'] - 1} turns are here, {other['turns']} were counted" in capsys.readouterr().out
    assert documents(run_dir)[1] == summary
    assert collect(run_dir, "--from", str(there(stage, scene))) == 0  # the whole ones take their place
    assert [path.name for path in run_dir.iterdir() if path.name.startswith(".")] == []


def test_turns_of_another_run_are_refused(
    stage: Stage, scene: Scene, run_dir: Path, tmp_path: Path, capsys: Said
) -> None:
    strange = tmp_path / "strange"
    shutil.copytree(there(stage, scene), strange)
    file = next((strange / "turns").iterdir())
    table = pq.read_table(file)
    pq.write_table(table.replace_schema_metadata({**table.schema.metadata, b"run_id": b"another-run"}), file)
    before = documents(run_dir)
    assert collect(run_dir, "--from", str(strange)) == 2
    assert capsys.readouterr().err == (
        f"inferload: --from {strange}: turns of run another-run, not of {before[0]['id']}\n"
    )
    assert collect(run_dir, "--from", str(tmp_path / "nowhere")) == 2
    (tmp_path / "empty").mkdir()
    assert collect(run_dir, "--from", str(tmp_path / "empty")) == 2
    assert collect(tmp_path / "empty") == 2
    assert [line.split(": ")[-1] for line in capsys.readouterr().err.splitlines()] == [
        "no such directory",
        "no turns there; name a worker's run directory, or the one that holds it",
        f"No such file or directory; is {tmp_path / 'empty'} a run directory?",
    ]
    assert documents(run_dir) == before


@pytest.mark.ssh
def test_over_ssh(stage: Stage, scene: Scene, run_dir: Path, ssh_server: SshServer, capsys: Said) -> None:
    config = ("--ssh-config", str(ssh_server.config))
    before = documents(run_dir)
    assert collect(run_dir, "--from", "no-such-machine:runs", *config) == 2
    assert collect(run_dir, "--from", f"{MACHINES[0]}:/no/such/place", *config) == 2
    errors = capsys.readouterr().err.splitlines()
    assert errors[0].startswith("inferload: no-such-machine:runs: ssh: Could not resolve hostname")
    assert errors[1].startswith(f"inferload: {MACHINES[0]}:/no/such/place: ")
    assert "/no/such/place" in errors[1].partition(" /no/such/place: ")[2] or "No such file" in errors[1]
    assert documents(run_dir) == before
    assert collect(run_dir, "--from", f"{MACHINES[1]}:", *config) == 0  # where run.json says
    assert collect(run_dir, "--from", f"{MACHINES[1]}:", *config) == 0  # nothing is missing any more
    assert documents(run_dir)[1]["percentiles_from"] == "records"
    assert [path.name for path in run_dir.iterdir() if path.name.startswith(".")] == []


def test_places_are_read_as_scp_reads_them(scene: Scene) -> None:
    found = {text: overssh.split_place(text) for text in ("me@node:runs", "node:", "./a:b", "/a:b", "-oX=1:y", "runs")}
    assert found == {
        "me@node:runs": ("me@node", "runs"),
        "node:": ("node", ""),
        "./a:b": None,
        "/a:b": None,
        "-oX=1:y": None,
        "runs": None,
    }
