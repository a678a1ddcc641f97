"""Checks of a server before the load: reachability, models, engine, tokenizer, and one streamed answer."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from inferload.client.answers.number_bounds import MAX_TOKENS, UNDECODABLE, TokenId
from inferload.client.client import Client, ClientSettings
from inferload.client.fetch import Fetched, Fetcher, FetchError
from inferload.client.turn_record import TurnRequest, TurnResult
from inferload.content.chat_template import TokenizeChat
from inferload.content.messages import Message, Piece
from inferload.content.prompts import approximate
from inferload.content.script import Ask
from inferload.errors import UsageError
from inferload.measure.clock import now_ns
from inferload.measure.record import Failure
from inferload.requests.bodies import BodySettings, BodyWriter, Isolation, Texts
from inferload.scenario.scenario import RequestOptions

_NOT_OPENAI = "is this an OpenAI-compatible server, and the path right?"
_KEY_HINT = "set the key with --api-key-file or OPENAI_API_KEY"
_OTHER_KEY_HINT = "correct it in the file of --api-key-file, or in OPENAI_API_KEY"


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """Properties that a server reports. `engine`: "simulator", "vllm 0.32.0", or "unknown"."""

    model: str
    models: tuple[str, ...]
    engine: str
    version: str | None
    max_model_len: int | None
    tokenizes: bool  # supports POST /tokenize

    @property
    def salts(self) -> bool:
        """True if it supports `cache_salt`, which isolates the prefix caches of two runs."""
        return self.engine == "simulator" or self.engine.startswith("vllm")


def probe(settings: ClientSettings, model: str | None) -> ServerFacts:
    """Request models, version and tokenizer. Raise UsageError if a run is not possible."""
    fetcher = Fetcher(settings)
    served = _models(fetcher, settings)
    names = tuple(str(entry.get("id")) for entry in served)
    if model is not None and model not in names:
        raise UsageError(f"--model {model}: {settings.target.url} does not serve it; it serves {', '.join(names)}")
    chosen = model or names[0]
    entry = served[names.index(chosen)]
    version, engine = _engine(fetcher, settings, entry)
    longest = entry.get("max_model_len")
    return ServerFacts(
        model=chosen,
        models=names,
        engine=engine,
        version=version,
        max_model_len=longest if type(longest) is int and 0 < longest <= MAX_TOKENS else None,
        tokenizes=_tokenizes(fetcher, settings, chosen),
    )


def first_token(settings: ClientSettings) -> TurnResult:
    """Send a streamed turn of one token, which is not part of the run. Raise UsageError if it fails."""
    question = Message("user", (Piece("hello", None, "Hello"),))
    sent = BodySettings(settings.model, RequestOptions(endpoint=settings.endpoint, ignore_eos=False))
    body = BodyWriter(Texts(approximate(), 0), sent, Isolation()).body(Ask((question,), 1))
    client = Client(replace(settings, worker="preflight"), lambda _result: None)
    turn = client.start(TurnRequest(body, "preflight", "preflight", 0, "preflight", "warmup", now_ns()))
    try:
        result = turn.wait()
    finally:
        client.give_up_all()  # if this greenlet is killed
        turn.wait()
        client.close()
    record = result.record
    # The first token may be a special one without text: the answer is complete, but empty.
    if record.failure not in (None, Failure.EMPTY):
        remedy = _KEY_HINT if record.status in (401, 403) else "see the server's log"
        raise UsageError(
            f"{settings.target.url}: no streamed answer from model {settings.model}: {result.detail}; {remedy}"
        )
    return result


def tokenizer_of(settings: ClientSettings) -> "Tokenizer":
    """Return the server's tokenizer (POST /tokenize)."""
    return Tokenizer(Fetcher(settings), settings)


class Tokenizer:
    """Token ids of a text from POST /tokenize, without special tokens and chat template."""

    def __init__(self, fetcher: Fetcher, settings: ClientSettings) -> None:
        self._fetcher = fetcher
        self._path = settings.target.root + "/tokenize"
        self._model = settings.model

    def __call__(self, text: str) -> list[int]:
        """Return the token ids of a text. Raise FetchError if the server returns none."""
        document = {"model": self._model, "prompt": text, "add_special_tokens": False}
        fetched = self._fetcher.post(self._path, document)
        tokens = _token_ids(fetched)
        if tokens is None:
            raise FetchError(
                Failure.HTTP_OTHER, f"POST {self._path} answered {fetched.status}, without a list of token ids"
            )
        return tokens


def chat_tokenizer(settings: ClientSettings) -> TokenizeChat:
    """Return a function from a chat to its token ids (POST /tokenize); they are None if the server returns none."""
    fetcher, path = Fetcher(settings), settings.target.root + "/tokenize"

    def ids(chat: Sequence[tuple[str, str]], opened: bool) -> list[int] | None:
        messages = [{"role": role, "content": text} for role, text in chat]
        document = {"model": settings.model, "messages": messages, "add_generation_prompt": opened}
        try:
            fetched = fetcher.post(path, document)
        except FetchError:
            return None
        return _token_ids(fetched)

    return ids


class _Tokenized(msgspec.Struct):
    tokens: list[TokenId]


def _token_ids(fetched: Fetched) -> list[int] | None:
    """Return the token ids of a response to POST /tokenize; None if it has none."""
    try:
        return msgspec.json.decode(fetched.body, type=_Tokenized).tokens if fetched.status == 200 else None
    except UNDECODABLE:
        return None


def _models(fetcher: Fetcher, settings: ClientSettings) -> list[dict[str, object]]:
    url = f"{settings.target.origin}{settings.target.api}/models"
    try:
        fetched = fetcher.get(settings.target.api + "/models")
    except FetchError as error:
        remedies = {Failure.TLS: "use --ca-file or --insecure", Failure.BAD_HTTP: _NOT_OPENAI}
        remedy = remedies.get(error.failure, "is the server started, and the host right?")
        raise UsageError(f"{error}; {remedy}") from error
    if fetched.status in (401, 403):
        problem = (
            f"requires a key; {_KEY_HINT}"
            if settings.credentials.api_key is None
            else f"refuses the key; {_OTHER_KEY_HINT}"
        )
        raise UsageError(f"{url}: HTTP {fetched.status}, the server {problem}")
    document = fetched.json()
    served = document.get("data") if isinstance(document, dict) else None
    if fetched.status != 200 or not isinstance(served, list):
        raise UsageError(f"{url}: {_problem_of(fetched)}; {_NOT_OPENAI}")
    models = [entry for entry in served if isinstance(entry, dict) and entry.get("id")]
    if not models:
        raise UsageError(f"{url}: lists no model; wait until the server has loaded one")
    return models


def _problem_of(fetched: Fetched) -> str:
    if fetched.status != 200:
        return f"HTTP {fetched.status}"
    return f"{fetched.kind or 'no content type'} instead of a list of models"


def _engine(fetcher: Fetcher, settings: ClientSettings, entry: dict[str, object]) -> tuple[str | None, str]:
    """Return (version or None, engine). /version is specific to vLLM; the simulator has an additional field there."""
    document = _page(fetcher, settings.target.root + "/version")
    version = document.get("version") if isinstance(document, dict) else None
    version = version if isinstance(version, str) else None
    if isinstance(document, dict) and document.get("engine") == "simulator":
        return version, "simulator"
    if version is not None and entry.get("owned_by") == "vllm":
        return version, f"vllm {version}"
    return version, "unknown"


def _tokenizes(fetcher: Fetcher, settings: ClientSettings, model: str) -> bool:
    try:
        Tokenizer(fetcher, replace(settings, model=model))("Hello")
    except FetchError:
        return False
    return True


def _page(fetcher: Fetcher, path: str) -> object:
    try:
        fetched = fetcher.get(path)
    except FetchError:
        return None
    return fetched.json() if fetched.status == 200 else None
