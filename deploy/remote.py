"""Servers on other machines: started, watched and stopped there by start.sh through ssh, and remembered here for the runs
against them."""

import contextlib
import dataclasses
import os
import re
import secrets
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inferload import deployed, rundir
from inferload.errors import UsageError
from inferload.measure import clock
from inferload.measure.cost import UNPRICED, Prices

from . import facts, places, probe, running, shell, ssh
from .ssh import Machine, Say
from .variant import Variant, document

_NOTHING = ": nothing was started there"  # start.sh's words
REACH_S = 15.0  # how long a server that is up there may take to be reached from here


@dataclass(frozen=True, slots=True)
class Remote:
    """A server on another machine. `port`: there; `url`: where a client here reaches it; `tunnel`: its pid and local port."""

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
    def where(self) -> Machine:
        """The machine, for ssh."""
        return Machine(self.machine, self.ssh_config)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the URL."""
        host, _, port = self.url.removeprefix("http://").rpartition(":")
        return host, int(port)

    def tunnel_is_up(self) -> bool:
        """Whether there is one and it runs."""
        return self.tunnel is not None and ssh.tunnel(*self.tunnel, self.port) is not None


def state_file(machine: str, port: int) -> Path:
    """Where a server is remembered."""
    return places.state_dir() / deployed.REMOTE / f"{re.sub(r'[^A-Za-z0-9.-]+', '_', machine)}-{port}.json"


def remember(server: Remote) -> None:
    """Write the state file, so that runs and other shells find the server."""
    written, path = dataclasses.asdict(server), state_file(server.machine, server.port)
    running.write_state(path, {**written.pop("facts"), **written})


def remembered() -> list[Remote]:
    """Every server with a state file; UsageError where one is none."""
    found: list[Remote] = []
    for path in sorted((places.state_dir() / deployed.REMOTE).glob("*.json")):
        said = rundir.read_json(path)
        own = {each.name for each in dataclasses.fields(Remote)} - {"facts"}
        known = {key: said[key] for key in running.FACTS if key in said}
        try:
            made = Remote(**{key: said[key] for key in own & said.keys()}, facts=known)
        except TypeError as error:
            raise UsageError(f"{path}: not a server's state ({error}); remove the file") from error
        tunnel = None if made.tunnel is None else (made.tunnel[0], made.tunnel[1])  # JSON makes lists of both
        found.append(dataclasses.replace(made, argv=tuple(made.argv), tunnel=tunnel))
    return found


def close_tunnel(server: Remote) -> None:
    """End its tunnel, where it has one."""
    if server.tunnel is not None:
        ssh.close_tunnel(*server.tunnel, server.port)


def forget(server: Remote) -> None:
    """End the tunnel and remove the state file."""
    close_tunnel(server)
    state_file(server.machine, server.port).unlink(missing_ok=True)


# -- verbs -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be started where. `program` and `model_path` are paths there; `local_port`: of a tunnel, None without."""

    machine: Machine
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


def start(order: Order, say: Say) -> Remote:
    """Start it there, wait until it answers there and here, remember it. UsageError says in one line why that failed."""
    host = "127.0.0.1" if order.local_port else order.machine.host()
    if order.local_port and (reason := probe.why_not_free("127.0.0.1", order.local_port)) is not None:
        raise UsageError(f"--tunnel {order.local_port}: {reason}")
    own = secrets.token_hex(8)
    script = f"INFERLOAD_START={own}\n{_key()}{_script([order.variant], order.extra)}"
    try:
        answer = ssh.run(order.machine, script, _words(order), say)
    except KeyboardInterrupt:
        _undo(order, own)
        raise
    server = _server(order, host, answer.out)
    try:
        return _reached(server, order)
    except BaseException:
        _undo(order, own)
        raise


def _undo(order: Order, own: str) -> None:
    """Stop what this start made there, and nothing else; where that cannot be done, the reason for it is told already."""
    with contextlib.suppress(UsageError):
        _verb(order.machine, "stop", order.port, "--only", own)


def _key() -> str:
    """The server's key, where one is set here: a line of the script, which no process list shows."""
    return f"export VLLM_API_KEY={shlex.quote(key)}\n" if (key := probe.key()) else ""


def _script(variants: Sequence[Variant] = (), extra: Sequence[str] = ()) -> str:
    """start.sh with what it has to know; where INFERLOAD_STATE is set here, it names the folder there, too."""
    folder = os.environ.get("INFERLOAD_STATE")
    return (f"export INFERLOAD_STATE={shlex.quote(folder)}\n" if folder else "") + shell.script(variants, extra)


def _words(order: Order) -> list[str]:
    words = [order.variant.name, "--engine", order.engine, "--port", str(order.port), "--host", order.listen]
    if order.program:
        words += ["--program", order.program]
    if order.model_path:
        words += ["--model-path", order.model_path]
    if order.ready_s is not None:
        words += ["--wait-s", str(round(order.ready_s))]
    return words


def _server(order: Order, host: str, said: str) -> Remote:
    """The server from what start.sh printed."""
    found = re.search(r" after (\d+) s \(pid (\d+)\)$(?s:.)*^log: (.+)$(?s:.)*^command: (.+)$", said, re.MULTILINE)
    if found is None:
        raise UsageError(f"{order.machine.name}: start.sh there said something else than expected: {said[:200]!r}")
    return Remote(
        machine=order.machine.name,
        ssh_config=order.machine.config,
        engine=order.engine,
        model=order.variant.model,
        port=order.port,
        url=f"http://{host}:{order.local_port or order.port}",
        pid=int(found[2]),
        started_at=running.utc_now(),
        argv=tuple(shlex.split(found[4])),
        log=found[3],
        variant=document(order.variant),
        facts={"startup_s": float(found[1]), **facts.priced(document(order.variant), order.prices)},
    )


def _reached(server: Remote, order: Order) -> Remote:
    """The same, with its tunnel, asked for a token and for what it tells of itself."""
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
        probe.first_token(host, port)
        told = {**server.facts, **_memory(order), **facts.told(host, port)}
        server = dataclasses.replace(server, facts=told)
        remember(server)
    except BaseException:
        forget(server)
        raise
    return server


def _memory(order: Order) -> dict[str, Any]:
    """What it takes there once it has generated a token; empty where the machine does not tell: a start does not fail by that."""
    try:
        return facts.memory_there(_verb(order.machine, "memory", order.port))
    except UsageError:
        return {}


def stop(machine: Machine, port: int) -> str:
    """Stop what start.sh started there, forget it here; what it says. What was stopped there by hand had ended already.

    UsageError where the machine does not let one in: then the tunnel is closed, and the server is remembered still.
    """
    mine = found(port, [machine])
    try:
        said = _verb(machine, "stop", port)
    except UsageError as error:
        if not mine:
            raise
        if _NOTHING not in str(error):
            close_tunnel(mine[0])
            record = state_file(machine.name, port)
            raise UsageError(f"{error}; its tunnel here is closed; if it is gone for good, remove {record}") from error
        said = f"{mine[0].engine} on port {port}: had ended already\n"
    for server in mine:
        forget(server)
    return said


def log(machine: Machine, port: int, lines: int) -> str:
    """The end of a server's log, and its path there on the last line."""
    return _verb(machine, "log", port, "-n", str(lines))


def state(server: Remote) -> str:
    """`up`, `not answering`, `ended`, or why the machine cannot be asked."""
    try:
        said = ssh.run(server.where, _script(), ["status", "--port", str(server.port)], _unsaid).out
    except UsageError as error:
        return str(error).removeprefix(f"{server.machine}: ")
    there = said.split("  ")[1] if said else "ended"
    if there == "up" and server.tunnel is not None and not server.tunnel_is_up():
        return "up there, its tunnel has ended"
    return there


def states(machine: Machine, port: int | None) -> tuple[str, bool]:
    """What start.sh says there of all its servers, and whether one is up."""
    words = ["status", *(["--port", str(port)] if port else [])]
    answer = ssh.run(machine, _script(), words, _unsaid)
    return answer.out, answer.code == 0


def _verb(machine: Machine, verb: str, port: int, *words: str) -> str:
    return ssh.run(machine, _script(), [verb, "--port", str(port), *words], _unsaid).out


def _unsaid(_text: str) -> None:
    """What nobody needs to hear."""


def machine_of(host: str | None, config: str | None) -> Machine | None:
    """The machine that --host and --ssh-config name; None where they name none."""
    if host is None or not ssh.is_machine(host, config):
        if config is not None:
            raise UsageError("--ssh-config: says how to reach a machine; name one with --host")
        return None
    if not host.removeprefix("ssh://").rpartition("@")[2].strip("/"):
        raise UsageError(f"--host {host}: names no machine; user@machine, or ssh://name")
    if config is not None and not os.path.isfile(config):
        raise UsageError(f"--ssh-config {config}: no such file")
    return Machine(host, None if config is None else os.path.abspath(config))


def found(port: int | None, machines: Sequence[Machine] = ()) -> list[Remote]:
    """Those remembered here on a port, of these machines; all machines where none is named."""
    names = {machine.name for machine in machines}
    return [one for one in remembered() if port in (None, one.port) and (not names or one.machine in names)]
