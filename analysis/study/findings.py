"""Findings on the claims of a study's source. No I/O."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from inferload.base.numbers import number, percent
from inferload.campaign.sweep.study import SMALL_CHANGE, Claim, Study, StudyTable
from inferload.figures.limits import gate_grammar
from inferload.results.statistics.paired_runs import MATTERS, Effect

from ..comparison.compare import FEWEST_PAIRS
from ..comparison.requirements import name_of
from .measured_rows import MeasuredRow, bases, effect, measured, published_change, ratios, row_effect, term_of
from .results import StudyResults

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
    reached = [each for each in counted if claim.when is None or each.meets(claim.when)]
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
        names = [claim.figure] if claim.figure else table.figures
        return [_rival(claim, row, other, name) for other in others for name in names]
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
        found = None if other_base is None else effect(ratios(other_base, other, name), ratios(base, row, name))
        against = f"the change of {other.row.label}"
    published = _change_text(size)
    if found is None:
        return [Finding(claim, "not measured", published, f"{several}no pairs of runs with this figure")]
    here = several + effect_text(found) + (f" against {against}" if against else "")
    return [Finding(claim, answer(claim, found, size), published, here)]


def _condition(condition: str, row: MeasuredRow) -> Answer:
    """Return the answer on a condition, which all runs of a row meet or break, or not all."""
    gate = gate_grammar.parse(condition)
    values = [run.values.get(name_of(gate)) for run in row.counted]
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return "not measured"
    if len(known) < FEWEST_PAIRS:
        return "not tested"
    met = set(map(gate.holds, known))
    return "not decided" if len(met) > 1 else "holds here" if met == {True} else "does not hold here"


def _rival(claim: Claim, row: MeasuredRow, other: MeasuredRow, name: str) -> Finding:
    """Return the finding on one figure against one other row, for a claim to be the best."""
    found, term = row_effect(other, row, name), term_of(name)
    if found is None:
        return Finding(claim, "not measured", "", f"{term.title}: no pairs with {other.row.label}")
    answers: dict[str, Answer] = {"not tested": "not tested", "none": "not found here", term.better: "holds here"}
    answered = answers.get(direction(found), "does not hold here")
    return Finding(claim, answered, "", f"{term.title} against {other.row.label}: {effect_text(found)}")


def _said(row: MeasuredRow, condition: str) -> str:
    name = name_of(gate_grammar.parse(condition))
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
