"""Servers on this machine: start one by its specification, record its prices, stop it at the end of a block.

with serving(Wanted(engine="simulator", port=free_port())) as server:
    ... server.url ...
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from inferload.results import prices
from inferload.results.cost import Prices

from ..launcher import launch, probe, server_info
from ..launcher.launch import Say, to_stderr
from ..launcher.server_state import LocalServer
from ..variants.variant import document
from .engines import Command, ServerSpec, command_of


def start(wanted: ServerSpec, command: Command | None = None) -> LocalServer:
    """Start the server in a process group of its own and remember it; it does not answer yet.

    `command`: replaces the engine's own command line. UsageError if the port is taken.
    """
    probe.check_port(wanted.port)
    command = command or command_of(wanted)
    server = LocalServer(
        engine=wanted.engine,
        model=wanted.model,
        host=wanted.host,
        port=wanted.port,
        pid=0,
        started_at="",
        argv=command.argv,
        log=Path(),
        cores=wanted.cores,
        variant=None if wanted.variant is None else document(wanted.variant),
    )
    return launch.begin(server, command.environment)


@contextmanager
def serving(wanted: ServerSpec, say: Say = to_stderr) -> Iterator[LocalServer]:
    """A server that answers; it is stopped at the end of the block."""
    command = command_of(wanted)
    server = start(wanted, command)
    try:
        took_s = launch.wait(server, command.ready_s, say)
        say(f"{server.engine}: {server.model} at {server.url} after {took_s:.1f} s")
        yield server
    finally:
        launch.stop(server)


def described(server: LocalServer, startup_s: float, named: Prices) -> LocalServer:
    """The server with its facts and its prices."""
    server = server_info.measured(server, startup_s)
    return replace(server, facts={**server.facts, **priced(server.variant, named)})


def priced(variant: dict[str, Any] | None, named: Prices) -> dict[str, Any]:
    """The prices of a server, if any were named; the number of GPUs defaults to the variant's, and then to one."""
    gpus = ((variant or {}).get("hardware") or {}).get("gpus")
    return {"prices": prices.to_document(named.over(Prices(gpus=gpus or 1)))} if prices.to_document(named) else {}
