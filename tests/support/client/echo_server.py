"""Script of a server that echoes secrets and sends control characters; INFERLOAD_TEST_ECHOED has the secrets."""

import json
import os
import socket
import threading

FORGED = "\x1b[31m\n[2026-01-01 00:00:00] forged/ERROR: x\u202e|`<img src=x>"


class Echo:
    """Completion server that echoes secrets in names, ids, finish reasons, labels and errors."""

    def __init__(self, echoed: str) -> None:
        self.echoed = echoed
        self.model = f"m {echoed} {FORGED}"
        self._turns = 0
        self._lock = threading.Lock()

    def __call__(self, sock: socket.socket, request: bytes) -> None:
        """Answer one request."""
        path = request.split(b" ")[1]
        if path == b"/v1/models":
            models = [{"id": self.model, "owned_by": "vllm"}]
            self._reply(sock, "200 OK", "application/json", json.dumps({"data": models}))
        elif path == b"/version":
            self._reply(sock, "200 OK", "application/json", json.dumps({"version": f"1 {self.echoed}{FORGED}"}))
        elif path == b"/metrics":
            label = self.echoed + "\x1b[31m"
            page = f'# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{{model_name="{label}"}} 1\n'
            self._reply(sock, "200 OK", "text/plain", page)
        elif path == b"/v1/chat/completions":
            with self._lock:
                self._turns += 1
            if self._turns % 4 == 3:
                self._reply(sock, "403 Forbidden", "text/plain", f"{'x' * 260}{self.echoed}{FORGED}")
            else:
                self._reply(sock, "200 OK", "text/event-stream", self._answer())
        else:
            self._reply(sock, "404 Not Found", "text/plain", "")

    def _answer(self) -> str:
        text = {"id": self.echoed, "choices": [{"delta": {"content": "a"}, "finish_reason": None}]}
        end = {"id": self.echoed, "choices": [{"delta": {}, "finish_reason": self.echoed + FORGED}]}
        usage = {"id": self.echoed, "choices": [], "usage": {"prompt_tokens": 20, "completion_tokens": 1}}
        return "".join(f"data: {json.dumps(event)}\n\n" for event in (text, end, usage)) + "data: [DONE]\n\n"

    def _reply(self, sock: socket.socket, status: str, kind: str, text: str) -> None:
        body = text.encode()
        head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
        sock.sendall(head.encode() + body)


echo = Echo(os.environ.get("INFERLOAD_TEST_ECHOED", "nothing"))
