"""Runs of a process: `Execution.execute` is a whole run, from the check of the server to its documents."""

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import gevent

from inferload.base import clock, rundir
from inferload.base.errors import UsageError
from inferload.base.status_lines import StatusLines
from inferload.base.threads import in_thread
from inferload.base.user_cache import CALIBRATION, user_cache
from inferload.locust_adapters import runners
from inferload.locust_adapters.csv_files import HistoryWriter
from inferload.locust_adapters.logs import first_of_each
from inferload.locust_adapters.process import WorkerCount
from inferload.results.verdict.outcome import SIGNAL_CODES, gravest
from inferload.run.master import finish
from inferload.run.master.end_report import EndReport, Outcome
from inferload.run.master.finish import RunResult
from inferload.run.master.lifecycle import cache_passes
from inferload.run.master.lifecycle.cache_passes import CachePass, Passes
from inferload.run.master.lifecycle.master_run import MasterRun, RunDirectory, RunSetup
from inferload.run.master.lifecycle.preflight import Preflight, preflight
from inferload.run.master.locust_users import LocustUsers
from inferload.run.master.process_end import ProcessEnd
from inferload.run.master.stages import RunStages, StoppedEarly
from inferload.run.master.workers import worker_setup
from inferload.run.process.greenlets import logged_wait
from inferload.run.process.run_spec import RunSpec
from inferload.run.process.settings import ProcessSettings

if TYPE_CHECKING:
    from inferload.run.master.live import LiveRun

logger = logging.getLogger(__name__)

_STOP_CHECK_S = 0.1  # interval of checks for a stop during the preflight


@dataclass(eq=False)
class Execution:
    """Executes the runs of a process, one at a time.

    `latest`: the run, or after its end the last one that was prepared. `result`: of the last pass that has ended. `live`: of the
    current run, or of the last one; None without a web UI.
    """

    environment: Any
    own: ProcessSettings
    workers: WorkerCount
    stages: RunStages
    users: LocustUsers
    process: ProcessEnd
    end_report: EndReport
    latest: MasterRun | None = None
    result: RunResult | None = None
    live: "LiveRun | None" = None
    _admitted: tuple[RunSpec, Preflight] | None = None

    def admit(self, spec: RunSpec) -> None:
        """Check the server before a run begins; UsageError if no run is possible."""
        self._admitted = spec, preflight(spec, self.own)

    def execute(self, resolved: Callable[[], RunSpec]) -> None:
        """Execute a run; one with a cold and a warm pass, both in turn unless a stop is requested before the second.

        `_outcome` has the outcome of every failure, and of a stop before the load. The process ends or goes on afterwards.
        """
        with self._outcome() as outcome:
            passes = self._passes(resolved())
            for current in passes.todo:
                self._begin_pass(passes, current)
                findings = self._check(passes.spec)
                run = self._prepare(findings, passes, current)
                with self._observed(run) as tables:
                    with run.load as load:
                        start_ns = load.begin(self._start_users)
                        measure_ns = load.warm_up(start_ns)
                        end_ns = load.measure(start_ns, measure_ns, self._start_users)
                        load.drain(end_ns)
                        run.gather()
                    run.end()
                    self._ask_again(run)
                result = self._conclude(run, tables)
                early = run.state.end.early_by is not None
                outcome.add(result.run_dir.name, result.summary, counted=current.counted or early)
                if early:
                    break
                passes.ended(current, result.run_dir, run.salt)
            self.environment.process_exit_code = gravest(outcome.codes)
            if not self.process.headless:
                self.users.stop()
        self.process.run_over()

    # -- outcome and end

    @contextmanager
    def _outcome(self) -> Iterator[Outcome]:
        """Give each end of a run its outcome, and write that for pipelines; then a next run can begin."""
        earlier, self.result = self.result, None
        outcome = Outcome()
        try:
            yield outcome
        except UsageError as error:
            self.result = self.result or earlier  # a start that is refused has no outcome of its own
            self._refuse(outcome, str(error), f"not started: {error}")
        except StoppedEarly:
            self.end_report.stopped_early(outcome, self.stages.stopped_by or "")
        except Exception as error:  # the greenlet's boundary: an internal error ends the run with exit code 2
            logger.exception("internal error")
            why = f"internal error: {type(error).__name__}: {error}"
            self._refuse(outcome, why, why)
            if self.stages.load_begun.is_set():
                self.users.stop()
        finally:
            if not self.stages.load_begun.is_set():
                runners.end_shape(self.environment.runner)  # its next tick would begin another run
            self.stages.end(last=self.process.after_run)
            self._end_live()
            self.end_report.write_outputs(outcome)
            self.stages.release()

    def _refuse(self, outcome: Outcome, why: str, text: str) -> None:
        self.stages.trouble = why
        self.end_report.refused(outcome, why, text)

    def _end_live(self) -> None:
        """Show the outcome in the live view. Not earlier: report, comparison and rerun are refused during a run."""
        live, result = self.live, self.result
        if live is not None and not live.over:
            live.ended(result if result is not None and result.run_dir == live.run_dir else None)

    # -- passes

    def _passes(self, spec: RunSpec) -> Passes:
        """Return the passes of a run. UsageError if the directory of a pass cannot be used."""
        path = self.own.run_dir or self.own.runs_folder / rundir.default_name(spec.scenario.name)
        passes = Passes(spec, cache_passes.passes(spec.scenario.cache), path)
        for current in passes.todo:
            folder = cache_passes.folder(path, current)
            in_thread(rundir.check, rundir.next_free(folder) if self._numbers_folders else folder)
        return passes

    def _begin_pass(self, passes: Passes, current: CachePass) -> None:
        """End the pass before, if there is one; StoppedEarly if a stop was requested, even after its load."""
        if passes.earlier is not None:
            self.stages.next_pass()
            self.users.stop()
            self._end_live()
            self.stages.check_stop()
            self.process.await_scrape()
        if len(passes.todo) > 1:
            logger.info("run %d of %d: %s", passes.todo.index(current) + 1, len(passes.todo), current.arm)

    @property
    def _numbers_folders(self) -> bool:
        """True if a run goes to another directory where the one that it is to use has files."""
        return self.own.run_dir is None or not self.process.headless

    # -- steps of a pass

    def _check(self, spec: RunSpec) -> Preflight:
        """Wait for the workers, and check the server; StoppedEarly after a stop."""
        worker_setup.wait_for_workers(self.environment.runner, self.workers, lambda: self.stages.stopped_by is not None)
        self.stages.check_stop()
        findings = self._preflight(spec)
        self.stages.check_stop()
        return findings

    def _preflight(self, spec: RunSpec) -> Preflight:
        """Return the preflight of a run, or that of `admit` for the same specification; StoppedEarly after a stop."""
        admitted, self._admitted = self._admitted, None
        if admitted is not None and admitted[0] == spec:
            return admitted[1]
        checking = gevent.spawn(_preflight_outcome, spec, self.own)
        while not checking.ready() and self.stages.stopped_by is None:
            checking.join(_STOP_CHECK_S)
        if not checking.ready():  # a server that does not answer would delay the end for minutes
            checking.kill(block=False)
            raise StoppedEarly
        outcome: Preflight | UsageError = checking.get()
        if isinstance(outcome, UsageError):
            raise outcome
        return outcome

    def _prepare(self, findings: Preflight, passes: Passes, current: CachePass) -> MasterRun:
        """Create the directory of a pass, and set up its workers; without a run, the directory is removed again."""
        directory = RunDirectory(*in_thread(cache_passes.create_folder, passes.path, current, self._numbers_folders))
        if self.latest is not None:
            first_of_each.take_listeners()  # exceptions of `test_stop` listeners of the earlier run
        setup = RunSetup(findings, directory, self.own, current.arm, passes.earlier, self.workers.most)
        run = MasterRun(setup, self.environment.runner)
        run.steering.start_users, run.steering.end_start = self._steer_users, self.users.end_steered_start
        self.stages.run = run  # its inbox receives the replies of the workers that are set up from now on
        try:
            run.prepare(self.stages.check_stop)
        except Exception as error:
            run.close()
            if isinstance(error, UsageError | StoppedEarly):
                in_thread(rundir.withdraw, directory.path)
            raise
        if self.own.run_dir is None:
            rundir.link_latest(directory.path)
        self.latest = run
        _warn_of_many_users(passes.spec, run)
        self.stages.prepared()
        stopped_by = self.stages.stopped_by
        if stopped_by is not None:
            run.request_stop(stopped_by, early=stopped_by in SIGNAL_CODES)
        return run

    @contextmanager
    def _observed(self, run: MasterRun) -> Iterator[HistoryWriter]:
        """Write the manifest; record the history and the live figures, and show the progress, until the drain is over."""
        logger.info("run directory: %s", run.directory.path)
        try:
            finish.begin(run)
            runners.clear_statistics(self.environment.runner)
            tables = HistoryWriter(run.directory.path, self.environment, run.anchor)
        except Exception as error:
            run.close()
            if not isinstance(error, OSError):
                raise
            raise UsageError(
                f"run directory {run.directory.path}: {rundir.reason(error)}; name another with --run-dir"
            ) from error
        live = self.live = None if self.process.headless else _live(run)
        try:
            with _progress(run, status_lines=self.process.headless):
                yield tables
        except Exception:
            run.close()
            raise
        finally:
            self.users.end_starts_by_hand()
            if live is not None:
                live.close()

    def _ask_again(self, run: MasterRun) -> None:
        """Ask once more, without load, for changed answers of canaries; not after a stop, whose end must not wait."""
        if (canaries := run.preflight.canaries) is not None and run.state.end.early_by is None:
            with logged_wait(logger, lambda: "asking again for changed canary answers, without load"):
                canaries.ask_again()

    def _conclude(self, run: MasterRun, tables: HistoryWriter) -> RunResult:
        self.stages.write()
        with logged_wait(logger, lambda: f"writing tables, documents and report in {run.directory.path}"):
            tables.finish(run.inbox.totals.errors.texts)
            result = finish.conclude(run, tables.errors)
        self.end_report.concluded(result)
        self.result = result
        return result

    # -- users

    def _start_users(self, users: int, spawn_rate: float) -> None:
        """Start users with Locust's own `start`: those requested during preparation, if any were.

        It may block; a request meanwhile is newer.
        """
        first = not self.stages.load_begun.is_set()
        later = self.stages.begin_load()
        if later is not None and self.stages.run is not None:
            users, spawn_rate = later
            self.stages.run.steering.change_users(users)
        if first and self.environment.shape_class is not None:
            self.environment.shape_class.reset_time()
        self.users.end_starts_by_hand()
        self.users.start(users, spawn_rate)

    def _steer_users(self, users: int, per_s: float) -> None:
        """Start or stop users up to a number, instead of any earlier start that is still in progress."""
        if self.stages.run is not None:
            self.stages.run.load.end_start()
        self.users.steer(users, per_s)


def _preflight_outcome(spec: RunSpec, own: ProcessSettings) -> Preflight | UsageError:
    """Return the result or the error of a preflight: gevent prints a traceback for an exception that leaves a greenlet."""
    try:
        return preflight(spec, own)
    except UsageError as error:
        return error


def _warn_of_many_users(spec: RunSpec, run: MasterRun) -> None:
    """Warn of a closed loop with more users than the calibration of this machine found possible."""
    if not clock.is_virtual() and not spec.scenario.open_loop and (user_cache() / CALIBRATION).is_file():
        from inferload.campaign.machine import calibration

        past = calibration.warning_here(spec.users, len(run.roster))
        if past:
            logger.warning("%s", past)


def _live(run: MasterRun) -> "LiveRun":
    from inferload.run.master.live import LiveRun  # of processes with a web UI only

    return LiveRun(run)


def _progress(run: MasterRun, status_lines: bool) -> ExitStack:
    """Begin the progress file, and status lines or --live if the log is a terminal; the context that is returned ends both.

    A run without them imports nothing for it.
    """
    status, progress = StatusLines(sys.stderr), ExitStack()
    if run.own.progress_file is not None or (status_lines and status.enabled):
        from inferload.run.master.so_far import LiveFigures, LiveStatus, ProgressFile

        if run.own.progress_file is not None:
            progress.callback(ProgressFile(run, run.own.progress_file).close)
        if status_lines and status.enabled:
            display = LiveFigures if run.own.live else LiveStatus
            progress.callback(display(run, status).close)
    if status_lines and run.own.live and not status.enabled:
        logger.warning("--live: stderr is no terminal, or TERM is dumb; the run shows no live figures")
    return progress
