"""Master-side controller: replaces Locust's start, stop and quit, and ends every run in the same way.

The web UI, --headless, --autostart and the keyboard all call `runner.start` and `runner.stop`, so only these two are replaced.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gevent
from flask import has_request_context

from inferload.base import clock, rundir
from inferload.base.errors import UsageError
from inferload.base.threads import in_thread
from inferload.campaign.machine import calibration
from inferload.locust_adapters import runners
from inferload.locust_adapters.csv_files import HistoryWriter
from inferload.locust_adapters.logs import first_of_each
from inferload.locust_adapters.process import WorkerCount
from inferload.results import ci
from inferload.results.documents.manifest_document import Manifest
from inferload.results.documents.summary_document import Summary
from inferload.results.verdict.outcome import SIGNAL_CODES, USAGE, WORKERS_ENDED, gravest
from inferload.run.master import finish, progress
from inferload.run.master.end_report import EndReport
from inferload.run.master.finish import RunResult
from inferload.run.master.lifecycle import cache_passes, inbox, worker_setup
from inferload.run.master.lifecycle.master_run import MasterRun, RunDirectory, RunSetup
from inferload.run.master.lifecycle.preflight import Preflight, preflight, server_urls
from inferload.run.master.locust_users import LocustUsers
from inferload.run.master.stages import RunStages, Stage
from inferload.run.process.greenlets import DrainedGreenlet, logged_wait
from inferload.run.process.rerun import CommandLine, described, repeated
from inferload.run.process.run_spec import FormValues, LoadOptions, RunOptions, RunSpec, resolve
from inferload.run.process.settings import ProcessSettings

if TYPE_CHECKING:
    from inferload.run.master.live import LiveRun

logger = logging.getLogger(__name__)

CTRL_C = "Ctrl-C"
_LOAD_BEGINS_S = 30.0
_STOP_CHECK_S = 0.1  # interval of checks for a stop during the preflight


class _StoppedEarly(Exception):
    """A stop was requested before the load of a run."""


class Controller:
    """One per master or local process. `run_options`: returns the options in a Locust environment."""

    def __init__(
        self,
        environment: Any,
        own: ProcessSettings,
        run_options: Callable[[Any], RunOptions],
        load_options: LoadOptions,
        workers: WorkerCount,
    ) -> None:
        self.environment = environment
        self.load_options = load_options
        self.latest: MasterRun | None = None  # the run, or after its end the last one that was prepared
        self.result: RunResult | None = None
        self.live: LiveRun | None = None  # of the current run, or of the last one; None without a web UI
        self.await_scrape: Callable[[], None] = lambda: None  # waits until the final metrics of a run were scraped
        self.trouble: str | None = None  # why the last start was refused
        self._own = own
        self._run_options = run_options
        self._workers = workers
        options = environment.parsed_options
        self._headless = bool(options.headless)
        # After the run of --autostart; Locust's own timer starts at the end of --run-time, which the controller implements.
        self._autoquit_s: float | None = options.autoquit if options.autostart and options.autoquit >= 0 else None
        self._stages = RunStages()
        self._leaving = False  # the process ends after the run
        self._last_scrape: gevent.Greenlet | None = None  # waits for the final metrics of the last run
        self._shutting_down = False  # Locust has begun to end the process
        self._admitted: tuple[RunSpec, Preflight] | None = None
        self._end_report = EndReport(environment, own)
        self._runner = environment.runner
        self._users = LocustUsers(environment, self.start, self.stop)
        runners.share_among(environment, self._members)
        inbox.register_handlers(self._runner, lambda: None if self.run is None else self.run.inbox)

    # -- what Locust calls

    def start(
        self, user_count: int, spawn_rate: float, wait: bool = False, user_classes: Any = None, **_newer: Any
    ) -> None:
        """Begin a run; during a run, change its users. Options of newer versions of Locust are ignored."""
        if self._leaving and not self.under_way:
            runners.end_shape(self._runner)  # Locust's headless process waits for its end
            return
        self._users.classes = user_classes
        if self.run is not None and self.run.ending:
            by_locust = self._users.in_shape or user_count == self._runner.target_user_count  # or after a lost worker
            if not by_locust or has_request_context():
                logger.warning("the run is draining; start again after its end")
            return
        if self._stages.before_load:
            self._stages.request_later(user_count, spawn_rate)
            logger.info("a run is being prepared; %d users start with its load", user_count)
            return
        if self.run is None:
            if self._stages.stage is Stage.OVER or self._shutting_down:
                return  # a tick of a LoadTestShape, or Locust's reaction to a worker that joins or leaves
            self._begin(self._resolved(user_count, spawn_rate))
            if self._users.in_shape:
                self._stages.load_begun.wait()  # the time of a LoadTestShape begins with the load
            return
        if user_count == self._runner.target_user_count:
            return  # Locust redistributes a lost worker's users; the load of the other workers must not change
        self.run.load.end_start()
        self._users.end_steered_start()
        self.run.change_users(user_count, "shape" if self._users.in_shape else "hand")
        self._users.start(user_count, spawn_rate, wait=wait)

    def stop(self, *arguments: Any, **options: Any) -> None:
        """Drain the run, then let Locust stop its users."""
        if self._workers_are_silent() and not has_request_context():
            return  # called by Locust: a busy worker may report again, and the run detects lost workers itself
        self.finish("the end of the LoadTestShape" if self._users.in_shape else "the web UI")
        if self._stages.ended.is_set():
            self._users.stop(*arguments, **options)

    def quitting(self, environment: Any, **_others: Any) -> None:
        """Finish the run before Locust ends the process."""
        self._shutting_down = True
        if self._workers_are_silent():  # Locust quits after the last worker
            self._stages.stop(WORKERS_ENDED)
            if self.run is not None:
                self.run.request_stop(WORKERS_ENDED, early=True)
        self.finish("the end of the process")
        self._await_last_scrape()

    @property
    def runs_folder(self) -> Path:
        """Folder of the run directories of this process."""
        return Path("runs").absolute() if self._own.run_dir is None else self._own.run_dir.parent

    @property
    def run(self) -> MasterRun | None:
        """The current pass of a run, from the setup of its workers on; None without one."""
        return self._stages.run

    @property
    def under_way(self) -> bool:
        """True during a run, from the beginning of its preparation on."""
        return self._stages.under_way

    @property
    def preparing(self) -> bool:
        """True while a run, or its next pass, is being prepared."""
        return self._stages.stage is Stage.PREPARING

    def _members(self) -> set[str] | None:
        """Return Locust's IDs of the run's workers; None without a run, and in a local run."""
        members = [] if self.run is None else self.run.roster.members
        return {member.client_id for member in members if member.client_id is not None} or None

    def _workers_are_silent(self) -> bool:
        return self.under_way and hasattr(self._runner, "clients") and self._runner.worker_count <= 0

    # -- end of a run

    def request_stop(self, reason: str) -> None:
        """Stop the run, even during its preparation, and the passes after it."""
        if self.under_way:
            self._stages.stop(reason)
        if self.run is not None:
            self.run.request_stop(reason)

    def finish(self, reason: str) -> None:
        """Stop the run and the passes after it, and wait until its files are written; do not wait in a DrainedGreenlet."""
        self.request_stop(reason)
        if not isinstance(gevent.getcurrent(), DrainedGreenlet):
            self._stages.ended.wait()

    def interrupt(self, by: str) -> None:
        """End the process after a signal: the first drains the run, a later Ctrl-C ends turns in flight."""
        run = self.run
        if self._headless and not self._leaving and self._stages.stage is Stage.IDLE:  # no run has begun
            self._end_report.write_outputs({"run": self._end_report.stopped_early(by)})
        self._leaving = True
        self._stages.stop(by)  # a second pass does not begin
        if run is None:
            gevent.spawn(self._quit)
        elif run.state.end.delivering and not run.stop.is_set():
            logger.info("%s: waiting for turn records; press Ctrl-C again to give up those that are missing", by)
            run.request_stop(by, early=False)
        elif not run.stop.is_set():
            logger.info(
                "%s: draining, at most %g s; press Ctrl-C %sto end turns in flight",
                by,
                run.spec.scenario.phases.drain_s,
                "again " if by == CTRL_C else "",
            )
            planned = run.spec.scenario.ends_by_itself or not self._headless
            run.request_stop(by, early=planned)  # without a planned end, a signal is the regular end
        elif by == CTRL_C:
            run.load.abort()

    # -- steering by the live view

    def steered_run(self) -> MasterRun:
        """Return the run whose load can be changed by hand; UsageError if there is none."""
        run = self.run
        if run is None or self._stages.before_load:
            raise UsageError("no load to change: no run is in progress, or its load has not begun")
        if run.ending:
            raise UsageError("no load to change: the run is draining")
        if self.environment.shape_class is not None:
            raise UsageError("no load to change: a LoadTestShape determines the users")
        return run

    def _steer_users(self, users: int, per_s: float) -> None:
        """Start or stop users up to a number, instead of any earlier start that is still in progress."""
        if self.run is not None:
            self.run.load.end_start()
        self._users.steer(users, per_s)

    # -- a run

    def admit(self, run_options: RunOptions) -> None:
        """Resolve options and check the server before a run begins; UsageError if no run is possible."""
        self.trouble = None
        try:
            self._admit(resolve(run_options))
        except UsageError as error:
            self.trouble = str(error)
            raise

    def _admit(self, spec: RunSpec) -> None:
        self._admitted = spec, preflight(spec, self._own)

    def rerun_facts(self, manifest: Manifest) -> tuple[list[tuple[str, str]], str]:
        """Return what a run like an earlier one would send and where to: facts by title, and the scenario's text.

        UsageError if the run cannot be repeated by this process.
        """
        program, here, own = self._run_options(self.environment).program, self._command_line, self._own
        spec = repeated(manifest, program, here=here)
        code = here.code.of_run(here.agent_files(spec.scenario, spec.origin, program))
        has_key = own.credentials.api_key is not None or bool(own.headers)
        return described(spec, code, own.withheld_from(server_urls(spec)), has_key), spec.scenario.resolved_text()

    @property
    def _command_line(self) -> CommandLine:
        return CommandLine(self._own.code, self.load_options.scenario, self.load_options.settings)

    def rerun(self, manifest: Manifest, seed: int | None) -> None:
        """Begin a run like an earlier one, and wait for its load, since Locust's page follows only a run with load.

        `seed`: None: that of the run. UsageError if no run is possible now.
        """
        self._refuse_second_run()
        if self.environment.shape_class is not None:
            raise UsageError("a LoadTestShape sets the load of this process; start it from the page")
        spec = repeated(manifest, self._run_options(self.environment).program, seed, self._command_line)
        self._admit(spec)
        self._refuse_second_run()  # one may have begun during the preflight
        self._users.classes, self.environment.host = None, spec.target.api_url()
        self._begin(spec)
        self._stages.load_begun.wait(_LOAD_BEGINS_S)
        if self.trouble is not None:
            raise UsageError(self.trouble)

    def _refuse_second_run(self) -> None:
        if self.under_way:
            raise UsageError("a run is under way; wait for its end")

    def form_values(self, scenario: str) -> FormValues:
        """Return the values of the start form for a scenario; UsageError if it cannot be loaded."""
        program = self._run_options(self.environment).program
        return self.load_options.form(program.load(scenario, self.load_options.settings))

    def options_for(self, users: int, spawn_rate: float, environment: Any) -> RunOptions:
        """Return the options in an environment, with the given users and spawn rate."""
        return replace(self._run_options(environment), users=users, spawn_per_s=spawn_rate)

    def _resolved(self, users: int, spawn_rate: float) -> RunSpec | UsageError:
        try:
            return resolve(self.options_for(users, spawn_rate, self.environment))
        except UsageError as error:
            return error

    def _begin(self, spec: RunSpec | UsageError) -> None:
        self._stages.begin()
        gevent.spawn(self._execute, spec)

    def _execute(self, spec: RunSpec | UsageError) -> None:
        self.trouble, self.result = None, None
        summaries: dict[str, Summary] = {}
        codes: list[int] = []
        try:
            self._execute_passes(spec, summaries, codes)
        except UsageError as error:
            self._refuse(str(error))
            summaries["run"] = ci.without_load("failed", f"not started: {error}", USAGE)
        except _StoppedEarly:
            summaries["run"] = self._end_report.stopped_early(self._stages.stopped_by or "", codes)
        except Exception as error:  # the greenlet's boundary: an internal error ends the run with exit code 2
            logger.exception("internal error")
            why = f"internal error: {type(error).__name__}: {error}"
            self._refuse(why)
            summaries["run"] = ci.without_load("failed", why, USAGE)
        finally:
            if not self._stages.load_begun.is_set():
                runners.end_shape(self._runner)  # its next tick would begin another run
            self._stages.end(last=self._headless or self._leaving)
            self._end_live()
            self._end_report.write_outputs(summaries)
            self._stages.release()
        if (self._headless or self._leaving) and not self._shutting_down:
            self._await_last_scrape()
            self._quit()
        elif self._autoquit_s is not None:
            gevent.spawn_later(self._autoquit_s, self._quit_if_idle)
            self._autoquit_s = None

    def _execute_passes(self, spec: RunSpec | UsageError, summaries: dict[str, Summary], codes: list[int]) -> None:
        """Execute a run; one with a cold and a warm pass, both in turn unless a stop is requested before the second.

        Add the summary and the exit code of each pass to `summaries` and `codes`.
        """
        if isinstance(spec, UsageError):
            raise spec
        todo = cache_passes.passes(spec.scenario.cache)
        path, earlier = self._path(spec, todo), None
        for number, current in enumerate(todo):
            if len(todo) > 1:
                logger.info("run %d of %d: %s", number + 1, len(todo), current.arm)
            run = self._prepare(spec, path, current, earlier)
            self._stages.prepared()
            stopped_by = self._stages.stopped_by
            if stopped_by is not None:
                run.request_stop(stopped_by, early=stopped_by in SIGNAL_CODES)
            result = self.result = self._conduct(run)
            summaries[result.run_dir.name] = result.summary
            if current.counted or run.state.end.early_by is not None:
                codes.append(result.summary.outcome.exit_code)
            if run.state.end.early_by is not None:
                break
            if number + 1 < len(todo):
                earlier = cache_passes.Previous(current.arm, result.run_dir, run.salt)
                path = cache_passes.without_suffix(result.run_dir, current)
                self._end_pass()
        if codes:
            self.environment.process_exit_code = gravest(codes)
        if not self._headless:
            self._users.stop()

    def _end_pass(self) -> None:
        """End a pass that another one follows; _StoppedEarly if a stop was requested, even after its load."""
        self._stages.next_pass()
        self._users.stop()
        self._end_live()
        self._check_stop()
        self.await_scrape()

    def _end_live(self) -> None:
        """Show the outcome in the live view. Not earlier: report, comparison and rerun are refused during a run."""
        live, result = self.live, self.result
        if live is not None and not live.over:
            live.ended(result if result is not None and result.run_dir == live.run_dir else None)

    def _path(self, spec: RunSpec, todo: Sequence[cache_passes.CachePass]) -> Path:
        """Return the path of the run directory. UsageError if it, or that of another pass, cannot be used."""
        path = self._own.run_dir or self.runs_folder / rundir.default_name(spec.scenario.name)
        for current in todo:
            folder = cache_passes.folder(path, current)
            in_thread(rundir.check, rundir.next_free(folder) if self._numbers_folders else folder)
        return path

    @property
    def _numbers_folders(self) -> bool:
        """True if a run goes to another directory where the one that it is to use has files."""
        return self._own.run_dir is None or not self._headless

    def _prepare(
        self, spec: RunSpec, path: Path, current: cache_passes.CachePass, earlier: cache_passes.Previous | None
    ) -> MasterRun:
        worker_setup.wait_for_workers(self._runner, self._workers, lambda: self._stages.stopped_by is not None)
        self._check_stop()
        findings = self._preflight(spec)
        self._check_stop()
        numbered = self._numbers_folders
        directory = RunDirectory(*in_thread(cache_passes.create_folder, path, current, numbered))
        if self.latest is not None:
            first_of_each.take_listeners()  # exceptions of `test_stop` listeners of the earlier run
        setup = RunSetup(findings.spec, findings, directory, self._own, current.arm, earlier, self._workers.most)
        run = MasterRun(setup, self._runner)
        run.steering.start_users, run.steering.end_start = self._steer_users, self._users.end_steered_start
        self._stages.set_up(run)
        try:
            run.prepare(self._check_stop)
        except (UsageError, _StoppedEarly):
            run.close()
            in_thread(rundir.withdraw, directory.path)
            raise
        if self._own.run_dir is None:
            rundir.link_latest(directory.path)
        self.latest = run
        if (
            not clock.is_virtual()
            and not spec.scenario.open_loop
            and (past := calibration.warning_here(spec.users, len(run.roster)))
        ):
            logger.warning("%s", past)
        return run

    def _check_stop(self) -> None:
        """Raise _StoppedEarly if a stop was requested."""
        if self._stages.stopped_by is not None:
            raise _StoppedEarly

    def _preflight(self, spec: RunSpec) -> Preflight:
        """Return the preflight of a run, or that of `admit` for the same specification; _StoppedEarly after a stop."""
        admitted, self._admitted = self._admitted, None
        if admitted is not None and admitted[0] == spec:
            return admitted[1]
        checking = gevent.spawn(_preflight_outcome, spec, self._own)
        while not checking.ready() and self._stages.stopped_by is None:
            checking.join(_STOP_CHECK_S)
        if not checking.ready():  # a server that does not answer would delay the end for minutes
            checking.kill(block=False)
            raise _StoppedEarly
        outcome: Preflight | UsageError = checking.get()
        if isinstance(outcome, UsageError):
            raise outcome
        return outcome

    def _conduct(self, run: MasterRun) -> RunResult:
        logger.info("run directory: %s", run.directory.path)
        try:
            finish.begin(run)
            runners.clear_statistics(self._runner)
            history = HistoryWriter(run.directory.path, self.environment, run.anchor)
        except OSError as error:
            run.close()
            raise UsageError(
                f"run directory {run.directory.path}: {rundir.reason(error)}; name another with --run-dir"
            ) from error
        end_progress = progress.begin(run, status_lines=self._headless)
        live = self.live = None if self._headless else _live(run)
        try:
            run.conduct(self._start_users)
        finally:
            end_progress()
            self._users.end_starts_by_hand()
            if live is not None:
                live.close()
        with logged_wait(logger, lambda: f"writing tables, documents and report in {run.directory.path}"):
            history.finish(run.totals.errors.texts)
            result = finish.conclude(run, history.errors)
        self._end_report.concluded(result)
        return result

    def _start_users(self, users: int, spawn_rate: float) -> None:
        """Start users with Locust's own `start`: those requested during preparation, if any were.

        It may block; a request meanwhile is newer.
        """
        first = not self._stages.load_begun.is_set()
        later = self._stages.begin_load()
        if later is not None and self.run is not None:
            users, spawn_rate = later
            self.run.change_users(users)
        if first and self.environment.shape_class is not None:
            self.environment.shape_class.reset_time()
        self._users.end_starts_by_hand()
        self._users.start(users, spawn_rate)

    def _refuse(self, why: str) -> None:
        """Log the reason of a refused start, and set exit code 2."""
        self.trouble = why
        self._end_report.refused(why)

    def _quit_if_idle(self) -> None:
        if not self.under_way:
            logger.info("--autoquit: shutting down")
            self._quit()

    def _await_last_scrape(self) -> None:
        """Wait for the last scrape, unless the end of the process was requested or does not follow the run."""
        if self._headless and not self._leaving:
            if self._last_scrape is None:
                self._last_scrape = gevent.spawn(self.await_scrape)
            self._last_scrape.join()

    def _quit(self) -> None:
        if self._last_scrape is not None:
            self._last_scrape.kill(block=False)  # after a signal
        self._runner.quit()
        web_ui = self.environment.web_ui
        if web_ui is not None:
            web_ui.stop()


def _live(run: MasterRun) -> "LiveRun":
    from inferload.run.master.live import LiveRun  # of processes with a web UI only

    return LiveRun(run)


def _preflight_outcome(spec: RunSpec, own: ProcessSettings) -> Preflight | UsageError:
    """Return the result or the error of a preflight: gevent prints a traceback for an exception that leaves a greenlet."""
    try:
        return preflight(spec, own)
    except UsageError as error:
        return error
