"""Usage block and per-request timings of an answer, as in vLLM. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..protocol.completion_request import CompletionRequest

# Timings of a request by vLLM's names; None if not applicable.
Timings = Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class UsageOptions:
    """Optional fields of a usage block: `--enable-prompt-tokens-details`, `--enable-per-request-metrics`."""

    prompt_tokens_details: bool
    per_request_metrics: bool
    reasoning_tokens: bool = False  # with --reasoning-parser
    cache_block: int = 0  # tokens of a block of the prefix cache; 0 without it


def usage_of(completion: CompletionRequest, options: UsageOptions, cached_tokens: int) -> dict[str, Any]:
    """`usage` of a complete answer."""
    prompt, output = len(completion.tokens), completion.output_tokens
    usage: dict[str, Any] = {"prompt_tokens": prompt, "total_tokens": prompt + output, "completion_tokens": output}
    if options.prompt_tokens_details:
        usage["prompt_tokens_details"] = details = {"cached_tokens": cached_tokens}
        if completion.chat:
            stored = prompt // options.cache_block * options.cache_block if options.cache_block else 0
            details["created_cache_tokens"] = max(0, stored - cached_tokens)
    if completion.chat and options.reasoning_tokens:
        usage["completion_tokens_details"] = {"reasoning_tokens": completion.script.reasoning_tokens(output)}
    return usage
