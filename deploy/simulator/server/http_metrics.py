"""Metrics of the HTTP front end and of Python, with names and bounds of the libraries used by vLLM."""

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
    """HTTP and Python metrics. A request is counted when its answer ends."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Reset all metrics, as in a new process."""
        self._python, self._http = CollectorRegistry(), CollectorRegistry()
        PlatformCollector(registry=self._python)
        GCCollector(registry=self._python)
        registry, labels = self._http, ("method", "handler")
        self._requests = Counter("http_requests", "Requests.", ("method", "status", "handler"), registry=registry)
        self._request_sizes = Summary("http_request_size_bytes", "Bodies of requests.", ("handler",), registry=registry)
        self._response_sizes = Summary(
            "http_response_size_bytes", "Bodies of answers.", ("handler",), registry=registry
        )
        name = "http_request_duration_highr_seconds"
        self._fine = Histogram(name, "Time to the end of an answer, fine buckets.", buckets=_FINE_S, registry=registry)
        name = "http_request_duration_seconds"
        self._coarse = Histogram(name, "Time to the end of an answer.", labels, buckets=_COARSE_S, registry=registry)

    def begun(self, connection: Connection, request: HttpRequest, known: bool) -> None:
        """Record the start of a request. `known`: its path has a handler."""
        connection.handler = "" if request.path.startswith(_UNCOUNTED) else request.path if known else "none"
        connection.method = request.method
        connection.request_bytes = len(request.body)
        connection.status = 200
        connection.started_ns = clock.now_ns()

    def answered(self, connection: Connection) -> None:
        """Count the answered request of a connection."""
        handler = connection.handler
        if not handler:
            return
        duration_s = (clock.now_ns() - connection.started_ns) / 1e9
        self._requests.labels(connection.method, f"{connection.status // 100}xx", handler).inc()
        self._request_sizes.labels(handler).observe(connection.request_bytes)
        self._response_sizes.labels(handler).observe(0)
        self._fine.observe(duration_s)
        self._coarse.labels(connection.method, handler).observe(duration_s)

    def python_text(self) -> str:
        """Exposition text of the Python metrics."""
        return generate_latest(self._python).decode()

    def http_text(self) -> str:
        """Exposition text of the HTTP metrics."""
        return generate_latest(self._http).decode()
