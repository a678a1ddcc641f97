"""Parsing of completion requests with vLLM's checks, and the planned answers. No I/O."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from . import json_fields
from .errors import ApiError
from .model import Model, check_length, check_model
from .prompt import chat_prompt, text_prompts
from .sampling_params import OutputOptions, SamplingParams, check_sampling, parse_sampling_params
from .schema import example
from .script import CONTENT, AnswerLimits, Ending, Script, TokenPiece, call_pieces, plan
from .text import Lexicon, answer_of
from .tools import check_parsers, choose_calls

_TEXT_MAX_TOKENS = 16  # default of /v1/completions
_EOS_MEAN_TOKENS = 256.0  # of answers without a limit
_SHORTEST = 2  # tokens of a natural answer: one word and the end; an answer without output counts as a failure
_JSON_TOKEN = 4  # characters
_MAX_ANSWERS = 4096  # per request: prompts times n


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """One of `choices` requested answers, with its planned content."""

    chat: bool
    tokens: Sequence[str]
    script: Script
    output_tokens: int  # in total, including the end-of-text token
    output_limit: int
    ends_itself: bool
    stop: str | None  # stop string that ends the answer
    max_tokens: int | None
    stream: bool
    include_usage: bool
    continuous_usage: bool
    cache_salt: str
    show: OutputOptions
    named_tool: bool = False
    forced_tool: bool = False  # tool_choice required or a function
    choice: int = 0
    choices: int = 1
    prompts: int = 1  # in the request; `choices` counts the choices of all prompts
    request_id: str = ""  # of the request body; empty: none
    max_output_tokens: int | None = None  # of all choices of the prompt, set for the last choice only
    held_back: int = 0  # characters of a stream that may start a stop string

    @property
    def finish_reason(self) -> str:
        """stop: natural end or stop string; length: cut at the limit; tool_calls: calls chosen by the model."""
        if not self.ends_itself:
            return "length"
        return "tool_calls" if self.script.calls and not self.named_tool else "stop"

    @property
    def plain(self) -> bool:
        """True if every token except the first and the last is one word without further fields."""
        show = self.show
        return (
            show.logprobs is None
            and not show.token_ids
            and not self.held_back
            and show.reasoning
            and self.script.body >= self.output_tokens - 1
        )


def parse_completions(
    document: Mapping[str, Any], chat: bool, model: Model, lexicon: Lexicon
) -> list[CompletionRequest]:
    """Parse a chat or text completion into its answers. Raise ApiError if vLLM would refuse it."""
    params = parse_sampling_params(document, chat, model)
    check_model(document, model)
    check_parsers(params.tools, model.tool_parser, model.auto_tools)
    if (token_limit := params.token_limit) is not None and token_limit[1] > model.max_model_len:
        raise ApiError(
            f"{token_limit[0]}: the model length is {model.max_model_len}, not {token_limit[1]}", param=token_limit[0]
        )
    prompts = [chat_prompt(document, model.image_tokens)] if chat else text_prompts(document, lexicon)
    for tokens in prompts:
        check_length(tokens, model)
    check_sampling(document, params)
    n = 1 if params.n is None else params.n
    choices = n * len(prompts)
    if choices > _MAX_ANSWERS:
        raise ApiError(f"prompt: {len(prompts)} prompts times n={n} exceed {_MAX_ANSWERS} answers", param="prompt")
    completions = []
    for index in range(choices):
        tokens = prompts[index // n]
        limit = _limit(tokens, chat, params, model)
        seed = params.seed if choices == 1 else f"{params.seed}/{index}"
        planned = _completion(tokens, chat, limit, params, _ending(tokens, seed, model, limit, params))
        request_id = json_fields.text(document, "request_id") or ""
        completions.append(replace(planned, choice=index, choices=choices, prompts=len(prompts), request_id=request_id))
    for last in range(n - 1, choices, n):
        longest = max(completion.output_tokens for completion in completions[last - n + 1 : last + 1])
        completions[last] = replace(completions[last], max_output_tokens=longest)
    return completions


def _limit(tokens: Sequence[str], chat: bool, params: SamplingParams, model: Model) -> int:
    """Maximum output tokens of an answer to this prompt."""
    default = model.max_model_len if chat else _TEXT_MAX_TOKENS
    limit = min(model.max_model_len - len(tokens), params.token_limit[1] if params.token_limit else default)
    if limit < 1:
        raise ApiError("max_tokens: the prompt fills the model length", param="max_tokens")
    if params.token_limit and params.min_tokens > limit:
        raise ApiError(f"min_tokens: {params.min_tokens} is more than max_tokens, {limit}")
    return limit


def _completion(
    tokens: Sequence[str], chat: bool, limit: int, params: SamplingParams, ending: Ending
) -> CompletionRequest:
    tools, stops = params.tools, params.stops
    silent = params.include_stop or not stops or ending.script.calls
    return CompletionRequest(
        chat=chat,
        tokens=tokens,
        script=ending.script,
        output_tokens=ending.tokens,
        output_limit=limit,
        ends_itself=ending.ends_itself,
        stop=ending.stop,
        max_tokens=limit,
        stream=params.stream,
        include_usage=params.include_usage,
        continuous_usage=params.continuous_usage,
        cache_salt=params.cache_salt,
        show=params.show,
        named_tool=tools.named is not None,
        forced_tool=tools.choice in ("named", "required"),
        held_back=0 if silent else max(map(len, stops)) - 1,
    )


def _ending(tokens: Sequence[str], seed: int | str | None, model: Model, limit: int, params: SamplingParams) -> Ending:
    answer, answer_seed = answer_of(model.seed, tokens, seed)
    random = Random(f"{answer_seed}/script")
    think = _length(Random(f"{answer_seed}/think"), model.reasoning_mean_tokens) if params.reasons else 0
    natural = None if params.ignore_eos else _length(Random(answer_seed), _mean_tokens(model, params))
    if natural is not None:
        natural = max(natural, params.min_tokens + 1, _SHORTEST)
    calls = choose_calls(params.tools, random, model.tool_call_share)
    tail = call_pieces(calls) if calls else _json_pieces(params.schema, random)
    filled = params.ignore_eos and params.tools.choice == "auto" and bool(calls)
    stops = (params.stops, params.min_tokens, params.include_stop)
    return plan(answer, AnswerLimits(limit, natural, think or 0, tail, calls, filled, *stops))


def _mean_tokens(model: Model, params: SamplingParams) -> float:
    """Mean length of natural answers. A limit is mostly the recorded length of an answer, so that by default it is reached."""
    if model.eos_mean_tokens is not None:
        return model.eos_mean_tokens
    return 0 if params.token_limit else _EOS_MEAN_TOKENS


def _json_pieces(schema: Any, random: Random) -> tuple[TokenPiece, ...]:
    if schema is None:
        return ()
    text = json.dumps(example(schema, random), ensure_ascii=False)
    parts = [text[start : start + _JSON_TOKEN] for start in range(0, len(text), _JSON_TOKEN)]
    return (*(TokenPiece(CONTENT, part, part) for part in parts), *call_pieces(()))


def _length(random: Random, mean_tokens: float) -> int | None:
    """Draw a geometric length with this mean, at least 1; None without a mean."""
    if mean_tokens <= 0:
        return None
    if mean_tokens <= 1:
        return 1
    uniform = 1.0 - random.random()  # in (0, 1]
    return 1 + int(math.log(uniform) / math.log(1.0 - 1.0 / mean_tokens))
