"""Bundled scenarios: plans in words, and runs on the simulator in `make soak`."""

import json
from pathlib import Path

import locust_process
import pytest
import simulator_process

from inferload.cli import main
from inferload.plan import describe
from inferload.scenario.files import catalog

CODE = {"agent-live"}  # its requests are determined during the run
TWELVE = {
    *("smoke", "chat", "chat-open", "chat-sharegpt", "rag", "agent-static", "agent-dynamic", "agent-tools"),
    *("agent-subagents", "random-7000x1000", "replay-mooncake", "mixed"),
}
NAMES = sorted(catalog.names())


@pytest.fixture
def beside_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Working directory with a small file in ShareGPT format, under the file name in the scenario."""
    messages = [
        {"from": who, "value": f"{who} says something, and then some more of it."} for who in ("human", "gpt") * 2
    ]
    talks = [{"id": f"c{number}", "conversations": messages} for number in range(40)]
    (tmp_path / "ShareGPT_V3_unfiltered_cleaned_split.json").write_text(json.dumps(talks))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def test_the_documented_scenarios_are_bundled() -> None:
    assert set(NAMES) >= TWELVE


@pytest.mark.usefixtures("beside_data")
@pytest.mark.parametrize("name", NAMES)
def test_each_scenario_has_a_plan(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(describe, "SAMPLE", 3)
    assert main(["plan", name]) == 0
    lines = capsys.readouterr().out.splitlines()
    sections = {line[:10].strip() for line in lines} - {""}
    expected = {"scenario", "arrivals", "session", "phases", "slo", "gates"}
    assert sections >= (expected if name in CODE else expected | {"request", "load", "numbers", "cache"})
    assert lines[0].startswith(f"scenario  {name}, seed 0")


@pytest.mark.soak
@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", NAMES)
def test_each_scenario_runs_on_the_simulator(name: str, beside_data: Path) -> None:
    simulator = simulator_process.start("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
    run_dir = beside_data / "run"
    words = [
        "--headless",
        "--scenario",
        name,
        "--host",
        simulator.url,
        "--run-dir",
        str(run_dir),
        "--on-invalid",
        "warn",
    ]
    process = locust_process.start(*words, "-t", "15s", cwd=beside_data)
    try:
        code = process.exit_code(360)
    finally:
        process.kill()
        simulator_process.stop(simulator)
    assert code in (0, 1), process.text  # a gate on latency may fail on a busy machine
    turns = locust_process.summary_of(run_dir)["turns"]["by_phase"]["all"]
    assert turns["sent"] > 0
    assert (turns["failed"], turns["unfinished"]) == (0, 0), process.text
    assert (run_dir / "report.html").stat().st_size > 100_000
    assert f"# {name} " in (run_dir / "report.md").read_text()


@pytest.mark.parametrize("name", NAMES)
def test_each_scenario_has_a_description(name: str) -> None:
    sentence = catalog.description(name)
    assert sentence.endswith(".")
    assert 20 < len(sentence) < 300
    assert "\n" not in sentence


def test_other_files_have_no_description() -> None:
    assert catalog.description("/etc/passwd") == catalog.description("no-such") == ""
