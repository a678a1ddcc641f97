"""Bundled scenarios: plans in words, and runs on the simulator in `make soak`."""

import json
import re
from pathlib import Path

import locust_process
import pytest
import simulator_process
from paths import ROOT

from inferload.cli import main
from inferload.scenario.files import catalog
from inferload.workload.plan import describe

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
    assert lines[0].startswith(f"scenario  {name}, seed {42 if name == 'agentx' else 0}")


def expected_hits(name: str, changes: dict[str, str], folder: Path, capsys: pytest.CaptureFixture[str]) -> float:
    """Return the share of the input tokens that `inferload plan` expects to hit, in percent."""
    text = catalog.read(catalog.bundled(name))
    for old, new in changes.items():
        text = text.replace(old, new)
    file = folder / "scenario.yaml"
    file.write_text(text)
    assert main(["plan", str(file)]) == 0
    found = re.search(r"expected hits: ([\d.]+) % of the input tokens", capsys.readouterr().out)
    assert found is not None
    return float(found[1])


def test_the_hits_on_the_page_of_agents_are_those_of_the_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "docs" / "how-to" / "agents.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) tokens \([GC]PU\) \|(.*)\|$", page, re.MULTILINE)
    end = {"where: start": "where: end"}
    columns = [("agent-static", {}), ("agent-dynamic", {}), ("agent-dynamic", end)]
    columns += [("agent-short-static", {}), ("agent-short-dynamic", {})]
    assert [size for size, _ in rows] == ["16", "128"]
    for size, cells in rows:
        block = {"isolate: run": f"isolate: run\n  block_size: {size}", "{isolate: run}": f"{{block_size: {size}}}"}
        for (name, changes), cell in zip(columns, cells.split("|"), strict=True):
            inline = "{isolate: run}" in catalog.read(catalog.bundled(name))
            key = "{isolate: run}" if inline else "isolate: run"
            hits = expected_hits(name, {**changes, key: block[key]}, tmp_path, capsys)
            assert float(cell.strip().removesuffix(" %")) == pytest.approx(hits, abs=0.051), (name, size)


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
