"""What a run is to be, once the scenario, the command line and the start form have all had their say."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any

from inferload.client.connection.target import Target
from inferload.errors import UsageError
from inferload.plan.arrivals import arrivals_in_words
from inferload.process.user_scenarios import LoadedScenario, Program
from inferload.scenario.overrides import Override
from inferload.scenario.scenario import Scenario
from inferload.scenario.schema.arrivals import Closed
from inferload.scenario.schema.workloads import Mix
from inferload.verdict import gates


@dataclass(frozen=True, slots=True)
class FormValues:
    """Values of the start form for a scenario. `run_time_s`: None if the scenario has no time limit."""

    users: int
    spawn_per_s: float
    run_time_s: float | None
    load: str


@dataclass(frozen=True, slots=True)
class GivenLoad:
    """The load options of the command line, which hold for every scenario; None: the scenario's value."""

    users: int | None
    spawn_per_s: float | None
    run_time_s: float | None
    settings: tuple[Override, ...]

    def form(self, scenario: Scenario) -> FormValues:
        """The values that a run of a scenario would use."""
        users, spawn_per_s = nominal_users(scenario)
        return FormValues(
            users=users if self.users is None else self.users,
            spawn_per_s=spawn_per_s if self.spawn_per_s is None else self.spawn_per_s,
            run_time_s=scenario.phases.measure_s if self.run_time_s is None else self.run_time_s,
            load="; ".join(arrivals_in_words(scenario)),
        )


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options and form values beside the scenario; None if not given. `settings`: keys of the scenario that --set changes.

    `named`: the scenario, where it has been read already.
    """

    scenario: str
    host: str
    model: str | None = None
    seed: int | None = None
    users: int | None = None
    spawn_per_s: float | None = None
    run_time_s: float | None = None
    warmup_s: float | None = None
    metrics_urls: tuple[str, ...] | None = None
    also_hosts: tuple[str, ...] = ()
    only: str | None = None
    abort_on: tuple[str, ...] | None = None
    gates: tuple[str, ...] = ()  # beside the scenario's
    settings: tuple[Override, ...] = ()
    program: Program = field(default_factory=Program)
    named: LoadedScenario | None = None


@dataclass(frozen=True, slots=True)
class RunSpec:
    """A run that can be made: the scenario as it will run, and which of its values were overridden, by what."""

    scenario: Scenario
    origin: str
    targets: tuple[Target, ...]  # sessions take them in turn
    model: str | None
    metrics_urls: tuple[str, ...] | None
    users: int
    spawn_per_s: float
    overrides: dict[str, Any]
    named_digest: str = ""  # of the scenario before the overrides

    @property
    def target(self) -> Target:
        """The first target: the one that --host names."""
        return self.targets[0]

    @property
    def rate(self) -> float | None:
        """What the whole fleet's schedule is stretched by in an open loop: sessions/s, or a factor; None in a closed one."""
        return None if isinstance(self.scenario.arrivals, Closed) else self.scenario.arrivals.rate

    def rate_for(self, users: int) -> float | None:
        """What a number of users means in an open loop: each stands for its share of the scenario's rate."""
        return None if self.rate is None else self.rate * users / self.users


def only_class(scenario: Scenario, only: str, users: int | None, more: Sequence[str] = ()) -> dict[str, Any]:
    """Return the change that sends only one class of a mix, with its arrivals in the mix. `more`: gates of the command line.

    UsageError for a gate on another class, and for a closed loop without a number of users: in the mix the length of a class's
    sessions, not its share of them, determines its number of users.
    """
    mix, arrivals = scenario.workload, scenario.arrivals
    if not isinstance(mix, Mix):
        raise UsageError(f"--only {only}: scenario {scenario.name} is no mix; leave it out")
    names = [member.name for member in mix.classes]
    if only not in names:
        raise UsageError(f"--only {only}: no class of the mix, which has {', '.join(names)}")
    if isinstance(arrivals, Closed) and users is None:
        raise UsageError(
            f"--only {only}: in a closed loop the number of users of a class depends on the length of its sessions; give "
            "it with --users, or use an open loop"
        )
    for gate in map(gates.parse, (*scenario.gates, *more)):
        if gate.class_name not in (None, only):
            raise UsageError(
                f"--only {only}: gate {gate.text!r} is on class {gate.class_name}, which sends no turns then; remove the gate "
                "or --only"
            )
    return {"workload.only": only}


def more_gates(scenario: Scenario, given: Sequence[str]) -> dict[str, Any]:
    """The change that adds gates to a scenario's; UsageError names one that cannot be read, or whose class is unknown."""
    for text in given:
        try:
            gates.check_class(gates.parse(text), scenario.class_names)
        except gates.GateError as error:
            raise UsageError(f"--gate: {error}") from error
    return {"gates": list(dict.fromkeys([*scenario.gates, *given]))} if given else {}


def nominal_users(scenario: Scenario) -> tuple[int, float]:
    """(users, spawn rate) with which Locust starts a scenario: an open loop has one user per session and second.

    Of a rate that changes, its greatest; a closed loop that changes begins with its first number.
    """
    arrivals = scenario.arrivals
    if isinstance(arrivals, Closed):
        users = arrivals.users if arrivals.profile is None else arrivals.profile.changes()[0][1]
        return users, arrivals.spawn_per_s
    users = max(1, ceil(arrivals.highest_per_s))
    return users, float(users)


def resolve(options: RunOptions) -> RunSpec:
    """Resolve a request to a run; UsageError if it cannot be run."""
    if not options.host:
        raise UsageError("host: missing; say which server, as http://server:8000")
    named = options.named or options.program.read(options.scenario, options.settings)
    scenario = named.scenario
    models = [one.name for one in scenario.request.models]
    if options.model and models:
        raise UsageError(f"--model {options.model}: the scenario names its models ({', '.join(models)}); leave one out")
    targets = tuple(Target.parse(url) for url in (options.host, *options.also_hosts))
    twice = [target.url for place, target in enumerate(targets) if target in targets[:place]]
    if twice:
        raise UsageError(f"--also-host {twice[0]}: named twice; give each server once")
    changes = _changes(options, scenario)
    if changes:
        scenario = scenario.changed(changes, options.scenario)
    users, spawn_per_s = nominal_users(scenario)
    return RunSpec(
        scenario=scenario,
        origin=options.program.named(options.scenario),
        targets=targets,
        model=options.model or None,
        metrics_urls=options.metrics_urls,
        users=users,
        spawn_per_s=spawn_per_s,
        overrides={each.key: each.value for each in options.settings} | changes,
        named_digest=named.digest,
    )


def _changes(options: RunOptions, scenario: Scenario) -> dict[str, Any]:
    """The scenario's values that options and the start form override, by their dotted paths."""
    changes = more_gates(scenario, options.gates) | _load_changes(options, scenario)
    if options.seed is not None:
        changes["seed"] = options.seed
    if options.warmup_s is not None:
        changes["phases.warmup_s"] = options.warmup_s
    if options.abort_on is not None:
        changes["abort_on"] = list(options.abort_on)
    if options.only is not None:
        changes |= only_class(scenario, options.only, options.users, options.gates)
    return changes


def _load_changes(options: RunOptions, scenario: Scenario) -> dict[str, Any]:
    """The keys of load and duration that a wish changes; a number equal to the scenario's own changes none."""
    changes: dict[str, Any] = {}
    arrivals, (users, spawn_per_s) = scenario.arrivals, nominal_users(scenario)
    if options.run_time_s not in (None, scenario.phases.measure_s):
        changes["phases.measure_s"] = float(options.run_time_s)
    if options.users not in (None, users):
        if isinstance(arrivals, Closed):
            changes["arrivals.users"] = options.users
        else:
            changes[f"arrivals.{arrivals.rate_key}"] = arrivals.rate * options.users / users
    if isinstance(arrivals, Closed) and options.spawn_per_s not in (None, spawn_per_s):
        changes["arrivals.spawn_per_s"] = float(options.spawn_per_s)
    return changes
