"""Programs started by a fork of the test process instead of `sys.executable`."""

import marshal
import os
import socket
import subprocess
from pathlib import Path

import pytest
from forge import Forge


@pytest.fixture(scope="module")
def python() -> str:
    return Forge("json.decoder").proxy()


@pytest.mark.parametrize(("stdin", "code"), [('{"a": 1}', 0), ("{", 1)])
def test_a_module_has_the_streams_and_the_exit_code_of_its_proxy(python: str, stdin: str, code: int) -> None:
    words = ["-m", "json.tool", "--compact"]
    done = subprocess.run([python, *words], input=stdin, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (code, "" if code else '{"a":1}\n')
    assert ("Expecting property name" in done.stderr) == bool(code)


def test_a_module_ends_with_its_proxy(python: str) -> None:
    with subprocess.Popen([python, "-m", "json.tool"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as proxy:
        assert proxy.stdin is not None
        assert proxy.stdout is not None
        proxy.kill()
        assert proxy.stdout.read() == b""  # end of the module's output while its input is open


@pytest.mark.parametrize("module", [None, "json.tool", "missing_module"])
@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize("cwd", ["/", "/missing"])
def test_clients_that_go_away_end_no_fork_server(python: str, module: str | None, linked: bool, cwd: str) -> None:
    order = {"module": module, "arguments": [], "env": {}, "cwd": cwd, "linked": linked}
    links = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(8)]
    for link in links:
        link.connect(str(Path(python).with_name("forge")))
    nothing = os.open(os.devnull, os.O_RDWR)
    for link in links[1:]:  # the first stays without an order
        if module:
            socket.send_fds(link, [marshal.dumps(order)], [nothing] * 3)
        link.close()
    os.close(nothing)
    done = subprocess.run(
        [python, "-m", "json.tool", "--compact"], input="{}", capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "{}\n")
    links[0].close()
