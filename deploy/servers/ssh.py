"""ssh: run a Python program on another machine, and open a tunnel to one of its ports.

Nothing is installed there. The program, which contains the API key, is sent to `python3 -` through standard input, so neither
appears in a process list.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from inferload.errors import UsageError
from inferload.measure import clock

from ..launcher.launch import ProgressCallback

CONNECT_S = 10
_LOST = 255  # ssh's own exit code
_REASONS = (
    (r"Permission denied", "key refused ({}); add the key there or to your agent, or configure it in --ssh-config"),
    (
        r"Host key verification failed|REMOTE HOST IDENTIFICATION",
        "host key not trusted ({}); connect manually with ssh once and check it",
    ),
    (r"Can't open user config file", "{}"),
    (r".", "unreachable ({}); check the name, the port and that sshd runs there"),
)


@dataclass(frozen=True, slots=True)
class SshMachine:
    """Machine: `user@host`, or `ssh://` with a name of the ssh configuration. `config`: file for `ssh -F`."""

    name: str
    config: str | None = None

    @property
    def command(self) -> list[str]:
        """ssh command without prompts and with a connect timeout, before options and `destination`."""
        config = ["-F", self.config] if self.config else []
        return ["ssh", *config, "-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_S}"]

    @property
    def destination(self) -> list[str]:
        """Last arguments of ssh, after `--`, so that no name is parsed as an option."""
        plain = self.name.removeprefix("ssh://")
        return ["--", self.name if ":" in plain else plain]

    def host(self) -> str:
        """Return the host name that ssh connects to, for HTTP requests from this machine."""
        try:
            process = subprocess.run(
                [*self.command, "-G", *self.destination], capture_output=True, text=True, check=False
            )
        except OSError as error:
            raise no_client(error) from error
        hostname = re.search(r"^hostname (.+)$", process.stdout, re.MULTILINE)
        if process.returncode or hostname is None:
            raise UsageError(_lost(self, process.stderr))
        return hostname[1]


def is_machine(host: str, config: str | None) -> bool:
    """Return True if --host names another machine and not an address to listen on."""
    return config is not None or "@" in host or host.startswith("ssh://")


def no_client(error: OSError) -> UsageError:
    """Return the error for an ssh that cannot be run."""
    return UsageError(f"ssh: {error.strerror}; install the OpenSSH client")


def run_python(machine: SshMachine, source: str, progress: ProgressCallback) -> dict[str, Any]:
    """Run a Python program on a machine. Return the JSON object in the last line of its output.

    `progress` is called with progress lines. Raise UsageError if ssh cannot connect, without a response, or for a response
    with an `error`.
    """
    try:
        process = subprocess.Popen(
            [*machine.command, *machine.destination, "python3 -"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
        )
    except OSError as error:
        raise no_client(error) from error
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    errors: list[str] = []
    reader = threading.Thread(target=_collect, args=(process.stderr, errors, progress), daemon=True)
    reader.start()
    try:
        with contextlib.suppress(BrokenPipeError), process.stdin:  # ssh reports why it cannot connect
            process.stdin.write(source)
        out = process.stdout.read()
        code = process.wait()
    except KeyboardInterrupt:
        process.kill()
        raise
    reader.join(CONNECT_S)
    if code == _LOST:
        raise UsageError(_lost(machine, "\n".join(errors)))
    return _response(machine, out, errors)


def _response(machine: SshMachine, out: str, errors: list[str]) -> dict[str, Any]:
    """Parse the response in the last line of the output; a login shell may print other lines before."""
    try:
        response = json.loads(out.splitlines()[-1])
        problem = response.get("error")
    except (IndexError, ValueError, AttributeError):
        raise UsageError(f"{machine.name}: {errors[-1] if errors else 'python3 printed no response'}") from None
    if problem is not None:
        raise UsageError(f"{machine.name}: {problem}")
    return dict(response)


def _collect(lines: Iterable[str], errors: list[str], progress: ProgressCallback) -> None:
    """Collect the lines of standard error and report progress lines."""
    for line in lines:
        errors.append(line.rstrip())
        if ": starting, " in line:
            progress(line.rstrip())


def _lost(machine: SshMachine, errors: str) -> str:
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    for pattern, text in _REASONS:
        for line in reversed(lines):
            if re.search(pattern, line):
                return f"{machine.name}: {text.format(line)}"
    return f"{machine.name}: ssh could not connect and gave no reason"


# -- tunnels -----------------------------------------------------------------------------------------------------------


def _forward(local: int, remote: int) -> str:
    return f"127.0.0.1:{local}:127.0.0.1:{remote}"


def open_tunnel(machine: SshMachine, local: int, remote: int, log: Path) -> int:
    """Start ssh in the background to forward a local port to a remote one; return its process id immediately."""
    log.parent.mkdir(parents=True, exist_ok=True)
    options = ["-N", "-o", "ExitOnForwardFailure=yes", "-o", "ServerAliveInterval=15"]
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [*machine.command, *options, "-L", _forward(local, remote), *machine.destination],
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            start_new_session=True,
        )
    process.returncode = 0  # the process outlives this one: Popen warns without an exit code
    return process.pid


def tunnel(pid: int, local: int, remote: int) -> psutil.Process | None:
    """Return the process of a tunnel; None if it has ended, even if its process id is reused."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    try:
        process = psutil.Process(pid)
        return process if _forward(local, remote) in process.cmdline() else None
    except psutil.Error:
        return None


def close_tunnel(pid: int, local: int, remote: int, limit_s: float = 5.0) -> None:
    """End the process of a tunnel and wait until it has ended."""
    deadline_ns = clock.now_ns() + round(limit_s * clock.NS_PER_S)
    while (process := tunnel(pid, local, remote)) is not None and clock.now_ns() < deadline_ns:
        with contextlib.suppress(psutil.Error):
            process.send_signal(signal.SIGTERM)
        time.sleep(0.05)
