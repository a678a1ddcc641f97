"""Comparisons of equal sides on recorded runs: how often a headline states a difference that does not exist.

Runs are simulated on the scheduler of the embedded simulator: 60 turns of an open loop, queues and batches included. The runs of a
pair have one schedule and differ in the noise of the server's steps.
"""

import os
from collections import Counter
from functools import cache
from random import Random

import numpy as np
import pytest
from inferload.analysis.comparison.compare import Comparison
from inferload.analysis.comparison.sides import Run, Side
from inferload.deploy.simulator.core.offline import Offline, OfflineRequest, Results, simulate
from made_sides import compared, made_run
from scipy import stats

from inferload.results.statistics.paired_runs import ALPHA, OTHERS_ALONE

SCHEDULES, REPEATS, TURNS = 40, 16 if os.environ.get("INFERLOAD_SOAK") else 6, 60


@cache
def simulated(schedule: int, repeat: int) -> Results:
    rng, at_s, requests = Random(schedule), 0.0, []
    for _ in range(TURNS):
        at_s += rng.expovariate(8.0)
        requests.append(OfflineRequest(at_s, rng.randint(8, 40), rng.randint(50, 400)))
    return simulate(requests, Offline.preset("cpu-tiny", seed=1000 * schedule + repeat))


def recorded(schedule: int, repeat: int, slower: float = 0.0) -> Run:
    """Return a run of a schedule. `slower`: share by which all steps take longer."""
    found = simulated(schedule, repeat)
    ttft, tpot, e2e = (1e3 * (1 + slower) * values for values in (found.ttft_s, found.tpot_s, found.e2e_s))
    window_s = float(found.last_s.max())
    figures = {
        "turns_per_s": TURNS / window_s,
        "output_tok_per_s": found.output_tokens.sum() / window_s,
        "total_tok_per_s": (found.output_tokens.sum() + found.prompt_tokens.sum()) / window_s,
        "mean(ttft_ms)": ttft.mean(),
        "mean(tpot_ms)": tpot.mean(),
        "mean(e2e_ms)": e2e.mean(),
        "p50(ttft_ms)": np.quantile(ttft, 0.5),
        "p95(ttft_ms)": np.quantile(ttft, 0.95),
        "p99(ttft_ms)": np.quantile(ttft, 0.99),
        "p99(itl_ms)": np.quantile(tpot, 0.99),  # in place of gaps, which the simulation does not return
        "goodput_turns_per_s": (ttft < np.median(ttft) + 5).sum() / window_s,
    }
    return made_run(schedule, {name: float(value) for name, value in figures.items()}, start=None)


def comparison(number: int, pairs: int, slower: float = 0.0) -> Comparison:
    """Compare two sides of drawn schedules and repeats."""
    rng = Random(f"{number}/{pairs}")
    before, after = [], []
    for schedule in rng.sample(range(SCHEDULES), pairs):
        first, second = rng.sample(range(REPEATS), 2)
        before.append(recorded(schedule, first))
        after.append(recorded(schedule, second, slower))
    return compared(Side("A", tuple(before)), Side("B", tuple(after)))


@pytest.mark.parametrize(
    ("pairs", "comparisons"), [*(pytest.param(pairs, 200, marks=pytest.mark.soak) for pairs in (6, 8)), (8, 60)]
)
def test_at_most_one_in_twenty_comparisons_of_equal_sides_is_a_false_alarm(pairs: int, comparisons: int) -> None:
    found = [comparison(number, pairs) for number in range(comparisons)]
    alarms = sum(each.regressed for each in found)  # exit code 4 of --fail-on-regression
    assert alarms <= comparisons / 20, alarms
    verdicts = Counter(each.verdict for each in found)
    stated = verdicts["better"] + verdicts["worse"] + verdicts["mixed"]
    # The primary figure at 0.05 and all others together at OTHERS_ALONE, improvements included.
    assert stated <= stats.binom.ppf(0.99, comparisons, ALPHA + OTHERS_ALONE), verdicts


def test_a_server_that_is_slower_by_a_tenth_is_found() -> None:
    found = [comparison(number, 8, slower=0.1).verdict for number in range(20)]
    assert found.count("worse") >= 16, found
