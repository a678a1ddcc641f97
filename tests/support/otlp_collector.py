"""Collector of OTLP/HTTP traces on a free loopback port."""

import gzip
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Collector:
    """Received spans, and the attributes of their resources. `delay_s`: before a request is read."""

    def __init__(self, delay_s: float = 0) -> None:
        self.spans: list[Span] = []
        self._by_service: dict[object, list[Span]] = {}
        self.resources: list[dict[str, object]] = []
        self.paths: set[str] = set()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                time.sleep(delay_s)
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                collector.receive(self.path, ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_arguments: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def receive(self, path: str, request: ExportTraceServiceRequest) -> None:
        self.paths.add(path)
        for resource_spans in request.resource_spans:
            resource = {each.key: value_of(each.value) for each in resource_spans.resource.attributes}
            self.resources.append(resource)
            for scope_spans in resource_spans.scope_spans:
                self.spans += scope_spans.spans
                self._by_service.setdefault(resource.get("service.name"), []).extend(scope_spans.spans)

    def of_service(self, name: str) -> list[Span]:
        """Spans that were received from a service."""
        return list(self._by_service.get(name, ()))

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def value_of(value: AnyValue) -> object:
    """Return the Python value of an attribute."""
    kind = value.WhichOneof("value")
    return [value_of(each) for each in value.array_value.values] if kind == "array_value" else getattr(value, kind)


def attributes_of(span: Span) -> dict[str, object]:
    """Return the attributes of a span."""
    return {each.key: value_of(each.value) for each in span.attributes}
