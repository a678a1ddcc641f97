"""Study file: text of a study, and the sweeps that answer it on each engine."""

from collections.abc import Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from inferload.base.numbers import listed
from inferload.campaign.sweep import definition
from inferload.campaign.sweep.definition import Sweep
from inferload.deploy.variants.variant import label
from inferload.results.study import PlannedPart, Row, StudyPlan, StudyTable, StudyText, grid_value
from inferload.scenario.files import catalog, typed_yaml
from inferload.scenario.schema.base import ScenarioPart
from inferload.scenario.schema.fields import Name

Engine = Literal["simulator", "vllm", "vllm-cpu", "running"]
Hosts = Mapping[str, str]  # URLs of running servers by variant, for the engine `running`


class WithFile(ScenarioPart):
    """Changes to a part if a data file exists."""

    path: str = Field(description="the file, below the current folder")
    sweep: Mapping[str, Any] = Field(description="keys of the sweep that replace those of the part")

    def is_there(self) -> bool:
        """Return True if the file exists."""
        return Path(self.path).is_file()


class OnEngine(ScenarioPart):
    """Changes to a part on one engine."""

    rename: Mapping[str, str] = Field(default={}, description="variants of the part by the names that replace them")
    sweep: Mapping[str, Any] = Field(default={}, description="keys of the sweep that replace those of the part")
    quick: Mapping[str, Any] = Field(default={}, description="keys of the sweep that --quick replaces further")
    left_out: str = Field(default="", description="reason why the part does not run on the engine; empty: it runs")


class StudyPart(ScenarioPart):
    """A sweep of a study."""

    title: str = Field(description="heading")
    sweep: Mapping[str, Any] = Field(description="keys of a sweep file, without schema, name and engine")
    quick: Mapping[str, Any] = Field(default={}, description="keys of the sweep that --quick replaces")
    with_file: WithFile | None = Field(default=None, description="changes if a data file exists; null: none")
    engines: Mapping[Engine, OnEngine] = Field(default={}, description="changes by engine")

    def left_out(self, engine: Engine, hosts: Hosts) -> str:
        """Return why the part does not run on an engine; empty if it runs."""
        if engine != "running":
            return self.on(engine).left_out
        baseline = self.sweep.get("baseline", "")
        if self.sweep.get("grid"):
            return "each combination of its grid is a server of its own"
        return "" if baseline in hosts else f"no --host of its baseline, {baseline}"

    def on(self, engine: Engine) -> OnEngine:
        """Return the changes on an engine."""
        return self.engines.get(engine, OnEngine())

    def replaced(self, engine: Engine, quick: bool) -> dict[str, Any]:
        """Return the keys of the sweep that an engine and `--quick` replace."""
        changes = self.on(engine)
        return {**changes.sweep, **({**self.quick, **changes.quick} if quick else {})}


class Study(StudyText):
    """Content of a study file."""

    parts: Annotated[Mapping[Name, StudyPart], Field(min_length=1)] = Field(description="sweeps by name")

    @model_validator(mode="after")
    def _tables_of_parts(self) -> "Study":
        for table in self.tables:
            if table.part not in self.parts:
                raise ValueError(f"table {table.key}: no part {table.part}; the study has {', '.join(self.parts)}")
        return self

    def only(self, names: Collection[str]) -> "Study":
        """Return the study with these parts, and the tables and claims of them."""
        tables = tuple(table for table in self.tables if table.part in names)
        keys = [table.key for table in tables]
        return self.model_copy(
            update={
                "parts": {name: part for name, part in self.parts.items() if name in names},
                "tables": tables,
                "claims": tuple(claim for claim in self.claims if claim.table in keys),
            }
        )

    def sweeps(self, engine: Engine, quick: bool, hosts: Hosts = MappingProxyType({})) -> dict[str, Sweep]:
        """Return the sweeps of the parts that run on an engine. Raise UsageError for an invalid one."""
        return {
            name: self._sweep(name, part, engine, quick, hosts)
            for name, part in self.parts.items()
            if not part.left_out(engine, hosts)
        }

    def missing_files(self, engine: Engine, quick: bool, hosts: Hosts = MappingProxyType({})) -> list[str]:
        """Return the data files that do not exist, and that parts which run on an engine would read."""
        files = [
            part.with_file
            for part in self.parts.values()
            if part.with_file is not None
            and not part.left_out(engine, hosts)
            and not part.with_file.sweep.keys() <= part.replaced(engine, quick).keys()
        ]
        return [file.path for file in files if not file.is_there()]

    def _sweep(self, name: str, part: StudyPart, engine: Engine, quick: bool, hosts: Hosts) -> Sweep:
        changes = part.on(engine)
        found = part.with_file is not None and part.with_file.is_there()
        data = part.with_file.sweep if part.with_file is not None and found else {}
        keys = {**part.sweep, **data, **part.replaced(engine, quick)}
        keys["baseline"] = changes.rename.get(keys.get("baseline", ""), keys.get("baseline"))
        keys["variants"] = [changes.rename.get(variant, variant) for variant in keys.get("variants", ())]
        if engine == "running":
            keys["variants"] = [variant for variant in keys["variants"] if variant in hosts]
            keys |= {"restart": "once", "hosts": {name: hosts[name] for name in (keys["baseline"], *keys["variants"])}}
        where = f"study {self.name}, part {name}"
        data = {"schema": 1, "name": f"{self.name}-{name}", "engine": engine, **keys}
        sweep = typed_yaml.validated(data, where, Sweep)
        definition.check(sweep, where)
        return sweep

    def plan(self, engine: Engine, quick: bool, command: str, hosts: Hosts = MappingProxyType({})) -> StudyPlan:
        """Return what the page of the study is made from."""
        sweeps = self.sweeps(engine, quick, hosts)
        parts = {name: _planned(self.parts[name].title, sweep) for name, sweep in sweeps.items()}
        tables = [self._table(table, engine, parts.get(table.part)) for table in self.tables]
        left_out = {name: part.left_out(engine, hosts) for name, part in self.parts.items() if name not in sweeps}
        text = self.model_dump(by_alias=True, exclude={"parts", "tables"})
        return StudyPlan.model_validate(
            {
                **text,
                "tables": tables,
                "engine": engine,
                "quick": quick,
                "command": command,
                "parts": parts,
                "left_out": left_out,
            }
        )

    def _table(self, table: StudyTable, engine: Engine, part: PlannedPart | None) -> StudyTable:
        """Return the table with the variant and the scenario of each row."""
        if part is None:
            return table
        rename = self.parts[table.part].on(engine).rename

        def resolved(row: Row) -> Row:
            variant = part.variants[0] if row.variant is None else label(rename.get(row.variant, row.variant))
            return row.model_copy(update={"variant": variant, "scenario": row.scenario or part.scenarios[0]})

        variants = [self.parts[table.part].sweep["baseline"], *self.parts[table.part].sweep.get("variants", ())]
        instead = [
            f"{old} is {rename[old]}"
            for old in variants
            if label(rename.get(old, old)) in part.variants and old in rename
        ]
        here = f"On this engine, {listed(instead)}." if instead else ""
        note = " ".join(filter(None, (table.note, here)))
        return table.model_copy(update={"rows": tuple(map(resolved, table.rows)), "note": note})


def _planned(title: str, sweep: Sweep) -> PlannedPart:
    return PlannedPart(
        title=title,
        variants=tuple(map(label, sweep.all_variants)),
        scenarios=tuple(sweep.loads()),
        grid={flag: tuple(map(grid_value, values)) for flag, values in sweep.grid.items()},
    )


def load(path: Path) -> Study:
    """Read a study file, or the bundled study of that name. Raise UsageError with the mistakes."""
    return typed_yaml.from_text(catalog.read(catalog.file_of("studies", path), "study "), str(path), Study)
