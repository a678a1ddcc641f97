"""The scenario file: what a run asks, when, for how long and what it must hold. Frozen once it is loaded.

Defaults stand here and nowhere else; `resolved_text()` writes every one of them out and loads back equal.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from inferload.scenario.files import catalog
from inferload.scenario.files.mistakes import ScenarioError, faults_of
from inferload.scenario.files.writer import as_yaml
from inferload.scenario.files.yaml_text import Parsed, parse
from inferload.scenario.overrides import Override, apply
from inferload.scenario.schema.arrivals import Arrivals, Closed, Rated, TraceTimes
from inferload.scenario.schema.base import AtLeastOne, Flag, Part, Share, SloLimits, Whole, add_up
from inferload.scenario.schema.distributions import NonNegative, Positive
from inferload.scenario.schema.endpoints import ENDPOINTS, Endpoint
from inferload.scenario.schema.fields import AbortConditions, Gates, HeaderName, Headers, Json, Name, Salt, Version
from inferload.scenario.schema.tasks import REACTING, Tasks
from inferload.scenario.schema.workloads import Mix, Workload
from inferload.verdict import gates


class Phases(Part):
    """How long each phase lasts."""

    warmup_s: NonNegative = Field(default=0.0, description="load before the measure phase, kept apart from the numbers")
    warmup_turns: AtLeastOne | None = Field(
        default=None, description="the warm-up is over when so many turns are, and after warmup_s at the latest"
    )
    warmup_until: Literal["steady"] | None = Field(
        default=None, description="steady: the warm-up is over when TTFT is steady, and after warmup_s at the latest"
    )
    measure_s: Positive | None = Field(
        default=None,
        description="seconds that count, at most; null: until the sessions or turns are done, the trace is over, or, in the "
        "web UI, until stopped by hand",
    )
    sessions: AtLeastOne | None = Field(
        default=None,
        description="end when so many sessions are over, counted from the measure phase; null: no such end",
    )
    turns: AtLeastOne | None = Field(
        default=None, description="end when so many turns are over, counted from the measure phase; null: no such end"
    )
    drain_s: NonNegative = Field(default=60.0, description="longest wait for turns in flight after the measure phase")

    @model_validator(mode="after")
    def _some_end(self) -> "Phases":
        if not self.model_fields_set & {"measure_s", "sessions", "turns"}:
            raise ValueError(
                "measure_s is missing: how many seconds count; or give sessions or turns, or measure_s: null for no end in time"
            )
        return self

    @model_validator(mode="after")
    def _one_warmup(self) -> "Phases":
        if self.warmup_turns is not None and self.warmup_until is not None:
            raise ValueError(
                "warmup_turns and warmup_until are both given: a warm-up has one end beside warmup_s; leave one out"
            )
        if self.adaptive and not self.warmup_s:
            name = "warmup_until" if self.warmup_until else "warmup_turns"
            raise ValueError(f"{name} wants a warmup_s: how long the warm-up may last; say for instance warmup_s: 120")
        return self

    @property
    def adaptive(self) -> bool:
        """Whether the warm-up ends by what happens in it."""
        return self.warmup_turns is not None or self.warmup_until is not None

    @property
    def counted(self) -> bool:
        """Whether a number of sessions or turns ends the run."""
        return self.sessions is not None or self.turns is not None


class Timeouts(Part):
    """How long a turn is waited for before it fails."""

    connect_s: Positive = Field(default=10.0, description="name, TCP and TLS together")
    first_event_s: Positive = Field(default=600.0, description="from the request to the first event of the answer")
    between_events_s: Positive = Field(default=120.0, description="between two events of an answer")
    turn_s: Positive = Field(default=3600.0, description="the whole turn")


class ModelShare(Part):
    """One of several models."""

    name: Annotated[str, Field(min_length=1)] = Field(
        description="as the server lists it; a LoRA adapter has a name too"
    )
    share: Share = Field(description="its share of the sessions; all shares add up to 1")


class Request(Part):
    """What goes into each request beside its messages."""

    endpoint: Endpoint = Field(
        default="chat",
        description="where turns are sent, below the API's root: chat (/chat/completions), completions, responses, "
        "or messages (as Anthropic has it)",
    )
    ignore_eos: Flag = Field(
        default=True, description="force every answer to its planned length, so that runs compare (an option of vLLM)"
    )
    continuous_usage: Flag = Field(
        default=False,
        description="ask for token counts in every event: exact tokens per event, at some cost to the server",
    )
    models: Annotated[tuple[ModelShare, ...], Field(strict=False)] = Field(
        default=(), description="several models or LoRA adapters: list of {name, share}; empty: --model of the run"
    )
    extra_body: Json = Field(
        default={}, validate_default=True, description="more keys of the request body: temperature, ..."
    )
    headers: Headers = Field(default={}, validate_default=True, description="more headers; never a key")
    affinity_header: HeaderName | None = Field(
        default=None,
        description="header whose value names the turn's session, X-Session-ID say: routers keep such turns on one "
        "server; null: none",
    )
    timeouts: Timeouts = Field(default=Timeouts(), description="limits of one turn, in seconds")

    @model_validator(mode="before")
    @classmethod
    def _default_of_endpoint(cls, data: Any) -> Any:
        """Lengths are forced by default where the endpoint can."""
        if isinstance(data, dict) and data.get("endpoint") in _UNFORCED and "ignore_eos" not in data:
            return {**data, "ignore_eos": False}
        return data

    @field_validator("models", mode="after")
    @classmethod
    def _models_add_up(cls, models: tuple[ModelShare, ...]) -> tuple[ModelShare, ...]:
        if models:
            add_up([one.share for one in models])
        names = [one.name for one in models]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"model {twice[0]} stands twice; give it one share")
        return models

    @field_validator("ignore_eos", "continuous_usage", mode="after")
    @classmethod
    def _endpoint_can(cls, value: bool, info: ValidationInfo) -> bool:
        endpoint = info.data.get("endpoint", "chat")
        if value and info.field_name == "ignore_eos" and endpoint in _UNFORCED:
            raise ValueError(f"endpoint {endpoint} has no such option: answers end as the model ends them; remove it")
        if value and info.field_name == "continuous_usage" and not ENDPOINTS[endpoint].counts_as_it_goes:
            raise ValueError(f"endpoint {endpoint} has no such option: only chat and completions count as they go")
        return value


_UNFORCED = [name for name, facts in ENDPOINTS.items() if not facts.forces_lengths]


class Cache(Part):
    """How runs are kept from warming each other's prefix cache, and whether this one is to be warm."""

    isolate: Literal["run", "session", "none"] = Field(
        default="run",
        description="who shares cached prefixes: run: the sessions of this run; session: only a session's own "
        "turns; none: everybody, earlier runs included",
    )
    arm: Literal["cold", "warm", "both"] = Field(
        default="cold",
        description="cold: nothing of this run is cached before it begins; warm: the same run is made once before, "
        "uncounted; both: the cold run, then the same again on the cache that it left, and the difference",
    )
    salt: Salt | None = Field(
        default=None,
        description="text that stands for the run where prompts are kept apart: runs with the same salt meet each "
        "other's prefixes; null: a new one for every run",
    )
    block_size: AtLeastOne | None = Field(
        default=None,
        description="tokens in a block of the server's KV cache, for the expected hits; null: what the server says, else 16",
    )
    token_ids: bool = Field(
        default=False,
        strict=True,
        description="have the server (vLLM) say the tokens of each prompt and answer, and tell the expected hits from these: "
        "exact for live agents too, but a prompt comes back as a number for each of its tokens",
    )

    @model_validator(mode="after")
    def _salt_is_used(self) -> "Cache":
        if self.salt is not None and self.isolate == "none":
            raise ValueError("salt: nothing is kept apart with isolate: none; remove one of the two")
        return self

    @property
    def twice(self) -> bool:
        """Whether the run is made twice. With a salt of its own a warm run relies on an earlier run's."""
        return self.arm == "both" or (self.arm == "warm" and self.salt is None)


class Server(Part):
    """How the server's own metrics are read."""

    interval_s: Annotated[float, Field(strict=True, ge=0.05, allow_inf_nan=False)] = Field(
        default=0.25, description="seconds between two scrapes of /metrics; at least 0.05"
    )


class Scenario(Part):
    """A whole scenario file."""

    schema_: Version = Field(
        alias="schema", strict=True, description="version of this file format: 1", json_schema_extra={"const": 1}
    )
    name: Name = Field(description="short name; becomes part of the run directory")
    workload: Workload = Field(description="what is asked: {kind: chat, ...}")
    arrivals: Arrivals = Field(
        description="when sessions start: {kind: closed | constant | poisson | gamma | trace, ...}"
    )
    phases: Phases = Field(description="how long: {warmup_s, measure_s | sessions | turns, drain_s}")
    request: Request = Field(default=Request(), description="what goes into each request beside its messages")
    cache: Cache = Field(default=Cache(), description="prefix-cache isolation")
    seed: Whole = Field(default=0, description="every random choice follows from it")
    slo: SloLimits = Field(default=SloLimits(), description="limits per turn")
    gates: Gates = Field(
        default=(),
        description='what the run must hold, as "p99(ttft_ms) < 2000", "failed_ratio{chat} < 0.01" or "max(requests_waiting) < 5"',
    )
    abort_on: AbortConditions = Field(
        default=(), description='conditions that stop the run early, as "failed_ratio > 0.5 for 5s"'
    )
    server: Server = Field(default=Server(), description="reading the server's metrics")

    @field_validator("gates", mode="after")
    @classmethod
    def _classes_known(cls, value: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        if "workload" in info.data:
            for text in value:
                gates.check_class(gates.parse(text), _class_names(info.data["workload"]))
        return value

    @model_validator(mode="after")
    def _times_known(self) -> "Scenario":
        """A profile's times count from the measure phase: when that begins must be known before."""
        if self.phases.adaptive and isinstance(self.arrivals, Closed | Rated) and self.arrivals.profile is not None:
            name = "warmup_until" if self.phases.warmup_until else "warmup_turns"
            raise ValueError(
                f"phases.{name} does not go with arrivals.profile, whose times count from a measure phase that nobody could place; "
                "give warmup_s alone"
            )
        return self

    @model_validator(mode="before")
    @classmethod
    def _default_of_kind(cls, data: Any) -> Any:
        """A live agent's answers end as the model ends them: one that is forced to a length is no call that can be read.

        Requests of a locustfile's tasks are sent as they are: without a forced length, and without isolation of the cache.
        """
        if not isinstance(data, dict) or not isinstance(data.get("workload"), dict):
            return data
        kind, request, cache = data["workload"].get("kind"), data.get("request", {}), data.get("cache", {})
        if kind in REACTING and isinstance(request, dict) and "ignore_eos" not in request:
            data = {**data, "request": {**request, "ignore_eos": False}}
        if kind == "tasks" and isinstance(cache, dict) and "isolate" not in cache:
            data = {**data, "cache": {**cache, "isolate": "none"}}
        return data

    @model_validator(mode="after")
    def _tasks_are_sent_as_they_are(self) -> "Scenario":
        """A locustfile's tasks write their own requests, in a closed loop."""
        if not self.of_tasks:
            return self
        if not isinstance(self.arrivals, Closed):
            raise ValueError(
                f"workload.kind tasks: Locust's users are a closed loop; not arrivals {self.arrivals.kind}"
            )
        if self.cache.isolate != "none" or self.cache.twice:
            raise ValueError("workload.kind tasks: its requests are sent as they are; remove cache")
        return self

    @property
    def of_tasks(self) -> bool:
        """Whether the tasks of a locustfile send its turns."""
        return isinstance(self.workload, Tasks)

    @model_validator(mode="after")
    def _ids_can_be_said(self) -> "Scenario":
        if self.cache.token_ids and self.request.endpoint not in ("chat", "completions"):
            raise ValueError(
                f"cache.token_ids: endpoint {self.request.endpoint} says no tokens; use chat or completions"
            )
        return self

    @property
    def ends_by_itself(self) -> bool:
        """Whether a run of it comes to an end without anybody's hand."""
        return self.phases.measure_s is not None or self.phases.counted or isinstance(self.arrivals, TraceTimes)

    @property
    def open_loop(self) -> bool:
        """Whether sessions start by the clock, however slow the server is."""
        return not isinstance(self.arrivals, Closed)

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """Classes of its turns; None if tasks of a locustfile name them during the run."""
        return _class_names(self.workload)

    def slo_of(self, class_name: str) -> SloLimits:
        """The limits that turns of a class are judged by: its own, else the scenario's."""
        classes = self.workload.classes if isinstance(self.workload, Mix) else ()
        own = next((one.slo for one in classes if one.name == class_name), None)
        return self.slo if own is None else own

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the resolved scenario as canonical JSON: equal exactly when the two ask the same."""
        data = self.as_data()
        if not self.abort_on:
            del data["abort_on"]  # an empty one is what every earlier version had
        canonical = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(canonical.encode()).hexdigest()

    def as_data(self) -> dict[str, Any]:
        """The resolved scenario as plain data, as a file would say it."""
        return self.model_dump(mode="json", by_alias=True)

    def resolved_text(self) -> str:
        """The resolved scenario as YAML; loads back equal."""
        return as_yaml(self.as_data())

    def changed(self, changes: Mapping[str, Any], origin: str = "changed scenario") -> "Scenario":
        """A scenario with other values at dotted paths, `{"arrivals.users": 20}`, validated as a file is."""
        data = self.as_data()
        for path, value in changes.items():
            *folders, key = path.split(".")
            place = data
            for folder in folders:
                place = place[folder]
            place[key] = value
        return _validated(Parsed(data), origin)


def _class_names(workload: Workload) -> tuple[str, ...] | None:
    if isinstance(workload, Tasks):
        return None
    return tuple(one.name for one in workload.classes) if isinstance(workload, Mix) else (workload.kind,)


def load(name_or_path: str, overrides: Sequence[Override] = ()) -> Scenario:
    """Read a scenario: a file, or the name of a bundled one. ScenarioError names all that is wrong with it."""
    path = catalog.resolve(name_or_path)
    return from_text(catalog.read(path), str(path), overrides)


def from_text(text: str, origin: str, overrides: Sequence[Override] = ()) -> Scenario:
    """Parse and validate a scenario, edited by `overrides`. `origin` precedes each error of the text."""
    parsed = parse(text)
    apply(parsed, overrides)
    return _validated(parsed, origin)


def from_data(data: Mapping[str, Any], origin: str) -> Scenario:
    """The scenario of plain data, validated as a file is."""
    return _validated(Parsed(dict(data)), origin)


def _validated(parsed: Parsed, origin: str) -> Scenario:
    faults = list(parsed.faults)
    if parsed.data is not None:
        try:
            scenario = Scenario.model_validate(parsed.data, context={"origin": origin})
        except ValidationError as error:
            faults += faults_of(error, parsed, Scenario.model_json_schema())
        else:
            if not faults:
                return scenario
    raise ScenarioError(origin, faults)
