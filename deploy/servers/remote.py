"""Servers on other machines: started, watched and stopped there by the launcher's own source through ssh, and recorded here for
the runs against them."""

import contextlib
import dataclasses
import json
import os
import re
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from inferload import deployments, rundir
from inferload.errors import UsageError
from inferload.measure import clock
from inferload.results.cost import UNPRICED, Prices

from ..launcher import paths, probe, server_state
from ..launcher.server_state import LocalServer
from ..variants.variant import Variant, document
from . import ssh
from .engines import ServerSpec, line_of, need_of, program_argv
from .local import priced
from .ssh import Say, SshMachine

REACH_S = 15.0  # the limit for reaching a started server from here
_READY_S = {"vllm": 1800.0, "simulator": 30.0}

# The modules that run there: remote_main and its imports, each after those that it imports.
_MODULES = (
    *("inferload.errors", "inferload.deployments"),
    *("inferload.deploy.vllm.log_cause", "inferload.deploy.vllm.arguments"),
    *(
        f"inferload.deploy.launcher.{name}"
        for name in (
            *("paths", "procfs", "probe", "machine_checks", "weights", "preflight"),
            *("signals", "server_state", "launch", "server_info", "remote_main"),
        )
    ),
)
_PACKAGES = ("inferload", "inferload.deploy", "inferload.deploy.vllm", "inferload.deploy.launcher")
_PROGRAM = """\
import json, sys, types
if sys.version_info < (3, 10):
    sys.exit("python3 there is %d.%d; 3.10 or newer is needed" % sys.version_info[:2])
for name, source in json.loads({sources}).items():
    module = sys.modules[name] = types.ModuleType(name)
    module.__file__ = "/dev/null/" + name
    parent, _, child = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], child, module)
    if source is None:
        module.__path__ = []
    else:
        module.__package__ = parent
        exec(compile(source, name, "exec"), module.__dict__)
sys.exit(sys.modules["inferload.deploy.launcher.remote_main"].main(json.loads({request})))
"""


@dataclass(frozen=True, slots=True)
class RemoteServer:
    """A server on another machine. `port`: there; `url`: for clients here; `tunnel`: its process id and local port."""

    machine: str
    ssh_config: str | None
    engine: str
    model: str
    port: int
    url: str
    pid: int
    started_at: str
    argv: tuple[str, ...]
    log: str
    variant: dict[str, Any]
    tunnel: tuple[int, int] | None = None
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def where(self) -> SshMachine:
        """The machine."""
        return SshMachine(self.machine, self.ssh_config)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the URL."""
        host, _, port = self.url.removeprefix("http://").rpartition(":")
        return host, int(port)

    def tunnel_is_up(self) -> bool:
        """True if there is one and its process runs."""
        return self.tunnel is not None and ssh.tunnel(*self.tunnel, self.port) is not None


def state_file(machine: str, port: int) -> Path:
    """The state file of a server on another machine."""
    return paths.state_dir() / deployments.REMOTE / f"{re.sub(r'[^A-Za-z0-9.-]+', '_', machine)}-{port}.json"


def remember(server: RemoteServer) -> None:
    """Write the state file, so that runs and other shells find the server."""
    written, path = dataclasses.asdict(server), state_file(server.machine, server.port)
    server_state.write_state(path, {**written.pop("facts"), **written})


def remembered() -> list[RemoteServer]:
    """Every server with a state file; UsageError if a file is none."""
    return [_recall(path) for path in sorted((paths.state_dir() / deployments.REMOTE).glob("*.json"))]


def _recall(path: Path) -> RemoteServer:
    document = rundir.read_json(path)
    names = {each.name for each in dataclasses.fields(RemoteServer)} - {"facts"}
    known = {key: document[key] for key in server_state.FACTS if key in document}
    try:
        server = RemoteServer(**{key: document[key] for key in names & document.keys()}, facts=known)
    except TypeError as error:
        raise UsageError(f"{path}: not a state file of a server ({error}); remove the file") from error
    tunnel = None if server.tunnel is None else (server.tunnel[0], server.tunnel[1])  # JSON has lists for both
    return dataclasses.replace(server, argv=tuple(server.argv), tunnel=tunnel)


def close_tunnel(server: RemoteServer) -> None:
    """End the server's tunnel, if it has one."""
    if server.tunnel is not None:
        ssh.close_tunnel(*server.tunnel, server.port)


def forget(server: RemoteServer) -> None:
    """End the tunnel and remove the state file."""
    close_tunnel(server)
    state_file(server.machine, server.port).unlink(missing_ok=True)


# -- verbs -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RemoteSpec:
    """A server to start on a machine. `program` and `model_path`: paths there; `local_port`: of a tunnel."""

    machine: SshMachine
    variant: Variant
    engine: str
    port: int
    listen: str
    local_port: int | None = None
    program: str | None = None
    model_path: str | None = None
    ready_s: float | None = None
    extra: tuple[str, ...] = ()
    prices: Prices = UNPRICED


@cache
def _sources() -> str:
    """The modules by name, as JSON; a package has no source."""
    texts: dict[str, str | None] = dict.fromkeys(_PACKAGES)
    for name in _MODULES:
        package, _, module = name.rpartition(".")
        texts[name] = files(package).joinpath(f"{module}.py").read_text(encoding="utf-8")
    return json.dumps(texts)


def program(request: dict[str, Any]) -> str:
    """The Python program that answers a request there. It holds the API key and the state folder that are set here."""
    carried = {name: value for name in ("INFERLOAD_STATE", "VLLM_API_KEY") if (value := os.environ.get(name))}
    text = json.dumps({**request, "environment": carried})
    return _PROGRAM.format(sources=repr(_sources()), request=repr(text))


def _ask(machine: SshMachine, verb: str, say: Say = lambda _text: None, **request: Any) -> dict[str, Any]:
    return ssh.run_python(machine, program({"verb": verb, **request}), say)


def start(order: RemoteSpec, say: Say) -> RemoteServer:
    """Start the server there, wait until it answers there and here, record it. UsageError: the reason in one line."""
    host = "127.0.0.1" if order.local_port else order.machine.host()
    if order.local_port and (reason := probe.why_not_free("127.0.0.1", order.local_port)) is not None:
        raise UsageError(f"--tunnel {order.local_port}: {reason}")
    start_id = secrets.token_hex(8)
    try:
        answer = _ask(order.machine, "up", say, **_request(order, start_id))
    except KeyboardInterrupt:
        _undo(order, start_id)
        raise
    try:
        return _reached(_server(order, host, server_state.from_document(answer["server"])), order)
    except BaseException:
        _undo(order, start_id)
        raise


def _undo(order: RemoteSpec, start_id: str) -> None:
    """Stop the server of this start, and no other; an error hides none that is reported already."""
    with contextlib.suppress(UsageError):
        _ask(order.machine, "down", port=order.port, start_id=start_id)


def _request(order: RemoteSpec, start_id: str) -> dict[str, Any]:
    path = None if order.model_path is None else Path(order.model_path)
    wanted = ServerSpec(
        engine=order.engine,
        model=order.variant.model,
        host=order.listen,
        port=order.port,
        extra=order.extra,
        variant=order.variant,
        model_path=path,
    )
    line = line_of(wanted)
    server = LocalServer(
        engine=order.engine,
        model=order.variant.model,
        host=order.listen,
        port=order.port,
        pid=0,
        started_at="",
        argv=(order.program or "", *program_argv(wanted)[1:]),
        log=Path(),
        variant=document(order.variant),
        start_id=start_id,
    )
    return {
        "server": server_state.to_document(server),
        "defaults": dict(line.defaults),
        "fixed": {name: str(value) for name, value in line.fixed.items()},
        "ready_s": order.ready_s or _READY_S[order.engine],
        "model_path": order.model_path,
        "need": dataclasses.asdict(need_of(wanted)) if order.engine == "vllm" else None,
    }


def _server(order: RemoteSpec, host: str, there: LocalServer) -> RemoteServer:
    """The record of a server that was started there."""
    return RemoteServer(
        machine=order.machine.name,
        ssh_config=order.machine.config,
        engine=order.engine,
        model=order.variant.model,
        port=order.port,
        url=f"http://{host}:{order.local_port or order.port}",
        pid=there.pid,
        started_at=there.started_at,
        argv=there.argv,
        log=str(there.log),
        variant=document(order.variant),
        facts={**there.facts, **priced(document(order.variant), order.prices)},
    )


def _reached(server: RemoteServer, order: RemoteSpec) -> RemoteServer:
    """The record with its tunnel, once the server is healthy from here."""
    if order.local_port:
        log = state_file(server.machine, server.port).with_suffix(".tunnel.log")
        pid = ssh.open_tunnel(order.machine, order.local_port, server.port, log)
        server = dataclasses.replace(server, tunnel=(pid, order.local_port))
    host, port = server.address
    deadline_ns = clock.now_ns() + round(REACH_S * clock.NS_PER_S)
    try:
        while not probe.healthy(host, port):
            if clock.now_ns() > deadline_ns:
                hint = "see the tunnel's log beside its state" if order.local_port else "open the port, or use --tunnel"
                raise UsageError(
                    f"{server.machine}: {server.engine} is up there, but {server.url} is not reached from here; {hint}"
                )
            time.sleep(0.1)
        remember(server)
    except BaseException:
        forget(server)
        raise
    return server


def stop(machine: SshMachine, port: int) -> str:
    """Stop a server there and remove its record; returns the result as text. It may have been stopped there by hand before.

    UsageError if ssh cannot connect: then the tunnel is closed, and the record stays.
    """
    mine = found(port, [machine])
    try:
        answer = _ask(machine, "down", port=port, start_id="")
    except UsageError as error:
        if not mine:
            raise
        close_tunnel(mine[0])
        record = state_file(machine.name, port)
        raise UsageError(f"{error}; its tunnel here is closed; if it is gone for good, remove {record}") from error
    if answer["ended"] is None and not mine:
        raise UsageError(f"{machine.name}: port {port}: nothing was started there")
    for server in mine:
        forget(server)
    engine = answer.get("engine") or mine[0].engine
    return f"{engine} on port {port}: {'stopped' if answer['ended'] else 'had ended already'}"


def log(machine: SshMachine, port: int, lines: int) -> list[str]:
    """The end of a server's log, and its path there as the last line."""
    answer = _ask(machine, "logs", port=port, lines=lines)
    return [*answer["lines"], f"whole log: {answer['log']}"]


def state(server: RemoteServer) -> str:
    """`up`, `not answering`, `ended`, or the reason why the machine does not tell."""
    try:
        answer = states(server.where, server.port)
    except UsageError as error:
        return str(error).removeprefix(f"{server.machine}: ")
    there = answer[0][1] if answer else "ended"
    if there == "up" and server.tunnel is not None and not server.tunnel_is_up():
        return "up there, its tunnel has ended"
    return there


def states(machine: SshMachine, port: int | None) -> list[tuple[LocalServer, str]]:
    """The servers that were started there, each with its state."""
    servers = _ask(machine, "status", port=port)["servers"]
    return [(server_state.from_document(each["server"]), each["state"]) for each in servers]


def machine_of(host: str | None, config: str | None) -> SshMachine | None:
    """The machine that --host and --ssh-config name, if any."""
    if host is None or not ssh.is_machine(host, config):
        if config is not None:
            raise UsageError("--ssh-config: is for another machine; name it with --host")
        return None
    if not host.removeprefix("ssh://").rpartition("@")[2].strip("/"):
        raise UsageError(f"--host {host}: names no machine; user@machine, or ssh://name")
    if config is not None and not os.path.isfile(config):
        raise UsageError(f"--ssh-config {config}: no such file")
    return SshMachine(host, None if config is None else os.path.abspath(config))


def found(port: int | None, machines: Sequence[SshMachine] = ()) -> list[RemoteServer]:
    """The recorded servers on a port of these machines; None: any port, no machines: all."""
    names = {machine.name for machine in machines}
    return [each for each in remembered() if port in (None, each.port) and (not names or each.machine in names)]
