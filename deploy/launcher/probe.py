"""Requests to a server: health, model name, a first token; and checks of a port."""

import contextlib
import errno
import http.client
import json
import os
import socket
from typing import Any

import psutil

from inferload.base.errors import UsageError

from . import processes

TIMEOUT_S = 5.0
# The first request of a new server may compile kernels or allocate memory.
FIRST_TOKEN_S = 120.0


def key() -> str | None:
    """Return the API key of the environment; None without one."""
    return os.environ.get("VLLM_API_KEY") or None


def text(
    host: str,
    port: int,
    path: str,
    body: dict[str, Any] | None = None,
    timeout_s: float = TIMEOUT_S,
    *,
    method: str | None = None,
) -> str:
    """Send a request and return the response body as text.

    `method` None: POST with a body, else GET. Raise UsageError without a response, or for a status other than 200.
    """
    connection = http.client.HTTPConnection(host.strip("[]"), port, timeout=timeout_s)
    headers = {"Content-Type": "application/json"}
    if key():
        headers["Authorization"] = f"Bearer {key()}"
    try:
        connection.request(method or ("POST" if body else "GET"), path, json.dumps(body) if body else None, headers)
        response = connection.getresponse()
        content = response.read().decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        raise UsageError(str(error)) from error
    finally:
        connection.close()
    if response.status != http.client.OK:
        raise UsageError(f"{path} answered {response.status}: {content[:300]}")
    return content


def ask(host: str, port: int, path: str, body: dict[str, Any] | None = None, timeout_s: float = TIMEOUT_S) -> Any:
    """Send a request and return the JSON of the response, None for an empty body. Errors as in `text`."""
    content = text(host, port, path, body, timeout_s)
    try:
        return json.loads(content) if content.strip() else None
    except ValueError as error:
        raise UsageError(f"{path}: the response is not JSON: {content[:100]!r}") from error


def empty_prefix_cache(host: str, port: int) -> bool:
    """Clear the prefix cache of a server. Return True on success. vLLM needs VLLM_SERVER_DEV_MODE=1."""
    try:
        text(host, port, "/reset_prefix_cache", method="POST")
    except UsageError:
        return False
    return True


def healthy(host: str, port: int) -> bool:
    """Return True if /health responds with status 200."""
    try:
        ask(host, port, "/health")
    except UsageError:
        return False
    return True


def model(host: str, port: int) -> str:
    """Return the name of the first model in /v1/models. Raise UsageError if there is none."""
    models = ask(host, port, "/v1/models")
    try:
        return str(models["data"][0]["id"])
    except (KeyError, IndexError, TypeError) as error:
        raise UsageError(f"/v1/models lists no model: {models!r}") from error


def first_token(host: str, port: int) -> None:
    """Generate one token, or a vector. Raise UsageError if the server reports another number of tokens."""
    name = model(host, port)
    body = {"model": name, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}
    try:
        response = ask(host, port, "/v1/chat/completions", body, FIRST_TOKEN_S)
    except UsageError as error:
        if "answered 404" not in str(error):
            raise
        ask(host, port, "/v1/embeddings", {"model": name, "input": "Hello"}, FIRST_TOKEN_S)  # of a pooling model
        return
    tokens = (response.get("usage") or {}).get("completion_tokens") if isinstance(response, dict) else None
    if tokens != 1:
        raise UsageError(f"one token requested, the server counted {tokens}")


def free_port() -> int:
    """Find a free TCP port of this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_free(host: str, port: int) -> bool:
    """Return True if a server can listen on the port, ignoring sockets of recently closed connections."""
    return 0 < port < 65536 and _bind_error(host, port) is None  # without a search for the program that has it


def why_not_free(host: str, port: int) -> str | None:
    """Return the reason why a server cannot listen on the port; None if it can."""
    if not 0 < port < 65536:
        return "must be 1 to 65535; change --port"
    error = _bind_error(host, port)
    return None if error is None else _reason(error, host, port)


def _bind_error(host: str, port: int) -> OSError | None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host.strip("[]"), port))
        except OSError as error:
            return error
    return None


def _reason(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"taken by {listener(port) or 'another program'}; stop it, or choose another --port"
    if error.errno == errno.EACCES:
        return "needs privileges; use a --port above 1023"
    if error.errno == errno.EADDRNOTAVAIL or isinstance(error, socket.gaierror):
        return f"{host} is not an address of this machine; use --host 0.0.0.0 for all addresses"
    return f"cannot be bound at {host}: {error.strerror}; choose another --port"


def listener(port: int) -> str | None:
    """Return the program listening on a port, as `name (pid 7)`; None if unknown."""
    for pid in sorted(processes.listeners(port)):
        with contextlib.suppress(psutil.Error):  # has ended
            return f"{psutil.Process(pid).name()} (pid {pid})"
    return None
