"""Schema of `canary`: known prompts that are sent beside the turns, to hold their answers against those without load."""

from typing import Annotated

from pydantic import Field, model_validator

from inferload.base.errors import UsageError
from inferload.scenario.files.data_files import find
from inferload.scenario.schema.base import AtLeastOne, ScenarioPart, Seed, optional

# Long enough answers, each of its own: of short or equal ones an answer to another prompt cannot be told.
PROMPTS = (
    "Count from one to twelve in English words.",
    "Name the planets of the solar system, from the sun outwards.",
    "List the months of the year in order.",
    "Write the Greek alphabet by the names of its letters.",
    "Explain in one sentence why the sky is blue.",
    "Translate into French: The train to the coast leaves at noon.",
    "Describe in two sentences how bread is baked.",
    "Write the first ten square numbers, separated by commas.",
)


class Canary(ScenarioPart):
    """Known prompts beside the turns. Their answers are compared with those that the server gave before the load."""

    share: Annotated[float, Field(strict=True, ge=1e-6, lt=1, allow_inf_nan=False)] = optional(
        0.01, "canary requests for each turn: additional load, in no figure of the turns"
    )
    prompts: Annotated[tuple[str, ...], Field(strict=False)] | None = optional(
        None, f"at least two prompts; null: those of file, else {len(PROMPTS)} bundled ones"
    )
    file: str | None = optional(None, "text file with a prompt on each line", min_length=1)
    max_tokens: AtLeastOne = optional(48, "limit of each answer, in tokens")
    seed: Seed = optional(0, "seed in the requests, beside temperature 0")

    @model_validator(mode="after")
    def _can_be_told_apart(self) -> "Canary":
        if self.file is not None and self.prompts is not None:
            raise ValueError("prompts and file are both given; remove one")
        if self.prompts is not None:
            _check(self.prompts)
        return self

    def texts(self, origin: str) -> tuple[str, ...]:
        """Return the prompts. `origin`: of the scenario. UsageError if its file cannot be used."""
        if self.file is None:
            return PROMPTS if self.prompts is None else self.prompts
        path = find(self.file, origin)
        try:
            texts = tuple(filter(None, map(str.strip, path.read_text(encoding="utf-8").splitlines())))
            _check(texts)
        except (OSError, ValueError) as error:
            raise UsageError(f"canary.file {path}: {error}") from error
        return texts


def _check(texts: tuple[str, ...]) -> None:
    """Raise ValueError for prompts of which an answer to another one cannot be told."""
    if len(texts) < 2:
        raise ValueError("an answer to another prompt cannot be found with fewer than two prompts; add one")
    plain = [" ".join(text.split()) for text in texts]
    for number, text in enumerate(plain):
        if not text or text in plain[:number]:
            problem = f"prompt {number + 1} is equal to prompt {plain.index(text) + 1}" if text else "a prompt is empty"
            raise ValueError(f"{problem}; remove it")
