"""M/M/1 queue as a server for searches: its time in system is exponential, so the load at the SLO is known."""

from collections.abc import Callable
from math import log

import numpy as np

from inferload.campaign.attainment import slo
from inferload.campaign.attainment.bracket import Settings
from inferload.campaign.attainment.point import Look
from inferload.campaign.attainment.window import Samples, Window

SERVED_PER_S = 20.0
WARMUP_S = 30.0
SLO = "p95(ttft_ms) < 1000"
TRUTH = SERVED_PER_S - log(20) / 1.0  # 95 % of turns take less than 1 s


def window(load: float, lasts_s: float, rng: np.random.Generator) -> Window:
    """Simulate the turns of a server that serves in order of arrival."""
    count = int(2 * load * (WARMUP_S + lasts_s)) + 100
    arrival_s = np.cumsum(rng.exponential(1 / load, count)) - WARMUP_S
    arrival_s = arrival_s[arrival_s < lasts_s]
    served_s = np.cumsum(rng.exponential(1 / SERVED_PER_S, len(arrival_s)))
    # Lindley's recursion: end of turn n = maximum over earlier turns of their start + the work since.
    ended_s = served_s + np.maximum.accumulate(arrival_s - np.concatenate([[0.0], served_s[:-1]]))
    inside = arrival_s >= 0
    ttft = Samples(arrival_s[inside], (ended_s - arrival_s)[inside] * 1e3)
    return Window(lasts_s, (ttft,), arrival_s, ended_s)


def settings(guess: float, budget_s: float, window_s: float) -> Settings:
    return Settings(slo.parse(SLO), guess, budget_s, window_s, WARMUP_S)


def measure(settings: Settings, seed: int) -> Callable[[float, int], Look]:
    """Return a function that simulates a run at a load with its own random numbers."""

    def look(level: float, number: int) -> Look:
        result = window(level, settings.window_s, np.random.default_rng([seed, number]))
        return Look(level, (result,), settings.look_s)

    return look
