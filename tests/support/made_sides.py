"""Sides of comparisons with made figures."""

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from inferload.analysis.comparison.compare import Comparison, compare
from inferload.analysis.comparison.sides import NAMES, Run, Side
from inferload.analysis.data.figures import ALL, figure

PRIMARY = figure("mean(ttft_ms)")


def made_run(seed: int, figures: Mapping[str, float | None], of: str = "", **fields: Any) -> Run:
    """Return a valid run of the side `of` on a server start of its own; figures that are not given are unknown."""
    given = {
        "path": Path(of),
        "label": f"{seed:03}",
        "start": f"{of} {seed}",
        "level": "valid",
        "server": {"engine": "vllm 0.32.0"},
        "output_tokens": 50.0,
        "input_tokens": 100.0,
        "ok_and_sent": (100, 100),
    }
    return Run(seed=seed, figures={**dict.fromkeys(NAMES), **figures}, **(given | fields))


def noisy(label: str, figures: Mapping[str, float], jitter: float = 0.01, pairs: int = 8, **fields: Any) -> Side:
    """Return runs with a factor of their schedule, and a smaller one of each figure; rates fall where times rise."""
    dice = random.Random(label)
    runs = []
    for seed in range(pairs):
        common = random.Random(seed).gauss(0, 0.1)
        values = {
            name: value * 2.718 ** ((common if "_ms" in name else -common) + dice.gauss(0, jitter))
            for name, value in figures.items()
        }
        runs.append(made_run(seed, values, label, **fields))
    return Side(label, tuple(runs))


def having(
    side: Side, figures: Mapping[str, float | None] | None = None, at: Collection[int] = range(99), **fields: Any
) -> Side:
    """Return the side with these figures and fields of its runs at these positions."""
    new = [replace(run, figures={**run.figures, **(figures or {})}, **fields) for run in side.runs]
    return replace(side, runs=tuple(new[i] if i in at else run for i, run in enumerate(side.runs)))


def first(side: Side, count: int) -> Side:
    return replace(side, runs=side.runs[:count])


def compared(baseline: Side, candidate: Side, *allowed: str) -> Comparison:
    return compare(baseline, candidate, PRIMARY, ALL, allowed)


def with_first(sides: Sequence[Side]) -> list[Comparison]:
    """Compare each further side with the first one."""
    return [compared(sides[0], candidate) for candidate in sides[1:]]


def timed(seed: int, ttft_ms: float, start: str) -> Run:
    """Return a run of a chat with figures that follow from its TTFT; its turns not served are unknown."""
    figures = {PRIMARY.name: ttft_ms, "turns_per_s": 1000 / ttft_ms, "mean(e2e_ms)": ttft_ms + 500}
    chat = {"workload.kind": "chat"}
    return made_run(seed, figures, label=f"run-{seed}", start=start, settings=chat, ok_and_sent=None)


def measured(label: str, *ttft_ms: float) -> Side:
    """Return a side with a run for each TTFT, with the seeds from 0 on."""
    return Side(label, tuple(timed(seed, value, f"{label}{seed}") for seed, value in enumerate(ttft_ms)))


def of_seeds(label: str, *seeds: int) -> Side:
    return Side(label, tuple(timed(seed, 110.0 + seed, f"{label}{seed}") for seed in seeds))


def sides(change: float, pairs: int, jitter: float = 0.02, seed: int = 1) -> tuple[Side, Side]:
    """Return pairs with a common random factor of their schedule, and a smaller one of each run."""
    dice = random.Random(seed)
    before, after = [], []
    for pair in range(pairs):
        common = dice.gauss(0, 0.3)
        for of, runs, factor in (("base", before, 1.0), ("new", after, 1.0 + change)):
            runs.append(timed(pair, 100 * factor * 2.718 ** (common + dice.gauss(0, jitter)), f"{of}{pair}"))
    return Side("base", tuple(before)), Side("new", tuple(reversed(after)))
