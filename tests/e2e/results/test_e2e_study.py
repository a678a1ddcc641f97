"""`inferload study` on the simulator: runs, page, and a second call that continues."""

import json
from pathlib import Path

import pytest
from simulator_process import start, stop
from small_study import STUDY

from inferload import cli

pytestmark = pytest.mark.usefixtures("forked_programs")


def test_a_study_runs_shows_its_claims_and_continues(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file, folder = tmp_path / "small.yaml", tmp_path / "out"
    file.write_text(STUDY)
    assert cli.main(["study", str(file), "--into", str(folder)]) == 0
    output = capfd.readouterr().out
    assert "A small study: 1 claim; holds here: 1\n  holds here: It does\n      published +100 %; here " in output
    assert "Configurations" not in output
    assert output.count("\n") < 12
    page = (folder / "index.md").read_text()
    assert "**Simulated server: stands for " in page
    assert "| It does | +100 % |" in page
    assert "<h1>A small study</h1>" in (folder / "index.html").read_text()
    assert len(json.loads((folder / "results.json").read_text())["runs"]) == 6
    before = (folder / "results.json").read_bytes()
    # All runs are done: the page is made again.
    assert cli.main(["study", "--resume", str(folder), "--details", "--lang", "zh"]) == 0
    output = capfd.readouterr().out
    assert (folder / "results.json").read_bytes() == before
    assert "成立：It does\n      原文 +100 %；本次 " in output
    assert "平均 TTFT, ms" in output
    assert "== load ==" in output
    assert '<html lang="zh-CN">' in (folder / "only" / "index.html").read_text()


def test_a_study_of_running_servers(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file, folder = tmp_path / "small.yaml", tmp_path / "out"
    file.write_text(STUDY)
    servers = [start("--ttft-ms", ttft_ms, "--itl-ms", "40") for ttft_ms in ("200", "600")]
    hosts = [
        f"{name}=http://127.0.0.1:{at.port}" for name, at in zip(("tiny-all", "tiny-seqs-1"), servers, strict=True)
    ]
    try:
        assert cli.main(["study", str(file), "--quick", "--host", *hosts, "--into", str(folder)]) == 0
    finally:
        for server in servers:
            stop(server)
    assert "A small study: 1 claim; not tested: 1" in capfd.readouterr().out
    page = (folder / "index.md").read_text()
    assert "stands for no model: its TTFT and ITL are set" in page
    assert f"inferload study {file} --host {hosts[0]} --host {hosts[1]} --quick" in page
