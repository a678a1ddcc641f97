"""Requests of texts: embeddings, pooling, score and rerank. As in vLLM, each text is a request of the engine without output."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from ..answers.completion_events import CompletionEvents
from ..engine.engine import Engine
from ..engine.stream import Stream, request_of
from ..protocol import json_fields
from ..protocol.completion_request import parse_completion
from ..protocol.errors import ApiError, invalid
from ..protocol.http import HttpRequest, json_reply, reply_bytes
from .connection import Connection
from .server_info import Options

_RANKING = ("/rerank", "/v1/rerank", "/v2/rerank")
# Key of a result by path: vectors, and scores of a query with each text.
_VECTORS = {"/v1/embeddings": "embedding", "/pooling": "data"}
_SCORES = {"/score": "score", "/v1/score": "score", **dict.fromkeys(_RANKING, "relevance_score")}
POOLED = (*_VECTORS, *_SCORES)
_DIMENSIONS = 8


@dataclass(slots=True)
class _Batch:
    """Peer of the streams of one request: the reply is sent when all have ended."""

    connection: Connection
    keep_alive: bool
    document: dict[str, Any]
    left: int

    def write(self, data: bytes) -> bool:
        return True

    def answered(self, close: bool) -> None:
        self.left -= 1
        if not self.left:
            self.connection.write(reply_bytes(json_reply(self.document), self.keep_alive))
            self.connection.answered(close=not self.keep_alive)

    def cut(self) -> None:
        self.connection.cut()


class Texts:
    """Starts the requests of texts."""

    def __init__(self, options: Options, engine: Engine) -> None:
        self._options = options
        self._engine = engine
        self._number = itertools.count(1)

    def start(self, connection: Connection, request: HttpRequest, document: Mapping[str, Any], arrived_ns: int) -> None:
        """Submit each text to the engine. Raise ApiError if vLLM would refuse the request."""
        path, model = request.path, self._options.model
        queries = _texts(document, "query", "text_1", "queries") if path in _SCORES else []
        texts = _texts(document, "input", "documents", "text_2")
        salt = json_fields.text(document, "cache_salt")
        fields = {"model": document.get("model"), "max_tokens": 1} | ({"cache_salt": salt} if salt else {})
        each = [parse_completion({**fields, "prompt": text}, False, model) for text in (*queries, *texts)]
        tokens = sum(len(completion.tokens) for completion in each)
        top = json_fields.integer(document, "top_n") or len(texts)
        name = f"{path.rpartition('/')[2]}-{next(self._number):016x}"
        reply = {"id": name, "model": model.name, "usage": {"prompt_tokens": tokens, "total_tokens": tokens}}
        reply |= _results(path, texts, queries, top)
        batch = _Batch(connection, request.keep_alive, reply, len(each))
        streams: list[Stream] = []
        for parsed in each:
            completion = replace(parsed, ends_itself=True, output_limit=1)
            events = CompletionEvents(
                completion, self._options.usage_options, request_id=name, created_s=0, model=model.name
            )
            own = request_of(completion)
            streams.append(Stream(completion, own, events, batch, request.keep_alive, pooled=True))
        connection.stream = streams[0]
        streams[0].others = streams[1:]
        for stream in streams:
            self._engine.submit(stream, arrived_ns)


def _texts(document: Mapping[str, Any], *keys: str) -> list[str]:
    """Return the texts of the first key that the request has."""
    key = next((key for key in keys if key in document), keys[0])
    value = document.get(key)
    texts = [value] if isinstance(value, str) else value
    if isinstance(texts, list) and texts and all(isinstance(token, int) for token in texts):
        texts = [texts]
    if not isinstance(texts, list) or not texts:
        raise ApiError("You must pass at least one prompt") if texts == [] else invalid(key, "needs texts")
    return [" ".join(map(str, text)) if isinstance(text, list) else str(text) for text in texts]


def _results(path: str, texts: Sequence[str], queries: Sequence[str], top: int) -> dict[str, Any]:
    """Return the results of an answer: vectors and scores that depend on the texts."""
    if path in _VECTORS:
        values: list[Any] = [[Random(f"{text}/{at}").uniform(-1, 1) for at in range(_DIMENSIONS)] for text in texts]
        results = [{"index": index, _VECTORS[path]: value} for index, value in enumerate(values)]
        return {"object": "list", "data": results}
    results = [
        {"index": index, _SCORES[path]: Random(f"{queries[0]}/{text}").random()} for index, text in enumerate(texts)
    ]
    if path not in _RANKING:
        return {"object": "list", "data": results}
    results.sort(key=lambda result: -result[_SCORES[path]])
    return {"results": [{**result, "document": {"text": texts[result["index"]]}} for result in results[:top]]}
