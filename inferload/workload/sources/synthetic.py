"""Sources of generated words, with exact token counts if those of the run's vocabulary are exact."""

import math
from functools import lru_cache
from random import Random
from typing import Any

import numpy as np
from msgspec import Struct

from inferload.scenario.schema.sources import PrefixRepetition, RandomLengths, VllmDraws
from inferload.workload.content.data import DataContext
from inferload.workload.content.messages import SHARED, Piece
from inferload.workload.popularity import zipf
from inferload.workload.sources.api import AnswerLengths, Source, SourceSession, SourceTurn

# Prompts with the same start are beginnings of one text of so many tokens, or of their own length if it is greater.
_WHOLE = 32_768


class SyntheticSource(Source):
    """Source of random words, drawn by the keys of their pieces."""

    digest: str | None = None
    draws = False
    alike = True

    def __init__(self, source: Any, _class_name: str, data: DataContext, _answers: AnswerLengths) -> None:
        self._source, self._seed = source, data.seed

    def text(self, key: str, tokens: int) -> Piece:
        """Return a piece of random words."""
        return Piece(key, tokens)

    def facts(self) -> dict[str, Any]:
        """Return the keys of the scenario; the manifest has the accuracy of the counts under `prompt_tokens`."""
        facts: dict[str, Any] = self._source.model_dump()
        return facts


class RandomLengthSource(SyntheticSource):
    """Single requests of random lengths, as in the data set `random` of `vllm bench serve`.

    Each length is uniform over the integers from floor(mean (1 - ratio)) to ceil(mean (1 + ratio)).
    """

    draws = True
    alike = False
    _source: RandomLengths

    def __init__(self, source: RandomLengths, *others: Any) -> None:
        super().__init__(source, *others)
        self._drawn = None if source.draws is None else vllm_draws(source, source.draws)

    def session(self, index: int, rng: Random) -> SourceSession | None:
        """Return one turn with the shared prefix."""
        source = self._source
        prefix = (Piece(f"{SHARED}prefix", source.prefix_tokens),) if source.prefix_tokens else ()
        if self._drawn is not None:
            drawn = self._drawn[index % len(self._drawn)]
            text = Piece(f"{SHARED}start/{drawn.start}", drawn.prompt, whole=max(_WHOLE, drawn.prompt))
            return SourceSession((SourceTurn((*prefix, text), drawn.output),))
        prompt, output = (around(mean, source.range_ratio, rng) for mean in (source.input_tokens, source.output_tokens))
        return SourceSession((SourceTurn((*prefix, self.text(f"text/{index}/0", prompt)), output),))

    def in_words(self) -> list[str]:
        """Return the line of the plan."""
        return ["single requests of random words and lengths"]


class DrawnPrompt(Struct, frozen=True):
    """Prompt of vLLM's data set `random`: `prompt` consecutive token numbers from `start` on, and the length of its answer."""

    start: int
    prompt: int
    output: int


def vllm_draws(source: RandomLengths, draws: VllmDraws) -> tuple[DrawnPrompt, ...]:
    """Return the prompts that `benchmark_serving.py` of vLLM 0.8 draws (RandomDataset.sample in benchmark_dataset.py).

    In its order: the tokens of the shared prefix, prompt lengths, answer lengths, start tokens. The ranges of the lengths are
    those since vLLM's pull request 16126 (April 2025). Lengths are scaled if the source has others than the draws.
    """
    generator = np.random.RandomState(draws.seed)
    generator.randint(0, draws.vocabulary, source.prefix_tokens)
    means = (draws.input_tokens or source.input_tokens, draws.output_tokens or source.output_tokens)
    drawn = [
        generator.randint(int(mean * (1 - source.range_ratio)), int(mean * (1 + source.range_ratio)) + 1, draws.prompts)
        for mean in means
    ]
    offsets = generator.randint(0, draws.vocabulary, draws.prompts)
    prompts, outputs = (
        np.maximum(1, np.rint(lengths * (wanted / mean))).astype(int).tolist()
        for lengths, wanted, mean in zip(drawn, (source.input_tokens, source.output_tokens), means, strict=True)
    )
    return tuple(
        DrawnPrompt((offset + index) % draws.vocabulary, prompt, output)
        for index, (offset, prompt, output) in enumerate(zip(offsets.tolist(), prompts, outputs, strict=True))
    )


def around(mean: int, ratio: float, rng: Random) -> int:
    """Draw an integer of at least 1, uniform around the mean. Takes one random number."""
    low, high = math.floor(mean * (1 - ratio)), math.ceil(mean * (1 + ratio))
    return max(1, low + int(rng.random() * (high - low + 1)))


class PrefixSource(SyntheticSource):
    """Single requests with one of several prefixes; `prefixes` consecutive sessions use each prefix once."""

    alike = False
    _source: PrefixRepetition

    def __init__(self, source: PrefixRepetition, *others: Any) -> None:
        super().__init__(source, *others)
        self._order = lru_cache(maxsize=4)(self._drawn)

    def session(self, index: int, rng: Random) -> SourceSession | None:
        """Return one turn."""
        source = self._source
        round_number, position = divmod(index, source.prefixes)
        if source.zipf is None:
            prefix = self._order(round_number)[position]
        else:
            prefix = zipf(source.prefixes, source.zipf).draw(Random(f"{self._seed}/prefix/{index}"))
        shared = Piece(f"{SHARED}prefix/{prefix}", source.prefix_tokens)
        question = (shared, self.text(f"text/{index}/0", source.suffix_tokens))
        return SourceSession((SourceTurn(question, source.output_tokens),))

    def _drawn(self, round_number: int) -> list[int]:
        order = list(range(self._source.prefixes))
        Random(f"{self._seed}/prefixes/{round_number}").shuffle(order)
        return order

    def in_words(self) -> list[str]:
        """Return the line of the plan."""
        count, exponent = self._source.prefixes, self._source.zipf
        often = "used equally often" if exponent is None else zipf(count, exponent).in_words()
        return [f"single requests, each with one of {count:,} prefixes; {often}"]
