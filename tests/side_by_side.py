"""Run all tests in several concurrent processes: `make test`.

The processes are forks of one that has imported and collected all tests. Further arguments are passed to pytest. `pytest` alone
runs the same tests sequentially.
"""

import gc
import multiprocessing.connection
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import gevent
import pytest

TESTS = Path(__file__).parent
# Files with run cases (tests/support/e2e_runs.py), which are executed concurrently within one process.
RUN_CASES = "run_cases("
# Files that start programs or are time-critical, long ones first. They run before CPU-bound tests, which have a lower priority;
# so have runs on the virtual clock, which do not wait.
STARTING_FILES = (
    *("test_live_browser.py", "test_sweep.py", "test_*browser*.py", "test_first_screen.py"),
    *("test_search_command.py", "test_calibration.py"),
    *("unit/client/**/test_*.py", "test_launch.py", "test_live_display.py", "test_progress_lines.py"),
    *("test_benchmarks.py", "test_containers_side_by_side.py", "unit/deploy/simulator/test_*.py"),
    *("test_workers.py", "test_worker_run.py", "e2e/**/test_e2e_*.py"),
)
LOW_PRIORITY = 10
LONG_TIMEOUT_S = 1200  # of tests with low priority, which get the remaining CPU time


@dataclass(frozen=True)
class Groups:
    """Test files: those of one process, those of three after it, and beside both those of two."""

    together: list[Path]
    starting: list[Path]
    others: list[Path]


def groups() -> Groups:
    """Return the files with run cases, those that start programs, and CPU-bound ones."""
    everything = files("test_*.py")
    run_files = [file for file in everything if RUN_CASES in file.read_text(encoding="utf-8")]
    starting = [file for file in files(*STARTING_FILES) if file not in run_files]
    return Groups(run_files, starting, [file for file in everything if file not in {*run_files, *starting}])


def files(*patterns: str) -> list[Path]:
    """Return the files that match, in the order of the patterns."""
    return list(dict.fromkeys(file for pattern in patterns for file in sorted(TESTS.rglob(pattern))))


class Queue:
    """Jobs of test items, of which each process takes the next one. A pipe: a read of a number is atomic."""

    def __init__(self, name: str, jobs: list[list[pytest.Item]], low_priority: bool = False) -> None:
        self.name, self.low_priority = name, low_priority
        self._jobs = jobs
        self._numbers, into = os.pipe()
        os.write(into, b"".join(number.to_bytes(4, "big") for number in range(len(jobs))))
        os.close(into)

    def items(self) -> Iterator[pytest.Item]:
        while number := os.read(self._numbers, 4):
            for item in self._jobs[int.from_bytes(number, "big")]:
                if self.low_priority and not item.get_closest_marker("timeout"):
                    item.add_marker(pytest.mark.timeout(LONG_TIMEOUT_S))
                yield item


def draw_first_example() -> None:
    """Draw from Hypothesis, which reads the constants of all modules for its first example: here once for all processes."""
    import hypothesis  # later than pytest, which rewrites its modules

    @hypothesis.given(hypothesis.strategies.integers())
    def example(_drawn: int) -> None: ...

    example()


@dataclass
class Process:
    """A fork with its messages, and nodeid and location of its test."""

    pid: int
    messages: Connection
    test: tuple[str, tuple[str, int | None, str]] = ("", ("", None, ""))


class SideBySide:
    """Plugin of pytest that runs the collected tests in forks, and reports their results as its own."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        self._processes: list[Process] = []
        self._with_result: set[str] = set()

    def pytest_collection(self) -> None:
        import forge

        for server in (forge.LOCUST, forge.COMMANDS, forge.SIMULATOR):
            server.proxy()  # starts the one of all processes, which imports its modules meanwhile

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        if session.testsfailed or session.config.option.collectonly:
            return None  # pytest reports the errors of the collection, or lists the tests
        by_file = defaultdict[Path, list[pytest.Item]](list)
        for item in session.items:
            by_file[item.path].append(item)
        together = Queue("together", [[item for file in self._groups.together for item in by_file[file]]])
        starting = Queue("starting", [by_file[file] for file in self._groups.starting])
        others = Queue("others", [by_file[file] for file in self._groups.others], low_priority=True)
        session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined] # one folder of all processes
        draw_first_example()
        gc.set_threshold(20_000, 20)  # without the collected modules the usual ones collect all objects again and again
        gc.enable()
        try:
            self._fork(session, together, starting, others)
            for _ in range(2):
                self._fork(session, others)
            while self._processes:
                ready = multiprocessing.connection.wait([process.messages for process in self._processes])
                for process in [process for process in self._processes if process.messages in ready]:
                    if self._receive(session, process):
                        for _ in range(2):
                            self._fork(session, starting, others)
            for item in session.items:
                if item.nodeid not in self._with_result:
                    self._fail(session, item.nodeid, item.location, "no result: the process of this test has ended")
        finally:  # after an interrupt or the last allowed failure: each process ends with its next message
            for process in self._processes:
                process.messages.close()
            for process in self._processes:
                os.waitpid(process.pid, 0)
        return True

    def _fork(self, session: pytest.Session, *queues: Queue) -> None:
        reader, writer = multiprocessing.connection.Pipe(duplex=False)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                for other in (reader, *(process.messages for process in self._processes)):
                    other.close()
                run_items(session, queues, writer)
                code = 0
            finally:
                try:
                    session._setupstate.teardown_exact(None)  # of an interrupted test
                finally:
                    os._exit(code)
        writer.close()
        self._processes.append(Process(pid, reader))

    def _receive(self, session: pytest.Session, process: Process) -> bool:
        """Handle a message of a process; return True if the tests of one process have ended."""
        hook = session.config.hook
        try:
            kind, value, reports = process.messages.recv()
        except EOFError:
            self._processes.remove(process)
            code = os.waitstatus_to_exitcode(os.waitpid(process.pid, 0)[1])
            if code:
                self._fail(session, *process.test, f"the process of this test ended with exit code {code}")
            return False
        for data in reports:
            report = hook.pytest_report_from_serializable(config=session.config, data=data)
            if report.when == "teardown":
                self._with_result.add(report.nodeid)
            hook.pytest_runtest_logreport(report=report)
        if kind == "test":
            process.test = value
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        return kind == "ended" and value == "together"

    def _fail(self, session: pytest.Session, nodeid: str, location: tuple[str, int | None, str], text: str) -> None:
        self._with_result.add(nodeid)
        report = pytest.TestReport(nodeid, location, {}, "failed", text, "call")
        session.config.hook.pytest_runtest_logreport(report=report)


class Sender:
    """Plugin of a fork: sends the name of each test that begins or queue that has ended, with the results before it."""

    def __init__(self, config: pytest.Config, into: Connection) -> None:
        self._config, self._into = config, into
        self._reports: list[object] = []

    def send(self, kind: str, value: object) -> None:
        self._into.send((kind, value, self._reports))
        self._reports = []

    def pytest_runtest_logstart(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        self.send("test", (nodeid, location))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        hook = self._config.hook
        self._reports.append(hook.pytest_report_to_serializable(config=self._config, report=report))


def run_items(session: pytest.Session, queues: tuple[Queue, ...], into: Connection) -> None:
    """Run the items of one queue after the other in this fork."""
    config = session.config
    gevent.reinit()
    config.get_terminal_writer()._file = open(os.devnull, "w")  # noqa: SIM115 (until the end of the process)
    capture = config.pluginmanager.getplugin("capturemanager")
    capture.stop_global_capturing()  # its files are those of the other processes too
    capture.start_global_capturing()
    sender = Sender(config, into)
    config.pluginmanager.register(sender)

    def items() -> Iterator[pytest.Item]:
        for queue in queues:
            if queue.low_priority:
                os.nice(LOW_PRIORITY)
            yield from queue.items()
            sender.send("ended", queue.name)

    following = items()
    item = next(following, None)
    while item is not None:
        next_item = next(following, None)  # decides which fixtures end with the item
        config.hook.pytest_runtest_protocol(item=item, nextitem=next_item)
        item = next_item
    sender.send("end", "")


def main(arguments: list[str]) -> int:
    """Run all groups; return the exit code."""
    began_s = time.monotonic()
    gc.disable()  # until the tests are collected: nearly all that is imported stays
    code = pytest.main([*arguments, str(TESTS)], [SideBySide(groups())])
    print(f"all groups: {time.monotonic() - began_s:.0f} s")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
