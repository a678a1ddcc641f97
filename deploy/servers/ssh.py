"""ssh: run a Python program on another machine, and open a tunnel to one of its ports.

Nothing is installed there. The program and the API key in it go through standard input to `python3 -`, so neither is in a process
list.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from inferload.errors import UsageError
from inferload.measure import clock

CONNECT_S = 10
_LOST = 255  # ssh's own exit code
_REASONS = (
    (r"Permission denied", "key refused ({}); add the key there or to your agent, or name an --ssh-config with it"),
    (
        r"Host key verification failed|REMOTE HOST IDENTIFICATION",
        "host key not trusted ({}); connect with ssh by hand once and check it",
    ),
    (r"Can't open user config file", "{}"),
    (r".", "unreachable ({}); check the name, the port and that sshd runs there"),
)
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class SshMachine:
    """A machine: `user@host`, or `ssh://` and a name of ssh's configuration. `config`: the file for `ssh -F`."""

    name: str
    config: str | None = None

    @property
    def command(self) -> list[str]:
        """The ssh command without prompts and with a connect timeout; options follow, then `destination`."""
        config = ["-F", self.config] if self.config else []
        return ["ssh", *config, "-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_S}"]

    @property
    def destination(self) -> list[str]:
        """The last arguments of ssh, after `--`, so that no name is read as an option."""
        plain = self.name.removeprefix("ssh://")
        return ["--", self.name if ":" in plain else plain]

    def host(self) -> str:
        """The host name that ssh connects to, for HTTP requests from this machine."""
        try:
            done = subprocess.run([*self.command, "-G", *self.destination], capture_output=True, text=True, check=False)
        except OSError as error:
            raise no_client(error) from error
        hostname = re.search(r"^hostname (.+)$", done.stdout, re.MULTILINE)
        if done.returncode or hostname is None:
            raise UsageError(_lost(self, done.stderr))
        return hostname[1]


def is_machine(host: str, config: str | None) -> bool:
    """Return True if --host names another machine and not an address to listen on."""
    return config is not None or "@" in host or host.startswith("ssh://")


def no_client(error: OSError) -> UsageError:
    """The error for an ssh that cannot be run."""
    return UsageError(f"ssh: {error.strerror}; install OpenSSH's client")


def run_python(machine: SshMachine, source: str, say: Say) -> dict[str, Any]:
    """Run a Python program on a machine and return the JSON object on the last line of its output.

    `say` gets the progress lines. UsageError if ssh cannot connect, without a response, or with the response's `error`.
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
    reader = threading.Thread(target=_collect, args=(process.stderr, errors, say), daemon=True)
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
    """The response in the last line of the output. A login shell may print other lines before."""
    try:
        response = json.loads(out.splitlines()[-1])
        problem = response.get("error")
    except (IndexError, ValueError, AttributeError):
        raise UsageError(f"{machine.name}: {errors[-1] if errors else 'python3 printed no response'}") from None
    if problem is not None:
        raise UsageError(f"{machine.name}: {problem}")
    return dict(response)


def _collect(lines: Iterable[str], errors: list[str], say: Say) -> None:
    """Collect the lines of standard error and report progress lines."""
    for line in lines:
        errors.append(line.rstrip())
        if ": starting, " in line:
            say(line.rstrip())


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
    """Start ssh in the background to forward a local port to a remote one; return its process id without waiting."""
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
    process.returncode = 0  # the process outlives this one: without an exit code the Popen object would warn
    return process.pid


def tunnel(pid: int, local: int, remote: int) -> psutil.Process | None:
    """The process of a tunnel; None if it has ended, even if its process id is in use again."""
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
