"""`inferload deploy up | status | logs | down --host user@machine`: servers on other machines."""

import argparse

from inferload.errors import UsageError
from inferload.results.cost import Prices

from ..launcher import launch
from ..servers import remote
from ..servers.engines import is_generated
from ..servers.remote import RemoteServer, RemoteSpec
from ..servers.ssh import SshMachine
from ..variants.variant import Variant
from ..vllm.arguments import check_extra, refuse_elsewhere

_CONFIG = "configuration file of ssh (ssh's default)"


def add_machine(parser: argparse.ArgumentParser) -> None:
    """Add the options for the machine of `status`, `logs` and `down`."""
    parser.add_argument("--host", metavar="USER@MACHINE", help="select a server on another machine, over ssh")
    parser.add_argument("--ssh-config", metavar="FILE", help=_CONFIG)


def add_up(parser: argparse.ArgumentParser) -> None:
    """Add the options of `up` for another machine."""
    group = parser.add_argument_group("on another machine (--host user@machine, or ssh://name)")
    group.add_argument("--ssh-config", metavar="FILE", help=_CONFIG)
    group.add_argument(
        "--tunnel",
        type=int,
        nargs="?",
        const=0,
        metavar="LOCAL_PORT",
        help="forward a local port (default: --port) to the server through ssh; it listens on 127.0.0.1 there",
    )
    group.add_argument(
        "--listen", metavar="ADDRESS", help="address to listen on there (default: 0.0.0.0; with --tunnel 127.0.0.1)"
    )
    group.add_argument(
        "--program", metavar="PATH", help="engine program there (default: vllm or inferload in the path)"
    )


def up(arguments: argparse.Namespace, machine: SshMachine, variant: Variant | None, price_options: Prices) -> int:
    """Start a server on another machine. It continues after this command."""
    if variant is None:
        raise UsageError(f"{arguments.what}: a bare model cannot be started on another machine; use a variant")
    if arguments.engine == "vllm-cpu":
        raise UsageError(
            "--engine vllm-cpu: not supported on another machine; use --engine vllm with --program and --model-path"
        )
    if arguments.cores:
        raise UsageError("--cores: not supported on another machine; leave it out")
    check_extra(arguments.extra)
    refuse_elsewhere(variant.argv, f"of {variant.name}")
    if arguments.engine == "vllm" and arguments.model_path is None and is_generated(variant.model):
        raise UsageError(
            f"{variant.name}: its model can only be generated where inferload is installed; give a model folder with --model-path"
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
            prices=price_options.over(variant.prices),
        ),
        launch.to_stderr,
    )
    through = " through a tunnel" if tunnelled else ""
    print(
        f"{server.engine}: {variant.name} ({server.model}) on {machine.name} at {server.url}{through} (pid {server.pid} there)"
    )
    print(f"log there: {server.log}\nstop: inferload deploy down --host {machine.name} --port {server.port}")
    return 0


def status_line(server: RemoteServer) -> tuple[str, str]:
    """Return the line of a server in the output of `status`, and its state."""
    state = remote.state(server)
    line = f"{server.url}  {state}  {server.engine} {server.variant['name']} ({server.model})  {server.machine} port {server.port}"
    return f"{line}  pid {server.pid} there", state


def selected(known: list[RemoteServer], machine: SshMachine | None, port: int | None) -> tuple[SshMachine, int]:
    """Return machine and port of the selected server. Raise UsageError with the list of servers if ambiguous."""
    if machine is not None and port is not None:
        matches = [server for server in known if server.machine == machine.name and server.port == port]
        return (matches[0].where if matches and machine.config is None else machine), port
    if len(known) == 1:
        return (machine or known[0].where), known[0].port
    ports = ", ".join(f"{server.machine} port {server.port}" for server in known) or "none"
    raise UsageError(f"--host, --port: do not identify a server; known on other machines: {ports}")


def machine_of(arguments: argparse.Namespace) -> SshMachine | None:
    """Return the machine of --host; None without the option. Raise UsageError if the value is not a machine."""
    machine = remote.machine_of(arguments.host, arguments.ssh_config)
    if machine is None and arguments.host is not None:
        raise UsageError(f"--host {arguments.host}: write a machine as user@machine, or ssh://name")
    return machine
