"""State of one request in a scheduler: tokens, progress, and KV blocks."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from .blocks import chain_hashes


class Content(Protocol):
    """Content of a sequence, as block hashes."""

    def extend(self, hashes: list[int], blocks: int, block_size: int) -> None:
        """Append the hashes of full blocks until there are `blocks` of them."""


@dataclass(slots=True, eq=False)
class Words:
    """Content as tokens: `answer(i)` is output token i, `answers(i, n)` are n from there on, where that is quicker.

    The salt enters the first block only.
    """

    tokens: Sequence[Hashable]
    answer: Callable[[int], Hashable]
    salt: str = ""
    answers: Callable[[int, int], Sequence[Hashable]] | None = None

    def extend(self, hashes: list[int], blocks: int, block_size: int) -> None:
        """Chained hashes, of the prompt's blocks first and then of those that the answer fills."""
        inside = min(blocks, len(self.tokens) // block_size)
        if len(hashes) < inside:
            part = self.tokens[len(hashes) * block_size : inside * block_size]
            hashes += chain_hashes(part, block_size, self.salt, hashes[-1] if hashes else None)
        while len(hashes) < blocks:
            start = len(hashes) * block_size
            if hashes and self.answers is not None and start >= len(self.tokens):  # nearly always
                hashes.append(hash((hashes[-1], *self.answers(start - len(self.tokens), block_size))))
                continue
            block = self._block(start, block_size)
            hashes += chain_hashes(block, block_size, self.salt, hashes[-1] if hashes else None)

    def _block(self, start: int, size: int) -> tuple[Hashable, ...]:
        prompt = len(self.tokens)
        own = tuple(self.tokens[start : start + size])
        first, end = max(start - prompt, 0), start + size - prompt
        if self.answers is not None:
            return own + tuple(self.answers(first, end - first))
        return own + tuple(map(self.answer, range(first, end)))


@dataclass(slots=True, eq=False)
class Request:
    """One request. A scheduler may use `output_tokens` only at the time when vLLM knows the end."""

    tokens: Sequence[Hashable]
    output_tokens: int
    answer: Callable[[int], Hashable]
    salt: str = ""
    ends_itself: bool = False  # by the end of the text, which is known only once it was sampled
    stopped: bool = False  # by a stop string; the front end finds it, so the scheduler knows one step later
    content: Content | None = None  # None: of `tokens` and `answer`
    prompt: int = 0  # tokens
    emitted: int = 0  # output tokens that were sampled, or whose step is on its way
    computed: int = 0  # tokens in the KV cache, of a prompt that is being computed
    target: int = 0  # tokens to be computed before the next output
    queued_ns: int = 0  # when the scheduler got it
    running: bool = False
    over: bool = False
    latest: int = 1  # output tokens of the last step that it was in
    unsure: int = 0  # drafts of that step that did not become output, which is not known while it is computed
    trailing: int = 0  # steps behind the end
    preemptions: int = 0
    untold: int = 0  # preemptions that the counter does not have yet
    cached_tokens: int | None = None  # at the first admission; None: not admitted yet
    uncached_tokens: int = 0  # to be computed before the next output, set at each admission
    blocks: list[int] = field(default_factory=list)
    hashes: list[int] = field(default_factory=list)  # of full blocks, as far as they were needed
    published: int = 0  # leading blocks that can be found by their hash
    full: int = 0  # leading blocks that are full, where the latest of them cannot be found yet
    last_hash: int | None = None  # of the last one that can be found, where there are such
    room: int = 0  # tokens that the blocks at hand can still take (paced timing)

    def __post_init__(self) -> None:
        self.prompt = self.prompt or len(self.tokens)
        if self.content is None:
            self.content = Words(self.tokens, self.answer, self.salt)

    @property
    def length(self) -> int:
        """Tokens of the prompt and of the answer so far."""
        return self.prompt + self.emitted

    def hashes_to(self, tokens: int, block_size: int) -> list[int]:
        """Hashes of the full blocks of the first `tokens` tokens, and perhaps of more."""
        if len(self.hashes) < tokens // block_size and self.content is not None:
            self.content.extend(self.hashes, tokens // block_size, block_size)
        return self.hashes
