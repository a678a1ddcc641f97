"""Programs started by a fork of the test process instead of `sys.executable`."""

import subprocess

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
