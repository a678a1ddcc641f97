"""HTTP API: routes under vLLM's paths."""

import hmac
import itertools
import random
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path

from inferload.base import clock
from inferload.servers.text_format import CONTENT_TYPE

from ..answers.completion_events import CompletionEvents
from ..engine.chaos import Chaos, Faults, parse_plan
from ..engine.corruption import Corruption
from ..engine.engine import Engine
from ..engine.stream import Stream, request_of
from ..metrics.exposition import render
from ..protocol.completion_request import CompletionRequest, parse_completion
from ..protocol.errors import ApiError, NoRoute
from ..protocol.http import HttpRequest, HttpResponse, head_bytes, json_reply, reply_bytes
from ..protocol.json_fields import parse_json
from ..protocol.model import check_model
from ..protocol.prompt import tokenize_prompt
from ..protocol.text import token_ids
from . import server_info
from .connection import Connection
from .server_info import Options
from .texts import POOLED, Texts

_CHAT = "/v1/chat/completions"
_COMPLETIONS = (_CHAT, "/v1/completions")
_ENGINE = (*_COMPLETIONS, *POOLED)
_GUARDED = "/v1"  # paths for which vLLM requires the key
_HTML = b"<!doctype html><html><head><title>Sign in</title></head><body><h1>Sign in</h1></body></html>\n"


class Api:
    """Answers requests; completions become streams of the engine."""

    def __init__(self, options: Options, engine: Engine, connections: Callable[[], int]) -> None:
        self._options = options
        self._engine = engine
        self._connections = connections
        self._chaos = Chaos()
        self._corruption = Corruption(options.corrupt, options.model.seed) if options.corrupt else None
        self._started_wall_s = clock.wall_ns() / 1e9
        self._stats_since_ns = clock.now_ns()
        self._texts = Texts(options, engine)
        self._number = itertools.count(random.getrandbits(48))  # of completions
        self._routes: dict[tuple[str, str], Callable[[HttpRequest], HttpResponse]] = {
            ("GET", "/v1/models"): lambda _request: json_reply(server_info.models(options.model, clock.wall_ns())),
            **dict.fromkeys((("GET", "/health"), ("GET", "/ping")), lambda _request: HttpResponse(200, b"", "")),
            ("GET", "/is_paused"): lambda _request: json_reply({"is_paused": engine.paused}),
            ("POST", "/pause"): lambda _request: self._pause("paused"),
            ("POST", "/resume"): lambda _request: self._pause("resumed"),
            ("GET", "/version"): lambda _request: json_reply(server_info.version(options)),
            ("GET", "/metrics"): self._metrics,
            ("GET", "/server_info"): lambda _request: json_reply(server_info.server_info(options)),
            ("POST", "/tokenize"): self._tokenize,
            ("POST", "/reset_prefix_cache"): lambda _request: json_reply({"success": engine.reset_cache()}),
            ("POST", "/chaos"): self._add_chaos,
            ("GET", "/chaos"): lambda _request: json_reply({"active": self._chaos.active()}),
            ("DELETE", "/chaos"): self._clear_chaos,
            ("GET", "/simulator/stats"): self._stats,
            ("POST", "/simulator/stats/reset"): self._reset_stats,
        }

    def handle(self, connection: Connection, request: HttpRequest) -> None:
        """Answer a request on its connection, now or as a stream."""
        try:
            reply = self._reply(connection, request)
        except ApiError as error:
            reply = error.reply()
        if reply is not None:
            connection.write(reply_bytes(reply, request.keep_alive))
            connection.answered(close=not request.keep_alive)

    def _reply(self, connection: Connection, request: HttpRequest) -> HttpResponse | None:
        """Reply to a request; None if it is sent later or as a stream."""
        if request.path.startswith(_GUARDED) and not self._authorised(request):
            return json_reply({"error": "Unauthorized"}, 401)
        if request.method == "POST" and request.path in _ENGINE:
            return self._complete(connection, request)
        return self.page(request)

    def page(self, request: HttpRequest) -> HttpResponse:
        """Answer a request that is no completion. Raise ApiError if it is refused."""
        handler = self._routes.get((request.method, request.path))
        if handler is None:
            known = request.path in _ENGINE or any(path == request.path for _method, path in self._routes)
            raise NoRoute(405 if known else 404)
        return handler(request)

    def _authorised(self, request: HttpRequest) -> bool:
        accepted = self._options.api_key
        if not accepted:
            return True
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        matches = hmac.compare_digest(key.encode("latin-1", "replace"), accepted.encode())
        return scheme.lower() == "bearer" and matches

    def _complete(self, connection: Connection, request: HttpRequest) -> HttpResponse | None:
        arrived_ns, document = clock.now_ns(), parse_json(_json_body(request))
        faults = self._chaos.draw()
        completion = None
        if request.path in _COMPLETIONS:
            completion = parse_completion(document, request.path == _CHAT, self._options.model)
        if faults is not None and (replacement := _replacement(faults)) is not None:
            return replacement
        if (limit := self._engine.refusal()) is not None:
            raise ApiError(f"the queue is full ({limit}); try again later", 503, "ServiceUnavailableError")
        if completion is None:
            self._texts.start(connection, request, document, arrived_ns)
        else:
            if self._corruption is not None:
                completion, cut = self._corruption.apply(completion, loaded=self._engine.in_flight > 0)
                faults = faults if cut is None else {**cut, **(faults or {})}
            self._stream(connection, request, completion, faults, arrived_ns)
        return None

    def _stream(
        self,
        connection: Connection,
        request: HttpRequest,
        completion: CompletionRequest,
        faults: Faults | None,
        arrived_ns: int,
    ) -> None:
        """Send the response head and submit the answer to the engine."""
        number = request.headers.get("x-request-id") or f"{next(self._number):016x}"
        events = CompletionEvents(
            completion,
            self._options.usage_options,
            request_id=f"{'chatcmpl' if completion.chat else 'cmpl'}-{number}",
            created_s=clock.wall_ns() // 1_000_000_000,
            model=self._options.model.name,
        )
        stream = Stream(completion, request_of(completion), events, connection, request.keep_alive, faults)
        connection.stream = stream
        if completion.params.stream:
            framing = "transfer-encoding: chunked"
            connection.write(head_bytes(200, "text/event-stream; charset=utf-8", framing, stream.keep_alive))
        self._engine.submit(stream, arrived_ns)

    def _tokenize(self, request: HttpRequest) -> HttpResponse:
        document, model = parse_json(_json_body(request)), self._options.model
        ids = token_ids(tokenize_prompt(document, model.image_tokens))
        check_model(document, model)
        return json_reply({"count": len(ids), "max_model_len": model.max_model_len, "tokens": ids})

    def _pause(self, status: str) -> HttpResponse:
        self._engine.pause(status == "paused")
        return json_reply({"status": status})

    def _add_chaos(self, request: HttpRequest) -> HttpResponse:
        plan = parse_plan(parse_json(request.body))
        if plan.kind == "restart_counters":
            self._engine.metrics = self._engine.metrics.restarted(self._engine.gauges())
            self._started_wall_s = clock.wall_ns() / 1e9
        else:
            self._chaos.plans.append(plan)
        return json_reply({"active": self._chaos.active()})

    def _clear_chaos(self, _request: HttpRequest) -> HttpResponse:
        self._chaos.plans.clear()
        return json_reply({"active": []})

    def _metrics(self, _request: HttpRequest) -> HttpResponse:
        engine = self._engine
        text = render(
            engine.metrics,
            engine.gauges(),
            engine.lateness,
            cache=self._options.cache,
            model=self._options.model.name,
            cpu_s=clock.cpu_ns() / 1e9,
            started_wall_s=self._started_wall_s,
        )
        return HttpResponse(200, text.encode(), CONTENT_TYPE)

    def _stats(self, _request: HttpRequest) -> HttpResponse:
        engine, gauges = self._engine, self._engine.gauges()
        return json_reply(
            {
                "lateness_ms": engine.lateness.summary(),
                "blocked_events": engine.lateness.blocked,
                "since_s": (clock.now_ns() - self._stats_since_ns) / 1e9,
                "requests": {
                    "started": engine.started,
                    "finished": engine.finished,
                    "aborted": engine.aborted,
                    "running": gauges.running,
                    "waiting": gauges.waiting,
                },
                "connections": self._connections(),
                **self._cpu_times(),
            }
        )

    def _reset_stats(self, _request: HttpRequest) -> HttpResponse:
        self._engine.lateness.reset()
        self._stats_since_ns = clock.now_ns()
        return json_reply({"reset": True, **self._cpu_times()})

    def _cpu_times(self) -> dict[str, float | None]:
        """Seconds since the start: CPU time, and time ready to run without a core (None if unknown)."""
        return {"cpu_s": clock.cpu_ns() / 1e9, "cpu_wait_s": cpu_wait_s()}


def _json_body(request: HttpRequest) -> bytes:
    """Body of a JSON request. Raise ApiError for another content type, as in vLLM."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise ApiError("1 validation error:\n  content-type: only application/json", 400, "Bad Request")
    return request.body


def _replacement(faults: Faults) -> HttpResponse | None:
    """Reply of a fault that replaces the answer; None without such a fault."""
    if (status := faults.get("status")) is not None:
        return ApiError(status["message"], status["status"], _kind(status["status"])).reply()
    return HttpResponse(200, _HTML, "text/html; charset=utf-8") if "html" in faults else None


def _kind(status: int) -> str:
    """Type of an error as in vLLM."""
    named = {400: "BadRequestError", 404: "NotFoundError", 500: "InternalServerError", 503: "ServiceUnavailableError"}
    return named.get(status) or (HTTPStatus(status).phrase if status in HTTPStatus._value2member_map_ else "Error")


def cpu_wait_s() -> float | None:
    """CPU wait: time in which this process was ready to run without a core; None if unknown.

    Lateness during CPU wait is caused by the machine, not by the simulator.
    """
    try:
        return int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return None
