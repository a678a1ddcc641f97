"""A rehearsal is the run: bundled scenarios, cut to seconds, have equal turns on the real and on the virtual clock."""

import json
import re
from collections import defaultdict
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import virtual
from e2e_runs import FinishedRun, RunCase, RunPool, Sandbox, mostly_idle, run_cases
from paths import ROOT

from inferload.scenario.scenario import load

PACE = ("--ttft-ms", "20", "--itl-ms", "5", "--num-gpu-blocks", "40000", "--max-model-len", "140000")
TOOLS = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
SHARGEPT = {"chat-sharegpt"}  # its data are a download
BUNDLED = sorted({path.stem for path in (ROOT / "scenarios").glob("*.yaml")} - SHARGEPT)
README = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[1]  # type: ignore[index]

# Changes by which a run takes seconds. Cancelled answers, of a length that depends on time, are left out.
PAUSES = {"think_time_s", "idle_s", "time_s", "again_s"}
SESSIONS = 3


def cut(value: Any) -> Any:
    """Return a part of a scenario with short pauses and answers."""
    if isinstance(value, list):
        return [cut(each) for each in value]
    if not isinstance(value, dict):
        return value
    changed = {key: cut(each) for key, each in value.items() if key != "cancel"}
    for key, each in changed.items():
        if key in PAUSES:
            changed[key] = 0.05
        elif key == "output_tokens" and "agent" not in changed:
            changed[key] = shorter(each)
        elif key in ("steps", "requests") and isinstance(each, dict):
            changed[key] = {"dist": "uniform", "min": 1, "max": 3}
    return changed


def shorter(length: Any) -> Any:
    """Return a tenth of a number of tokens, or of its distribution."""
    if isinstance(length, dict):
        return {key: shorter(each) for key, each in length.items()}
    return max(1, length // 10) if isinstance(length, int) else length


def document(name: str) -> dict[str, Any]:
    """Return a bundled scenario that takes seconds."""
    data = load(name).as_data()
    workload = cut(data["workload"])
    arrivals = {"kind": "constant", "sessions_per_s": 2}
    if data["arrivals"]["kind"] == "closed":
        arrivals = {"kind": "closed", "users": 2, "spawn_per_s": 1}
    elif data["arrivals"]["kind"] == "trace":
        workload |= {"window": {"from_s": 0, "to_s": 4}}
        arrivals = {"kind": "trace", "speed": 1}
    if workload["kind"] == "replay":
        workload |= {"path": str(ROOT / "scenarios" / workload["path"])}
        if workload["pacing"] == "pauses":
            workload |= {"max_pause_s": 0.05, "start": None}
    if (
        name == "agent-live"
    ):  # the simulator's answers, and with them the tools that are called, follow from the prompts
        data = data | {"cache": {"isolate": "none"}}
        workload |= {"max_steps": 2}
    phases = {"measure_s": None} if arrivals["kind"] == "trace" else {"sessions": SESSIONS}
    return data | {"workload": workload, "arrivals": arrivals, "phases": {**phases, "warmup_s": 0, "drain_s": 30}}


Both = tuple[FinishedRun, virtual.VirtualRun]


@mostly_idle
def both(sandbox: Sandbox, name: str) -> Both:
    """Make a run on each clock."""
    simulator = (*PACE, *(TOOLS if name == "agent-live" else ()))
    words, file, locustfile = ["--no-report"], None, None
    if name == "README":
        locustfile = sandbox.folder / "support.py"
        locustfile.write_text(README)
        words += ["-u", "2", "-r", "2", "-t", "6s"]
    else:
        file = sandbox.folder / "scenario.yaml"
        file.write_text(json.dumps(document(name)))
    server = sandbox.simulator(*simulator, paced=False)
    chosen = [] if file is None else ["--scenario", str(file)]
    fleet = sandbox.fleet(
        "local", "--host", server.url, "--metrics-url", "none", *words, *chosen, locustfile=locustfile
    )
    real = FinishedRun(sandbox.run_dir, fleet.exit_code(), fleet.text, seen=server.stats())
    options = {"simulator": " ".join(simulator), "locustfile": locustfile}
    return real, virtual.run(sandbox.folder / "virtual", file, "--metrics-url", "none", *words, **options)


def kind(name: str) -> tuple[Any, ...]:
    """Return what scenarios differ in by more than numbers."""
    given = document(name)
    workload, arrivals = given["workload"], given["arrivals"]
    parts = workload.get("source", {}).get("kind"), bool(workload.get("subagents"))
    return given["request"]["endpoint"], workload["kind"], arrivals["kind"], *parts


def pairs(name: str) -> set[Any]:
    """Return each two of what scenarios differ in, such as a workload with its arrivals."""
    return set(combinations(enumerate(kind(name)), 2))


def fewest(names: list[str]) -> list[str]:
    """Return names whose scenarios have all pairs of these; the others run in `make soak`."""
    kept = list(names)
    for name in reversed(names):
        others = [each for each in kept if each != name]
        if pairs(name) <= set().union(*map(pairs, others)):
            kept = others
    return kept


FEWEST = fewest(BUNDLED)
every = run_cases(
    both, *((name,) for name in FEWEST), ("README",), soak=[(name,) for name in BUNDLED if name not in FEWEST]
)


def rows_of(run: FinishedRun) -> list[dict[str, Any]]:
    """Return the turns; of live agents the first of each session, since later prompts may tell the time."""
    return [row for row in run.turns if row["class"] != "live_agent" or row["turn_index"] == 0]


def tokens(run: FinishedRun) -> dict[str, tuple[Any, ...]]:
    """Return the tokens of each turn, by its name."""
    keys = ("class", "input_tokens", "output_tokens", "max_tokens", "finish_reason", "pause", "final", "failure")
    return {row["turn_id"]: tuple(row[key] for key in keys) for row in rows_of(run)}


def cached(run: FinishedRun) -> dict[Any, list[int]]:
    """Return the cached tokens of turns. Sub-agents that begin together may reach the server in either order."""
    found = defaultdict(list)
    for row in rows_of(run):
        session, *_ = row["session_id"].split("/")
        found[session, row["turn_index"], session == row["session_id"]].append(row["cached_tokens"])
    return {key: sorted(values) for key, values in found.items()}


@every
def test_turns_and_tokens_of_both_clocks_are_equal(run_pool: RunPool, run_case: RunCase) -> None:
    real, rehearsed = run_pool.result(run_case)
    assert real.turns, real.text
    assert rehearsed.turns, rehearsed.text
    if run_case.arguments == ("README",):  # its waits are drawn anew: another number of turns
        assert set(tokens(real).values()) == set(tokens(rehearsed).values())
        return
    assert tokens(real) == tokens(rehearsed)
    assert cached(real) == cached(rehearsed)
    assert real.summary["sessions"]["planned"] == rehearsed.summary["sessions"]["planned"]


def ttft_ms(run: FinishedRun) -> float:
    """Return the shortest TTFT, of short prompts: the simulator takes real time to read long ones."""
    short = [row for row in rows_of(run) if row["input_tokens"] < 500]
    return min((row["first_ns"] - row["sent_ns"] for row in short), default=0) / 1e6


def streams_ms(run: FinishedRun) -> dict[str, float]:
    """Return the time from the first to the last event of each turn."""
    return {row["turn_id"]: (row["last_ns"] - row["first_ns"]) / 1e6 for row in rows_of(run)}


@pytest.mark.soak
@every
def test_latencies_of_both_clocks_are_equal(run_pool: RunPool, run_case: RunCase) -> None:
    """Within 1 ms, and the time by which the simulator's process itself was late."""
    real, rehearsed = run_pool.result(run_case)
    assert real.summary["latency"]["itl_ms"]["p50"] == pytest.approx(
        rehearsed.summary["latency"]["itl_ms"]["p50"], abs=1
    )
    late_ms = real.seen["lateness_ms"]["max"]
    assert -1 <= ttft_ms(real) - ttft_ms(rehearsed) <= 1 + late_ms
    real_ms, rehearsed_ms = streams_ms(real), streams_ms(rehearsed)
    shared = real_ms.keys() & rehearsed_ms.keys()
    assert median(abs(real_ms[turn] - rehearsed_ms[turn]) for turn in shared) <= 1 + late_ms


def test_the_scenarios_that_are_left_out_need_a_download() -> None:
    for name in SHARGEPT:
        assert not (ROOT / "scenarios" / Path(load(name).as_data()["workload"]["source"]["path"])).exists()
