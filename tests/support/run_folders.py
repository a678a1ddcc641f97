"""Run folders with a manifest and a summary, for comparisons."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import summaries

SCENARIO = (
    "schema: 1\nname: {name}\nseed: {seed}\nworkload: {{kind: chat, prompt_tokens: {prompt}, output_tokens: 50}}\n"
)


def write_run(folder: Path, seed: int, ttft_ms: float, prompt: int = 20, name: str = "s") -> Path:
    folder.mkdir(parents=True)
    text = SCENARIO.format(name=name, seed=seed, prompt=prompt)
    manifest = {
        "scenario": {"name": name, "text": text},
        "seed": seed,
        "started_at": f"2026-01-0{seed}",
        "engine": "vllm",
    }
    measured = {"ok": 10, "output_tokens": 500, "output_tokens_from": 10, "input_tokens": 200, "input_tokens_from": 10}
    turns = summaries.NO_TURNS | {"sent": 10, "ok": 10, "by_phase": {"measure": summaries.NO_TURNS | measured}}
    summary = {
        "outcome": {"state": "passed", "headline": "passed", "exit_code": 0},
        "verdict": {"measurement": "valid", "reasons": []},
        "turns": turns,
        "sessions": {"planned": 10, "dropped": 0},
        "rates": {
            "turns_per_s": 2.0,
            "output_tok_per_s": 100.0,
            "input_tok_per_s": 40.0,
            "total_tok_per_s": 140.0,
            "failed_ratio": 0.0,
        },
        "latency": {"ttft_ms": {"count": 10, "mean": ttft_ms}},
        "client": {},
    }
    (folder / "run.json").write_text(json.dumps(manifest))
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


@contextmanager
def edited(file: Path) -> Iterator[dict[str, Any]]:
    """Change the document of a JSON file in the block."""
    document = json.loads(file.read_text())
    yield document
    file.write_text(json.dumps(document))


def write_runs(folder: Path, *ttft_ms: float) -> Path:
    """Write a run for each TTFT, with the seeds from 1 on."""
    for seed, value in enumerate(ttft_ms, 1):
        write_run(folder / str(seed), seed, value)
    return folder
