"""Rows of a study's tables over the pairs of runs, and findings on the claims of its source. No I/O."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from inferload.base.numbers import number, percent
from inferload.campaign.sweep.grid import words
from inferload.campaign.sweep.study import SMALL_CHANGE, Claim, Row, Study, StudyTable
from inferload.figures import server_figures
from inferload.figures.limits import gate_grammar
from inferload.results.statistics import paired_runs
from inferload.results.statistics.paired_runs import MATTERS, Effect
from inferload.scenario.schema.words import Words

from ..comparison.compare import FEWEST_PAIRS
from ..comparison.sides import mean_over_runs
from ..data import figures
from ..data.figures import Term
from .results import StudyResults, StudyRun

Answer = Literal[
    "holds here",
    "opposite here",
    "smaller here",
    "not found here",
    "no change found",
    "change found",
    "does not hold here",
    "not decided",
    "not reached",
    "not tested",
    "not measured",
]
# The answer on a claim about several rows or figures is the first of these that one of them has.
_DECIDING: tuple[Answer, ...] = (
    *("opposite here", "does not hold here", "change found", "not decided", "not found here", "smaller here"),
    *("not tested", "not measured", "no change found", "holds here"),
)


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
    found = [
        MeasuredRow(
            row,
            tuple(
                run for run in runs if (run.variant, run.scenario, run.load) == (row.variant, row.scenario, row.load)
            ),
        )
        for row in rows
    ]
    return found if table.rows else [each for each in found if each.runs]


def _rows_of(table: StudyTable, plan: Study, runs: Sequence[StudyRun]) -> list[Row]:
    part = plan.parts.get(table.part)
    if part is None:
        return []
    loads: list[float | None] = [*sorted({run.load for run in runs if run.load is not None})] or [None]
    rows = []
    for scenario in part.scenario_names:
        for variant in part.labels:
            for load in loads:
                words = [
                    variant if len(part.labels) > 1 else "",
                    scenario if len(part.scenario_names) > 1 else "",
                    "" if load is None else number(load),
                ]
                rows.append(
                    Row(
                        label=Words(en=", ".join(filter(None, words)) or variant),
                        variant=variant,
                        scenario=scenario,
                        load=load,
                    )
                )
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
    changes = [ratio - 1 for ratio in _ratios(base, other, name).values()]
    return (min(changes), max(changes)) if len(changes) > 1 else None


def _ratios(base: MeasuredRow, other: MeasuredRow, name: str) -> dict[int, float]:
    before, after = base.by_pair(name), other.by_pair(name)
    return {pair: after[pair] / before[pair] for pair in before.keys() & after.keys() if before[pair] > 0}


def bases(table: StudyTable, plan: Study, rows: Sequence[MeasuredRow]) -> dict[str, MeasuredRow]:
    """Return the row that the changes of each row refer to, by label; without the bases themselves."""
    part = plan.parts.get(table.part)
    by_row = {id(each.row): each for each in rows}
    found = {
        each.name: table.base_of(each.row, [other.row for other in rows], part.labels[0] if part else "")
        for each in rows
    }
    return {label: by_row[id(row)] for label, row in found.items() if row is not None}


def published_change(table: StudyTable, base: Row, row: Row, name: str) -> float | None:
    """Return the change against the base that follows from the published values; None if one is not published."""
    position = table.figures.index(name)
    if not base.published or not row.published:
        return None
    before, after = base.published[position], row.published[position]
    return after / before - 1 if before and after is not None else None


@dataclass(frozen=True, slots=True)
class Finding:
    """Finding on a claim. `here`: what was measured, in words."""

    claim: Claim
    answer: Answer
    published: str
    here: str

    @property
    def why(self) -> str:
        """Return the reason that fits the answer; empty if nothing was tested."""
        why = self.claim.why
        match self.answer:
            case "holds here" | "no change found":
                return str(why.holds)
            case "smaller here":
                return str(why.smaller or why.holds)
            case "opposite here" | "does not hold here" | "change found":
                return str(why.fails)
            case "not found here" | "not decided":
                return str(why.unclear or "")
        return ""


def finding(claim: Claim, plan: Study, results: StudyResults) -> Finding:
    table = plan.table(claim.table)
    rows = measured(table, plan, results)
    chosen = [each for each in rows if claim.row in (None, each.name)]
    counted = [each for each in chosen if each.counted]
    if not counted:
        problem = (
            "no valid run" if any(each.runs for each in chosen) else "left out by --quick" if plan.quick else "not run"
        )
        return Finding(claim, "not measured", "", str(plan.left_out.get(table.part) or problem))
    reached = [
        each for each in counted if claim.when is None or gate_grammar.parse(claim.when).holds(_of(each, claim.when))
    ]
    if not reached:
        here = "; ".join(f"{each.row.label}: {_said(each, claim.when or '')}" for each in counted[-3:])
        return Finding(claim, "not reached", "", here)
    found = [each for row in reached for each in _answers(claim, table, plan, rows, row)]
    answers = [each.answer for each in found]
    answered = next(each for each in _DECIDING if each in answers)
    deciding = [each for each in found if each.answer == answered]
    published = next((each.published for each in deciding if each.published), "")
    return Finding(claim, answered, published, "; ".join(dict.fromkeys(each.here for each in deciding[:3])))


def _answers(
    claim: Claim, table: StudyTable, plan: Study, rows: Sequence[MeasuredRow], row: MeasuredRow
) -> list[Finding]:
    """Return the findings on one row: one, or for `best` one for each figure and other row."""
    several = f"{row.row.label}: " if claim.row is None else ""
    if claim.holds is not None:
        said = ", ".join(dict.fromkeys(_said(row, each) for each in (claim.when, claim.holds) if each))
        return [Finding(claim, _condition(claim.holds, row), "", several + said)]
    if claim.expect == "best":
        others = [each for each in rows if each is not row and each.counted]
        return [
            _rival(claim, row, other, name)
            for other in others
            for name in table.figures
            if name == (claim.figure or name)
        ]
    name, by_label, base_of = claim.figure or "", {each.name: each for each in rows}, bases(table, plan, rows)
    base = row if claim.sum_of else base_of.get(row.name) if claim.against is None else by_label[claim.against]
    if base is None:
        return [] if claim.row is None else [Finding(claim, "not measured", "", "no base")]
    size = None if claim.than or claim.sum_of else published_change(table, base.row, row.row, name)
    against = ""
    if claim.sum_of:
        parts = [row.by_pair(each) for each in claim.sum_of]
        sums = {pair: sum(part[pair] for part in parts) for pair in parts[0] if all(pair in part for part in parts)}
        found = effect(sums, row.by_pair(name))
        against = " + ".join(term_of(each).title for each in claim.sum_of)
    elif claim.than is None:
        found = row_effect(base, row, name)
    else:
        other, other_base = by_label[claim.than], base_of.get(claim.than)
        found = None if other_base is None else effect(_ratios(other_base, other, name), _ratios(base, row, name))
        against = f"the change of {other.row.label}"
    published = _change_text(size)
    if found is None:
        return [Finding(claim, "not measured", published, f"{several}no pairs of runs with this figure")]
    here = several + effect_text(found) + (f" against {against}" if against else "")
    return [Finding(claim, answer(claim, found, size), published, here)]


def _condition(condition: str, row: MeasuredRow) -> Answer:
    """Return the answer on a condition, which all runs of a row meet or break, or not all."""
    values = [run.values.get(_figure_of(condition)) for run in row.counted]
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return "not measured"
    if len(known) < FEWEST_PAIRS:
        return "not tested"
    met = {gate_grammar.parse(condition).holds(value) for value in known}
    return "not decided" if len(met) > 1 else "holds here" if met == {True} else "does not hold here"


def _rival(claim: Claim, row: MeasuredRow, other: MeasuredRow, name: str) -> Finding:
    """Return the finding on one figure against one other row, for a claim to be the best."""
    found, term = row_effect(other, row, name), term_of(name)
    if found is None:
        return Finding(claim, "not measured", "", f"{term.title}: no pairs with {other.row.label}")
    match direction(found):
        case "not tested":
            answered: Answer = "not tested"
        case "none":
            answered = "not found here"
        case way:
            answered = "holds here" if way == term.better else "does not hold here"
    return Finding(claim, answered, "", f"{term.title} against {other.row.label}: {effect_text(found)}")


def _figure_of(condition: str) -> str:
    gate = gate_grammar.parse(condition)
    return gate.name if gate.statistic is None else f"{gate.statistic}({gate.name})"


def _of(row: MeasuredRow, condition: str) -> float | None:
    """Return the mean of the figure of a condition."""
    return row.value(_figure_of(condition))


def _said(row: MeasuredRow, condition: str) -> str:
    name = _figure_of(condition)
    return f"{term_of(name).title} {_value_text(name, row.value(name))}"


def direction(found: Effect) -> Literal["lower", "higher", "none", "not tested"]:
    """Return the direction of an effect by its interval, a test from FEWEST_PAIRS pairs on; none within MATTERS."""
    if found.pairs < FEWEST_PAIRS or found.low is None or found.high is None:
        return "not tested"
    if not found.varies and not found.is_same:
        return "none"
    if found.low <= 1 <= found.high or max(1 - found.low, found.high - 1) < MATTERS:
        return "none"
    return "lower" if found.ratio < 1 else "higher"


def answer(claim: Claim, found: Effect, published: float | None = None) -> Answer:
    """Return the answer on a claimed change. `published`: the change of the published values, the claimed size if `least` is none.

    The size is rejected, as the direction is, if the whole interval is nearer to no change. There is no change if the whole
    interval is within the limit of the claim, and one if all of it is beyond.
    """
    way = direction(found)
    if way == "not tested":
        return "not tested"
    low, high = (found.ratio, found.ratio) if found.low is None or found.high is None else (found.low, found.high)
    if claim.expect == "no change":
        most = SMALL_CHANGE if claim.within is None else claim.within
        if low > 1 + most or high < 1 - most:
            return "change found"
        return "no change found" if low >= 1 - most and high <= 1 + most else "not decided"
    if way == "none":
        return "not found here"
    if way != claim.expect:
        return "opposite here"
    size = claim.least
    if size is None and published is not None and (published < 0) == (way == "lower"):
        size = abs(published)
    farthest = 1 - low if way == "lower" else high - 1
    return "smaller here" if size is not None and farthest < size else "holds here"


def effect_text(found: Effect) -> str:
    """Format a change with its interval, such as `-3.1 % (-5.2 to -0.9 %, 6 pairs)`."""
    change = _change_text(found.ratio - 1)
    if found.low is None or found.high is None:
        return f"{change} (one pair)"
    if not found.varies:
        return f"{change} (the same in every pair, {found.pairs} pairs)"
    return f"{change} ({signed(found.low - 1)} to {signed(found.high - 1)} %, {found.pairs} pairs)"


def signed(change: float) -> str:
    """Format a change in percent with three digits, such as `-3.1` or `+2,550`."""
    percentage = float(f"{100 * change:.3g}")
    return f"{percentage:+,.0f}" if abs(percentage) >= 1000 else f"{percentage:+g}"


def _change_text(change: float | None) -> str:
    return "" if change is None else f"{signed(change)} %"


def _value_text(name: str, value: float | None) -> str:
    figure = term_of(name).figure
    if figure.form == "share":
        return percent(value)
    return " ".join(filter(None, (number(value), figure.unit)))


def highest(table: StudyTable, rows: Sequence[MeasuredRow]) -> dict[tuple[str, str], float | None]:
    """Return the highest step of each variant and scenario up to which the table's condition holds; None: at no step."""
    condition = gate_grammar.parse(table.highest or "")
    found: dict[tuple[str, str], float | None] = {}
    broken: set[tuple[str, str]] = set()
    for each in sorted(rows, key=lambda each: each.row.load or 0.0):
        key = (each.row.variant or "", each.row.scenario or "")
        value = _of(each, table.highest or "")
        found.setdefault(key, None)
        if value is None or not condition.holds(value):
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
    terms = [term_of(name) for name in names]

    def keys(row: MeasuredRow) -> list[float] | None:
        values = [row.value(name) for name in names]
        if any(value is None for value in values):
            return None
        return [
            (value or 0.0) * (1 if term.better == "lower" else -1) for value, term in zip(values, terms, strict=True)
        ]

    known = {row.name: found for row in rows if (found := keys(row)) is not None}
    return {
        label
        for label, values in known.items()
        if not any(
            all(a <= b for a, b in zip(other, values, strict=True)) and other != values for other in known.values()
        )
    }
