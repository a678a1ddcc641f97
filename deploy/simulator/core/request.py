"""State of one request in a scheduler: tokens, progress, and KV blocks."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

from .blocks import chain_hashes


@dataclass(slots=True, eq=False)
class Request:
    """State of a request. A scheduler may use `output_tokens` only when vLLM would know the end.

    `answer(i, n)` returns n output tokens from i on. The salt enters the first block only.
    """

    tokens: Sequence[Hashable]
    output_tokens: int
    answer: Callable[[int, int], Sequence[Hashable]]
    salt: str = ""
    reads_cache: bool = True  # else its prompt is neither looked up in the prefix cache nor counted as a query
    ends_itself: bool = False  # with an end-of-text token, known only after it is sampled
    prompt: int = 0  # tokens
    emitted: int = 0  # output tokens, including those of steps in progress
    computed: int = 0  # tokens in the KV cache, while the prompt is computed
    target: int = 0  # tokens to compute before the next output; 0: decoding
    queued_ns: int = -1  # when it entered the queue of the scheduler, or arrived at a paused engine; -1: not yet
    admitted_ns: int = -1  # first admission; -1: not admitted yet
    running: bool = False
    over: bool = False
    latest: int = 1  # output tokens of its last step
    unsure: int = 0  # rejected drafts of that step, unknown to the scheduler until the step ends
    trailing: int = 0  # steps planned after the end
    preemptions: int = 0
    uncounted_preemptions: int = 0  # not in the counter yet
    cached_tokens: int | None = None  # at the first admission; None: not admitted yet
    uncached_tokens: int = 0  # to compute before the next output, set at each admission
    blocks: list[int] = field(default_factory=list)
    hashes: list[int] = field(default_factory=list)  # of full blocks, as far as needed so far
    published: int = 0  # leading blocks in the prefix cache
    # Of paced timing:
    room: int = 0  # tokens that fit into the allocated blocks
    due_ns: int = 0  # of its next output

    def __post_init__(self) -> None:
        self.prompt = self.prompt or len(self.tokens)

    def queue(self, now_ns: int) -> None:
        """Set the time of its entry, unless it is known."""
        if self.queued_ns < 0:
            self.queued_ns = now_ns

    @property
    def length(self) -> int:
        """Tokens of the prompt and of the answer so far."""
        return self.prompt + self.emitted

    def hashes_to(self, tokens: int, block_size: int) -> list[int]:
        """Hashes of at least the full blocks of the first `tokens` tokens."""
        if len(self.hashes) < tokens // block_size:
            self.extend_hashes(tokens // block_size, block_size)
        return self.hashes

    def extend_hashes(self, blocks: int, block_size: int) -> None:
        """Append the chained hashes of full blocks of the prompt, then of the answer, until there are `blocks` of them."""
        hashes, prompt = self.hashes, len(self.tokens)
        start, end = len(hashes) * block_size, blocks * block_size
        tokens = self.tokens[start:end]
        if end > prompt:
            tokens = [*tokens, *self.answer(max(start - prompt, 0), end - max(start, prompt))]
        hashes += chain_hashes(tokens, block_size, self.salt, hashes[-1] if hashes else None)
