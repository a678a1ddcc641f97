"""A completion request out of JSON, checked as vLLM checks it, and its errors in vLLM's form. No I/O."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from random import Random
from typing import Any

from .http import Reply, json_reply
from .text import Answer, Lexicon, answer_of, chat_tokens

_SALT_LENGTH = 128


class ApiError(Exception):
    """Answered with a status and vLLM's error body."""

    def __init__(
        self, message: str, status: int = 400, kind: str = "BadRequestError", param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.param = param

    def reply(self, headers: tuple[tuple[str, str], ...] = ()) -> Reply:
        """The error as it is sent."""
        reply = json_reply(error_document(str(self), self.status, self.kind, self.param), self.status)
        return Reply(reply.status, reply.body, headers=headers)


def error_document(message: str, status: int, kind: str | None = None, param: str | None = None) -> dict[str, Any]:
    """vLLM's error body; `kind` None: the status's own phrase."""
    phrase = HTTPStatus(status).phrase if status in HTTPStatus._value2member_map_ else "Error"
    return {"error": {"message": message, "type": kind or phrase, "param": param, "code": status}}


@dataclass(frozen=True, slots=True)
class Model:
    """What requests are checked against, and how answers are made."""

    name: str
    max_model_len: int
    seed: int
    eos_mean_tokens: float  # 0: answers never end by themselves


@dataclass(frozen=True, slots=True)
class Ask:
    """One completion as asked for, and what it will be answered."""

    chat: bool
    tokens: Sequence[str]
    answer: Answer
    output_tokens: int  # in all, the end-of-text token included
    output_limit: int
    ends_itself: bool  # the last token is the end of the text and has no words
    max_tokens: int | None
    stream: bool
    include_usage: bool
    continuous_usage: bool
    cache_salt: str


def parse_json(body: bytes) -> dict[str, Any]:
    """The body's JSON object; ApiError as the framework around vLLM words it."""
    try:
        document = json.loads(body)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        place = getattr(error, "pos", 0)
        raise ApiError(f"1 validation error:\n  json_invalid: {error}", 400, "Bad Request", f"body.{place}") from None
    if not isinstance(document, dict):
        raise ApiError("1 validation error:\n  the body is not an object", 400, "Bad Request", "body")
    return document


def parse_ask(document: Mapping[str, Any], chat: bool, model: Model, lexicon: Lexicon) -> Ask:
    """A chat or text completion; ApiError where vLLM would refuse it, or where the simulator cannot do it."""
    check_model(document, model)
    tokens = prompt_tokens(document, chat, lexicon)
    if document.get("n") not in (None, 1):
        raise ApiError("n: the simulator gives one answer only", param="n")
    max_tokens = _count(document, "max_completion_tokens" if chat else "max_tokens", 1)
    if chat and max_tokens is None:
        max_tokens = _count(document, "max_tokens", 1)
    limit = _limit(len(tokens), max_tokens, model)
    seed = document.get("seed")
    answer, dice = answer_of(model.seed, tokens, seed if isinstance(seed, int) else None)
    natural = None if document.get("ignore_eos") is True else _natural_length(dice, model.eos_mean_tokens)
    if natural is not None:
        natural = max(natural, (_count(document, "min_tokens", 0) or 0) + 1)
    ends_itself = natural is not None and natural <= limit
    options = _options(document)
    usage = options.get("include_usage") is True
    return Ask(
        chat=chat,
        tokens=tokens,
        answer=answer,
        output_tokens=natural if ends_itself and natural is not None else limit,
        output_limit=limit,
        ends_itself=ends_itself,
        max_tokens=max_tokens,
        stream=document.get("stream") is True,
        include_usage=usage,
        continuous_usage=usage and options.get("continuous_usage_stats") is True,
        cache_salt=_salt(document),
    )


def check_model(document: Mapping[str, Any], model: Model) -> None:
    """ApiError 404 where another model is named."""
    name = document.get("model")
    if name is not None and name != model.name:
        raise ApiError(f"model `{name}` is not served here; served is {model.name}", 404, "NotFoundError", "model")


def prompt_tokens(document: Mapping[str, Any], chat: bool, lexicon: Lexicon) -> list[str]:
    """The words of a chat's messages, or of a prompt that is a text or a list of token ids."""
    if chat:
        tools = document.get("tools")
        turns = _messages(document.get("messages"))
        open_turn = document.get("add_generation_prompt") is not False
        return chat_tokens(turns, json.dumps(tools) if tools else "", open_turn)
    prompt = document.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
        prompt = prompt[0]
    if isinstance(prompt, list) and prompt and all(type(each) is int for each in prompt):
        return lexicon.decode(prompt)
    if not isinstance(prompt, str) or not prompt.split():
        raise _invalid("prompt", "needs a text with a word in it, or a list of token ids")
    return prompt.split()


def _messages(messages: Any) -> list[tuple[str, str]]:
    if not isinstance(messages, list) or not messages:
        raise _invalid("messages", "needs a list of messages")
    turns = []
    for place, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise _invalid(f"messages.{place}.role", "needs an object with a role")
        text = _content(message.get("content"), place)
        for key in ("reasoning", "tool_calls"):
            if message.get(key):
                text += " " + (message[key] if isinstance(message[key], str) else json.dumps(message[key]))
        turns.append((message["role"], text))
    return turns


def _content(content: Any, place: int) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    parts = content if isinstance(content, list) else [content]
    texts: list[str] = []
    for part in parts:
        text = part.get("text") if isinstance(part, dict) else part
        if not isinstance(text, str):
            raise _invalid(f"messages.{place}.content", "the simulator reads text only")
        texts.append(text)
    return "\n".join(texts)


def _limit(prompt: int, max_tokens: int | None, model: Model) -> int:
    room = model.max_model_len - prompt
    if room < 1:
        raise ApiError(
            f"maximum context length is {model.max_model_len} tokens, and the prompt alone has {prompt} input tokens",
            param="input_tokens",
        )
    if max_tokens is not None and max_tokens > room:
        raise ApiError(
            f"maximum context length is {model.max_model_len} tokens: {prompt} input tokens leave room for {room}, "
            f"and {max_tokens} were asked for",
            param="max_tokens",
        )
    return room if max_tokens is None else max_tokens


def _natural_length(dice: int, mean_tokens: float) -> int | None:
    """A geometric length with the given mean, at least 1; None: the answer goes on until it is cut."""
    if mean_tokens <= 0:
        return None
    if mean_tokens <= 1:
        return 1
    chance = 1.0 - Random(dice).random()  # in (0, 1]
    return 1 + int(math.log(chance) / math.log(1.0 - 1.0 / mean_tokens))


def _options(document: Mapping[str, Any]) -> Mapping[str, Any]:
    options = document.get("stream_options")
    if options is None:
        return {}
    if not isinstance(options, dict):
        raise _invalid("stream_options", "needs an object")
    if document.get("stream") is not True:
        raise ApiError("stream_options: only together with stream", param="stream_options")
    return options


def _count(document: Mapping[str, Any], key: str, least: int) -> int | None:
    value = document.get(key)
    if value is None:
        return None
    if type(value) is not int:
        raise _invalid(key, "needs a whole number")
    if value < least:
        raise ApiError(f"{key}: at least {least}, not {value}", param=key)
    return value


def _salt(document: Mapping[str, Any]) -> str:
    salt = document.get("cache_salt")
    if salt is None:
        return ""
    if not isinstance(salt, str) or not salt or len(salt) > _SALT_LENGTH or any(each in "@/\\\0" for each in salt):
        raise ApiError("cache_salt: 1 to 128 characters without @, /, backslash and NUL", param="cache_salt")
    return salt


def _invalid(key: str, need: str) -> ApiError:
    return ApiError(f"1 validation error:\n  body.{key}: {need}", 400, "Bad Request", f"body.{key}")
