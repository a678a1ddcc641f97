"""Text of a study: a question, its source, tables of figures beside published ones, and claims.

`inferload study` writes it to `study.yaml` in its folder; the page of the study is made from that file and the runs.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from inferload.figures.limits import gate_grammar
from inferload.scenario.schema.base import Flag, ScenarioPart, distinct
from inferload.scenario.schema.fields import Name

STUDY = "study.yaml"  # in the folder of a study
RESULTS = "results.json"  # figures of all its runs


def _term(text: str) -> str:
    """Return a figure as in a gate; ValueError if it is none."""
    gate_grammar.parse(f"{text} < 0")
    return text


def _condition(text: str) -> str:
    gate_grammar.parse(text)
    return text


def grid_point(values: Mapping[str, str]) -> str:
    """Return the name of a combination of a grid, such as `max-num-seqs-16.dtype-float16`."""
    return ".".join(f"{flag}-{value}" for flag, value in values.items())


def grid_value(value: str | int | float | bool) -> str:
    """Format a value of a grid as in YAML."""
    return str(value).lower() if isinstance(value, bool) else str(value)


Term = Annotated[str, AfterValidator(_term)]


class Source(ScenarioPart):
    """The text whose experiment is repeated."""

    title: str = Field(description="title of the text")
    date: str = Field(description="date of the text, or when it was read")
    setting: str = Field(description="model, card, version and number of runs behind its figures")


class Row(ScenarioPart):
    """Row of a table: the runs of a variant on a scenario."""

    label: str = Field(description="name in the table")
    variant: str | None = Field(default=None, description="variant; null: the baseline of the part")
    scenario: Name | None = Field(default=None, description="scenario of the part; null: its first one")
    load: float | None = Field(default=None, description="step of the load: users or sessions/s; null: the whole run")
    published: Annotated[tuple[float | None, ...], Field(strict=False)] = Field(
        default=(), description="published values, one for each figure; null: not published"
    )


class StudyTable(ScenarioPart):
    """Table of figures, of one part of the study."""

    key: Name = Field(description="name, which claims refer to")
    title: str = Field(description="heading")
    part: Name = Field(description="part of the study")
    figures: Annotated[tuple[Term, ...], Field(strict=False, min_length=1)] = Field(description="figures, as in gates")
    rows: Annotated[tuple[Row, ...], Field(strict=False)] = Field(
        default=(), description="rows; empty: one for each variant, scenario and step of the load"
    )
    base: str | None = Field(default=None, description="label of the row that changes refer to; null: no changes")
    against_baseline: Flag = Field(
        default=False,
        description="true: changes refer to the row of the baseline on the same scenario and step, not to base",
    )
    grid: Flag = Field(default=False, description="true: matrices over the grid of the part, and its Pareto front")
    highest: Annotated[str, AfterValidator(_condition)] | None = Field(
        default=None, description="condition, as a gate; the highest step of each variant up to which it holds is named"
    )
    note: str = Field(default="", description="remark under the heading")

    @model_validator(mode="after")
    def _consistent(self) -> "StudyTable":
        labels = [row.label for row in self.rows]
        distinct("row", labels, "rename one")
        if self.base is not None and self.against_baseline:
            raise ValueError(f"table {self.key}: base and against_baseline are both given; remove one")
        if self.base is not None and self.base not in labels:
            raise ValueError(f"table {self.key}: base {self.base} is no row; name one of {', '.join(labels)}")
        for row in self.rows:
            if row.published and len(row.published) != len(self.figures):
                raise ValueError(
                    f"table {self.key}, row {row.label}: {len(row.published)} published values for "
                    f"{len(self.figures)} figures; give one each, null if it is not published"
                )
        return self

    @property
    def has_changes(self) -> bool:
        """True if the table has changes."""
        return self.base is not None or self.against_baseline

    def base_of(self, row: Row, rows: Sequence[Row], baseline: str) -> Row | None:
        """Return the row of `rows` that the changes of a row refer to; None for a base itself. `baseline`: its variant."""
        if self.base is not None:
            found = next((each for each in rows if each.label == self.base), None)
        else:
            place = (baseline, row.scenario, row.load)
            found = next((each for each in rows if (each.variant, each.scenario, each.load) == place), None)
        return None if found is row or not self.has_changes else found


class Claim(ScenarioPart):
    """Claim of the source, checked on one figure of a table's row: its change against the base, or a condition."""

    text: str = Field(description="the claim in one sentence")
    table: Name = Field(description="key of the table")
    row: str = Field(description="label of the row")
    figure: Term = Field(description="figure of the table")
    expect: Literal["lower", "higher", "no change"] | None = Field(
        default=None, description="claimed direction of the change against the base; null: `holds` is the claim"
    )
    holds: Annotated[str, AfterValidator(_condition)] | None = Field(
        default=None, description="claimed condition on the mean of the row, as a gate"
    )
    least: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        default=None, description="smallest change that supports the claim: 0.5 is 50 %; null: any"
    )
    why: str = Field(description="what explains the result, and where it cannot be told")

    @model_validator(mode="after")
    def _one_kind(self) -> "Claim":
        if (self.expect is None) == (self.holds is None):
            raise ValueError(f"claim {self.text!r}: give exactly one of expect and holds")
        return self


class StudyText(ScenarioPart):
    """Question, source, tables and claims of a study."""

    schema_: Literal[1] = Field(alias="schema", description="version of this file format: 1")
    name: Name = Field(description="short name, also used for the folder")
    title: str = Field(description="heading of the page")
    question: str = Field(description="the question in one or two sentences")
    source: Source = Field(description="the text whose experiment is repeated")
    tables: Annotated[tuple[StudyTable, ...], Field(strict=False, min_length=1)] = Field(description="tables")
    claims: Annotated[tuple[Claim, ...], Field(strict=False)] = Field(default=(), description="claims of the source")
    notes: Annotated[tuple[str, ...], Field(strict=False)] = Field(
        default=(), description="what limits a comparison with the source, a sentence each"
    )

    @model_validator(mode="after")
    def _known(self) -> "StudyText":
        distinct("table", [table.key for table in self.tables], "rename one")
        for claim in self.claims:
            table = next((table for table in self.tables if table.key == claim.table), None)
            if table is None:
                raise ValueError(f"claim {claim.text!r}: no table {claim.table}")
            if claim.row not in [row.label for row in table.rows] or claim.figure not in table.figures:
                raise ValueError(f"claim {claim.text!r}: {claim.row}, {claim.figure} is not in table {claim.table}")
            if claim.expect is not None and not table.has_changes:
                raise ValueError(f"claim {claim.text!r}: table {claim.table} has no base; set base, or use holds")
        return self

    def table(self, key: str) -> StudyTable:
        """Return a table by its key."""
        return next(table for table in self.tables if table.key == key)


class PlannedPart(ScenarioPart):
    """Part of a study that runs: names of its folders, in the order of tables."""

    title: str = Field(description="heading")
    variants: Annotated[tuple[str, ...], Field(strict=False)] = Field(description="labels, the baseline first")
    scenarios: Annotated[tuple[str, ...], Field(strict=False)] = Field(description="names")
    grid: Mapping[str, Annotated[tuple[str, ...], Field(strict=False)]] = Field(
        default={}, description="values of the arguments of a grid"
    )


class StudyPlan(StudyText):
    """`study.yaml` in the folder of a study: its text, with the variants and scenarios of each row."""

    engine: str = Field(description="engine of the servers")
    quick: Flag = Field(description="true: shortened by --quick")
    command: str = Field(description="command line that repeats the study")
    parts: Mapping[str, PlannedPart] = Field(description="parts by name, which is the folder of their runs")
    left_out: Mapping[str, str] = Field(default={}, description="parts that the engine cannot run, and why")
