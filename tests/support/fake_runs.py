"""A master process for tests of the controller: its runs have no workers, no server and no figures."""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gevent
import pytest
import summaries

from inferload.locust_adapters.process import WorkerCount
from inferload.results.verdict.outcome import FAILED, SIGNAL_CODES, Policy
from inferload.run.master.controller import Controller
from inferload.run.master.end_report import EndReport
from inferload.run.master.finish import RunResult
from inferload.run.master.lifecycle.phases import LoadStage, RunEnd
from inferload.run.process.run_spec import LoadOptions, RunOptions
from inferload.scenario.overrides import parse_settings


class FakeRun:
    """A run that only reaches its instants, as "cold loads"; records what the controller asks of it."""

    def __init__(self, process: "FakeProcess", setup: Any) -> None:
        self.setup = setup
        self.spec, self.directory, self.arm = setup.preflight.spec, setup.directory, setup.arm
        self.changes: list[tuple[int, str]] = []
        self.stops: list[str] = []
        self.starts_ended = 0
        self.closed = False
        end = RunEnd(SimpleNamespace(add=lambda *words, **facts: None))  # type: ignore[arg-type]
        self.state, self.stop = SimpleNamespace(end=end), end.stop
        self.aborts = 0
        self.load = self
        self.steering = SimpleNamespace(change_users=self.change_users)
        self.inbox = SimpleNamespace(totals=SimpleNamespace(errors=SimpleNamespace(texts=[])))
        self.roster = SimpleNamespace(members=[])
        self.anchor, self.salt = None, "salt"
        self.preflight = SimpleNamespace(canaries=None)
        self.start_users: Any = None  # the controller's function
        self._process = process

    @property
    def ending(self) -> bool:
        return self.stop.is_set() or self.state.end.over

    def change_users(self, users: int, by: str = "hand") -> None:
        self.changes.append((users, by))

    def request_stop(self, reason: str, *, early: bool = False) -> None:
        self.stops.append(reason)
        self.state.end.request_stop(reason, early=early)

    def prepare(self, check_stop: Any) -> None:
        self._process.prepare_run()

    def __enter__(self) -> "FakeRun":
        return self

    def __exit__(self, *_error: object) -> None:
        pass

    def begin(self, start_users: Any) -> int:
        self.start_users = start_users
        self._process.reach(f"{self.arm} awaits its load")
        return 0

    def warm_up(self, start_ns: int) -> int:
        if not self.ending:
            self.start_users(self.spec.users, self.spec.spawn_per_s)
        return start_ns

    def measure(self, start_ns: int, measure_ns: int, start_users: Any) -> int:
        self._process.reach(f"{self.arm} loads")
        return measure_ns

    def drain(self, end_ns: int) -> None:
        self.state.end.enter(LoadStage.DRAINING)
        self._process.reach(f"{self.arm} drains")

    def gather(self) -> None:
        self.state.end.enter(LoadStage.DELIVERING)
        self._process.reach(f"{self.arm} delivers")

    def end(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True

    def end_start(self) -> None:
        self.starts_ended += 1

    def abort(self) -> None:
        self.aborts += 1


class FakeProcess:
    """A controller with fakes at its boundary: Locust below, the parts of a run above."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        folder: Path,
        *,
        headless: bool = True,
        arm: str = "cold",
        on_stop_passes: bool = False,
        environment: Any = None,
        autoquit: int = -1,
    ) -> None:
        monkeypatch.chdir(folder)
        self.runs: list[FakeRun] = []
        self.workers_awaited: list[str] = []  # arms of the passes of which workers were awaited
        self.summaries: dict[str, Any] = {}
        self.environment = environment or self._environment()
        self.environment.parsed_options = SimpleNamespace(headless=headless, autostart=autoquit >= 0, autoquit=autoquit)
        self.runner = self.environment.runner
        self._arms = ("warming", "warm") if arm == "warm" else ("cold", "warm")
        module = "inferload.run.master.execution."
        for name, fake in {
            "worker_setup.wait_for_workers": self._wait_for_workers,
            "preflight": lambda spec, own: self.check_server(spec),
            "MasterRun": self._new_run,
            "HistoryWriter": lambda *arguments: self.write_history(),
            "_live": lambda run: SimpleNamespace(over=True, close=lambda: None),
            "_progress": lambda run, status_lines: nullcontext(),
            "finish.begin": lambda run: None,
            "finish.conclude": lambda run, errors: self._conclude(run),
        }.items():
            monkeypatch.setattr(f"{module}{name}", fake)
        monkeypatch.setattr(EndReport, "concluded", lambda report, result: None)
        own: Any = SimpleNamespace(
            policy=Policy(on_stop_passes=on_stop_passes),
            outputs=SimpleNamespace(write=self._write),
            run_dir=folder / "chat" if headless else None,
            runs_folder=folder / "runs",
            writing="writing the report",
        )
        settings = parse_settings([f"cache.arm={arm}", "phases.measure_s=10"])
        self.controller = Controller(
            self.environment,
            own,
            lambda environment: RunOptions("chat-open", "http://127.0.0.1:1", settings=settings),
            LoadOptions(None, None, None, settings),
            WorkerCount(0, None),
        )
        self.controller.process.await_scrape = lambda: self.reach("last scrape")

    @property
    def run(self) -> FakeRun:
        """The latest run."""
        return self.runs[-1]

    # -- what tests override

    def reach(self, instant: str) -> None:
        """Reach an instant of a run: "cold prepared", "cold awaits its load", "cold loads", "cold drains" and so on."""

    def start_users(self, users: int, spawn_rate: float, *, wait: bool, user_classes: Any) -> None:
        """Locust's own start."""

    def check_server(self, spec: Any) -> Any:
        """Return the preflight of a run."""
        return SimpleNamespace(spec=spec)

    def prepare_run(self) -> None:
        """Set up the workers of a run."""

    def write_history(self) -> Any:
        """Return the writer of Locust's history."""
        return SimpleNamespace(finish=lambda texts: None, errors=[])

    def exit_code(self, run: FakeRun) -> int:
        """Return the exit code of a run."""
        return 0

    # -- fakes

    def _environment(self) -> Any:
        runner = SimpleNamespace(
            start=self.start_users,
            stop=lambda: self.reach("users stop"),
            quit=lambda: self.reach("process ends"),
            register_message=lambda kind, listen: None,
            stats=SimpleNamespace(clear_all=lambda: None),
            state="ready",
            target_user_count=0,
            shape_greenlet=None,
        )
        return SimpleNamespace(
            runner=runner,
            events=SimpleNamespace(quit=SimpleNamespace(add_listener=lambda listener: None)),
            process_exit_code=None,
            shape_class=None,
            web_ui=None,
        )

    def _wait_for_workers(self, *_arguments: Any) -> None:
        arm = self._arms[len(self.workers_awaited)] if len(self.workers_awaited) < len(self._arms) else "cold"
        self.workers_awaited.append(arm)
        self.reach(f"{arm} prepared")

    def _new_run(self, setup: Any, _runner: Any) -> FakeRun:
        self.runs.append(FakeRun(self, setup))
        return self.run

    def _conclude(self, run: FakeRun) -> RunResult:
        self.reach(f"{run.arm} is concluded")
        outcome = {"state": "passed", "headline": "", "exit_code": self.exit_code(run)}
        return RunResult(run.directory.path, summaries.summary({"outcome": outcome}))

    def _write(self, summaries: dict[str, Any]) -> None:
        self.summaries = summaries


STEP_S = 0.005  # between two instants of a run


class ActingProcess(FakeProcess):
    """A process whose passes take time. `at`: the instant at which `act` is called, as "warm drains"."""

    def __init__(self, at: str, act: Callable[[Controller], None], *, cold_code: int = 0, **options: Any) -> None:
        self.at, self.act = at, act
        self.acting: list[gevent.Greenlet] = []  # greenlet of `act`
        self.instants: list[str] = []
        self.started: list[int] = []  # users
        self.cold_code = cold_code
        super().__init__(**options)

    def reach(self, instant: str) -> None:
        self.instants.append(instant)
        if instant == self.at and self.instants.count(instant) == 1:
            self.acting.append(gevent.spawn(self.act, self.controller))
        gevent.sleep(STEP_S)

    def start_users(self, users: int, spawn_rate: float, *, wait: bool, user_classes: Any) -> None:
        self.started.append(users)

    def exit_code(self, run: FakeRun) -> int:
        early_by = run.state.end.early_by
        if early_by is not None:
            return SIGNAL_CODES.get(early_by, FAILED)
        return self.cold_code if run.arm == "cold" else 0

    def execute(self) -> int | None:
        """Execute all passes; return the exit code."""
        self.controller.start(4, 1.0)
        with gevent.Timeout(20):
            while self.controller.under_way:
                gevent.sleep(STEP_S)
        gevent.joinall(self.acting, 5)
        gevent.sleep(5 * STEP_S)  # a headless process waits for the last scrape
        return self.environment.process_exit_code  # type: ignore[no-any-return]
