"""Execution of a sweep: server starts and runs, each with an entry in the journal."""

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from inferload.base import clock, run_options, rundir
from inferload.base.errors import UsageError
from inferload.base.numbers import duration
from inferload.base.virtual_orders import Order, Ordered
from inferload.campaign import journal as entries
from inferload.campaign import runner
from inferload.campaign.runner import Runner
from inferload.campaign.sweep.definition import Load, Sweep
from inferload.campaign.sweep.plan import PlannedRun, ServerStart
from inferload.campaign.virtual_runs import Performer
from inferload.deploy.launcher import launch, probe, server_state
from inferload.deploy.launcher.launch import ProgressCallback
from inferload.deploy.launcher.server_state import LocalServer
from inferload.deploy.servers import in_memory, local
from inferload.deploy.servers.engines import ServerSpec, command_of


@dataclass(eq=False)
class SweepRunner:
    """Executes the remaining runs of a sweep. Failures are recorded, and it continues. `_loads`: the scenarios by name."""

    _sweep: Sweep
    _folder: Path
    _loads: Mapping[str, Load]
    _journal: entries.Journal
    _progress: ProgressCallback

    def __post_init__(self) -> None:
        self._runner = Runner(self._folder, self._journal)
        # vLLM on the CPU would take all cores from the client.
        cores = launch.split_cores(launch.available_cores() if self._sweep.engine == "vllm-cpu" else ())
        self._client_cores: Sequence[int] | None = cores[0]
        self._server_cores: tuple[int, ...] | None = cores[1]

    def perform(self, plan: list[ServerStart]) -> None:
        """Execute the runs in order. Completed runs are kept on Ctrl-C."""
        total = sum(len(start.runs) for start in plan)
        done = done_before = total - sum(len(self._to_make(start)) for start in plan)
        start_ns = clock.now_ns()
        with Performer() as performer:
            for start in plan:
                if not (remaining := self._to_make(start)):
                    continue
                for run in remaining:
                    if self._journal.outcome(run.folder) is not None:
                        self._journal.write(entries.RunRetried(folder=run.folder))
                left = _remaining(start_ns, done - done_before, total - done)
                self._progress(f"{done}/{total} runs{left}; starting {start.variant}")
                if self._sweep.clock == "real":
                    self._run_on_server(start, remaining)
                else:
                    self._run_on_clock(start, remaining, performer)
                done += len(remaining)

    def _to_make(self, start: ServerStart) -> list[PlannedRun]:
        """Return the runs to be made: all of a start if a later one depends on the earlier ones by the server's state."""
        remaining = [run for run in start.runs if self._journal.outcome(run.folder) is None]
        of_one_server = self._sweep.keep_cache and start.variant not in self._sweep.hosts
        # The noise of a virtual server continues over the runs of its start.
        return list(start.runs) if remaining and (of_one_server or self._sweep.clock == "virtual") else remaining

    def _run_on_server(self, start: ServerStart, remaining: list[PlannedRun]) -> None:
        if (url := self._sweep.hosts.get(start.variant)) is not None:
            for run in remaining:
                entry = self._run(run, url)
                runner.stop_if_refused(entry, start.variant, self._journal.beside(run.folder))
            return
        try:
            server = self._up(start)
        except UsageError as error:
            for run in remaining:
                self._journal.write(entries.RunEnded(folder=run.folder, cause=f"the server did not start: {error}"))
            self._progress(f"  {start.variant}: {' '.join(str(error).split())}")
            return
        try:
            for position, run in enumerate(remaining):
                # Cache salts also isolate runs, unless the scenario disables them.
                if position and not self._sweep.keep_cache:
                    probe.empty_prefix_cache(server_state.reachable(server.host), server.port)
                self._run(run, server.url, lambda: _ended(server))
        finally:
            self._down(server)

    def _run_on_clock(self, start: ServerStart, remaining: list[PlannedRun], performer: Performer) -> None:
        variant = self._sweep.variant(start.variant)
        order = Order(
            options=list(in_memory.options_of(variant)),
            facts=in_memory.facts_of(variant, self._sweep.prices.over(variant.prices)),
            seed=Random(f"{self._sweep.seed}/start/{start.number}").getrandbits(32),
            runs=[self._ordered(run, first=run is remaining[0]) for run in remaining],
        )
        for run, made in zip(remaining, performer.perform(order), strict=True):
            code, took_s = (None, 0.0) if made is None else (made.exit_code, made.took_s)
            entry = runner.ended(self._folder, run.folder, code, took_s)
            self._journal.write(entry)
            self._report(entry)

    def _ordered(self, run: PlannedRun, *, first: bool) -> Ordered:
        folder, source = self._folder / run.folder, self._loads[run.scenario].source
        rundir.set_aside(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        values = {**self._options(run), "clock": "virtual", "no_report": True, "run_dir": str(folder.absolute())}
        return Ordered(
            argv=["--headless", "--scenario", source, *run_options.words(values), *self._limit()],
            log=str(folder.with_suffix(".log")),
            report=str(folder.absolute()) if self._sweep.reports else "",
            empties_cache=not first and not self._sweep.keep_cache,
        )

    def _up(self, start: ServerStart) -> LocalServer:
        variant = self._sweep.variant(start.variant)
        port, cores = port_for(self._journal), self._server_cores
        spec = ServerSpec(self._sweep.engine, variant.model, port=port, cores=cores, variant=variant)
        command = command_of(spec)
        start_id = secrets.token_hex(8)
        self._journal.write(entries.ServerStarting(start_id=start_id, port=spec.port, variant=start.variant))
        with ExitStack() as undo:
            server = local.start(spec, command, start_id)
            undo.callback(self._down, server)  # after Ctrl-C too: a server in its own session gets no SIGINT
            took_s = launch.wait(server, command.ready_s, lambda text: None)
            self._journal.write(entries.ServerReady(port=server.port, took_s=round(took_s, 3)))
            server = local.described(server, took_s, self._sweep.prices.over(variant.prices))
            server_state.remember(server)
            undo.pop_all()
        return server

    def _down(self, server: LocalServer) -> None:
        launch.stop(server)
        self._journal.write(entries.ServerDown(start_id=server.start_id))

    def _run(self, run: PlannedRun, url: str, fault: Callable[[], str | None] = lambda: None) -> entries.RunEnded:
        options = {**self._options(run), "no_report": not self._sweep.reports}
        source, folder = self._loads[run.scenario].source, self._folder / run.folder
        with launch.on_cores(self._client_cores):
            argv = runner.command(source, url, folder, options, self._limit())
            entry = self._runner.run(run.folder, argv, fault=fault)
        self._report(entry)
        return entry

    def _report(self, entry: entries.RunEnded) -> None:
        if found := runner.problem(self._runner.folder, entry):
            self._progress(f"  {entry.folder}: {found}")

    def _options(self, run: PlannedRun) -> dict[str, Any]:
        return {"seed": str(run.seed), "set": self._settings(run)}

    def _settings(self, run: PlannedRun) -> list[str]:
        """Return the changes to the scenario of a run. Nothing empties a running server between pairs: each has its own salt."""
        load = self._loads[run.scenario]
        cache, settings = load.scenario.cache, list(load.settings)
        if not self._sweep.keep_cache or run.variant not in self._sweep.hosts or cache.isolate != "none":
            return settings
        if self._journal.salt is None:
            self._journal.write(entries.SaltChosen(salt=secrets.token_hex(8)))
        of_pair = {**cache.model_dump(), "isolate": "run", "salt": f"{self._journal.salt}-{run.pair}"}
        others = [text for text in settings if text.partition("=")[0].strip().partition(".")[0] != "cache"]
        return [*others, f"cache={json.dumps(of_pair)}"]

    def _limit(self) -> list[str]:
        seconds = self._sweep.measure_s
        return [] if seconds is None else ["--run-time", f"{seconds:g}"]


def _ended(server: LocalServer) -> str | None:
    return None if server_state.group(server) else f"the server ended during the run: {launch.why(server)}"


def _remaining(start_ns: int, made: int, to_make: int) -> str:
    run_s = (clock.now_ns() - start_ns) / 1e9 / max(1, made)
    return f", about {duration(round(run_s * to_make))} left" if made else ""


def port_for(journal: entries.Journal) -> int:
    """Return the port of the sweep's servers: the recorded port, or a new one if another program uses it."""
    if journal.port is not None and probe.is_free("127.0.0.1", journal.port):
        return journal.port
    port = probe.free_port()
    journal.write(entries.PortChosen(port=port))
    return port


def clear_up(journal: entries.Journal) -> None:
    """Stop the run and the server of a killed sweep."""
    journal.end_orphans()
    for server in server_state.remembered():
        if server.start_id in journal.servers:
            launch.stop(server)
            journal.write(entries.ServerDown(start_id=server.start_id))
