"""Usage block and per-request timings of an answer, as in vLLM. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..protocol.completion_request import CompletionRequest

# Timings of a request by vLLM's names; None if not applicable.
Timings = Mapping[str, float | None]


def in_full(timings: Timings) -> dict[str, Any]:
    """All timings, null if unknown, as in an answer that is not streamed."""
    return {**timings, "speculative_decoding": None}


@dataclass(frozen=True, slots=True)
class UsageOptions:
    """Optional fields of a usage block: `--enable-prompt-tokens-details`, `--enable-per-request-metrics`."""

    prompt_tokens_details: bool
    per_request_metrics: bool
    reasoning_tokens: bool = False  # with --reasoning-parser
    block_size: int = 0  # of the prefix cache; 0: disabled


@dataclass(slots=True)
class Group:
    """Answers to a request, which end independently. The last one reports the usage of the request."""

    completions: Sequence[CompletionRequest]
    options: UsageOptions
    left: int = 0
    cached: int | None = None  # of the first to end
    choices: dict[int, Any] = field(default_factory=dict)  # complete answers, until all have ended

    def __post_init__(self) -> None:
        self.left = len(self.completions)

    def ended(self, cached_tokens: int) -> bool:
        """Count the end of an answer. Return True if it was the last."""
        self.left -= 1
        self.cached = cached_tokens if self.cached is None else self.cached
        return self.left == 0

    @property
    def alone(self) -> bool:
        """True if the request has one answer only, which has timings of its own."""
        return len(self.completions) == 1

    def counts(self) -> tuple[int, int, int]:
        """Prompt tokens (each prompt once), output tokens, and reasoning tokens included in them."""
        choices = len(self.completions) // self.completions[0].prompts
        prompt = sum(len(completion.tokens) for completion in self.completions[::choices])
        output = sum(completion.output_tokens for completion in self.completions)
        return (
            prompt,
            output,
            sum(completion.script.reasoning_tokens(completion.output_tokens) for completion in self.completions),
        )

    def usage(self, stream: bool) -> dict[str, Any]:
        """`usage` of a chat or text completion; without null values in a stream."""
        prompt, output, thought = self.counts()
        chat, options = self.completions[0].chat, self.options
        usage: dict[str, Any] = {"prompt_tokens": prompt, "total_tokens": prompt + output, "completion_tokens": output}
        details: dict[str, Any] | None = None
        if options.prompt_tokens_details:
            created = self.created() if chat else None
            details = {"cached_tokens": self.cached, "created_cache_tokens": created, "multimodal_tokens": None}
        completion_details = {"reasoning_tokens": thought} if chat and options.reasoning_tokens else None
        usage |= {"prompt_tokens_details": details, "completion_tokens_details": completion_details}
        return without_null(usage) if stream else usage

    def created(self) -> int:
        """Prompt tokens that the first answer added to the prefix cache, in full blocks."""
        size, tokens = self.options.block_size, len(self.completions[0].tokens)
        return max(0, tokens // size * size - (self.cached or 0)) if size else 0


def without_null(document: Mapping[str, Any]) -> dict[str, Any]:
    """Known values only, as in a stream."""
    nested = {key: without_null(value) if isinstance(value, dict) else value for key, value in document.items()}
    return {key: value for key, value in nested.items() if value is not None}
