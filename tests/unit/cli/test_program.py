"""Locust in the process of `inferload run`: what is imported before it, and the end of the process."""

import contextlib
import gzip
import io
import subprocess
import sys
from pathlib import Path

import locust.main
import pytest
from greenlet import greenlet
from paths import ROOT

from inferload.locust_adapters import process

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


OTHER = "from locust.main import main\ntry:\n    main()\nexcept SystemExit:\n    exit(8)"


def python(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)


COLLECTED = """
import gc

collections = []
gc.callbacks.append(lambda phase, _info: collections.append(phase))
import inferload.users

print("\\n", len(collections), gc.isenabled(), gc.get_freeze_count() > len(gc.get_objects()))
"""


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Import Locust alone, then the users. Return what holds functions that gevent replaces, and COLLECTED's line."""
    program = HELD.format(before="") + COLLECTED
    return python(tmp_path_factory.mktemp("imported"), "-c", program).stdout.split("\n")


def test_nothing_that_is_imported_before_locust_holds_what_gevent_replaces(imported: list[str], tmp_path: Path) -> None:
    after = python(tmp_path, "-W", "error", "-c", HELD.format(before=FRONT_END))
    assert after.returncode == 0, after.stderr
    assert set(after.stdout.split()) <= set(imported[0].split())


def test_the_imports_are_not_collected_and_what_follows_is(imported: list[str]) -> None:
    assert imported[1:] == [" 0 True True", ""]


@pytest.mark.parametrize(
    ("words", "left", "code", "cleans_up"),
    [
        (("-m", "locust"), FILES, 5, False),
        ((str(Path(sys.executable).with_name("locust")),), LEFT, 5, False),
        (("-m", "locust"), LEFT + LATE, 7, True),
        pytest.param(("-c", OTHER), LEFT, 8, True, marks=pytest.mark.soak),
        pytest.param(("-m", "cProfile", "-m", "locust"), LEFT, 0, True, marks=pytest.mark.soak),
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


CALL = "import locust.main\nlocust.main.main()"
LOCUST = str(Path(locust.main.__file__).with_name("__main__.py"))
THROUGH = "import runpy\nrunpy.run_path('locust', run_name='__main__')"  # as the module of Locust is run


@pytest.mark.parametrize(
    ("program", "file", "known"),
    [
        (CALL, LOCUST, True),
        (CALL, "/environment/bin/locust", True),
        (THROUGH, str(ROOT / "inferload" / "__main__.py"), True),
        (THROUGH, "/environment/bin/inferload", True),
        (CALL, "<string>", False),
        (THROUGH, "/own/start.py", False),
        ("import cProfile\ncProfile.run('import locust.main; locust.main.main()')", LOCUST, False),
        ("import bdb\nbdb.Bdb().run('import locust.main; locust.main.main()')", LOCUST, False),
        ("def main():\n    import locust.main\n    locust.main.main()\nmain()", LOCUST, True),
    ],
)
def test_the_clean_up_is_left_out_only_if_the_program_is_locust_or_inferload(
    program: str, file: str, known: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("locust").write_text(CALL)
    found: list[bool] = []

    def main() -> None:
        found.append(process._is_program(sys._getframe()))

    monkeypatch.setattr(locust.main, "main", main)
    with contextlib.redirect_stdout(io.StringIO()):  # the profiler's table
        greenlet(exec).switch(compile(program, file, "exec"), {"__name__": "__main__"})  # has no caller, like a program
    assert found == [known]


@pytest.mark.parametrize("code", [0, 1])
def test_a_reader_that_has_gone_does_not_make_a_run_a_passed_one(code: int) -> None:
    program = (
        "import runpy, sys, types; from inferload.cli import main\n"
        "sys.modules['locust'] = types.ModuleType('locust')\n"  # whose import takes most of the time
        f"runpy.run_module = lambda *_, **__: print('x' * 200_000) or sys.exit({code})\n"
        "sys.exit(main(['run', 'smoke']))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as started:
        assert started.stdout is not None
        started.stdout.close()
        assert started.wait(60) != 0
