"""Scripts that change what the simulator behind them takes: another path, another key of the limit, no list of models."""

import json
from collections.abc import Callable
from typing import Any

AZURE = "/openai/deployments/gpt/chat/completions?api-version=2024-10-21"
NOT_FOUND = {"error": {"message": "Resource not found", "code": "404"}}
UNSUPPORTED = (
    "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
)
# Message of the refusal of a turn; None to pass it on.
Refuse = Callable[[dict[str, Any]], str | None]


def changed(path: str, refuse: Refuse = lambda _body: None, models: dict[str, Any] | None = None) -> Any:
    """Return a script that passes turns at one path on, and has no other page than a list of models."""

    def respond(sock: Any, status: int, document: dict[str, Any]) -> None:
        body = json.dumps(document).encode()
        head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        sock.sendall(head.encode() + body)

    def script(sock: Any, request: bytes) -> None:
        head, _, body = request.partition(b"\r\n\r\n")
        method, asked = head.decode().split()[:2]
        if method == "GET" and models is not None and asked.endswith("/models"):
            respond(sock, 200, models)
        elif asked != path:
            respond(sock, 404, NOT_FOUND)
        elif message := refuse(json.loads(body)):
            respond(sock, 400, {"error": {"message": message, "type": "invalid_request_error"}})
        else:
            sock.pass_on(b"POST /v1/chat/completions HTTP/1.1\r\n" + request.partition(b"\r\n")[2])

    return script


def refuse_max_tokens(body: dict[str, Any]) -> str | None:
    """Refuse the older key of the limit."""
    return UNSUPPORTED if "max_tokens" in body else None


deployment = changed(AZURE)
without_version = changed("/proxy/prefix/chat/completions")
new_key = changed("/v1/chat/completions", refuse_max_tokens)
unlisted = changed(
    "/v1/chat/completions",
    lambda body: "integer below minimum value. Expected a value >= 6" if body["max_tokens"] < 6 else None,
    {"object": "list", "data": [{"id": "unknown"}]},
)
strict = changed(
    "/v1/chat/completions",
    lambda body: "Unrecognized request argument supplied: ignore_eos" if "ignore_eos" in body else None,
)
