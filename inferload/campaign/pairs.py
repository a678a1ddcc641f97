"""Pairs of runs: seeds, drawn orders, and the smallest change that they detect. No I/O."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from inferload.base.numbers import percent, plural
from inferload.results.statistics import paired_runs

MAX_PAIRS = 1000
FEWEST = 3  # pairs of a test
SD_LOG = 0.05  # assumed standard deviation of the log ratio of a pair


@dataclass(frozen=True, slots=True)
class Pair:
    """A pair: one run of each side, with the same seed, in a random order. `number` counts from 0."""

    number: int
    seed: int
    order: tuple[str, ...]


def drawn(key: str, count: int, sides: Sequence[str]) -> list[Pair]:
    """Draw seeds and orders by a key. The random order lets drift over time affect all sides equally."""
    random = Random(key)
    seeds = [random.randrange(1, 2**31) for _ in range(count)]
    pairs = []
    for number, seed in enumerate(seeds):
        order = list(sides)
        random.shuffle(order)
        pairs.append(Pair(number, seed, tuple(order)))
    return pairs


def outlook(pairs: int, sd_log: float, condition: str = "") -> str:
    """Describe the change that pairs detect, if their log ratios have this standard deviation. `condition`: of the verdict."""
    size = paired_runs.detectable_by_both(sd_log, pairs)
    if pairs < FEWEST or size is None:
        confirmed = f"and {paired_runs.FEWEST_FLIPS} to be confirmed by sign flips"
        return f"{plural(pairs, 'pair')}: nothing is tested; a test needs {FEWEST} pairs, {confirmed}"
    text = (
        f"{pairs} pairs detect a change of {percent(size)} with a power of {paired_runs.POWER:g}, "
        f"if pairs scatter by {percent(sd_log)} (assumed: sd_log)"
    )
    few = "the sign-flip test cannot reject with fewer than 6" if pairs < paired_runs.FEWEST_FLIPS else ""
    return "; ".join(filter(None, [text, few, condition]))
