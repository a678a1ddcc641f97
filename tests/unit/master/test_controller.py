"""The master's control of users: start, load shape, changes and drain."""

from types import SimpleNamespace
from typing import Any

import gevent
import pytest
from gevent.event import Event

from inferload.master.controller import Controller
from inferload.master.locust_users import LocustUsers


class StubController:
    """A controller before the load of a run; records calls of Locust and of the run."""

    def __init__(self) -> None:
        self.locust: list[int] = []
        self.changes: list[int] = []
        self.changed_by: list[str] = []
        self.shape_began: list[int] = []
        self.while_starting: int | None = None
        self.runner = SimpleNamespace(target_user_count=0, shape_greenlet=None, start=self.locust_start, stop=None)
        self.controller = controller = Controller.__new__(Controller)
        values: dict[str, Any] = {
            "run": SimpleNamespace(stop=SimpleNamespace(is_set=bool), change_users=self.change_users),
            "preparing": False,
            "_load_awaited": True,
            "_later": None,
            "_users": LocustUsers(SimpleNamespace(runner=self.runner), lambda: None, lambda: None),
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


def test_a_change_by_the_shape_greenlet_is_marked_as_shape() -> None:
    stub = StubController()
    stub.controller._start_users(4, 1.0)
    stub.controller.start(5, 1.0)
    stub.runner.shape_greenlet = gevent.getcurrent()
    stub.controller.start(6, 1.0)
    assert (stub.changes, stub.changed_by) == ([5, 6], ["hand", "shape"])


@pytest.mark.parametrize(("users", "warnings"), [(4, 0), (5, 1)])
def test_a_start_during_the_drain_logs_a_warning(users: int, warnings: int, caplog: pytest.LogCaptureFixture) -> None:
    """Locust itself starts the current users again when a worker leaves."""
    stub = StubController()
    stub.controller._load_awaited = False
    stub.runner.target_user_count = 4
    stub.controller.run = SimpleNamespace(stop=SimpleNamespace(is_set=lambda: True))  # type: ignore[assignment]
    stub.controller.start(users, 1.0)
    assert [record.message for record in caplog.records] == warnings * [
        "the run is draining; start again after its end"
    ]
    assert stub.locust == []
