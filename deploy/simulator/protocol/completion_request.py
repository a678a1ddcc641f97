"""Parsing of completion requests with vLLM's checks, and the planned answers. No I/O."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from .errors import ApiError
from .model import Model, check_model
from .prompt import chat_prompt, text_prompt
from .sampling_params import SamplingParams, parse_sampling_params
from .script import Script, plan
from .text import answer_of
from .tools import check_parsers, choose_calls

_TEXT_MAX_TOKENS = 16  # default of /v1/completions
_EOS_MEAN_TOKENS = 256.0  # of answers without a limit
_SHORTEST = 2  # tokens of a natural answer: one word and the end; an answer without output counts as a failure


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """Requested answer, with its planned content."""

    chat: bool
    params: SamplingParams
    tokens: Sequence[str]
    script: Script
    output_tokens: int  # in total, including the end-of-text token
    output_limit: int
    ends_itself: bool

    @property
    def held(self) -> int:
        """Characters of a stream that may begin a stop string."""
        return 0 if self.script.think or self.script.calls else self.params.held

    @property
    def finish_reason(self) -> str:
        """stop: natural end; length: cut at the limit; tool_calls: a call chosen by the model."""
        if not self.ends_itself:
            return "length"
        return "tool_calls" if self.script.calls and self.params.tools.named is None else "stop"

    @property
    def plain(self) -> bool:
        """True if every token except the first and the last is one word without further fields."""
        return not self.params.token_ids and not self.held and self.script.body >= self.output_tokens - 1


def parse_completion(document: Mapping[str, Any], chat: bool, model: Model) -> CompletionRequest:
    """Parse a chat or text completion and plan its answer. Raise ApiError if vLLM would refuse it."""
    params = parse_sampling_params(document, chat, model)
    check_model(document, model)
    check_parsers(params.tools, model.tool_parser, model.auto_tools)
    tokens = chat_prompt(document, model.image_tokens) if chat else text_prompt(document)
    tokens = _truncated(tokens, params, model)
    if len(tokens) > model.max_model_len:
        message = f"maximum context length is {model.max_model_len} tokens, and the prompt alone has {len(tokens)} input tokens"
        raise ApiError(message, param="input_tokens")
    limit = _limit(tokens, chat, params, model)
    script, output, ends_itself = _planned(tokens, model, limit, params)
    return CompletionRequest(chat, params, tokens, script, output, limit, ends_itself)


def _truncated(tokens: list[str], params: SamplingParams, model: Model) -> list[str]:
    """Return the tokens of a prompt that are left. Raise ApiError if these are none, or more than the model takes."""
    if (most := params.truncate) is None:
        return tokens
    if most == 0 or most > model.max_model_len:
        raise ApiError(f"truncate_prompt_tokens: 1 to {model.max_model_len}, or -1", param="truncate_prompt_tokens")
    left = model.max_model_len - 1 if most < 0 else most
    return tokens[:left] if params.truncate_end else tokens[-left:]


def _limit(tokens: Sequence[str], chat: bool, params: SamplingParams, model: Model) -> int:
    """Maximum output tokens of an answer to this prompt."""
    default = model.max_model_len if chat else _TEXT_MAX_TOKENS
    limit = min(model.max_model_len - len(tokens), params.token_limit[1] if params.token_limit else default)
    if params.min_tokens > limit:
        raise ApiError(f"min_tokens: {params.min_tokens} is more than max_tokens {limit}", param="min_tokens")
    if limit < 1:
        raise ApiError("max_tokens: the prompt fills the model length", param="max_tokens")
    return limit


def _planned(tokens: Sequence[str], model: Model, limit: int, params: SamplingParams) -> tuple[Script, int, bool]:
    answer, answer_seed = answer_of(model.seed, tokens, params.seed)
    think = _length(Random(f"{answer_seed}/think"), model.reasoning_mean_tokens) if params.reasons else 0
    natural = None if params.ignore_eos else _length(Random(answer_seed), _mean_tokens(model, params))
    if natural is not None:
        natural = max(natural, params.min_tokens + 1, _SHORTEST)
    calls = choose_calls(params.tools, Random(f"{answer_seed}/script"), model.tool_call_share)
    filled = params.ignore_eos and params.tools.choice == "auto"
    return plan(answer, limit, natural, think or 0, calls=calls, filled=filled)


def _mean_tokens(model: Model, params: SamplingParams) -> float:
    """Mean length of natural answers. A limit is mostly the recorded length of an answer, so that by default it is reached."""
    if model.eos_mean_tokens is not None:
        return model.eos_mean_tokens
    return 0 if params.token_limit else _EOS_MEAN_TOKENS


def _length(random: Random, mean_tokens: float) -> int | None:
    """Draw a geometric length with this mean, at least 1; None without a mean."""
    if mean_tokens <= 0:
        return None
    if mean_tokens <= 1:
        return 1
    uniform = 1.0 - random.random()  # in (0, 1]
    return 1 + int(math.log(uniform) / math.log(1.0 - 1.0 / mean_tokens))
