"""Sweep file: variants, baseline, scenarios and number of pairs of runs."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, JsonValue, ValidationError, model_validator

from inferload.base.errors import UsageError
from inferload.campaign.pairs import MAX_PAIRS, SD_LOG
from inferload.campaign.sweep.grid import points
from inferload.deploy.variants.variant import Variant, changed, flag_name, formatted, label, named, with_arguments
from inferload.figures.turn_figures import TTFT
from inferload.results.prices import Prices
from inferload.scenario import overrides
from inferload.scenario import scenario as scenarios
from inferload.scenario.files import catalog, typed_yaml
from inferload.scenario.scenario import Scenario
from inferload.scenario.schema.base import AtLeastOne, Flag, ScenarioPart, Whole, distinct, optional
from inferload.scenario.schema.fields import Gates, Name, Primary

PLAN = "sweep.yaml"  # in the folder of a sweep
MAX_POINTS = 100  # of a grid
Engine = Literal["simulator", "vllm", "vllm-cpu", "running"]
Clock = Literal["real", "virtual"]

_Values = Annotated[tuple[JsonValue, ...], Field(strict=False, min_length=1)]


class SweepScenario(ScenarioPart):
    """Scenario of a sweep with changed keys."""

    scenario: str = Field(description="bundled name or path of a scenario")
    name: Name | None = optional(None, "name in folders and tables; null: that of the scenario")
    set: Annotated[tuple[str, ...], Field(strict=False)] = optional((), 'changes to the scenario: ["arrivals.users=8"]')


@dataclass(frozen=True, slots=True)
class Load:
    """Scenario of a sweep as loaded. `source`: its name or path; `settings`: its changes as `--set` options."""

    source: str
    settings: tuple[str, ...]
    scenario: Scenario


class SweepCost(ScenarioPart):
    """Prices of the servers of a sweep, in any currency."""

    gpu_hour_price: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = optional(
        None, "price of one GPU for one hour"
    )
    gpus: AtLeastOne | None = optional(None, "number of paid GPUs per server; null: that of its variant")
    cached_price_ratio: Annotated[float, Field(ge=0, le=1)] | None = optional(
        None, "price ratio of cached to uncached prompt tokens, such as 0.1"
    )


class Sweep(ScenarioPart):
    """Content of a sweep file."""

    schema_: Literal[1] = Field(alias="schema", description="version of this file format: 1")
    name: Name = Field(description="short name, also used for the folder")
    engine: Engine = Field(description="engine of the servers; running: they run already (`hosts`)")
    hosts: Mapping[str, str] = optional(
        {}, "URL of the running server of each variant, for engine running: {old: http://a:8000}"
    )
    clock: Clock = optional(
        "real", "virtual: the runs take seconds, on a clock that jumps to the next event; engine simulator only"
    )
    baseline: str = Field(description="variant that all others are compared with")
    variants: Annotated[tuple[str, ...], Field(strict=False)] = optional((), "other variants")
    grid: Mapping[str, _Values] = optional(
        {},
        "values of arguments of the baseline; each combination is a variant: {max-num-seqs: [16, 64]}; "
        "a value can be a mapping or a list, and null is none",
    )
    scenarios: Annotated[tuple[str | SweepScenario, ...], Field(strict=False, min_length=1)] = Field(
        description="bundled names or paths of scenarios, or {scenario, name, set} for changed ones"
    )
    pairs: Annotated[int, Field(strict=True, ge=1, le=MAX_PAIRS)] = optional(
        6, "runs per variant and scenario, each with its own seed; the sign-flip test needs 6 or more"
    )
    restart: Literal["each", "once"] = optional(
        "each",
        "each: one server start per pair; once: one start per variant, and verdicts that hold for these starts only",
    )
    seed: Whole = optional(0, "seed for the seeds of the runs and the order of variants")
    primary: Primary = optional(
        "", f"measure of the verdict, as in a gate; empty: the first of turns in require, else mean({TTFT.key})"
    )
    require: Gates = optional(
        (), "limits, as gates, beyond which a variant is not named the best; empty: the gates of the scenario"
    )
    sd_log: Annotated[float, Field(strict=True, gt=0)] = optional(
        SD_LOG, "assumed standard deviation of the log ratio of a pair, for the detectable change: 0.05 is 5 %"
    )
    measure_s: Annotated[float, Field(strict=True, gt=0)] | None = optional(
        None, "limit of the measurement of a run in seconds; null: that of the scenario"
    )
    keep_cache: Flag = optional(
        False,
        "true: the prefix cache is not emptied between the runs of a server start; on a running server the runs "
        "of a pair without isolation share a cache salt of their own",
    )
    reports: bool = optional(
        True, "false: no reports for the runs, which take seconds each; inferload report creates them later"
    )
    set: Annotated[tuple[str, ...], Field(strict=False)] = optional((), 'changes to all variants: ["max-num-seqs=8"]')

    cost: SweepCost = optional(SweepCost(), "prices; without them cost is not reported")
    variant_digests: Mapping[str, str] = optional(
        {}, "digests of the variants, stored at the start of the sweep and checked by --resume"
    )

    @model_validator(mode="after")
    def _distinct(self) -> "Sweep":
        if (size := prod(map(len, self.grid.values()))) > MAX_POINTS:
            raise ValueError(f"grid: {size} combinations; use at most {MAX_POINTS}")
        distinct("argument of the grid", list(map(flag_name, self.grid)), "remove one")
        for flag, values in self.grid.items():
            distinct(f"grid: {flag}", [formatted(value) for value in values], "remove one")
        distinct("variant", [label(name) for name in self.all_variants], "remove one")
        if self.engine == "running":
            if self.restart != "once":
                raise ValueError("engine running: the sweep starts no server; set restart: once")
            if lacking := [name for name in self.all_variants if name not in self.hosts]:
                raise ValueError(f"engine running: hosts has no URL of {lacking[0]}; add it, or remove the variant")
        elif self.hosts:
            raise ValueError(f"hosts: engine {self.engine} starts its own servers; set engine: running")
        return self

    @property
    def grid_points(self) -> Mapping[str, Mapping[str, Any]]:
        """Arguments of each combination of the grid by its name."""
        return points(self.grid)

    @property
    def all_variants(self) -> tuple[str, ...]:
        """Baseline, variants and combinations of the grid."""
        return (self.baseline, *self.variants, *self.grid_points)

    @property
    def others(self) -> tuple[str, ...]:
        """All variants but the baseline."""
        return self.all_variants[1:]

    @property
    def prices(self) -> Prices:
        return Prices(self.cost.gpu_hour_price, self.cost.gpus, self.cost.cached_price_ratio)

    def priced(self, prices: Prices) -> "Sweep":
        """Return a copy with prices that override those of the file."""
        merged = prices.over(self.prices)
        cost = SweepCost(gpu_hour_price=merged.gpu_hour, gpus=merged.gpus, cached_price_ratio=merged.cached_ratio)
        return self.model_copy(update={"cost": cost})

    def with_digests(self) -> Self:
        """Return a copy with the digests of the variants."""
        digests = {name: self.variant(name).digest for name in self.all_variants}
        return self.model_copy(update={"variant_digests": digests})

    @property
    def changed_variants(self) -> list[str]:
        """Variants that differ from their stored digests."""
        return [name for name, digest in self.variant_digests.items() if self.variant(name).digest != digest]

    def variant(self, name: str) -> Variant:
        """Return the variant, or the combination of the grid, with the changes of the sweep."""
        if (point := self.grid_points.get(name)) is None:
            return changed(named(name), self.set)
        base = changed(named(self.baseline), self.set)
        factor = ", ".join(f"{flag}={formatted(value)}" for flag, value in point.items())
        return replace(with_arguments(base, point, "in the grid"), name=name, base=base.name, factor=factor)

    def loads(self) -> dict[str, Load]:
        """Load the scenarios by their names in folders and tables. Raise UsageError for duplicate names."""
        loads: dict[str, Load] = {}
        for entry in self.scenarios:
            part = SweepScenario(scenario=entry) if isinstance(entry, str) else entry
            scenario = scenarios.load(part.scenario, overrides.parse_settings(part.set))
            name = part.name or scenario.name
            if name in loads:
                raise UsageError(f"scenarios: duplicate name {name}; set name of one of them")
            loads[name] = Load(part.scenario, part.set, scenario)
        return loads


def load(path: Path) -> Sweep:
    """Read a sweep file; ScenarioError with the mistakes and their lines, UsageError as `check`."""
    sweep = typed_yaml.from_text(catalog.read(catalog.file_of("sweeps", path), "sweep "), str(path), Sweep)
    check(sweep, str(path))
    return sweep


def with_changes(sweep: Sweep, changes: Mapping[str, Any], where: str) -> Sweep:
    """Return the sweep with other values of fields, checked like a file. Raise UsageError for mistakes."""
    try:
        new = Sweep.model_validate(
            {"schema": 1}
            | {name: getattr(sweep, name) for name in sweep.model_fields_set - {"schema_"}}
            | dict(changes)
        )
    except ValidationError as error:
        raise UsageError(f"{where}: {error.errors()[0]['msg'].removeprefix('Value error, ')}") from error
    check(new, where)
    return new


def check(sweep: Sweep, where: str) -> None:
    """Raise UsageError for unknown variants and scenarios, unfit scenarios, and what the clock cannot honour."""
    for name in sweep.all_variants:
        sweep.variant(name)
    if sweep.clock == "virtual" and sweep.engine != "simulator":
        raise UsageError(f"{where}: clock virtual needs engine simulator, not {sweep.engine}; use clock real")
    for load in sweep.loads().values():
        if not load.scenario.ends_by_itself and sweep.measure_s is None:
            raise UsageError(f"{where}: scenario {load.source} has no end; set measure_s")
        if load.scenario.of_tasks:
            raise UsageError(
                f"{where}: scenario {load.source} is for the tasks of a locustfile; name one with sessions"
            )
