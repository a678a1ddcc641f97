"""Generated corpora of coding agents in the published form: blocks of 64 tokens, hash_id_scope local, times of a session."""

import json
from pathlib import Path
from random import Random
from typing import Any

BLOCK = 64
Row = dict[str, Any]


def corpus(path: Path, trajectories: int, turns: int = 8) -> Path:
    """Write a corpus, a trajectory a line. Each third one has a sub-agent; pauses are 1 to 40 s, each ninth one 15 minutes."""
    lines = [json.dumps(trajectory(number, turns, Random(f"0/{number}"))) for number in range(trajectories)]
    path.write_text("\n".join(lines) + "\n")
    return path


def trajectory(number: int, turns: int, rng: Random) -> Row:
    """Return a trajectory of `turns` turns of the main agent, whose prompts grow by whole blocks."""
    rows: list[Row] = []
    at_s, ids = 0.0, list(range(1, rng.randint(3, 6)))
    for turn in range(turns):
        rows.append(_request(at_s, ids, rng))
        if number % 3 == 0 and turn == turns // 2:
            rows.append(_sub_agent(at_s + rows[-1]["api_time"] + 0.5, 1000, rng))
            at_s += 20
        at_s += rows[0]["api_time"] + (900 if turn % 9 == 8 else rng.uniform(1, 40))
        ids = [*ids, *range(ids[-1] + 1, ids[-1] + rng.randint(1, 4) + 1)]
    head = {"id": f"trace_{number:04}", "models": ["m"], "block_size": BLOCK, "hash_id_scope": "local"}
    return head | {"tool_tokens": 64, "system_tokens": 64, "requests": rows}


def _request(at_s: float, ids: list[int], rng: Random) -> Row:
    row = {"t": round(at_s, 3), "type": "n", "model": "m", "in": BLOCK * len(ids), "out": rng.randint(4, 12)}
    return row | {"hash_ids": list(ids), "api_time": 1.0, "input_types": ["tool_result" if at_s else "text"]}


def _sub_agent(at_s: float, first: int, rng: Random) -> Row:
    rows = [_request(at_s + 4 * turn, list(range(first, first + 3 + turn)), rng) for turn in range(3)]
    entry = {"t": round(at_s, 3), "type": "subagent", "agent_id": "agent_001", "duration_ms": 9000}
    return entry | {"status": "completed", "requests": rows}
