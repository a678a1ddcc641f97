"""Another machine by ssh: a shell script run there, its errors in one line, and a tunnel to a port of it.

Nothing is installed there: the script goes through ssh's standard input to `sh -s`, and a key for the server with it, so that
neither stands in a process list.
"""

import contextlib
import os
import re
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from inferload.errors import UsageError
from inferload.measure import clock

CONNECT_S = 10
_LOST = 255  # ssh's own exit code
_REASONS = (
    (r"Permission denied", "key refused ({}); add the key there or to your agent, or name an --ssh-config with it"),
    (
        r"Host key verification failed|REMOTE HOST IDENTIFICATION",
        "host key not trusted ({}); ssh there by hand once and check it",
    ),
    (r"Can't open user config file", "{}"),
    (r".", "unreachable ({}); check the name, the port and that sshd runs there"),
)
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine as ssh is told of it: `user@host`, or `ssh://` and a name of the configuration; `config`: of `ssh -F`."""

    name: str
    config: str | None = None

    @property
    def command(self) -> list[str]:
        """ssh without a question and with a limit; options go behind it, then `destination`."""
        config = ["-F", self.config] if self.config else []
        return ["ssh", *config, "-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_S}"]

    @property
    def destination(self) -> list[str]:
        """The words that end ssh's options; a name that looks like an option is none."""
        plain = self.name.removeprefix("ssh://")
        return ["--", self.name if ":" in plain else plain]

    def host(self) -> str:
        """The address that ssh would go to, for requests from here."""
        try:
            done = subprocess.run([*self.command, "-G", *self.destination], capture_output=True, text=True, check=False)
        except OSError as error:
            raise no_client(error) from error
        found = re.search(r"^hostname (.+)$", done.stdout, re.MULTILINE)
        if done.returncode or found is None:
            raise UsageError(_lost(self, done.stderr))
        return found[1]


def is_machine(host: str, config: str | None) -> bool:
    """Whether --host means another machine rather than an address to listen on."""
    return config is not None or "@" in host or host.startswith("ssh://")


def no_client(error: OSError) -> UsageError:
    """What to say where ssh itself cannot be run."""
    return UsageError(f"ssh: {error.strerror}; install OpenSSH's client")


@dataclass(frozen=True, slots=True)
class Answer:
    """What a script said: its exit code and its standard output."""

    code: int
    out: str


def run(machine: Machine, script: str, words: Sequence[str], say: Say) -> Answer:
    """Run a script there with these words; `say` gets what it tells on the way.

    UsageError where ssh does not get in, and where the script ends with 2: the line that it gives as the reason.
    """
    try:
        process = subprocess.Popen(
            [*machine.command, *machine.destination, f"sh -s -- {shlex.join(words)}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
    except OSError as error:
        raise no_client(error) from error
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    told: list[str] = []
    listener = threading.Thread(target=_listen, args=(process.stderr, told, say), daemon=True)
    listener.start()
    try:
        with contextlib.suppress(BrokenPipeError), process.stdin:  # ssh that does not get in says why itself
            process.stdin.write(script)
        out = process.stdout.read()
        code = process.wait()
    except KeyboardInterrupt:
        process.kill()
        raise
    listener.join(CONNECT_S)
    if code == _LOST:
        raise UsageError(_lost(machine, "\n".join(told)))
    if code not in (0, 1):
        raise UsageError(f"{machine.name}: {told[-1] if told else f'the script ended with {code}'}")
    return Answer(code, out)


def _listen(lines: Iterable[str], told: list[str], say: Say) -> None:
    """Errors of the script are kept, all else is said."""
    for line in lines:
        text = line.rstrip()
        told.append(text.removeprefix("start.sh: "))
        if not text.startswith("start.sh: ") and ": starting, " in text:
            say(text)


def _lost(machine: Machine, said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    for pattern, text in _REASONS:
        for line in reversed(lines):
            if re.search(pattern, line):
                return f"{machine.name}: {text.format(line)}"
    return f"{machine.name}: ssh could not get in and did not say why"


# -- tunnels -----------------------------------------------------------------------------------------------------------


def _forward(local: int, remote: int) -> str:
    return f"127.0.0.1:{local}:127.0.0.1:{remote}"


def open_tunnel(machine: Machine, local: int, remote: int, log: Path) -> int:
    """Start an ssh that forwards a port of this machine to one there and goes on; its process id. It may not forward yet."""
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
    process.returncode = 0  # it outlives this process: nothing is left for this object to do
    return process.pid


def tunnel(pid: int, local: int, remote: int) -> psutil.Process | None:
    """The process of a tunnel, whoever started it; None where it has ended, whoever has its number now."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    try:
        process = psutil.Process(pid)
        return process if _forward(local, remote) in process.cmdline() else None
    except psutil.Error:
        return None


def close_tunnel(pid: int, local: int, remote: int, limit_s: float = 5.0) -> None:
    """End it and wait until it is gone."""
    deadline_ns = clock.now_ns() + round(limit_s * clock.NS_PER_S)
    while (process := tunnel(pid, local, remote)) is not None and clock.now_ns() < deadline_ns:
        with contextlib.suppress(psutil.Error):
            process.send_signal(signal.SIGTERM)
        time.sleep(0.05)
