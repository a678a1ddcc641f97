"""Rows of a study's tables over the pairs of runs: values, effects, published changes, grids. No I/O."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from inferload.base.numbers import number
from inferload.campaign.sweep.grid import words
from inferload.campaign.sweep.study import Row, Study, StudyTable
from inferload.figures.limits import gate_grammar
from inferload.figures.servers import server_figures
from inferload.results.statistics import paired_runs
from inferload.results.statistics.paired_runs import Effect
from inferload.scenario.schema.words import Words

from ..comparison.requirements import name_of
from ..comparison.sides import mean_over_runs
from ..data import figures
from ..data.figures import Term
from .results import StudyResults, StudyRun


def term_of(name: str) -> Term:
    """Return a figure of a table: of turns, rates and clients as in comparisons, or of the server."""
    gate = gate_grammar.parse(f"{name} < 0")
    row = server_figures.BY_KEY.get(gate.name)
    return figures.figure(name) if row is None else Term(row, gate.statistic)


def anchor(table: StudyTable, name: str) -> str:
    """Return the anchor of a figure of a table on the page, such as `grid-mean-ttft_ms`."""
    return f"{table.key}-{name.replace('(', '-').rstrip(')')}"


@dataclass(frozen=True, slots=True)
class MeasuredRow:
    """Row of a table with its runs. `runs`: one per pair, or one per pair and step."""

    row: Row
    runs: tuple[StudyRun, ...]

    @property
    def name(self) -> str:
        return self.row.name

    @property
    def counted(self) -> tuple[StudyRun, ...]:
        """Runs of the means: all but the invalid ones."""
        return tuple(run for run in self.runs if run.level != "invalid")

    def value(self, name: str) -> float | None:
        """Return the mean of a figure over the counted runs; None if it is unknown in one of them."""
        return mean_over_runs([run.values.get(name) for run in self.counted])

    def meets(self, condition: str) -> bool:
        """Return True if the mean of the figure of a condition is known, and meets it."""
        gate = gate_grammar.parse(condition)
        return gate.holds(self.value(name_of(gate)))

    def is_unsteady(self, name: str) -> bool:
        """Return True if a figure is a percentile with fewer than 10 samples beyond it in one of the runs."""
        return any(name in run.unsteady for run in self.counted)

    def by_pair(self, name: str) -> dict[int, float]:
        values = {run.pair: run.values.get(name) for run in self.counted}
        return {pair: value for pair, value in values.items() if value is not None}


def measured(table: StudyTable, plan: Study, results: StudyResults) -> list[MeasuredRow]:
    """Return the rows of a table with their runs; of a table without rows one for each variant, scenario and step."""
    runs = [run for run in results.runs if run.part == table.part]
    rows = table.rows or _rows_of(table, plan, runs)
    by_place: dict[tuple[object, ...], list[StudyRun]] = {}
    for run in runs:
        by_place.setdefault((run.variant, run.scenario, run.load), []).append(run)
    found = [MeasuredRow(row, tuple(by_place.get((row.variant, row.scenario, row.load), ()))) for row in rows]
    return found if table.rows else [each for each in found if each.runs]


def _rows_of(table: StudyTable, plan: Study, runs: Sequence[StudyRun]) -> list[Row]:
    part = plan.parts.get(table.part)
    if part is None:
        return []
    loads: list[float | None] = [*sorted({run.load for run in runs if run.load is not None})] or [None]
    rows = []
    for scenario, variant, load in product(part.scenario_names, part.labels, loads):
        several = [variant] * (len(part.labels) > 1) + [scenario] * (len(part.scenario_names) > 1)
        words = ", ".join([*several, *([] if load is None else [number(load)])])
        rows.append(Row(label=Words(en=words or variant), variant=variant, scenario=scenario, load=load))
    return rows


def effect(before: Mapping[int, float], after: Mapping[int, float]) -> Effect | None:
    """Return the effect over the pairs of both, values by pair; None if there are none, or a value is not above 0."""
    pairs = sorted(before.keys() & after.keys())
    if not pairs or min(*(before[pair] for pair in pairs), *(after[pair] for pair in pairs)) <= 0:
        return None
    return paired_runs.effect([before[pair] for pair in pairs], [after[pair] for pair in pairs]).confirmed()


def row_effect(base: MeasuredRow, other: MeasuredRow, name: str) -> Effect | None:
    """Return the effect of a row against another one on a figure; None as in `effect`."""
    return effect(base.by_pair(name), other.by_pair(name))


def spread(base: MeasuredRow, other: MeasuredRow, name: str) -> tuple[float, float] | None:
    """Return the lowest and the highest change of a single pair; None with fewer than two pairs."""
    changes = [ratio - 1 for ratio in ratios(base, other, name).values()]
    return (min(changes), max(changes)) if len(changes) > 1 else None


def ratios(base: MeasuredRow, other: MeasuredRow, name: str) -> dict[int, float]:
    before, after = base.by_pair(name), other.by_pair(name)
    return {pair: after[pair] / before[pair] for pair in before.keys() & after.keys() if before[pair] > 0}


def bases(table: StudyTable, plan: Study, rows: Sequence[MeasuredRow]) -> dict[str, MeasuredRow]:
    """Return the row that the changes of each row refer to, by label; without the bases themselves."""
    part = plan.parts.get(table.part)
    baseline = part.labels[0] if part and table.against_baseline else ""
    of_load = {(each.row.scenario, each.row.load): each for each in rows if each.row.variant == baseline}
    base = next((each for each in rows if each.name == table.base), None)
    found = {each.name: base or of_load.get((each.row.scenario, each.row.load)) for each in rows}
    return {name: each for name, each in found.items() if each is not None and each.name != name}


def published_change(table: StudyTable, base: Row, row: Row, name: str) -> float | None:
    """Return the change against the base that follows from the published values; None if one is not published."""
    position = table.figures.index(name)
    if not base.published or not row.published:
        return None
    before, after = base.published[position], row.published[position]
    return after / before - 1 if before and after is not None else None


def highest(table: StudyTable, rows: Sequence[MeasuredRow]) -> dict[tuple[str, str], float | None]:
    """Return the highest step of each variant and scenario up to which the table's condition holds; None: at no step."""
    found: dict[tuple[str, str], float | None] = {}
    broken: set[tuple[str, str]] = set()
    for each in sorted(rows, key=lambda each: each.row.load or 0.0):
        key = (each.row.variant or "", each.row.scenario or "")
        found.setdefault(key, None)
        if not each.meets(table.highest or ""):
            broken.add(key)
        elif key not in broken:
            found[key] = each.row.load
    return found


@dataclass(frozen=True, slots=True)
class Grid:
    """Rows of a table over a grid of two arguments: `down` with its values, and `across`."""

    down: str
    downs: tuple[str, ...]
    across: str
    acrosses: tuple[str, ...]
    rows: Sequence[MeasuredRow | None]  # of each combination, the last argument changing fastest; None: it has no runs

    def values(self, name: str) -> list[list[float | None]]:
        """Return a figure by `downs` and `acrosses`; None if it is unknown."""
        values = [None if row is None else row.value(name) for row in self.rows]
        width = len(self.acrosses)
        return [values[start : start + width] for start in range(0, len(values), width)]


def grid_of(table: StudyTable, plan: Study, rows: Sequence[MeasuredRow]) -> Grid | None:
    """Return the grid of a table; None if its part has not two arguments."""
    part = plan.parts.get(table.part)
    if not table.grid or part is None or len(part.grid) != 2:
        return None
    (down, downs), (across, acrosses) = ((flag, words(values)) for flag, values in part.grid.items())
    measured = {each.row.variant: each for each in rows}
    return Grid(down, downs, across, acrosses, [measured.get(name) for name in part.grid_points])


def front(rows: Sequence[MeasuredRow], names: Sequence[str]) -> set[str]:
    """Return the labels of the rows that no other row surpasses in one figure without being worse in another."""
    signs = {name: 1 if term_of(name).better == "lower" else -1 for name in names}
    values = {
        row.name: [sign * value for name, sign in signs.items() if (value := row.value(name)) is not None]
        for row in rows
    }
    known = {label: found for label, found in values.items() if len(found) == len(names)}

    def surpasses(other: Sequence[float], found: Sequence[float]) -> bool:
        return other != found and all(a <= b for a, b in zip(other, found, strict=True))

    return {label for label, found in known.items() if not any(surpasses(other, found) for other in known.values())}
