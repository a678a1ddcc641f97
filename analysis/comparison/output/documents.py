"""Comparisons as JSON and JUnit XML."""

from collections.abc import Iterator, Sequence
from typing import Any
from xml.etree import ElementTree

from inferload.base.json_text import lines as json_lines

from .. import costs, front
from ..arms import between_arms
from ..best import BestSide, Decision, best_by_goal
from ..compare import Comparison, FigureRow, table_rows
from ..requirements import Checked
from . import tables
from .text import change_text, collapses, headline, not_served_text, title


def document(comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """Return the comparisons as JSON values, unrounded. `arms`: warm against cold runs of each side that has both."""
    decisions = best_by_goal(comparisons)
    return {
        "format": 1,
        "baseline": comparisons[0].baseline.label,
        "names": {side.label: side.name for side, _ in table_rows(comparisons) if side.name},
        "cost": costs.document([side for side, _ in table_rows(comparisons)]),
        "front": None if (found := front.of_comparisons(comparisons)) is None else found.document,
        "candidates": [_comparison_document(comparison) for comparison in comparisons],
        "arms": [_comparison_document(comparison) for comparison in between_arms(comparisons)],
        "best": [_best_document(best, each) for each in decisions for best in each.results],
        "requirements": [_checked_document(each) for decision in decisions for each in decision.checked],
        "ruled_out": {label: reasons for decision in decisions for label, reasons in decision.ruled_out.items()},
        "winners": [
            {"side": each.label, "goals": each.goals, "command": each.command or None}
            for decision in decisions
            if not decision.is_none_left
            for each in decision.winners
        ],
    }


def _checked_document(checked: Checked) -> dict[str, Any]:
    return {
        "side": checked.label,
        "requirement": checked.gate.text,
        **{name: getattr(checked, name) for name in ("value", "low", "high", "holds", "is_uncertain")},
    }


def _best_document(best: BestSide, decision: Decision) -> dict[str, Any]:
    closest = best.rivals[0] if best.rivals else None
    change = {} if closest is None else _change_document(closest.row)
    return {
        "baseline": best.baseline,
        "figure": best.figure.name,
        "better": best.figure.better,
        "best": best.label if best.is_decided and not decision.is_none_left else None,
        "best_value_of": best.label,
        "value": best.value,
        "answer": best.certainty,
        "tied": [rival.label for rival in best.tied],
        "closest": None if closest is None else closest.label,
        **change,
        "more_pairs": best.more_pairs,
        "worse": list(best.worse),
        "missing": best.missing or None,
        "unsteady": list(best.unsteady),
    }


def _comparison_document(comparison: Comparison) -> dict[str, Any]:
    condition = comparison.condition
    return {
        "baseline": comparison.baseline.label,
        "candidate": comparison.candidate.label,
        "headline": headline(comparison),
        "answer": comparison.primary.answer,
        "verdict": comparison.verdict,
        "worse": [row.figure.name for row in comparison.worse],
        "regressed": comparison.regressed,
        "not_served": comparison.not_served.to_dict(),
        "pairs": len(comparison.pairs),
        "occasions": comparison.occasions,
        "condition": None if condition is None else {"holds_for": condition.holds_for, "reason": condition.reason},
        "refusals": list(comparison.differences.refusals),
        "warnings": list(comparison.differences.warnings),
        "compared": list(comparison.differences.compared),
        "implausible": list(comparison.implausible),
        "max_change": [checked.to_dict() for checked in comparison.limits],
        "question": None if comparison.question is None else comparison.question.document,
        "figures": [_figure_document(row) for row in comparison.rows],
    }


def _figure_document(row: FigureRow) -> dict[str, Any]:
    effect = row.effect
    return {
        "figure": row.figure.name,
        "primary": row.primary,
        "better": row.figure.better,
        "baseline": row.baseline,
        "candidate": row.candidate,
        **_change_document(row),
        "p_sign_flip": None if effect is None else effect.p_sign_flip,
        # That of other figures depends on their number and on the primary one: their levels do.
        "detectable": effect.detectable if row.primary and effect is not None else None,
        "answer": row.answer,
        "same_in_every_pair": row.is_same,
        "untested": row.untested or None,
    }


def _change_document(row: FigureRow) -> dict[str, float | None]:
    effect = row.effect
    return {
        "change": row.change,
        "difference": row.difference,
        "low": None if effect is None or effect.low is None else effect.low - 1,
        "high": None if effect is None or effect.high is None else effect.high - 1,
        "p": row.p,
    }


def json_text(comparisons: Sequence[Comparison]) -> str:
    return json_lines(document(comparisons))


def junit(comparisons: Sequence[Comparison]) -> str:
    """Return JUnit XML: a suite per candidate, a case per figure and one of turns not served: worse fails, untested is skipped."""
    root = ElementTree.Element("testsuites", name="inferload compare")
    for comparison in comparisons:
        label, cases = comparison.candidate.label, list(_cases(comparison))
        suite = ElementTree.SubElement(
            root,
            "testsuite",
            name=title(comparison),
            tests=str(len(cases)),
            failures=str(sum(kind == _FAILURE for _, kind, _ in cases)),
            skipped=str(sum(kind == _SKIPPED for _, kind, _ in cases)),
        )
        shortened = [side for side in (comparison.baseline, comparison.candidate) if side.name]
        properties = ElementTree.SubElement(suite, "properties") if shortened else suite
        for side in shortened:
            ElementTree.SubElement(properties, "property", name=side.label, value=side.name)
        for name, kind, message in cases:
            case = ElementTree.SubElement(suite, "testcase", classname=label, name=name)
            if kind == _PASSED and message:
                ElementTree.SubElement(case, kind).text = message
            elif kind != _PASSED:
                ElementTree.SubElement(case, kind, message=message)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


_FAILURE, _SKIPPED, _PASSED = "failure", "skipped", "system-out"  # elements of a case


def _cases(comparison: Comparison) -> Iterator[tuple[str, str, str]]:
    """Yield name, element and message of each case: the figures, turns not served, limits of --max-change."""
    for row in comparison.rows:
        message = f"{row.figure.title} is {change_text(row)}: {tables.answer(row, comparison)}"
        message += f" ({row.untested})" if row.untested else ""
        kind = _FAILURE if row.answer == "worse" else _PASSED if row.tested else _SKIPPED
        yield row.figure.name, kind, "" if kind == _PASSED else message
    turns = comparison.not_served
    message = "; ".join(
        [not_served_text(turns), *([collapses(comparison)[1]] if turns.collapsed else []), *turns.wrong]
    )
    yield "not_served", _FAILURE if turns.regressed else _PASSED if turns.known else _SKIPPED, message
    for checked in comparison.limits:
        yield f"--max-change {checked.limit.text}", _PASSED if checked.passed else _FAILURE, checked.text
