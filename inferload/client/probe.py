"""Pages of a server before the load: its list of models, version, engine and tokenizer."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple
from urllib.parse import urljoin, urlsplit

import msgspec

from inferload.base.errors import UsageError
from inferload.base.http_status import is_of_gateway
from inferload.client import gateways
from inferload.client.answers.number_bounds import UNDECODABLE
from inferload.client.client import ClientSettings
from inferload.client.connection.target import Target
from inferload.client.fetch import Fetched, Fetcher, FetchError
from inferload.client.first_turn import SentTurns, key_hint
from inferload.client.model_list import ListedModel, context_of, listed, models_in, only_model
from inferload.client.tokenizer import TokenizeForm, form_of
from inferload.scenario.schema.endpoints import ENDPOINTS
from inferload.turns.record import Failure

logger = logging.getLogger(__name__)

_OTHER_PATH = "give the address of an OpenAI-compatible API with --host"
_BEHIND = "start the server behind the gateway, or correct its address there"
# Engines by the owner of their models. The names are those of metrics pages.
_RUST = "vllm-frontend-rs"
_ENGINES = {"vllm": "vllm", _RUST: "vllm", "sglang": "sglang", "tensorrt_llm": "tensorrt-llm", "llamacpp": "llama.cpp"}
# Failures of the first page after which no request can be sent.
_UNREACHABLE = (Failure.CONNECT, Failure.TLS, Failure.TIMEOUT_CONNECT)


@dataclass(frozen=True, slots=True)
class ModelList:
    """List of a server's models. `target`: the server, read as the list was found.

    `problem`: why there is no list, with its `remedy`; both "" if there is one.
    """

    target: Target
    models: tuple[ListedModel, ...] = ()
    problem: str = ""
    remedy: str = ""
    gateway: str = ""  # from the headers of the page

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the models."""
        return tuple(model.name for model in self.models)

    def only(self) -> str:
        """Return the model of a run that names none. Raise UsageError unless the server lists a single one."""
        model = only_model(self.models)
        if model is not None:
            return model.name
        if self.problem:
            raise UsageError(f"{self.problem}; {self.remedy}, or name the model with --model")
        raise UsageError(f"{self.target.url}: lists {listed(self.names)}; name the model with --model")

    def doubt(self, model: str) -> str:
        """Return why the list does not show that a model is served; "" if it does."""
        if model in self.names:
            return ""
        return self.problem or f"{self.target.url} does not list model {model}; it lists {listed(self.names)}"


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """Properties that a server reports.

    `engine`: "simulator", "vllm 0.32.0", "vllm 0.32.0, Rust front end", "llama.cpp b9000", or "unknown".
    """

    target: Target
    model: str
    models: tuple[str, ...]
    engine: str
    version: str | None
    max_model_len: int | None
    tokenizer: TokenizeForm | None  # form of POST /tokenize; None: no plausible counts
    stands_for: str | None  # model and devices whose times the simulator has; None of another server
    sent: SentTurns  # before the load

    @property
    def salts(self) -> bool:
        """True if it supports `cache_salt`, which isolates the prefix caches of two runs."""
        return self.engine == "simulator" or self.engine.startswith("vllm")


def model_list(settings: ClientSettings) -> ModelList:
    """Request the list of models at both readings of the server's path.

    Raise UsageError if the server cannot be reached, or redirects to the same page at another address.
    """
    try:
        first = _models(settings)
    except FetchError as error:
        if error.failure in _UNREACHABLE:
            raise UsageError(f"{error}; {error.remedy or 'is the server started, and the host right?'}") from error
        return ModelList(settings.target, problem=str(error), remedy=_OTHER_PATH)
    if not first.problem:
        return first
    try:
        other = _models(replace(settings, target=settings.target.other_reading))
    except FetchError:
        return first
    return first if other.problem else other


def model_of(settings: ClientSettings, found: ModelList, sent: SentTurns) -> str:
    """Return the model of a run that names none: the only one listed, or else the one that answers a request without a name.

    Raise UsageError if there is none, or if several are listed.
    """
    if not any(model.usable for model in found.models) and (name := _answering(settings, found.target, sent)):
        logger.info("%s: the list of models names none; %s answers", found.target.url, name)
        return name
    return found.only()


def facts_of(settings: ClientSettings, found: ModelList, model: str, sent: SentTurns) -> ServerFacts:
    """Request version and tokenizer of a server, to which requests of turns were `sent` before."""
    sent.gateway = sent.gateway or found.gateway
    with Fetcher(settings) as fetcher:
        engine = _engine(fetcher, settings, found.models)
        tokenizer = form_of(replace(settings, model=model), fetcher)
    longest = next((entry.max_model_len for entry in found.models if entry.name == model), None) or engine.slots
    return ServerFacts(
        found.target, model, found.names, engine.name, engine.version, longest, tokenizer, engine.stands_for, sent
    )


class _Counts(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Answered(msgspec.Struct):
    model: str
    usage: _Counts = msgspec.field(default_factory=_Counts)


def _answering(settings: ClientSettings, target: Target, sent: SentTurns) -> str:
    """Return the model that answers a request with an empty name, as of vLLM, also behind a router; "" if none does."""
    chat = ENDPOINTS[settings.endpoint].chat_template
    endpoint = next(row for row in ENDPOINTS.values() if row.chat_template == chat)  # the usual one
    prompt = [{"role": "user", "content": "Hello"}] if chat else "Hello"
    sent.requests += 1
    try:
        document = {"model": "", "max_tokens": 1, endpoint.context_key: prompt}
        fetched = Fetcher(settings).post(target.path_to(endpoint), document)
        answered = msgspec.json.decode(fetched.body, type=_Answered) if fetched.status == 200 else None
    except (FetchError, *UNDECODABLE):
        return ""
    if answered is None:
        return ""
    sent.served += 1
    sent.input_tokens += answered.usage.prompt_tokens
    sent.output_tokens += answered.usage.completion_tokens
    return answered.model if ListedModel(answered.model).usable else ""


def _models(settings: ClientSettings) -> ModelList:
    target = settings.target
    url = target.api_url("/models")
    fetched = Fetcher(settings).get(target.api_path("/models"))
    models = models_in(fetched.json()) if fetched.status == 200 else None
    if models is not None:
        return ModelList(target, models, gateway=gateways.named(fetched.headers))
    if moved := _moved_to(fetched, target):
        raise UsageError(f"{url}: {fetched.status_text}; use --host {moved}")
    problem, remedy = _problem_of(fetched, settings)
    named = gateways.named(fetched.headers)
    return ModelList(target, problem=f"{url}: {problem}", remedy=remedy, gateway=named)


def _problem_of(fetched: Fetched, settings: ClientSettings) -> tuple[str, str]:
    """Return why a page is no list of models, and the remedy."""
    if fetched.status in (401, 403):
        reaction = "requires a key" if settings.credentials.api_key is None else "refuses the key"
        return f"HTTP {fetched.status}, the server {reaction}", key_hint(settings.credentials)
    if is_of_gateway(fetched.status, fetched.text):
        return fetched.status_text, _BEHIND
    if fetched.status != 200:
        return fetched.status_text, _OTHER_PATH
    return f"{fetched.kind or 'no content type'} instead of a list of models", _OTHER_PATH


def _moved_to(fetched: Fetched, target: Target) -> str:
    """Return the host option for a redirect from the list of models; "" without one, or to another page, such as a login."""
    asked = f"{target.api}/models"
    try:
        moved = urlsplit(urljoin(target.origin + asked, fetched.location))
        path = moved.path.rstrip("/")
        found = Target.parse(f"{moved.scheme}://{moved.netloc}{path.removesuffix(asked)}{target.root}")
    except (ValueError, UsageError):
        return ""
    return found.url if path.endswith(asked) and found.url != target.url else ""


class _Engine(NamedTuple):
    """What a server reports about itself. `slots`: tokens of each slot of llama.cpp's server, the longest context."""

    name: str
    version: str | None
    stands_for: str | None = None
    slots: int | None = None


def _engine(fetcher: Fetcher, settings: ClientSettings, models: Sequence[ListedModel]) -> _Engine:
    """Return the engine, by the owner of its models and its own page. The simulator adds fields to vLLM's."""
    name = next((_ENGINES[model.owner] for model in models if model.owner in _ENGINES), "unknown")
    key, path = ("build_info", "/props") if name == "llama.cpp" else ("version", "/version")
    found = _page(fetcher, settings.target.page_path(path))
    document: dict[str, Any] = found if isinstance(found, dict) else {}
    version, stands_for, slots = (document.get(key) for key in (key, "stands_for", "default_generation_settings"))
    version = version if isinstance(version, str) else None
    if document.get("engine") == "simulator":
        return _Engine("simulator", version, stands_for if isinstance(stands_for, str) else None)
    if name == "vllm" and version is None:  # a gateway that repeats a server's list
        name = "unknown"
    named = name if name == "unknown" or version is None else f"{name} {version}"
    if name == "vllm" and any(model.owner == _RUST for model in models):
        named += ", Rust front end"
    return _Engine(named, version, slots=context_of(slots.get("n_ctx")) if isinstance(slots, dict) else None)


def _page(fetcher: Fetcher, path: str) -> object:
    try:
        fetched = fetcher.get(path)
    except FetchError:
        return None
    return fetched.json() if fetched.status == 200 else None
