"""Seeds and time limits of the fuzz tests.

A short form has a fixed seed and a fixed number of rounds. A long form runs until its time is over, with a new seed that it prints.
`INFERLOAD_FUZZ_SEED` repeats the rounds of a printed seed, `INFERLOAD_FUZZ_ROUND` one of them; `INFERLOAD_FUZZ_S` changes the time.
"""

import os
import random
import time
from collections.abc import Iterator

FIXED_SEED = 15
LONG_S = 600.0


class Budget:
    """The rounds of one fuzz test; `inputs` counts what was tried in them."""

    def __init__(self, name: str, rounds: int | None) -> None:
        self._name = name
        self._rounds = rounds
        said = os.environ.get("INFERLOAD_FUZZ_SEED")
        fresh = FIXED_SEED if rounds is not None else random.SystemRandom().getrandbits(32)
        self.seed = fresh if said is None else int(said)
        self.round = 0
        self.inputs = 0

    def rounds(self) -> Iterator[random.Random]:
        """A random generator for each round; it depends on the seed and on the round's number only."""
        only = os.environ.get("INFERLOAD_FUZZ_ROUND")
        print(f"\n{self._name}: seed {self.seed}", flush=True)
        begun_s = time.monotonic()
        until_s = begun_s + float(os.environ.get("INFERLOAD_FUZZ_S", LONG_S))
        numbers = [int(only)] if only is not None else None
        while (numbers is None or numbers) and (numbers or self._goes_on(until_s)):
            self.round = numbers.pop() if numbers else self.round + 1
            yield random.Random(f"{self._name} {self.seed} {self.round}")
        took_s = time.monotonic() - begun_s
        print(
            f"{self._name}: {self.inputs} inputs in {self.round} rounds, {took_s:.0f} s, seed {self.seed}", flush=True
        )

    def _goes_on(self, until_s: float) -> bool:
        return time.monotonic() < until_s if self._rounds is None else self.round < self._rounds

    def __str__(self) -> str:
        return f"{self._name}: INFERLOAD_FUZZ_SEED={self.seed} INFERLOAD_FUZZ_ROUND={self.round}"
