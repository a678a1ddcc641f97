"""Remote side of `inferload deploy --host`: one request, one response as a line of JSON. Standard library only.

servers/remote.py sends the source of this module and of its imports to `python3 -` on the other machine.
"""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from inferload.errors import UsageError

from . import launch, preflight, server_info, server_state
from .machine_checks import Hardware
from .preflight import Requirements
from .server_state import LocalServer
from .signals import signals_interrupt

# Program of an engine: environment variable, and default name in the path.
_PROGRAMS = {"vllm": ("VLLM", "vllm"), "simulator": ("INFERLOAD", "inferload")}

Document = dict[str, Any]


def main(request: Document) -> int:
    """Execute a request and print the response."""
    os.environ.update(request["environment"])
    try:
        with signals_interrupt():
            response = _VERBS[request["verb"]](request)
    except UsageError as error:
        response = {"error": str(error)}
    try:
        print(json.dumps(response), flush=True)
    except BrokenPipeError:  # the connection is lost, so the caller has no record of a new server
        if request["verb"] == "up" and "server" in response:
            launch.stop(server_state.from_document(response["server"]))
    return 0


def _up(request: Document) -> Document:
    server, fixed = server_state.from_document(request["server"]), request["fixed"]
    environment = {**request["defaults"], **os.environ, **fixed}
    launch.refuse_taken(server.host, server.port)
    server = replace(server, argv=(_program(server), *server.argv[1:]))
    path = request["model_path"]
    if path is not None and not (Path(path) / "config.json").is_file():
        raise UsageError(f"--model-path {path}: no config.json there; give a model folder")
    if request["need"] is not None:
        requirements = Requirements(**{**request["need"], "hardware": Hardware(**request["need"]["hardware"])})
        preflight.check(requirements, server.argv, environment)
    server = launch.begin(server, environment)
    try:
        server = server_info.measured(server, launch.wait(server, request["ready_s"]))
        server_state.remember(server)
    except BaseException:  # including Ctrl-C: a server in its own session gets no SIGINT
        launch.stop(server)
        raise
    return {"server": server_state.to_document(server)}


def _program(server: LocalServer) -> str:
    """Path of the engine program: the first argument of the command line, else the environment variable or the default."""
    variable, default = _PROGRAMS[server.engine]
    name = server.argv[0] or os.environ.get(variable) or default
    path = shutil.which(name)
    if path is None:
        raise UsageError(f"{server.engine}: no program {name} there; install it, or give its path with --program")
    return path


def _known(port: int | None) -> list[LocalServer]:
    return [server for server in server_state.remembered() if port in (None, server.port)]


def _status(request: Document) -> Document:
    known = _known(request["port"])
    return {
        "servers": [{"state": launch.state(server), "server": server_state.to_document(server)} for server in known]
    }


def _logs(request: Document) -> Document:
    server = _server(request)
    return {"lines": launch.tail(server.log).splitlines()[-request["lines"] :], "log": str(server.log)}


def _down(request: Document) -> Document:
    """Stop a server; with `start_id` only the server of that start. `ended` in the response: null without a server."""
    known = _known(request["port"])
    if not known:
        return {"ended": None}
    if request["start_id"] and known[0].start_id != request["start_id"]:
        raise UsageError(f"port {known[0].port}: belongs to another start and was not stopped")
    return {"ended": launch.stop(known[0]), "engine": known[0].engine}


def _server(request: Document) -> LocalServer:
    known = _known(request["port"])
    if not known:
        raise UsageError(f"port {request['port']}: no server was started there")
    return known[0]


_VERBS = {"up": _up, "status": _status, "logs": _logs, "down": _down}
