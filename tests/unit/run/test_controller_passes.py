"""The controller's runs of one specification, cold and warm: exit codes, and stops between two runs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gevent
import pytest
from fake_runs import STEP_S, ActingProcess

from inferload.locust.web import live
from inferload.run.master.controller import Controller

PassesOf = Callable[..., ActingProcess]


@pytest.fixture
def passes_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> PassesOf:
    """Return a function that makes a process, given instant, act and options."""
    return lambda at, act, **options: ActingProcess(
        at, act, monkeypatch=monkeypatch, folder=tmp_path, **{"arm": "both"} | options
    )


def _sigterm(controller: Controller) -> None:
    controller.interrupt("SIGTERM")


def _web_stop(controller: Controller) -> None:
    controller.finish("the web UI")


@pytest.mark.parametrize(
    ("arm", "at", "options", "code"),
    [
        ("both", "cold loads", {}, 143),
        ("both", "cold drains", {}, 143),
        ("both", "cold drains", {"on_stop_passes": True}, 0),
        ("both", "cold drains", {"cold_code": 1}, 1),
        ("both", "cold drains", {"cold_code": 1, "on_stop_passes": True}, 1),
        ("both", "users stop", {"cold_code": 1}, 1),
        ("both", "warm prepared", {"cold_code": 1}, 1),
        ("both", "warm prepared", {"cold_code": 1, "on_stop_passes": True}, 1),
        ("both", "warm prepared", {"cold_code": 3}, 3),
        ("both", "warm prepared", {}, 143),
        ("warm", "warming drains", {}, 143),
        ("warm", "warming loads", {}, 143),
        ("both", "warm drains", {"cold_code": 1}, 1),  # after the end of the load, a signal changes nothing
        ("both", "warm drains", {}, 0),
    ],
)
def test_a_signal_between_two_passes_does_not_hide_that_the_second_did_not_run(
    arm: str, at: str, options: dict[str, Any], code: int, passes_of: PassesOf
) -> None:
    passes = passes_of(at, _sigterm, arm=arm, **options)
    assert passes.execute() == code
    assert at in passes.instants
    assert ("warm loads" in passes.instants) == (at == "warm drains")


def test_the_outputs_state_that_the_second_pass_did_not_run(passes_of: PassesOf) -> None:
    passes = passes_of("cold drains", _sigterm)
    passes.execute()
    assert list(passes.summaries) == ["chat", "run"]
    assert passes.summaries["run"].outcome.state == "stopped early"


@pytest.mark.parametrize(
    ("at", "options", "code"),
    [
        ("cold loads", {}, 1),
        ("cold drains", {}, 1),
        ("users stop", {}, 1),
        ("last scrape", {"on_stop_passes": True}, 1),
        ("warm prepared", {}, 1),
        ("warm prepared", {"cold_code": 3}, 3),
        ("warm loads", {"on_stop_passes": True}, 1),
        ("warm drains", {}, 0),
    ],
)
def test_the_end_of_every_worker_before_the_end_of_the_load_is_a_failure(
    at: str, options: dict[str, Any], code: int, passes_of: PassesOf
) -> None:
    """Locust ends a headless master after its last worker."""
    passes = passes_of(at, lambda controller: controller.quitting(None), **options)
    passes.runner.clients, passes.runner.worker_count = {}, 0
    assert passes.execute() == code
    assert at in passes.instants


def _steer_stop(controller: Controller) -> None:
    live.steer(controller, {"do": "stop"})


@pytest.mark.parametrize("stop", [_web_stop, _steer_stop])
@pytest.mark.parametrize("at", ["cold loads", "cold drains", "users stop", "last scrape", "warm prepared"])
def test_a_stop_by_the_web_page_before_the_second_pass_prevents_it(
    at: str, stop: Callable[[Controller], None], passes_of: PassesOf
) -> None:
    passes = passes_of(at, stop, headless=False)
    passes.execute()
    assert at in passes.instants
    assert "warm loads" not in passes.instants
    assert [run.arm for run in passes.runs if run.stops] == (["cold"] if at in ("cold loads", "cold drains") else [])


def test_a_change_of_users_between_two_passes_is_for_the_second(passes_of: PassesOf) -> None:
    passes = passes_of("users stop", lambda controller: controller.start(7, 1.0), headless=False)
    passes.execute()
    assert passes.started[1:] == [7]


def test_both_passes_run_without_a_stop(passes_of: PassesOf) -> None:
    passes = passes_of("", _web_stop, cold_code=1)
    assert passes.execute() == 1
    assert [instant for instant in passes.instants if "loads" in instant] == ["cold loads", "warm loads"]


@pytest.mark.parametrize("at", ["cold loads", "last scrape"])
def test_a_process_that_locust_ends_waits_once_for_the_last_scrape(at: str, passes_of: PassesOf) -> None:
    """As after `runner.quit()` by a LoadTestShape or a task."""

    def quit_locust(controller: Controller) -> None:
        controller.quitting(None)
        passes.instants.append("quit")

    def await_scrape() -> None:
        passes.reach("last scrape")
        passes.instants.append("scraped")

    passes = passes_of(at, quit_locust, arm="cold")
    passes.controller.process.await_scrape = await_scrape
    passes.execute()
    gevent.joinall(passes.acting, 5)
    instants = [instant for instant in passes.instants if instant != "process ends"]
    assert instants[-3:] == ["last scrape", "scraped", "quit"]
    assert passes.instants.count("last scrape") == 1


def test_a_signal_ends_the_wait_for_the_last_scrape(passes_of: PassesOf) -> None:
    def quit_and_interrupt(controller: Controller) -> None:
        quitting = gevent.spawn(controller.quitting, None)
        gevent.sleep(STEP_S)
        waited.append(not quitting.dead)
        controller.interrupt("SIGTERM")
        quitting.join(1)
        waited.append(not quitting.dead)

    waited: list[bool] = []
    passes = passes_of("last scrape", quit_and_interrupt, arm="cold")
    passes.controller.process.await_scrape = lambda: (passes.reach("last scrape"), gevent.sleep(60))[0]
    passes.execute()
    gevent.joinall(passes.acting, 5)
    assert waited == [True, False]
