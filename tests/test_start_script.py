"""start.sh, for hosts without Python: its text, the command lines that it runs, and servers that it starts and stops."""

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from inferload.deploy import facts, probe, shell
from inferload.deploy.shell import variants_file
from inferload.deploy.variant import Hardware, Variant, bundled, named
from inferload.deploy.variantcommand import changed

from inferload import cli
from inferload.errors import UsageError

BIN = Path(sys.executable).parent
SHELLS = [name for name in ("dash", "bash") if os.path.exists(f"/usr/bin/{name}") or os.path.exists(f"/bin/{name}")]

# A server of two processes: the one that leads the group, and the one that holds the port.
TWO = """\
#!{python}
import http.server, os, sys, time
port = int(sys.argv[sys.argv.index("--port") + 1])
if os.fork():
    while True:
        time.sleep(60)
class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", port), Page).serve_forever()
"""

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def start(tmp_path: Path) -> Run:
    """`start(ARGUMENTS)`: start.sh under the system's plainest shell, with a folder of its own for what it remembers."""

    def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [SHELLS[0], str(shell.START), *words],
            capture_output=True,
            text=True,
            timeout=120,
            env={**os.environ, "INFERLOAD_STATE": str(tmp_path / "state"), **environment},
            check=False,
        )

    return run


def test_shellcheck_finds_nothing(tmp_path: Path) -> None:
    whole = tmp_path / "one.sh"
    whole.write_text(shell.script([named("tiny-ngram")]))
    done = subprocess.run(
        [BIN / "shellcheck", "variants.sh", whole],
        cwd=shell.START.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == ""
    assert done.returncode == 0


def test_the_file_of_variants_is_what_the_yaml_files_say() -> None:
    assert shell.VARIANTS.read_text() == shell.variants_file(bundled().values()), (
        "run python -m inferload.deploy.shell where the YAML files are right"
    )


@pytest.mark.parametrize("sh", SHELLS)
def test_every_variant_runs_the_same_in_the_shell(sh: str) -> None:
    code = f". {shlex.quote(str(shell.VARIANTS))}\nlaunch() {{ printf '%s\\0' \"$@\"; printf '\\n\\0'; }}\n"
    code += "for name in $(list_variants); do use_variant $name; done\n"
    out = subprocess.run([sh, "-c", code], capture_output=True, text=True, check=True).stdout
    found = [line.split("\0")[:-1] for line in out.split("\n\0")[:-1]]
    assert found == [[variant.model, *variant.argv] for variant in bundled().values()]


def grouped(argv: list[str]) -> set[tuple[str, ...]]:
    """A command line as a set of flags, each with its values."""
    flags: list[list[str]] = []
    for word in argv:
        if word.startswith("--") or not flags:
            flags.append([word])
        else:
            flags[-1].append(word)
    return {tuple(flag) for flag in flags}


@pytest.mark.parametrize("sh", SHELLS)
def test_settings_mean_what_they_mean_to_inferload(sh: str) -> None:
    settings = ["max_num_seqs=8", "--max-num-batched-tokens=64", "enable-prefix-caching=false", "max-model-len="]
    settings += ['speculative-config={"method":"it\'s $HOME","n":1}', "enforce-eager=true"]
    words = [word for setting in settings for word in ("--set", setting)]
    command = [sh, str(shell.START), "show", "tiny-ngram", "--port", "8123", "--engine", "simulator", *words]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    variant = changed(named("tiny-ngram"), settings)
    expected = ["inferload", "simulator", "--host", "127.0.0.1", "--port", "8123"]
    expected += ["--model", variant.model, "--hardware", variant.simulated_as, *variant.argv]
    assert grouped(shlex.split(shown)) == grouped(expected)


def test_one_script_starts_watches_and_stops_the_simulator(
    start: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["deploy", "script", "tiny-all"]) == 0
    alone, port = tmp_path / "start-tiny-all.sh", probe.free_port()
    alone.write_text(capsys.readouterr().out)
    environment = {**os.environ, "INFERLOAD_STATE": str(tmp_path / "state"), "INFERLOAD": str(BIN / "inferload")}
    command = [SHELLS[0], str(alone), "tiny-all", "--engine", "simulator", "--port", str(port)]
    up = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert up.startswith(f"simulator: tiny-all (tiny) at http://127.0.0.1:{port} after ")
    assert probe.first_token("127.0.0.1", port) == "tiny"
    again = start("tiny-all", "--engine", "simulator", "--port", str(port))
    assert (again.returncode, again.stderr.count("\n")) == (2, 1)
    assert f"port {port}: simulator is up there already" in again.stderr
    status = start("status")
    assert (status.returncode, status.stdout.split("  pid")[0]) == (0, f"port {port}  up  simulator tiny-all (tiny)")
    assert f"inferload simulator on http://127.0.0.1:{port}" in start("logs", "--port", str(port)).stdout
    assert start("log", "--port", str(port)).stdout == start("logs", "--port", str(port)).stdout
    leader = psutil.Process(int(up.partition("(pid ")[2].partition(")")[0]))
    gpus = tmp_path / "nvidia-smi"
    gpus.write_text(
        f"#!/bin/sh\necho '{leader.pid}, GPU-a, 1000'\necho '{leader.pid}, GPU-b, [N/A]'\necho '1, GPU-a, 7'\n"
    )
    gpus.chmod(0o755)
    held = start("memory", "--port", str(port), PATH=f"{tmp_path}:{os.environ['PATH']}").stdout
    there = facts.memory_there(held)
    assert there["memory_mb"] == pytest.approx(leader.memory_info().rss / 1e6, rel=0.1)
    assert there["gpu_memory_mb"] == {"GPU-a": 1048.6}
    assert start("down", "--port", str(port)).stdout == f"simulator on port {port}: stopped\n"
    assert probe.is_free("127.0.0.1", port)
    nothing = start("status")
    assert (nothing.returncode, nothing.stdout, nothing.stderr) == (1, "", "no server was started here\n")
    assert start("status", "--port", "1").stderr == "no server was started here on port 1\n"
    assert [path.suffix for path in (tmp_path / "state").iterdir()] == [".log"]


def test_what_a_crash_leaves_is_stopped_too_and_the_port_is_free(start: Run, tmp_path: Path) -> None:
    program, port = tmp_path / "my vllm", probe.free_port()
    program.write_text(TWO.format(python=sys.executable))
    program.chmod(0o755)
    (tmp_path / "config.json").write_text("{}")
    up = start("tiny-all", "--port", str(port), "--model-path", str(tmp_path), VLLM=str(program))
    assert up.returncode == 0, up.stderr
    leader = int(up.stdout.partition("(pid ")[2].partition(")")[0])
    group = [psutil.Process(leader), *psutil.Process(leader).children(recursive=True)]
    assert len(group) == 2
    os.kill(leader, signal.SIGKILL)
    assert start("stop", "--port", str(port)).stdout == f"vllm on port {port}: stopped\n"
    assert probe.is_free("127.0.0.1", port)
    assert not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in group)


def test_what_cannot_start_says_why_in_one_line(start: Run, tmp_path: Path) -> None:
    dies, port = tmp_path / "dies", probe.free_port()
    dies.write_text("#!/bin/sh\necho loading\necho 'inferload: --no-such: unknown' >&2\nexit 2\n")
    dies.chmod(0o755)
    simulator = ["--engine", "simulator", "--program", str(dies)]
    real = ["--engine", "simulator", "--program", str(BIN / "inferload")]
    cases = [
        (["t4-all", "--program", "/no/vllm"], "vllm: no program /no/vllm here"),
        (["no-such"], "variant no-such: not known"),
        (["tiny-all"], "vllm: no program" if not os.environ.get("VLLM") else "tiny-all: its model"),
        (["tiny-all", "--port", "x"], "--port x: not a whole number"),
        (["tiny-all", "--set", "max-num-seqs"], "--set max-num-seqs: write it as flag=value"),
        (["show", "tiny-all", "--set", "--api_key=SEKRET"], "--set api-key: set VLLM_API_KEY in the environment"),
        (["tiny-all", "--set", "port=1"], "--set port: give it as --port"),
        (["llama31-base", "--set", "tensor-parallel-size=4096", "--program", "sh"], "llama31-base: needs 4096 GPU(s)"),
        (
            ["llama31-base", "--set", "tensor-parallel-size=two", "--program", "sh"],
            "--tensor-parallel-size two: not a whole",
        ),
        (["tiny-all", "--model-path", str(tmp_path)], f"--model-path {tmp_path}: no config.json there"),
        (["stop", "--port", str(port)], f"port {port}: nothing was started there"),
        (["memory", "--port", str(port)], f"port {port}: nothing was started there"),
        (
            ["tiny-all", *real, "--port", str(port), "--set", "enable-prefix-caching=0"],
            "simulator ended before it answered: inferload: 0: belongs to no flag, and --model names the model",
        ),
        (
            ["tiny-all", *simulator, "--port", str(port)],
            "simulator ended before it answered: inferload: --no-such: unknown (log: ",
        ),
    ]
    for words, said in cases:
        done = start(*words, PATH=os.defpath)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.splitlines()[-1].startswith(f"start.sh: {said}"), done.stderr
    (tmp_path / "config.json").write_text("{}")
    old = start("tiny-all", "--model-path", str(tmp_path), "--program", str(dies), "--port", str(port), VLLM_USE_V1="0")
    assert (old.returncode, old.stderr) == (
        2,
        "start.sh: VLLM_USE_V1=0: the V0 engine is gone since vLLM 0.11; leave it out\n",
    )
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = start("tiny-all", *simulator, "--port", str(port))
        assert done.stderr == f"start.sh: port {port}: somebody listens there; name another with --port\n"


GPUS = """\
#!/bin/sh
echo 'GPU 0: A (UUID: GPU-aa1)'
echo 'GPU 1: B (UUID: GPU-ab2)'
"""


@pytest.mark.parametrize(
    ("visible", "count"),
    [
        ("", 0),
        ("0", 1),
        ("0,1", 2),
        (" 1 , 0", 2),
        ("0,2,1", 1),  # CUDA reads up to the first entry that selects none
        ("-1", 0),
        ("0,0", 0),
        ("*", 0),
        ("GPU-ab", 1),
        ("GPU-a", 0),  # the beginning of two
        ("GPU-ab2,GPU-aa1", 2),
        ("GPU-c", 0),
        ("MIG-x", 1),
        ("void", 0),
        ("9" * 5000, 0),
    ],
)
@pytest.mark.parametrize("sh", SHELLS)
def test_only_visible_gpus_count(sh: str, tmp_path: Path, visible: str, count: int) -> None:
    for name, text in (("nvidia-smi", GPUS), ("vllm", "#!/bin/sh\nexit 2\n")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "config.json").write_text("{}")
    own = {"INFERLOAD_STATE": str(tmp_path / "state"), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    words = ["--model-path", str(tmp_path), "--program", str(tmp_path / "vllm"), "--port", str(probe.free_port())]
    done = subprocess.run(
        [sh, str(shell.START), "llama31-base", *words, "--set", "tensor-parallel-size=2"],
        env={**os.environ, **own, "CUDA_VISIBLE_DEVICES": visible},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    refused = f"start.sh: llama31-base: needs 2 GPU(s), CUDA_VISIBLE_DEVICES={visible} leaves {count}\n"
    assert done.returncode == 2
    if count < 2:
        assert done.stderr == refused
    else:
        assert done.stderr.startswith("start.sh: vllm ended before it answered")


@pytest.mark.parametrize("sh", SHELLS)
@pytest.mark.parametrize("variant", ["tiny-all", "llama31-base"])
def test_a_name_that_is_set_replaces_the_models(sh: str, variant: str) -> None:
    for settings, name in (
        ([], named(variant).model),
        (["--set", "served-model-name=mine"], "mine"),
        (["--set", "served_model_name=mine"], "mine"),
        (["--set", "served-model-name=other", "--set", "served-model-name=mine"], "mine"),
        (["--set", "served-model-name="], named(variant).model),
    ):
        command = [sh, str(shell.START), "show", variant, *settings]
        shown = shlex.split(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        assert shown.count("--served-model-name") == 1
        assert shown[shown.index("--served-model-name") + 1] == name


@pytest.mark.soak
def test_a_server_whose_first_process_ends_is_not_waited_for(start: Run, tmp_path: Path) -> None:
    dies, port = tmp_path / "dies", probe.free_port()
    dies.write_text("#!/bin/sh\nsleep 600 &\necho 'inferload: out of luck' >&2\nexit 2\n")
    dies.chmod(0o755)
    done = start("tiny-all", "--engine", "simulator", "--program", str(dies), "--port", str(port), "--wait-s", "600")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(
        "start.sh: simulator ended before it answered: inferload: out of luck"
    )
    assert [path.suffix for path in (tmp_path / "state").iterdir()] == [".log"]


def test_without_a_home_it_says_which_folder_it_wants(start: Run) -> None:
    done = start("status", INFERLOAD_STATE="", HOME="")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "start.sh: neither INFERLOAD_STATE nor HOME is set: name a folder for states and logs\n"


def test_a_state_that_cannot_be_written_is_one_line(start: Run, tmp_path: Path) -> None:
    dies, port = tmp_path / "dies", probe.free_port()
    dies.write_text("#!/bin/sh\nexit 2\n")
    dies.chmod(0o755)
    (tmp_path / "state" / f"{port}.pid").mkdir(parents=True)  # what no user can write to
    done = start("tiny-all", "--engine", "simulator", "--program", str(dies), "--port", str(port))
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(f"start.sh: {tmp_path / 'state'}: cannot be written to; ")
    assert not (tmp_path / "state" / f"{port}.state").exists()


def test_a_start_is_undone_by_its_own_name_only(start: Run, tmp_path: Path) -> None:
    port = probe.free_port()
    sleeper = subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        (tmp_path / "state").mkdir()
        state = tmp_path / "state" / f"{port}.state"
        lines = [str(sleeper.pid), os.devnull, f"http://127.0.0.1:{port}", "vllm", "v", "m"]
        for more in ([], ["other"]):  # the first as older versions wrote it
            state.write_text("".join(f"{line}\n" for line in (*lines, *more)))
            done = start("stop", "--port", str(port), "--only", "mine")
            assert (done.returncode, done.stderr) == (
                2,
                f"start.sh: port {port}: another start's server is left alone\n",
            )
            assert state.exists()
        assert sleeper.poll() is None
        state.write_text("".join(f"{line}\n" for line in (*lines, "mine")))
        assert start("stop", "--port", str(port), "--only", "mine").returncode == 0
        assert sleeper.wait(5) == -signal.SIGTERM
        assert not state.exists()
    finally:
        sleeper.kill()
        sleeper.wait()


def test_memory_that_is_not_told_is_left_out() -> None:
    assert facts.memory_there("") == {}
    assert facts.memory_there("resident 1 1000\nresident 2 500\ngpu 1 GPU-a [N/A]\ngpu 2 GPU-a 5\n") == {
        "memory_mb": 1.5
    }


_HOSTILE = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20) | st.sampled_from(
    ["x; exit 7", "$(exit 7)", "`exit 7`", "'; exit 7 #", '"; exit 7 #', "\n=END=\nexit 7\n", "-n", "", "a\\"]
)
_HARDWARE = Hardware("none", 0, 1)


@given(
    st.dictionaries(st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True), _HOSTILE, max_size=3),
    _HOSTILE,
    _HOSTILE,
)
def test_any_value_of_a_variant_reaches_the_server_as_it_is(environment: dict[str, str], text: str, model: str) -> None:
    environment = {f"T_{name}": value for name, value in environment.items()}  # PATH and IFS are the shell's own
    variant = Variant("END", "f", text, model, _HARDWARE, text, text, args={"seed": text}, environment=environment)
    shown = "".join(f'printf "%s\\0" "${name}"\n' for name in environment)
    program = (
        f'{variants_file([variant])}\nfail() {{ exit 9; }}\nlaunch() {{ printf \'%s\\0\' "$simulated_as" "$@"; }}\n'
        f"list_variants\nuse_variant END\n{shown}"
    )
    done = subprocess.run(["sh"], input=program.encode(), capture_output=True, timeout=20, check=False)
    assert done.returncode == 0, done.stderr
    said = done.stdout.decode().removeprefix("END\n").split("\0")
    assert said[:4] == [text, model, "--seed", text]
    assert said[len(said) - 1 - len(environment) : -1] == list(environment.values())


@given(_HOSTILE | st.integers() | st.none())
def test_a_name_of_an_environment_variable_is_a_name_or_refused(name: Any) -> None:
    is_name = isinstance(name, str) and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name)
    with nullcontext() if is_name else pytest.raises(UsageError, match=r"^a: environment: "):
        Variant("a", "f", "p", "m", _HARDWARE, "s", "cpu-tiny", environment={name: "1"})


def test_a_name_that_a_shell_would_split_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "source: x\nmodel: m\nhardware: {gpu: none, gpus: 0, memory_gib: 1}\nsimulated_as: cpu-tiny\n"
    (tmp_path / "mine.yaml").write_text(text + 'variants:\n  "a b; c": {purpose: p}\n')
    assert cli.main(["deploy", "script", f"{tmp_path}/mine.yaml:a b; c"]) == 2
    assert "its name must be letters, digits" in capsys.readouterr().err
