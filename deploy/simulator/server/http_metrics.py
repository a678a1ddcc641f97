"""The metrics of the HTTP front end and of Python itself, with names and bounds of the libraries that vLLM uses for them."""

from prometheus_client import (
    CollectorRegistry,
    Counter,
    GCCollector,
    Histogram,
    PlatformCollector,
    Summary,
    generate_latest,
)

from inferload.measure import clock

from ..protocol.http import HttpRequest
from .connection import Connection

_FINE_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5, 7.5, 10, 30, 60),
    float("inf"),
)
_COARSE_S = (0.1, 0.5, 1, float("inf"))
_UNCOUNTED = ("/metrics", "/health", "/load", "/ping", "/version", "/server_info", "/chaos", "/simulator")


class HttpMetrics:
    """Counts a request when its answer is over."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Back to nothing, as in a new process."""
        self._python, self._http = CollectorRegistry(), CollectorRegistry()
        PlatformCollector(registry=self._python)
        GCCollector(registry=self._python)
        make, by = self._http, ("method", "handler")
        self._requests = Counter("http_requests", "Requests.", ("method", "status", "handler"), registry=make)
        self._asked = Summary("http_request_size_bytes", "Bodies of requests.", ("handler",), registry=make)
        self._answered = Summary("http_response_size_bytes", "Bodies of answers.", ("handler",), registry=make)
        name = "http_request_duration_highr_seconds"
        self._fine = Histogram(name, "Time to the end of an answer, finely.", buckets=_FINE_S, registry=make)
        name = "http_request_duration_seconds"
        self._coarse = Histogram(name, "Time to the end of an answer.", by, buckets=_COARSE_S, registry=make)

    def begun(self, connection: Connection, request: HttpRequest, known: bool) -> None:
        """A request has arrived; `known`: there is a handler for its path."""
        connection.handler = "" if request.path.startswith(_UNCOUNTED) else request.path if known else "none"
        connection.method = request.method
        connection.asked_bytes = len(request.body)
        connection.status = 200
        connection.begun_ns = clock.now_ns()

    def answered(self, connection: Connection) -> None:
        """The answer on a connection is over."""
        handler = connection.handler
        if not handler:
            return
        took_s = (clock.now_ns() - connection.begun_ns) / 1e9
        self._requests.labels(connection.method, f"{connection.status // 100}xx", handler).inc()
        self._asked.labels(handler).observe(connection.asked_bytes)
        self._answered.labels(handler).observe(0)
        self._fine.observe(took_s)
        self._coarse.labels(connection.method, handler).observe(took_s)

    def python_text(self) -> str:
        """The interpreter's part of the page."""
        return generate_latest(self._python).decode()

    def http_text(self) -> str:
        """The front end's part of the page."""
        return generate_latest(self._http).decode()
