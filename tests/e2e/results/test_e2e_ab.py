"""`inferload ab` on two simulators."""

import json
from pathlib import Path

import pytest
from simulator_process import start, stop

from inferload import cli

QUICK = ["--duration", "2s", "--set", "phases.warmup_s=0"]


@pytest.mark.usefixtures("forked_programs")
def test_two_servers_are_compared_and_the_folder_can_be_resumed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "ab"
    fast, slow = start("--ttft-ms", "20", "--itl-ms", "15"), start("--ttft-ms", "60", "--itl-ms", "45")
    try:
        sides = [f"A=http://127.0.0.1:{fast.port}", f"B=http://127.0.0.1:{slow.port}"]
        words = [
            "--scenario",
            "smoke",
            "--pairs",
            "1",
            "--on-invalid",
            "warn",
            "--require",
            "p50(ttft_ms) < 40",
            *QUICK,
        ]
        assert cli.main(["ab", *sides, *words, "--into", str(folder), "--fail-on-regression"]) == 0
        output = capfd.readouterr().out
        assert "B against A on smoke: 2 runs in 1 pair" in output
        assert "1 pair: nothing is tested" in output
        assert cli.main(["ab", *sides, *words, "--into", str(folder)]) == 2
        assert f"use --resume {folder}" in capfd.readouterr().err
        assert cli.main(["ab", "--resume", str(folder)]) == 0  # all runs are done: compares again, by the same limits
        assert "B is ruled out by p50(ttft_ms) < 40 (" in capfd.readouterr().out
    finally:
        stop(fast)
        stop(slow)
    assert (folder / "comparison" / "comparison.json").exists()
    assert len(list(folder.glob("[AB]/000/summary.json"))) == 2


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("slower", "code", "verdict"), [(1.0, 0, "no difference found"), (1.1, 4, "worse")])
def test_a_server_that_is_slower_by_ten_percent_is_found_and_an_equal_one_is_not(
    slower: float, code: int, verdict: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Eight pairs of short runs, for which the plan names a smaller change than ten percent."""
    servers = [start("--ttft-ms", f"{200 * by:g}", "--itl-ms", f"{20 * by:g}") for by in (1.0, slower)]
    try:
        sides = [f"{name}=http://127.0.0.1:{server.port}" for name, server in zip("AB", servers, strict=True)]
        words = ["--scenario", "smoke", "--pairs", "8", "--duration", "4s", "--on-invalid", "warn"]
        assert cli.main(["ab", *sides, *words, "--into", str(tmp_path / "ab"), "--fail-on-regression"]) == code
    finally:
        for server in servers:
            stop(server)
    output = capfd.readouterr().out
    assert "8 pairs detect a change of 6.2 %" in output
    comparison = json.loads((tmp_path / "ab" / "comparison" / "comparison.json").read_text())
    assert comparison["candidates"][0]["verdict"] == verdict, output
