"""start.sh and the script of `inferload deploy render --format sh`: commands, and quoting of values."""

import os
import re
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inferload.deploy.launcher import probe
from inferload.deploy.launcher.machine_checks import Hardware
from inferload.deploy.render.shell_script import script
from inferload.deploy.variants.variant import Variant, bundled, named
from paths import ROOT
from ports import unused_port

from inferload import cli
from inferload.base.errors import UsageError

BIN = Path(sys.executable).parent
START = ROOT / "deploy" / "start.sh"
SHELLS = [name for name in ("dash", "bash") if os.path.exists(f"/usr/bin/{name}") or os.path.exists(f"/bin/{name}")]
PRINT = "#!/bin/sh\nprintf '%s\\0' \"$@\"\nprintenv -0\n"


@pytest.fixture
def printing(tmp_path: Path) -> str:
    """A program that prints its arguments and environment, each followed by NUL."""
    program = tmp_path / "my program"
    program.write_text(PRINT)
    program.chmod(0o755)
    return str(program)


def run(sh: str, text: str, *words: str, **environment: str) -> list[str]:
    """Run a script and return the words that its program prints."""
    command = [sh, "-s", "--", *words]
    done = subprocess.run(command, input=text.encode(), capture_output=True, env=environment, timeout=20, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode().split("\0")[:-1]


def test_shellcheck_passes(tmp_path: Path) -> None:
    scripts = [START]
    for engine in ("vllm", "simulator"):
        scripts.append(tmp_path / f"{engine}.sh")
        scripts[-1].write_text(script(named("qwen36-mtp"), engine))
    done = subprocess.run([BIN / "shellcheck", *scripts], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize(
    ("words", "passed_on"),
    [
        (
            ["t4-all", "--port", "8001", "--set", "a=b c"],
            ["up", "--engine", "vllm", "t4-all", "--port", "8001", "--set", "a=b c"],
        ),
        (["status"], ["status"]),
        (["down", "--port", "8001"], ["down", "--port", "8001"]),
        (["--help"], ["--help"]),
        ([], ["--help"]),
    ],
)
@pytest.mark.parametrize("sh", SHELLS)
def test_start_sh_is_deploy_up_with_vllm(sh: str, printing: str, words: list[str], passed_on: list[str]) -> None:
    out = run(sh, START.read_text(), *words, INFERLOAD=printing, PATH=os.environ["PATH"])
    assert out[: len(passed_on) + 1] == ["deploy", *passed_on]


@pytest.mark.parametrize("sh", SHELLS)
def test_the_script_of_every_variant_runs_its_command(sh: str, printing: str) -> None:
    for variant in bundled().values():
        out = run(sh, script(variant, "vllm"), "--port", "8001", VLLM=printing, PATH=os.environ["PATH"])
        listen = ["--host", "127.0.0.1", "--port", "8000", "--served-model-name", variant.model]
        words = ["serve", variant.model, *listen, *variant.argv, "--port", "8001"]
        assert out[: len(words)] == words
        assert {"DO_NOT_TRACK=1", *(f"{name}={value}" for name, value in variant.environment.items())} <= set(out)
    own = run(sh, script(named("t4-all"), "vllm"), VLLM=printing, MODEL="/my models/x", PATH=os.environ["PATH"])
    assert own[:2] == ["serve", "/my models/x"]


@pytest.mark.parametrize("piped", [True, False], ids=["from a pipe", "from a file"])
def test_a_script_runs_the_simulator(tmp_path: Path, capsys: pytest.CaptureFixture[str], piped: bool) -> None:
    assert cli.main(["deploy", "render", "tiny-all", "--engine", "simulator", "--set", "max-num-seqs=3"]) == 0
    path, port = tmp_path / "tiny-all.sh", unused_port()
    text = capsys.readouterr().out
    assert "`inferload deploy render tiny-all --engine simulator --format sh`" in text
    path.write_text(text)
    environment = {**os.environ, "INFERLOAD": str(BIN / "inferload")}
    # `ssh HOST sh` passes the script through a pipe.
    command = [SHELLS[0], *(["-s", "--"] if piped else [str(path)]), "--port", str(port), "--exit-after-s", "60"]
    sending = ["cat", str(path)] if piped else ["true"]
    with (
        subprocess.Popen(sending, stdout=subprocess.PIPE) as sender,
        subprocess.Popen(command, env=environment, stdin=sender.stdout, stdout=subprocess.PIPE, text=True) as server,
    ):
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == f"inferload simulator on http://127.0.0.1:{port}\n"
            probe.first_token("127.0.0.1", port)
            assert probe.model("127.0.0.1", port) == "tiny"
        finally:
            server.terminate()  # the shell was replaced by the simulator
    assert probe.is_free("127.0.0.1", port)


_HOSTILE = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20) | st.sampled_from(
    ["x; exit 7", "$(exit 7)", "`exit 7`", "'; exit 7 #", '"; exit 7 #', "\nexit 7\n", "-n", "", "a\\"]
)
_HARDWARE = Hardware("none", 0, 1)


@given(
    st.dictionaries(st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True), _HOSTILE, max_size=3),
    _HOSTILE,
    _HOSTILE,
)
def test_values_of_a_variant_are_quoted(environment: dict[str, str], text: str, model: str) -> None:
    environment = {f"T_{name}": value for name, value in environment.items()}  # not PATH or IFS
    variant = Variant("END", "f", text, model, _HARDWARE, text, text, args={"seed": text}, environment=environment)
    shown = "".join(f'printf "%s\\0" "${name}"\n' for name in environment)
    text_of_script = script(variant, "vllm").replace("exec ", "", 1)
    program = f"vllm() {{ printf '%s\\0' \"$@\"; }}\n{text_of_script}\n{shown}"
    output = run("sh", program, PATH=os.environ["PATH"])
    served = ["serve", model, "--host", "127.0.0.1", "--port", "8000", "--served-model-name", model, "--seed", text]
    assert output[: len(served)] == served
    assert output[len(output) - len(environment) :] == list(environment.values())
    simulated = script(variant, "simulator").replace("exec ", "", 1)
    output = run("sh", f"inferload() {{ printf '%s\\0' \"$@\"; }}\n{simulated}", PATH=os.environ["PATH"])
    assert output[5:9] == ["--model", model, "--hardware", text]


@given(_HOSTILE | st.integers() | st.none())
def test_invalid_environment_variable_names_are_refused(name: Any) -> None:
    is_name = isinstance(name, str) and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name)
    with nullcontext() if is_name else pytest.raises(UsageError, match=r"^a: environment: "):
        Variant("a", "f", "p", "m", _HARDWARE, "s", "cpu-tiny", environment={name: "1"})


def test_a_variant_name_with_shell_characters_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "source: x\nmodel: m\nhardware: {gpu: none, gpus: 0, memory_gib: 1}\nsimulated_as: cpu-tiny\n"
    (tmp_path / "mine.yaml").write_text(text + 'variants:\n  "a b; c": {purpose: p}\n')
    assert cli.main(["deploy", "render", f"{tmp_path}/mine.yaml:a b; c"]) == 2
    assert "invalid name; use up to 64 letters, digits" in capsys.readouterr().err
