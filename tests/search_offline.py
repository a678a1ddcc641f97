"""The simulator's scheduler, without sockets, as something to search on; and the truth about it, from hours of it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import exp, log
from random import Random

import numpy as np
from inferload.deploy.simulator.core.offline import Arrival, Offline, simulate

from inferload.measure.search import divergence, judged, wanted
from inferload.measure.search.judged import Look
from inferload.measure.search.plan import Settings
from inferload.measure.search.seen import Samples, Window

SLO = "p95(ttft_ms) < 300 and p95(tpot_ms) < 60"
DRAIN_S = 20.0
TRUTH = 15.8  # as `truth` finds it


@dataclass(frozen=True)
class Scene:
    """Single requests of mixed lengths on one server."""

    hardware: str = "a100-llama3-8b"
    max_num_seqs: int = 64
    lead_s: float = 8.0
    output_tokens: int = 16  # median

    def arrivals(self, rate: float, until_s: float, seed: str) -> list[Arrival]:
        rng, at_s, made = Random(seed), 0.0, []
        while (at_s := at_s + rng.expovariate(rate)) < until_s:
            prompt = min(1500, max(16, int(rng.lognormvariate(log(250), 0.7))))
            output = min(8 * self.output_tokens, max(4, int(rng.lognormvariate(log(self.output_tokens), 0.6))))
            made.append(Arrival(at_s, output, prompt))
        return made

    def window(self, rate: float, window_s: float, seed: str) -> Window:
        """A stretch of load after its warm-up, as a run's turns would show it; what is unfinished broke every limit."""
        end_s = self.lead_s + window_s
        asked = self.arrivals(rate, end_s, seed)
        config = Offline.preset(
            self.hardware, max_num_seqs=self.max_num_seqs, seed=Random(seed).getrandbits(31), max_s=end_s + DRAIN_S
        )
        got = simulate(asked, config)
        begun_s = got.arrived_s - self.lead_s
        over = ~np.isnan(got.last_s)
        ttft_ms = np.where(over, got.ttft_s * 1e3, np.inf)
        tpot_ms = np.where(over, got.tpot_s * 1e3, np.inf)
        inside = begun_s >= 0
        samples = tuple(
            Samples(begun_s[inside & ~np.isnan(value)], value[inside & ~np.isnan(value)])
            for value in (ttft_ms, tpot_ms)
        )
        return Window(window_s, samples, begun_s, np.where(over, got.last_s - self.lead_s, np.inf))


def measure(scene: Scene, settings: Settings, seed: int) -> Callable[[float, int], Look]:
    """A look at a load, ended where it is seen to diverge, as a run would be."""

    def look(level: float, number: int) -> Look:
        whole = scene.window(level, settings.window_s, f"{seed}/{number}")
        alpha = judged.early_alpha(settings.spent(settings.look_s))
        for part in judged.EARLY:
            until_s = part * whole.lasts_s
            seen = cut(whole, until_s)
            in_flight = seen.in_flight(np.arange(0, until_s, 1.0))
            if divergence.growth(in_flight, until_s, seen.turns / until_s, alpha).diverged:
                return Look(level, (seen,), settings.lead_s + until_s, ended_early=True)
        return Look(level, (whole,), settings.look_s)

    return look


def cut(window: Window, until_s: float) -> Window:
    """Its beginning."""
    samples = tuple(Samples(s.at_s[s.at_s < until_s], s.value[s.at_s < until_s]) for s in window.samples)
    early = window.begun_s < until_s
    return replace(
        window, lasts_s=until_s, samples=samples, begun_s=window.begun_s[early], ended_s=window.ended_s[early]
    )


def settings(scene: Scene, guess: float, budget_s: float, window_s: float, slo: str = SLO) -> Settings:
    return Settings(wanted.parse(slo), guess, budget_s, window_s, scene.lead_s)


def sweep_s(looked: Settings) -> float:
    """What trying every rate takes that lies within a factor of four of the guess, 7 % apart, one look each."""
    return looked.look_s * (1 + round(log(16) / log(1.07)))


def truth(scene: Scene) -> float:
    """Where an hour of each of these rates loses the SLO: the first of its conditions, on the line through its margins."""
    rates = (14.0, 14.5, 15.0, 15.5, 16.0, 16.5, 17.0, 17.5)
    shares = []
    for rate in rates:
        seen = scene.window(rate, 3600.0, f"truth/{rate}")
        conditions = wanted.parse(SLO)
        shares.append([float(np.mean(s.value < c.limit)) for s, c in zip(seen.samples, conditions, strict=True)])
    crossings = []
    for column in np.log(np.array(shares) / (1 - np.array(shares))).T - log(0.95 / 0.05):
        slope, offset = np.polyfit(np.log(rates), column, 1)
        crossings.append(exp(-offset / slope))
    return min(crossings)


def guess_of(truth: float, seed: int) -> float:
    """A guess that may be three times too high or too low."""
    return truth * exp(Random(f"{seed}/guess").uniform(-log(3), log(3)))
