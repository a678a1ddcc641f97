"""Runs on a virtual clock of recorded conversations, of lines of a batch, and of synthetic requests."""

import json
import re
from math import ceil
from pathlib import Path
from typing import Any

import pytest
import virtual
from data_files import talks
from e2e_runs import scenario

from inferload.scenario.scenario import from_text, load
from inferload.workload.content.data import DataContext, DataFindings
from inferload.workload.content.script import outline
from inferload.workload.sessions import Sessions


def executed(folder: Path, file: Path, **server: Any) -> virtual.VirtualRun:
    run = virtual.run(folder, file, env={"XDG_CACHE_HOME": str(folder / "cache")}, **server)
    assert run.code == 0, run.text
    run.check_counts()
    return run


def lines(path: Path, documents: list[dict[str, Any]]) -> str:
    """Write lines of JSON; return the name of the file."""
    path.write_text("".join(json.dumps(document) + "\n" for document in documents))
    return path.name


def turns_by_session(run: virtual.VirtualRun) -> dict[int, list[dict[str, Any]]]:
    sessions: dict[int, list[dict[str, Any]]] = {}
    for row in sorted(run.turns, key=lambda row: row["turn_index"]):
        sessions.setdefault(int(row["session_id"].removeprefix("s")), []).append(row)
    return sessions


def test_recorded_conversations_are_sent(tmp_path: Path) -> None:
    source = {"kind": "sharegpt", "path": talks(tmp_path / "talks.json").name, "chars_per_token": 4}
    workload = {"kind": "chat", "source": source, "history": "recorded"}
    run = executed(tmp_path, scenario(tmp_path, workload=workload, phases__measure_s=1))
    found = run.manifest["workload"]["data"]["chat"]["source"]
    assert found["sessions"] == found["used"] == 40
    assert found["skipped"] == {"one side only": 1}
    assert found["tokens"] == {"how": "given", "chars_per_token": 4.0, "error": None}
    sessions = Sessions(
        from_text(run.manifest["scenario"]["text"], "run.json"), DataContext(str(tmp_path / "scenario.yaml"))
    )
    for index, rows in turns_by_session(run).items():
        plan = list(outline(sessions.begin(index).script, index))
        assert [row["max_tokens"] for row in rows] == [turn.ask.output_tokens for turn in plan[: len(rows)]]
        assert [row["output_tokens"] for row in rows] == [row["max_tokens"] for row in rows]


def test_turns_left_out_of_a_file_are_reported(tmp_path: Path) -> None:
    prompts = [{"prompt": "Hi", "output_tokens": 2}, {"prompt": "Hello"}, {"prompt": "Hey", "answer": "Yes."}]
    source = {"kind": "jsonl", "path": lines(tmp_path / "p.jsonl", prompts)}
    workload = {"kind": "chat", "source": source}
    run = executed(tmp_path, scenario(tmp_path, workload=workload, phases={"sessions": 2, "drain_s": 60}))
    assert "p.jsonl:2: first of 1 turn left out: no answer and no output_tokens" in run.text
    assert run.manifest["workload"]["data"]["chat"]["source"]["filtered"] == {"without a known answer length": 1}
    assert len(run.turns) == 2


def test_the_lines_of_a_batch_are_sent_with_their_limits(tmp_path: Path) -> None:
    def body(number: int) -> dict[str, Any]:
        question = [{"type": "text", "text": f"Question {number}"}]
        messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": question}]
        return {"model": "any", "max_tokens": 3 + number, "messages": messages}

    requests = [
        {"custom_id": f"r-{number}", "method": "POST", "url": "/v1/chat/completions", "body": body(number)}
        for number in range(4)
    ]
    source = {"kind": "jsonl", "path": lines(tmp_path / "batch.jsonl", requests), "shuffle": False}
    phases = {"sessions": 8, "drain_s": 60}
    file = scenario(tmp_path, workload={"kind": "chat", "source": source}, phases=phases, request={"ignore_eos": True})
    run = executed(tmp_path, file)
    assert sorted(row["output_tokens"] for row in run.turns) == [3, 3, 4, 4, 5, 5, 6, 6]
    assert run.manifest["workload"]["data"]["chat"]["source"]["sessions"] == 4


def test_the_bundled_rag_scenario_until_the_context_is_full(tmp_path: Path) -> None:
    """Token counts are calibrated on the server, truncations counted, and all turns of a session carry its affinity header."""
    changes = {
        "workload.turns": 4,
        "workload.think_time_s": 0,
        "workload.output_tokens": 6,
        "workload.documents.tokens": 150,
        "workload.context.limit_tokens": 600,
        "arrivals": {"kind": "closed", "users": 3, "spawn_per_s": 50},
        "phases": {"warmup_s": 0, "measure_s": 2, "drain_s": 60},
        "request.affinity_header": "X-Session-ID",
        "gates": [],
    }
    file = tmp_path / "rag.yaml"
    file.write_text(load("rag").changed(changes).resolved_text())
    run = executed(tmp_path, file, script="")
    check_calibrated(run)
    check_affinity(run)


def check_calibrated(run: virtual.VirtualRun) -> None:
    block = run.manifest["workload"]
    tokens = block["data"]["chat"]["source"]["tokens"]
    assert tokens["how"] == "measured"
    assert block["notes"]["context truncated"] > 0
    context = DataContext(by_class={"chat": DataFindings(None, tokens["chars_per_token"], tokens["error"])})
    sessions = Sessions(from_text(run.manifest["scenario"]["text"], "run.json"), context)
    planned, counted = 0, 0
    for index, rows in turns_by_session(run).items():
        (first,) = outline(sessions.begin(index).script, index, most=1)
        planned += first.input_tokens or 0
        counted += rows[0]["input_tokens"]
    assert counted == pytest.approx(planned, rel=0.15)  # estimated, and the chat template adds tokens


def check_affinity(run: virtual.VirtualRun) -> None:
    requests = [request for request in run.requests if request.startswith("POST /v1/chat/completions")]
    found = [re.search(r"\r\nX-Session-ID: (\S+)\r\n", request) for request in requests]
    names = [match[1] for match in found if match]
    before = [name for name in names if name.startswith("preflight-")]  # sessions of their own
    assert len(set(before)) == len(before) == run.manifest["targets"][0]["before_load"]["requests"]
    assert len(names) == len(requests) == len(run.turns) + len(before)
    sessions = turns_by_session(run)
    assert all(names.count(f"{run.manifest['id']}-s{index}") == len(rows) for index, rows in sessions.items())
    assert len(run.turns) > len(sessions)


def test_random_requests_have_exactly_the_planned_lengths(tmp_path: Path) -> None:
    changes = {
        "workload.source.input_tokens": 700,
        "workload.source.output_tokens": 10,
        "workload.source.prefix_tokens": 50,
        "phases": {"warmup_s": 0, "measure_s": 1, "drain_s": 60},
    }
    file = tmp_path / "random.yaml"
    file.write_text(load("random-7000x1000").changed(changes).resolved_text())
    run = executed(tmp_path, file)
    sessions = Sessions(from_text(run.manifest["scenario"]["text"], "run.json"))
    template_tokens = set()
    for index, (row, *rest) in turns_by_session(run).items():
        (turn,) = outline(sessions.begin(index).script, index)
        assert rest == []
        assert row["output_tokens"] == turn.ask.output_tokens
        assert 50 + 630 <= (turn.input_tokens or 0) <= 50 + ceil(700 * 1.1)
        template_tokens.add(row["input_tokens"] - turn.input_tokens)
    assert len(template_tokens) == 1
