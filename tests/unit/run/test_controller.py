"""The master's control of users: start, load shape, changes and drain."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gevent
import pytest
from gevent.event import Event
from locust import LoadTestShape, User
from locust.env import Environment
from locust.runners import MasterRunner, Runner

from inferload.base.errors import UsageError
from inferload.locust_adapters.process import WorkerCount
from inferload.run.master.controller import Controller, _StoppedEarly
from inferload.run.master.lifecycle import cache_passes
from inferload.run.master.locust_users import LocustUsers


class StubController:
    """A controller before the load of a run; records calls of Locust and of the run."""

    def __init__(self) -> None:
        self.locust: list[int] = []
        self.changes: list[int] = []
        self.changed_by: list[str] = []
        self.ended: list[str] = []  # starts that were ended for another one
        self.shape_began: list[int] = []
        self.while_starting: int | None = None  # users of a start by a listener within a start
        self.while_starting_s = 0.0  # duration of a start
        self.began: list[int] = []  # users whose start was not ended
        self.runner = SimpleNamespace(target_user_count=0, shape_greenlet=None, start=self.locust_start, stop=None)
        self.controller = controller = Controller.__new__(Controller)
        values: dict[str, Any] = {
            "run": SimpleNamespace(
                ending=False,
                change_users=self.change_users,
                load=SimpleNamespace(end_start=lambda: self.ended.append("planned")),
            ),
            **dict.fromkeys(("preparing", "_leaving"), False),
            "_load_awaited": True,
            "_later": None,
            "_users": LocustUsers(SimpleNamespace(runner=self.runner, web_ui=None), lambda: None, lambda: None),
            "_runner": self.runner,
            "_load_begun": Event(),
            "environment": SimpleNamespace(shape_class=SimpleNamespace(reset_time=lambda: self.shape_began.append(1))),
        }
        for name, value in values.items():
            setattr(controller, name, value)

    def change_users(self, users: int, by: str = "hand") -> None:
        self.changes.append(users)
        self.changed_by.append(by)

    def locust_start(self, users: int, spawn_rate: float, *, wait: bool, user_classes: Any) -> None:
        self.locust.append(users)
        newer, self.while_starting = self.while_starting, None
        if newer is not None:
            self.controller.start(newer, 1.0)
        gevent.sleep(self.while_starting_s)
        self.began.append(users)


def test_users_requested_before_the_load_are_started() -> None:
    stub = StubController()
    stub.controller.start(8, 1.0)
    stub.controller._start_users(4, 1.0)
    assert (stub.locust, stub.changes) == ([8], [8])


def test_the_time_of_a_shape_counts_from_the_start_of_the_load() -> None:
    stub = StubController()
    assert not stub.controller._load_begun.is_set()
    stub.controller._start_users(4, 1.0)
    stub.controller._start_users(6, 1.0)  # a step of the load
    assert stub.controller._load_begun.is_set()
    assert stub.shape_began == [1]


def test_a_newer_number_of_users_is_not_overridden() -> None:
    stub = StubController()
    stub.controller.start(8, 1.0)
    stub.while_starting = 12
    stub.controller._start_users(4, 1.0)
    assert (stub.locust, stub.changes) == ([8, 12], [8, 12])


def steered_start(stub: StubController) -> gevent.Greenlet:
    """Begin a start of five users by hand that does not end by itself; later starts take no time."""
    stub.while_starting_s = 60.0
    stub.controller._users.steer(5, 1.0)
    gevent.sleep(0)
    stub.while_starting_s = 0.0
    steered = stub.controller._users._steered_start
    assert steered is not None
    return steered


def test_a_change_by_hand_ends_the_starts_in_progress() -> None:
    """An earlier start of Locust's master that is still in progress would overwrite the number of users."""
    stub = StubController()
    stub.controller._start_users(4, 1.0)
    assert stub.ended == []
    steered = steered_start(stub)
    stub.controller.start(6, 1.0)
    gevent.sleep(0)
    assert (stub.ended, steered.dead, stub.locust) == (["planned"], True, [4, 5, 6])


def test_a_step_of_the_load_ends_a_start_by_hand() -> None:
    stub = StubController()
    steered = steered_start(stub)
    stub.controller._start_users(6, 1.0)
    gevent.sleep(0)
    assert (steered.dead, stub.locust) == (True, [5, 6])


def test_a_start_by_a_listener_of_a_start_in_progress_is_not_ended() -> None:
    """Locust fires `spawning_complete` within its start."""
    stub = StubController()
    stub.controller._load_awaited = False
    stub.while_starting, stub.while_starting_s = 12, 0.01
    stub.controller._users.steer(5, 1.0)
    steered = stub.controller._users._steered_start
    assert steered is not None
    steered.join(1)
    assert steered.value is None
    assert (stub.locust, stub.began) == ([5, 12], [12, 5])


def test_a_change_by_the_shape_greenlet_is_marked_as_shape() -> None:
    stub = StubController()
    stub.controller._start_users(4, 1.0)
    stub.controller.start(5, 1.0)
    stub.runner.shape_greenlet = gevent.getcurrent()
    stub.controller.start(6, 1.0)
    assert (stub.changes, stub.changed_by) == ([5, 6], ["hand", "shape"])


@pytest.mark.parametrize("awaited", [False, True])
@pytest.mark.parametrize(("users", "warnings"), [(4, 0), (5, 1)])
def test_a_start_during_the_drain_logs_a_warning(
    users: int, warnings: int, awaited: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Locust itself starts the current users again when a worker leaves."""
    stub = StubController()
    stub.controller._load_awaited = awaited  # the run was stopped before its first users
    stub.runner.target_user_count = 4
    stub.controller.run = SimpleNamespace(ending=True)  # type: ignore[assignment]
    stub.controller.start(users, 1.0)
    assert [record.message for record in caplog.records] == warnings * [
        "the run is draining; start again after its end"
    ]
    assert stub.locust == []


def test_a_shape_changes_no_users_after_the_load(caplog: pytest.LogCaptureFixture) -> None:
    stub = StubController()
    stub.controller._load_awaited = False
    stub.controller.run = SimpleNamespace(ending=True)  # type: ignore[assignment]
    stub.runner.shape_greenlet = gevent.getcurrent()
    stub.controller.start(7, 1.0)
    assert (stub.locust, stub.changes, caplog.records) == ([], [], [])


@pytest.mark.parametrize("ending", [False, True])
def test_the_load_can_be_changed_until_its_end(ending: bool) -> None:
    stub = StubController()
    stub.controller._load_awaited = False
    stub.controller.environment.shape_class = None
    run: Any = stub.controller.run
    run.ending = ending
    if not ending:
        assert stub.controller.steered_run() is run
        return
    with pytest.raises(UsageError, match="draining"):
        stub.controller.steered_run()


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


@pytest.mark.parametrize("why", [UsageError("no server"), _StoppedEarly()])
def test_a_shape_ends_with_a_run_that_gets_no_load(why: Exception) -> None:
    """Locust's own stop has no effect on a master before the first users."""
    stub = StubController()
    controller = stub.controller
    environment = Environment(shape_class=_Shape())
    runner = environment.runner = _MasterWithoutNetwork(environment)
    runs: list[int] = []

    def refuse(*_arguments: Any) -> None:
        runs.append(1)
        gevent.sleep(0.05)
        raise why

    silent = SimpleNamespace(
        refused=lambda why: None, stopped_early=lambda *why: {}, write_outputs=lambda summaries: None
    )
    values: dict[str, Any] = {
        **dict.fromkeys(("run", "live", "_autoquit_s", "_stopped_before")),
        **dict.fromkeys(("_headless", "_leaving", "_shutting_down", "_load_awaited", "_done"), False),
        "environment": environment,
        "_runner": runner,
        "_users": LocustUsers(environment, controller.start, controller.stop),
        "_idle": Event(),
        "_resolved": lambda users, spawn_rate: None,
        "_execute_passes": refuse,
        "_end_report": silent,
    }
    for name, value in values.items():
        setattr(controller, name, value)
    runner.start_shape()
    shape = runner.shape_greenlet
    shape.join(1.5)  # Locust calls `tick` once a second
    assert shape.dead
    assert (runs, runner.shape_greenlet, runner.shape_last_tick) == ([1], None, None)


def test_a_start_by_the_page_ends_with_the_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ramp on Locust's page is a start of Locust's master, which ends only with its greenlet."""
    stub = StubController()
    controller = stub.controller
    starts = [gevent.spawn(gevent.sleep, 60.0)]
    web_ui = SimpleNamespace(_swarm_greenlet=starts[0])
    controller.environment = SimpleNamespace(web_ui=web_ui)
    controller._users = LocustUsers(SimpleNamespace(runner=stub.runner, web_ui=web_ui), lambda: None, lambda: None)
    controller._headless = True
    controller._end_report = SimpleNamespace(concluded=lambda result: None)  # type: ignore[assignment]
    in_load = []
    run: Any = SimpleNamespace(
        directory=SimpleNamespace(path="run"),
        anchor=None,
        totals=SimpleNamespace(errors=SimpleNamespace(texts=[])),
        conduct=lambda start_users: in_load.append(starts[0].dead),
    )
    history = SimpleNamespace(finish=lambda texts: None, errors=[])
    module = "inferload.run.master.controller."
    monkeypatch.setattr(f"{module}runners.clear_statistics", lambda runner: None)
    monkeypatch.setattr(f"{module}HistoryWriter", lambda *arguments: history)
    monkeypatch.setattr(f"{module}progress.begin", lambda run, status_lines: lambda: None)
    monkeypatch.setattr(f"{module}finish.begin", lambda run: None)
    monkeypatch.setattr(f"{module}finish.conclude", lambda run, errors: gevent.sleep(0))
    controller._conduct(run)
    assert (in_load, starts[0].dead) == ([False], True)


def test_a_run_without_users_has_no_statistics_of_the_previous_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Locust clears its statistics only when it starts the first users."""
    environment = Environment(user_classes=[User])
    runner = environment.create_local_runner()
    environment.events.request.fire(
        request_type="GET", name="/", response_time=5, response_length=0, exception=RuntimeError("x")
    )
    runner.log_exception("local", "boom", "traceback")
    counts = []

    def write_history(*_arguments: Any) -> None:
        counts.append((runner.stats.total.num_requests, *map(len, (runner.stats.errors, runner.exceptions))))
        raise OSError("ends the test")

    monkeypatch.setattr("inferload.run.master.controller.finish.begin", lambda run: None)
    monkeypatch.setattr("inferload.run.master.controller.HistoryWriter", write_history)
    controller = StubController().controller
    controller.environment, controller._runner = environment, runner
    run: Any = SimpleNamespace(directory=SimpleNamespace(path="run"), anchor=None, close=lambda: None)
    with pytest.raises(UsageError):
        controller._conduct(run)
    assert counts == [(0, 0, 0)]
    runner.quit()


def test_the_link_to_the_latest_run_is_not_to_a_refused_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The directory of a run whose workers are not ready is removed."""
    controller = StubController().controller
    values: dict[str, Any] = {
        **dict.fromkeys(("latest", "_stopped_before", "_admitted")),
        "_own": SimpleNamespace(run_dir=None),
        "_workers": WorkerCount(0, None),
    }
    for name, value in values.items():
        setattr(controller, name, value)
    refusals = [True, False]

    def prepare(check_stop: Any) -> None:
        if refusals.pop():
            raise UsageError("not ready")

    run = SimpleNamespace(prepare=prepare, close=lambda: None, steering=SimpleNamespace(), roster=[])
    spec: Any = SimpleNamespace(users=1, scenario=SimpleNamespace(open_loop=True))
    module = "inferload.run.master.controller."
    monkeypatch.setattr(f"{module}worker_setup.wait_for_workers", lambda *arguments: None)
    monkeypatch.setattr(f"{module}preflight", lambda spec, own: SimpleNamespace(spec=spec))
    monkeypatch.setattr(f"{module}RunSetup", lambda *arguments: None)
    monkeypatch.setattr(f"{module}MasterRun", lambda setup, runner: run)
    only = cache_passes.COLD
    controller._prepare(spec, tmp_path / "first", only, None)
    with pytest.raises(UsageError):
        controller._prepare(spec, tmp_path / "second", only, None)
    assert (tmp_path / "latest").readlink() == Path("first")
    assert not (tmp_path / "second").exists()
