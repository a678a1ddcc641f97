"""Scenario file: workload, arrivals, phases and gates of a run, as an immutable model.

The models hold all defaults; `resolved_text()` writes them out, and its text loads back equal.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from inferload.figures.limits import abort_condition
from inferload.figures.limits.gate import Gate
from inferload.figures.limits.parsed_gate import parse_gate
from inferload.scenario.files import catalog, typed_yaml
from inferload.scenario.files.yaml_text import Parsed, as_yaml, parse
from inferload.scenario.overrides import ADDED_LATER, Override, apply
from inferload.scenario.schema.agent import BUNDLED_AGENT, LiveAgentWorkload
from inferload.scenario.schema.base import AtLeastOne, Limit, ScenarioPart, Seed, SloLimits, one_of, optional
from inferload.scenario.schema.canary import Canary
from inferload.scenario.schema.chat import Chat, Texts
from inferload.scenario.schema.distributions import MOST, NonNegative, Positive
from inferload.scenario.schema.endpoints import ENDPOINTS, OF_TEXTS, TEXT_KEYS, WITH_QUERY, names_of
from inferload.scenario.schema.fields import AbortConditions, Gates, Name, Rules, Salt, Version
from inferload.scenario.schema.load.arrivals import Arrivals
from inferload.scenario.schema.replay import Replay
from inferload.scenario.schema.request import ClassRequest, RequestOptions
from inferload.scenario.schema.tasks import REACTING, Tasks
from inferload.scenario.schema.workloads import Mix, MixClass, Workload


class Phases(ScenarioPart):
    """Lengths of the phases. The run needs measure_s, sessions or turns."""

    warmup_s: NonNegative = optional(0.0, "seconds of load before the measure phase, excluded from the results")
    warmup_turns: AtLeastOne | None = optional(
        None, "end the warm-up after so many turns, at the latest after warmup_s; null: warmup_s"
    )
    warmup_until: Literal["steady", "primed"] | None = optional(
        None,
        "end the warm-up, at the latest after warmup_s: steady: when TTFT is steady; primed: when the turns of "
        "workload.start are over; null: after warmup_s",
    )
    measure_s: Positive | None = optional(
        None,
        "longest measure phase, in seconds; null: until sessions or turns are reached, the trace ends, or the "
        "web UI stops the run",
    )
    sessions: Limit | None = optional(
        None, "end the run after so many sessions of the measure phase; null: no such limit"
    )
    turns: Limit | None = optional(None, "end the run after so many turns of the measure phase; null: no such limit")
    drain_s: NonNegative = optional(60.0, "longest wait for turns in flight at the end, in seconds")

    @model_validator(mode="after")
    def _some_end(self) -> "Phases":
        if not self.model_fields_set & {"measure_s", "sessions", "turns"}:
            raise ValueError(
                "measure_s is missing; give measure_s, sessions or turns, or measure_s: null for no time limit"
            )
        return self

    @model_validator(mode="after")
    def _one_warmup(self) -> "Phases":
        if self.warmup_turns is not None and self.warmup_until is not None:
            raise ValueError("warmup_turns and warmup_until are both given; remove one")
        if self.adaptive and not self.warmup_s:
            name = "warmup_until" if self.warmup_until else "warmup_turns"
            raise ValueError(f"{name} needs warmup_s, the longest warm-up; add for example warmup_s: 120")
        return self

    @property
    def adaptive(self) -> bool:
        """True if the end of the warm-up depends on the turns."""
        return self.warmup_turns is not None or self.warmup_until is not None

    @property
    def counted(self) -> bool:
        """True if a number of sessions or turns ends the run."""
        return self.sessions is not None or self.turns is not None


class Cache(ScenarioPart):
    """Prefix-cache isolation between runs and sessions, and cold or warm runs."""

    isolate: Literal["run", "session", "turn", "none"] = optional(
        "run",
        "scope of shared cached prefixes: run: the sessions of this run; session: the turns of one session; "
        "turn: no other prompt; none: all clients and earlier runs; the default is none for the workload tasks",
    )
    arm: Literal["cold", "warm", "both"] = optional(
        "cold",
        "cold: one run with a cold cache; warm: a warming run first, which is in no result; both: a cold run, then "
        "the same run with its warm cache, and the comparison of the two",
    )
    salt: Salt | None = optional(
        None, "cache salt of the run; runs with the same salt share cached prefixes; null: a new salt for each run"
    )
    block_size: AtLeastOne | None = optional(
        None, "tokens per KV-cache block of the server, for the expected hits; null: as the server reports, else 16"
    )

    @model_validator(mode="after")
    def _salt_is_used(self) -> "Cache":
        if self.salt is not None and self.isolate == "none":
            raise ValueError("salt has no effect with isolate: none; remove one of them")
        return self

    @property
    def twice(self) -> bool:
        """True if the run is repeated. A warm run with its own salt uses the cache of an earlier run instead."""
        return self.arm == "both" or (self.arm == "warm" and self.salt is None)


class ServerOptions(ScenarioPart):
    """Scraping of the server's metrics."""

    interval_s: Annotated[float, Field(strict=True, ge=0.05, le=MOST, allow_inf_nan=False)] = optional(
        0.25, "scrape interval of /metrics, in seconds"
    )


class Scenario(ScenarioPart):
    """Scenario file."""

    schema_: Version = Field(
        alias="schema", strict=True, description="version of the file format: 1", json_schema_extra={"const": 1}
    )
    name: Name = Field(
        description="name, part of the run directory's name: at most 64 letters, digits, '.', '_' or '-'"
    )
    workload: Workload = Field(description=f"content of the sessions: {one_of(Workload)}")
    arrivals: Arrivals = Field(description=f"start of the sessions: {one_of(Arrivals)}")
    phases: Phases = Field(description="lengths of the phases: {warmup_s, measure_s | sessions | turns, drain_s}")
    request: RequestOptions = optional(RequestOptions(), "endpoint and options of each request")
    cache: Cache = optional(Cache(), "prefix-cache isolation, cold and warm runs")
    seed: Seed = optional(0, "seed of all random numbers: texts, lengths, times")
    slo: SloLimits = optional(SloLimits(), "limits of a good turn, for goodput: {ttft_ms, ...}")
    gates: Gates = optional(
        (),
        'pass criteria of the run, such as "p99(ttft_ms) < 2000", "failed_ratio{chat} < 0.01" or '
        '"max(requests_waiting) < 5"; empty: no turn may fail',
    )
    abort_on: AbortConditions = optional((), 'conditions that abort the run, such as "failed_ratio > 0.5 for 5s"')
    rules: Rules | None = optional(
        None, "published rules that the results are compared with, such as agentx; null: none"
    )
    server: ServerOptions = optional(ServerOptions(), "scraping of the server's metrics")
    canary: Canary | None = optional(
        None, "prompts beside the turns, to check answers under load: {share, prompts, ...}; null: none"
    )

    @model_validator(mode="after")
    def _times_known(self) -> "Scenario":
        """Refuse a profile, whose times count from the measure phase, with a warm-up of unknown length."""
        if self.phases.adaptive and self.arrivals.load_profile is not None:
            name = "warmup_until" if self.phases.warmup_until else "warmup_turns"
            raise ValueError(
                f"phases.{name} cannot be combined with arrivals.profile, which needs a fixed start of the measure phase; "
                "give warmup_s alone"
            )
        return self

    @model_validator(mode="after")
    def _users_are_known(self) -> "Scenario":
        """Check what keys of replays need: a constant number of users, and a warm-up."""
        replays = [each for each in self._workloads if isinstance(each, Replay)]
        changing = self.arrivals.most_users is None or self.arrivals.load_profile is not None
        for key in ("start", "max_system_idle_s") if changing else ():
            if any(getattr(each, key) is not None for each in replays):
                raise ValueError(
                    f"workload.{key} needs a constant number of users; use arrivals.kind closed without profile"
                )
        begun = any(each.start is not None for each in replays)
        if begun and not self.phases.warmup_s:
            raise ValueError(
                "workload.start sends turns in the warm-up; add its longest time, such as phases.warmup_s: 600"
            )
        if self.phases.warmup_until == "primed" and not begun:
            raise ValueError("phases.warmup_until: primed needs workload.start; add it, or use steady")
        return self

    @model_validator(mode="before")
    @classmethod
    def _default_of_kind(cls, data: Any) -> Any:
        """Set defaults by kind of workload: no forced length for live agents and tasks, no cache isolation for tasks.

        A tool call that is forced to a length cannot be parsed. Requests of tasks are sent unchanged.
        """
        if not isinstance(data, dict) or not isinstance(data.get("workload"), dict):
            return data
        kind, request, cache = data["workload"].get("kind"), data.get("request", {}), data.get("cache", {})
        if kind in REACTING and isinstance(request, dict) and "ignore_eos" not in request:
            data = {**data, "request": {**request, "ignore_eos": False}}
        if kind == "texts" and isinstance(request, dict) and "endpoint" not in request:
            data = {**data, "request": {**request, "endpoint": "embeddings"}}
        elif kind == "texts" and isinstance(request, dict) and request.get("endpoint") in WITH_QUERY:
            data = {**data, "workload": {"query_tokens": 32, **data["workload"]}}
        if kind == "tasks" and isinstance(cache, dict) and "isolate" not in cache:
            data = {**data, "cache": {**cache, "isolate": "none"}}
        return data

    @model_validator(mode="after")
    def _tasks_are_sent_as_they_are(self) -> "Scenario":
        """Check the limits of tasks: a closed loop without cache isolation."""
        if not self.of_tasks:
            return self
        if self.open_loop:
            raise ValueError(
                f"workload.kind tasks needs a closed loop, arrivals.kind is {self.arrivals.kind}; use closed"
            )
        if self.cache.isolate != "none" or self.cache.twice:
            raise ValueError("workload.kind tasks: requests are sent unchanged; remove cache")
        return self

    @model_validator(mode="after")
    def _chats_have_their_endpoints(self) -> "Scenario":
        """Check that the endpoint keeps a history that is left to the server, and takes a seed for each sample of a group."""
        endpoint = ENDPOINTS[self.request.endpoint]
        chats = [each for each in self._workloads if isinstance(each, Chat)]
        if not endpoint.keeps_history and any(chat.history == "server" for chat in chats):
            names = " or ".join(names_of(lambda row: row.keeps_history))
            raise ValueError(f"history: server needs request.endpoint {names}; it is {endpoint.name}")
        if not endpoint.seed and any(chat.group and chat.group.seeds for chat in chats):
            names = " or ".join(names_of(lambda row: row.seed))
            raise ValueError(
                f"group: seeds need request.endpoint {names}; it is {endpoint.name}; set group.seeds: false"
            )
        return self

    @model_validator(mode="after")
    def _texts_have_their_endpoints(self) -> "Scenario":
        """Check that texts go to endpoints of texts, and nothing else does; these have no figures of streams."""
        endpoint = ENDPOINTS[self.request.endpoint]
        for member in self._workloads:
            if isinstance(member, Texts) == endpoint.streamed and not isinstance(member, Tasks):
                kind = f"workload.kind {member.kind} and request.endpoint {endpoint.name} do not go together"
                remedy = f"request.endpoint {', '.join(OF_TEXTS)}" if endpoint.streamed else "workload.kind texts"
                raise ValueError(f"{kind}; use {remedy}")
            if isinstance(member, Texts) and (member.query_tokens is not None) != endpoint.query:
                remedy = "give its length, such as 32" if endpoint.query else "remove it"
                raise ValueError(
                    f"workload.query_tokens: endpoint {endpoint.name} has {'a' if endpoint.query else 'no'} query; {remedy}"
                )
        if not endpoint.streamed:
            if self.canary is not None:
                raise ValueError(f"canary needs answers of text, and endpoint {endpoint.name} has none; remove canary")
            if (key := next((key for key in TEXT_KEYS if key in self.request.extra_body), None)) is not None:
                raise ValueError(f"request.extra_body: {key} comes from the workload; remove it")
            from inferload.figures.limits import gate_grammar  # of few scenarios

            limits = [key for key in self.slo.limits if key in gate_grammar.OF_STREAMS]
            if limits or self.phases.warmup_until:
                key = f"slo.{limits[0]}" if limits else "phases.warmup_until"
                remedy = "slo.e2e_ms" if limits else "warmup_s, with warmup_turns"
                raise ValueError(f"{key} is of streams, and endpoint {endpoint.name} has none; use {remedy}")
        aborts = (abort_condition.parse(text).gate for text in self.abort_on)
        for gate in (*map(parse_gate, self.gates), *aborts):
            self.check_gate(gate)
        return self

    def check_gate(self, gate: Gate) -> None:
        """Raise GateError for an unknown class, or a figure that the answers do not have. Tasks may have those of any endpoint."""
        from inferload.figures.limits import gate_grammar  # of scenarios with gates

        endpoint = ENDPOINTS[self.request.endpoint]
        gate_grammar.check_class(gate, self.class_names)
        if not (self.of_tasks and endpoint.streamed):
            gate_grammar.check_answers(gate, endpoint.name, endpoint.streamed)

    @property
    def _workloads(self) -> list[Any]:
        return [each.workload for each in self._classes] or [self.workload]

    @property
    def max_system_idle_s(self) -> float | None:
        """Longest time without a turn in flight; None: no limit."""
        limits = [each.max_system_idle_s for each in self._workloads if isinstance(each, Replay)]
        return min((limit for limit in limits if limit is not None), default=None)

    @property
    def groups(self) -> dict[str, int]:
        """Samples of a group, by class of groups."""
        named = zip(self.class_names or (), self._workloads, strict=False)
        return {name: each.group.samples for name, each in named if isinstance(each, Chat) and each.group is not None}

    @property
    def of_tasks(self) -> bool:
        """True if the tasks of a locustfile send the turns."""
        return isinstance(self.workload, Tasks)

    @property
    def ends_by_itself(self) -> bool:
        """True if a run ends without a manual stop."""
        return self.phases.measure_s is not None or self.phases.counted or self.arrivals.own_end is not None

    @property
    def open_loop(self) -> bool:
        """True if session starts are independent of the server."""
        return self.arrivals.open_loop

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """Classes of the turns. None: the tasks of the locustfile name them during the run."""
        if isinstance(self.workload, Mix):
            return tuple(mix_class.name for mix_class in self.workload.classes)
        return None if self.of_tasks else (self.workload.kind,)

    @property
    def agents(self) -> tuple[str, ...]:
        """Names of the Python classes of live agents, as module:Class or file.py:Class."""
        return tuple(dict.fromkeys(each.agent for each in self._workloads if isinstance(each, LiveAgentWorkload)))

    @property
    def own_agents(self) -> tuple[str, ...]:
        """Names of the classes of live agents that are no part of inferload."""
        return tuple(agent for agent in self.agents if agent.rpartition(":")[0] != BUNDLED_AGENT)

    def slo_of(self, class_name: str) -> SloLimits:
        """Return the SLO of a class: its own, else the scenario's."""
        own = next((mix_class.slo for mix_class in self._classes if mix_class.name == class_name), None)
        return self.slo if own is None else own

    @property
    def _classes(self) -> tuple[MixClass, ...]:
        return self.workload.classes if isinstance(self.workload, Mix) else ()

    @property
    def class_requests(self) -> dict[str, ClassRequest]:
        """Own options of the requests of the classes that are sent and have any."""
        return {each.name: each.request for each in self._sent_classes if each.request is not None}

    @property
    def _sent_classes(self) -> list[MixClass]:
        only = self.workload.only if isinstance(self.workload, Mix) else None
        return [each for each in self._classes if only in (None, each.name)]

    @property
    def class_models(self) -> dict[str, str]:
        """Models of the classes that are sent and name one."""
        return {name: own.model for name, own in self.class_requests.items() if own.model is not None}

    @property
    def needs_model(self) -> bool:
        """False if each class that is sent names its model."""
        return not self._classes or len(self.class_models) < len(self._sent_classes)

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the resolved scenario as canonical JSON."""
        data = self.as_data()
        for path, default in ADDED_LATER.items():
            mapping, key = _place(data, path)
            if mapping[key] == default:
                del mapping[key]
        canonical = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(canonical.encode()).hexdigest()

    def as_data(self) -> dict[str, Any]:
        """Return the resolved scenario as plain data, in the form of a file."""
        return self.model_dump(mode="json", by_alias=True)

    def resolved_text(self) -> str:
        """Return the resolved scenario as YAML; it loads back equal."""
        return self._text

    @cached_property
    def _text(self) -> str:
        return as_yaml(self.as_data())

    def changed(self, changes: Mapping[str, Any], origin: str = "changed scenario") -> "Scenario":
        """Return a validated scenario with other values at dotted paths, such as `{"arrivals.users": 20}`."""
        data = self.as_data()
        for path, value in changes.items():
            mapping, key = _place(data, path)
            mapping[key] = value
        return _validated(Parsed(data), origin)


def _place(data: dict[str, Any], path: str) -> tuple[dict[str, Any], str]:
    """Return the mapping that a dotted path leads to, and the last key."""
    *folders, key = path.split(".")
    for folder in folders:
        data = data[folder]
    return data, key


def load(name_or_path: str, overrides: Sequence[Override] = ()) -> Scenario:
    """Read a scenario from a file, or a bundled one by name. ScenarioError names all its errors."""
    path = catalog.resolve(name_or_path)
    return from_text(catalog.read(path), str(path), overrides)


def from_text(text: str, origin: str, overrides: Sequence[Override] = ()) -> Scenario:
    """Parse and validate a scenario, edited by `overrides`. `origin`: file name for error messages."""
    parsed = parse(text)
    apply(parsed, overrides)
    return _validated(parsed, origin)


def from_data(data: Mapping[str, Any], origin: str) -> Scenario:
    return _validated(Parsed(dict(data)), origin)


def _validated(parsed: Parsed, origin: str) -> Scenario:
    return typed_yaml.document_of(parsed, origin, Scenario, {"origin": origin})
