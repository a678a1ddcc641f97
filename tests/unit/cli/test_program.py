"""Locust in the process of `inferload run`: what is imported before it, and the end of the process."""

import gzip
import subprocess
import sys
from pathlib import Path

import pytest

HELD = """
import sys
{before}
import locust
from gevent import monkey

original = {{id(value) for names in monkey.saved.values() for value in names.values() if callable(value)}}
for name, module in list(sys.modules.items()):
    if not name.startswith(("gevent", "_gevent")) and name not in monkey.saved:
        print(*(f"{{name}}.{{key}}" for key, value in vars(module).items() if id(value) in original), end=" ")
"""
FRONT_END = "from inferload.cli import build_parser\nbuild_parser('run').parse_args(['run', '--users', '3'])"
LOCUSTFILE = """
import atexit
import builtins
import os
import sys

from locust import events

atexit.register(print, "function of atexit")
from inferload.users import InferenceUser, ScenarioUser


class Left:
    def __del__(self, write=os.write):
        write(1, b"clean-up")


class Chats(ScenarioUser):
    scenario = "smoke"


@events.quitting.add_listener
def quitting(environment, **_others):
    if environment.process_exit_code == 0:
        environment.process_exit_code = 5


@events.quit.add_listener
def quit_event(exit_code, **_others):
    print("quit", exit_code)
    atexit.register(print, "function of the event")
"""
LEFT = "builtins.left = Left()\n"
FILES = """
import gzip
text, packed = open("text", "w"), gzip.GzipFile(fileobj=open("packed", "wb"), mode="wb")
text.write("written"), packed.write(b"packed")
"""
LATE = """
@events.test_start.add_listener
def test_start(environment, **_others):
    environment.events.quit.add_listener(lambda exit_code, **_others: sys.exit(7))
"""
WORDS = ("-f", "mine.py", "--headless", "--clock", "virtual", "--no-report", "--set", "phases.measure_s=1")
SMALL = ("--set", "arrivals.users=1", "--run-dir", "run", "--on-invalid", "warn")


def python(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)


def test_nothing_that_is_imported_before_locust_holds_what_gevent_replaces(tmp_path: Path) -> None:
    alone, after = (python(tmp_path, "-W", "error", "-c", HELD.format(before=each)) for each in ("", FRONT_END))
    assert after.returncode == 0, after.stderr
    assert set(after.stdout.split()) <= set(alone.stdout.split())


def test_the_imports_are_not_collected_and_what_follows_is(tmp_path: Path) -> None:
    program = """
import gc

import locust

collections = []
gc.callbacks.append(lambda phase, _info: collections.append(phase))
import inferload.users

print(len(collections), gc.isenabled(), gc.get_freeze_count() > len(gc.get_objects()))
"""
    assert python(tmp_path, "-c", program).stdout == "0 True True\n"


@pytest.mark.parametrize(
    ("words", "left", "code", "cleans_up"),
    [
        (("-m", "locust"), FILES, 5, False),
        ((str(Path(sys.executable).with_name("locust")),), LEFT, 5, False),
        (("-m", "locust"), LEFT + LATE, 7, True),
        (("-c", "from locust.main import main\ntry:\n    main()\nexcept SystemExit:\n    exit(8)"), LEFT, 8, True),
        (("-m", "cProfile", "-m", "locust"), LEFT, 0, True),
    ],
    ids=["module that leaves files open", "script", "listener of the end", "other program", "profiler"],
)
def test_the_end_of_a_headless_process_does_all_but_the_clean_up(
    tmp_path: Path, words: tuple[str, ...], left: str, code: int, cleans_up: bool
) -> None:
    (tmp_path / "mine.py").write_text(f"{LOCUSTFILE}{left}")
    ended = python(tmp_path, *words, *WORDS, *SMALL)
    assert ended.returncode == code, ended.stderr
    order = ("quit 5", "function of the event", "function of atexit")
    assert [line for line in ended.stdout.splitlines() if line in order] == list(order)
    assert ("clean-up" in ended.stdout) == cleans_up
    if left == FILES:
        assert (tmp_path / "text").read_text() == "written"
        assert gzip.decompress((tmp_path / "packed").read_bytes()) == b"packed"


@pytest.mark.parametrize("code", [0, 1])
def test_a_reader_that_has_gone_does_not_make_a_run_a_passed_one(code: int) -> None:
    program = (
        "import runpy, sys; from inferload.cli import main\n"
        f"runpy.run_module = lambda *_, **__: print('x' * 200_000) or sys.exit({code})\n"
        "sys.exit(main(['run', 'smoke']))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as started:
        assert started.stdout is not None
        started.stdout.close()
        assert started.wait(60) != 0
