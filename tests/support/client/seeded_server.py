"""Script of a server whose answers end at a length that the seed of the request decides."""

import json
from typing import Any


def ended_by_seed(sock: Any, request: bytes) -> None:
    """Pass a request on with a length of answer by its seed, as of a model that ends its texts."""
    head, _, body = request.partition(b"\r\n\r\n")
    if b"/chat/completions" in head and "seed" in (document := json.loads(body)):
        document["max_tokens"] = 2 + document["seed"] % 5
        body = json.dumps(document).encode()
        lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"content-length")]
        request = b"\r\n".join([*lines, b"Content-Length: %d" % len(body)]) + b"\r\n\r\n" + body
    sock.pass_on(request)
