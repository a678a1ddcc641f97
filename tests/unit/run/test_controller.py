"""The master's control of users: start, load shape, changes and drain."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gevent
import pytest
from fake_runs import FakeProcess, FakeRun
from gevent.event import Event
from locust import LoadTestShape, User
from locust.env import Environment
from locust.runners import MasterRunner, Runner

from inferload.base.errors import UsageError
from inferload.run.master.lifecycle.phases import LoadStage


class Process(FakeProcess):
    """A process whose run has no load before the test starts users; records calls of Locust and of the run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path, **options: Any) -> None:
        self.locust: list[int] = []
        self.starts: list[gevent.Greenlet] = []  # in which Locust's start was called
        self.while_starting: int | None = None  # users of a start by a listener within a start
        self.while_starting_s = 0.0  # duration of a start
        self.began: list[int] = []  # users whose start was not ended
        self.may_end = Event()
        super().__init__(monkeypatch, folder, **options)

    def reach(self, instant: str) -> None:
        if instant == "cold awaits its load":
            self.may_end.wait()

    def start_users(self, users: int, spawn_rate: float, *, wait: bool, user_classes: Any) -> None:
        self.locust.append(users)
        self.starts.append(gevent.getcurrent())
        newer, self.while_starting = self.while_starting, None
        if newer is not None:
            self.controller.start(newer, 1.0)
        gevent.sleep(self.while_starting_s)
        self.began.append(users)

    def await_load(self) -> FakeRun:
        """Begin a run; return it when it is prepared."""
        self.controller.start(4, 1.0)
        with gevent.Timeout(5):
            while not self.runs or self.run.start_users is None:
                gevent.sleep(0.01)
        return self.run

    def begin_load(self) -> FakeRun:
        """Begin a run with four users; return it."""
        run = self.await_load()
        run.start_users(4, 1.0)
        return run

    def end(self) -> None:
        """Let the run end, and wait for that."""
        self.may_end.set()
        with gevent.Timeout(5):
            while self.controller.under_way:
                gevent.sleep(0.01)


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Process]:
    process = Process(monkeypatch, tmp_path)
    yield process
    process.while_starting_s = 0.0
    process.end()


def test_users_requested_before_the_load_are_started(process: Process) -> None:
    run = process.await_load()
    process.controller.start(8, 1.0)
    run.start_users(4, 1.0)
    assert (process.locust, run.changes) == ([8], [(8, "hand")])
    run.start_users(6, 1.0)  # a step of the load
    assert process.locust == [8, 6]


def test_users_requested_during_the_preparation_are_started(process: Process) -> None:
    process.controller.start(4, 1.0)
    assert process.controller.preparing
    process.controller.start(8, 1.0)
    run = process.await_load()
    assert not process.controller.preparing
    run.start_users(4, 1.0)
    assert (len(process.runs), process.locust) == (1, [4])  # `await_load` requested four users after the eight


def test_a_run_after_one_that_was_stopped_begins_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    process = Process(monkeypatch, tmp_path, headless=False)
    began: list[int] = []
    process.environment.shape_class = SimpleNamespace(reset_time=lambda: began.append(1))
    process.begin_load()
    process.controller.request_stop("the web UI")
    process.end()
    process.controller.start(5, 1.0)
    process.end()
    assert [len(run.stops) for run in process.runs] == [1, 0]
    assert (began, len(process.locust)) == ([1, 1], 2)


def test_the_time_of_a_shape_counts_from_the_start_of_the_load(process: Process) -> None:
    began: list[int] = []
    process.environment.shape_class = SimpleNamespace(reset_time=lambda: began.append(1))
    run = process.await_load()
    assert began == []
    run.start_users(4, 1.0)
    run.start_users(6, 1.0)  # a step of the load
    assert began == [1]


def test_a_newer_number_of_users_is_not_overridden(process: Process) -> None:
    run = process.await_load()
    process.controller.start(8, 1.0)
    process.while_starting = 12
    run.start_users(4, 1.0)
    assert (process.locust, run.changes) == ([8, 12], [(8, "hand"), (12, "hand")])


def steered_start(process: Process) -> gevent.Greenlet:
    """Begin a start of five users by hand that does not end by itself; later starts take no time."""
    process.while_starting_s = 60.0
    process.run.steering.start_users(5, 1.0)
    gevent.sleep(0)
    process.while_starting_s = 0.0
    return process.starts[-1]


def test_a_change_by_hand_ends_the_starts_in_progress(process: Process) -> None:
    """An earlier start of Locust's master that is still in progress would overwrite the number of users."""
    run = process.begin_load()
    assert run.starts_ended == 0
    steered = steered_start(process)
    assert run.starts_ended == 1
    process.controller.start(6, 1.0)
    gevent.sleep(0)
    assert (run.starts_ended, steered.dead, process.locust) == (2, True, [4, 5, 6])


def test_a_step_of_the_load_ends_a_start_by_hand(process: Process) -> None:
    run = process.begin_load()
    steered = steered_start(process)
    run.start_users(6, 1.0)
    gevent.sleep(0)
    assert (steered.dead, process.locust) == (True, [4, 5, 6])


def test_a_start_by_a_listener_of_a_start_in_progress_is_not_ended(process: Process) -> None:
    """Locust fires `spawning_complete` within its start."""
    run = process.begin_load()
    process.while_starting, process.while_starting_s = 12, 0.01
    run.steering.start_users(5, 1.0)
    gevent.sleep(0)
    steered = process.starts[1]
    steered.join(1)
    assert (steered.dead, steered.value) == (True, None)
    assert (process.locust, process.began) == ([4, 5, 12], [4, 12, 5])


def test_a_change_by_the_shape_greenlet_is_marked_as_shape(process: Process) -> None:
    run = process.begin_load()
    process.controller.start(5, 1.0)
    process.runner.shape_greenlet = gevent.getcurrent()
    process.controller.start(6, 1.0)
    process.runner.shape_greenlet = None
    assert run.changes == [(5, "hand"), (6, "shape")]


@pytest.mark.parametrize("awaited", [False, True])
@pytest.mark.parametrize(("users", "warnings"), [(4, 0), (5, 1)])
def test_a_start_during_the_drain_logs_a_warning(
    users: int, warnings: int, awaited: bool, process: Process, caplog: pytest.LogCaptureFixture
) -> None:
    """Locust itself starts the current users again when a worker leaves."""
    run = process.await_load() if awaited else process.begin_load()
    process.locust.clear()
    process.runner.target_user_count = 4
    run.state.end.enter(LoadStage.DRAINING)  # of a run that awaits its load: it was stopped before its first users
    caplog.clear()
    process.controller.start(users, 1.0)
    assert [record.message for record in caplog.records] == warnings * [
        "the run is draining; start again after its end"
    ]
    assert process.locust == []


def test_a_shape_changes_no_users_after_the_load(process: Process, caplog: pytest.LogCaptureFixture) -> None:
    run = process.begin_load()
    process.locust.clear()
    run.state.end.enter(LoadStage.DRAINING)
    process.runner.shape_greenlet = gevent.getcurrent()
    caplog.clear()
    process.controller.start(7, 1.0)
    process.runner.shape_greenlet = None
    assert (process.locust, run.changes, caplog.records) == ([], [], [])


def test_the_load_can_be_changed_from_its_beginning_to_its_end(process: Process) -> None:
    controller = process.controller
    with pytest.raises(UsageError, match="no run is in progress"):
        controller.steered_run()
    run = process.await_load()
    with pytest.raises(UsageError, match="has not begun"):
        controller.steered_run()
    run.start_users(4, 1.0)
    assert controller.steered_run() is run  # type: ignore[comparison-overlap]
    run.state.end.enter(LoadStage.DRAINING)
    with pytest.raises(UsageError, match="draining"):
        controller.steered_run()
    process.end()
    with pytest.raises(UsageError, match="no run is in progress"):
        controller.steered_run()


class _MasterWithoutNetwork(MasterRunner):  # type: ignore[misc]  # Locust has no types
    def __init__(self, environment: Environment) -> None:
        Runner.__init__(self, environment)
        self.clients = {}


class _Shape(LoadTestShape):  # type: ignore[misc]  # Locust has no types
    """Number of users that changes with each tick."""

    users = 0

    def tick(self) -> tuple[int, float]:
        self.users += 1
        return self.users, 1.0


@pytest.mark.parametrize("stopped", [False, True])
def test_a_shape_ends_with_a_run_that_gets_no_load(
    stopped: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Locust's own stop has no effect on a master before the first users."""
    environment = Environment(shape_class=_Shape())
    runner = environment.runner = _MasterWithoutNetwork(environment)
    process = Process(monkeypatch, tmp_path, headless=False, environment=environment)
    checks: list[int] = []

    def refuse(_spec: Any) -> None:
        checks.append(1)
        if stopped:
            process.controller.request_stop("the web UI")
        gevent.sleep(0.05)
        raise UsageError("no server")

    process.check_server = refuse  # type: ignore[method-assign]
    runner.start_shape()
    shape = runner.shape_greenlet
    shape.join(1.5)  # Locust calls `tick` once a second
    assert shape.dead
    assert (checks, runner.shape_greenlet, runner.shape_last_tick) == ([1], None, None)


def test_a_start_by_the_page_ends_with_the_load(process: Process) -> None:
    """A ramp on Locust's page is a start of Locust's master, which ends only with its greenlet."""
    process.begin_load().request_stop("the web UI")
    start = gevent.spawn(gevent.sleep, 60.0)
    process.environment.web_ui = SimpleNamespace(_swarm_greenlet=start, stop=lambda: None)
    gevent.sleep(0)
    assert not start.dead
    process.end()
    assert start.dead


def test_a_run_without_users_has_no_statistics_of_the_previous_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Locust clears its statistics only when it starts the first users."""
    environment = Environment(user_classes=[User])
    runner = environment.create_local_runner()
    environment.events.request.fire(
        request_type="GET", name="/", response_time=5, response_length=0, exception=RuntimeError("x")
    )
    runner.log_exception("local", "boom", "traceback")
    counts = []

    def write_history() -> None:
        counts.append((runner.stats.total.num_requests, *map(len, (runner.stats.errors, runner.exceptions))))
        raise OSError("ends the test")

    process = Process(monkeypatch, tmp_path, headless=False, environment=environment)
    process.write_history = write_history  # type: ignore[method-assign]
    process.controller.start(4, 1.0)
    process.end()
    assert (counts, process.run.closed) == ([(0, 0, 0)], True)
    assert "ends the test" in (process.controller.trouble or "")
    runner.quit()


def test_the_link_to_the_latest_run_is_not_to_a_refused_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The directory of a run whose workers are not ready is removed."""
    process = Process(monkeypatch, tmp_path, headless=False)
    process.begin_load()
    process.end()

    def prepare_run() -> None:
        raise UsageError("not ready")

    process.prepare_run = prepare_run  # type: ignore[method-assign]
    process.controller.start(4, 1.0)
    process.end()
    first, second = (run.directory.path for run in process.runs)
    assert (first.parent / "latest").readlink() == Path(first.name)
    assert (first.exists(), second.exists()) == (True, False)
    assert process.controller.trouble == "not ready"


def test_a_refused_start_leaves_the_result_of_the_last_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    process = Process(monkeypatch, tmp_path, headless=False)
    process.begin_load()
    process.end()
    result = process.controller.execution.result
    assert result is not None

    def refuse(_spec: Any) -> Any:
        raise UsageError("no server")

    process.check_server = refuse  # type: ignore[method-assign]
    process.controller.start(4, 1.0)
    process.end()
    assert (process.controller.trouble, process.controller.execution.result) == ("no server", result)


def test_a_run_that_writes_its_report_takes_no_start(
    process: Process, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    phases: list[str | None] = []
    controller = process.controller

    def conclude(instant: str) -> None:
        if instant == "cold is concluded":
            phases.append(controller.writing)
            controller.start(9, 1.0)

    process.begin_load()
    monkeypatch.setattr(process, "reach", conclude)
    process.end()
    assert (phases, controller.writing, controller.ending) == (["writing the report"], None, None)
    assert "the run is writing the report; start again after its end" in caplog.messages
