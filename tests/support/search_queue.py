"""An M/M/1 queue as a server to search on: its time in system is exponential, so the load that holds an SLO is known."""

from collections.abc import Callable
from math import log

import numpy as np

from inferload.measure.search import slo
from inferload.measure.search.bracket import Settings
from inferload.measure.search.point import Look
from inferload.measure.search.window import Samples, Window

SERVED_PER_S = 20.0
WARMUP_S = 30.0
SLO = "p95(ttft_ms) < 1000"
TRUTH = SERVED_PER_S - log(20) / 1.0  # 95 % are in the system for less than a second


def window(load: float, lasts_s: float, rng: np.random.Generator) -> Window:
    """Turns of one server that serves in order of arrival."""
    count = int(2 * load * (WARMUP_S + lasts_s)) + 100
    begun_s = np.cumsum(rng.exponential(1 / load, count)) - WARMUP_S
    begun_s = begun_s[begun_s < lasts_s]
    served_s = np.cumsum(rng.exponential(1 / SERVED_PER_S, len(begun_s)))
    # The end of turn n is the greatest begin of an earlier turn plus the work since (Lindley's recursion).
    ended_s = served_s + np.maximum.accumulate(begun_s - np.concatenate([[0.0], served_s[:-1]]))
    inside = begun_s >= 0
    ttft = Samples(begun_s[inside], (ended_s - begun_s)[inside] * 1e3)
    return Window(lasts_s, (ttft,), begun_s, ended_s)


def settings(guess: float, budget_s: float, window_s: float) -> Settings:
    return Settings(slo.parse(SLO), guess, budget_s, window_s, WARMUP_S)


def measure(settings: Settings, seed: int) -> Callable[[float, int], Look]:
    """A run at a load, with random choices of its own."""

    def look(level: float, number: int) -> Look:
        made = window(level, settings.window_s, np.random.default_rng([seed, number]))
        return Look(level, (made,), settings.look_s)

    return look
