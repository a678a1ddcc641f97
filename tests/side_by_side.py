"""Run all tests in several concurrent pytest processes: `make test`, and with the argument `vllm` `make test-vllm`.

Further arguments are passed to each pytest. `pytest` alone runs the same tests sequentially.
"""

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

TESTS = Path(__file__).parent
# Files with run cases (tests/support/e2e_runs.py), which are executed concurrently within one pytest.
RUN_FILES = ("test_e2e_*.py", "test_live_agent.py")
# Files that start programs or are time-critical. They run before CPU-bound tests, which have a lower priority.
IDLE_FILES = ("test_*browser*.py", "test_sweep.py", "test_remote.py")  # mostly waiting
PROCESS_FILES = (
    *("test_benchmarks.py", "test_calibration.py", "test_launch.py", "test_search_command.py", "test_simulator*.py"),
    *(
        "test_swarm_*.py",
        "test_ssh*.py",
        "test_wire_*.py",
        "test_native_*.py",
        "test_progress.py",
        "test_live_display.py",
    ),
    "test_containers_side_by_side.py",
)
# Files of tests with real vLLM that share a server or are time-critical.
VLLM_SERVER_FILES = ("test_vllm_[acer]*.py", "test_vllm_live.py", "test_vllm_scheduler.py", "test_vllm_server.py")
LOW_PRIORITY = ("nice", "-n", "10")
LONG_TIMEOUT = ("-o", "timeout=1200")  # of tests with low priority, which get the remaining CPU time
NO_TESTS = 5  # pytest's exit code if no test is selected


def groups() -> tuple[list[Path], ...]:
    """Return the test files by group: run cases, mostly waiting, starting processes, and two halves of CPU-bound tests."""
    special = [files(*RUN_FILES), files(*IDLE_FILES), files(*PROCESS_FILES)]
    cpu_bound = [file for file in files("test_*.py") if not any(file in group for group in special)]
    return *special, cpu_bound[::2], cpu_bound[1::2]


def vllm_groups() -> tuple[list[Path], list[Path]]:
    """Return the test files in two groups: those that share a vLLM server or are time-critical, and all others."""
    sharing = files(*VLLM_SERVER_FILES)
    return sharing, [file for file in files("test_*.py") if file not in sharing]


def files(*patterns: str) -> list[Path]:
    return [file for pattern in patterns for file in sorted(TESTS.rglob(pattern))]


def main(arguments: list[str]) -> int:
    """Run all groups; return the exit code."""
    if arguments[:1] == ["vllm"]:
        sharing, others = vllm_groups()
        options = [*arguments[1:], "-m", "vllm and not soak"]
        return run([[pytest(options, sharing)]], [low_priority(options, others)])
    run_files, idle, starting, *cpu_bound = groups()
    rounds = [[pytest(arguments, run_files)], [pytest(arguments, idle), pytest(arguments, starting)]]
    return run(rounds, [low_priority(arguments, group) for group in cpu_bound])


def run(rounds: Sequence[Sequence[list[str]]], background: Sequence[list[str]]) -> int:
    """Run the commands of each round concurrently, the rounds in sequence, and `background` alongside; return the exit code."""
    with ExitStack() as stack:
        others = [stack.enter_context(started(command)) for command in background]
        codes = []
        for first, *more in rounds:
            processes = [stack.enter_context(started(command)) for command in more]
            codes.append(subprocess.run(first, check=False).returncode)
            codes += [process.wait() for process in processes]
        codes += [process.wait() for process in others]
    return exit_code(codes)


@contextmanager
def started(command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """Start a command; print its output on exit."""
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            yield process
        finally:
            process.terminate()
            process.wait()
            output.seek(0)
            sys.stdout.buffer.write(output.read())
            sys.stdout.flush()


def pytest(options: list[str], group: list[Path]) -> list[str]:
    # Processes that share a cache would overwrite each other's list of failures.
    cache = f".pytest_cache/from_{group[0].stem}"
    return [sys.executable, "-m", "pytest", *options, "-o", f"cache_dir={cache}", *map(str, group)]


def low_priority(options: list[str], group: list[Path]) -> list[str]:
    return [*LOW_PRIORITY, *pytest([*LONG_TIMEOUT, *options], group)]


def exit_code(codes: list[int]) -> int:
    """Return the first failure; else 0, or NO_TESTS if no process had tests."""
    if all(code == NO_TESTS for code in codes):
        return NO_TESTS
    return next((code for code in codes if code not in (0, NO_TESTS)), 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
