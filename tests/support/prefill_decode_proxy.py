"""Proxy in front of vLLM servers for prefill and decode: the prompt goes to one, with the transfer's parameters to the other.

Words: its port, the port of the prefill server, that of the decode server. See vLLM's documentation of the NixlConnector.
"""

import json
import sys
from http.client import HTTPConnection, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PORT, PREFILL, DECODE = map(int, sys.argv[1:])
REMOTE = ("remote_engine_id", "remote_block_ids", "remote_host", "remote_port")
FIRST = {"do_remote_decode": True, "do_remote_prefill": False} | dict.fromkeys(REMOTE)
ONE_TOKEN = {"max_tokens": 1, "max_completion_tokens": 1, "min_tokens": 0, "stream": False, "stream_options": None}


class Proxy(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.0"  # an answer ends with its connection

    def do_GET(self) -> None:
        self._pass(DECODE, "GET", b"")

    def do_POST(self) -> None:
        text = self.rfile.read(int(self.headers["Content-Length"]))
        body = json.loads(text)
        if "max_tokens" in body or "max_completion_tokens" in body:
            first = {name: value for name, value in (body | ONE_TOKEN).items() if value is not None}
            answer = self._ask(PREFILL, "POST", json.dumps(first | {"kv_transfer_params": FIRST}).encode())
            text = json.dumps(body | {"kv_transfer_params": json.load(answer)["kv_transfer_params"]}).encode()
        self._pass(DECODE, "POST", text)

    def _ask(self, port: int, method: str, text: bytes) -> HTTPResponse:
        self.connection_to = HTTPConnection("127.0.0.1", port)
        self.connection_to.request(method, self.path, text, {"Content-Type": "application/json"})
        return self.connection_to.getresponse()

    def _pass(self, port: int, method: str, text: bytes) -> None:
        answer = self._ask(port, method, text)
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.headers.get("Content-Type", "text/plain"))
        self.end_headers()
        while part := answer.read1(65536):
            self.wfile.write(part)
        self.connection_to.close()

    def log_message(self, *_: object) -> None:
        pass


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", PORT), Proxy)
    server.request_queue_size = 128
    server.serve_forever()
