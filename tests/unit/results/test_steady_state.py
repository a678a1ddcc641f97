"""Detection of a steady state."""

from random import Random

import numpy as np

from inferload.results.statistics.steady_state import BLOCK_S, BLOCKS, LEAST, Steadiness
from inferload.turns.tally import TallySet

PER_S = 4


def fed(ttft_ms: list[float], in_flight: list[float], per_s: int = PER_S) -> Steadiness:
    """Add one report per second: `per_s` first tokens with about this TTFT, and the number of turns in flight."""
    steadiness, rng = Steadiness(), Random(1)
    for second, (level, turns) in enumerate(zip(ttft_ms, in_flight, strict=True)):
        delta = TallySet()
        for _ in range(per_s):
            delta.at("warmup", "chat").sketch("ttft_ms").add_many(np.array([level * rng.uniform(0.97, 1.03)]))
        steadiness.add(second + 0.5, delta, round(turns))
    return steadiness


def test_an_even_load_is_steady_after_three_blocks() -> None:
    enough = round(BLOCK_S * BLOCKS)
    assert not fed([100.0] * enough, [8.0] * enough).now
    settled = fed([100.0] * (enough + 1), [8.0] * (enough + 1))
    assert settled.now
    assert settled.since_s == 0


def test_a_load_is_steady_after_it_settles() -> None:
    levels = [400.0 - 15 * second for second in range(20)] + [100.0] * 25
    settled = fed(levels, [8.0] * len(levels))
    assert settled.now
    assert settled.since_s == 20


def test_a_changing_ttft_is_not_steady() -> None:
    levels = [100.0 * 1.03**second for second in range(60)]
    moving = fed(levels, [8.0] * 60)
    assert not moving.now
    assert moving.since_s is None


def test_growing_turns_in_flight_are_not_steady() -> None:
    assert not fed([100.0] * 40, [8.0 + 2 * second for second in range(40)]).now


def test_changes_of_a_few_milliseconds_are_ignored() -> None:
    levels = [8.0 if second // 5 % 2 else 11.0 for second in range(40)]
    assert fed(levels, [8.0] * 40).now
    levels = [80.0 if second // 5 % 2 else 110.0 for second in range(40)]
    assert not fed(levels, [8.0] * 40).now


def test_too_few_first_tokens_are_undecided() -> None:
    assert BLOCK_S * 1 < LEAST
    assert not fed([100.0] * 60, [8.0] * 60, per_s=1).now


def test_a_steady_load_can_become_unsteady() -> None:
    later = fed([100.0] * 30 + [100.0 * 1.05**second for second in range(30)], [8.0] * 60)
    assert later.since_s == 0
    assert not later.now
