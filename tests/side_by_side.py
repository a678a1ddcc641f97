"""All tests, several pytest processes at once: `make test`, and with `vllm` as the first word `make test-vllm`.

`pytest` alone runs the same tests one after another. Other words given here go to each pytest.
"""

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

TESTS = Path(__file__).parent
# Where scenes are played, several at a time.
STAGED = ("test_e2e_*.py", "test_live_agent.py")
# What starts programs and waits for them, or is timed: it goes before what only computes, which gives way to it.
WAITING = ("test_browser.py", "test_report_browser.py", "test_sweep.py", "test_remote.py")  # for the most part
STARTING = (
    *("test_benchmarks.py", "test_calibration.py", "test_launch.py", "test_search_command.py", "test_simulator*.py"),
    *("test_swarm_*.py", "test_ssh*.py", "test_wire_*.py", "test_native_*.py", "test_progress.py"),
    "test_containers_side_by_side.py",
)
# Of the tests with real vLLM those that share a server or are timed; the others give way to them.
SERVED = ("test_vllm_[acer]*.py", "test_vllm_scheduler.py", "test_vllm_server.py")
# A computing test runs in what the others leave of the cores, so that its own limit of time is a long one.
GIVE_WAY = ("nice", "-n", "10")
PATIENT = ("-o", "timeout=1200")
NOTHING_SELECTED = 5  # pytest's exit code where the words leave no test to it


def parts() -> tuple[list[Path], ...]:
    """Files of tests: those of the stage, those that wait for programs, those that start some, and in halves those that compute."""
    named = [files(*STAGED), files(*WAITING), files(*STARTING)]
    computing = [file for file in files("test_*.py") if not any(file in part for part in named)]
    return *named, computing[::2], computing[1::2]


def vllm_parts() -> tuple[list[Path], list[Path]]:
    """Files of tests: those that share a server of real vLLM, and all others."""
    served = files(*SERVED)
    return served, [file for file in files("test_*.py") if file not in served]


def files(*patterns: str) -> list[Path]:
    return [file for pattern in patterns for file in sorted(TESTS.rglob(pattern))]


def main(words: list[str]) -> int:
    """Pytest's exit code: the first of a part that fails."""
    if words[:1] == ["vllm"]:
        served, others = vllm_parts()
        own = [*words[1:], "-m", "vllm and not soak"]
        return run([[pytest(own, served)]], [giving_way(own, others)])
    staged, waiting, starting, half, other = parts()
    first, second = [pytest(words, staged)], [pytest(words, waiting), pytest(words, starting)]
    return run([first, second], [giving_way(words, half), giving_way(words, other)])


def run(rounds: Sequence[Sequence[list[str]]], beside_all: Sequence[list[str]]) -> int:
    """The exit code of all: the commands of a round run at once, one round after another, and `beside_all` meanwhile."""
    with ExitStack() as stack:
        others = [stack.enter_context(beside(command)) for command in beside_all]
        codes = []
        for first, *more in rounds:
            processes = [stack.enter_context(beside(command)) for command in more]
            codes.append(subprocess.run(first, check=False).returncode)
            codes += [process.wait() for process in processes]
        codes += [process.wait() for process in others]
    return exit_code(codes)


@contextmanager
def beside(command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A command that runs meanwhile; what it says is shown at the end."""
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT)
        try:
            yield process
        finally:
            process.terminate()
            process.wait()
            said.seek(0)
            sys.stdout.buffer.write(said.read())
            sys.stdout.flush()


def pytest(words: list[str], part: list[Path]) -> list[str]:
    # A cache of its own: each would keep only its own failures.
    cache = f".pytest_cache/from_{part[0].stem}"
    return [sys.executable, "-m", "pytest", *words, "-o", f"cache_dir={cache}", *map(str, part)]


def giving_way(words: list[str], part: list[Path]) -> list[str]:
    return [*GIVE_WAY, *pytest([*PATIENT, *words], part)]


def exit_code(codes: list[int]) -> int:
    """Of all: the first failure, else 0 where at least one had tests and they passed."""
    if all(code == NOTHING_SELECTED for code in codes):
        return NOTHING_SELECTED
    return next((code for code in codes if code not in (0, NOTHING_SELECTED)), 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
