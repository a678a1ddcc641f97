"""Study file: the sweeps that answer a question, on each engine; tables of figures beside published ones, and claims.

`inferload study` writes the study as it runs to `study.yaml` in its folder; its page is made from that file and the runs.
"""

from collections.abc import Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from inferload.base.errors import instead
from inferload.campaign import equal_sides
from inferload.campaign.sweep import definition
from inferload.campaign.sweep.definition import Clock, Engine, Sweep, SweepScenario
from inferload.deploy.variants.variant import label
from inferload.scenario.files import catalog, typed_yaml
from inferload.scenario.schema.base import Flag, ScenarioPart, distinct, optional
from inferload.scenario.schema.fields import Gate, Name, Term
from inferload.scenario.schema.words import NO_WORDS, Words

STUDY = "study.yaml"  # in the folder of a study
RESULTS = "results.json"  # figures of all its runs
SMALL_CHANGE = 0.1  # which counts as none
Hosts = Mapping[str, str]  # URLs of running servers by variant, for the engine `running`
_NO_HOSTS: Hosts = MappingProxyType({})

_OWN_SERVERS = Words(en="each combination of its grid is a server of its own", zh="网格中的每个组合都是一个单独的服务")


class Source(ScenarioPart):
    """The text whose experiment is repeated."""

    title: Words = Field(description="title of the text")
    date: str = Field(description="date of the text, or when it was read")
    setting: Words = Field(description="model, card, version and number of runs behind its figures")


class Row(ScenarioPart):
    """Row of a table: the runs of a variant on a scenario."""

    label: Words = Field(description="name in the table; claims and base have the English one")
    variant: str | None = optional(None, "variant; null: the baseline of the part")
    scenario: Name | None = optional(None, "scenario of the part; null: its first one")
    load: float | None = optional(None, "step of the load: users or sessions/s; null: the whole run")
    published: Annotated[tuple[float | None, ...], Field(strict=False)] = optional(
        (), "published values, one for each figure; null: not published"
    )

    @property
    def name(self) -> str:
        """Return the label in English, by which the row is found."""
        return self.label.en


class StudyTable(ScenarioPart):
    """Table of figures, of one part of the study."""

    key: Name = Field(description="name, which claims refer to")
    title: Words = Field(description="heading")
    part: Name = Field(description="part of the study")
    figures: Annotated[tuple[Term, ...], Field(strict=False, min_length=1)] = Field(description="figures, as in gates")
    rows: Annotated[tuple[Row, ...], Field(strict=False)] = optional(
        (), "rows; empty: one for each variant, scenario and step of the load"
    )
    base: str | None = optional(None, "label of the row that changes refer to; null: no changes")
    against_baseline: Flag = optional(
        False, "true: changes refer to the row of the baseline on the same scenario and step, not to base"
    )
    grid: Flag = optional(False, "true: matrices over the grid of the part, and its Pareto front")
    highest: Gate | None = optional(
        None, "condition, as a gate; the highest step of each variant up to which it holds is named"
    )
    note: Words = optional(NO_WORDS, "remark under the heading")
    instead: Mapping[str, str] = optional({}, "variants by those that the engine has in their place")

    @model_validator(mode="after")
    def _consistent(self) -> "StudyTable":
        labels = [row.name for row in self.rows]
        distinct("row", labels, "rename one")
        if self.base is not None and self.against_baseline:
            raise ValueError(f"table {self.key}: base and against_baseline are both given; remove one")
        if self.base is not None and self.base not in labels:
            raise ValueError(f"table {self.key}: base {self.base} is no row; {instead(self.base, labels)}")
        for row in self.rows:
            if row.published and len(row.published) != len(self.figures):
                raise ValueError(
                    f"table {self.key}, row {row.name}: {len(row.published)} published values for "
                    f"{len(self.figures)} figures; give one each, null if it is not published"
                )
        return self

    @property
    def has_changes(self) -> bool:
        return self.base is not None or self.against_baseline

    @property
    def base_label(self) -> str:
        """Label of the row that changes refer to, in the language of the process; empty without `base`."""
        return next((f"{row.label}" for row in self.rows if row.name == self.base), self.base or "")


class Why(ScenarioPart):
    """Reasons of a claim, one for each finding. Without a test no reason is shown."""

    holds: Words = Field(description="reason if the claim holds")
    fails: Words = Field(description="reason if the opposite is found, or the condition does not hold")
    smaller: Words | None = optional(None, "reason if the change is smaller; null: that of holds")
    unclear: Words | None = optional(None, "reason if no difference is found; null: none")


class Claim(ScenarioPart):
    """Claim of the source, checked on rows of a table: a change against another row, or a condition."""

    text: Words = Field(description="the claim in one sentence")
    source: Words = optional(NO_WORDS, "where the source says it, and its figures: section, table, row")
    table: Name = Field(description="key of the table")
    row: str | None = optional(None, "label of the row; null: each row on which `when` holds")
    figure: Term | None = optional(None, "figure of the table; null: all of them, for expect: best")
    against: str | None = optional(None, "label of the row that the claim compares with; null: the base")
    than: str | None = optional(
        None, "label of a row: not values are compared, but the changes of both against their bases"
    )
    sum_of: Annotated[tuple[Term, ...], Field(strict=False)] = optional(
        (), "figures of the same row, with whose sum the claim compares; empty: with another row"
    )
    expect: Literal["lower", "higher", "no change", "best"] | None = optional(
        None, "claimed direction of the change, or best: better than each other row; null: `holds` is the claim"
    )
    holds: Gate | None = optional(None, "claimed condition on the mean of the row, as a gate")
    when: Gate | None = optional(
        None, "condition, as a gate, on the mean of the row without which the claim says nothing"
    )
    least: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = optional(
        None, "claimed size of the change: 0.5 is 50 %; null: that of the published values"
    )
    within: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = optional(
        None, f"of no change: size up to which a change is none; null: {SMALL_CHANGE:g}, 10 %"
    )
    why: Why = Field(description="what explains the finding, and where it cannot be told")

    def refuse(self, problem: str) -> None:
        """Raise ValueError for a problem of the claim."""
        raise ValueError(f"claim {self.text.en!r}: {problem}")

    @model_validator(mode="after")
    def _one_kind(self) -> "Claim":
        refuse = self.refuse
        if (self.expect is None) == (self.holds is None):
            refuse("give exactly one of expect and holds")
        if self.row is None and (self.when is None or self.expect == "best"):
            refuse("give its row, or the condition of its rows (when)")
        if self.figure is None and self.expect != "best":
            refuse("give its figure")
        if self.least is not None and self.expect not in ("lower", "higher"):
            refuse("least belongs to expect: lower or higher")
        if self.within is not None and self.expect != "no change":
            refuse("within belongs to expect: no change")
        compared = [key for key in ("against", "than", "sum_of") if getattr(self, key)]
        if compared and self.expect not in ("lower", "higher", "no change"):
            refuse(f"{compared[0]} belongs to a change; set expect: lower, higher or no change")
        if len(compared) > 1:
            refuse(f"{' and '.join(compared)} are both given; remove one")
        return self

    @property
    def labels(self) -> tuple[str, ...]:
        """Return the labels of the rows that it names."""
        return tuple(name for name in (self.row, self.against, self.than) if name is not None)


class WithFile(ScenarioPart):
    """Changes to a part if a data file exists."""

    path: str = Field(description="the file, below the current folder")
    sweep: Mapping[str, Any] = Field(description="keys that replace those of the part")

    @property
    def found(self) -> Mapping[str, Any]:
        """Return the keys; empty without the file."""
        return self.sweep if Path(self.path).is_file() else {}


class OnEngine(ScenarioPart):
    """Changes to a part on one engine."""

    rename: Mapping[str, str] = optional({}, "variants of the part by the names that replace them")
    sweep: Mapping[str, Any] = optional({}, "keys that replace those of the part")
    quick: Mapping[str, Any] = optional({}, "keys that --quick replaces further")
    left_out: Words = optional(NO_WORDS, "reason why the part does not run on the engine; empty: it runs")


class StudyPart(Sweep):
    """A sweep of a study: keys of a sweep file, and changes to them, which are not stored once they are made."""

    schema_: Literal[1] = optional(1, "version of the format of sweeps: 1", alias="schema")
    title: Words = Field(description="heading; the page adds the load that ran")
    name: Name = optional("part", "given by the study")
    engine: Engine = optional("simulator", "given by the command line")
    quick: Mapping[str, Any] = optional({}, "keys that --quick replaces", exclude=True)
    with_file: WithFile | None = optional(None, "changes if a data file exists; null: none", exclude=True)
    engines: Mapping[Engine, OnEngine] = optional({}, "changes by engine", exclude=True)

    @property
    def sweep(self) -> Sweep:
        return Sweep.model_validate(self.model_dump(by_alias=True, exclude={"title"}))

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels of the variants, the baseline first."""
        return tuple(map(label, self.all_variants))

    @property
    def scenario_names(self) -> tuple[str, ...]:
        return tuple(each.name or each.scenario for each in self.scenarios if isinstance(each, SweepScenario))

    def on(self, engine: Engine) -> OnEngine:
        return self.engines.get(engine, OnEngine())

    def left_out(self, engine: Engine, hosts: Hosts) -> Words:
        """Return why the part does not run on an engine; empty if it runs."""
        if engine != "running":
            return self.on(engine).left_out
        if self.grid:
            return _OWN_SERVERS
        if self.baseline in hosts:
            return NO_WORDS
        return Words(en=f"no --host of its baseline, {self.baseline}", zh=f"没有给出其基准 {self.baseline} 的 --host")

    def replaced(self, engine: Engine, quick: bool) -> dict[str, Any]:
        """Return the keys that an engine and `--quick` replace."""
        changes = self.on(engine)
        return {**changes.sweep, **({**self.quick, **changes.quick} if quick else {})}

    def missing_file(self, engine: Engine, quick: bool) -> str:
        """Return the data file that does not exist, and that the part would read on an engine; empty if there is none."""
        file = self.with_file
        unread = file is None or file.found or file.sweep.keys() <= self.replaced(engine, quick).keys()
        return "" if file is None or unread else file.path

    def resolved(self, where: str, fixed: Mapping[str, Any], quick: bool, hosts: Hosts) -> "StudyPart":
        """Return the part as it runs, with named scenarios. `fixed`: name, engine, clock. UsageError if it is invalid."""
        engine: Engine = fixed["engine"]
        rename = self.on(engine).rename
        found = {} if self.with_file is None else self.with_file.found
        keys = {**self.model_dump(by_alias=True, exclude_unset=True), **found, **self.replaced(engine, quick), **fixed}
        keys["baseline"] = rename.get(keys["baseline"], keys["baseline"])
        keys["variants"] = [rename.get(variant, variant) for variant in keys.get("variants", ())]
        if engine == "running":
            keys["variants"] = [variant for variant in keys["variants"] if variant in hosts]
            keys |= {"restart": "once", "hosts": {name: hosts[name] for name in (keys["baseline"], *keys["variants"])}}
        part = typed_yaml.validated(keys, where, StudyPart)
        definition.check(part, where)
        loads = part.loads().items()
        named = tuple(SweepScenario(scenario=load.source, name=name, set=load.settings) for name, load in loads)
        return part.with_digests().model_copy(update={"scenarios": named})


class Study(ScenarioPart):
    """Content of a study file; that of a study in its folder has the variants and scenarios of each part and row."""

    schema_: Literal[1] = Field(alias="schema", description="version of this file format: 1")
    name: Name = Field(description="short name, also used for the folder")
    title: Words = Field(description="heading of the page")
    question: Words = Field(description="the question in one or two sentences")
    source: Source = Field(description="the text whose experiment is repeated")
    tables: Annotated[tuple[StudyTable, ...], Field(strict=False, min_length=1)] = Field(description="tables")
    claims: Annotated[tuple[Claim, ...], Field(strict=False)] = optional((), "claims of the source")
    notes: Annotated[tuple[Words, ...], Field(strict=False)] = optional(
        (), "what limits a comparison with the source, a sentence each; equal sides are added"
    )
    engine: Engine = optional("simulator", "engine of the servers")
    quick: Flag = optional(False, "true: shortened by --quick")
    command: str = optional("", "command line that repeats the study")
    parts: Mapping[Name, StudyPart] = Field(description="sweeps by name, which is the folder of their runs")
    left_out: Mapping[str, Words] = optional({}, "parts that the engine cannot run, and why")

    @model_validator(mode="after")
    def _known(self) -> "Study":
        distinct("table", [table.key for table in self.tables], "rename one")
        for each in self.tables:
            if each.part not in {**self.parts, **self.left_out}:
                raise ValueError(f"table {each.key}: no part {each.part}; {instead(str(each.part), self.parts)}")
        for claim in self.claims:
            if claim.table not in (keys := [table.key for table in self.tables]):
                claim.refuse(f"no table {claim.table}; {instead(claim.table, keys)}")
            table = self.table(claim.table)
            labels = [row.name for row in table.rows]
            if unknown := [label for label in claim.labels if label not in labels]:
                claim.refuse(f"{unknown[0]} is no row of table {claim.table}")
            figures = (*claim.sum_of, *((claim.figure,) if claim.figure else ()))
            if foreign := [name for name in figures if name not in table.figures]:
                claim.refuse(f"{foreign[0]} is no figure of table {claim.table}")
            against_base = claim.expect not in (None, "best") and claim.against is None and not claim.sum_of
            if against_base and not table.has_changes:
                claim.refuse(f"table {claim.table} has no base; set base, against, or holds")
        return self

    def table(self, key: str) -> StudyTable:
        return next(table for table in self.tables if table.key == key)

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

    def resolved(
        self,
        engine: Engine,
        quick: bool = False,
        command: str = "",
        hosts: Hosts = _NO_HOSTS,
        clock: Clock | None = None,
    ) -> "Study":
        """Return the study as it runs on an engine. Raise UsageError for an invalid part. `clock`: None for that of each part."""
        left_out = {name: reason for name, part in self.parts.items() if (reason := part.left_out(engine, hosts))}
        left_out |= self.left_out
        parts: dict[str, StudyPart] = {}
        notes = list(self.notes)
        for name, part in self.parts.items():
            if name not in left_out:
                fixed = {"engine": engine, "name": f"{self.name}-{name}"} | ({} if clock is None else {"clock": clock})
                parts[name] = part.resolved(f"study {self.name}, part {name}", fixed, quick, hosts)
                equal = equal_sides.of_sweep(parts[name])
                notes += [Words(en=f"{name}: {words.en}", zh=f"{name}:{words.zh}") for words in equal]
        tables = tuple(self._table(table, engine, parts.get(table.part)) for table in self.tables)
        changes = {"engine": engine, "quick": quick, "command": command, "notes": tuple(notes)}
        return self.model_copy(update={**changes, "parts": parts, "tables": tables, "left_out": left_out})

    def missing_files(self, engine: Engine, quick: bool, hosts: Hosts = _NO_HOSTS) -> list[str]:
        """Return the data files that do not exist, and that parts which run on an engine would read."""
        running = [part for part in self.parts.values() if not part.left_out(engine, hosts)]
        return [file for part in running if (file := part.missing_file(engine, quick))]

    def _table(self, table: StudyTable, engine: Engine, part: StudyPart | None) -> StudyTable:
        """Return the table with the variant and the scenario of each row. `part`: as it runs; None: it does not."""
        if part is None:
            return table
        before, rename = self.parts[table.part], self.parts[table.part].on(engine).rename

        def resolved(row: Row) -> Row:
            variant = part.labels[0] if row.variant is None else label(rename.get(row.variant, row.variant))
            return row.model_copy(update={"variant": variant, "scenario": row.scenario or part.scenario_names[0]})

        instead = {
            old: rename[old]
            for old in (before.baseline, *before.variants)
            if label(rename.get(old, old)) in part.labels and old in rename
        }
        return table.model_copy(update={"rows": tuple(map(resolved, table.rows)), "instead": instead})


def load(path: Path) -> Study:
    """Read a study file, or the bundled study of that name. Raise UsageError with the mistakes."""
    return typed_yaml.from_text(catalog.read(catalog.file_of("studies", path), "study "), str(path), Study)


def read(path: Path) -> Study:
    """Read a study as it runs, STUDY in its folder. Raise UsageError if it is invalid."""
    return typed_yaml.from_text(catalog.read(path, "study ", "name the folder of a study"), str(path), Study)
