"""Completions of OpenAI: /completions.

A prompt has the concatenated texts without roles. An answer follows its prompt directly, as the model generated it, so that a
prefix cache finds it; a blank line precedes any other message.
"""

import re
from functools import partial
from typing import Any

from inferload.client.answers.chat import ChatAnswer
from inferload.client.endpoints.chat import SAMPLING, limited
from inferload.client.endpoints.dialect import Dialect, Encoded
from inferload.client.requests.call_checks import input_of
from inferload.scenario.schema.request import RequestOptions
from inferload.workload.content.messages import Message
from inferload.workload.content.script import Ask

_LIMIT_KEY = "max_tokens"


def _plain_text(message: Message, text: bytes) -> bytes:
    if message.images or message.tool_calls:
        raise ValueError("the completions endpoint does not support images and tool calls")
    return text


def _completions_options(request: RequestOptions, ask: Ask) -> dict[str, Any]:
    if ask.tools:
        raise ValueError("the completions endpoint does not support tools")
    return limited(request, ask, _LIMIT_KEY)


def _prompt(encoded: Encoded) -> bytes:
    parts: list[bytes] = []
    for message, text in encoded:
        if parts:
            parts.append(_gap(parts[-1], text) if message.role == "assistant" else rb"\n\n")
        parts.append(text[1:-1])
    return b'"prompt":"' + b"".join(parts) + b'"'


def _gap(before: bytes, text: bytes) -> bytes:
    """Return a blank between two words: generated and recorded answers do not start with one."""
    return b" " if _WORD_END.search(before[-8:]) and text[1:2].isalnum() else b""


_WORD_END = re.compile(rb"(?<!\\)[A-Za-z0-9]$(?<!\\u[0-9a-f]{4})")


DIALECT = Dialect(
    answer=ChatAnswer,
    message=_plain_text,
    context=_prompt,
    options=_completions_options,
    limit_key=lambda _request: _LIMIT_KEY,
    checked=partial(input_of, name="prompt", kind=int, items="token ids"),
    fields=SAMPLING | {"best_of", "echo", "suffix"},
    logprobs=lambda count: {"logprobs": count},
)
