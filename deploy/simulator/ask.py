"""A completion request out of JSON, checked as vLLM checks it, and what it will be answered. No I/O."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from . import fields
from .errors import ApiError, invalid
from .prompt import chat_prompt, text_prompts
from .schema import example
from .script import CONTENT, Ending, Piece, Script, Wish, call_pieces, plan
from .text import ID_LIMIT, Lexicon, answer_of
from .tools import Tools, check_parsers, choose_calls, parse_tools

_SALT_LENGTH = 128
_TEXT_MAX_TOKENS = 16  # of /v1/completions where the request names none
_MOST_LOGPROBS = 20
_MOST_CHOICES = 64
_INT64 = 2**63
_JSON_TOKEN = 4  # characters


@dataclass(frozen=True, slots=True)
class Model:
    """What requests are checked against, and how answers are made."""

    name: str
    max_model_len: int
    seed: int
    eos_mean_tokens: float  # 0: answers never end by themselves
    aliases: tuple[str, ...] = ()  # further names that it answers to
    reasoning: bool = False  # --reasoning-parser: answers begin with thought
    reasoning_mean_tokens: float = 64.0
    thinking: bool = True  # unless the request says otherwise (enable_thinking)
    tool_parser: bool = False  # --tool-call-parser
    auto_tools: bool = False  # --enable-auto-tool-choice
    tool_call_share: float = 0.5  # answers with calls where the choice is auto
    image_tokens: int = 0  # of a picture; 0: the model takes none


@dataclass(frozen=True, slots=True)
class Show:
    """What a request wants to see beside the text. `logprobs` None: none; else so many alternatives."""

    logprobs: int | None = None
    token_ids: bool = False
    reasoning: bool = True
    echo: bool = False


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
    show: Show = Show()
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
    salt = _salt(document)
    options = _options(document)
    show, tools = _show(document, chat), parse_tools(document) if chat else Tools()
    stops, salt_seed = _stops(document), fields.integer(document, "seed", -_INT64, _INT64 - 1)
    names = ("max_completion_tokens", "max_tokens") if chat else ("max_tokens",)
    wanted = next(((name, value) for name in names if (value := fields.integer(document, name)) is not None), None)
    count, form = fields.integer(document, "n"), _form(document)
    ignore_eos, least = fields.flag(document, "ignore_eos"), fields.integer(document, "min_tokens") or 0
    shown_stop = fields.flag(document, "include_stop_str_in_output")
    stream, thinks = fields.flag(document, "stream"), chat and _thinks(document, model)
    usage = fields.flag(options, "include_usage")
    continuous = usage and fields.flag(options, "continuous_usage_stats")
    check_model(document, model)
    check_parsers(tools, model.tool_parser, model.auto_tools)
    if wanted is not None and wanted[1] > model.max_model_len:
        raise ApiError(f"{wanted[0]}: the model's length is {model.max_model_len}, not {wanted[1]}", param=wanted[0])
    prompts = [chat_prompt(document, model.image_tokens)] if chat else text_prompts(document, lexicon)
    for tokens in prompts:
        _check_length(tokens, model)
    _check_sampling(document, count, least, wanted)
    default = None if chat else _TEXT_MAX_TOKENS
    asks = []
    choices = (1 if count is None else count) * len(prompts)
    for place in range(choices):
        tokens = prompts[place * len(prompts) // choices]
        limit = min(model.max_model_len - len(tokens), wanted[1] if wanted else default or model.max_model_len)
        if limit < 1:
            raise ApiError("max_tokens: the prompt fills the model's length", param="max_tokens")
        if wanted and least > limit:
            raise ApiError(f"min_tokens: {least} is more than max_tokens, {limit}")
        which = salt_seed if choices == 1 else f"{salt_seed}/{place}"
        demand = _Demand(limit, ignore_eos, least, thinks, tools, form, stops, shown_stop)
        ending = _ending(tokens, which, model, demand)
        asks.append(
            Ask(
                chat=chat,
                tokens=tokens,
                script=ending.script,
                output_tokens=ending.tokens,
                output_limit=limit,
                ends_itself=ending.ends_itself,
                stop=ending.stop,
                max_tokens=limit,
                stream=stream,
                include_usage=usage,
                continuous_usage=continuous,
                cache_salt=salt,
                show=show,
                named_tool=tools.named is not None,
                forced_tool=tools.choice in ("named", "required"),
                choice=place,
                choices=choices,
                prompts=len(prompts),
                request_id=fields.text(document, "request_id") or "",
                held_back=0 if shown_stop or not stops or ending.script.calls or form else max(map(len, stops)) - 1,
            )
        )
    each = choices // len(prompts)
    for last in range(each - 1, choices, each):
        most = max(ask.output_tokens for ask in asks[last - each + 1 : last + 1])
        asks[last] = replace(asks[last], most_output_tokens=most)
    return asks


@dataclass(frozen=True, slots=True)
class _Demand:
    """What bounds an answer, as the request has it."""

    limit: int
    ignore_eos: bool
    min_tokens: int
    thinks: bool
    tools: Tools
    form: Any  # the JSON schema that the answer has to fit; None: words
    stops: tuple[str, ...]
    stop_shown: bool


def _ending(tokens: Sequence[str], seed: int | str | None, model: Model, demand: _Demand) -> Ending:
    answer, number = answer_of(model.seed, tokens, seed)
    dice = Random(f"{number}/script")
    think = _length(Random(f"{number}/think"), model.reasoning_mean_tokens) if demand.thinks else 0
    natural = None if demand.ignore_eos else _natural_length(number, model.eos_mean_tokens)
    if natural is not None:
        natural = max(natural, demand.min_tokens + 1)
    calls = choose_calls(demand.tools, dice, model.tool_call_share)
    tail = call_pieces(calls) if calls else _json_pieces(demand.form, dice)
    filled = demand.ignore_eos and demand.tools.choice == "auto" and bool(calls)
    stops = (demand.stops, demand.min_tokens, demand.stop_shown)
    return plan(answer, Wish(demand.limit, natural, think or 0, tail, calls, filled, *stops))


def _json_pieces(form: Any, dice: Random) -> tuple[Piece, ...]:
    if form is None:
        return ()
    said = json.dumps(example(form, dice), ensure_ascii=False)
    parts = [said[start : start + _JSON_TOKEN] for start in range(0, len(said), _JSON_TOKEN)]
    return (*(Piece(CONTENT, part, part) for part in parts), *call_pieces(()))


def check_model(document: Mapping[str, Any], model: Model) -> None:
    """ApiError 404 where another model is named."""
    name = fields.text(document, "model")
    if name is not None and name != model.name and name not in model.aliases:
        served = ", ".join((model.name, *model.aliases))
        raise ApiError(f"model `{name}` is not served here; served is {served}", 404, "NotFoundError", "model")


def _check_length(tokens: Sequence[str], model: Model) -> None:
    if len(tokens) > model.max_model_len:
        raise ApiError(
            f"maximum context length is {model.max_model_len} tokens, and the prompt alone has {len(tokens)} input tokens",
            param="input_tokens",
        )


def _check_sampling(document: Mapping[str, Any], n: int | None, least: int, wanted: tuple[str, int] | None) -> None:
    if n is not None and not 1 <= n <= _MOST_CHOICES:
        raise ApiError(f"n: 1 to {_MOST_CHOICES}, not {n}")
    if wanted is not None and wanted[1] < 1:
        raise ApiError(f"{wanted[0]}: at least 1, not {wanted[1]}", param="max_tokens")
    if least < 0:
        raise ApiError(f"min_tokens: 0 or more, not {least}")
    fields.check_sense(document)
    bias = fields.mapping(document, "logit_bias") or {}
    if any(not key.isdigit() or int(key) >= ID_LIMIT for key in bias):
        raise ApiError("logit_bias: names a token that the model does not have", param="logit_bias")


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


def _thinks(document: Mapping[str, Any], model: Model) -> bool:
    given = fields.mapping(document, "chat_template_kwargs") or {}
    if isinstance(given.get("enable_thinking"), bool):
        return model.reasoning and bool(given["enable_thinking"])
    effort = document.get("reasoning_effort")
    return model.reasoning and (model.thinking if effort is None else effort != "none")


def _options(document: Mapping[str, Any]) -> Mapping[str, Any]:
    options = document.get("stream_options")
    if options is None:
        return {}
    if not isinstance(options, dict):
        raise invalid("stream_options", "needs an object")
    if options and not fields.flag(document, "stream"):
        raise ApiError("stream_options: only together with stream", param="stream_options")
    return options


def _show(document: Mapping[str, Any], chat: bool) -> Show:
    ids = fields.flag(document, "return_token_ids")
    if not chat:
        wanted = fields.integer(document, "logprobs")
        if wanted is not None and wanted < -1:
            raise ApiError(f"logprobs: 0 or more, or -1, not {wanted}", param="logprobs")
        return Show(_alternatives(wanted), ids, echo=fields.flag(document, "echo"))
    top, on = fields.integer(document, "top_logprobs") or 0, fields.flag(document, "logprobs")
    if top and not on:
        raise ApiError("top_logprobs: only together with logprobs", param="top_logprobs")
    return Show(_alternatives(top) if on else None, ids, fields.flag(document, "include_reasoning", True))


def _alternatives(wanted: int | None) -> int | None:
    if wanted is not None and wanted > _MOST_LOGPROBS:
        raise ApiError(f"logprobs: up to {_MOST_LOGPROBS}, not {wanted}", param="logprobs")
    return wanted


def _form(document: Mapping[str, Any]) -> Any:
    """The JSON schema that the answer has to fit; None: it need not."""
    wanted = fields.mapping(document, "response_format") or {}
    if wanted.get("type") == "json_schema":
        inner = wanted.get("json_schema")
        if not isinstance(inner, dict):
            raise ApiError("response_format: json_schema needs a schema", param="response_format")
        return inner.get("schema") or {"type": "object"}
    if wanted.get("type") == "json_object":
        return {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}
    return (fields.mapping(document, "structured_outputs") or {}).get("json")


def _stops(document: Mapping[str, Any]) -> tuple[str, ...]:
    stop = document.get("stop")
    if stop is None:
        return ()
    listed = [stop] if isinstance(stop, str) else stop
    if not isinstance(listed, list) or not all(isinstance(each, str) for each in listed):
        raise invalid("stop", "needs a string or a list of strings")
    if "" in listed:
        raise ApiError("stop: an empty string ends nothing")
    return tuple(listed)


def _salt(document: Mapping[str, Any]) -> str:
    salt = document.get("cache_salt")
    if salt is None:
        return ""
    if not isinstance(salt, str) or not salt or len(salt) > _SALT_LENGTH or any(each in "@/\\\0" for each in salt):
        raise ApiError("cache_salt: 1 to 128 characters without @, /, backslash and NUL", param="cache_salt")
    return salt
