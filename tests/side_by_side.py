"""Run all tests in several concurrent pytest processes: `make test`, and with the argument `vllm` `make test-vllm`.

Further arguments are passed to each pytest. `pytest` alone runs the same tests sequentially.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

TESTS = Path(__file__).parent
# Files with run cases (tests/support/e2e_runs.py), which are executed concurrently within one pytest.
RUN_CASES = "run_cases("
# Files that start programs or are time-critical, long ones first. They run before CPU-bound tests, which have a lower priority;
# so have runs on the virtual clock, which do not wait.
STARTING_FILES = (
    *("test_live_browser.py", "test_sweep.py", "test_*browser*.py", "test_search_command.py", "test_calibration.py"),
    *("unit/client/**/test_*.py", "test_launch.py", "test_live_display.py", "test_progress_lines.py"),
    *("test_benchmarks.py", "test_containers_side_by_side.py", "unit/deploy/simulator/test_*.py"),
    *("test_workers.py", "test_worker_run.py", "e2e/**/test_e2e_*.py"),
)
# Files of tests with real vLLM that share a server or are time-critical.
VLLM_SERVER_FILES = ("test_vllm_[acer]*.py", "test_vllm_live.py", "test_vllm_server.py")
LOW_PRIORITY = ("nice", "-n", "10")
LONG_TIMEOUT = ("-o", "timeout=1200")  # of tests with low priority, which get the remaining CPU time
BY_FILE = ("--dist", "loadfile", "--no-loadscope-reorder")
WAITING, COMPUTING = ("-n", "3"), ("-n", "2")  # processes for tests that mostly wait, and for CPU-bound ones
NO_TESTS = 5  # pytest's exit code if no test is selected


def groups() -> tuple[list[Path], list[Path], list[Path]]:
    """Return the test files by group: run cases, starting programs, CPU-bound."""
    everything = files("test_*.py")
    run_files = [file for file in everything if RUN_CASES in file.read_text(encoding="utf-8")]
    starting = [file for file in files(*STARTING_FILES) if file not in run_files]
    return run_files, starting, [file for file in everything if file not in {*run_files, *starting}]


def vllm_groups() -> tuple[list[Path], list[Path]]:
    """Return the test files in two groups: those that share a vLLM server or are time-critical, and all others."""
    sharing = files(*VLLM_SERVER_FILES)
    return sharing, [file for file in files("test_*.py") if file not in sharing]


def files(*patterns: str) -> list[Path]:
    """Return the files that match, in the order of the patterns."""
    return list(dict.fromkeys(file for pattern in patterns for file in sorted(TESTS.rglob(pattern))))


def main(arguments: list[str]) -> int:
    """Run all groups; return the exit code."""
    if arguments[:1] == ["vllm"]:
        sharing, others = vllm_groups()
        options = [*arguments[1:], "-m", "vllm and not soak"]
        return run([pytest(options, sharing)], low_priority(options, others))
    run_files, starting, computing = groups()
    sequence = [pytest(arguments, run_files), pytest([*arguments, *WAITING, *BY_FILE], starting)]
    return run(sequence, low_priority([*arguments, *COMPUTING, *BY_FILE], computing))


def run(sequence: Sequence[list[str]], background: list[str]) -> int:
    """Run the commands in sequence, and `background` alongside; return the exit code."""
    with started(background) as other:
        codes = [subprocess.run(command, check=False).returncode for command in sequence]
        return exit_code([*codes, other.wait()])


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
    began_s = time.monotonic()
    code = main(sys.argv[1:])
    print(f"all groups: {time.monotonic() - began_s:.0f} s")
    sys.exit(code)
