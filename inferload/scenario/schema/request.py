"""Requests of a scenario: endpoint, options and timeouts."""

from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from inferload.scenario.schema.base import Flag, ScenarioPart, Share, add_up, distinct, optional
from inferload.scenario.schema.distributions import LEAST, NonNegative, Positive
from inferload.scenario.schema.endpoints import ENDPOINTS, EndpointName, MaxTokensField, names_of
from inferload.scenario.schema.fields import HeaderName, Headers, Json, TokenHeader

_UNFORCED = names_of(lambda row: not row.ignore_eos)
_COUNTING = names_of(lambda row: row.token_counts_option)
_WITH_TWO_LIMITS = names_of(lambda row: row.max_completion_tokens)


class Timeouts(ScenarioPart):
    """Timeouts of a turn, in seconds. On an idle client a turn fails at `connect_s`, or 0.25 to 0.75 s after another limit."""

    connect_s: Positive = optional(10.0, "DNS, TCP and TLS together")
    first_event_s: Positive = optional(600.0, "request to first event of the answer")
    between_events_s: Positive = optional(120.0, "interval between two events of the answer")
    turn_s: Positive = optional(3600.0, "the whole turn")


class ModelShare(ScenarioPart):
    """One of several models of a run."""

    name: Annotated[str, Field(min_length=1)] = Field(description="model or LoRA adapter, as the server lists it")
    share: Share = Field(description="fraction of the sessions; the shares of all models sum to 1")


class _Popular(ScenarioPart):
    """Models or LoRA adapters by popularity, in place of their shares."""

    zipf: NonNegative = Field(
        description="exponent of Zipf's law: name n has the weight 1 / n ** zipf; 0: all the same"
    )
    names: Annotated[tuple[str, ...], Field(strict=False)] = optional((), "names, the most popular first")
    pattern: str | None = optional(None, "instead of names: one with {n}, such as adapter-{n}")
    count: Annotated[int, Field(strict=True, ge=1, le=1000)] | None = optional(
        None, "with pattern: names, with n from 1"
    )

    @model_validator(mode="after")
    def _one_way_to_name(self) -> "_Popular":
        by_pattern = self.pattern is not None and self.count is not None and not self.names
        if not by_pattern and (not self.names or self.pattern is not None or self.count is not None):
            raise ValueError("give names, or pattern and count")
        if by_pattern and "{n}" not in str(self.pattern):
            raise ValueError("pattern has no {n}; write it as adapter-{n}")
        if self.shares[-1]["share"] < LEAST:
            raise ValueError(f"the last name has a share below {LEAST:g}; lower zipf, or name fewer")
        return self

    @property
    def shares(self) -> list[dict[str, Any]]:
        """Names with their shares, as in a list of models."""
        names = self.names or [str(self.pattern).replace("{n}", str(n)) for n in range(1, (self.count or 0) + 1)]
        weights = [rank**-self.zipf for rank in range(1, len(names) + 1)]
        return [{"name": name, "share": weight / sum(weights)} for name, weight in zip(names, weights, strict=True)]


class ClassRequest(ScenarioPart):
    """Options of the requests of one class of a mix, such as one tenant; what is null is as in `request` of the run."""

    headers: Headers = optional(
        {},
        "additional HTTP headers, without credentials; they replace those of the run with the same name",
        validate_default=True,
    )
    api_key_file: str | None = optional(
        None,
        "file with the API key of the class, on the master and on each worker, relative to the current directory, else "
        "to the scenario's folder; null: the key of the run",
        min_length=1,
    )
    priority: Annotated[int, Field(strict=True, ge=-1_000_000, le=1_000_000)] | None = optional(
        None,
        "key priority of the body, for servers that schedule by it: vLLM with --scheduling-policy priority (low first)",
    )
    model: str | None = optional(None, "model or LoRA adapter of its sessions", min_length=1)


class RequestOptions(ScenarioPart):
    """Endpoint and options of each request."""

    endpoint: EndpointName = optional(
        "chat", f"API endpoint: {', '.join(f'{row.name} ({row.path})' for row in ENDPOINTS.values())}"
    )
    ignore_eos: Flag = optional(
        True,
        "force every answer to its planned length (option of vLLM); the default is false for endpoint "
        f"{', '.join(_UNFORCED)} and the workloads live_agent and tasks",
    )
    continuous_usage: Flag = optional(
        False, "request token counts in every event: exact tokens per event, at some cost to the server"
    )
    usage: Flag = optional(
        True,
        "request the token counts of each answer (stream_options); false for a server that refuses it and "
        "reports none, or reports them unasked",
    )
    max_tokens_field: Literal["auto", MaxTokensField] = optional(
        "auto",
        f"key of the limit of an answer on endpoint {', '.join(_WITH_TWO_LIMITS)}: auto "
        "(max_completion_tokens if the server refuses max_tokens), max_tokens or max_completion_tokens",
    )
    models: Annotated[tuple[ModelShare, ...], Field(strict=False)] = optional(
        (),
        "models or LoRA adapters by share: list of {name, share}; or by popularity: {zipf: 1.0, names: [...]} or "
        "{zipf: 1.0, pattern: adapter-{n}, count: 100}, whose name n has the weight 1 / n ** zipf; empty: --model",
    )
    extra_body: Json = optional({}, "additional keys of the request body, such as temperature", validate_default=True)
    headers: Headers = optional({}, "additional HTTP headers, without credentials", validate_default=True)
    affinity_header: HeaderName | None = optional(
        None,
        "header that carries the session's id, such as X-Session-ID, for routers with session affinity; null: none",
    )
    server_header: HeaderName | None = optional(
        None,
        "header of an answer that names the server which gave it, as HOST:PORT or URL of its metrics page, set by a "
        "proxy or router: the figures of its turns are compared with this server; null: none",
    )
    session_token_header: TokenHeader | None = optional(
        None,
        "header of an answer that the next turns of the session send back, such as x-session-token, for routers that "
        "keep a session on its server by it; null: none",
    )
    cookies: Flag = optional(
        True,
        "send the cookies that the answers of a session set back with its next turns, for routers that keep a session "
        "on its server by them",
    )
    answer_digests: Flag = optional(
        False, "record a digest of the text, reasoning and tool calls of each answer, to compare two runs"
    )
    wrong_length: Literal["stop", "warn"] = optional(
        "stop",
        "if the server counts more than twice or less than half of the planned tokens of a first prompt, and "
        "over 256 apart, or refuses it in full and takes a short one: stop (no load is sent) or warn",
    )
    timeouts: Timeouts = optional(Timeouts(), "timeouts of a turn, in seconds")

    @model_validator(mode="before")
    @classmethod
    def _default_of_endpoint(cls, data: Any) -> Any:
        """Set `ignore_eos` to False by default if the endpoint does not support it."""
        if isinstance(data, dict) and data.get("endpoint") in _UNFORCED and "ignore_eos" not in data:
            return {**data, "ignore_eos": False}
        return data

    @field_validator("models", mode="before")
    @classmethod
    def _popular(cls, models: Any) -> Any:
        return _Popular.model_validate(models).shares if isinstance(models, dict) else models

    @field_validator("models", mode="after")
    @classmethod
    def _models_add_up(cls, models: tuple[ModelShare, ...]) -> tuple[ModelShare, ...]:
        if models:
            add_up([model.share for model in models])
        distinct("model", [model.name for model in models], "give it one share")
        return models

    @field_validator("ignore_eos", "continuous_usage", "usage", "max_tokens_field", mode="after")
    @classmethod
    def _endpoint_can(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse the value of an option that the endpoint, or another option, does not go with."""
        key, endpoint = info.field_name, info.data.get("endpoint", "chat")
        unable = f"endpoint {endpoint} does not support it"
        if key == "ignore_eos" and value and endpoint in _UNFORCED:
            raise ValueError(f"{unable}; remove it: answers end when the model ends them")
        if key == "continuous_usage" and value and endpoint not in _COUNTING:
            raise ValueError(f"{unable}; use {' or '.join(_COUNTING)}, or remove it")
        if key == "usage" and not value and endpoint not in _COUNTING:
            raise ValueError(f"endpoint {endpoint} always reports token counts; remove it")
        if key == "usage" and not value and info.data.get("continuous_usage"):
            raise ValueError("continuous_usage: true requests token counts; remove one of them")
        if value == "max_completion_tokens" and endpoint not in _WITH_TWO_LIMITS:
            raise ValueError(f"{unable}; use {' or '.join(_WITH_TWO_LIMITS)}, or remove it")
        return value
