"""Servers on another machine by ssh: an sshd on this machine with the simulator."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from inferload.deploy.launcher import paths, probe
from inferload.deploy.servers import remote, ssh
from inferload.deploy.variants.variant import document, named
from ports import unused_port
from sshd import SshServer

from inferload import cli, deployments
from inferload.errors import UsageError

pytestmark = pytest.mark.ssh

Run = Callable[..., int]
QUICK = """\
#!/bin/sh
shift
exec {python} -m inferload.deploy.simulator "$@"
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """State folders of this test for this machine and for the remote one."""
    monkeypatch.setenv("INFERLOAD_STATE", str(tmp_path / "there"))
    monkeypatch.setattr(paths, "state_dir", lambda: tmp_path / "here")
    monkeypatch.setattr(deployments, "state_dir", lambda: tmp_path / "here")
    return tmp_path


@pytest.fixture
def program(here: Path) -> str:
    """A program that runs the simulator."""
    path = here / "inferload"
    path.write_text(QUICK.format(python=sys.executable))
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def deploy(ssh_server: SshServer, here: Path) -> Run:
    """`deploy("up", ...)` runs the command with the options of the machine."""

    def run(verb: str, *words: str) -> int:
        machine = ["--host", f"ssh://{ssh_server.machine}", "--ssh-config", str(ssh_server.config)]
        return cli.main(["deploy", verb, *machine, *words])

    return run


def interrupted() -> dict[str, Any]:
    raise KeyboardInterrupt


def test_a_remote_server_is_started_listed_and_stopped(
    deploy: Run, program: str, here: Path, ssh_server: SshServer, capsys: pytest.CaptureFixture[str]
) -> None:
    port, local = unused_port(), unused_port()
    options = ["--program", program, "--port", str(port), "--tunnel", str(local)]
    assert deploy("up", "tiny-ngram", *options, "--set", "max-num-seqs=3") == 0
    up = capsys.readouterr().out
    assert up.startswith(
        f"simulator: tiny-ngram (tiny) on ssh://{ssh_server.machine} at http://127.0.0.1:{local} through a tunnel"
    )
    probe.first_token("127.0.0.1", local)
    assert probe.model("127.0.0.1", local) == "tiny"
    known = deployments.of_target(f"http://localhost:{local}/v1")
    assert known is not None
    assert (known["variant"]["name"], known["machine"]) == ("tiny-ngram", f"ssh://{ssh_server.machine}")
    assert known["argv"][:2] == [program, "simulator"]
    assert known["argv"][known["argv"].index("--max-num-seqs") + 1] == "3"
    assert known["config"]["cache"]["enable_prefix_caching"] == "True"
    assert known["memory_mb"] == pytest.approx(psutil.Process(known["pid"]).memory_info().rss / 1e6, rel=0.1)

    assert cli.main(["deploy", "status"]) == 0
    assert f"http://127.0.0.1:{local}  up  simulator tiny-ngram (tiny)  ssh://" in capsys.readouterr().out
    assert deploy("status") == 0
    assert capsys.readouterr().out.startswith(f"http://127.0.0.1:{port}  up  simulator tiny-ngram (tiny)")
    assert cli.main(["deploy", "logs", "-n", "3"]) == 0
    assert f"inferload simulator on http://127.0.0.1:{port}" in capsys.readouterr().out
    assert deploy("up", "tiny-ngram", *options[:4]) == 2
    assert f"port {port}: simulator already runs there" in capsys.readouterr().err

    order = remote.RemoteSpec(
        ssh.SshMachine(known["machine"], str(ssh_server.config)),
        named("tiny-all"),
        "simulator",
        port,
        "127.0.0.1",
        program=program,
    )
    real, calls = ssh.run_python, iter(range(9))
    with pytest.MonkeyPatch.context() as cut:
        cut.setattr(ssh, "run_python", lambda *given: interrupted() if next(calls) == 0 else real(*given))
        with pytest.raises(KeyboardInterrupt):
            remote.start(order, lambda _: None)
    assert probe.healthy("127.0.0.1", port)  # belongs to the first start

    os.kill(known["pid"], signal.SIGKILL)
    assert deploy("status") == 1
    assert "ended" in capsys.readouterr().out
    tunnel = psutil.Process(known["tunnel"][0])
    assert cli.main(["deploy", "down", "--port", str(port)]) == 0
    assert capsys.readouterr().out == f"ssh://{ssh_server.machine}: simulator on port {port}: had already ended\n"
    assert not tunnel.is_running() or tunnel.status() == psutil.STATUS_ZOMBIE
    assert probe.is_free("127.0.0.1", port)
    assert probe.is_free("127.0.0.1", local)
    assert deployments.of_target(f"http://127.0.0.1:{local}") is None
    assert [path.suffix for path in (here / "there").iterdir()] == [".log"]
    assert list((here / "here").rglob("*.json")) == []


@pytest.mark.soak
def test_without_a_tunnel_the_server_listens_on_the_given_address(
    deploy: Run, program: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    port = unused_port()
    assert deploy("up", "tiny-all", "--program", program, "--port", str(port), "--listen", "127.0.0.1") == 0
    (server,) = remote.remembered()
    assert (server.url, server.tunnel) == (f"http://127.0.0.1:{port}", None)
    assert server.machine == (deployments.of_target(server.url) or {})["machine"]
    assert cli.main(["deploy", "down", "--all"]) == 0
    assert f"simulator on port {port}: stopped" in capsys.readouterr().out
    assert probe.is_free("127.0.0.1", port)


def one_line(error: str) -> str:
    assert error.count("\n") == 1, error
    return error


def test_errors_of_remote_starts_are_one_line(deploy: Run, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = here / "dies"
    program.write_text('#!/bin/sh\necho loading\nshift $(($# - 2))\necho "inferload: $*" >&2\nexit 2\n')
    program.chmod(0o755)
    assert deploy("up", "tiny-all", "--engine", "vllm") == 2
    assert "tiny-all: its model can only be generated where inferload is installed" in one_line(capsys.readouterr().err)
    assert deploy("up", "t4-all", "--engine", "vllm", "--program", "/no/vllm", "--port", str(unused_port())) == 2
    assert "ssh://machine-a: vllm: no program /no/vllm there" in one_line(capsys.readouterr().err)
    vllm = ["--engine", "vllm", "--program", str(program), "--port", str(unused_port())]
    assert deploy("up", "llama31-base", *vllm, "--set", "tensor-parallel-size=4096") == 2
    assert "ssh://machine-a: llama31-base: needs 4096 x " in one_line(capsys.readouterr().err)
    assert deploy("up", "tiny-all", *vllm, "--model-path", str(here)) == 2
    assert f"ssh://machine-a: --model-path {here}: no config.json there" in one_line(capsys.readouterr().err)
    options = ["--program", str(program), "--port", str(unused_port())]
    assert deploy("up", "tiny-all", *options, "--", "--last-flag", "it's so") == 2
    message = one_line(capsys.readouterr().err)
    assert "ssh://machine-a: simulator ended before it answered: inferload: --last-flag it's so (log: " in message
    assert deploy("down", "--port", "1") == 2
    assert "ssh://machine-a: port 1: no server was started there" in one_line(capsys.readouterr().err)
    assert deploy("up", "tiny") == 2
    assert "tiny: a bare model cannot be started on another machine" in one_line(capsys.readouterr().err)
    assert cli.main(["deploy", "up", "tiny-all", "--tunnel"]) == 2
    assert "--tunnel, --listen, --program: need another machine" in one_line(capsys.readouterr().err)
    assert cli.main(["deploy", "status", "--host", "box"]) == 2
    assert "--host box: write a machine as user@machine" in one_line(capsys.readouterr().err)
    assert remote.remembered() == []


def test_ssh_connection_errors_are_one_line(
    ssh_server: SshServer, tmp_path: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = ssh_server.config.read_text()
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "other")], check=True)
    cases = {
        "key refused (": text.replace(f"{ssh_server.config.parent}/user_key", str(tmp_path / "other")),
        "unreachable (ssh: connect to host 127.0.0.1 port 1: Connection refused)": text.replace(
            f"Port {ssh_server.port}", "Port 1"
        ),
        "host key not trusted (": text.replace("known_hosts", "no_known_hosts"),
    }
    for message, config in cases.items():
        (tmp_path / "config").write_text(config)
        words = ["--host", f"nobody@{ssh_server.machine}" if "no_known" in config else f"ssh://{ssh_server.machine}"]
        assert cli.main(["deploy", "status", *words, "--ssh-config", str(tmp_path / "config")]) == 2
        assert message in one_line(capsys.readouterr().err)
    assert cli.main(["deploy", "status", "--host", "a@b", "--ssh-config", str(tmp_path / "none")]) == 2
    assert f"--ssh-config {tmp_path}/none: no such file" in one_line(capsys.readouterr().err)


def test_the_remote_program_needs_only_the_standard_library(here: Path) -> None:
    request = {"verb": "down", "port": 8000, "start_id": "it's $(exit 7)\n"}
    command = [sys.executable, "-I", "-S", "-"]
    done = subprocess.run(command, input=remote.program(request), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == {"ended": None}


def test_a_server_is_stopped_if_its_start_cannot_be_reported(program: str, here: Path) -> None:
    order = remote.RemoteSpec(
        ssh.SshMachine("a@b"), named("tiny-all"), "simulator", unused_port(), "127.0.0.1", program=program
    )
    text = remote.program({"verb": "up", **remote._request(order, "mine")})
    reader, writer = os.pipe()
    os.close(reader)  # as after a closed ssh connection
    python = [sys.executable, "-I", "-S", "-"]
    try:
        done = subprocess.run(python, input=text.encode(), stdout=writer, check=False)
        (log,) = (here / "there").iterdir()
        assert "inferload simulator on" in log.read_text()
        assert probe.is_free("127.0.0.1", order.port)
        assert done.returncode
    finally:
        os.close(writer)
        down = remote.program({"verb": "down", "port": order.port, "start_id": ""})
        subprocess.run(python, input=down.encode(), stdout=subprocess.DEVNULL, check=True)


def test_the_api_key_is_not_in_the_ssh_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "it's SEKRET")
    text = remote.program({"verb": "status", "port": None})
    assert "SEKRET" in text
    assert "SEKRET" not in " ".join(ssh.SshMachine("a@b").command)


def test_errors_of_the_remote_interpreter_are_one_line(
    ssh_server: SshServer, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = ssh.SshMachine(ssh_server.machine, str(ssh_server.config))
    old = remote.program({"verb": "status", "port": None}).replace("(3, 10)", "(99, 0)", 1)
    with pytest.raises(UsageError, match=r"^machine-a: python3 on that machine is 3\.\d+; 3\.10 or newer is needed$"):
        ssh.run_python(machine, old, lambda _: None)
    with pytest.raises(UsageError, match=r"^machine-a: NameError: name 'nothing' is not defined$"):
        ssh.run_python(machine, "nothing", lambda _: None)
    with pytest.raises(UsageError, match=r"^machine-a: python3 printed no response$"):
        ssh.run_python(machine, "print('not JSON')", lambda _: None)


def test_a_machine_name_cannot_be_an_ssh_option(here: Path) -> None:
    with pytest.raises(UsageError, match=r"^-oProxyCommand=touch x@y: "):
        ssh.run_python(ssh.SshMachine("-oProxyCommand=touch x@y"), "", lambda _: None)


def test_a_missing_ssh_client_is_one_line(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(here))
    for ask in (ssh.SshMachine("a@b").host, lambda: ssh.run_python(ssh.SshMachine("a@b"), "", lambda _: None)):
        with pytest.raises(UsageError, match=r"^ssh: No such file or directory; install the OpenSSH client"):
            ask()


def test_an_unreachable_remote_server_is_stopped(
    ssh_server: SshServer, program: str, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "REACH_S", 0.2)
    machine = ssh.SshMachine(ssh_server.machine, str(ssh_server.config))
    monkeypatch.setattr(ssh.SshMachine, "host", lambda _self: "127.0.0.2")
    order = remote.RemoteSpec(machine, named("tiny-all"), "simulator", unused_port(), "127.0.0.1", program=program)
    with pytest.raises(
        UsageError, match=r"machine-a: simulator is up there, but http://127.0.0.2:\d+ is not reachable"
    ):
        remote.start(order, lambda _: None)
    assert probe.is_free("127.0.0.1", order.port)
    assert remote.remembered() == []


def record(machine: str, config: str | None, port: int) -> remote.RemoteServer:
    variant = document(named("tiny-all"))
    url = f"http://127.0.0.1:{port}"
    return remote.RemoteServer(
        machine, config, "simulator", "tiny", port, url, 1, "2026-01-02T03:04:05Z", (), "/log", variant
    )


def test_down_all_continues_after_an_unreachable_machine(
    ssh_server: SshServer, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    closed = here / "closed"
    closed.write_text("Host gone\n  HostName 127.0.0.1\n  Port 1\n")
    remote.remember(record("ssh://gone", str(closed), 7))
    remote.remember(record(f"ssh://{ssh_server.machine}", str(ssh_server.config), 8))
    assert cli.main(["deploy", "down", "--all"]) == 2
    captured = capsys.readouterr()
    assert captured.out == f"ssh://{ssh_server.machine}: simulator on port 8: had already ended\n"
    assert "ssh://gone: unreachable (" in captured.err
    assert f"if the server no longer exists, remove {remote.state_file('ssh://gone', 7)}" in one_line(captured.err)
    assert [server.machine for server in remote.remembered()] == ["ssh://gone"]


def test_an_invalid_remote_state_file_is_refused(here: Path) -> None:
    path = remote.state_file("a@b", 8000)
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"machine": "a@b"}))
    with pytest.raises(UsageError, match=r"a_b-8000.json: not a state file of a server .*; remove the file"):
        remote.remembered()


def test_a_deployment_is_found_by_its_url(here: Path) -> None:
    server = remote.RemoteServer(
        machine="me@gpu-box",
        ssh_config=None,
        engine="vllm",
        model="m",
        port=8000,
        url="http://gpu-box:8000",
        pid=7,
        started_at="2026-01-02T03:04:05Z",
        argv=("vllm", "serve"),
        log="/log",
        variant=document(named("t4-all")),
        facts={"version": "0.32.0"},
    )
    remote.remember(server)
    remote.remember(dataclasses.replace(server, port=8001, url="http://127.0.0.1:8001", tunnel=(2**22 + 1, 8001)))
    assert remote.remembered()[0] == server
    known = deployments.of_target("http://gpu-box:8000/v1") or {}
    assert (known["machine"], known["version"], known["variant"]["name"]) == ("me@gpu-box", "0.32.0", "t4-all")
    assert deployments.of_target("http://gpu-box:8002") is None
    assert deployments.of_target("http://localhost:8001") is None, "its tunnel has ended"
