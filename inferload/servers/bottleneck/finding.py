"""Result of a rule of the diagnosis, and the thresholds that several rules share."""

from msgspec import Struct

QUEUED_SHARE = 0.2  # minimum share of scrapes with waiting requests in a queued window
LEAST_QUEUE_MS = 10.0  # mean queue time that can matter
MIN_SHARE_FULL = 0.8
HIGH_KV_USAGE = 0.85
BUSY_CLIENT = 0.85  # of a core, of one process


class Finding(Struct, frozen=True):
    """Cause that holds. `weight`: rank; `sentences`: evidence with numbers; `probable`: not proven.

    `figures`: the evidence in a few words, for one line, if not the first sentence.
    """

    code: str
    weight: float
    sentences: tuple[str, ...]
    probable: bool = False
    figures: str = ""

    @property
    def brief(self) -> str:
        """Cause with its evidence in one line."""
        return f"{self.named}: {self.in_a_few_words}"

    @property
    def in_a_few_words(self) -> str:
        """The evidence, for one line."""
        return self.figures or self.sentences[0]

    @property
    def named(self) -> str:
        """Code, marked if it is not proven."""
        return f"probably {self.code}" if self.probable else self.code
