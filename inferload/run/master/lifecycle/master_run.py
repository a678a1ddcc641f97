"""One run on the master: its settings and parts, set-up and end. The load is in `run_load`, workers' messages in `inbox`."""

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gevent
from msgspec import Struct, to_builtins

from inferload.base import rundir
from inferload.base.clock import Anchor, calendar_now, is_virtual, token_hex
from inferload.locust_adapters import adaptations, compat, messages, runners
from inferload.locust_adapters.compat import Adaptation
from inferload.locust_adapters.logs import first_of_each
from inferload.results.documents.summary_document import Summary
from inferload.results.summarise.counts import Arm, Others
from inferload.run.live.recorder import Recorder
from inferload.run.master import run_redaction
from inferload.run.master.lifecycle import delivery, other_requests
from inferload.run.master.lifecycle.cache_passes import Previous
from inferload.run.master.lifecycle.marks import Marks, SentMarks
from inferload.run.master.lifecycle.phases import GivenUp, LoadStage, RunEnd, RunPhases, RunState
from inferload.run.master.lifecycle.preflight import Preflight
from inferload.run.master.lifecycle.run_load import RunLoad
from inferload.run.master.lifecycle.scraper_process import Scraping
from inferload.run.master.lifecycle.steering import Steering
from inferload.run.master.workers import worker_setup
from inferload.run.master.workers.inbox import Inbox
from inferload.run.master.workers.turn_receiver import TurnReceiver
from inferload.run.master.workers.workers import Member, Roster, WorkerChannel
from inferload.run.process.program_code import ProgramCode
from inferload.run.process.protocol import Assignment
from inferload.run.process.settings import ProcessSettings
from inferload.run.virtual import server as virtual_server
from inferload.turns.record import PhaseWindow

if TYPE_CHECKING:
    from inferload.run.master.lifecycle.following import Following
    from inferload.run.virtual.scraping import VirtualScraping


class RunDirectory(Struct, frozen=True):
    """The run directory, and the token by which workers recognize it."""

    path: Path
    token: str = ""


class RunSetup(Struct, frozen=True):
    """Inputs of a run after the preflight. `own`: settings of this process. `earlier`: the preceding pass, with the same salt."""

    preflight: Preflight
    directory: RunDirectory
    own: ProcessSettings
    arm: Arm = "cold"
    earlier: Previous | None = None
    most_workers: int | None = None  # that the run uses; None: all that are connected


class MasterRun:
    """One run, after the preflight."""

    def __init__(self, setup: RunSetup, runner: Any) -> None:
        self.setup = setup
        self.preflight, self.directory, self.own = setup.preflight, setup.directory, setup.own
        self.spec = spec = setup.preflight.spec
        folder = setup.directory.path
        self.redaction = run_redaction.of_run(setup.own.redaction, spec)
        self.anchor = Anchor.take()
        self.started = calendar_now()
        self.run_id = run_id = f"{self.anchor.utc.strftime('%Y%m%dT%H%M%SZ')}-{token_hex(4)}"
        self.summary: Summary | None = None  # at the end
        self.program = ProgramCode()  # once the workers are ready
        self.marks = marks = Marks(folder / rundir.MARKS, self.anchor, self.redaction)
        self.roster = roster = Roster(runners.client_ids(runner, setup.most_workers))
        self.phases = RunPhases(spec.scenario.arrivals.step_bounds_s)
        self.state = state = RunState(run_id, roster, marks, self.phases, RunEnd(marks))
        self.stop = state.end.stop  # begins the drain
        self._channel = WorkerChannel(run_id, roster, runner)
        self._records = TurnReceiver(folder / rundir.TURNS, run_id, setup.own.max_turns_mb, self._channel.acknowledge)
        self.inbox = Inbox(
            state, spec.scenario, setup.preflight.sessions.classes, self._records, setup.preflight.canaries
        )
        self.steadiness = self.inbox.steadiness
        self.steering = Steering(spec, marks, self._channel.announce_rate)
        user_counts = partial(runners.user_counts, runner)
        self.load = RunLoad(
            spec, state, self.inbox, self._channel, self.steering, user_counts, setup.preflight.sessions
        )
        self.scraping: Scraping | VirtualScraping | None = None
        self.following: Following | None = None
        self._sent_marks: SentMarks | None = None
        self._looking: gevent.Greenlet | None = None
        self._runner = runner
        self._ignored_before = messages.ignored_messages.counts.copy()

    # -- inputs and parts

    @property
    def salt(self) -> str:
        """Text that separates the prompts from those of other runs in prefix caches."""
        earlier = self.setup.earlier
        return (self.spec.scenario.cache.salt or self.run_id) if earlier is None else earlier.salt

    @property
    def ending(self) -> bool:
        """True from the end of the load on, planned or not."""
        return self.stop.is_set() or self.state.end.over

    @property
    def servers(self) -> tuple[list[str], list[str]]:
        """Addresses of all servers and metrics pages so far."""
        if self.following is not None:
            return list(self.following.every), list(self.following.every_page)
        return [target.url for target in self.spec.targets], list(self.preflight.metrics_urls)

    @property
    def recorder(self) -> Recorder:
        """What the workers' reports say of the last seconds."""
        self.inbox.settle()
        return self.inbox.recorder

    @property
    def windows(self) -> tuple[PhaseWindow, ...]:
        """Phases as far as they are known; empty before the load."""
        return self.phases.windows

    @property
    def left_out(self) -> tuple[Adaptation, ...]:
        """Adaptations of Locust that this process or a worker left out."""
        names = {name for member in self.roster.members for name in member.facts.get("adaptations_left_out", ())}
        return adaptations.left_out_of(names | compat.left_out, workers=self.roster.remote)

    @property
    def left_out_texts(self) -> tuple[str, ...]:
        """Those of them without which figures can be wrong: name and consequence."""
        return tuple(f"{left.name}: {left.consequence}" for left in self.left_out if left.figures)

    def others(self) -> Others:
        """Return requests other than turns and exceptions of tasks, as counted by Locust."""
        self.inbox.count_listeners(first_of_each.take_listeners())
        return other_requests.counted(self._runner, self.state.end.users, self.inbox.listeners_raised)

    def users_now(self) -> int:
        """Return the number of Locust's users that run."""
        return int(self._runner.user_count)

    # -- requests of users

    def request_stop(self, reason: str, *, early: bool = False) -> None:
        """Begin the drain; the first reason counts. `early`: not a planned end, unless the load has ended already."""
        self.state.end.request_stop(reason, early=early)

    # -- the run

    def prepare(self, check_stop: Callable[[], None]) -> None:
        """Compare clocks, send assignments, begin to scrape; UsageError if a worker cannot take part.

        `check_stop`: called while workers are awaited; raises an exception after a stop.
        """
        scenario, members = self.spec.scenario, self.roster.members
        check = partial(worker_setup.check_connected, members, self._channel.clients, check_stop)
        worker_setup.check_arrivals(scenario, self.preflight.sessions, len(members))
        if self.preflight.metrics_urls:  # before the workers' set-up, which the first scrapes overlap
            self.scraping = self._scraping(self.directory.path / rundir.SERVER_METRICS, scenario.server.interval_s)
        worker_setup.compare_clocks(members, self._channel.send, check)
        worker_setup.check_alike(members, self.spec.file_digest)
        worker_setup.send_assignments(
            members,
            self._assignment,
            self._channel.send,
            self._channel.clients,
            check,
            reads_files=self.preflight.data.has_files,
        )
        worker_setup.log_readers(members)
        worker_setup.check_times(scenario, self.spec.origin, members)
        self.program = self.own.code.of_run(self.preflight.sessions.agent_files())
        worker_setup.check_programs(members, self.program)
        if self.scraping is not None:
            self.scraping.wait_for_first(len(self.preflight.metrics_urls))
        if not is_virtual():
            self._sent_marks = SentMarks(self.directory.path, self.marks)
        if self.spec.followed:
            from inferload.run.master.lifecycle.following import Following  # of runs that name lists

            scraping = self.scraping if isinstance(self.scraping, Scraping) else None
            self.following = Following(self.spec.followed.read, self.preflight, self.marks, self._channel, scraping)
            self._looking = gevent.spawn(self.following.look_on)

    def gather(self) -> None:
        """After the drain, wait until the turn records of all workers are written in the run directory."""
        end, folder = self.state.end, self.directory.path / rundir.TURNS
        end.enter(LoadStage.DELIVERING)
        end.complete = delivery.finish(
            self.roster, self._records, folder, self.marks, lambda: end.given_up is GivenUp.RECORDS
        )

    def end(self) -> None:
        """Mark messages to the master that were ignored, and end the scrapes."""
        self._close_inputs()
        ignored = messages.ignored_messages.counts - self._ignored_before
        if ignored:
            text = ", ".join(f"{reason}: {count}" for reason, count in sorted(ignored.items()))
            self.marks.add("messages_ignored", f"messages to the master ignored ({text})", counts=dict(ignored))
        if self.scraping is not None:
            self.scraping.stop()

    def _scraping(self, folder: Path, interval_s: float) -> "Scraping | VirtualScraping":
        urls, virtual = self.preflight.metrics_urls, virtual_server.current
        if virtual is None:
            return Scraping(folder, urls, interval_s, self.own, self.anchor, roles=self.preflight.roles)
        from inferload.run.virtual.scraping import VirtualScraping  # of virtual runs only

        return VirtualScraping(folder, urls, interval_s, virtual.server.simulated, self.anchor)

    def close(self) -> None:
        """Release the resources of a run without load."""
        self._records.close()
        if self.scraping is not None:
            self.scraping.stop()
        self._close_inputs()
        self.marks.flush()

    def _close_inputs(self) -> None:
        if self._looking is not None:
            self._looking.kill()
        if self._sent_marks is not None:
            self._sent_marks.close()
            self._sent_marks = None

    def _scenario_text(self) -> str:
        """Return the scenario for the workers, with the key of the limit that the servers take."""
        scenario, found = self.spec.scenario, self.preflight.proven.request.max_tokens_field
        if found != scenario.request.max_tokens_field:
            scenario = scenario.changed({"request.max_tokens_field": found}, self.spec.origin)
        return scenario.resolved_text()

    def _assignment(self, member: Member) -> Assignment:
        spec, preflight = self.spec, self.preflight
        return Assignment(
            run_id=self.run_id,
            salt=self.salt,
            scenario_text=self._scenario_text(),
            origin=spec.origin,
            stripe=member.stripe,
            stripes=len(self.roster),
            name=member.name,
            targets=[asdict(target) for target in spec.targets],
            model=preflight.facts.model,
            takes_salt=preflight.salts,
            finish_reasons=[facts.sent.finish_reasons for facts in preflight.proven.servers],
            vocabulary=preflight.counted.vocabulary.to_wire(),
            run_dir=str(self.directory.path),
            token=self.directory.token,
            offset_ns=member.clock.offset_ns,
            rate=spec.rate,
            origins=None if self.own.origins is None else sorted(self.own.origins),
            lists=sorted(self.own.lists),
            follows=bool(spec.followed.hosts),
            data=preflight.data.to_wire(),
            canary=None if preflight.canaries is None else to_builtins(preflight.canaries.orders),
        )
