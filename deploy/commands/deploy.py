"""`inferload deploy`: start a server, list the servers, show a log, stop a server."""

import argparse
import math
import os
import re
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from inferload.base.argparse_ext import PassingParser
from inferload.base.errors import UsageError, instead
from inferload.base.escaping import own_command
from inferload.results import prices
from inferload.results.prices import UNPRICED

from ..launcher import launch, server_state
from ..launcher.machine_checks import TooSmall
from ..launcher.server_state import LocalServer
from ..servers import local
from ..servers.engines import ENGINES, ServerSpec, command_of
from ..variants.variant import stand_in
from .render import add_render
from .variants import add_list, add_settings, add_show, variant_of

EPILOG = """\
Examples:
  inferload deploy up --engine simulator --port 8000
  inferload deploy list
  inferload deploy show t4-all
  inferload deploy up tiny-prefix-caching --engine vllm-cpu --set max-num-seqs=8
  inferload deploy render t4-all --format sh | ssh gpu-box sh
  inferload deploy status
  inferload deploy down
"""
_UP_EPILOG = """\
Examples:
  inferload deploy up --engine simulator --port 8000
  inferload deploy up tiny-prefix-caching --engine vllm-cpu --set max-num-seqs=8
  inferload deploy up llama31-base --engine vllm
Arguments after -- are passed to the engine, after the launcher's own flags."""


def register(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "deploy", description="Start a server, list the servers, show a log, stop a server.", epilog=EPILOG
    )
    actions = parser.add_subparsers(metavar="ACTION", required=True, parser_class=PassingParser)
    add_list(actions)
    add_show(actions)
    add_render(actions)
    _add_up(actions)
    of_one = "port of the server; needed if several are up"
    status = actions.add_parser(
        "status",
        help="list the servers that were started here; exit code 1 if none is up",
        epilog="Examples:\n  inferload deploy status\n  inferload deploy status --port 8000\n",
    )
    _add_selection(status, status_of, "only the server on this port")
    logs = actions.add_parser(
        "logs",
        help="show the end of a server's log",
        epilog="Examples:\n  inferload deploy logs\n  inferload deploy logs t4-all -n 100\n",
    )
    _add_selection(logs, show_log, of_one)
    logs.add_argument("-n", "--lines", type=int, default=40, help="number of lines (%(default)s)")
    down = actions.add_parser(
        "down",
        help="stop a server and wait until it has ended",
        epilog="Examples:\n  inferload deploy down\n  inferload deploy down --all\n",
    )
    _add_selection(down, stop_servers, of_one)
    down.add_argument("--all", action="store_true", help="all servers that were started here")


def _add_selection(parser: argparse.ArgumentParser, run: Callable[[argparse.Namespace], int], port: str) -> None:
    """Set the function of an action on servers, and add the arguments that select one. `port`: the help of --port."""
    parser.set_defaults(run=run)
    parser.add_argument("name", nargs="?", metavar="VARIANT", help="select the server by variant instead of --port")
    parser.add_argument("--port", type=int, help=port)


def _add_up(actions: Any) -> None:
    up = actions.add_parser(
        "up",
        help="start a server and wait until it is ready",
        description="Start a server and wait until it is ready. The server continues after this command.",
        usage="%(prog)s [options] [VARIANT] [-- FLAGS]",
        epilog=_UP_EPILOG,
    )
    up.add_argument(
        "what",
        nargs="?",
        default="tiny",
        metavar="VARIANT",
        help="a variant (inferload deploy list), or the bare model tiny or tiny-<layers>x<hidden> (%(default)s)",
    )
    up.add_argument("--model-path", type=Path, metavar="DIR", help="model folder, instead of the variant's model")
    add_settings(up)
    up.add_argument("--engine", choices=list(ENGINES), default="simulator", help="engine of the server (%(default)s)")
    up.add_argument("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    up.add_argument("--port", type=int, default=8000, help="port to listen on (%(default)s)")
    up.add_argument("--cores", help="pin the server to these cores, such as 1 or 2-3,5")
    up.add_argument("--ready-s", type=float, help="time limit for the start in seconds (default: by engine)")
    prices.add_options(up)
    up.set_defaults(run=bring_up, extra=())


def core_list(text: str) -> tuple[int, ...]:
    """Parse core numbers such as `1`, `0,2` or `2-3,5`. Raise UsageError for other texts."""
    cores: set[int] = set()
    for part in text.split(","):
        span = re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip())
        low, high = (int(span[1]), int(span[2] or span[1])) if span else (1, 0)
        if low > high:
            raise UsageError(f"--cores {text}: not a list of cores such as 1 or 2-3,5")
        cores.update(range(low, high + 1))
    return tuple(sorted(cores))


def bring_up(arguments: argparse.Namespace) -> int:
    """Run `up`. The server continues after this command."""
    if arguments.ready_s is not None and not 0 < arguments.ready_s < math.inf:
        raise UsageError(f"--ready-s {arguments.ready_s:g}: must be a number above 0")
    if arguments.host == "":
        raise UsageError("--host: empty; use 127.0.0.1 for this machine only, 0.0.0.0 for all its addresses")
    price_options = prices.from_options(arguments)
    variant = variant_of(arguments.what, arguments.set, "pass flags after --")
    spec = ServerSpec(
        engine=arguments.engine,
        model=arguments.what if variant is None else variant.model,
        variant=variant,
        model_path=arguments.model_path,
        host=arguments.host,
        port=arguments.port,
        cores=None if arguments.cores is None else core_list(arguments.cores),
        extra=arguments.extra,
    )
    launch.refuse_taken(spec.host, spec.port)  # before the slower checks below
    try:
        command = command_of(spec)
    except TooSmall as error:
        settings = [word for setting in arguments.set for word in ("--set", setting)]
        rehearsal = own_command("deploy", "up", arguments.what, *settings, "--engine", "simulator")
        script = own_command("deploy", "render", arguments.what, *settings)
        problem = str(error).partition(";")[0]
        raise UsageError(f"{problem}; rehearse it: {rehearsal}; on a host with GPUs: {script} | ssh HOST sh") from error
    with ExitStack() as undo:
        server = local.start(spec, command)
        undo.callback(launch.stop, server)  # after Ctrl-C too: a server in its own session gets no SIGINT
        startup_s = launch.wait(server, arguments.ready_s or command.ready_s)
        priced = price_options.over(UNPRICED if variant is None else variant.prices)
        server_state.remember(local.described(server, startup_s, priced))
        undo.pop_all()
    shown = server.model if variant is None else f"{variant.name} ({server.model})"
    print(f"{server.engine}: {shown} at {server.url} after {startup_s:.1f} s (pid {server.pid})")
    if variant is not None and server.engine == "simulator":
        print(f"step times: {stand_in(variant)}")
    print(f"log: {server.log}\nstop: {own_command('deploy', 'down', '--port', server.port)}")
    return 0


def _selected(arguments: argparse.Namespace) -> list[LocalServer]:
    """Return the servers of a command line. Raise UsageError unless exactly one is of the variant that it names."""
    servers = server_state.remembered()
    if arguments.name is None:
        return [server for server in servers if arguments.port in (None, server.port)]
    if arguments.port is not None or getattr(arguments, "all", False):
        raise UsageError(f"{arguments.name}: already selects a server; remove the name, or --port and --all")
    matches = [server for server in servers if _variant_of(server) == arguments.name]
    if len(matches) > 1:  # servers that have ended keep their state file until they are stopped
        matches = [server for server in matches if server_state.group(server)]
    if len(matches) != 1:
        known = ", ".join(f"{_variant_of(server)} at {server.url}" for server in servers) or "none"
        problem = f"{len(matches)} servers are" if matches else "no server is"
        by_port = "select one with --port"
        remedy = by_port if matches else instead(arguments.name, map(_variant_of, servers), by_port)
        raise UsageError(f"{arguments.name}: {problem} of this variant; known servers: {known}; {remedy}")
    return matches


def _variant_of(server: LocalServer) -> str:
    return str(server.variant["name"]) if server.variant else server.model


def _the_one(arguments: argparse.Namespace) -> LocalServer:
    """Return the selected server, or the only one. Raise UsageError with the list of servers otherwise."""
    matches, port = _selected(arguments), arguments.port
    if len(matches) == 1:
        return matches[0]
    ports = ", ".join(str(server.port) for server in server_state.remembered()) or "none"
    if matches:
        raise UsageError(f"--port: several servers are known ({ports}); select one")
    raise UsageError(f"no server {'was started here' if port is None else f'on port {port}'}; known ports: {ports}")


def _status_line(server: LocalServer, state: str) -> str:
    pinned = "" if server.cores is None else f"  cores {launch.cores_text(server.cores)}"
    since = f"{server_state.age_s(server):.0f} s ago"
    shown = f" ({server.model})" if server.variant else ""
    return f"{server.url}  {state}  {server.engine} {_variant_of(server)}{shown}  pid {server.pid}  started {since}{pinned}"


def status_of(arguments: argparse.Namespace) -> int:
    """Run `status`: print a line per server. Return 0 if at least one is up."""
    known = _selected(arguments)
    states = [launch.state(server) for server in known]
    for server, state in zip(known, states, strict=True):
        print(_status_line(server, state))
    if not states:
        print("no server was started here" if arguments.port is None else f"no server on port {arguments.port}")
    return 0 if "up" in states else 1


def show_log(arguments: argparse.Namespace) -> int:
    """Run `logs`: print the end of the log, then its path."""
    if arguments.lines < 1:
        raise UsageError(f"--lines {arguments.lines}: must be 1 or more")
    server = _the_one(arguments)
    lines = launch.tail(server.log).splitlines()[-arguments.lines :]
    print("\n".join([*lines, f"whole log: {os.fspath(server.log)}"]))
    return 0


def stop_servers(arguments: argparse.Namespace) -> int:
    """Run `down`: stop servers and remove their state files."""
    if arguments.all and arguments.port is not None:
        raise UsageError("--all: selects every server; remove it, or --port")
    servers = _selected(arguments) if arguments.all else [_the_one(arguments)]
    if not servers:
        print("no server was started here")
    for server in servers:
        ended = launch.stop(server)
        print(f"{server.engine} on port {server.port}: {'stopped' if ended else 'had already ended'}")
    return 0
