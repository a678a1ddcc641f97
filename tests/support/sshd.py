"""sshd on a free loopback port with generated keys: `ssh -F CONFIG MACHINE` needs no prompt."""

import getpass
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ports import unused_port

MACHINES = ("machine-a", "machine-b")  # host names of the config, both for this machine

_SERVER = """\
ListenAddress 127.0.0.1
Port {port}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
PrintMotd no
Subsystem sftp internal-sftp
"""
_CLIENT = """\
Host {machines}
  HostName 127.0.0.1
  Port {port}
  User {user}
  IdentityFile {folder}/user_key
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/known_hosts
  GlobalKnownHostsFile /dev/null
  StrictHostKeyChecking yes
  BatchMode yes
  LogLevel ERROR
"""


@dataclass(frozen=True)
class SshServer:
    """Running sshd. `config`: client configuration for `ssh -F`; `machine`: a host name in it."""

    config: Path
    port: int
    process: subprocess.Popen[str]
    machine: str = MACHINES[0]

    @property
    def command(self) -> list[str]:
        """The `ssh` command without host name and remote command."""
        return ["ssh", "-F", str(self.config)]


def program() -> str:
    """Return the absolute path of sshd, which it requires; fails if it is not installed."""
    path = shutil.which("sshd", path=os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin")))
    assert path is not None, "no sshd on this machine; make sshd, or: apt-get install openssh-server"
    return path


@contextmanager
def running(folder: Path) -> Iterator[SshServer]:
    """Run sshd with keys and files in `folder`; terminate it at the end of the block."""
    port = unused_port()
    for name in ("host_key", "user_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    host_key = " ".join((folder / "host_key.pub").read_text().split()[:2])
    (folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {host_key}\n")
    (folder / "sshd_config").write_text(_SERVER.format(port=port, folder=folder))
    config = folder / "ssh_config"
    config.write_text(_CLIENT.format(machines=" ".join(MACHINES), port=port, user=getpass.getuser(), folder=folder))
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # created by the service at boot; required as root
    process = subprocess.Popen(
        [program(), "-D", "-e", "-f", str(folder / "sshd_config")], stderr=subprocess.PIPE, text=True
    )
    try:
        _wait_until_listening(process)
        yield SshServer(config, port, process)
    finally:
        process.terminate()
        process.wait(10)


def _wait_until_listening(process: subprocess.Popen[str]) -> None:
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if "Server listening" in line:
            threading.Thread(target=process.stderr.read, daemon=True).start()  # empty the pipe of its log
            return
    raise RuntimeError(f"sshd ended with {process.wait()}: {''.join(lines)}")
