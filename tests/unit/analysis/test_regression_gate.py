"""False alarms, coverage and power of the regression gate on simulated runs with autocorrelated turns and varying servers."""

import json
import math
import sys
from dataclasses import dataclass

import numpy as np
import pytest
from inferload.analysis.comparison.compare import Comparison, compare, compare_with_occasions
from inferload.analysis.comparison.sides import Run, Side
from inferload.analysis.data.figures import ALL
from made_sides import PRIMARY, made_run
from paths import DATA, ROOT
from scipy import signal
from simulated_power import power_of_both

from inferload.results.statistics.paired_runs import power

sys.path.insert(0, str(ROOT))

from benchmarks.false_alarms import FAILED_SHARES, LEAST_FOUND, MOST_FALSE_ALARMS, MOST_REGRESSIONS, measured

OTHERS = tuple(entry for entry in ALL if entry.name in ("p50(ttft_ms)", "p95(ttft_ms)", "turns_per_s", "mean(ttft_ms)"))
TURNS = 300


@dataclass(frozen=True)
class World:
    """Standard deviations of log latency: of a schedule, shared by a pair, of a day, and of a start; turns are AR(1)."""

    dice: np.random.Generator
    schedule: float = 0.2
    day: float = 0.03
    start: float = 0.03
    turns: float = 0.5
    memory: float = 0.9

    def run(self, seed: int, shift: float) -> Run:
        """A run on its own server start; `shift` is the log of common factors and of the change."""
        noise = self.dice.standard_normal(TURNS)
        noise[0] /= math.sqrt(1 - self.memory**2)
        logs = signal.lfilter([math.sqrt(1 - self.memory**2)], [1, -self.memory], noise)
        values = 100 * np.exp(shift + self.start * self.dice.standard_normal() + self.turns * logs)
        figures = {"mean(ttft_ms)": float(values.mean()), "turns_per_s": float(1000 / values.mean())}
        figures |= {f"p{q}(ttft_ms)": float(np.percentile(values, q)) for q in (50, 95)}
        return made_run(seed, figures, start=str(self.dice.integers(1 << 62)))

    def pairs(self, count: int, change: float) -> Comparison:
        """Compare pairs of runs whose candidate takes `change` longer."""
        schedules = self.schedule * self.dice.standard_normal(count)
        before = Side("base", tuple(self.run(pair, shift) for pair, shift in enumerate(schedules)))
        after = Side("new", tuple(self.run(pair, shift + math.log1p(change)) for pair, shift in enumerate(schedules)))
        return compare(before, after, PRIMARY, OTHERS)

    def occasions(self, count: int, change: float) -> Comparison:
        """Compare a candidate with earlier days of the same schedule."""
        days = self.day * self.dice.standard_normal(count + 1)
        before = Side("b.json", tuple(self.run(0, day) for day in days[:-1]))
        return compare_with_occasions(
            before, Side("new", (self.run(0, days[-1] + math.log1p(change)),)), PRIMARY, OTHERS
        )


def shares(kind: str, count: int, change: float, draws: int, turns: float = 0.5) -> tuple[float, float, float, float]:
    """Return over draws the coverage, the share of regressions, the share of changes, and the sd of the log effect."""
    world = World(np.random.default_rng(11), turns=turns)
    held, regressed, called, logs = [], [], [], []
    for _ in range(draws):
        comparison = world.pairs(count, change) if kind == "pairs" else world.occasions(count, change)
        effect = comparison.primary.effect
        assert effect is not None
        assert effect.low is not None
        assert effect.high is not None
        held.append(effect.low <= 1 + change <= effect.high)
        regressed.append(comparison.regressed)
        called.append(comparison.primary.answer in ("better", "worse"))
        logs.append(math.log(effect.ratio))
    return float(np.mean(held)), float(np.mean(regressed)), float(np.mean(called)), float(np.std(logs))


@pytest.mark.parametrize(("kind", "count"), [("pairs", 6), ("occasions", 8)])
def test_the_gate_has_few_false_alarms_and_detects_a_doubling(kind: str, count: int) -> None:
    held, regressed, _, _ = shares(kind, count, 0.0, 60)
    assert held >= 0.85  # 3.5 standard errors of 60 draws below 0.95
    assert regressed <= 0.15
    assert shares(kind, count, 1.0, 20)[1] > 0.8


@pytest.mark.soak
@pytest.mark.parametrize(
    ("kind", "count", "turns"),
    [
        ("pairs", 6, 0.5),
        ("pairs", 8, 0.5),
        ("pairs", 12, 0.5),
        ("occasions", 8, 0.5),
        ("occasions", 12, 0.5),
        ("pairs", 8, 0.2),
        ("occasions", 12, 0.1),
    ],
)
def test_coverage_false_alarms_and_power_of_the_gate(kind: str, count: int, turns: float) -> None:
    held, regressed, _, spread = shares(kind, count, 0.0, 1000, turns)
    # The spread of the estimate over draws is sd / sqrt(pairs) of the plan: what a plan with that noise predicts.
    sd = spread * math.sqrt(count)
    predicted = power_of_both(math.log(1.1) / sd, count) if kind == "pairs" else power(0.10, sd, count)
    changed = shares(kind, count, 0.10, 1000, turns)
    print(
        f"{count} {kind}, turns {turns}: coverage {held:.3f} (changed: {changed[0]:.3f}), false alarms {regressed:.3f}, "
        f"power against 10 %: {changed[2]:.3f}, predicted {predicted:.3f}"
    )
    most = 0.99 if kind == "pairs" else 0.97  # the interval of pairs contains those of both tests
    assert 0.93 <= held <= most
    assert 0.93 <= changed[0] <= most
    assert regressed <= 0.05
    assert changed[2] == pytest.approx(predicted, abs=0.05)


def recorded(file: str) -> dict[str, list[Run]]:
    """Figures of recorded runs by kind: two of each seed on one configuration, and one on slower servers."""
    document = json.loads((DATA / "recorded" / file).read_text())
    return {kind: [made_run(run["seed"], run["figures"], kind) for run in runs] for kind, runs in document.items()}


@pytest.mark.parametrize("failed", FAILED_SHARES)
@pytest.mark.parametrize("pairs", [6, pytest.param(8, marks=pytest.mark.soak)])
@pytest.mark.parametrize("file", ["false-alarms.json", pytest.param("false-alarms-2.json", marks=pytest.mark.soak)])
def test_recorded_runs_have_few_false_alarms_and_a_true_change_is_found(file: str, pairs: int, failed: float) -> None:
    equal, changed = measured(recorded(file), pairs, failed)
    assert equal.called <= MOST_FALSE_ALARMS
    assert equal.regressed <= MOST_REGRESSIONS
    assert changed.called >= LEAST_FOUND
