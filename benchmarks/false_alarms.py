"""`make bench-compare`: false alarms and power of `inferload compare` on recorded runs of the simulator.

Each seed is recorded twice on one configuration (A and again A) and once on servers that are 10 % slower, each run on its own
server start. An A/A comparison draws seeds, and for each of them which of the two equal runs is the baseline: nothing differs,
so that each answer other than "no difference found" is a false alarm. Of the turns none or 1 % fail. The limits are those of
docs/how-to/compare.md.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from random import Random

import numpy as np
from inferload.analysis.comparison.compare import Comparison, compare
from inferload.analysis.comparison.read_sides import read_run
from inferload.analysis.comparison.sides import Run, Side
from inferload.analysis.data.figures import ALL, DEFAULT_PRIMARY, figure

from benchmarks.machine import load_average, machine
from inferload.campaign.calibrate import serving
from inferload.figures.rate_figures import TURNS
from inferload.results.open_run import OpenRun

AA_COMPARISONS, CHANGED_COMPARISONS = 800, 60
MOST_FALSE_ALARMS, MOST_REGRESSIONS, LEAST_FOUND = 0.05, 0.03, 57 / 60
CHANGE = 0.10
FAILED_SHARES = (0.0, 0.01)  # of the turns of both sides
_TTFT_MS, _ITL_MS = 60.0, 6.0
_MEASURE_S = 8
_SERVER = ("--prefill-tok-per-s", "10000", "--jitter", "0.3", "--max-num-seqs", "4", "--num-gpu-blocks", "4000")
_SCENARIO = {
    "schema": 1,
    "name": "false-alarms",
    "workload": {
        "kind": "chat",
        "turns": 2,
        "think_time_s": 0.1,
        "prompt_tokens": {"dist": "uniform", "min": 20, "max": 200},
        "output_tokens": {"dist": "uniform", "min": 5, "max": 40},
    },
    "arrivals": {"kind": "poisson", "sessions_per_s": 6},
    "phases": {"warmup_s": 1, "measure_s": _MEASURE_S, "drain_s": 20},
}


@dataclass(frozen=True, slots=True)
class Shares:
    """Shares of comparisons: primary figure called better or worse, and any figure called worse (exit code 4)."""

    called: float
    regressed: float


def shares(comparisons: Sequence[Comparison]) -> Shares:
    called = sum(comparison.primary.answer in ("better", "worse") for comparison in comparisons)
    return Shares(called / len(comparisons), sum(one.regressed for one in comparisons) / len(comparisons))


def equal_sides(recorded: Mapping[str, Sequence[Run]], pairs: int, dice: Random) -> tuple[Side, Side]:
    """Draw pairs of equal runs, and which of each pair is the baseline."""
    seeds = dice.sample(range(len(recorded["a"])), pairs)
    drawn = [dice.sample((recorded["a"][at], recorded["again"][at]), 2) for at in seeds]
    return Side("a", tuple(pair[0] for pair in drawn)), Side("again", tuple(pair[1] for pair in drawn))


def changed_sides(recorded: Mapping[str, Sequence[Run]], pairs: int, dice: Random) -> tuple[Side, Side]:
    """Draw pairs of a run and one on a slower server."""
    seeds = dice.sample(range(len(recorded["a"])), pairs)
    before = tuple(recorded[dice.choice(("a", "again"))][at] for at in seeds)
    return Side("a", before), Side("slower", tuple(recorded["slower"][at] for at in seeds))


def with_failed_turns(recorded: Mapping[str, Sequence[Run]], share: float) -> dict[str, list[Run]]:
    """Return the runs with failed turns: each planned one fails with this probability."""
    dice, failing = np.random.default_rng(0), {}
    for kind, runs in recorded.items():
        planned = [round((run.value(TURNS.key) or 0.0) * _MEASURE_S) for run in runs]
        failing[kind] = [
            replace(run, ok_and_sent=(turns - int(dice.binomial(turns, share)), turns))
            for run, turns in zip(runs, planned, strict=True)
        ]
    return failing


def measured(recorded: Mapping[str, Sequence[Run]], pairs: int, failed: float = 0.0) -> tuple[Shares, Shares]:
    """Return the shares of A/A comparisons, and of comparisons with a true change. `failed`: share of the turns of all runs."""
    dice, primary = Random(0), figure(DEFAULT_PRIMARY)
    recorded = with_failed_turns(recorded, failed)
    draws = ((equal_sides, AA_COMPARISONS), (changed_sides, CHANGED_COMPARISONS))
    equal, changed = (
        shares([compare(*sides_of(recorded, pairs, dice), primary, ALL) for _ in range(count)])
        for sides_of, count in draws
    )
    return equal, changed


def main(argv: Sequence[str]) -> int:
    """Record, compare and print. Return exit code 1 if a limit is exceeded."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench compare", description=__doc__, allow_abbrev=False)
    parser.add_argument("folder", type=Path, help="folder of the recorded runs; those that exist are not repeated")
    parser.add_argument("--seeds", type=int, default=14, help="recorded seeds (%(default)s)")
    parser.add_argument("--pairs", type=int, nargs="+", default=[6, 8], help="pairs of a comparison (%(default)s)")
    parser.add_argument("--write", type=Path, metavar="FILE", help="also write the figures of the runs as JSON")
    arguments = parser.parse_args(argv)
    print(f"{machine()}; load average of others {load_average():.2f}", flush=True)
    recorded = record(arguments.folder, arguments.seeds)
    if arguments.write is not None:
        document = {
            kind: [{"seed": run.seed, "figures": run.figures} for run in runs] for kind, runs in recorded.items()
        }
        arguments.write.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    held = True
    for pairs, failed in product(arguments.pairs, FAILED_SHARES):
        equal, changed = measured(recorded, pairs, failed)
        print(
            f"{pairs} pairs, {failed:.0%} failed: {AA_COMPARISONS} A/A comparisons, {equal.called:.2%} false alarms of the "
            f"primary figure, {equal.regressed:.2%} exit code 4; +{CHANGE:.0%} found in {changed.called:.1%} of "
            f"{CHANGED_COMPARISONS}"
        )
        held &= equal.called <= MOST_FALSE_ALARMS and equal.regressed <= MOST_REGRESSIONS
        held &= changed.called >= LEAST_FOUND
    return 0 if held else 1


def record(folder: Path, seeds: int) -> dict[str, list[Run]]:
    """Return the recorded runs by kind in the order of their seeds; the order of the kinds within a seed is random."""
    recorded: dict[str, list[Run]] = {"a": [], "again": [], "slower": []}
    for seed in range(1, seeds + 1):
        kinds = list(recorded)
        Random(seed).shuffle(kinds)
        for kind in kinds:
            run_dir = folder / kind / f"{seed:03}"
            if not (run_dir / "summary.json").is_file():
                _record(run_dir, seed, 1 + CHANGE if kind == "slower" else 1.0)
            recorded[kind].append(read_run(OpenRun(run_dir)))
    return recorded


def _record(run_dir: Path, seed: int, slower: float) -> None:
    run_dir.parent.mkdir(parents=True, exist_ok=True)
    file = run_dir.parent / "scenario.yaml"
    file.write_text(json.dumps(_SCENARIO), encoding="utf-8")
    pace = ["--ttft-ms", str(_TTFT_MS * slower), "--itl-ms", str(_ITL_MS * slower)]
    with serving([*_SERVER, *pace]) as url:
        run = [sys.executable, "-m", "inferload", "run", str(file), "--host", url, "--seed", str(seed)]
        run += ["--run-dir", str(run_dir), "--no-report", "--on-invalid", "warn"]
        subprocess.run(run, check=True, capture_output=True)
    print(f"  {run_dir}", flush=True)
