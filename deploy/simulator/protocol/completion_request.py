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

_TEXT_MAX_TOKENS = 16  # of /v1/completions where the request names none
_JSON_TOKEN = 4  # characters
_MOST_ANSWERS = 4096  # of one request: prompts times n


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """One of `choices` requested answers, with its planned content."""

    chat: bool
    tokens: Sequence[str]
    script: Script
    output_tokens: int  # in all, the end-of-text token included
    output_limit: int
    ends_itself: bool
    stop: str | None  # the stop string that ends it
    max_tokens: int | None
    stream: bool
    include_usage: bool
    continuous_usage: bool
    cache_salt: str
    show: OutputOptions
    named_tool: bool = False
    forced_tool: bool = False  # a call was required, of whichever function
    choice: int = 0
    choices: int = 1
    prompts: int = 1  # in the request; `choices` is over all of them
    request_id: str = ""  # as the body names it; empty: it does not
    max_output_tokens: int | None = None  # of a prompt's choices, at the last of them; None: at the others
    held_back: int = 0  # characters of a stream in which a stop string may begin

    @property
    def finish_reason(self) -> str:
        """stop: it came to its end; length: it was cut; tool_calls: it ends with calls that the model chose to make."""
        if not self.ends_itself:
            return "length"
        return "tool_calls" if self.script.calls and not self.named_tool else "stop"

    @property
    def plain(self) -> bool:
        """Whether every token but the first and the last is one word without further fields."""
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
    """Parse a chat or text completion into its answers. ApiError if vLLM would refuse it."""
    params = parse_sampling_params(document, chat, model)
    check_model(document, model)
    check_parsers(params.tools, model.tool_parser, model.auto_tools)
    if (wanted := params.wanted) is not None and wanted[1] > model.max_model_len:
        raise ApiError(f"{wanted[0]}: the model's length is {model.max_model_len}, not {wanted[1]}", param=wanted[0])
    prompts = [chat_prompt(document, model.image_tokens)] if chat else text_prompts(document, lexicon)
    for tokens in prompts:
        check_length(tokens, model)
    check_sampling(document, params)
    each = 1 if params.n is None else params.n
    choices = each * len(prompts)
    if choices > _MOST_ANSWERS:
        raise ApiError(
            f"prompt: {len(prompts)} prompts times n={each} are over {_MOST_ANSWERS} answers", param="prompt"
        )
    completions = []
    for place in range(choices):
        tokens = prompts[place // each]
        limit = _limit(tokens, chat, params, model)
        seed = params.seed if choices == 1 else f"{params.seed}/{place}"
        made = _completion(tokens, chat, limit, params, _ending(tokens, seed, model, limit, params))
        number = json_fields.text(document, "request_id") or ""
        completions.append(replace(made, choice=place, choices=choices, prompts=len(prompts), request_id=number))
    for last in range(each - 1, choices, each):
        most = max(completion.output_tokens for completion in completions[last - each + 1 : last + 1])
        completions[last] = replace(completions[last], max_output_tokens=most)
    return completions


def _limit(tokens: Sequence[str], chat: bool, params: SamplingParams, model: Model) -> int:
    """Maximum output tokens of an answer to this prompt."""
    default = model.max_model_len if chat else _TEXT_MAX_TOKENS
    limit = min(model.max_model_len - len(tokens), params.wanted[1] if params.wanted else default)
    if limit < 1:
        raise ApiError("max_tokens: the prompt fills the model's length", param="max_tokens")
    if params.wanted and params.min_tokens > limit:
        raise ApiError(f"min_tokens: {params.min_tokens} is more than max_tokens, {limit}")
    return limit


def _completion(
    tokens: Sequence[str], chat: bool, limit: int, params: SamplingParams, ending: Ending
) -> CompletionRequest:
    tools, stops = params.tools, params.stops
    silent = params.stop_shown or not stops or ending.script.calls
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
    answer, number = answer_of(model.seed, tokens, seed)
    dice = Random(f"{number}/script")
    think = _length(Random(f"{number}/think"), model.reasoning_mean_tokens) if params.thinks else 0
    natural = None if params.ignore_eos else _natural_length(number, model.eos_mean_tokens)
    if natural is not None:
        natural = max(natural, params.min_tokens + 1)
    calls = choose_calls(params.tools, dice, model.tool_call_share)
    tail = call_pieces(calls) if calls else _json_pieces(params.form, dice)
    filled = params.ignore_eos and params.tools.choice == "auto" and bool(calls)
    stops = (params.stops, params.min_tokens, params.stop_shown)
    return plan(answer, AnswerLimits(limit, natural, think or 0, tail, calls, filled, *stops))


def _json_pieces(form: Any, dice: Random) -> tuple[TokenPiece, ...]:
    if form is None:
        return ()
    said = json.dumps(example(form, dice), ensure_ascii=False)
    parts = [said[start : start + _JSON_TOKEN] for start in range(0, len(said), _JSON_TOKEN)]
    return (*(TokenPiece(CONTENT, part, part) for part in parts), *call_pieces(()))


def _natural_length(dice: int, mean_tokens: float) -> int | None:
    """A geometric length with the given mean, at least 1; None: the answer goes on until it is cut."""
    return _length(Random(dice), mean_tokens)


def _length(dice: Random, mean_tokens: float) -> int | None:
    if mean_tokens <= 0:
        return None
    if mean_tokens <= 1:
        return 1
    chance = 1.0 - dice.random()  # in (0, 1]
    return 1 + int(math.log(chance) / math.log(1.0 - 1.0 / mean_tokens))
