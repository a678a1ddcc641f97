"""One run on a virtual clock, from its scenario to its run directory."""

import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from inferload.base import rundir
from inferload.base.clock import NS_PER_S, Anchor
from inferload.base.errors import UsageError
from inferload.client.client import ClientSettings
from inferload.client.connection.target import Target
from inferload.client.requests.bodies import Texts
from inferload.client.turn import TurnTimeouts
from inferload.client.turn_record import TurnResult
from inferload.results.documents.summary_document import Summary
from inferload.scenario.scenario import Scenario
from inferload.turns.record import PhaseWindow, stepped
from inferload.turns.run_windows import phase_windows
from inferload.workload.content import token_estimate
from inferload.workload.content.data import DataContext, DataFindings
from inferload.workload.plan.turn_checks import check_sendable, too_long
from inferload.workload.sessions import Sessions

from . import refused
from .client import VirtualClient
from .documents import WORKER, EndedRun, write
from .load import Load, LoadPart
from .scrapes import Scrapes
from .server import URL, VirtualStart


@dataclass(frozen=True, slots=True)
class VirtualRun:
    """A run on a server start. `origin`: file of the scenario; `overrides`: changes of the command, by key."""

    start: VirtualStart
    scenario: Scenario
    origin: str
    overrides: dict[str, Any]

    def perform(self, folder: Path) -> Summary:
        """Run the sessions, and write the run directory. Raise UsageError if no run is possible."""
        refused.check(self.scenario, self.origin)
        start, scenario, clock = self.start, self.scenario, self.start.clock
        sessions = self._sessions()
        began = datetime.fromtimestamp(clock.wall_ns() / NS_PER_S, UTC)
        run_id = f"{began.strftime('%Y%m%dT%H%M%SZ')}-{secrets.token_hex(4)}"
        salt = scenario.cache.salt or run_id
        rundir.create(folder)
        results: list[TurnResult] = []
        client = VirtualClient(self._settings(), start.server, clock, results.append)
        part = LoadPart(scenario, sessions, Texts(start.vocabulary, scenario.seed), start.server.model, salt)
        load = Load(part, clock, client)
        begun_ns = clock.now_ns()
        interval_ns = round(scenario.server.interval_s * NS_PER_S)
        scrapes = Scrapes(start.server, clock, URL, interval_ns)
        # A scrape at the very start of the load has the counters without its first requests.
        phases = self._conduct(load, begun_ns + interval_ns)
        self._until(lambda: start.server.next_due_ns is None, None)
        scrapes.stop(folder)
        clock.clear()  # of sessions that pause
        return write(
            folder,
            EndedRun(
                run_id=run_id,
                salt=salt,
                scenario=scenario,
                origin=self.origin,
                overrides=self.overrides,
                start=start,
                sessions=sessions,
                load=load,
                results=results,
                anchor=Anchor(clock.anchor.to_wall_ns(begun_ns), begun_ns),
                phases=phases,
            ),
        )

    def _sessions(self) -> Sessions:
        """Open and check the sessions, as the preflight of a run does."""
        scenario, limit = self.scenario, self.start.server.max_model_len
        sessions = Sessions(scenario, DataContext(self.origin))
        found = {}
        for name, opened in sessions.open().items():
            measured = token_estimate.measure(opened.sample(), self.start.tokens)
            found[name] = DataFindings(opened.digest, *(measured or ()))
        check_sendable(scenario, sessions)
        longest = too_long(scenario, sessions, limit)
        if longest is not None and longest.exact and self.start.vocabulary.exactness == "exact":
            raise UsageError(longest.in_words(limit))
        return Sessions(scenario, DataContext(self.origin, found))

    def _settings(self) -> ClientSettings:
        request = self.scenario.request
        limits = request.timeouts
        return ClientSettings(
            target=Target.parse(URL),
            model=self.start.server.model,
            worker=WORKER,
            timeouts=TurnTimeouts(limits.connect_s, limits.first_event_s, limits.between_events_s, limits.turn_s),
            headers=tuple(request.headers.items()),
            endpoint=request.endpoint,
            finish_reasons=True,
        )

    def _conduct(self, load: Load, start_ns: int) -> tuple[PhaseWindow, ...]:
        """Run the phases to the end of the drain, and return them."""
        phases, clock, client = self.scenario.phases, load.clock, load.client
        measure_ns = start_ns + round(phases.warmup_s * NS_PER_S)
        planned_ns = None if phases.measure_s is None else measure_ns + round(phases.measure_s * NS_PER_S)
        bounds_s = self.scenario.arrivals.step_bounds_s
        load.windows.set(stepped(phase_windows(start_ns, measure_ns, planned_ns), bounds_s))
        load.begin()
        self._until(lambda: load.spent_ns is not None, planned_ns)
        end_ns = clock.now_ns() if load.spent_ns is None else load.spent_ns
        windows = phase_windows(start_ns, min(measure_ns, end_ns), end_ns)
        load.windows.set(stepped(windows, bounds_s))
        load.close()
        self._until(lambda: not client.in_flight, end_ns + round(phases.drain_s * NS_PER_S))
        client.give_up_all()
        self._until(lambda: not client.in_flight, None)
        ended_ns = clock.now_ns()
        return tuple(window if window.end_ns else replace(window, end_ns=ended_ns) for window in windows)

    def _until(self, done: Callable[[], bool], until_ns: int | None) -> None:
        """Advance the clock until a condition holds, at most to an instant."""
        clock, server = self.start.clock, self.start.server
        while not done():
            call_ns, server_ns = clock.next_ns, server.next_due_ns
            server_ns = None if server_ns is None else max(server_ns, clock.now_ns())
            due_ns = min((at_ns for at_ns in (call_ns, server_ns) if at_ns is not None), default=None)
            if until_ns is not None and (due_ns is None or due_ns >= until_ns):
                clock.advance(until_ns)
                return
            if due_ns is None:
                raise UsageError("the load does not end; give phases.measure_s")
            if due_ns == call_ns:
                clock.call_next()
            else:
                clock.advance(due_ns)
                server.pump(due_ns)
