"""`inferload deploy`: start a server, list the servers, show a log, stop a server."""

import argparse
import math
import os
import re
from pathlib import Path
from typing import Any

from inferload.argparse_ext import PassingParser
from inferload.errors import UsageError
from inferload.results import prices
from inferload.results.cost import UNPRICED

from ..launcher import launch, server_state
from ..launcher.server_state import LocalServer
from ..servers import local, remote
from ..servers.engines import ENGINES, ServerSpec, command_of, is_made_here
from ..servers.ssh import SshMachine
from ..variants.settings import changed
from ..variants.variant import named, stand_in
from . import remote_deploy
from .render import add_render
from .variants import add_list, add_show

EPILOG = """\
Examples:
  inferload deploy up --engine simulator --port 8000
  inferload deploy list
  inferload deploy show t4-all
  inferload deploy up tiny-prefix-caching --engine vllm-cpu --set max-num-seqs=8
  inferload deploy up t4-all --engine vllm --host user@gpu-box --tunnel
  inferload deploy status
  inferload deploy down
Words behind -- are passed to the engine, after the launcher's own flags."""


def register(subparsers: Any) -> None:
    """Add the sub-command."""
    parser = subparsers.add_parser(
        "deploy",
        description="Start a server, list the servers, show a log, stop a server.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(metavar="ACTION", required=True, parser_class=PassingParser)
    add_list(actions)
    add_show(actions)
    add_render(actions)
    _add_up(actions)
    status = actions.add_parser("status", help="the servers that were started here; exit code 1 if none is up")
    _add_name(status)
    status.add_argument("--port", type=int, help="this one only")
    remote_deploy.add_machine(status)
    status.set_defaults(run=status_of)
    logs = actions.add_parser("logs", help="the end of a server's log")
    _add_name(logs)
    logs.add_argument("--port", type=int, help="whose; needed when several are up")
    remote_deploy.add_machine(logs)
    logs.add_argument("-n", "--lines", type=int, default=40, help="how many lines (%(default)s)")
    logs.set_defaults(run=show_log)
    down = actions.add_parser("down", help="stop a server and wait until it is gone")
    _add_name(down)
    down.add_argument("--port", type=int, help="which; needed when several are up")
    remote_deploy.add_machine(down)
    down.add_argument("--all", action="store_true", help="all servers that were started here")
    down.set_defaults(run=down_with)


def _no_flag(text: str) -> str:
    if text.startswith("-"):  # argparse takes a flag behind -- for a name
        raise argparse.ArgumentTypeError(f"{text!r}: a flag, not a variant")
    return text


def _add_name(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name", nargs="?", type=_no_flag, metavar="VARIANT", help="the server of this variant; instead of --port"
    )


def _add_up(actions: Any) -> None:
    up = actions.add_parser(
        "up",
        help="start a server and wait until it answers",
        usage="%(prog)s [-h] [options] [VARIANT] [-- FLAGS OF THE ENGINE]",
    )
    up.add_argument(
        "what",
        nargs="?",
        default="tiny",
        metavar="VARIANT",
        help="a variant (inferload deploy list), or the bare model tiny or tiny-<layers>x<hidden> (%(default)s)",
    )
    up.add_argument("--model-path", type=Path, metavar="DIR", help="a model's folder instead of the variant's model")
    up.add_argument(
        "--set", action="append", default=[], metavar="FLAG=VALUE", help="change an argument; FLAG= drops it"
    )
    up.add_argument("--engine", choices=list(ENGINES), default="simulator", help="(%(default)s)")
    up.add_argument("--host", default="127.0.0.1", help="address to listen on, or user@machine (%(default)s)")
    up.add_argument("--port", type=int, default=8000, help="(%(default)s)")
    up.add_argument("--cores", help="run it on these cores only, such as 1 or 2-3,5")
    up.add_argument("--ready-s", type=float, help="give up after so many seconds (the engine's own limit)")
    prices.add_options(up)
    remote_deploy.add_up(up)
    up.set_defaults(run=bring_up, extra=())


def core_list(text: str) -> tuple[int, ...]:
    """`1`, `0,2` or `2-3,5` as core numbers; UsageError for anything else."""
    cores: set[int] = set()
    for part in text.split(","):
        span = re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip())
        low, high = (int(span[1]), int(span[2] or span[1])) if span else (1, 0)
        if low > high:
            raise UsageError(f"--cores {text}: not a list of cores such as 1 or 2-3,5")
        cores.update(range(low, high + 1))
    return tuple(sorted(cores))


def bring_up(arguments: argparse.Namespace) -> int:
    """`up`: the server goes on when this returns."""
    if arguments.ready_s is not None and not 0 < arguments.ready_s < math.inf:
        raise UsageError(f"--ready-s {arguments.ready_s:g}: a number of seconds above 0")
    if not arguments.host:
        raise UsageError("--host: is empty; 127.0.0.1 is for this machine alone, 0.0.0.0 for everyone who reaches it")
    named_prices = prices.from_options(arguments)
    variant = None if is_made_here(arguments.what) else named(arguments.what)
    if arguments.set:
        if variant is None:
            raise UsageError(
                f"--set {arguments.set[0]}: changes a variant; {arguments.what} is a bare model, pass flags after --"
            )
        variant = changed(variant, arguments.set)
    if (machine := remote.machine_of(arguments.host, arguments.ssh_config)) is not None:
        return remote_deploy.up(arguments, machine, variant, named_prices)
    if arguments.tunnel is not None or arguments.listen or arguments.program:
        raise UsageError(
            "--tunnel, --listen, --program: for a server on another machine; name it as --host user@machine"
        )
    wanted = ServerSpec(
        engine=arguments.engine,
        model=arguments.what if variant is None else variant.model,
        variant=variant,
        model_path=arguments.model_path,
        host=arguments.host,
        port=arguments.port,
        cores=None if arguments.cores is None else core_list(arguments.cores),
        extra=arguments.extra,
    )
    launch.refuse_taken(wanted.host, wanted.port)  # first: the checks below may take a while
    command = command_of(wanted)
    server = local.start(wanted, command)
    try:
        took_s = launch.wait(server, arguments.ready_s or command.ready_s)
        server_state.remember(
            local.described(server, took_s, named_prices.over(UNPRICED if variant is None else variant.prices))
        )
    except BaseException:  # Ctrl-C too: a server in a session of its own gets no SIGINT
        launch.stop(server)
        raise
    shown = server.model if variant is None else f"{variant.name} ({server.model})"
    print(f"{server.engine}: {shown} at {server.url} after {took_s:.1f} s (pid {server.pid})")
    if variant is not None and server.engine == "simulator":
        print(f"step times: those of {stand_in(variant)}")
    print(f"log: {server.log}\nstop: inferload deploy down --port {server.port}")
    return 0


def _name_to_port(arguments: argparse.Namespace) -> None:
    """Replace the name of a variant by machine and port of its server; UsageError lists the servers if it has none."""
    if arguments.name is None:
        return
    if arguments.port is not None or arguments.host is not None or getattr(arguments, "all", False):
        raise UsageError(f"{arguments.name}: names a server; leave out --port, --host and --all, or leave out the name")
    everyone: list[LocalServer | remote.RemoteServer] = [*server_state.remembered(), *remote.remembered()]
    found = [each for each in everyone if _variant_of(each) == arguments.name]
    if len(found) > 1:  # those that have ended are remembered until they are stopped
        found = [each for each in found if not isinstance(each, LocalServer) or server_state.group(each)]
    if len(found) != 1:
        known = ", ".join(f"{_variant_of(each)} at {each.url}" for each in everyone) or "none"
        what = f"{len(found)} servers are" if found else "no server is"
        raise UsageError(f"{arguments.name}: {what} of this variant; known servers: {known}; name one with --port")
    arguments.port = found[0].port
    if isinstance(found[0], remote.RemoteServer):
        arguments.host, arguments.ssh_config = found[0].machine, found[0].ssh_config


def _variant_of(server: LocalServer | remote.RemoteServer) -> str:
    return str(server.variant["name"]) if server.variant else server.model


def chosen(port: int | None) -> LocalServer:
    """The server of that port, or the only server; UsageError lists the choice."""
    known = server_state.remembered()
    found = [server for server in known if port in (None, server.port)]
    if len(found) == 1:
        return found[0]
    ports = ", ".join(str(server.port) for server in known) or "none"
    if found:
        raise UsageError(f"--port: several servers are known ({ports}); name one")
    raise UsageError(f"no server {'was started here' if port is None else f'on port {port}'}; known ports: {ports}")


def _line(server: LocalServer, state: str) -> str:
    """A server's line in a status."""
    pinned = "" if server.cores is None else f"  cores {launch.cores_text(server.cores)}"
    since = f"{server_state.age_s(server):.0f} s ago"
    shown = f"{server.variant['name']} ({server.model})" if server.variant else server.model
    return f"{server.url}  {state}  {server.engine} {shown}  pid {server.pid}  started {since}{pinned}"


def status_of(arguments: argparse.Namespace) -> int:
    """`status`: a line for each server; 0 if at least one of them is up."""
    _name_to_port(arguments)
    machine = remote_deploy.wanted(arguments)
    if machine is not None:
        there = remote.states(machine, arguments.port)
        print("\n".join(_line(*each) for each in there) or f"no server was started on {machine.name}")
        return 0 if any(state == "up" for _, state in there) else 1
    known = [server for server in server_state.remembered() if arguments.port in (None, server.port)]
    states = [launch.state(server) for server in known]
    for server, state in zip(known, states, strict=True):
        print(_line(server, state))
    for far in remote.found(arguments.port):
        line, state = remote_deploy.shown(far)
        states.append(state)
        print(line)
    if not states:
        print("no server was started here" if arguments.port is None else f"no server on port {arguments.port}")
    return 0 if "up" in states else 1


def _far(arguments: argparse.Namespace) -> tuple[SshMachine, int] | None:
    """Machine and port of a server on another machine, if --host names it or no server here fits; else None."""
    machine = remote_deploy.wanted(arguments)
    known = remote.found(arguments.port, [] if machine is None else [machine])
    here = [server for server in server_state.remembered() if arguments.port in (None, server.port)]
    if machine is None and (here or not known):
        return None
    return remote_deploy.chosen(known, machine, arguments.port)


def show_log(arguments: argparse.Namespace) -> int:
    """`logs`: the end of the log, and its path on the last line."""
    if arguments.lines < 1:
        raise UsageError(f"--lines {arguments.lines}: at least 1")
    _name_to_port(arguments)
    if (far := _far(arguments)) is not None:
        print("\n".join(remote.log(*far, arguments.lines)))
        return 0
    server = chosen(arguments.port)
    lines = launch.tail(server.log).splitlines()[-arguments.lines :]
    print("\n".join([*lines, f"whole log: {os.fspath(server.log)}"]))
    return 0


def down_with(arguments: argparse.Namespace) -> int:
    """`down`: stop and forget."""
    _name_to_port(arguments)
    if not arguments.all and (far := _far(arguments)) is not None:
        print(f"{far[0].name}: {remote.stop(*far)}")
        return 0
    if arguments.all and not server_state.remembered() and not remote.remembered():
        print("no server was started here")
    for server in server_state.remembered() if arguments.all else [chosen(arguments.port)]:
        ended = launch.stop(server)
        print(f"{server.engine} on port {server.port}: {'stopped' if ended else 'had ended already'}")
    left: list[str] = []
    for far_server in remote.remembered() if arguments.all else []:
        try:
            print(f"{far_server.machine}: {remote.stop(far_server.where, far_server.port)}")
        except UsageError as error:
            left.append(str(error))
    if left:
        raise UsageError("\n".join(left))
    return 0
