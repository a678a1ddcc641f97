"""An endpoint that inferload does not have: /generate_stream of text-generation-inference. Its path is outside /v1."""

from typing import Any

import msgspec

from inferload.client.answers.number_bounds import OutputTokens
from inferload.client.answers.typed_events import TypedAnswer
from inferload.client.endpoints.dialect import Dialect, Encoded
from inferload.client.requests.call_checks import CallError
from inferload.scenario.schema.request import RequestOptions
from inferload.turns.record import Failure
from inferload.workload.content.messages import Message
from inferload.workload.content.script import Ask


class _Token(msgspec.Struct):
    text: str | None = None


class _Details(msgspec.Struct):
    finish_reason: str = ""
    generated_tokens: OutputTokens | None = None


class _Event(msgspec.Struct):
    token: _Token | None = None
    details: _Details | None = None
    error: Any = None


class GeneratedAnswer(TypedAnswer):
    """Answer whose last event has its details."""

    __slots__ = ()

    end_marker = "details"
    marks = (b"generated_tokens",)
    event_type = _Event
    decoder = msgspec.json.Decoder(_Event)

    def read(self, event: _Event, at_ns: int, data: bytes) -> None:
        """Process one decoded event."""
        self.last_event_ns = at_ns
        if event.error is not None:
            self._fail(Failure.SERVER_ERROR, data)
        elif event.token is not None:
            self.add_text(event.token.text, at_ns)
        if event.details is not None:
            self.set_finish_reason(event.details.finish_reason)
            self.output_tokens = event.details.generated_tokens
            self.closed = True


def _text(_message: Message, text: bytes) -> bytes:
    return text


def _inputs(encoded: Encoded) -> bytes:
    return b'"inputs":"' + b" ".join(text[1:-1] for _message, text in encoded) + b'"'


def _options(_request: RequestOptions, ask: Ask) -> dict[str, Any]:
    return {"stream": True, "parameters": {"max_new_tokens": ask.output_tokens, "details": True}}


def _checked(method: str, text: Any) -> Any:
    if isinstance(text, str) and text:
        return text
    raise CallError(f"{method}: inputs is {type(text).__name__}; give text")


DIALECT = Dialect(
    answer=GeneratedAnswer,
    message=_text,
    context=_inputs,
    options=_options,
    limit_key=lambda _request: "",
    checked=_checked,
    fields=frozenset(),
    logprobs=lambda _count: {},
)
