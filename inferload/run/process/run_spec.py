"""Resolve the scenario, the command line and the start form to the specification of a run."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Self

from msgspec import Struct, field
from msgspec.structs import replace

from inferload.base.errors import UsageError, instead
from inferload.client.connection.target import Target
from inferload.figures.limits import abort_condition
from inferload.figures.limits.gate import GateError
from inferload.figures.limits.parsed_gate import parse_gate
from inferload.run.process.named_servers import Followed, hosts_of
from inferload.run.process.user_scenarios import LoadedScenario, Program
from inferload.scenario.overrides import Override
from inferload.scenario.scenario import Scenario
from inferload.scenario.schema.workloads import Mix
from inferload.servers.roles import Role


class FormValues(Struct, frozen=True):
    """Values of the start form for a scenario. `run_time_s`: None if the scenario has no time limit.

    `factor`: in an open loop the rate of one of Locust's users, and its unit. `model`, `seed`: None: a scenario changes no field.
    """

    users: int
    spawn_per_s: float
    run_time_s: float | None
    load: str
    gates: tuple[str, ...]
    factor: tuple[float, str] | None
    model: str | None = None
    seed: str | None = None

    @classmethod
    def of(cls, scenario: Scenario) -> Self:
        arrivals, measure_s = scenario.arrivals, scenario.phases.measure_s
        users, spawn_per_s = arrivals.locust_users
        factor = None if arrivals.rate is None else (arrivals.rate / users, arrivals.rate_unit)
        load = "; ".join(arrivals.in_words(measure_s))
        return cls(users, spawn_per_s, measure_s, load, scenario.gates, factor)


class LoadOptions(Struct, frozen=True):
    """Load options of the command line, which apply to every scenario; None: the scenario's value. `scenario`: of --scenario."""

    users: int | None
    spawn_per_s: float | None
    run_time_s: float | None
    settings: tuple[Override, ...]
    scenario: str = ""

    def form(self, scenario: Scenario) -> FormValues:
        """Return the values that a run of a scenario would use."""
        given = {"users": self.users, "spawn_per_s": self.spawn_per_s, "run_time_s": self.run_time_s}
        return replace(FormValues.of(scenario), **{key: value for key, value in given.items() if value is not None})


class RunOptions(Struct, frozen=True):
    """Options of the command line and of the start form; None if not given. `settings`: keys of the scenario that --set changes.

    `loaded`: the scenario, if it has been read already. `pages`: values of --metrics-url as given. `form_gates`: of the start
    form, instead of all others.
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
    pages: tuple[str, ...] = ()
    roles: Mapping[str, Role] = {}
    also_hosts: tuple[str, ...] = ()
    only: str | None = None
    abort_on: tuple[str, ...] | None = None
    gates: tuple[str, ...] = ()  # in addition to the scenario's
    form_gates: tuple[str, ...] | None = None
    settings: tuple[Override, ...] = ()
    program: Program = field(default_factory=Program)
    loaded: LoadedScenario | None = None


class RunSpec(Struct, frozen=True):
    """Specification of a run: the scenario with all overrides, targets and load."""

    scenario: Scenario
    origin: str
    targets: tuple[Target, ...]  # sessions are distributed over them
    model: str | None
    metrics_urls: tuple[str, ...] | None
    users: int
    spawn_per_s: float
    overrides: dict[str, Any]
    file_digest: str = ""  # of the scenario before the overrides
    followed: Followed = Followed()
    roles: Mapping[str, Role] = {}  # by the address of a metrics page, or of its server

    @property
    def target(self) -> Target:
        """The first target: the one that --host names."""
        return self.targets[0]

    @property
    def models(self) -> list[str]:
        """Names of the models that the run names; empty: that of the server."""
        return [model.name for model in self.scenario.request.models] or ([] if self.model is None else [self.model])

    @property
    def rate(self) -> float | None:
        """Arrival rate of all workers together: sessions/s, or the factor of a trace's rate; None in a closed loop."""
        return self.scenario.arrivals.rate

    def rate_for(self, users: int) -> float | None:
        """Return the arrival rate for a number of users in an open loop: proportional to it; None in a closed loop."""
        return None if self.rate is None else self.rate * users / self.users


def form_of(spec: RunSpec, base: Scenario) -> FormValues:
    """Return the values of the start form that give a run like this one, as far as it can. `base`: what its scenario is here.

    The factor of an open loop is a whole number of Locust's users.
    """
    shown, here = FormValues.of(spec.scenario), FormValues.of(base)
    users = shown.users
    if spec.scenario.open_loop != base.open_loop:
        users = here.users
    elif here.factor is not None and spec.rate is not None:
        users = max(1, round(spec.rate / here.factor[0]))
    return replace(
        here,
        users=users,
        spawn_per_s=shown.spawn_per_s,
        run_time_s=shown.run_time_s,
        gates=shown.gates,
        model=spec.model or "",
        seed=str(spec.overrides.get("seed", "")),
    )


def only_class(scenario: Scenario, only: str, users: int | None, gates: Sequence[str] = ()) -> dict[str, Any]:
    """Return the change that sends only one class of a mix, with its arrivals in the mix. `gates`: all of the run.

    UsageError for a gate on another class, and for a closed loop without a number of users: in the mix the length of a class's
    sessions, not its share of them, determines its number of users.
    """
    mix = scenario.workload
    if not isinstance(mix, Mix):
        raise UsageError(f"--only {only}: scenario {scenario.name} is no mix; leave it out")
    names = [member.name for member in mix.classes]
    if only not in names:
        raise UsageError(f"--only {only}: no class of the mix; {instead(only, names)}")
    if not scenario.open_loop and users is None:
        raise UsageError(
            f"--only {only}: in a closed loop the number of users of a class depends on the length of its sessions; give "
            "it with --users, or use an open loop"
        )
    for gate in map(parse_gate, gates):
        if gate.class_name not in (None, only):
            raise UsageError(
                f"--only {only}: gate {gate.text!r} is on class {gate.class_name}, which sends no turns then; remove the gate "
                "or --only"
            )
    return {"workload.only": only}


def gates_of(scenario: Scenario, more: Sequence[str], form: Sequence[str] | None = None) -> tuple[str, ...]:
    """Return the gates of a run: the scenario's with those of --gate, or those of the start form instead.

    UsageError for a malformed gate, and for one of an unknown class.
    """
    for text in more if form is None else form:
        try:
            scenario.check_gate(parse_gate(text))
        except GateError as error:
            raise UsageError(f"{'--gate' if form is None else 'gates'}: {error}") from error
    return tuple(dict.fromkeys((*scenario.gates, *more) if form is None else form))


def abort_on(conditions: list[str] | None) -> tuple[str, ...] | None:
    """Check the conditions that stop the run early; None if there are none."""
    for text in conditions or ():
        try:
            abort_condition.parse(text)
        except GateError as error:
            raise UsageError(f"--abort-on: {error}") from error
    return tuple(conditions) if conditions else None


def resolve(options: RunOptions) -> RunSpec:
    """Resolve options to the specification of a run; UsageError if they do not fit together."""
    if not options.host:
        raise UsageError("host: missing; name the server, as http://server:8000")
    loaded = options.loaded or options.program.read(options.scenario, options.settings)
    scenario = loaded.scenario
    models = [model.name for model in scenario.request.models]
    if options.model and models:
        raise UsageError(f"--model {options.model}: the scenario names its models ({', '.join(models)}); leave one out")
    hosts = (options.host, *options.also_hosts)
    targets = tuple(map(Target.parse, hosts_of(hosts)))
    twice = [url for url, count in Counter(target.url for target in targets).items() if count > 1]
    if twice:
        raise UsageError(f"--also-host {twice[0]}: named twice; give each server once")
    changes = _changes(options, scenario)
    if changes:
        scenario = scenario.changed(changes, options.scenario)
    users, spawn_per_s = scenario.arrivals.locust_users
    return RunSpec(
        scenario=scenario,
        origin=options.program.scenario_of(options.scenario),
        targets=targets,
        model=options.model or None,
        metrics_urls=options.metrics_urls,
        users=users,
        spawn_per_s=spawn_per_s,
        overrides={setting.key: setting.value for setting in options.settings} | changes,
        file_digest=loaded.digest,
        followed=Followed.of(hosts, options.pages),
        roles=options.roles,
    )


def _changes(options: RunOptions, scenario: Scenario) -> dict[str, Any]:
    """Return the values of the scenario that options override, by dotted path."""
    gates = gates_of(scenario, options.gates, options.form_gates)
    changes = load_changes(options, scenario) | ({"gates": list(gates)} if gates != scenario.gates else {})
    if options.seed is not None:
        changes["seed"] = options.seed
    if options.warmup_s is not None:
        changes["phases.warmup_s"] = options.warmup_s
    if options.abort_on is not None:
        changes["abort_on"] = list(options.abort_on)
    if options.only is not None:
        changes |= only_class(scenario, options.only, options.users, gates)
    return changes


def load_changes(options: RunOptions, scenario: Scenario) -> dict[str, Any]:
    """Return the keys of load and duration that options change; a value equal to the scenario's changes none."""
    changes: dict[str, Any] = {}
    users, spawn_per_s = scenario.arrivals.locust_users
    if options.run_time_s not in (None, scenario.phases.measure_s):
        changes["phases.measure_s"] = float(options.run_time_s)
    if options.users not in (None, users):
        changed = scenario.arrivals.with_users(options.users)
        changes |= {f"arrivals.{key}": value for key, value in changed.items()}
    if not scenario.open_loop and options.spawn_per_s not in (None, spawn_per_s):
        changes["arrivals.spawn_per_s"] = float(options.spawn_per_s)
    return changes
