"""Types of run.json, the manifest: the master writes it, all pages read it."""

import os
import platform
from datetime import datetime
from importlib.metadata import version
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from inferload import __version__
from inferload.base import clock, rundir
from inferload.base.deployments import Deployment
from inferload.base.json_text import Count, Instant, Number, Seed
from inferload.results.documents.summary_document import Run
from inferload.scenario.scenario import Scenario
from inferload.servers.roles import Role
from inferload.turns.record import PhaseWindow
from inferload.turns.socket_reader import SocketReader
from inferload.workload.plan.load_text import LoadText

Offset = Annotated[int, Meta(ge=-(1 << 61), le=1 << 61)]


class ScenarioFile(Struct, frozen=True, kw_only=True):
    """The scenario. `text`: resolved; `overrides`: what options of the command line changed."""

    name: str = ""
    origin: str | None = None
    digest: str | None = None
    text: str = ""
    overrides: dict[str, Any] = {}

    @classmethod
    def of(cls, scenario: Scenario, origin: str | None, overrides: dict[str, Any]) -> "ScenarioFile":
        text = scenario.resolved_text()
        return cls(name=scenario.name, origin=origin, digest=scenario.digest, text=text, overrides=overrides)


class ProgramFile(Struct, frozen=True, kw_only=True):
    """Python code of the program. `files`: SHA-256 by name, "" if unreadable; `digest`: of names and contents.

    Without the files of inferload's own locustfiles: a `bundled` program has no others, and no digest.
    """

    name: str = ""
    digest: str | None = None
    bundled: bool = False
    files: list[tuple[str, str]] = []


class Anchor(Struct, frozen=True, kw_only=True):
    """An instant on the master's two clocks."""

    wall_ns: Instant
    mono_ns: Instant | None = None


class Phase(Struct, frozen=True, kw_only=True):
    """A phase of the load. `end_wall_ns`: None while it lasts."""

    phase: str = ""
    start_wall_ns: Instant | None = None
    end_wall_ns: Instant | None = None

    @classmethod
    def of(cls, window: PhaseWindow, anchor: clock.Anchor) -> "Phase":
        """Convert a phase from the monotonic clock."""
        end_wall_ns = None if window.end_ns is None else anchor.to_wall_ns(window.end_ns)
        return cls(phase=window.phase, start_wall_ns=anchor.to_wall_ns(window.start_ns), end_wall_ns=end_wall_ns)


class WorkerOutcome(Struct, frozen=True):
    """What the manifest and the counts of a run have of a worker."""

    name: str
    host: str | None = None
    folder: str | None = None
    readers: tuple[SocketReader, ...] = ()  # by target
    lost: bool = False
    left: bool = False  # it drained by itself while the run went on
    missing_reports: Count = 0
    written: Count | None = None  # records on its disk at its end; None: unknown
    at_hand: Count | None = None  # records in the run directory; None: not counted
    held_back: str | None = None  # why it did not send all of its records
    write_error: str | None = None  # of its records: the first write that failed, or the removal of files


class Worker(WorkerOutcome, frozen=True, kw_only=True):
    """A worker. Offsets are its clocks minus the master's."""

    stripe: Count | None = None
    pid: int | None = None
    anchor: Anchor | None = None
    reader: str | None = None  # native, python or mixed
    clock_offset_ns: Offset | None = None
    clock_rtt_ns: Count | None = None
    one_clock: bool = False
    wall_offset_ns: Offset | None = None
    turns: Count | None = None
    longest_silence_s: Number | None = None


class SentBeforeLoad(Struct, frozen=True, kw_only=True):
    """Requests that checked a server before the load."""

    requests: Count = 0
    served: Count = 0
    input_tokens: Count = 0
    output_tokens: Count = 0
    finish_reasons: bool = False


class TargetServer(Struct, frozen=True, kw_only=True):
    """A server under test."""

    url: str = ""
    api: str = ""
    proxy: str | None = None
    gateway: str | None = None
    engine: str | None = None
    version: str | None = None
    stands_for: str | None = None
    models: list[str] = []
    max_model_len: Count | None = None
    before_load: SentBeforeLoad = SentBeforeLoad()


class Manifest(Struct, frozen=True, kw_only=True):
    """run.json."""

    format: int = rundir.FORMAT
    id: str | None = None
    scenario: ScenarioFile = ScenarioFile()
    program: ProgramFile | None = None
    seed: Seed | None = None
    target: str | None = None
    targets: list[TargetServer] = []
    model: str | None = None
    models: list[str] = []
    endpoint: str | None = None
    max_tokens_field: str | None = None
    engine: str | None = None
    variant: Deployment | None = None
    max_model_len: Count | None = None
    versions: dict[str, str | None] = {}
    adaptations_left_out: list[dict[str, Any]] = []
    hosts: list[str] = []
    machine: dict[str, Any] = {}
    started_at: str = ""
    clock: Literal["real", "virtual"] = "real"
    anchor: Anchor | None = None
    phases: list[Phase] = []
    steady_s: Number | None = None
    workers: list[Worker] = []
    metrics_urls: list[str] | None = None
    roles: dict[str, Role] = {}
    insecure: bool = False
    key_withheld_from: list[str] = []
    cache_isolation: dict[str, str] = {}
    workload: dict[str, Any] = {}
    prompt_tokens: dict[str, Any] = {}
    counts: dict[str, Any] | None = None
    stop_reason: str | None = None
    complete: bool = False
    load: LoadText | None = None

    @property
    def deployed(self) -> Deployment:
        """The server as `inferload deploy` started it; all is unknown of another one."""
        return self.variant or Deployment()

    @property
    def stand_ins(self) -> tuple[str, ...]:
        """Models and devices whose times the simulated servers have; empty without such servers, or without a record of it."""
        return tuple(dict.fromkeys(target.stands_for for target in self.targets if target.stands_for))

    @property
    def run(self) -> Run:
        return Run(
            id=self.id,
            scenario=self.scenario.name or None,
            digest=self.scenario.digest,
            locustfile=None if self.program is None else self.program.digest,
            seed=self.seed,
            target=self.target,
            model=self.model,
            engine=self.engine,
            stands_for=" and ".join(self.stand_ins) or None,
            started_at=self.started_at or None,
            clock=self.clock,
            versions=self.versions,
        )

    def known_of(self, run: Run) -> Run:
        """Return a summary's identity of the run; what it lacks is from the manifest."""
        known = {name: value for name, value in msgspec.structs.asdict(run).items() if value not in (None, {})}
        return msgspec.structs.replace(self.run, **known)


def versions(server: str | None) -> dict[str, str | None]:
    """Return the versions of inferload, Locust, Python and the server."""
    return {
        "inferload": __version__,
        "locust": version("locust"),
        "python": platform.python_version(),
        "server": server,
    }


def machine() -> dict[str, Any]:
    return {"system": platform.system(), "release": platform.release(), "cpus": os.cpu_count()}


def started_at(at: datetime) -> str:
    """Return the start of a run, in ISO 8601."""
    return at.isoformat(timespec="milliseconds")
