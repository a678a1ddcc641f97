"""Base of the endpoints: the requests and answers of one API, and helpers for its JSON.

Input of a request: messages whose text is already a JSON string. The encoding of a message depends on that message alone, so that
it is encoded once for all turns.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from inferload.base.on_use import OnUse
from inferload.client.answers.answer import Answer
from inferload.scenario.schema.endpoints import ENDPOINTS
from inferload.scenario.schema.request import RequestOptions
from inferload.workload.content.messages import Message
from inferload.workload.content.script import Ask

Encoded = Sequence[tuple[Message, bytes]]


@dataclass(frozen=True, slots=True)
class Dialect:
    """Requests and answers of one endpoint.

    Requests of sessions: `message` encodes one message with its text as a JSON string, `context` returns the keys with all
    messages, `options` all other keys. `limit_key`: key of the limit of an answer; "" if it is not one of the first level.

    Calls of tasks: `checked` returns the context of a call, for the key `context_key` of the endpoint, or raises CallError; its
    first argument is the name of the method. `fields`: documented fields of the API (OpenAI, Anthropic, vLLM), without those that
    arguments set.

    `answer`: parser of the event stream. `logprobs`: the keys that request log probabilities of this number of tokens.
    """

    answer: type[Answer]
    message: Callable[[Message, bytes], bytes]
    context: Callable[[Encoded], bytes]
    options: Callable[[RequestOptions, Ask], dict[str, Any]]
    limit_key: Callable[[RequestOptions], str]
    checked: Callable[[str, Any], Any]
    fields: frozenset[str]
    logprobs: Callable[[int], dict[str, Any]]


def words(text: str) -> frozenset[str]:
    """Return the words of a text."""
    return frozenset(text.split())


def to_json(value: Any) -> bytes:
    """Encode a value."""
    return msgspec.json.encode(value)


def joined(encoded: Encoded) -> bytes:
    """Return the encoded messages as the items of a list."""
    return b",".join([body for _message, body in encoded if body])


def tool_named(tool_choice: Any) -> str | None:
    """Return the tool that a chat-completions `tool_choice` names; None for auto, none and required."""
    return tool_choice["function"]["name"] if isinstance(tool_choice, Mapping) else None


# Each row of `ENDPOINTS` has a module of its name beside this one, with a `DIALECT`.
DIALECTS = OnUse[Dialect]({name: f"inferload.client.endpoints.{name}:DIALECT" for name in ENDPOINTS})
