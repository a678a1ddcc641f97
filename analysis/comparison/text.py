"""Comparisons as text, Markdown, JSON and JUnit XML."""

import json
from collections.abc import Sequence
from typing import Any
from xml.etree import ElementTree

from inferload.base.escaping import markdown as plain
from inferload.base.numbers import NOT_KNOWN, plural
from inferload.figures import table
from inferload.results.statistics.not_served import LEAST_MORE, NotServed
from inferload.results.statistics.not_served import LEVEL as NOT_SERVED_LEVEL
from inferload.results.statistics.paired_runs import ALPHA, OTHERS_ALONE, POWER
from inferload.turns.states import DROPPED, FAILED, UNFINISHED

from ..pages import wording
from . import costs, tables
from .arms import between_arms
from .best import BestSide, best_by_goal
from .compare import RECOMMENDED_PAIRS, Comparison, FigureRow, table_rows
from .not_served import LOAD, TITLE, NotServedTurns, collapse_text, has_collapsed
from .sides import Side


def headline(comparison: Comparison) -> str:
    """Format a comparison as a sentence: verdict, primary figure, what is worse, turns not served, collapse, condition."""
    against = f"{comparison.candidate.label} against {comparison.baseline.label}"
    verdict = f"{comparison.verdict.upper()}, " if comparison.verdict in ("better", "worse", "mixed") else ""
    also = [f"worse: {_measured(row, comparison)}" for row in comparison.worse if not row.primary]
    also += [f"worse: {not_served_text(comparison.not_served)}"] if comparison.not_served.more else []
    also += [line for line in _collapses(comparison) if line]
    judged = comparison.tested_any or comparison.not_served.regressed
    holds = [f"holds for {comparison.condition.holds_for}"] if comparison.condition and judged else []
    return f"{against}: {verdict}{'; '.join([_primary(comparison), *also, *holds])}"


def brief(comparison: Comparison) -> str:
    """Format the verdict in a few words: the answer on the primary figure, and every figure that is worse."""
    row = comparison.primary
    words = [f"{row.figure.title} {row.answer}"]
    words += [f"{other.figure.title} worse" for other in comparison.worse if not other.primary]
    words += ["more turns not served"] if comparison.not_served.more else []
    sides, of_one_load = (comparison.candidate, comparison.baseline), comparison.differences.of_one_load
    words += [LOAD] if has_collapsed(*sides, of_one_load=of_one_load) else []
    return "; ".join(words)


def _primary(comparison: Comparison) -> str:
    """Format the answer on the primary figure: the change with its interval, and the number of pairs or occasions."""
    row = comparison.primary
    if row.answer == "not comparable":
        return f"not comparable because of {row.untested}"
    if row.answer == "not known":
        return f"{row.figure.title} is not tested: {row.untested}"
    change = _change_text(row)
    if row.answer == "not tested":
        return f"{row.figure.title} is {change}; not tested: {row.untested}"
    if row.answer == "no difference":
        return f"no difference in {row.figure.title} ({change}, {tables.same(comparison)})"
    if row.answer == "no difference found":
        return f"no difference found in {row.figure.title} ({change}); {_detectable(row)}"
    return f"{_measured(row, comparison)} {_basis(comparison)}"


def _measured(row: FigureRow, comparison: Comparison) -> str:
    certainty = tables.same(comparison) if row.is_same else _p_is(row.p)
    return f"{row.figure.title} is {_change_text(row)}, {certainty}"


def not_served_text(turns: NotServedTurns) -> str:
    """Format the turns not served of both sides, with p if it was computed; unknown ones as such."""
    after, before = map(_counted, (turns.candidate, turns.baseline))
    p = "" if turns.p is None else f", {_p_is(turns.p)}"
    return f"{TITLE} are {after} against {before}{p}"


def _counted(side: NotServed | None) -> str:
    """Format a count among the planned turns, with its known parts."""
    if side is None:
        return NOT_KNOWN
    parts = ((FAILED.key, side.failed), (UNFINISHED.key, side.unfinished), (f"sessions {DROPPED.key}", side.dropped))
    named = ", ".join(f"{count:,} {word}" for word, count in parts if count)
    return f"{side.count:,} of {side.planned:,}" + (f" ({named})" if named else "")


def _collapses(comparison: Comparison) -> tuple[str, str]:
    """Return how baseline and candidate did not serve their load; empty if they did."""
    sides = comparison.baseline, comparison.candidate
    of_one_load = comparison.differences.of_one_load
    before, after = (collapse_text(side, other, of_one_load=of_one_load) for side, other in (sides, sides[::-1]))
    return before, after


def _basis(comparison: Comparison) -> str:
    pairs = comparison.occasions is None
    samples = plural(len(comparison.pairs), "pair") if pairs else plural(comparison.occasions or 0, "occasion")
    if comparison.primary.is_same:
        return f"({samples})"
    return f"{'over' if pairs else 'against'} {samples}"


def _change_text(row: FigureRow) -> str:
    if row.change is None:
        return NOT_KNOWN
    moved = "higher" if row.change > 0 else "lower"
    change = f"{abs(row.change):.1%} {moved}" if abs(row.change) >= 5e-4 else "unchanged"
    interval = tables.interval(row)
    return f"{change} (95 % CI {interval})" if interval else change


def _detectable(row: FigureRow) -> str:
    size = None if row.effect is None else row.effect.detectable
    if size is None:
        return "the smallest detectable change is not known"
    return f"smallest detectable change {size:.1%} at a power of {POWER:g}"


def _p_is(p: float | None) -> str:
    text = NOT_KNOWN if p is None else tables.p_text(p)
    return f"p {text}" if text.startswith("<") else f"p = {text}"


def best_notes(results: Sequence[BestSide]) -> list[str]:
    """Return the remarks on `best_table`: trade-offs of the best sides, missing values, and the tests."""
    worse = {best.label: best for best in results if best.certainty == "best" and best.worse}
    lines = [f"{label}: worse than {best.baseline}: {'; '.join(best.worse)}" for label, best in worse.items()]
    lines += [f"{best.figure.title}: {best.missing}" for best in results if best.missing]
    return [
        *lines,
        "Answer best: better than each other side, by the tests below. Closest: a side that is not separated from the best value, "
        f"or the next best one. More pairs: for a test of the measured differences, at a power of {POWER:g}. Rates are those of "
        "this load, not the capacity of the servers.",
    ]


def text(comparisons: Sequence[Comparison]) -> str:
    """Format comparisons for a terminal."""
    rows = table_rows(comparisons)
    parts = [*_simulated(comparisons), *map(table.text, tables.of_sides(rows)), _cost_note(comparisons)]
    if best := best_by_goal(comparisons):
        parts += [table.text(tables.best(best)), "\n".join(best_notes(best))]
    for comparison in (*comparisons, *between_arms(comparisons)):
        parts.append(
            "\n".join([headline(comparison), *remarks(comparison), "", table.text(tables.effects(comparison))])
        )
    return "\n\n".join([*parts, family(comparisons)]) + "\n"


def markdown(comparisons: Sequence[Comparison]) -> str:
    """Format comparisons as Markdown."""
    all_compared = [*comparisons, *between_arms(comparisons)]
    parts = [f"**{plain(headline(comparison))}**" for comparison in all_compared]
    parts += [*map(plain, _simulated(comparisons)), *map(_markdown, tables.of_sides(table_rows(comparisons)))]
    parts.append(plain(_cost_note(comparisons)))
    if best := best_by_goal(comparisons):
        parts += [_markdown(tables.best(best)), "\n".join(f"* {plain(note)}" for note in best_notes(best))]
    for comparison in all_compared:
        parts.append(f"### {plain(comparison.candidate.label)} against {plain(comparison.baseline.label)}")
        parts += [
            "\n".join(f"* {plain(remark)}" for remark in remarks(comparison)),
            _markdown(tables.effects(comparison)),
        ]
    return "\n\n".join(filter(None, [*parts, plain(family(comparisons))])) + "\n"


def block(comparisons: Sequence[Comparison]) -> str:
    """Format `--format block`: a row per figure and a column per side, then gains and remarks of each candidate."""
    lines = [table.text(tables.block([side for side, _ in table_rows(comparisons)]))]
    for comparison in comparisons:
        lines += ["", headline(comparison), f"[gains of {comparison.candidate.label}]"]
        lines += [] if comparison.differences.refusals else tables.gains(*comparison.paired)
        lines += [f"  {line}" for line in remarks(comparison)]
    return "\n".join(lines) + "\n"


def _markdown(shown: table.Table) -> str:
    return table.markdown(shown, level=3)


def _cost_note(comparisons: Sequence[Comparison]) -> str:
    return costs.note([side for side, _ in table_rows(comparisons)])


def _simulated(comparisons: Sequence[Comparison]) -> list[str]:
    return simulated((comparisons[0].baseline, *(comparison.candidate for comparison in comparisons)))


def simulated(sides: Sequence[Side]) -> list[str]:
    """Return a paragraph on simulated servers; empty without any."""
    of_sides = [[run for run in side.runs if wording.is_simulated(run.server.get("engine"))] for side in sides]
    labels = [side.label for side, runs in zip(sides, of_sides, strict=True) if runs]
    if not labels:
        return []
    which = "" if len(labels) == len(sides) else f"{', '.join(labels)}: "
    return [
        which + wording.simulated(name for runs in of_sides for run in runs if (name := run.server.get("stands for")))
    ]


def remarks(comparison: Comparison) -> list[str]:
    """Return comparability and warnings, a line each."""
    lines = [checked.text for checked in comparison.limits]
    lines += [f"compared: {line}" for line in comparison.differences.compared]
    lines += [f"not comparable: {line}" for line in comparison.differences.refusals]
    lines += [f"implausible: {line}" for line in comparison.implausible]
    lines += [f"note: {line}" for line in comparison.differences.warnings]
    for side in (comparison.baseline, comparison.candidate):
        lines += [f"{side.label}: left out, {line}" for line in side.left_out]
        invalid = [run.label for run in side.runs if run.level == "invalid"]
        if invalid and not comparison.differences.refusals:
            lines.append(f"{side.label}: left out with their pairs, measurement not valid: {', '.join(invalid)}")
    if comparison.condition:
        lines.append(f"holds for {comparison.condition.holds_for}: {comparison.condition.reason}")
    lines += untested(comparison) + _not_served(comparison.not_served)
    if comparison.pairs and comparison.unpaired:
        lines.append(
            f"left out, no run of this seed on the other side: {', '.join(run.label for run in comparison.unpaired)}"
        )
    elif not comparison.pairs and comparison.occasions is None and not comparison.differences.refusals:
        lines.append("no pairs: the means are over all runs, of different seeds")
    return lines


def _not_served(turns: NotServedTurns) -> list[str]:
    """Return a line on the turns not served of both sides if there are any; the headline has a regression."""
    some = any(side is not None and side.count for side in (turns.baseline, turns.candidate))
    return [not_served_text(turns)] if some and not turns.more else []


def untested(comparison: Comparison) -> list[str]:
    """Return the figures without a test that a side has, a line for each reason. The headline has that of the primary figure."""
    of_reason: dict[str, list[str]] = {}
    for row in comparison.rows:
        shown = (row.baseline, row.candidate) != (None, None) and not row.primary
        if shown and row.answer in ("not tested", "not known") and row.untested != comparison.primary.untested:
            of_reason.setdefault(row.untested, []).append(row.figure.title)
    return [f"not tested: {'; '.join(titles)} ({reason})" for reason, titles in of_reason.items()]


def family(comparisons: Sequence[Comparison]) -> str:
    """Describe the test, its significance level and its corrections."""
    count = len(comparisons)
    several = f" Family-wise error of the primary figures of {count} candidates: at most {count * ALPHA:g}."
    test = "paired t-test over pairs of runs"
    confirmed = f", confirmed by sign flips from {RECOMMENDED_PAIRS} pairs on"
    if any(comparison.occasions is not None for comparison in comparisons):
        test, confirmed = "t-test of the candidate against the spread of the occasions of the baseline", ""
    return (
        f"Significance level {ALPHA:g}, {test}: the primary figure without correction{confirmed}; all others with Holm's "
        f"correction, and at {OTHERS_ALONE:g} if the primary figure does not differ (their p is then multiplied by "
        f"{ALPHA / OTHERS_ALONE:g}). Intervals are not corrected. More turns not served: Fisher's exact test at "
        f"{NOT_SERVED_LEVEL:g}, and at least {LEAST_MORE} more.{several if count > 1 else ''}"
    )


def annotations(comparisons: Sequence[Comparison]) -> list[tuple[str, str]]:
    """Return (level, text) of each comparison for GitHub: error after a regression, warning without a verdict."""
    lines = []
    for comparison in comparisons:
        level = "error" if comparison.regressed else "notice" if comparison.tested else "warning"
        lines.append((level, headline(comparison)))
        lines += [
            ("error", f"{comparison.candidate.label}: {checked.text}")
            for checked in comparison.limits
            if not checked.passed
        ]
    return lines


def document(comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """Return the comparisons as JSON values, unrounded. `arms`: warm against cold runs of each side that has both."""
    return {
        "format": 1,
        "baseline": comparisons[0].baseline.label,
        "cost": costs.document([side for side, _ in table_rows(comparisons)]),
        "candidates": [_comparison_document(comparison) for comparison in comparisons],
        "arms": [_comparison_document(comparison) for comparison in between_arms(comparisons)],
        "best": [_best_document(best) for best in best_by_goal(comparisons)],
    }


def _best_document(best: BestSide) -> dict[str, Any]:
    closest = best.rivals[0] if best.rivals else None
    change = {} if closest is None else _change_document(closest.row)
    return {
        "baseline": best.baseline,
        "figure": best.figure.name,
        "better": best.figure.better,
        "best": best.label if best.certainty == "best" else None,
        "best_value_of": best.label,
        "value": best.value,
        "answer": best.certainty,
        "tied": [rival.label for rival in best.tied],
        "closest": None if closest is None else closest.label,
        **change,
        "more_pairs": best.more_pairs,
        "worse": list(best.worse),
        "missing": best.missing or None,
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
    """Return comparison.json as text."""
    return json.dumps(document(comparisons), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def junit(comparisons: Sequence[Comparison]) -> str:
    """Return JUnit XML: a suite per candidate, a case per figure and one of turns not served: worse fails, untested is skipped."""
    root = ElementTree.Element("testsuites", name="inferload compare")
    for comparison in comparisons:
        turns = comparison.not_served
        failures = len(comparison.worse) + sum(not checked.passed for checked in comparison.limits) + turns.regressed
        skipped = sum(not row.tested for row in comparison.rows) + (not turns.known and not turns.regressed)
        counts = {
            "tests": str(len(comparison.rows) + len(comparison.limits) + 1),
            "failures": str(failures),
            "skipped": str(skipped),
        }
        name = f"{comparison.candidate.label} against {comparison.baseline.label}"
        suite = ElementTree.SubElement(root, "testsuite", {"name": name, **counts})
        for row in comparison.rows:
            case = ElementTree.SubElement(suite, "testcase", classname=comparison.candidate.label, name=row.figure.name)
            message = f"{row.figure.title} is {_change_text(row)}: {tables.answer(row, comparison)}"
            message += f" ({row.untested})" if row.untested else ""
            if row.answer == "worse":
                ElementTree.SubElement(case, "failure", message=message)
            elif not row.tested:
                ElementTree.SubElement(case, "skipped", message=message)
        _add_not_served(suite, comparison)
        for checked in comparison.limits:
            case = ElementTree.SubElement(
                suite, "testcase", classname=comparison.candidate.label, name=f"--max-change {checked.limit.text}"
            )
            if not checked.passed:
                ElementTree.SubElement(case, "failure", message=checked.text)
            else:
                ElementTree.SubElement(case, "system-out").text = checked.text
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _add_not_served(suite: ElementTree.Element, comparison: Comparison) -> None:
    """Add the case of turns not served and of a load that was not served: skipped if the turns are unknown or not comparable."""
    turns, candidate = comparison.not_served, comparison.candidate.label
    case = ElementTree.SubElement(suite, "testcase", classname=candidate, name="not_served")
    message = "; ".join([not_served_text(turns), *([_collapses(comparison)[1]] if turns.collapsed else [])])
    if turns.regressed:
        ElementTree.SubElement(case, "failure", message=message)
    elif not turns.known:
        ElementTree.SubElement(case, "skipped", message=message)
    else:
        ElementTree.SubElement(case, "system-out").text = message
