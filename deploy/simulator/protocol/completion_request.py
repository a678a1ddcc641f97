"""A completion request out of JSON, checked as vLLM checks it, and what it will be answered. No I/O."""

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
from .sampling_params import Show, Wishes, check_sampling, parse_wishes
from .schema import example
from .script import CONTENT, Ending, Piece, Script, Wish, call_pieces, plan
from .text import Lexicon, answer_of
from .tools import check_parsers, choose_calls

_TEXT_MAX_TOKENS = 16  # of /v1/completions where the request names none
_JSON_TOKEN = 4  # characters
_MOST_ANSWERS = 4096  # of one request: prompts times n


@dataclass(frozen=True, slots=True)
class Ask:
    """One answer as asked for, and what it will be: one of `choices` of a request."""

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
    show: Show
    named_tool: bool = False
    forced_tool: bool = False  # a call was required, of whichever function
    choice: int = 0
    choices: int = 1
    prompts: int = 1  # in the request; `choices` is over all of them
    request_id: str = ""  # as the body names it; empty: it does not
    most_output_tokens: int | None = None  # of a prompt's choices, at the last of them; None: at the others
    held_back: int = 0  # characters of a stream in which a stop string may begin

    @property
    def finish_reason(self) -> str:
        """stop: it came to its end; length: it was cut; tool_calls: it ends with calls that the model chose to make."""
        if not self.ends_itself:
            return "length"
        return "tool_calls" if self.script.calls and not self.named_tool else "stop"

    @property
    def plain(self) -> bool:
        """Each token in its middle is one word of the vocabulary, and nothing is said about it."""
        show = self.show
        return (
            show.logprobs is None
            and not show.token_ids
            and not self.held_back
            and show.reasoning
            and self.script.body >= self.output_tokens - 1
        )


def parse_asks(document: Mapping[str, Any], chat: bool, model: Model, lexicon: Lexicon) -> list[Ask]:
    """The answers that a chat or text completion asks for; ApiError where vLLM would refuse it."""
    wishes = parse_wishes(document, chat, model)
    check_model(document, model)
    check_parsers(wishes.tools, model.tool_parser, model.auto_tools)
    if (wanted := wishes.wanted) is not None and wanted[1] > model.max_model_len:
        raise ApiError(f"{wanted[0]}: the model's length is {model.max_model_len}, not {wanted[1]}", param=wanted[0])
    prompts = [chat_prompt(document, model.image_tokens)] if chat else text_prompts(document, lexicon)
    for tokens in prompts:
        check_length(tokens, model)
    check_sampling(document, wishes)
    each = 1 if wishes.n is None else wishes.n
    choices = each * len(prompts)
    if choices > _MOST_ANSWERS:
        raise ApiError(
            f"prompt: {len(prompts)} prompts times n={each} are over {_MOST_ANSWERS} answers", param="prompt"
        )
    asks = []
    for place in range(choices):
        tokens = prompts[place // each]
        limit = _limit(tokens, chat, wishes, model)
        seed = wishes.seed if choices == 1 else f"{wishes.seed}/{place}"
        made = _ask(tokens, chat, limit, wishes, _ending(tokens, seed, model, limit, wishes))
        number = json_fields.text(document, "request_id") or ""
        asks.append(replace(made, choice=place, choices=choices, prompts=len(prompts), request_id=number))
    for last in range(each - 1, choices, each):
        most = max(ask.output_tokens for ask in asks[last - each + 1 : last + 1])
        asks[last] = replace(asks[last], most_output_tokens=most)
    return asks


def _limit(tokens: Sequence[str], chat: bool, wishes: Wishes, model: Model) -> int:
    """The most output tokens of an answer to this prompt."""
    default = model.max_model_len if chat else _TEXT_MAX_TOKENS
    limit = min(model.max_model_len - len(tokens), wishes.wanted[1] if wishes.wanted else default)
    if limit < 1:
        raise ApiError("max_tokens: the prompt fills the model's length", param="max_tokens")
    if wishes.wanted and wishes.min_tokens > limit:
        raise ApiError(f"min_tokens: {wishes.min_tokens} is more than max_tokens, {limit}")
    return limit


def _ask(tokens: Sequence[str], chat: bool, limit: int, wishes: Wishes, ending: Ending) -> Ask:
    tools, stops = wishes.tools, wishes.stops
    silent = wishes.stop_shown or not stops or ending.script.calls
    return Ask(
        chat=chat,
        tokens=tokens,
        script=ending.script,
        output_tokens=ending.tokens,
        output_limit=limit,
        ends_itself=ending.ends_itself,
        stop=ending.stop,
        max_tokens=limit,
        stream=wishes.stream,
        include_usage=wishes.include_usage,
        continuous_usage=wishes.continuous_usage,
        cache_salt=wishes.cache_salt,
        show=wishes.show,
        named_tool=tools.named is not None,
        forced_tool=tools.choice in ("named", "required"),
        held_back=0 if silent else max(map(len, stops)) - 1,
    )


def _ending(tokens: Sequence[str], seed: int | str | None, model: Model, limit: int, wishes: Wishes) -> Ending:
    answer, number = answer_of(model.seed, tokens, seed)
    dice = Random(f"{number}/script")
    think = _length(Random(f"{number}/think"), model.reasoning_mean_tokens) if wishes.thinks else 0
    natural = None if wishes.ignore_eos else _natural_length(number, model.eos_mean_tokens)
    if natural is not None:
        natural = max(natural, wishes.min_tokens + 1)
    calls = choose_calls(wishes.tools, dice, model.tool_call_share)
    tail = call_pieces(calls) if calls else _json_pieces(wishes.form, dice)
    filled = wishes.ignore_eos and wishes.tools.choice == "auto" and bool(calls)
    stops = (wishes.stops, wishes.min_tokens, wishes.stop_shown)
    return plan(answer, Wish(limit, natural, think or 0, tail, calls, filled, *stops))


def _json_pieces(form: Any, dice: Random) -> tuple[Piece, ...]:
    if form is None:
        return ()
    said = json.dumps(example(form, dice), ensure_ascii=False)
    parts = [said[start : start + _JSON_TOKEN] for start in range(0, len(said), _JSON_TOKEN)]
    return (*(Piece(CONTENT, part, part) for part in parts), *call_pieces(()))


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
