"""Servers on other machines: ssh runs the source of the launcher there; a state file here records the server."""

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
from ..launcher.launch import ProgressCallback
from ..launcher.server_state import LocalServer
from ..variants.variant import Variant, document
from . import ssh
from .engines import ServerSpec, line_of, need_of, program_argv
from .local import priced
from .ssh import SshMachine

REACH_S = 15.0  # limit until a started server is reachable from this machine
_READY_S = {"vllm": 1800.0, "simulator": 30.0}

# Modules that run on the other machine: remote_main and its imports, in import order.
_MODULES = (
    *("inferload.errors", "inferload.user_cache", "inferload.deployments"),
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
    sys.exit("python3 on that machine is %d.%d; 3.10 or newer is needed" % sys.version_info[:2])
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
    """Server on another machine. `port`: on that machine. `url`: for clients here. `tunnel`: process id and local port."""

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
        """Machine of the server."""
        return SshMachine(self.machine, self.ssh_config)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the URL."""
        host, _, port = self.url.removeprefix("http://").rpartition(":")
        return host, int(port)

    def tunnel_is_up(self) -> bool:
        """Return True if the server has a tunnel and its process runs."""
        return self.tunnel is not None and ssh.tunnel(*self.tunnel, self.port) is not None


def state_file(machine: str, port: int) -> Path:
    """Return the state file of a server on another machine."""
    return paths.state_dir() / deployments.REMOTE / f"{re.sub(r'[^A-Za-z0-9.-]+', '_', machine)}-{port}.json"


def remember(server: RemoteServer) -> None:
    """Write the state file of a server."""
    fields, path = dataclasses.asdict(server), state_file(server.machine, server.port)
    server_state.write_state(path, {**fields.pop("facts"), **fields})


def remembered() -> list[RemoteServer]:
    """Return the servers with a state file. Raise UsageError for an invalid file."""
    return [_recall(path) for path in sorted((paths.state_dir() / deployments.REMOTE).glob("*.json"))]


def _recall(path: Path) -> RemoteServer:
    document = rundir.read_json(path)
    names = {field.name for field in dataclasses.fields(RemoteServer)} - {"facts"}
    facts = {key: document[key] for key in server_state.FACTS if key in document}
    try:
        server = RemoteServer(**{key: document[key] for key in names & document.keys()}, facts=facts)
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
    """Specification of a server to start on another machine.

    `program`, `model_path`: paths on that machine; `local_port`: local end of a tunnel.
    """

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
    """JSON object of module sources by name; null for a package."""
    texts: dict[str, str | None] = dict.fromkeys(_PACKAGES)
    for name in _MODULES:
        package, _, module = name.rpartition(".")
        texts[name] = files(package).joinpath(f"{module}.py").read_text(encoding="utf-8")
    return json.dumps(texts)


def program(request: dict[str, Any]) -> str:
    """Return the Python program that executes a request on the other machine.

    The program contains the API key and the state folder of this environment.
    """
    environment = {name: value for name in ("INFERLOAD_STATE", "VLLM_API_KEY") if (value := os.environ.get(name))}
    text = json.dumps({**request, "environment": environment})
    return _PROGRAM.format(sources=repr(_sources()), request=repr(text))


def _ask(
    machine: SshMachine, verb: str, progress: ProgressCallback = lambda _text: None, **request: Any
) -> dict[str, Any]:
    return ssh.run_python(machine, program({"verb": verb, **request}), progress)


def start(spec: RemoteSpec, progress: ProgressCallback) -> RemoteServer:
    """Start a server, wait until it is reachable from here, and write its state file. Raise UsageError on failure."""
    host = "127.0.0.1" if spec.local_port else spec.machine.host()
    if spec.local_port and (reason := probe.why_not_free("127.0.0.1", spec.local_port)) is not None:
        raise UsageError(f"--tunnel {spec.local_port}: {reason}")
    start_id = secrets.token_hex(8)
    try:
        response = _ask(spec.machine, "up", progress, **_request(spec, start_id))
    except KeyboardInterrupt:
        _undo(spec, start_id)
        raise
    try:
        return _reached(_server(spec, host, server_state.from_document(response["server"])), spec)
    except BaseException:  # including Ctrl-C: the server would run on without a state file
        _undo(spec, start_id)
        raise


def _undo(spec: RemoteSpec, start_id: str) -> None:
    """Stop the server of this start only. Errors are suppressed in favour of the original one."""
    with contextlib.suppress(UsageError):
        _ask(spec.machine, "down", port=spec.port, start_id=start_id)


def _request(spec: RemoteSpec, start_id: str) -> dict[str, Any]:
    path = None if spec.model_path is None else Path(spec.model_path)
    server_spec = ServerSpec(
        engine=spec.engine,
        model=spec.variant.model,
        host=spec.listen,
        port=spec.port,
        extra=spec.extra,
        variant=spec.variant,
        model_path=path,
    )
    line = line_of(server_spec)
    server = LocalServer(
        engine=spec.engine,
        model=spec.variant.model,
        host=spec.listen,
        port=spec.port,
        pid=0,
        started_at="",
        argv=(spec.program or "", *program_argv(server_spec)[1:]),
        log=Path(),
        variant=document(spec.variant),
        start_id=start_id,
    )
    return {
        "server": server_state.to_document(server),
        "defaults": dict(line.defaults),
        "fixed": {name: str(value) for name, value in line.fixed.items()},
        "ready_s": spec.ready_s or _READY_S[spec.engine],
        "model_path": spec.model_path,
        "need": dataclasses.asdict(need_of(server_spec)) if spec.engine == "vllm" else None,
    }


def _server(spec: RemoteSpec, host: str, remote_server: LocalServer) -> RemoteServer:
    """Record of a started server."""
    return RemoteServer(
        machine=spec.machine.name,
        ssh_config=spec.machine.config,
        engine=spec.engine,
        model=spec.variant.model,
        port=spec.port,
        url=f"http://{host}:{spec.local_port or spec.port}",
        pid=remote_server.pid,
        started_at=remote_server.started_at,
        argv=remote_server.argv,
        log=str(remote_server.log),
        variant=document(spec.variant),
        facts={**remote_server.facts, **priced(document(spec.variant), spec.prices)},
    )


def _reached(server: RemoteServer, spec: RemoteSpec) -> RemoteServer:
    """Open the tunnel, wait until the server is healthy from here, and return the record."""
    if spec.local_port:
        log = state_file(server.machine, server.port).with_suffix(".tunnel.log")
        pid = ssh.open_tunnel(spec.machine, spec.local_port, server.port, log)
        server = dataclasses.replace(server, tunnel=(pid, spec.local_port))
    host, port = server.address
    deadline_ns = clock.now_ns() + round(REACH_S * clock.NS_PER_S)
    try:
        while not probe.healthy(host, port):
            if clock.now_ns() > deadline_ns:
                hint = (
                    "see the log of the tunnel beside the state file"
                    if spec.local_port
                    else "open the port, or use --tunnel"
                )
                raise UsageError(
                    f"{server.machine}: {server.engine} is up there, but {server.url} is not reachable from here; {hint}"
                )
            time.sleep(0.1)
        remember(server)
    except BaseException:  # including Ctrl-C: no state file of a server that is not reachable
        forget(server)
        raise
    return server


def stop(machine: SshMachine, port: int) -> str:
    """Stop a server that may have ended, and remove its state file. Return the result as text.

    If ssh cannot connect, close the tunnel, keep the state file, and raise UsageError.
    """
    records = matching(port, [machine])
    try:
        response = _ask(machine, "down", port=port, start_id="")
    except UsageError as error:
        if not records:
            raise
        close_tunnel(records[0])
        record = state_file(machine.name, port)
        raise UsageError(
            f"{error}; its tunnel here is closed; if the server no longer exists, remove {record}"
        ) from error
    if response["ended"] is None and not records:
        raise UsageError(f"{machine.name}: port {port}: no server was started there")
    for server in records:
        forget(server)
    engine = response.get("engine") or records[0].engine
    return f"{engine} on port {port}: {'stopped' if response['ended'] else 'had already ended'}"


def log(machine: SshMachine, port: int, lines: int) -> list[str]:
    """Return the last lines of a server's log, then its path on that machine."""
    response = _ask(machine, "logs", port=port, lines=lines)
    return [*response["lines"], f"whole log: {response['log']}"]


def state(server: RemoteServer) -> str:
    """Return the state of a server: `up`, `not answering`, `ended`, or the error if its machine is unreachable."""
    try:
        response = states(server.where, server.port)
    except UsageError as error:
        return str(error).removeprefix(f"{server.machine}: ")
    remote_state = response[0][1] if response else "ended"
    if remote_state == "up" and server.tunnel is not None and not server.tunnel_is_up():
        return "up there, its tunnel has ended"
    return remote_state


def states(machine: SshMachine, port: int | None) -> list[tuple[LocalServer, str]]:
    """Return the servers started on a machine, each with its state."""
    servers = _ask(machine, "status", port=port)["servers"]
    return [(server_state.from_document(entry["server"]), entry["state"]) for entry in servers]


def machine_of(host: str | None, config: str | None) -> SshMachine | None:
    """Return the machine of --host and --ssh-config; None for an address to listen on."""
    if host is None or not ssh.is_machine(host, config):
        if config is not None:
            raise UsageError("--ssh-config: needs another machine; give it with --host")
        return None
    if not host.removeprefix("ssh://").rpartition("@")[2].strip("/"):
        raise UsageError(f"--host {host}: no machine; use user@machine, or ssh://name")
    if config is not None and not os.path.isfile(config):
        raise UsageError(f"--ssh-config {config}: no such file")
    return SshMachine(host, None if config is None else os.path.abspath(config))


def matching(port: int | None, machines: Sequence[SshMachine] = ()) -> list[RemoteServer]:
    """Return the servers with a state file on a port of these machines. `port` None: any; no machines: all."""
    names = {machine.name for machine in machines}
    return [server for server in remembered() if port in (None, server.port) and (not names or server.machine in names)]
