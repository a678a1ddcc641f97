"""HTTP API: routes under vLLM's paths."""

import hmac
import secrets
import traceback
from collections.abc import Callable
from dataclasses import replace

from inferload.measure import clock
from inferload.server_metrics.text_format import CONTENT_TYPE

from ..engine.chaos import Chaos, ChaosError, Faults, parse_plan
from ..engine.engine import Engine
from ..metrics.exposition import render
from ..metrics.process import cpu_wait_s, process_now
from ..protocol.errors import ApiError, NoRoute, error_document, invalid
from ..protocol.http import HttpRequest, HttpResponse, json_reply, reply_bytes
from ..protocol.json_fields import items, parse_json
from ..protocol.message_input import chat_of as chat_of_message
from ..protocol.model import check_model
from ..protocol.prompt import chat_prompt, tokenize_prompt
from ..protocol.text import Lexicon
from . import server_info
from .completions import ENDPOINTS, Completions
from .connection import Connection
from .http_metrics import HttpMetrics
from .loop import Server
from .server_info import Options
from .server_log import LogWriter

_GUARDED = ("/v1", "/v2", "/inference", "/cohere")  # paths for which vLLM requires the key
_HTML = b"<!doctype html><html><head><title>Sign in</title></head><body><h1>Sign in</h1></body></html>\n"


class Api:
    """Answers requests; completions become streams of the engine."""

    def __init__(self, options: Options, engine: Engine, server: Server) -> None:
        self._options = options
        self._engine = engine
        self._server = server
        self._lexicon = Lexicon()
        self._chaos = Chaos()
        self._started_wall_s = clock.wall_ns() / 1e9
        self._stats_since_ns = clock.now_ns()
        self._http = HttpMetrics()
        self._log = LogWriter(engine)
        self._completions = Completions(options, engine, self._lexicon, self._log)
        server.read_rate = lambda: self._chaos.read_rate(clock.now_ns())
        server.answered = self._http.answered
        if options.log_stats:
            self._log.start(clock.now_ns())
        self._routes: dict[tuple[str, str], Callable[[HttpRequest], HttpResponse]] = {
            ("GET", "/v1/models"): lambda _request: json_reply(server_info.models(options.model)),
            ("GET", "/health"): _empty,
            ("GET", "/ping"): _empty,
            ("POST", "/ping"): _empty,
            ("GET", "/version"): lambda _request: json_reply(server_info.version(options)),
            ("GET", "/load"): self._load,
            ("GET", "/metrics"): self._metrics,
            ("GET", "/server_info"): lambda request: json_reply(server_info.server_info(options, request.query)),
            ("GET", "/is_sleeping"): lambda _request: json_reply({"is_sleeping": False}),
            ("GET", "/is_paused"): lambda _request: json_reply({"is_paused": False}),
            ("GET", "/kv_event_sources"): lambda _request: json_reply({}),
            ("POST", "/tokenize"): self._tokenize,
            ("POST", "/detokenize"): self._detokenize,
            ("POST", "/v1/messages/count_tokens"): self._count_tokens,
            ("POST", "/reset_prefix_cache"): self._reset_prefix_cache,
            ("POST", "/reset_mm_cache"): _empty,
            ("POST", "/reset_encoder_cache"): _empty,
            ("GET", "/chaos"): lambda _request: json_reply({"active": self._chaos.active(clock.now_ns())}),
            ("DELETE", "/chaos"): self._clear_chaos,
            ("GET", "/simulator/stats"): self._stats,
            ("POST", "/simulator/stats/reset"): self._reset_stats,
        }

    def handle(self, connection: Connection, request: HttpRequest) -> None:
        """Answer a request on its connection, now or as a stream."""
        self._http.begun(connection, request, self._known(request.path))
        try:
            reply = self._reply(connection, request)
        except ApiError as error:
            reply = error.message_reply() if request.path == "/v1/messages" else error.reply()
        except Exception as error:  # noqa: BLE001 - no request may stop the server
            traceback.print_exc()
            if connection.begun:  # a status line here would become part of the stream
                self._abort_answers(connection, f"{type(error).__name__}: {error}")
                return
            reply = ApiError(f"{type(error).__name__}: {error}", 500, "InternalServerError").reply()
        if reply is not None:
            self._send(connection, request, reply)

    def _abort_answers(self, connection: Connection, message: str) -> None:
        """End started answers with an error event, as in vLLM."""
        streams, connection.streams = connection.streams, ()
        for stream in streams:
            self._engine.abort(stream)
        if streams and streams[0].completion.stream:
            connection.write(streams[0].error_end(error_document(message, 500, "InternalServerError")))
        connection.answered(close=True)

    def _reply(self, connection: Connection, request: HttpRequest) -> HttpResponse | None:
        """Reply to a request; None if it is sent later or as a stream."""
        if request.path.startswith(_GUARDED) and not self._authorised(request):
            return json_reply({"error": "Unauthorized"}, 401)
        if request.method == "POST" and request.path in ENDPOINTS:
            self._complete(connection, request)
            return None
        if request.method == "POST" and request.path == "/chaos":
            return self._add_chaos(connection, request)
        return self._find(request)(request)

    def _authorised(self, request: HttpRequest) -> bool:
        accepted = self._options.api_key
        if not accepted or request.method == "OPTIONS":
            return True
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        matches = hmac.compare_digest(key.encode("latin-1", "replace"), accepted.encode())
        return scheme.lower() == "bearer" and matches

    def _known(self, path: str) -> bool:
        return path in ENDPOINTS or path == "/chaos" or any(path == known for _method, known in self._routes)

    def _find(self, request: HttpRequest) -> Callable[[HttpRequest], HttpResponse]:
        handler = self._routes.get((request.method, request.path))
        if handler is not None:
            return handler
        if request.path.startswith("/v1/responses/") and request.method == "GET":
            raise ApiError(f"{request.path}: responses are not stored", 404, "invalid_request_error", "response_id")
        allowed = [method for method, path in self._routes if path == request.path]
        if request.path in ENDPOINTS or request.path == "/chaos":
            allowed.append("POST")
        raise NoRoute(405, ", ".join(dict.fromkeys(allowed))) if allowed else NoRoute(404)

    def _complete(self, connection: Connection, request: HttpRequest) -> None:
        document = parse_json(_json_body(request))
        faults = self._chaos.draw(clock.now_ns())
        replacement = None if faults is None else _replacement(faults)
        started = self._completions.prepare(request, document)
        if replacement is not None:
            self._send(connection, request, replacement)
            return
        if (limit := self._engine.refusal()) is not None:
            raise ApiError(f"the queue is full ({limit}); try again later", 503, "ServiceUnavailableError")
        self._completions.start(connection, started, faults)

    def _send(self, connection: Connection, request: HttpRequest, reply: HttpResponse) -> None:
        if self._options.request_id_headers:
            number = request.headers.get("x-request-id") or secrets.token_hex(16)
            reply = replace(reply, headers=(*reply.headers, ("x-request-id", number)))
        if request.method == "HEAD":
            reply = replace(reply, body=b"")
        connection.status = reply.status
        connection.write(reply_bytes(reply, request.keep_alive))
        connection.answered(close=not request.keep_alive)

    def _load(self, _request: HttpRequest) -> HttpResponse:
        return json_reply({"server_load": self._engine.load if self._options.load_tracking else 0})

    def _tokenize(self, request: HttpRequest) -> HttpResponse:
        document = parse_json(_json_body(request))
        words = tokenize_prompt(document, self._options.model.image_tokens)
        check_model(document, self._options.model)
        ids = self._lexicon.encode(words)
        strings = words if document.get("return_token_strs") else None
        length = self._options.model.max_model_len
        return json_reply({"count": len(ids), "max_model_len": length, "tokens": ids, "token_strs": strings})

    def _detokenize(self, request: HttpRequest) -> HttpResponse:
        document = parse_json(_json_body(request))
        ids = items(document, "tokens")
        if ids is None:
            raise invalid("tokens", "is missing")
        for index, token_id in enumerate(ids):
            if type(token_id) is not int:
                raise invalid(f"tokens.{index}", "needs a token id")
        check_model(document, self._options.model)
        return json_reply({"prompt": " ".join(self._lexicon.decode(ids))})

    def _count_tokens(self, request: HttpRequest) -> HttpResponse:
        chat = chat_of_message(parse_json(_json_body(request)), counted_only=True)
        check_model(chat, self._options.model)
        count = len(chat_prompt(chat, self._options.model.image_tokens))
        return json_reply({"input_tokens": count, "context_management": {"original_input_tokens": count}})

    def _reset_prefix_cache(self, _request: HttpRequest) -> HttpResponse:
        success = self._engine.reset_cache()
        if success:
            self._engine.metrics.recent_hits.reset()
        return json_reply({"success": success})

    def _add_chaos(self, connection: Connection, request: HttpRequest) -> HttpResponse:
        try:
            plan = parse_plan(parse_json(request.body), clock.now_ns())
        except ChaosError as error:
            raise ApiError(str(error)) from None
        if plan.kind == "close_idle":
            return json_reply({"closed": self._server.close_idle(connection)})
        if plan.kind == "restart_counters":
            self._reset_counters()
            return json_reply({"restarted": True})
        if plan.kind == "restart":
            down_ns = round(float(plan.values["down_s"]) * 1e9)
            self._engine.call_at(clock.now_ns(), lambda: self._restart(down_ns))
            return json_reply({"restarting": True, "down_s": plan.values["down_s"]})
        self._chaos.add(plan)
        return json_reply({"active": self._chaos.active(clock.now_ns())})

    def _restart(self, down_ns: int) -> None:
        """Simulate a restart: close all connections, refuse new ones for `down_ns`, and reset all state."""
        self._server.go_down()
        self._engine.call_at(clock.now_ns() + down_ns, self._come_back)

    def _come_back(self) -> None:
        self._engine.reset_cache()
        self._reset_counters()
        self._server.come_up()

    def _reset_counters(self) -> None:
        self._engine.metrics.reset(self._engine.gauges())
        self._http.reset()
        self._started_wall_s = clock.wall_ns() / 1e9

    def _clear_chaos(self, _request: HttpRequest) -> HttpResponse:
        self._chaos.clear()
        return json_reply({"active": []})

    def _metrics(self, _request: HttpRequest) -> HttpResponse:
        options, engine = self._options, self._engine
        text = render(
            engine.metrics,
            engine.gauges(),
            engine.lateness,
            process=process_now(self._started_wall_s),
            cache=options.cache,
            model=options.model,
            python_text=self._http.python_text(),
            http_text=self._http.http_text(),
        )
        return HttpResponse(200, text.encode(), CONTENT_TYPE)

    def _stats(self, _request: HttpRequest) -> HttpResponse:
        engine = self._engine
        gauges = engine.gauges()
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
                "connections": self._server.connections,
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


def _empty(_request: HttpRequest) -> HttpResponse:
    return HttpResponse(200, b"", "")


def _json_body(request: HttpRequest) -> bytes:
    """Body of a JSON request. Raise ApiError for another content type, as in vLLM."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise ApiError("1 validation error:\n  content-type: only application/json", 400, "Bad Request")
    return request.body


def _replacement(faults: Faults) -> HttpResponse | None:
    """Reply of a fault that replaces the answer; None without such a fault."""
    if (status := faults.of("status")) is not None:
        code = int(status["status"])
        wait = int(status["retry_after_s"])
        headers = (("retry-after", str(wait)),) if wait else ()
        return ApiError(str(status["message"]), code, kind=_kind(code)).reply(headers)
    if faults.of("html") is not None:
        return HttpResponse(200, _HTML, "text/html; charset=utf-8")
    return None


def _kind(status: int) -> str:
    named = {400: "BadRequestError", 404: "NotFoundError", 500: "InternalServerError", 503: "ServiceUnavailableError"}
    return named.get(status) or str(error_document("", status)["error"]["type"])
