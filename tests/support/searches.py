"""A search with known attainment."""

import numpy as np
from msgspec.structs import replace

from inferload.campaign.attainment import bracket, slo
from inferload.campaign.attainment.answer import document
from inferload.campaign.attainment.bracket import Settings
from inferload.campaign.attainment.point import Look
from inferload.campaign.attainment.window import Samples, Window
from inferload.results.documents.search_document import SearchDocument, SearchedScenario

SLO = "p95(ttft_ms) < 800"


def look_of(level: float, turns: int, tpot_ms: float, *, fails: bool = False, ends_s: float = 1.0) -> Look:
    """A run of 60 s with TPOT about this value. `fails`: one turn in ten; `ends_s`: seconds per second of the begin to the end."""
    at_s = np.linspace(0, 59, turns)
    failed = np.where(np.arange(turns) % 10 == 0, float(fails), 0.0)
    samples = (Samples(at_s, tpot_ms + np.tile((-1.0, 1.0), turns // 2)), Samples(at_s, failed))
    return Look(level, (Window(60.0, samples, at_s, at_s * ends_s + 0.5),), 65.0)


def search_document(shares: dict[float, float]) -> SearchDocument:
    """A search.json: share of turns within the limit by load; then an overloaded load and an invalid run."""
    settings = Settings(slo.parse(SLO), 4.0, 3600.0, 400.0, 10.0)
    looks = []
    for number, (level, share) in enumerate(shares.items()):
        rng = np.random.default_rng(number)
        at_s = np.sort(rng.uniform(0, 400, int(level * 400)))
        value = np.where(rng.random(len(at_s)) < share, 300.0, 900.0) * rng.uniform(0.95, 1.05, len(at_s))
        good = int((value <= 800).sum())
        window = Window(400.0, (Samples(at_s, value),), at_s, at_s + value / 500, good)
        looks.append(Look(level, (window,), 410.0, runs=(f"points/{number + 1:02}",)))
    at_s = np.arange(0, 100, 0.02)
    over = Window(100.0, (Samples(at_s, at_s * 100),), at_s, at_s * 2 + 1, 10)
    looks.append(Look(50.0, (over,), 110.0, runs=("points/05",)))
    looks.append(Look(90.0, (), 410.0, invalid=True, cause="a worker used 99 % of a core", runs=("points/06",)))
    return replace(
        document(settings, bracket.points_of(settings, looks), "budget", "sessions/s"),
        scenario=SearchedScenario(name="chat-open"),
        target="http://server:8000",
        seed=0,
        window_s=400.0,
        warmup_s=5.0,
        cache="no prefix of a point is cached before it",
    )
