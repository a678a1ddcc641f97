"""The controller's runs of one specification, cold and warm: exit codes, and stops between two runs."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gevent
import pytest
import summaries
from gevent.event import Event

from inferload.locust.web import live
from inferload.results.verdict.outcome import FAILED, SIGNAL_CODES, Policy
from inferload.run.master.controller import Controller
from inferload.run.master.end_report import EndReport
from inferload.run.master.finish import RunResult
from inferload.run.master.lifecycle.phases import RunEnd
from inferload.scenario.scenario import Cache

_STEP_S = 0.02


class StubPasses:
    """A controller whose runs only pass time. `at`: the instant at which `act` is called, as "warm drains"."""

    def __init__(self, at: str, act: Callable[[Controller], None], *, arm: str = "both", **options: Any) -> None:
        self.at, self.act = at, act
        self.acting: list[gevent.Greenlet] = []  # greenlet of `act`
        self.instants: list[str] = []
        self.stops: list[str] = []  # arms of the runs that received a request to stop
        self.cold_code = options.get("cold_code", 0)
        self.headless = options.get("headless", True)
        policy = Policy(on_stop_passes=options.get("on_stop_passes", False))
        self.environment = SimpleNamespace(
            parsed_options=SimpleNamespace(headless=self.headless),
            events=SimpleNamespace(quit=SimpleNamespace(add_listener=lambda listener: None)),
            process_exit_code=None,
            shape_class=None,
            web_ui=None,
        )
        own = SimpleNamespace(policy=policy, outputs=SimpleNamespace(write=self.write), run_dir=None)
        self.summaries: dict[str, Any] = {}
        self.spec = SimpleNamespace(
            scenario=SimpleNamespace(
                cache=Cache.model_validate({"arm": arm}), phases=SimpleNamespace(drain_s=5), ends_by_itself=True
            )
        )
        self.controller = controller = Controller.__new__(Controller)
        values: dict[str, Any] = {
            **dict.fromkeys(("run", "latest", "result", "live", "trouble", "_later", "_stopped_before", "_autoquit_s")),
            "_last_scrape": None,
            "preparing": True,
            **dict.fromkeys(("_load_awaited", "_leaving", "_shutting_down", "_done"), False),
            "environment": self.environment,
            "_own": own,
            "_end_report": EndReport(self.environment, own),  # type: ignore[arg-type]
            "_headless": self.headless,
            "_load_begun": Event(),
            "_idle": Event(),
            "_runner": SimpleNamespace(quit=lambda: None, shape_greenlet=None),
            "_users": SimpleNamespace(
                stop=lambda: self.reach("users stop"), end_steered_start=lambda: None, in_shape=False, classes=None
            ),
            "await_scrape": lambda: self.reach("last scrape"),
            "_path": lambda spec, todo: Path("/x/run"),
            "_prepare": self.prepare,
            "_conduct": self.conduct,
        }
        for name, value in values.items():
            setattr(controller, name, value)

    def write(self, summaries: dict[str, Any]) -> None:
        self.summaries = summaries

    def reach(self, instant: str) -> None:
        self.instants.append(instant)
        if instant == self.at and self.instants.count(instant) == 1:
            self.acting.append(gevent.spawn(self.act, self.controller))
        gevent.sleep(_STEP_S)

    def prepare(self, spec: Any, path: Path, current: Any, earlier: Any) -> Any:
        self.reach(f"{current.arm} prepared")
        end = RunEnd(SimpleNamespace(add=lambda *words, **facts: None))  # type: ignore[arg-type]
        if self.controller._stopped_before is not None:
            from inferload.run.master.controller import _StoppedEarly

            raise _StoppedEarly

        def request_stop(reason: str, *, early: bool = False) -> None:
            self.stops.append(current.arm)
            end.request_stop(reason, early=early)

        run = SimpleNamespace(
            spec=spec,
            stop=end.stop,
            state=SimpleNamespace(end=end),
            salt="salt",
            request_stop=request_stop,
            arm=current.arm,
        )
        self.controller.run = run  # type: ignore[assignment]
        return run

    def conduct(self, run: Any) -> RunResult:
        self.reach(f"{run.arm} loads")
        end = run.state.end
        end.over = True
        self.reach(f"{run.arm} drains")
        code = self.cold_code if run.arm == "cold" else 0
        if end.early_by is not None:
            code = SIGNAL_CODES.get(end.early_by, FAILED)
        outcome = {"state": "passed", "headline": "", "exit_code": code}
        return RunResult(Path(f"/x/{run.arm}"), summaries.summary({"outcome": outcome}), "engine")

    def execute(self) -> int | None:
        """Execute all runs; return the exit code."""
        executing = gevent.spawn(self.controller._execute, self.spec)
        executing.join(5)
        assert executing.successful()
        return self.environment.process_exit_code  # type: ignore[no-any-return]


def _sigterm(controller: Controller) -> None:
    controller.interrupt("SIGTERM")


@pytest.mark.parametrize(("headless", "code"), [(True, 143), (False, None)])
def test_no_run_begins_after_a_signal(headless: bool, code: int | None) -> None:
    passes = StubPasses("", _sigterm, headless=headless)
    controller = passes.controller
    controller.preparing = False
    controller._idle.set()
    controller._quit = lambda: None  # type: ignore[method-assign]
    for _ in range(2):
        controller.interrupt("SIGTERM")
    controller.start(4, 1.0)
    assert not controller.under_way
    assert passes.environment.process_exit_code == code
    assert list(passes.summaries) == (["run"] if headless else [])


def test_a_signal_after_the_run_does_not_change_its_outcome() -> None:
    passes = StubPasses("", _sigterm, arm="cold", cold_code=1)
    passes.execute()
    passes.controller.interrupt("SIGTERM")
    assert passes.environment.process_exit_code == 1
    assert list(passes.summaries) == ["cold"]


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
    arm: str, at: str, options: dict[str, Any], code: int
) -> None:
    passes = StubPasses(at, _sigterm, arm=arm, **options)
    assert passes.execute() == code
    assert at in passes.instants
    assert ("warm loads" in passes.instants) == (at == "warm drains")


def test_the_outputs_state_that_the_second_pass_did_not_run() -> None:
    passes = StubPasses("cold drains", _sigterm)
    passes.execute()
    assert list(passes.summaries) == ["cold", "run"]
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
    at: str, options: dict[str, Any], code: int
) -> None:
    """Locust ends a headless master after its last worker."""
    passes = StubPasses(at, lambda controller: controller.quitting(None), **options)
    passes.controller._runner.clients, passes.controller._runner.worker_count = {}, 0
    assert passes.execute() == code
    assert at in passes.instants


def _steer_stop(controller: Controller) -> None:
    live.steer(controller, {"do": "stop"})


@pytest.mark.parametrize("stop", [_web_stop, _steer_stop])
@pytest.mark.parametrize("at", ["cold loads", "cold drains", "users stop", "last scrape", "warm prepared"])
def test_a_stop_by_the_web_page_before_the_second_pass_prevents_it(at: str, stop: Callable[[Controller], None]) -> None:
    passes = StubPasses(at, stop, headless=False)
    passes.execute()
    assert at in passes.instants
    assert "warm loads" not in passes.instants
    assert passes.stops == (["cold"] if at.startswith("cold l") or at == "cold drains" else [])


def test_a_change_of_users_between_two_passes_is_for_the_second() -> None:
    passes = StubPasses("users stop", lambda controller: controller.start(7, 1.0), headless=False)
    passes.execute()
    assert passes.controller._later == (7, 1.0)


def test_both_passes_run_without_a_stop() -> None:
    passes = StubPasses("", _web_stop, cold_code=1)
    assert passes.execute() == 1
    assert [instant for instant in passes.instants if "loads" in instant] == ["cold loads", "warm loads"]


def test_no_run_begins_while_a_headless_process_waits_for_the_last_scrape() -> None:
    """Locust's users still run, so that a LoadTestShape and a worker that joins start users."""
    passes = StubPasses("last scrape", lambda controller: controller.start(5, 1.0), arm="cold")
    passes.controller._resolved = lambda *_load: passes.spec  # type: ignore[method-assign,assignment]
    passes.execute()
    gevent.sleep(_STEP_S)
    assert "last scrape" in passes.instants
    assert (passes.instants.count("cold prepared"), passes.controller.under_way) == (1, False)


@pytest.mark.parametrize("at", ["cold loads", "last scrape"])
def test_a_process_that_locust_ends_waits_once_for_the_last_scrape(at: str) -> None:
    """As after `runner.quit()` by a LoadTestShape or a task."""

    def quit_locust(controller: Controller) -> None:
        controller.quitting(None)
        passes.instants.append("quit")

    def await_scrape() -> None:
        passes.reach("last scrape")
        passes.instants.append("scraped")

    passes = StubPasses(at, quit_locust, arm="cold")
    passes.controller.await_scrape = await_scrape
    passes.execute()
    gevent.joinall(passes.acting, 5)
    assert passes.instants[-3:] == ["last scrape", "scraped", "quit"]
    assert passes.instants.count("last scrape") == 1


def test_a_signal_ends_the_wait_for_the_last_scrape() -> None:
    def quit_and_interrupt(controller: Controller) -> None:
        quitting = gevent.spawn(controller.quitting, None)
        gevent.sleep(_STEP_S)
        waited.append(not quitting.dead)
        controller.interrupt("SIGTERM")
        quitting.join(1)
        waited.append(not quitting.dead)

    waited: list[bool] = []
    passes = StubPasses("last scrape", quit_and_interrupt, arm="cold")
    passes.controller.await_scrape = lambda: (passes.reach("last scrape"), gevent.sleep(60))[0]
    passes.execute()
    gevent.joinall(passes.acting, 5)
    assert waited == [True, False]
