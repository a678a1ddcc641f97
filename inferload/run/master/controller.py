"""Master-side controller: replaces Locust's start, stop and quit, and ends every run in the same way.

The web UI, --headless, --autostart and the keyboard all call `runner.start` and `runner.stop`, so only these two are replaced.
"""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import gevent
from flask import has_request_context
from msgspec.structs import replace

from inferload.base.errors import UsageError
from inferload.locust_adapters import runners
from inferload.locust_adapters.process import CTRL_C, WorkerCount
from inferload.results.documents.manifest_document import Manifest
from inferload.results.verdict.outcome import WORKERS_ENDED
from inferload.run.master.end_report import EndReport, Outcome
from inferload.run.master.execution import Execution
from inferload.run.master.lifecycle.master_run import MasterRun
from inferload.run.master.lifecycle.phases import LoadStage
from inferload.run.master.lifecycle.preflight import server_urls
from inferload.run.master.locust_users import LocustUsers
from inferload.run.master.process_end import ProcessEnd
from inferload.run.master.stages import RunStages, Stage
from inferload.run.master.workers import inbox
from inferload.run.process.greenlets import DrainedGreenlet
from inferload.run.process.run_spec import FormValues, LoadOptions, RunOptions, RunSpec, form_of, gates_of, resolve
from inferload.run.process.settings import ProcessSettings
from inferload.scenario.scenario import Scenario

if TYPE_CHECKING:
    from inferload.run.process.rerun import Again, CommandLine

logger = logging.getLogger(__name__)

_LOAD_BEGINS_S = 30.0


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
        self._own = own
        self.runs_folder = own.runs_folder
        self._run_options = run_options
        self._runner = environment.runner
        self._stages = RunStages()
        self.form_gates: tuple[str, ...] | None = None  # of the last start by the form
        self._users = LocustUsers(environment, self.start, self.stop)
        self.process = ProcessEnd(environment, lambda: self.under_way)
        self._end_report = EndReport(environment, own)
        self.execution = Execution(environment, own, workers, self._stages, self._users, self.process, self._end_report)
        runners.share_among(environment, self._members)
        inbox.register_handlers(self._runner, lambda: None if self.run is None else self.run.inbox)

    # -- what Locust calls

    def start(
        self, user_count: int, spawn_rate: float, wait: bool = False, user_classes: Any = None, **_newer: Any
    ) -> None:
        """Begin a run; during a run, change its users. Options of newer versions of Locust are ignored."""
        if self.process.signalled and not self.under_way:
            runners.end_shape(self._runner)  # Locust's headless process waits for its end
            return
        self._users.classes = user_classes
        if self.ending is not None:
            by_locust = self._users.in_shape or user_count == self._runner.target_user_count  # or after a lost worker
            if not by_locust or has_request_context():
                logger.warning("%s; start again after its end", self.ending)
            return
        if self._stages.before_load:
            self._stages.request_later(user_count, spawn_rate)
            logger.info("a run is being prepared; %d users start with its load", user_count)
            return
        if self.run is None:
            if self._stages.stage is Stage.OVER or self.process.quitting:
                return  # a tick of a LoadTestShape, or Locust's reaction to a worker that joins or leaves
            self._begin(lambda: resolve(self.options_for(user_count, spawn_rate, self.environment, self.form_gates)))
            if self._users.in_shape:
                self._stages.load_begun.wait()  # the time of a LoadTestShape begins with the load
            return
        if user_count == self._runner.target_user_count:
            return  # Locust redistributes a lost worker's users; the load of the other workers must not change
        self.run.load.end_start()
        self._users.end_steered_start()
        self.run.steering.change_users(user_count, "shape" if self._users.in_shape else "hand")
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
        self.process.quitting = True
        if self._workers_are_silent():  # Locust quits after the last worker
            self._stages.stop(WORKERS_ENDED)
            if self.run is not None:
                self.run.request_stop(WORKERS_ENDED, early=True)
        self.finish("the end of the process")
        self.process.await_last_scrape()

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

    @property
    def ending(self) -> str | None:
        """Sentence on the state of the run between its load and its end; None at other times."""
        if self.run is None or not self.run.ending:
            return None
        return f"the run is {self.writing or 'draining'}"

    @property
    def writing(self) -> str | None:
        """Phase in which the run writes its results; None before the end of its load."""
        return self._own.writing if self._stages.stage is Stage.WRITING else None

    @property
    def trouble(self) -> str | None:
        """Why the last start was refused."""
        return self._stages.trouble

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
        run, process = self.run, self.process
        if process.headless and not process.signalled and self._stages.stage is Stage.IDLE:  # no run has begun
            outcome = Outcome()
            self._end_report.stopped_early(outcome, by)
            self._end_report.write_outputs(outcome)
        process.signalled = True
        self._stages.stop(by)  # a second pass does not begin
        if run is None:
            gevent.spawn(process.quit)
        elif run.stop.is_set():
            if by == CTRL_C:
                run.load.abort()
        elif run.state.end.stage is LoadStage.DELIVERING:
            logger.info("%s: waiting for turn records; press Ctrl-C again to give up those that are missing", by)
            run.request_stop(by)
        else:
            phases, again = run.spec.scenario.phases, "again " if by == CTRL_C else ""
            logger.info("%s: draining, at most %g s; press Ctrl-C %sto end turns in flight", by, phases.drain_s, again)
            planned = run.spec.scenario.ends_by_itself or not process.headless
            run.request_stop(by, early=planned)  # without a planned end, a signal is the regular end

    # -- steering by the live view

    def steered_run(self) -> MasterRun:
        """Return the run whose load can be changed by hand; UsageError if there is none."""
        run = self.run
        if run is None or self._stages.before_load:
            raise UsageError("no load to change: no run is in progress, or its load has not begun")
        if self.ending is not None:
            raise UsageError(f"no load to change: {self.ending}")
        if self.environment.shape_class is not None:
            raise UsageError("no load to change: a LoadTestShape determines the users")
        return run

    # -- a run

    def admit(self, run_options: RunOptions) -> None:
        """Resolve options and check the server before a run begins; UsageError if no run is possible."""
        self._stages.trouble = None
        try:
            self.execution.admit(resolve(run_options))
        except UsageError as error:
            self._stages.trouble = str(error)
            raise

    def rerun_facts(self, manifest: Manifest) -> tuple[list[tuple[str, str]], str]:
        """Return what a run like an earlier one would send and where to: facts by title, and the scenario's text.

        UsageError if the run cannot be repeated by this process.
        """
        from inferload.run.process.rerun import described, repeated  # of reruns only

        program, here, own = self._run_options(self.environment).program, self._command_line, self._own
        spec = repeated(manifest, program, here=here)
        code = here.code.of_run(here.agent_files(spec.scenario, spec.origin, program))
        has_key = own.credentials.api_key is not None or bool(own.headers)
        return described(spec, code, own.withheld_from(server_urls(spec)), has_key), spec.scenario.resolved_text()

    @property
    def _command_line(self) -> "CommandLine":
        from inferload.run.process.rerun import CommandLine

        return CommandLine(self._own.code, self.load_options.scenario, self.load_options.settings)

    def rerun(self, manifest: Manifest, seed: int | None) -> None:
        """Begin a run like an earlier one, and wait for its load, since Locust's page follows only a run with load.

        `seed`: None: that of the run. UsageError if no run is possible now.
        """
        from inferload.run.process.rerun import repeated

        self._refuse_second_run()
        if self.environment.shape_class is not None:
            raise UsageError("a LoadTestShape sets the load of this process; start it from the page")
        spec = repeated(manifest, self._run_options(self.environment).program, seed, self._command_line)
        self.execution.admit(spec)
        self._refuse_second_run()  # one may have begun during the preflight
        self._users.classes, self.environment.host = None, spec.target.api_url()
        self._begin(lambda: spec)
        self._stages.load_begun.wait(_LOAD_BEGINS_S)
        if self.trouble is not None:
            raise UsageError(self.trouble)

    def _refuse_second_run(self) -> None:
        if self._stages.stage is Stage.OVER:
            raise UsageError("the process is ending")
        if self.under_way:
            raise UsageError("a run is under way; wait for its end")

    def load_scenario(self, name: str) -> Scenario:
        """Return a scenario with the changes of --set; UsageError if this process cannot run it."""
        return self._run_options(self.environment).program.load(name, self.load_options.settings)

    def form_values(self, name: str) -> FormValues:
        """Return the values of the start form for a scenario; UsageError as of `load_scenario`."""
        scenario = self.load_scenario(name)
        gates = gates_of(scenario, self._run_options(self.environment).gates)
        return replace(self.load_options.form(scenario), gates=gates)

    def last_form(self) -> tuple[str, FormValues] | None:
        """Return the scenario and the values of the form for a run like the last one; None before the first."""
        run = self.execution.latest
        return None if run is None else (run.spec.origin, form_of(run.spec, self.load_scenario(run.spec.origin)))

    def form_again(self, manifest: Manifest) -> "Again":
        """Return the start form for a run like an earlier one; UsageError if this process cannot run its scenario."""
        from inferload.run.process.rerun import again

        return again(manifest, self._run_options(self.environment), self._command_line)

    def options_for(self, users: int, spawn_rate: float, environment: Any, gates: tuple[str, ...] | None) -> RunOptions:
        """Return the options in an environment, with the given users and spawn rate. `gates`: of the start form."""
        return replace(self._run_options(environment), users=users, spawn_per_s=spawn_rate, form_gates=gates)

    def _begin(self, resolved: Callable[[], RunSpec]) -> None:
        self._stages.begin()
        gevent.spawn(self.execution.execute, resolved)
