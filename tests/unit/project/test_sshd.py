"""The sshd of the tests accepts only its own key."""

import subprocess

import pytest
from sshd import MACHINES, SshServer

pytestmark = pytest.mark.ssh


def ran(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_command_runs_on_each_machine(ssh_server: SshServer) -> None:
    for machine in MACHINES:
        there = ran(*ssh_server.command, machine, "echo $SSH_CONNECTION")
        assert there.returncode == 0, there.stderr
        assert there.stdout.split()[-1] == str(ssh_server.port)


def test_another_key_is_refused(ssh_server: SshServer) -> None:
    options = ("IdentityFile=/dev/null", "IdentitiesOnly=yes", "IdentityAgent=none", "BatchMode=yes")
    hosts = ("StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null")
    words = [word for option in (*options, *hosts) for word in ("-o", option)]
    refused = ran("ssh", "-F", "/dev/null", *words, "-p", str(ssh_server.port), "127.0.0.1", "true")
    assert refused.returncode == 255
    assert "Permission denied" in refused.stderr
