"""Request of a locustfile task, and its body."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from inferload.base.errors import instead
from inferload.client.endpoints.dialect import DIALECTS
from inferload.client.requests.call_checks import OWN, CallError, check_field, check_not_written, check_own, headers_of
from inferload.scenario.schema.endpoints import ENDPOINTS, EndpointName
from inferload.scenario.schema.fields import no_json
from inferload.scenario.schema.request import RequestOptions
from inferload.workload.content.messages import sendable
from inferload.workload.content.script import Ask


@dataclass(frozen=True, slots=True)
class Call:
    """Request and time limits of one call of a task. `context`: messages, prompt or input, as JSON values; or a dict of several."""

    endpoint: EndpointName
    context: Any
    name: str | None = None  # class of the turn
    max_tokens: int | None = None
    model: str | None = None
    temperature: float | None = None
    tools: Sequence[Mapping[str, Any]] | None = None
    tool_choice: Any = None
    headers: tuple[tuple[str, str], ...] = ()
    timeout_s: float | None = None
    cancel_after_s: float | None = None
    body: Mapping[str, Any] = field(default_factory=dict)  # further fields

    def request_body(self, request: RequestOptions, model: str) -> bytes:
        """Return the JSON body. `request`: options of the scenario. (`bodies.BodyWriter.body` builds the bodies of sessions.)"""
        tools = [*(self.tools or ())]
        native = any("function" not in tool for tool in tools)  # in the endpoint's own format
        ask = Ask(
            (),
            self.max_tokens,
            tools=b"" if native or not tools else msgspec.json.encode(tools),
            tool_choice=None if native else self.tool_choice,
        )
        options = DIALECTS[self.endpoint].options(request, ask) | dict(request.extra_body)
        if native:
            options["tools"] = tools
            if self.tool_choice is not None:
                options["tool_choice"] = self.tool_choice
        if self.temperature is not None:
            options["temperature"] = self.temperature
        key, is_whole = ENDPOINTS[self.endpoint].context_key, isinstance(self.context, Mapping)
        context = self.context if is_whole else {key: self.context}
        document = {"model": self.model or model, **context} | options | dict(self.body)
        return encoded(document, _method(self.endpoint))


def encoded(document: Any, method: str) -> bytes:
    """Encode as JSON, with halves of surrogate pairs replaced, which answers may contain. CallError for other types."""
    try:
        return msgspec.json.encode(document)
    except UnicodeEncodeError:
        return msgspec.json.encode(_sendable(document))
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        raise CallError(f"{method}: {error}; a request may contain only text, numbers, lists and dicts") from error


def _sendable(value: Any) -> Any:
    if isinstance(value, str):
        return sendable(value)
    if isinstance(value, Mapping):
        return {_sendable(key): _sendable(item) for key, item in value.items()}
    return [_sendable(item) for item in value] if isinstance(value, list | tuple) else value


def _method(endpoint: EndpointName) -> str:
    return ENDPOINTS[endpoint].method or f"turn({endpoint!r})"


def call_of(endpoint: EndpointName, context: Any, options: Mapping[str, Any]) -> Call:
    """Return the call of a task's arguments. CallError for invalid ones."""
    if endpoint not in ENDPOINTS:
        raise CallError(f"turn: no endpoint {endpoint!r}; {instead(str(endpoint), ENDPOINTS)}")
    method, dialect = _method(endpoint), DIALECTS[endpoint]
    own = {name: value for name, value in options.items() if name in OWN}
    own.pop("catch_response", None)
    extra = own.pop("extra_body", None) or {}
    if not isinstance(extra, Mapping):
        raise CallError(f"{method}: extra_body is {extra!r}; give a dict of fields")
    body = {name: value for name, value in options.items() if name not in OWN}
    for name in body:
        check_field(method, dialect.fields, name)
    for name in extra:
        check_not_written(method, name)
    check_own(method, own, ENDPOINTS[endpoint].streamed)
    if problem := no_json(body | dict(extra)):
        raise CallError(f"{method}: {problem}")
    own["headers"] = headers_of(method, own.get("headers"))
    return Call(endpoint, dialect.checked(method, context), body=body | dict(extra), **own)


def check_conversation(options: Mapping[str, Any]) -> None:
    """CallError for an argument of a conversation that its turns do not take."""
    for name in options:
        if name not in OWN:
            check_field("conversation", DIALECTS["chat"].fields, name, also=("system",))
    call_of("chat", "", options)
