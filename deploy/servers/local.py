"""Servers on this machine: start by specification, record of properties and prices.

with serving(ServerSpec(engine="simulator", port=free_port())) as server:
    ... server.url ...
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from inferload.results import prices
from inferload.results.prices import Prices

from ..launcher import launch, server_info
from ..launcher.launch import ProgressCallback, to_stderr
from ..launcher.server_state import LocalServer
from ..variants.variant import document
from . import sizing
from .engines import Command, ServerSpec, command_of, shell_line


def start(spec: ServerSpec, command: Command | None = None, start_id: str = "") -> LocalServer:
    """Start a server in its own process group and write its state file, without waiting for it.

    `command` replaces the command line of the engine. `start_id` identifies the start in the state file. Raise UsageError
    if the port is taken.
    """
    command = command or command_of(spec)
    server = LocalServer(
        engine=spec.engine,
        model=spec.model,
        host=spec.host,
        port=spec.port,
        pid=0,
        started_at="",
        argv=command.argv,
        log=Path(),
        cores=spec.cores,
        variant=None if spec.variant is None else {**document(spec.variant), **derived(spec)},
        start_id=start_id,
    )
    return launch.begin(server, command.environment)


def derived(spec: ServerSpec) -> dict[str, Any]:
    """Return what results record of a variant beside its document."""
    assert spec.variant is not None
    return {"command_line": shell_line(spec), "weights_gb": sizing.weights_gb(spec.variant)}


@contextmanager
def serving(spec: ServerSpec, progress: ProgressCallback = to_stderr) -> Iterator[LocalServer]:
    """Context manager: run a server in the block."""
    command = command_of(spec)
    server = start(spec, command)
    try:
        startup_s = launch.wait(server, command.ready_s, progress)
        progress(f"{server.engine}: {server.model} at {server.url} after {startup_s:.1f} s")
        yield server
    finally:
        launch.stop(server)


def described(server: LocalServer, startup_s: float, price_options: Prices) -> LocalServer:
    server = server_info.measured(server, startup_s)
    return replace(server, facts={**server.facts, **priced(server.variant, price_options)})


def priced(variant: dict[str, Any] | None, price_options: Prices) -> dict[str, Any]:
    """Return the prices of a server, or an empty document. Default number of GPUs: the variant's, or one."""
    if not prices.to_document(price_options):
        return {}
    gpus = ((variant or {}).get("hardware") or {}).get("gpus")
    return {"prices": prices.to_document(price_options.over(Prices(gpus=gpus or 1)))}
