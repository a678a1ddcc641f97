"""Launcher: start a server as a process group with a log file, wait until it is ready, stop it.

A server outlives the process that started it.
"""

import contextlib
import dataclasses
import fcntl
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from inferload.base import deployments
from inferload.base.clock import NS_PER_S, now_ns
from inferload.base.errors import UsageError, explained
from inferload.base.escaping import own_command

from ..vllm.log_cause import given_up, one_line
from . import probe, processes, server_state
from .server_state import LocalServer

PROGRESS_S = 5.0
# Time for child processes to end after the first process has ended or the log reports a failed start.
ORPHANS_S = 5.0
ORPHANS_GRACE_S = 3.0  # between TERM and KILL for these processes, which have no state to save
POLL_S = 0.1
GRACE_S = 15.0
TAIL_BYTES = 200_000
LOGS_KEPT = 10

ProgressCallback = Callable[[str], None]


def to_stderr(text: str) -> None:
    """Print progress to stderr; results go to stdout."""
    print(text, file=sys.stderr, flush=True)


def begin(server: LocalServer, environment: Mapping[str, str]) -> LocalServer:
    """Start the process group of a server and write its state file. Return it with process id, log and start time.

    Raise UsageError if the port is taken, the program is missing or the state folder is not writable.
    """
    with _serialized():
        refuse_taken(server.host, server.port)
        log = _new_log(server.port)
        pid = _spawn(server, environment, log)
        server = dataclasses.replace(server, pid=pid, log=log, started_at=server_state.utc_now())
        try:
            server_state.remember(server)
        except UsageError:
            stop(server)
            raise
        return server


@contextmanager
def _serialized() -> Iterator[None]:
    """Serialize starts by a lock on the state folder: a second start on a port sees the state file of the first."""
    folder = deployments.state_dir()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise server_state.not_written(folder, error) from error
    try:
        with contextlib.suppress(OSError):  # NFS cannot lock a folder; simultaneous starts are not serialized then
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _new_log(port: int) -> Path:
    """Create an empty log file with a unique name, which identifies the processes that hold it open."""
    log = deployments.state_dir() / f"{port}-{secrets.token_hex(4)}.log"
    try:
        _remove_old_logs()
        log.touch()
    except OSError as error:
        raise server_state.not_written(log.parent, error) from error
    return log


def refuse_taken(host: str, port: int) -> None:
    """Raise UsageError if the port is taken."""
    path = server_state.state_file(port)
    if path.exists() and server_state.group(other := server_state.recall(path)):
        raise UsageError(
            f"port {port}: {other.engine} already runs there; {own_command('deploy', 'down', '--port', port)}, "
            "or choose another --port"
        )
    if (reason := probe.why_not_free(host, port)) is not None:
        raise UsageError(f"port {port}: {reason}")


def _remove_old_logs() -> None:
    """Remove all logs except those of servers with a state file and of the last LOGS_KEPT ended servers."""
    in_use = {server.log for server in server_state.remembered()}
    ended = [log for log in deployments.state_dir().glob("*.log") if log not in in_use]
    for log in sorted(ended, key=lambda log: log.stat().st_mtime_ns)[:-LOGS_KEPT]:
        log.unlink(missing_ok=True)


def _spawn(server: LocalServer, environment: Mapping[str, str], log: Path) -> int:
    """Start the process group and return the id of its leader. All its threads inherit the CPU affinity."""
    with log.open("ab") as sink, on_cores(server.cores), explained(server.argv[0], "is the engine installed?"):
        process = subprocess.Popen(
            server.argv,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    # The server may outlive this process and is reaped by server_state.group: Popen warns without an exit code.
    process.returncode = 0
    return process.pid


@contextmanager
def on_cores(cores: Sequence[int] | None) -> Iterator[None]:
    """Pin processes started in the block to cores; None: no change. Raise UsageError for an unavailable core."""
    if cores is None:
        yield
        return
    if sys.platform != "linux":
        raise UsageError(f"--cores {cores_text(cores)}: supported on Linux only; remove it")
    before = os.sched_getaffinity(0)
    if not cores or not before.issuperset(cores):
        raise UsageError(f"--cores {cores_text(cores)}: not available here; choose from {cores_text(sorted(before))}")
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def cores_text(cores: Sequence[int]) -> str:
    return ",".join(str(core) for core in cores)


def split_cores(available: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]] | tuple[None, None]:
    """Return the cores for the client (a quarter, at least one) and for the server; (None, None) for a single core."""
    if len(available) < 2:
        return None, None
    count = max(1, len(available) // 4)
    return tuple(available[:count]), tuple(available[count:])


def available_cores() -> list[int]:
    """Return the cores available to this process; empty if unknown."""
    return sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else []


def wait(server: LocalServer, limit_s: float, progress: ProgressCallback = to_stderr) -> float:
    """Wait until the server is healthy and has generated a token. Return the elapsed seconds.

    If the server ends first or the limit passes, stop it and raise UsageError with the cause from its log.
    """
    start_ns = now_ns()
    reported_s = last_led_s = 0.0
    while not probe.healthy(server_state.reachable(server.host), server.port):
        elapsed_s = (now_ns() - start_ns) / NS_PER_S
        members = server_state.group(server)
        if server.pid in members and not given_up(tail(server.log)):
            last_led_s = elapsed_s
        if not members or elapsed_s - last_led_s > ORPHANS_S:
            stop(server, ORPHANS_GRACE_S)
            raise UsageError(f"{server.engine} ended before it answered: {why(server)}")
        if elapsed_s > limit_s:
            stop(server)
            raise UsageError(f"{server.engine} did not answer within {limit_s:g} s and was stopped: {why(server)}")
        if elapsed_s - reported_s >= PROGRESS_S:
            reported_s = elapsed_s
            progress(f"{server.engine}: starting, {elapsed_s:.0f} s so far (log: {server.log})")
        time.sleep(POLL_S)
    _check_port_owner(server)
    _check_first_token(server)
    return (now_ns() - start_ns) / NS_PER_S


def _check_port_owner(server: LocalServer) -> None:
    """Stop the server and raise UsageError if another program responds on the port. An unknown owner of the port is accepted."""
    members, listening = set(server_state.group(server)), processes.listeners(server.port)
    if members and (not listening or members & listening):
        return
    stop(server, ORPHANS_GRACE_S)
    other = probe.listener(server.port) or "another program"
    raise UsageError(f"port {server.port}: {other} answers there instead; choose another --port: {why(server)}")


def _check_first_token(server: LocalServer) -> None:
    try:
        probe.first_token(server_state.reachable(server.host), server.port)
    except UsageError as error:
        stop(server)
        raise UsageError(
            f"{server.engine} is healthy but generated no token ({error}) and was stopped: {why(server)}"
        ) from error


def why(server: LocalServer) -> str:
    """Describe a failure in one line: cause from the log, remedy if known, and path of the log."""
    return f"{one_line(tail(server.log))} (log: {server.log})"


def tail(log: Path, size: int = TAIL_BYTES) -> str:
    """Return the last `size` bytes of a log as text; empty without a log."""
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, log.stat().st_size - size))
            return stream.read().decode(errors="replace")
    except OSError:
        return ""


def stop(server: LocalServer, grace_s: float = GRACE_S) -> bool:
    """End the process group, wait until its port is free and remove its state file. Return True if it was alive."""
    ended = server_state.end(server, grace_s)
    if ended:
        server_state.within(grace_s, lambda: probe.is_free(server.host, server.port))
    server_state.forget(server)
    return ended


def state(server: LocalServer) -> str:
    """Return the state of a server: `up`, `not answering` or `ended`."""
    if not server_state.group(server):
        return "ended"
    return "up" if probe.healthy(server_state.reachable(server.host), server.port) else "not answering"
