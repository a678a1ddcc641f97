"""`inferload ab` on two simulators."""

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from balancer import RequestBalancer
from simulator_process import start, stop

from inferload import cli

QUICK = ["--duration", "2s", "--set", "phases.warmup_s=0"]


@pytest.mark.usefixtures("forked_programs")
def test_two_servers_are_compared_and_the_folder_can_be_resumed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """On the virtual clock: a busy machine makes no run invalid, which no requirement could rule out."""
    folder = tmp_path / "ab"
    sides = ["A=--ttft-ms 20 --itl-ms 15", "B=--ttft-ms 60 --itl-ms 45"]
    words = ["--scenario", "smoke", "--clock", "virtual", "--pairs", "1", "--require", "p50(ttft_ms) < 40", *QUICK]
    assert cli.main(["ab", *sides, *words, "--into", str(folder), "--fail-on-regression"]) == 0
    output = capfd.readouterr().out
    assert "B against A on smoke: 2 runs in 1 pair" in output
    assert "1 pair: nothing is tested" in output
    assert cli.main(["ab", *sides, *words, "--into", str(folder)]) == 2
    assert f"use --resume {folder}" in capfd.readouterr().err
    assert cli.main(["ab", "--resume", str(folder)]) == 0  # all runs are done: compares again, by the same limits
    assert "B is ruled out by p50(ttft_ms) < 40 (" in capfd.readouterr().out
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


def rows_of(folder: Path) -> dict[str, Any]:
    """Return the answer to a preset: its rows by figure, and its note."""
    (found,) = json.loads((folder / "comparison" / "comparison.json").read_text())["candidates"]
    return {"note": found["question"]["note"], **{row["figure"]: row for row in found["question"]["rows"]}}


@pytest.mark.usefixtures("forked_programs")
def test_a_gateway_that_adds_a_time_and_changes_texts_is_told_from_the_server_itself(tmp_path: Path) -> None:
    """On the virtual clock, where all else is the same in every pair."""
    sides = ["direct=--ttft-ms 20 --itl-ms 10", "through=--ttft-ms 25 --itl-ms 10 --seed 1"]
    words = ["--preset", "gateway", "--clock", "virtual", "--pairs", "2", "--duration", "1s"]
    assert cli.main(["ab", *sides, *words, "--into", str(tmp_path / "ab")]) == 0
    rows = rows_of(tmp_path / "ab")
    for name, added_ms in (("ttft_ms", 5), ("e2e_ms", 5), ("tpot_ms", 0), ("itl_ms", 0)):
        for column, mean_ms in (("difference", added_ms), ("control", 0)):
            expected = dict.fromkeys(("mean", "low", "high"), mean_ms)
            assert rows[f"mean({name})"][column] == pytest.approx(expected, abs=1e-6)
    text = rows["changed_answer_digest"]
    assert text["changed"] == text["agreed"] == text["compared"] == 8
    assert "Changed answers, by pair and turn: 000/s" in rows["note"]
    assert [name for name, row in rows.items() if name != "note" and row.get("claimed")] == ["changed_answer_digest"]


@pytest.mark.soak
@pytest.mark.usefixtures("forked_programs")
def test_a_gateway_that_repeats_requests_joins_events_and_changes_some_answers_is_found(tmp_path: Path) -> None:
    server = start("--ttft-ms", "20", "--itl-ms", "10")
    try:
        with contextlib.closing(RequestBalancer([server.port], held_bytes=4096, repeats=2, changes=3)) as between:
            words = ["--preset", "gateway", "--pairs", "1", "--duration", "4s", "--on-invalid", "warn"]
            sides = [f"direct={server.url}", f"through={between.url}"]
            assert cli.main(["ab", *sides, *words, "--into", str(tmp_path / "ab")]) == 0
    finally:
        stop(server)
    rows = rows_of(tmp_path / "ab")
    assert rows["events_per_arrival"]["candidate"] > 4
    assert rows["requests_per_turn"]["baseline"] == 1
    assert rows["requests_per_turn"]["candidate"] == pytest.approx(1.5, abs=0.1)
    text = rows["changed_answer_digest"]
    assert text["agreed"] == text["compared"] == 16
    assert text["changed"] in (5, 6)  # each third one
    assert rows["changed_input_tokens"]["changed"] == 0


@pytest.mark.soak
@pytest.mark.usefixtures("forked_programs")
def test_a_router_that_keeps_sessions_is_told_from_one_that_does_not(tmp_path: Path) -> None:
    servers = [start("--prefill-tok-per-s", "5000", "--itl-ms", "5") for _ in "ab"]
    ports = [server.port for server in servers]
    pages = [word for server in servers for word in ("--metrics-url", f"{server.url}/metrics")]
    quick = [*QUICK[2:], "--set", "workload.think_time_s=0.3", "--duration", "6s", "--on-invalid", "warn"]
    try:
        with (
            contextlib.closing(RequestBalancer(ports)) as in_turn,
            contextlib.closing(RequestBalancer(ports, sticky="X-Session-ID")) as sticky,
        ):
            words = ["--preset", "router", "--pairs", "2", *pages, *quick, "--into", str(tmp_path / "ab")]
            assert cli.main(["ab", f"A={in_turn.url}", f"B={sticky.url}", *words]) == 0
    finally:
        for server in servers:
            stop(server)
    rows = rows_of(tmp_path / "ab")
    assert rows["misrouted"]["candidate"] == 0
    assert rows["misrouted"]["baseline"] > 0.2
    assert rows["hit_rate"]["candidate"] == pytest.approx(rows["stay_hit_rate"]["candidate"], abs=0.03)
    assert rows["hit_rate"]["baseline"] == pytest.approx(rows["in_turn_hit_rate"]["baseline"], abs=0.03)
    assert rows["no_reuse(hit_rate)"]["baseline"] == rows["no_reuse(hit_rate)"]["candidate"] == 0
    assert all(1 <= rows[f"{of}_max"][side] < 2 for of in ("requests", "tokens") for side in ("baseline", "candidate"))
    assert "estimated by their hits" in rows["note"]
