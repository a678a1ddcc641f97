"""A comparison in words and tables: for a terminal, for a pull request, for a machine."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

from inferload.escaping import markdown as plain
from inferload.numbers import NOT_KNOWN, number, plural
from inferload.statistics.baseline_stats import FEWEST
from inferload.statistics.paired_runs import POWER
from inferload.text_table import piped

from ..data.figures import TABLE, Figure
from . import costs
from .compare import ALPHA, PAIRS_WANTED, Comparison, Row
from .sides import Side


def headline(comparison: Comparison) -> str:
    """What a reader has to know first: one sentence, with the change, its interval and what it rests on."""
    row, name = comparison.primary, comparison.candidate.label
    against = f"{name} against {comparison.baseline.label}"
    if row.answer == "not comparable":
        return f"{against}: not comparable because of {comparison.differences.refusals[0]}"
    if row.answer == "not known":
        return f"{against}: {row.figure.name} is not known on both sides"
    change = _change_words(row)
    if row.answer == "not tested":
        return f"{against}: {row.figure.title} is {change}; {_why_not_tested(comparison)}"
    if row.answer == "no difference found":
        return f"{against}: no difference found in {row.figure.title} ({change}); {_could_have_found(row)}"
    return f"{against}: {row.answer.upper()}, {row.figure.title} is {change}, {_p_is(row.p)} {_basis(comparison)}"


def _basis(comparison: Comparison) -> str:
    if comparison.occasions is not None:
        weaker = " of a weaker baseline (shared server starts)" if comparison.weaker else ""
        return f"against {plural(comparison.occasions, 'occasion')}{weaker}"
    return f"over {plural(len(comparison.pairs), 'pair')}"


def _change_words(row: Row) -> str:
    if row.change is None:
        return NOT_KNOWN
    moved = "higher" if row.change > 0 else "lower"
    said = f"{abs(row.change):.1%} {moved}" if abs(row.change) >= 5e-4 else "the same"
    return f"{said}{_interval(row)}"


def _interval(row: Row) -> str:
    effect = row.effect
    if effect is None or effect.low is None or effect.high is None:
        return ""
    return f" (95 %: {effect.low - 1:+.1%} to {effect.high - 1:+.1%})"


def _why_not_tested(comparison: Comparison) -> str:
    if comparison.occasions is not None and comparison.occasions < FEWEST:
        return (
            f"no verdict: {plural(comparison.occasions, 'occasion')} in {comparison.baseline.label}, and how much days and "
            f"restarts differ is learned from {FEWEST}; add more (inferload baseline add), or compare with pairs of runs"
        )
    if comparison.conditional:
        return f"no verdict: {comparison.conditional}"
    pairs = len(comparison.pairs)
    if not pairs:
        return "no verdict: no run of one side has the seed of one of the other"
    return f"a difference between {plural(pairs, 'pair')} of runs, no verdict: {PAIRS_WANTED} pairs or more carry one"


def _could_have_found(row: Row) -> str:
    size = None if row.effect is None else row.effect.detectable
    if size is None:
        return "what this plan could have found cannot be told"
    return f"this plan could have found {size:.1%} with a power of {POWER:g}"


def _p(p: float | None) -> str:
    return NOT_KNOWN if p is None else f"{p:.3f}" if p >= 0.001 else "< 0.001"


def _p_is(p: float | None) -> str:
    return f"p {_p(p)}" if p is not None and p < 0.001 else f"p = {_p(p)}"


Cells = Sequence[Sequence[str]]


def effects_table(comparison: Comparison) -> Cells:
    """Every figure of a comparison: both sides, the change with its interval, p and the answer."""
    rows = [
        ["figure", comparison.baseline.label, comparison.candidate.label, "change", "95 %", "p", "p by sign flips", ""]
    ]
    for row in comparison.rows:
        if row.baseline is None and row.candidate is None and not row.primary:
            continue  # nobody knows it on either side: a line of "not known" says nothing
        effect = row.effect
        rows.append(
            [
                f"{row.figure.title}, {row.figure.unit}" + (" (primary)" if row.primary else ""),
                number(row.baseline),
                number(row.candidate),
                NOT_KNOWN if row.change is None else f"{row.change:+.2%}",
                "" if effect is None or effect.low is None or effect.high is None
                else f"{effect.low - 1:+.1%} to {effect.high - 1:+.1%}",
                "" if row.p is None else _p(row.p),
                "" if effect is None or effect.p_sign_flip is None else _p(effect.p_sign_flip),
                row.answer,
            ]
        )  # fmt: skip
    return rows


def sides_table(sides: Sequence[Side], figures: Sequence[Figure] = TABLE) -> Cells:
    """Configurations by figures, a mean over each side's runs."""
    rows = [["configuration", "runs", *(f"{figure.title} ({figure.unit})" for figure in figures)]]
    for side in sides:
        rows.append([side.label, str(len(side.runs)), *(number(side.mean(figure.name), 4) for figure in figures)])
    return rows


def improvement_table(baseline: Side, candidates: Sequence[Side], figures: Sequence[Figure] = TABLE) -> Cells:
    """Change of each configuration against the baseline, in per cent of the baseline."""
    rows = [["change against " + baseline.label, *(figure.title for figure in figures)]]
    for side in candidates:
        cells = []
        for figure in figures:
            before, after = baseline.mean(figure.name), side.mean(figure.name)
            cells.append(NOT_KNOWN if not before or after is None else f"{after / before - 1:+.2%}")
        rows.append([side.label, *cells])
    return rows


def text(comparisons: Sequence[Comparison]) -> str:
    """For a terminal."""
    sides = (comparisons[0].baseline, *(one.candidate for one in comparisons))
    parts = [*simulated(sides), _aligned(sides_table(sides)), _aligned(improvement_table(sides[0], sides[1:]))]
    parts += _cost(sides, _aligned)
    for one in comparisons:
        parts.append("\n".join([headline(one), *remarks(one), "", _aligned(effects_table(one))]))
    return "\n\n".join(parts) + f"\n\n{family(comparisons)}\n"


def markdown(comparisons: Sequence[Comparison]) -> str:
    """For a pull request."""
    sides = (comparisons[0].baseline, *(one.candidate for one in comparisons))
    parts = [*(f"**{plain(headline(one))}**" for one in comparisons)]
    parts += [
        *map(plain, simulated(sides)),
        piped(sides_table(sides)),
        piped(improvement_table(sides[0], sides[1:])),
        *_cost(sides, piped, plain),
    ]
    for one in comparisons:
        lines = "\n".join(f"* {plain(remark)}" for remark in remarks(one))
        parts += [f"### {plain(one.candidate.label)} against {plain(one.baseline.label)}", *([lines] if lines else [])]
        parts.append(piped(effects_table(one)))
    return "\n\n".join([*parts, plain(family(comparisons))]) + "\n"


def _cost(sides: Sequence[Side], form: Callable[[Cells], str], note: Callable[[str], str] = str) -> list[str]:
    rows = costs.table(sides)
    return [*([] if rows is None else [form(rows)]), note(costs.note(sides))]


def simulated(sides: Sequence[Side]) -> list[str]:
    """That a server was no real one, a paragraph; nothing where all were."""
    found = [
        side.label for side in sides if any("simulator" in str(run.server.get("engine") or "") for run in side.runs)
    ]
    if not found:
        return []
    whose = "" if len(found) == len(sides) else f" of {', '.join(found)}"
    presets = {
        str(variant["simulated_as"])
        for side in sides
        for run in side.runs
        if isinstance(variant := run.server.get("variant"), Mapping) and variant.get("simulated_as")
    }
    taken = f" Step times are those of its preset {', '.join(sorted(presets))}." if presets else ""
    return [
        f"The server{whose} was the embedded simulator: its latencies say nothing of a model or of hardware.{taken}"
    ]


def remarks(one: Comparison) -> list[str]:
    """Comparability and warnings, a line each."""
    found = [*([one.weaker] if one.weaker else []), *(checked.text for checked in one.limits)]
    found += [f"compared: {line}" for line in one.differences.compared]
    found += [f"not comparable: {line}" for line in one.differences.refusals]
    found += [f"implausible: {line}" for line in one.implausible]
    found += [f"note: {line}" for line in one.differences.warnings]
    for side in (one.baseline, one.candidate):
        if side.cut_off:
            found.append(f"{side.label}: left out, for want of a summary: {', '.join(side.cut_off)}")
        invalid = [run.label for run in side.runs if run.level == "invalid"]
        if invalid and not one.differences.refusals:
            found.append(f"{side.label}: left out with their pairs, as not valid: {', '.join(invalid)}")
    if one.conditional:
        found.append(f"conditional on these starts: {one.conditional}")
    if one.unpaired:
        found.append(f"left out, without a partner of the same seed: {', '.join(run.label for run in one.unpaired)}")
    return found


def family(comparisons: Sequence[Comparison]) -> str:
    """What is tested, and how often that may go wrong."""
    count = len(comparisons)
    several = "" if count == 1 else f"; {count} candidates: their primary figures together at most {count * ALPHA:g}"
    test = "a paired t over pairs of runs"
    if any(one.occasions is not None for one in comparisons):
        test = "a t of the candidate, one more occasion, against the spread of the earlier ones"
    return (
        f"A change is called at p < {ALPHA:g} by {test}: the primary figure by itself, all others "
        f"together by Holm, so that at most {ALPHA:g} of comparisons without a difference call one in each of the two{several}."
    )


def _aligned(rows: Cells) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for place, row in enumerate(rows):
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        lines.append("  ".join(cells).rstrip())
        if place == 0:
            lines.append("  ".join("-" * width for width in widths))
    return "\n".join(lines)


def annotations(comparisons: Sequence[Comparison]) -> list[tuple[str, str]]:
    """(level, text) of each comparison: error where a figure became worse, warning where nothing could be judged."""
    found = []
    for one in comparisons:
        level = "error" if one.regressed else "notice" if one.tested else "warning"
        worse = [row for row in one.rows if row.answer == "worse" and not row.primary]
        also = "".join(f"; {row.figure.title} is {_change_words(row)}: worse" for row in worse)
        found.append((level, headline(one) + also))
        found += [("error", f"{one.candidate.label}: {checked.text}") for checked in one.limits if not checked.passed]
    return found


def document(comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """For a machine: everything that the tables say, unrounded."""
    return {
        "format": 1,
        "baseline": comparisons[0].baseline.label,
        "cost": costs.document((comparisons[0].baseline, *(one.candidate for one in comparisons))),
        "candidates": [
            {
                "candidate": one.candidate.label,
                "headline": headline(one),
                "answer": one.primary.answer,
                "regressed": one.regressed,
                "pairs": len(one.pairs),
                "occasions": one.occasions,
                "conditional": one.conditional or None,
                "weaker": one.weaker or None,
                "refusals": list(one.differences.refusals),
                "warnings": list(one.differences.warnings),
                "compared": list(one.differences.compared),
                "implausible": list(one.implausible),
                "max_change": [checked.to_dict() for checked in one.limits],
                "figures": [_figure_document(row) for row in one.rows],
            }
            for one in comparisons
        ],
    }


def _figure_document(row: Row) -> dict[str, Any]:
    effect = row.effect
    return {
        "figure": row.figure.name,
        "primary": row.primary,
        "better": row.figure.better,
        "baseline": row.baseline,
        "candidate": row.candidate,
        "change": row.change,
        "low": None if effect is None or effect.low is None else effect.low - 1,
        "high": None if effect is None or effect.high is None else effect.high - 1,
        "p": row.p,
        "p_sign_flip": None if effect is None else effect.p_sign_flip,
        "detectable": None if effect is None else effect.detectable,
        "answer": row.answer,
    }


def json_text(comparisons: Sequence[Comparison]) -> str:
    """The document as JSON text."""
    return json.dumps(document(comparisons), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def junit(comparisons: Sequence[Comparison]) -> str:
    """JUnit XML: a suite for each candidate, a case for each figure; worse is a failure, what was not tested is skipped."""
    root = ElementTree.Element("testsuites", name="inferload compare")
    for one in comparisons:
        failures = sum(row.answer == "worse" for row in one.rows) + sum(not checked.passed for checked in one.limits)
        skipped = sum(row.answer not in ("better", "worse", "no difference found") for row in one.rows)
        counts = {"tests": str(len(one.rows) + len(one.limits)), "failures": str(failures), "skipped": str(skipped)}
        name = f"{one.candidate.label} against {one.baseline.label}"
        suite = ElementTree.SubElement(root, "testsuite", {"name": name, **counts})
        for row in one.rows:
            case = ElementTree.SubElement(suite, "testcase", classname=one.candidate.label, name=row.figure.name)
            said = f"{row.figure.title} is {_change_words(row)}: {row.answer}"
            if row.answer == "worse":
                ElementTree.SubElement(case, "failure", message=said)
            elif row.answer not in ("better", "no difference found"):
                ElementTree.SubElement(case, "skipped", message=said)
        for checked in one.limits:
            case = ElementTree.SubElement(
                suite, "testcase", classname=one.candidate.label, name=f"--max-change {checked.limit.text}"
            )
            if not checked.passed:
                ElementTree.SubElement(case, "failure", message=checked.text)
            else:
                ElementTree.SubElement(case, "system-out").text = checked.text
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"
