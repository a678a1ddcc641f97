"""The scripts that start the containers of rendered pods, run by this machine's shell with stubs of their programs."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from inferload.deploy.render import run_objects
from inferload.deploy.render.run_plan import Results, RunPlan

PLAN = RunPlan("run", "smoke", "http://x.y", 1, results=Results("s3", "s3://bucket/{{runs}} $(X)", "http://minio:9000"))
NO_INFERLOAD = "inferload: the image has no inferload; build it from Containerfile, and name it with --image\n"
WAITS = "inferload: waits for the container uploader\n"

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def here(tmp_path: Path) -> Callable[[list[str]], list[str]]:
    """A function: the command of a container with the paths of this test, as Kubernetes expands it."""

    def replaced(command: list[str]) -> list[str]:
        for theirs, ours in (
            ("/tmp/", f"{tmp_path}/"),
            ("/data/runs", "RUNS"),
            ("/dev/termination-log", f"{tmp_path}/message"),
        ):
            command = [word.replace(theirs, ours) for word in command]
        shorter = {"$$": "$", "sleep 1": "sleep 0.05"}
        for theirs, ours in shorter.items():
            command = [word.replace(theirs, ours) for word in command]
        return command

    return replaced


@pytest.fixture
def start(tmp_path: Path, here: Callable[[list[str]], list[str]]) -> Iterator[Start]:
    """A function that starts a container's command with stubs of its programs in a process group of its own."""
    processes: list[subprocess.Popen[str]] = []

    def started(command: list[str], **stubs: str) -> subprocess.Popen[str]:
        for name, body in stubs.items():
            stub = tmp_path / "bin" / name.replace("_", "-")
            stub.parent.mkdir(exist_ok=True)
            stub.write_text(f"#!/bin/sh\n{body}\n")
            stub.chmod(0o755)
        environment = {"PATH": f"{tmp_path}/bin:{os.defpath}"}
        pipe = subprocess.PIPE
        command, new = here(command), {"text": True, "start_new_session": True}
        processes.append(subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, **new))
        return processes[-1]

    yield started
    for process in processes:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def master() -> list[str]:
    return command_of("master")


def worker() -> list[str]:
    return command_of("worker")


def command_of(part: str) -> list[str]:
    pod = run_objects.pod(PLAN, part, ["a b", "$HOME"])
    container = pod["containers"][0]
    return [*container["command"], *container["args"]]


def uploader() -> list[str]:
    return list(run_objects.uploader(PLAN)["command"])


def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


COPY = "s3|cp|RUNS|s3://bucket/{{runs}} $(X)|--endpoint-url|http://minio:9000|--recursive|--no-progress|--no-follow-symlinks|"
PRINT = 'printf "%s|" "$@"'


def test_words_and_exit_code_pass_through(start: Start) -> None:
    process = start(worker(), inferload_entrypoint=f"{PRINT}; exit 3")
    assert process.communicate(timeout=60) == ("a b|$HOME|", "")
    assert process.returncode == 3


def test_the_run_waits_for_the_uploader_which_copies_after_it(start: Start, tmp_path: Path) -> None:
    copied = tmp_path / "copied"
    ready = tmp_path / "ready"
    run = start(
        master(),
        inferload_entrypoint=f": > {ready}; {PRINT}; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; exit 3",
    )
    until((tmp_path / "run").is_fifo)
    assert not ready.exists()
    copying = start(uploader(), aws=f": > {copied}; {PRINT}; exit 4")
    until(ready.exists)
    assert not copied.exists()
    (tmp_path / "go").touch()
    out, errors = run.communicate(timeout=60)
    assert (run.returncode, out, errors) == (3, f"a b|$HOME|--termination-message|{tmp_path}/message|", WAITS)
    assert copying.communicate(timeout=60) == (COPY, "")
    assert copying.returncode == 4


@pytest.mark.parametrize("part", [master, worker])
def test_an_image_without_inferload_ends_with_one_line(
    start: Start, tmp_path: Path, part: Callable[[], list[str]]
) -> None:
    copying = start(uploader(), aws=":") if part is master else None
    process = start(part())
    assert process.communicate(timeout=60) == ("", (WAITS if copying else "") + NO_INFERLOAD)
    assert process.returncode == 2
    assert (tmp_path / "message").read_text() == NO_INFERLOAD
    assert copying is None or copying.wait(60) == 0  # it does not wait for ever


def test_a_signal_reaches_the_run_and_its_code_counts(start: Start, tmp_path: Path) -> None:
    copying, ready = start(uploader(), aws=":"), tmp_path / "ready"
    process = start(master(), inferload_entrypoint=f'trap "exit 7" TERM; : > {ready}; while :; do sleep 0.05; done')
    until(ready.exists)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert (process.returncode, copying.wait(60)) == (7, 0)


def test_the_uploader_copies_when_the_master_was_killed(start: Start, tmp_path: Path) -> None:
    """All processes at once, as when memory has run out: none is left that could tell."""
    copying, ready = start(uploader(), aws=PRINT), tmp_path / "ready"
    run = start(master(), inferload_entrypoint=f": > {ready}; exec sleep 600")
    until(ready.exists)
    os.killpg(run.pid, signal.SIGKILL)
    run.communicate(timeout=60)
    assert copying.communicate(timeout=60) == (COPY, "")
    assert copying.returncode == 0
