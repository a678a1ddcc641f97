"""The master's side of the process: takes Locust's start, stop and quit over, and turns every way to end into one road.

Locust's `runner.start` is where the web UI, --headless, --autostart and the keyboard all come together, so that is what is
taken over; likewise `runner.stop`. Nothing else of the runner is touched.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import gevent
from flask import has_request_context
from gevent.event import Event

from inferload import rundir
from inferload.errors import UsageError
from inferload.locust.adapters import compat
from inferload.locust.adapters.csv_files import History
from inferload.machine import calibration
from inferload.master import finish as finale
from inferload.master import inbox, progress
from inferload.master.finish import RunResult
from inferload.master.lifecycle import cache_passes, worker_setup
from inferload.master.lifecycle.preflight import Preflight, preflight
from inferload.master.lifecycle.run import MasterRun
from inferload.master.lifecycle.run_state import RunDirectory
from inferload.process.run_spec import FormValues, GivenLoad, RunOptions, RunSpec, resolve
from inferload.process.settings import ProcessSettings
from inferload.results import ci
from inferload.verdict.outcome import OK, SIGNAL_CODES, USAGE, Early, State, gravest

logger = logging.getLogger(__name__)

CTRL_C = "Ctrl-C"
_LEVELS: dict[State, int] = {
    "failed": logging.ERROR,
    "stopped early": logging.WARNING,
    "invalid": logging.ERROR,
    "suspect": logging.WARNING,
    "passed": logging.INFO,
}
_EXPLAINED = 3  # lines of failures and reasons at the end of the log, which with report and outcome are its last five


class _NotBegun(Exception):
    """A stop was asked for while a run was being prepared."""


class Controller:
    """One per master or local process. `wish` says what the options and the form ask for at this moment."""

    _user_classes: Any = None  # of a LoadTestShape that names them

    def __init__(
        self,
        environment: Any,
        own: ProcessSettings,
        run_options: Callable[[], RunOptions],
        given: GivenLoad,
        expected_workers: int,
    ) -> None:
        self.environment = environment
        self.given = given
        self.run: MasterRun | None = None
        self.result: RunResult | None = None
        self.trouble: str | None = None  # why the last start could not be made
        self._own = own
        self._run_options = run_options
        self._expected_workers = expected_workers
        options = environment.parsed_options
        self._headless = bool(options.headless)
        # Of the run that --autostart begins; Locust counts it from an end by --run-time, which the controller takes over.
        self._autoquit_s: float | None = options.autoquit if options.autostart and options.autoquit >= 0 else None
        self.preparing = False  # a run is on its way, and its load has not begun
        self._load_awaited = False  # it is prepared, and its first users are still to be started
        self._later: tuple[int, float] | None = None  # users and spawn rate that were asked for until then
        self._stopped_before: str | None = None  # why it is to stop before it has begun
        self._load_begun = Event()  # or the run is over
        self._idle = Event()
        self._idle.set()
        self._leaving = False  # the process is to end once the run has
        self._shutting_down = False  # Locust is at it already
        self._admitted: tuple[RunSpec, Preflight] | None = None
        self._last_lines: list[tuple[int, str]] = []
        environment.events.quit.add_listener(self._log_rest)
        runner = environment.runner
        self._runner = runner
        self._locust_start, self._locust_stop = compat.take_over(runner, self.start, self.stop)
        compat.share_among(environment, self._members)
        inbox.attend(runner, lambda: self.run)

    # -- what Locust calls

    def start(
        self, user_count: int, spawn_rate: float, wait: bool = False, user_classes: Any = None, **_newer: Any
    ) -> None:
        """Begin a run; or, while one is under way, change its users. Options of newer versions of Locust are ignored."""
        self._user_classes = user_classes
        if self.preparing or self._load_awaited:
            self._later = user_count, spawn_rate
            logger.info("a run is being prepared; %d users are taken up when its load has begun", user_count)
            return
        if self.run is not None and self.run.stop.is_set():
            unchanged = user_count == self._runner.target_user_count
            if not unchanged or has_request_context():  # else it is Locust of itself: a worker has gone
                logger.warning("a run is being drained; start again once it is over")
            return
        if self.run is None:
            self._begin(self._spec(user_count, spawn_rate))
            if gevent.getcurrent() is self._runner.shape_greenlet:
                self._load_begun.wait()  # the time of a LoadTestShape counts from there
            return
        if user_count == self._runner.target_user_count:
            return  # Locust shares a lost worker's users out among the others; we do not raise anybody's load
        by_shape = gevent.getcurrent() is self._runner.shape_greenlet
        self.run.change_users(user_count, "shape" if by_shape else "hand")
        self._locust_start(user_count, spawn_rate, wait=wait, user_classes=user_classes)

    def stop(self, *arguments: Any, **options: Any) -> None:
        """End the run in good order, then let Locust stop its users."""
        if self._workers_are_silent() and not has_request_context():
            return  # Locust's own idea; a worker that is busy getting ready comes back, and a run knows whom it has lost
        by_shape = gevent.getcurrent() is self._runner.shape_greenlet
        self.finish("the end of the LoadTestShape" if by_shape else "the web UI")
        self._locust_stop(*arguments, **options)

    def quitting(self, environment: Any, **_others: Any) -> None:
        """Locust is about to end, whatever the reason: not before the run has."""
        self._shutting_down = True
        self.finish("the end of the process")

    @property
    def under_way(self) -> bool:
        """Whether there is a run, from its start on, when it is still being prepared."""
        return self.preparing or self.run is not None

    def _members(self) -> set[str] | None:
        """Locust's ids of the workers that take part in the run; None in a local one, and where there is none."""
        members = [] if self.run is None else self.run.roster.members
        return {member.client_id for member in members if member.client_id is not None} or None

    def _workers_are_silent(self) -> bool:
        return self.under_way and hasattr(self._runner, "clients") and self._runner.worker_count <= 0

    # -- ends

    def finish(self, reason: str) -> None:
        """Ask the run to stop, and wait until its files are written."""
        if self.run is not None:
            self.run.request_stop(reason)
        elif self.preparing:
            self._stopped_before = self._stopped_before or reason
        self._idle.wait()

    def interrupt(self, by: str) -> None:
        """End the process after a signal: the first drains the run, a Ctrl-C after it gives up what is in flight."""
        run = self.run
        self._leaving = True
        if run is None:
            self._stopped_before = self._stopped_before or by
            gevent.spawn(self._quit)
        elif not run.stop.is_set():
            logger.info(
                "%s: draining, at most %g s; press Ctrl-C %sto give up what is in flight",
                by,
                run.spec.scenario.phases.drain_s,
                "again " if by == CTRL_C else "",
            )
            planned = run.spec.scenario.ends_by_itself or not self._headless
            run.request_stop(by, early=planned)  # without a planned end a signal is the end
        elif by == CTRL_C:
            run.abort()

    # -- a run

    def admit(self, run_options: RunOptions) -> None:
        """Look whether a run of this wish can be made, before anything starts; UsageError says why not."""
        self.trouble = None
        try:
            spec = resolve(run_options)
            self._admitted = spec, preflight(spec, self._own)
        except UsageError as error:
            self.trouble = str(error)
            raise

    def form_values(self, scenario: str) -> FormValues:
        """The values that the start form shows for a scenario; UsageError if it cannot be loaded."""
        return self.given.form(self._run_options().program.load(scenario, self.given.settings))

    def options_for(self, users: int, spawn_rate: float) -> RunOptions:
        """Return the request that the options and the form express now."""
        return replace(self._run_options(), users=users, spawn_per_s=spawn_rate)

    def _spec(self, users: int, spawn_rate: float) -> RunSpec | UsageError:
        try:
            return resolve(self.options_for(users, spawn_rate))
        except UsageError as error:
            return error

    def _begin(self, spec: RunSpec | UsageError) -> None:
        self.preparing, self._later, self._stopped_before = True, None, None
        self._idle.clear()
        self._load_begun.clear()
        gevent.spawn(self._whole_run, spec)

    def _whole_run(self, spec: RunSpec | UsageError) -> None:
        self.trouble, self.result = None, None
        summaries: dict[str, Any] = {}
        try:
            self._runs(spec, summaries)
        except UsageError as error:
            self._refuse(str(error))
            summaries["run"] = ci.without_load("failed", f"not started: {error}", USAGE)
        except _NotBegun:
            summaries["run"] = self._not_begun(self._stopped_before or "")
        except Exception as error:  # the greenlet's boundary: an internal error ends the run with exit code 2
            logger.exception("the run broke")
            why = f"the run broke: {type(error).__name__}: {error}"
            self._refuse(why)
            summaries["run"] = ci.without_load("failed", why, USAGE)
        finally:
            self.preparing = self._load_awaited = False
            self.run = None
            self._write_outputs(summaries)
            self._load_begun.set()
            self._idle.set()
        if (self._headless or self._leaving) and not self._shutting_down:
            self._quit()
        elif self._autoquit_s is not None:
            gevent.spawn_later(self._autoquit_s, self._quit_if_idle)
            self._autoquit_s = None

    def _write_outputs(self, summaries: dict[str, Any]) -> None:
        """Write the outputs for pipelines; a file that cannot be written is an error in the log."""
        try:
            self._own.outputs.write(summaries)
        except UsageError as error:
            logger.error("%s", error)
        except Exception:  # a fault of these must not keep the process from ending
            logger.exception("the outputs for pipelines broke")
            self.environment.process_exit_code = USAGE

    def _runs(self, spec: RunSpec | UsageError, summaries: dict[str, Any]) -> None:
        """An order's run; where it has a cold and a warm arm, one after the other, unless the first is stopped by hand."""
        if isinstance(spec, UsageError):
            raise spec
        todo = cache_passes.passes(spec.scenario.cache)
        path, earlier, codes = self._path(spec, todo), None, []
        for number, one in enumerate(todo):
            if len(todo) > 1:
                logger.info("run %d of %d: %s", number + 1, len(todo), one.arm)
            self.preparing = self._load_awaited = True
            self.run = self._prepared(spec, cache_passes.folder(path, one), one, earlier)
            self.preparing = False
            if self._stopped_before is not None:
                self.run.request_stop(self._stopped_before, early=self._stopped_before in SIGNAL_CODES)
            result = self.result = self._conduct(self.run)
            summaries[result.run_dir.name] = result.document
            if one.counted or self.run.early_by is not None:
                codes.append(result.judged.exit_code)
            if self.run.stopped:
                break
            earlier = cache_passes.Previous(one.arm, result.run_dir, self.run.salt)
            if number + 1 < len(todo):
                self._locust_stop()
        if codes:
            self.environment.process_exit_code = gravest(codes)
        if not self._headless:
            self._locust_stop()

    def _path(self, spec: RunSpec, todo: Sequence[cache_passes.CachePass]) -> Path:
        """The order's run directory; all that its runs will need must be free."""
        path = self._own.run_dir or (Path("runs") / rundir.default_name(spec.scenario.name)).absolute()
        if not self._headless:
            path = rundir.next_free(path)
        for one in todo:
            rundir.check(cache_passes.folder(path, one))
        return path

    def _prepared(
        self, spec: RunSpec, path: Path, one: cache_passes.CachePass, earlier: cache_passes.Previous | None
    ) -> MasterRun:
        worker_setup.wait_for_workers(self._runner, self._expected_workers, lambda: self._stopped_before is not None)
        looked = None if self._stopped_before is not None else self._looked_at(spec)
        if looked is None or self._stopped_before is not None:
            raise _NotBegun
        directory = RunDirectory(path, rundir.create(path))
        if self._own.run_dir is None:
            rundir.link_latest(path)
        run = MasterRun(spec, looked, directory, self._own, self._runner)
        run.follow(one.arm, earlier)
        self.run = run  # answers to what follows find it there
        try:
            run.prepare()
        except UsageError:
            run.close()
            rundir.withdraw(path)
            raise
        if not spec.scenario.open_loop and (past := calibration.warning_here(spec.users, len(run.roster))):
            logger.warning("%s", past)
        return run

    def _looked_at(self, spec: RunSpec) -> Preflight:
        """The preflight of an order; the one of a moment ago, where the start form has just asked for it."""
        admitted, self._admitted = self._admitted, None
        if admitted is not None and admitted[0] == spec:
            return admitted[1]
        return preflight(spec, self._own)

    def _conduct(self, run: MasterRun) -> RunResult:
        logger.info("run directory: %s", run.directory.path)
        try:
            finale.begin(run)
            history = History(run.directory.path, self.environment, run.anchor)
        except OSError as error:
            run.close()
            raise UsageError(
                f"run directory {run.directory.path}: {rundir.reason(error)}; name another with --run-dir"
            ) from error
        shown_no_more = progress.begin(run, wanted=self._headless)
        try:
            run.conduct(self._start_users)
        finally:
            shown_no_more()
        history.finish(run.totals.errors.texts)
        result = finale.conclude(run, history.errors)
        level = _LEVELS[result.judged.state]
        why = [(level, line) for line in ci.explanation(result.document, _EXPLAINED)]
        self._log_last(*why, (logging.INFO, f"report: {result.page}"), (level, result.judged.headline))
        return result

    def _log_last(self, *lines: tuple[int, str]) -> None:
        """Log lines that explain the end of a run; in a headless process after Locust's tables, as its last lines."""
        self._log_rest()
        self._last_lines = list(lines)
        if not self._headless:
            self._log_rest()

    def _log_rest(self, **_event: Any) -> None:
        for level, line in self._last_lines:
            logger.log(level, "%s", line)
        self._last_lines = []

    def _start_users(self, users: int, spawn_rate: float) -> None:
        """Locust's own start, with the users that were asked for while the run was being prepared, if any were.

        It may take its time: what is asked for meanwhile is newer.
        """
        later, self._later, self._load_awaited = self._later, None, False
        if later is not None and self.run is not None:
            users, spawn_rate = later
            self.run.change_users(users)
        if not self._load_begun.is_set() and self.environment.shape_class is not None:
            self.environment.shape_class.reset_time()
        self._load_begun.set()
        self._locust_start(users, spawn_rate, wait=False, user_classes=self._user_classes)

    def _refuse(self, why: str) -> None:
        """No run: one line that says why."""
        self.trouble = why
        self._log_last((logging.ERROR, why))
        self.environment.process_exit_code = USAGE

    def _not_begun(self, by: str) -> dict[str, Any]:
        """No run, since a stop was asked for before its directory was made; what stands for its summary."""
        text, code = Early(by, None, 0.0, None).text, OK
        self._log_last((logging.WARNING, text))
        if by in SIGNAL_CODES:
            code = OK if self._own.policy.on_stop_passes else SIGNAL_CODES[by]
            self.environment.process_exit_code = code
        return ci.without_load("stopped early", text, code)

    def _quit_if_idle(self) -> None:
        if not self.under_way:
            logger.info("--autoquit: shutting down")
            self._quit()

    def _quit(self) -> None:
        self._runner.quit()
        web_ui = self.environment.web_ui
        if web_ui is not None:
            web_ui.stop()
