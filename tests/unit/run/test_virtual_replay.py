"""A run of a folder of compressed traces of coding agents: its turns, sub-agents, tokens and cached prefixes are those recorded."""

from pathlib import Path
from typing import Any

import virtual
from e2e_runs import scenario
from weka_traces import BLOCK, write_trace

CONTEXTS = {"": range(1, 9), "agent_001": range(20, 24), "agent_002": range(30, 33)}


def request(t: float, agent: str, blocks: int, rest: int, out: int) -> dict[str, Any]:
    """A request with the first blocks of the agent's context, and tokens that are no full block."""
    ids = list(CONTEXTS[agent])[:blocks]
    row = {"t": t, "type": "n", "model": "m", "in": BLOCK * blocks + rest, "out": out, "hash_ids": ids}
    return row | {"input_types": ["tool_result" if t else "text"], "api_time": 2.0, "think_time": 0.0}


def sub_agent(t: float, agent: str, *rows: dict[str, Any]) -> dict[str, Any]:
    """A sub-agent whose entry has the time of its result."""
    duration_s = rows[-1]["t"] + 2.5
    entry = {"t": t, "type": "subagent", "agent_id": agent, "duration_ms": 1000 * duration_s, "status": "completed"}
    return entry | {"requests": list(rows)}


def session(number: int) -> dict[str, Any]:
    """Two sub-agents begin at 2.5 s; the main agent goes on at 20 s, and after a long idle gap at 500 s."""
    first = sub_agent(11, "agent_001", *(request(3 * step, "agent_001", 2 + step, 9, 6) for step in range(3)))
    second = sub_agent(17, "agent_002", request(0, "agent_002", 2, 30, 5), request(12, "agent_002", 3, 1, 5))
    rows = [request(0, "", 3, 20, 4), first, second, request(20, "", 5, 0, 7), request(500, "", 8, 63, 8)]
    return {"id": f"trace_{number:04}", "block_size": BLOCK, "hash_id_scope": "local", "requests": rows}


def test_agents_are_replayed_as_recorded(tmp_path: Path) -> None:
    path = write_trace(tmp_path, [session(0), session(1)], "folder of pretty files", compressed=True)
    workload = {"kind": "replay", "path": str(path), "format": "weka", "speed": 20, "max_idle_s": 10}
    phases = {"warmup_s": 0, "sessions": 2, "drain_s": 60}
    run = virtual.run(tmp_path, scenario(tmp_path, workload=workload, phases=phases, arrivals__users=2))
    assert run.code == 0, run.text
    run.check_counts()
    by_agent: dict[str, list[dict[str, Any]]] = {}
    for row in sorted(run.turns, key=lambda row: row["sent_ns"]):
        by_agent.setdefault(row["session_id"], []).append(row)
    assert {name: len(rows) for name, rows in by_agent.items()} == {
        f"s{number}{agent}": turns
        for number in range(2)
        for agent, turns in (("", 3), ("/1-agent_001", 3), ("/2-agent_002", 2))
    }
    for number in range(2):
        main, first, second = (by_agent[f"s{number}{agent}"] for agent in ("", "/1-agent_001", "/2-agent_002"))
        assert [row["output_tokens"] for row in main + first + second] == [4, 7, 8, 6, 6, 6, 5, 5]
        assert max(first[-1]["closed_ns"], second[-1]["closed_ns"]) <= main[1]["sent_ns"]
        assert main[0]["closed_ns"] <= min(first[0]["sent_ns"], second[0]["sent_ns"])
        began_ns = main[0]["planned_ns"]
        for row, due_s in zip(main + first + second, (0, 20, 32, 2.5, 5.5, 8.5, 2.5, 14.5), strict=True):
            assert (row["planned_ns"] - began_ns) / 1e9 >= due_s / 20 - 1e-8
    # Later prompts share full blocks with the one before: 3 and 5 of the main agent, 2 and 3, and 2 of the sub-agents.
    assert sum(row["cached_tokens"] for row in run.turns) == 2 * BLOCK * (3 + 5 + 2 + 3 + 2)
    planned = run.manifest["workload"]
    assert planned["data"]["replay"]["files"] == 2
    assert planned["notes"]["idle gaps cut to max_idle_s"] == 2
