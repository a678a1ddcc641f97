"""Worker side of a run: handling of the master's messages, of signals and of a silent master."""

import logging
import os
import socket
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

import gevent
import gevent.lock
import msgspec

from inferload import __version__
from inferload.base.clock import NS_PER_S, clock_id, now_ns, wall_ns
from inferload.base.errors import UsageError
from inferload.client.connection.target import Target
from inferload.client.requests.call_checks import CallError
from inferload.locust_adapters import compat, messages
from inferload.locust_adapters.logs import first_of_each, location
from inferload.locust_adapters.tables import listen_for_failures
from inferload.results.verdict.failures import exception_text
from inferload.results.verdict.first_errors import FirstError, RequestKind
from inferload.results.verdict.outcome import INVALID
from inferload.run.process import protocol
from inferload.run.process.greenlets import SilenceClock
from inferload.run.process.protocol import Assignment, windows_from_wire
from inferload.run.process.settings import ProcessSettings
from inferload.run.worker.load_loops import OpenLoop
from inferload.run.worker.worker_run import WorkerRun

if TYPE_CHECKING:
    from inferload.run.worker.user_turns import TaskContext

logger = logging.getLogger(__name__)

MASTER_SILENT_S = 8.0  # after this time without a heartbeat, of which one is due every second, a run is ended
IDLE_SILENT_S = 55.0  # without a run: shorter than Locust's own time-out, after which it exits with 0
_CHECK_S = 0.25
_SIGNAL_WAIT_S = 0.8  # after a signal a worker waits this long for the master's message of the common end of the load

Handler = Callable[[WorkerRun, dict[str, Any]], None]  # of a message of a run


class Worker:
    """One per process that runs users: a worker process, or the single process of a local run.

    `scenario`: digest of the scenario that the worker was started with, which must be the master's; None if it was not named.
    """

    def __init__(self, environment: Any, own: ProcessSettings, scenario: str | None = None) -> None:
        self._environment = environment
        self._runner = environment.runner
        self._own = own
        self._redaction = own.redaction
        self._scenario = scenario
        self._run: WorkerRun | None = None
        self._invalid: WorkerRun | None = None  # the run of the last invalid call
        self._ending = gevent.lock.RLock()
        self._heartbeat_ns = now_ns()
        register = self._runner.register_message
        register(protocol.PING, self._on_ping)
        register(protocol.PREPARE, self._on_prepare, concurrent=True)
        for kind, handle in {
            protocol.WINDOWS: self._on_windows,
            protocol.RATE: self._on_rate,
            protocol.TARGETS: self._on_targets,
            protocol.DRAIN: self._on_drain,
            protocol.ABORT: lambda run, _data: run.turns.give_up(),
            protocol.TAKEN: self._on_taken,
        }.items():
            register(kind, partial(self._of_run, handle))
        environment.events.user_error.add_listener(self._on_user_error)
        listen_for_failures(environment, self._on_failed_request)

    def user(self, free_ns: int | None, class_name: str = "") -> int | None:
        """Run one session for a Locust user in a closed loop; otherwise sleep. Return the instant from which the user is free (ns).

        `free_ns`: instant from which the user has been free, None for a new user. `class_name`: of the user.
        """
        run = self._run
        if run is not None and run.context.open:
            return run.loop.user(free_ns, class_name)
        gevent.sleep(1)
        return None

    def task_context(self) -> "TaskContext":
        """Wait for a run, and return the context of its task sessions."""
        while self._run is None:
            gevent.sleep(0.05)
        return self._run.tasks

    def stop(self) -> None:
        """End the run after a signal. If the master got the signal too, its message sets a common end of the load."""
        run, until_ns = self._run, now_ns() + round(_SIGNAL_WAIT_S * NS_PER_S)
        while run is not None and run.context.open and run.windows.load_start_ns is not None and now_ns() < until_ns:
            gevent.sleep(0.01)
        self.end()

    def end(self) -> None:
        """Drain and finish the current run, if there is one."""
        run = self._run
        if run is not None:
            run.drain(now_ns())  # the master counts later arrivals as dropped
            self._finish(run)

    def wait(self) -> None:
        """Wait until a finished run has sent its last spans, which follow its messages to the master."""
        if self._run is not None and self._run.finished:  # a run that does not finish would block for ever
            with self._ending:
                pass

    def give_up(self) -> None:
        if self._run is not None:
            self._run.turns.give_up()

    # -- the master's absence

    def follow_master(self) -> None:
        """Monitor the master's heartbeats, and end the load at its announced end even without the master's message."""

        def on_heartbeat(**_event: Any) -> None:
            self._heartbeat_ns = now_ns()

        self._environment.events.heartbeat_received.add_listener(on_heartbeat)
        gevent.spawn(self._check_master)

    def _check_master(self) -> None:
        clock = SilenceClock()
        while True:
            run = self._run
            end_ns = None if run is None else run.windows.load_end_ns
            if run is not None and run.context.open and end_ns is not None:
                gevent.sleep(min(_CHECK_S, max(0.0, (end_ns - now_ns()) / NS_PER_S)))
                if now_ns() >= end_ns == run.windows.load_end_ns:
                    run.drain(end_ns)
            else:
                gevent.sleep(_CHECK_S)
            silent_s = min(clock.listening_s(), (now_ns() - self._heartbeat_ns) / NS_PER_S)
            under_way = self._run is not None and not self._run.finished
            if silent_s > (MASTER_SILENT_S if under_way else IDLE_SILENT_S):
                self._leave(silent_s)
                return

    def _leave(self, silent_s: float) -> None:
        """End the run, wait at most `drain_s` for turns in flight, and exit with the code of an invalid run."""
        run = self._run
        code = self._environment.process_exit_code = INVALID
        if run is None or run.finished:
            logger.error("master: no heartbeat for %.1f s; exiting with code %d", silent_s, code)
        else:
            drain_s = run.part.scenario.phases.drain_s
            text = "master: no heartbeat for %.1f s; load stopped, draining at most %g s, then exiting with code %d; turns: %s"
            logger.error(text, silent_s, drain_s, code, run.writer.run_dir)
            giving_up = gevent.spawn_later(drain_s, run.turns.give_up)
            if run.writer.sender is not None:
                run.writer.sender.stop("no heartbeat from the master")
            self.end()
            giving_up.kill()
        self._runner.quit()

    # -- messages of the master

    def _on_ping(self, environment: Any, msg: Any) -> None:
        reply = {
            "sent_ns": msg.data["sent_ns"],
            "mono_ns": now_ns(),
            "wall_ns": wall_ns(),
            "version": __version__,
            "host": socket.gethostname(),
            "scenario": self._scenario,
            "clock": clock_id(),
        }
        self._runner.send_message(protocol.PONG, reply)

    def _on_prepare(self, environment: Any, msg: Any) -> None:
        assignment = Assignment(**msg.data)
        reply: dict[str, Any] = {
            "run_id": assignment.run_id,
            "name": assignment.name,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "error": None,
            "adaptations_left_out": sorted(compat.left_out),
        }
        try:
            if self._run is not None:
                self.end()  # as of a master that was restarted
                first_of_each.take_listeners()  # exceptions of `test_stop` listeners of the earlier run
            run = WorkerRun(assignment, self._own, self._environment, self._on_spent)
            run.start()
            self._run = run
            anchor = {"wall_ns": run.writer.anchor.wall_ns, "mono_ns": run.writer.anchor.mono_ns}
            reply["times_digest"] = run.part.scenario.arrivals.times_digest(assignment.origin)
            reply |= {"anchor": anchor, "folder": str(run.writer.run_dir)}
            reply["readers"] = msgspec.to_builtins([client.reader for client in run.turns.clients])
            reply["delivers"] = run.writer.sender is not None
            reply["program"] = msgspec.to_builtins(self._own.code.of_run(run.part.sessions.agent_files()))
        except (UsageError, OSError) as error:
            reply["error"] = self._redaction(str(error))
        self._runner.send_message(protocol.READY, reply)

    def _of_run(self, handle: Handler, environment: Any, msg: Any) -> None:
        """Handle a message of the current run; one of another run is ignored."""
        run = self._run
        if run is not None and run.part.assignment.run_id == msg.data["run_id"]:
            handle(run, msg.data)

    def _on_windows(self, run: WorkerRun, data: dict[str, Any]) -> None:
        run.set_windows(windows_from_wire(data["windows"], run.part.assignment.offset_ns))

    def _on_rate(self, run: WorkerRun, data: dict[str, Any]) -> None:
        if isinstance(run.loop, OpenLoop):
            run.loop.set_rate(data["at_ns"] + run.part.assignment.offset_ns, data["rate"])

    def _on_targets(self, run: WorkerRun, data: dict[str, Any]) -> None:
        at_ns = data["at_ns"] + run.part.assignment.offset_ns
        run.turns.clients.change(at_ns, [Target(**fields) for fields in data["targets"]], data["lists"])

    def _on_drain(self, run: WorkerRun, _data: dict[str, Any]) -> None:
        run.drain(run.windows.load_end_ns or now_ns())
        gevent.spawn(self._finish, run)

    def _on_taken(self, run: WorkerRun, data: dict[str, Any]) -> None:
        if run.writer.sender is not None:
            run.writer.sender.on_taken(data)

    # -- messages to the master

    def _on_spent(self, run: WorkerRun, at_ns: int) -> None:
        assignment = run.part.assignment
        data = {"run_id": assignment.run_id, "name": assignment.name, "at_ns": at_ns - assignment.offset_ns}
        self._runner.send_message(protocol.SPENT, data)

    def _on_user_error(self, exception: Exception, tb: TracebackType, **_event: Any) -> None:
        """Send the first invalid call of a task: the master stops the run."""
        run = self._run
        if not isinstance(exception, CallError) or run is None or run is self._invalid:
            return
        self._invalid, assignment = run, run.part.assignment
        data = {"run_id": assignment.run_id, "name": assignment.name, "at": location(tb) or "a locustfile"}
        self._runner.send_message(protocol.INVALID_CALL, data | {"text": str(exception)})

    def _on_failed_request(self, request: RequestKind, error: object) -> None:
        """Store the first failure of each request that is not a turn."""
        run = self._run
        if run is not None and not run.counter.errors.has_request(request):
            text = self._redaction(exception_text(error))
            run.counter.errors.add(FirstError.of_request(request, text, now_ns(), run.part.assignment.name))

    def _finish(self, run: WorkerRun) -> None:
        with self._ending:
            if run.finished:
                return
            run.finish()
            messages.send_last_stats(self._runner)
            assignment = run.part.assignment
            sender = {"run_id": assignment.run_id, "name": assignment.name}
            totals = {
                "closed_ns": run.closed_ns - assignment.offset_ns,
                "notes": dict(run.part.sessions.notes),
                "overrun_ns": run.windows.overrun_ns,
                "listeners_raised": first_of_each.take_listeners(),
                "first_errors": run.counter.errors.take(),  # of requests that ended after the last report
                "folder": str(run.writer.run_dir),
                "written": run.writer.records,
                "write_error": run.writer.error,
            }
            self._runner.send_message(protocol.DRAINED, sender | totals)
            if run.writer.sender is not None:
                self._runner.send_message(protocol.DELIVERED, sender | {"error": run.writer.deliver()})
            if run.counter.tracer is not None:
                run.counter.tracer.close()
