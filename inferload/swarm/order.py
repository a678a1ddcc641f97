"""What a run is to be, once the scenario, the command line and the start form have all had their say."""

from dataclasses import dataclass, field
from math import ceil
from typing import Any

from inferload.errors import UsageError
from inferload.swarm.program import Program
from inferload.wire.target import Target
from inferload.workload.arrivalkinds import Closed
from inferload.workload.scenario import Scenario
from inferload.workload.workloads import Mix


@dataclass(frozen=True, slots=True)
class Prefill:
    """What the start form shows before anybody touched it; a field left so means the scenario's value."""

    users: int
    spawn_per_s: float


@dataclass(frozen=True, slots=True)
class Wish:
    """What was asked for beside the scenario; None where nothing was."""

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
    program: Program = field(default_factory=Program)


@dataclass(frozen=True, slots=True)
class Order:
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


def alone(scenario: Scenario, only: str, users: int | None) -> dict[str, Any]:
    """What has to change so that one class of a mix is sent as it is in the mix.

    UsageError for a closed loop without a number of users of the class's own: in the mix it holds as many as its sessions
    last, whatever its share of the sessions, and that only a run of the mix can tell.
    """
    mix, arrivals = scenario.workload, scenario.arrivals
    if not isinstance(mix, Mix):
        raise UsageError(f"--only {only}: scenario {scenario.name} is no mix; leave it out")
    if only not in [one.name for one in mix.classes]:
        raise UsageError(f"--only {only}: no class of the mix, which has {', '.join(one.name for one in mix.classes)}")
    if isinstance(arrivals, Closed) and users is None:
        raise UsageError(
            f"--only {only}: in a closed loop a class holds more or fewer users than its share of the sessions says; run the "
            f"mix, ask `inferload interference RUN` how many {only} held, and give them with --users (of inferload run: behind --)"
        )
    return {"workload.only": only}


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


def resolve(wish: Wish) -> Order:
    """The order that a wish comes to; UsageError where no run could be made of it."""
    if not wish.host:
        raise UsageError("host: missing; say which server, as http://server:8000")
    scenario = wish.program.load(wish.scenario)
    named_digest = scenario.digest
    models = [one.name for one in scenario.request.models]
    if wish.model and models:
        raise UsageError(f"--model {wish.model}: the scenario names its models ({', '.join(models)}); leave one out")
    targets = tuple(Target.parse(url) for url in (wish.host, *wish.also_hosts))
    twice = [target.url for place, target in enumerate(targets) if target in targets[:place]]
    if twice:
        raise UsageError(f"--also-host {twice[0]}: named twice; give each server once")
    changes = _changes(wish, scenario)
    if changes:
        scenario = scenario.changed(changes, wish.scenario)
    users, spawn_per_s = nominal_users(scenario)
    return Order(
        scenario=scenario,
        origin=wish.program.named(wish.scenario),
        targets=targets,
        model=wish.model or None,
        metrics_urls=wish.metrics_urls,
        users=users,
        spawn_per_s=spawn_per_s,
        overrides=changes,
        named_digest=named_digest,
    )


def _changes(wish: Wish, scenario: Scenario) -> dict[str, Any]:
    """The scenario's values that are overridden, by their dotted paths."""
    changes: dict[str, Any] = {}
    if wish.seed is not None:
        changes["seed"] = wish.seed
    if wish.run_time_s is not None:
        changes["phases.measure_s"] = float(wish.run_time_s)
    if wish.warmup_s is not None:
        changes["phases.warmup_s"] = wish.warmup_s
    arrivals = scenario.arrivals
    if isinstance(arrivals, Closed):
        if wish.users is not None:
            changes["arrivals.users"] = wish.users
        if wish.spawn_per_s is not None:
            changes["arrivals.spawn_per_s"] = float(wish.spawn_per_s)
    elif wish.users is not None:
        nominal, _ = nominal_users(scenario)
        changes[f"arrivals.{arrivals.rate_key}"] = arrivals.rate * wish.users / nominal
    if wish.abort_on is not None:
        changes["abort_on"] = list(wish.abort_on)
    if wish.only is not None:
        changes |= alone(scenario, wish.only, wish.users)
    return changes
