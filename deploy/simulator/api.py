"""The HTTP API: which path does what, behind vLLM's names."""

import hmac
import itertools
import os
import resource
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from inferload.measure import clock

from . import ask as asks
from .ask import ApiError, Model
from .chaos import Chaos, ChaosError, Faults, parse_plan
from .connection import Connection
from .engine import Engine
from .events import Events, Shown
from .exposition import CONTENT_TYPE, CacheInfo, Process, render
from .http import HttpRequest, Reply, head_bytes, json_reply, reply_bytes
from .request import Request
from .server import Server
from .stream import Stream
from .text import Lexicon

VERSION = "0.32.0"
_HTML = b"<!doctype html><html><head><title>Sign in</title></head><body><h1>Sign in</h1></body></html>\n"


@dataclass(frozen=True, slots=True)
class Options:
    """What the API shows and asks for. `api_key` empty: no key is asked for."""

    model: Model
    shown: Shown
    cache: CacheInfo
    api_key: str
    chunked: bool
    max_num_seqs: int


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
        self._number = itertools.count(secrets.randbits(48))
        self._routes: dict[tuple[str, str], Callable[[HttpRequest], Reply]] = {
            ("GET", "/v1/models"): self._models,
            ("GET", "/health"): lambda _request: Reply(200, b""),
            ("GET", "/ping"): lambda _request: Reply(200, b""),
            ("GET", "/version"): lambda _request: json_reply({"version": VERSION, "engine": "simulator"}),
            ("GET", "/load"): lambda _request: json_reply({"server_load": engine.load}),
            ("GET", "/metrics"): self._metrics,
            ("GET", "/server_info"): self._server_info,
            ("POST", "/tokenize"): self._tokenize,
            ("POST", "/detokenize"): self._detokenize,
            ("POST", "/reset_prefix_cache"): self._reset_prefix_cache,
            ("GET", "/chaos"): lambda _request: json_reply({"active": self._chaos.active(clock.now_ns())}),
            ("DELETE", "/chaos"): self._clear_chaos,
            ("GET", "/simulator/stats"): self._stats,
            ("POST", "/simulator/stats/reset"): self._reset_stats,
        }

    def handle(self, connection: Connection, request: HttpRequest) -> None:
        """Answer a request on its connection, now or as a stream."""
        try:
            if request.path.startswith("/v1") and not self._authorised(request):
                reply = json_reply({"error": "Unauthorized"}, 401)
            elif request.method == "POST" and request.path in ("/v1/chat/completions", "/v1/completions"):
                self._complete(connection, request)
                return
            elif request.method == "POST" and request.path == "/chaos":
                reply = self._add_chaos(connection, request)
            else:
                reply = self._find(request)(request)
        except ApiError as error:
            reply = error.reply()
        _send(connection, reply, request.keep_alive)

    def _authorised(self, request: HttpRequest) -> bool:
        if not self._options.api_key:
            return True
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(key.encode(), self._options.api_key.encode())

    def _find(self, request: HttpRequest) -> Callable[[HttpRequest], Reply]:
        found = self._routes.get((request.method, request.path))
        if found is not None:
            return found
        known = {path for _method, path in self._routes} | {"/v1/chat/completions", "/v1/completions", "/chaos"}
        if request.path in known:
            raise ApiError("Method Not Allowed", 405, "Method Not Allowed")
        raise ApiError("Not Found", 404, "Not Found")

    def _complete(self, connection: Connection, request: HttpRequest) -> None:
        now_ns = clock.now_ns()
        chat = request.path == "/v1/chat/completions"
        ask = asks.parse_ask(asks.parse_json(_json_body(request)), chat, self._options.model, self._lexicon)
        faults = self._chaos.draw(now_ns)
        if faults is not None and (reply := _instead(faults)) is not None:
            _send(connection, reply, request.keep_alive)
            return
        if (bound := self._engine.refusal()) is not None:
            raise ApiError(f"the queue is full ({bound}); try again later", 503, "ServiceUnavailableError")
        number = request.headers.get("x-request-id") or f"{next(self._number):016x}"
        request_id = f"chatcmpl-{number}" if chat else f"cmpl-{number}"
        framed = ask.stream and self._options.chunked
        stream = Stream(
            ask=ask,
            request=Request(ask.tokens, ask.output_tokens, ask.answer.word, ask.cache_salt),
            events=Events(
                ask,
                request_id,
                created_s=clock.wall_ns() // 1_000_000_000,
                model=self._options.model.name,
                shown=self._options.shown,
                framed=framed,
            ),
            peer=connection,
            keep_alive=request.keep_alive and (framed or not ask.stream),
            framed=framed,
            request_id=number,
            faults=faults,
        )
        connection.stream = stream
        if ask.stream:
            self._send_head(connection, stream, now_ns)
        self._engine.submit(stream, now_ns)

    def _send_head(self, connection: Connection, stream: Stream, now_ns: int) -> None:
        framing = "transfer-encoding: chunked" if stream.framed else ""
        more = (("x-request-id", stream.request_id),)
        head = head_bytes(200, "text/event-stream; charset=utf-8", framing, stream.keep_alive, more)
        delay_ns = stream.faults.ns("slow_header") if stream.faults is not None else 0
        if delay_ns:
            stream.header_due_ns = now_ns + delay_ns
            self._engine.call_at(stream.header_due_ns, lambda: self._late_head(connection, stream, head))
        else:
            connection.write(head)

    def _late_head(self, connection: Connection, stream: Stream, head: bytes) -> None:
        if connection.stream is stream and not connection.dead:
            connection.write(head)

    def _models(self, _request: HttpRequest) -> Reply:
        model = self._options.model
        card = {
            "id": model.name,
            "object": "model",
            "created": int(self._started_wall_s),
            "owned_by": "vllm",
            "root": model.name,
            "parent": None,
            "max_model_len": model.max_model_len,
            "permission": [],
            "engine": "simulator",
        }
        return json_reply({"object": "list", "data": [card]})

    def _server_info(self, _request: HttpRequest) -> Reply:
        options = self._options
        config = {
            "model_config": {"model": options.model.name, "max_model_len": options.model.max_model_len},
            "scheduler_config": {"max_num_seqs": options.max_num_seqs},
            "cache_config": {
                "block_size": options.cache.block_size,
                "num_gpu_blocks": options.cache.num_gpu_blocks,
                "enable_prefix_caching": options.cache.prefix_caching,
            },
        }
        return json_reply({"vllm_config": config, "engine": "simulator"})

    def _tokenize(self, request: HttpRequest) -> Reply:
        document = asks.parse_json(_json_body(request))
        asks.check_model(document, self._options.model)
        words = asks.prompt_tokens(document, "messages" in document, self._lexicon)
        ids = self._lexicon.encode(words)
        length = self._options.model.max_model_len
        return json_reply(
            {
                "count": len(ids),
                "max_model_len": length,
                "tokens": ids,
                "token_strs": words if document.get("return_token_strs") else None,
            }
        )

    def _detokenize(self, request: HttpRequest) -> Reply:
        document = asks.parse_json(_json_body(request))
        ids = document.get("tokens")
        if not isinstance(ids, list) or not all(type(each) is int for each in ids):
            raise ApiError(
                "1 validation error:\n  body.tokens: needs a list of numbers", 400, "Bad Request", "body.tokens"
            )
        return json_reply({"prompt": " ".join(self._lexicon.decode(ids))})

    def _reset_prefix_cache(self, _request: HttpRequest) -> Reply:
        return json_reply({"success": self._engine.scheduler.pool.reset_cache()})

    def _add_chaos(self, connection: Connection, request: HttpRequest) -> Reply:
        try:
            plan = parse_plan(asks.parse_json(request.body), clock.now_ns())
        except ChaosError as error:
            raise ApiError(str(error)) from None
        if plan.kind == "close_idle":
            return json_reply({"closed": self._server.close_idle(connection)})
        if plan.kind == "restart_counters":
            self._engine.metrics.reset(self._engine.gauges())
            self._started_wall_s = clock.wall_ns() / 1e9
            return json_reply({"restarted": True})
        self._chaos.add(plan)
        return json_reply({"active": self._chaos.active(clock.now_ns())})

    def _clear_chaos(self, _request: HttpRequest) -> Reply:
        self._chaos.clear()
        return json_reply({"active": []})

    def _metrics(self, _request: HttpRequest) -> Reply:
        options, engine = self._options, self._engine
        text = render(
            engine.metrics,
            engine.gauges(),
            engine.lateness,
            process=_process(self._started_wall_s),
            cache=options.cache,
            model=options.model.name,
            created_s=self._started_wall_s,
        )
        return Reply(200, text.encode(), CONTENT_TYPE)

    def _stats(self, _request: HttpRequest) -> Reply:
        engine = self._engine
        return json_reply(
            {
                "lateness_ms": engine.lateness.summary(),
                "blocked_events": engine.lateness.blocked,
                "since_s": (clock.now_ns() - self._stats_since_ns) / 1e9,
                "requests": {
                    "started": engine.started,
                    "finished": engine.finished,
                    "aborted": engine.aborted,
                    "running": len(engine.scheduler.running),
                    "waiting": len(engine.scheduler.waiting),
                },
                "connections": self._server.connections,
                "cpu_s": clock.cpu_ns() / 1e9,
                "cpu_wait_s": _cpu_wait_s(),
            }
        )

    def _reset_stats(self, _request: HttpRequest) -> Reply:
        self._engine.lateness.reset()
        self._stats_since_ns = clock.now_ns()
        return json_reply({"reset": True})


def _json_body(request: HttpRequest) -> bytes:
    """The body, of a request that says that it is JSON: vLLM refuses others."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise ApiError("1 validation error:\n  content-type: only application/json", 400, "Bad Request")
    return request.body


def _send(connection: Connection, reply: Reply, keep_alive: bool) -> None:
    connection.write(reply_bytes(reply, keep_alive))
    connection.answered(close=not keep_alive)


def _instead(faults: Faults) -> Reply | None:
    """What a completion gets instead of an answer; None: it is answered."""
    if (status := faults.of("status")) is not None:
        code = int(status["status"])
        wait = int(status["retry_after_s"])
        headers = (("retry-after", str(wait)),) if wait else ()
        return ApiError(str(status["message"]), code, kind=_kind(code)).reply(headers)
    if faults.of("html") is not None:
        return Reply(200, _HTML, "text/html; charset=utf-8")
    return None


def _kind(status: int) -> str:
    named = {400: "BadRequestError", 404: "NotFoundError", 500: "InternalServerError", 503: "ServiceUnavailableError"}
    return named.get(status) or str(asks.error_document("", status)["error"]["type"])


def _cpu_wait_s() -> float | None:
    """How long this process was ready and had no core, since its start; None where the kernel does not say.

    Lateness that comes with such waiting is the machine's, not the clockwork's.
    """
    try:
        return int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return None


def _process(started_wall_s: float) -> Process:
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    page = os.sysconf("SC_PAGE_SIZE")
    return Process(
        cpu_s=clock.cpu_ns() / 1e9,
        resident_bytes=int(fields[21]) * page,
        virtual_bytes=int(fields[20]),
        start_wall_s=started_wall_s,
        open_fds=len(os.listdir("/proc/self/fd")),
        max_fds=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
    )
