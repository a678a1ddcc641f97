"""Seeds and time limits of the fuzz tests.

The short form has a fixed seed and number of rounds. The long form runs for LONG_S with a random seed, which it prints.
`INFERLOAD_FUZZ_SEED` repeats the rounds of a seed, `INFERLOAD_FUZZ_ROUND` a single round; `INFERLOAD_FUZZ_S` sets the duration.
"""

import os
import random
import time
from collections.abc import Iterator

FIXED_SEED = 15
LONG_S = 600.0


class Budget:
    """Rounds of a fuzz test. `inputs`: number of tested inputs."""

    def __init__(self, name: str, rounds: int | None) -> None:
        self._name = name
        self._rounds = rounds
        seed = os.environ.get("INFERLOAD_FUZZ_SEED")
        fresh = FIXED_SEED if rounds is not None else random.SystemRandom().getrandbits(32)
        self.seed = fresh if seed is None else int(seed)
        self.round = 0
        self.inputs = 0

    def rounds(self) -> Iterator[random.Random]:
        """Yield a random generator for each round, seeded by seed and round number."""
        only = os.environ.get("INFERLOAD_FUZZ_ROUND")
        print(f"\n{self._name}: seed {self.seed}", flush=True)
        start_s = time.monotonic()
        until_s = start_s + float(os.environ.get("INFERLOAD_FUZZ_S", LONG_S))
        numbers = [int(only)] if only is not None else None
        while (numbers is None or numbers) and (numbers or self._continues(until_s)):
            self.round = numbers.pop() if numbers else self.round + 1
            yield random.Random(f"{self._name} {self.seed} {self.round}")
        duration_s = time.monotonic() - start_s
        print(
            f"{self._name}: {self.inputs} inputs in {self.round} rounds, {duration_s:.0f} s, seed {self.seed}",
            flush=True,
        )

    def _continues(self, until_s: float) -> bool:
        return time.monotonic() < until_s if self._rounds is None else self.round < self._rounds

    def __str__(self) -> str:
        return f"{self._name}: INFERLOAD_FUZZ_SEED={self.seed} INFERLOAD_FUZZ_ROUND={self.round}"
