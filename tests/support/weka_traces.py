"""Generated traces in the shape of Weka's published files, with the times and prompts that they stand for."""

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from hypothesis import strategies as st

Clock = Literal["entry at start", "entry at result", "absolute"]
Row = dict[str, Any]
BLOCK = 64


@dataclass
class Truth:
    """Request as recorded. `at_s`: since the start of the session. `blocks`: identities, and tokens beyond them."""

    at_s: float
    tokens: int
    blocks: list[int]
    agent: bool


@dataclass
class Made:
    """Sessions as JSON objects, and their requests by number of output tokens, which no two requests share."""

    clock: Clock
    sessions: list[Row] = field(default_factory=list)
    truth: dict[int, Truth] = field(default_factory=dict)
    agents: int = 0
    scope: str = "local"


@st.composite
def weka_traces(draw: st.DrawFn) -> Made:
    """Sessions with nested sub-agents that run at the same time, on one of the three clocks."""
    made = Made(draw(st.sampled_from(("entry at start", "entry at result", "absolute"))))
    made.scope = draw(st.sampled_from(("local", "global")))
    whole = draw(st.booleans())  # identities of full blocks only
    for number in range(draw(st.integers(1, 3))):
        writer = _Writer(draw, made, whole, number if made.scope == "global" else 0)
        made.sessions.append(writer.session(number))
    return made


class _Writer:
    def __init__(self, draw: st.DrawFn, made: Made, whole: bool, first_id: int) -> None:
        self._draw, self._made, self._whole = draw, made, whole
        self._next_id = first_id * 100_000

    def session(self, number: int) -> Row:
        """Return a session. Keys that readers can do without are sometimes absent."""
        rows, _end_s = self._agent(0.0, 0.0, depth=0)
        session = {
            "id": self._draw(st.sampled_from((f"trace_{number:04}", "the same"))),
            "models": ["m"],
            "block_size": BLOCK,
            "hash_id_scope": self._made.scope,
            "tool_tokens": 128,
            "system_tokens": 30,
            "requests": rows,
            "totals": {"subagent_count": 0},
        }
        optional = ["models", "tool_tokens", "totals", "block_size", *(["id"] if number else [])]
        for key in self._draw(st.sets(st.sampled_from(optional))):
            del session[key]
        return session

    def _agent(self, begins_s: float, zero_s: float, depth: int) -> tuple[list[Row], float]:
        """Return an agent's rows from a time of the session on, and its end. `zero_s`: 0 of the agent's clock."""
        rows: list[Row] = []
        context = self._blocks(self._draw(st.integers(1, 3)))
        at_s = begins_s
        for number in range(self._draw(st.integers(1, 3))):
            if number and self._draw(st.booleans()) and depth < 3:
                groups = [self._sub_agent(at_s, zero_s, depth) for _ in range(self._draw(st.integers(1, 2)))]
                rows += sorted((row for row, _end_s in groups), key=lambda row: float(row["t"]))
                at_s = max(end_s for _row, end_s in groups) + 0.5
            row = self._request(at_s, zero_s, context, depth)
            rows.append(row)
            at_s += float(row["api_time"]) + 0.5
            context += self._blocks(self._draw(st.integers(0, 3)))
        return rows, at_s - 0.5

    def _sub_agent(self, at_s: float, zero_s: float, depth: int) -> tuple[Row, float]:
        clock = self._made.clock
        rows, end_s = self._agent(at_s, 0.0 if clock == "absolute" else at_s, depth + 1)
        self._made.agents += 1
        stamp_s = end_s if clock == "entry at result" else at_s
        row = {
            "t": stamp_s - zero_s,
            "type": "subagent",
            "agent_id": f"agent_{self._made.agents:03}",
            "subagent_type": self._draw(st.sampled_from(("Explore", None))),
            "duration_ms": round(1000 * (end_s - at_s)),
            "total_tokens": 1,
            "tool_use_count": 0,
            "status": "completed",
            "requests": rows,
            "models": ["small"],
        }
        return row, end_s

    def _request(self, at_s: float, zero_s: float, context: list[int], depth: int) -> Row:
        tail = self._draw(st.integers(0, BLOCK - 1))
        tokens = BLOCK * len(context) + tail
        ids = [*context, *([] if self._whole or not tail else self._blocks(1))]
        out = len(self._made.truth) + 1
        self._made.truth[out] = Truth(at_s, tokens, ids, agent=depth > 0)
        return {
            "t": at_s - zero_s,
            "type": self._draw(st.sampled_from(("n", "s", "?", "assistant"))),
            "model": "m",
            "in": tokens,
            "out": out,
            "hash_ids": ids,
            "input_types": self._draw(st.sampled_from((["text"], ["tool_result"], None))),
            "output_types": ["text", "tool_use"],
            "stop": "tool_use",
            "api_time": 3.0 + 0.25 * self._draw(st.integers(0, 40)),
            "ttft": 1.0,
        }

    def _blocks(self, count: int) -> list[int]:
        self._next_id += count
        return list(range(self._next_id - count + 1, self._next_id + 1))


PACKAGES = ("lines", "list", "pretty list", "pretty", "pretty one after the other", "folder", "folder of pretty files")


def write_trace(folder: Path, sessions: list[Row], package: str, compressed: bool, indent: int = 2) -> Path:
    """Write sessions as one file or a folder of files, and return its path."""
    for old in folder.glob("trace*"):
        for inner in old.iterdir() if old.is_dir() else ():
            inner.unlink()
        old.rmdir() if old.is_dir() else old.unlink()
    if package.startswith("folder"):
        path = folder / "trace"
        path.mkdir()
        (path / "README.md").write_text("not a trace")
        width = indent if "pretty" in package else None
        for number, session in enumerate(sessions):
            _write(path / f"trace_{number:04}.json", json.dumps(session, indent=width), compressed)
        return path
    path = folder / "trace.json"
    return _write(path, "".join(_packed(sessions, package, indent)), compressed)


def _packed(sessions: list[Row], package: str, indent: int) -> Iterator[str]:
    if package == "lines":
        yield from (json.dumps(session) + "\n" for session in sessions)
    elif package == "list":
        yield json.dumps(sessions)
    elif package == "pretty list":
        yield json.dumps(sessions, indent=indent)
    else:
        yield from (json.dumps(session, indent=indent) + "\n" for session in sessions)


def _write(path: Path, text: str, compressed: bool) -> Path:
    if not compressed:
        path.write_text(text)
        return path
    packed = path.with_name(path.name + ".gz")
    packed.write_bytes(gzip.compress(text.encode()))
    return packed
