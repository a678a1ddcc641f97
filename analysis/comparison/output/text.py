"""What a comparison states, in words and tables: on a terminal, in Markdown, and on the page."""

from collections.abc import Sequence
from typing import NamedTuple

from inferload.base.escaping import escaped
from inferload.base.escaping import markdown as plain
from inferload.base.numbers import NOT_KNOWN, plural
from inferload.figures import table
from inferload.results.documents.figures_document import BEYOND
from inferload.results.statistics.not_served import LEAST_MORE, NotServed
from inferload.results.statistics.not_served import LEVEL as NOT_SERVED_LEVEL
from inferload.results.statistics.paired_runs import ALPHA, OTHERS_ALONE, POWER
from inferload.turns.states import DROPPED, FAILED, UNFINISHED

from ...data import changes
from ...data.figures import OF_GOALS
from ...pages import texts, wording
from ...pages.texts import Name, tr
from .. import classes, costs
from ..arms import between_arms
from ..best import Decision, best_by_goal
from ..compare import RECOMMENDED_PAIRS, Comparison, FigureRow, table_rows
from ..front import Front, of_comparisons
from ..not_served import LOAD, TITLE, NotServedTurns, collapse_text, has_collapsed
from ..sides import Side, TableRow
from . import tables

_SHOWN_DIFFERENCES = 5


def headline(comparison: Comparison) -> str:
    """Format a comparison as a sentence: sides, verdict, primary figure, what is worse, turns not served, collapse, condition."""
    return f"{title(comparison)}: {_stated(comparison)}"


def spoken(comparison: Comparison) -> Name:
    """Return the headline in the language of the process."""
    return Name(_title(comparison) + tr(": ") + tr(_stated(comparison)))


def _stated(comparison: Comparison) -> str:
    verdict = f"{comparison.verdict.upper()}, " if comparison.verdict in ("better", "worse", "mixed") else ""
    also = [f"worse: {_measured(row, comparison)}" for row in comparison.worse if not row.primary]
    also += [f"worse: {not_served_text(comparison.not_served)}"] if comparison.not_served.more else []
    also += [*filter(None, collapses(comparison)), *comparison.not_served.wrong]
    holds = [f"holds for {comparison.condition.holds_for}"] if comparison.condition and _judged(comparison) else []
    return f"{verdict}{'; '.join([_primary(comparison), *also, *holds])}"


def _judged(comparison: Comparison) -> bool:
    return any(row.tested for row in comparison.rows) or comparison.not_served.regressed


def brief(comparison: Comparison) -> Name:
    """Format the verdict in a few words, in the language of the process: the answer on the primary figure, and what is worse."""
    row = comparison.primary
    is_no = row.answer.startswith("no ")
    words = [f"{row.answer} in {row.figure.title}" if is_no else f"{row.figure.title} is {row.answer}"]
    words += [f"{other.figure.title} is worse" for other in comparison.worse if not other.primary]
    words += ["more turns not served"] if comparison.not_served.more else []
    sides, of_one_load = (comparison.candidate, comparison.baseline), comparison.differences.of_one_load
    words += [LOAD] if has_collapsed(*sides, of_one_load=of_one_load) else []
    words += ["wrong canary answers"] if comparison.not_served.wrong else []
    return Name(_title(comparison) + tr(": ") + tr("; ".join(words)))


def _primary(comparison: Comparison) -> str:
    """Format the answer on the primary figure: the change with its interval, and the number of pairs or occasions."""
    row = comparison.primary
    if row.answer == "not comparable":
        return f"not comparable because of {row.untested}"
    if row.answer == "not known":
        return f"{row.figure.title} is not tested: {row.untested}"
    change = change_text(row)
    if row.answer == "not tested":
        return f"{row.figure.title} is {change}; not tested: {row.untested}"
    if row.answer == "no difference":
        return f"no difference in {row.figure.title} ({change}, {tables.same(comparison)})"
    if row.answer == "no difference found":
        size = None if row.effect is None else row.effect.detectable
        known = f"smallest detectable change {changes.size(1 + (size or 0))} at a power of {POWER:g}"
        detectable = "the smallest detectable change is not known" if size is None else known
        return f"no difference found in {row.figure.title} ({change}); {detectable}"
    if comparison.occasions is None:
        word, samples = "over", plural(len(comparison.pairs), "pair")
    else:
        word, samples = "against", plural(comparison.occasions, "occasion")
    return f"{_measured(row, comparison)} {f'({samples})' if row.is_same else f'{word} {samples}'}"


def _measured(row: FigureRow, comparison: Comparison) -> str:
    certainty = tables.same(comparison) if row.is_same else _p_is(row.p)
    return f"{row.figure.title} is {change_text(row)}, {certainty}"


def not_served_text(turns: NotServedTurns) -> str:
    """Format the turns not served of both sides, with p if it was computed; unknown ones as such."""
    after, before = map(_counted, (turns.candidate, turns.baseline))
    p = "" if turns.p is None else f", {_p_is(turns.p)}"
    return f"{TITLE} are {after} against {before}{p}"


def _counted(side: NotServed | None) -> str:
    if side is None:
        return NOT_KNOWN
    parts = ((FAILED.key, side.failed), (UNFINISHED.key, side.unfinished), (f"sessions {DROPPED.key}", side.dropped))
    named = ", ".join(f"{count:,} {word}" for word, count in parts if count)
    return f"{side.count:,} of {side.planned:,}" + (f" ({named})" if named else "")


def collapses(comparison: Comparison) -> tuple[str, str]:
    """Return how baseline and candidate did not serve their load; empty if they did."""
    sides = comparison.baseline, comparison.candidate
    of_one_load = comparison.differences.of_one_load
    before, after = (collapse_text(side, other, of_one_load=of_one_load) for side, other in (sides, sides[::-1]))
    return before, after


def change_text(row: FigureRow) -> str:
    """Format the change of a figure in words, with its interval."""
    if row.ratio is None:
        return NOT_KNOWN
    change = changes.in_words(row.ratio)
    interval = tables.interval(row)
    return f"{change} (95 % CI {interval})" if interval else change


def _p_is(p: float | None) -> str:
    text = NOT_KNOWN if p is None else tables.p_text(p)
    return f"p {text}" if text.startswith("<") else f"p = {text}"


def none_left(decisions: Sequence[Decision]) -> list[str]:
    """Return a headline for each baseline of which no side holds the requirements."""
    return [f"NO SIDE IS LEFT: {'. '.join(_ruled_out(each))}" for each in decisions if each.is_none_left]


def _ruled_out(decision: Decision) -> list[str]:
    return [f"{label} is ruled out by {'; '.join(reasons)}" for label, reasons in decision.ruled_out.items()]


def best_notes(decisions: Sequence[Decision]) -> list[str]:
    """Return the remarks on `best_table`: sides that are ruled out, trade-offs of the best sides, missing values, and the tests."""
    results = [best for decision in decisions for best in decision.results]
    worse = {best.label: best for best in results if best.is_decided and best.worse}
    lines = [line for decision in decisions if not decision.is_none_left for line in _ruled_out(decision)]
    lines += [
        f"{label} takes no part: not comparable with {each.baseline}"
        for each in decisions
        for label in each.apart
        if each.results
    ]
    checked = [each for decision in decisions for each in decision.checked if each.holds and each.is_uncertain]
    lines += [f"{each.label} takes part: {each.text}" for each in checked]
    lines += [f"{label}: worse than {best.baseline}: {'; '.join(best.worse)}" for label, best in worse.items()]
    lines += [f"{best.figure.title}: {best.missing}" for best in results if best.missing]
    lines += [
        f"{best.figure.title}: fewer than {BEYOND} samples beyond it on {', '.join(best.unsteady)}"
        for best in results
        if best.unsteady
    ]
    lines += [f"the answers hold for {each.holds_for}" for each in decisions if each.holds_for and each.results]
    meant = [term for term in OF_GOALS if any(best.figure == term for best in results)]
    lines += [Name(tr(term.title) + tr(": ") + tr(term.figure.text)) for term in meant]
    tests = (
        "Best: better than each other side, by the tests of this comparison. Closest: a side that is not separated from the best "
        "value, or the next best one. Rates are those of this load, not the capacity of the servers."
    )
    more = f" More pairs: to find the measured differences, at a power of {POWER:g}."
    return [*lines, *([tests + (more if any(map(tables.more_pairs, results)) else "")] if results else [])]


def winners(decisions: Sequence[Decision]) -> list[tuple[str, str]]:
    """Return a sentence for each side that is the best in a goal, and its command line, empty if not known; else why none is."""
    found = [
        (
            f"{'No side is left; of all, best' if decision.is_none_left else 'Best'} in {'; '.join(each.goals)}: {each.label}",
            each.command,
        )
        for decision in decisions
        for each in decision.winners
    ]
    if found:
        return found
    answers: dict[str, list[str]] = {}
    for best in (best for decision in decisions for best in decision.results):
        answers.setdefault(best.certainty, []).append(best.figure.title)
    reasons = [f"{answer.capitalize()}: {'; '.join(titles)}." for answer, titles in answers.items()]
    reasons += [f"Not comparable with {each.baseline}: {', '.join(each.apart)}." for each in decisions if each.apart]
    return [(" ".join(["No side is named the best.", *reasons]), "")] if reasons else []


class Compared(NamedTuple):
    """Texts of one comparison. `folded`: the number of further differences as a remark, and the list of them."""

    title: str
    headline: str
    remarks: list[str]
    folded: tuple[str, Sequence[str]]
    effects: table.Table


class Contents(NamedTuple):
    """What is stated of the configurations of one load, in each form: text, Markdown, page."""

    simulated: list[str]
    none_left: list[str]
    tables: list[table.Table]
    cost: str
    decisions: list[Decision]
    best: list[table.Table]
    best_notes: list[str]
    winners: list[tuple[str, str]]
    compared: list[Compared]
    family: str
    front: Front | None


def contents(rows: Sequence[TableRow], comparisons: Sequence[Comparison], arms: Sequence[Comparison]) -> Contents:
    """Return what is stated of rows and comparisons. `arms`: comparisons of warm with cold runs of a configuration."""
    sides, front = [side for side, _ in rows], of_comparisons(comparisons)
    best = best_by_goal(comparisons)
    both = [*comparisons, *arms]
    return Contents(
        simulated(sides),
        none_left(best),
        [
            *tables.names(sides),
            *classes.table(comparisons),
            *(each.question.table for each in comparisons if each.question),
            tables.sides(rows),
            *costs.table(rows),
            *([] if front is None else [front.table]),
        ],
        costs.note(sides),
        best,
        tables.best(best),
        best_notes(best),
        winners(best),
        [Compared(_title(each), spoken(each), remarks(each), folded(each), tables.effects(each)) for each in both],
        family(comparisons or arms) if any(map(_judged, both)) else "",
        front,
    )


def title(comparison: Comparison) -> str:
    return f"{comparison.candidate.label} against {comparison.baseline.label}"


def _title(comparison: Comparison) -> Name:
    """Return the title in the language of the process. Names are inserted afterwards: they may contain any text."""
    names = {"candidate": comparison.candidate.label, "base": comparison.baseline.label}
    return texts.inserted("{candidate+} against {base+}", names)


def _contents(comparisons: Sequence[Comparison]) -> Contents:
    return contents(table_rows(comparisons), comparisons, between_arms(comparisons))


def text(comparisons: Sequence[Comparison]) -> str:
    """Format for a terminal: several candidates in one table, and the decision in the last lines."""
    all_of, several = _contents(comparisons), len(comparisons) > 1
    parts = [*map(tr, (*all_of.none_left, *all_of.simulated))]
    parts += [_text(tables.together(comparisons))] if several else []
    parts += [_text(shown) for shown in all_of.tables if shown.key in ("names", "question", "cost", "front", "suffers")]
    parts.append(tr(all_of.cost))
    for index, each in enumerate(all_of.compared):
        shown = [] if several and index < len(comparisons) else ["", _text(each.effects)]
        parts.append("\n".join([*map(tr, (each.headline, *each.remarks)), *shown]))
    best = map(_text, tables.best(all_of.decisions, whole=False))
    parts += [tr(all_of.family), *best, "\n".join(map(tr, all_of.best_notes))]
    lines = [line for said, command in all_of.winners for line in (tr(said), _indented(command, 2)) if line]
    return "\n\n".join(filter(None, [*parts, "\n".join(lines)])) + "\n"


def _text(shown: table.Table) -> str:
    return table.text(texts.table(shown))


def _markdown(shown: table.Table) -> str:
    return table.markdown(texts.table(shown, NOT_KNOWN), 3)


def _plain(line: str) -> str:
    return plain(tr(line))


def markdown(comparisons: Sequence[Comparison]) -> str:
    all_of = _contents(comparisons)
    parts = [f"**{_plain(line)}**" for line in (*all_of.none_left, *(each.headline for each in all_of.compared))]
    parts += [*map(_plain, all_of.simulated), *map(_markdown, all_of.tables), _plain(all_of.cost)]
    parts += [*map(_markdown, all_of.best), _bullets(all_of.best_notes)]
    parts += [part for said, command in all_of.winners for part in (_plain(said), _indented(command, 4))]
    for each in all_of.compared:
        parts += [f"### {_plain(each.title)}", _bullets(each.remarks), _markdown(each.effects)]
    return "\n\n".join(filter(None, [*parts, _plain(all_of.family)])) + "\n"


def _indented(command: str, by: int) -> str:
    """Return a command line for copying, which is not wrapped; empty without one."""
    return f"{' ' * by}{escaped(command)}" if command else ""


def _bullets(lines: Sequence[str]) -> str:
    return "\n".join(f"* {_plain(line)}" for line in lines)


def block(comparisons: Sequence[Comparison]) -> str:
    """Format `--format block`: a row per figure and a column per side, then gains and remarks of each candidate."""
    sides = [side for side, _ in table_rows(comparisons)]
    lines = [table.text(shown) for shown in (tables.block(sides), *tables.names(sides))]
    for comparison in comparisons:
        lines += ["", headline(comparison), f"[gains of {comparison.candidate.label}]"]
        lines += [] if comparison.differences.refusals else tables.gains(*comparison.paired)
        lines += [f"  {line}" for line in remarks(comparison)]
    return "\n".join(lines) + "\n"


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
    refusals, (count, left_out) = comparison.differences.refusals, folded(comparison)
    lines += [f"not comparable: {line}" for line in refusals[: len(refusals) - len(left_out)]]
    lines += [count] if left_out else []
    lines += [f"implausible: {line}" for line in comparison.implausible]
    lines += [f"note: {line}" for line in comparison.differences.warnings]
    for side in (comparison.baseline, comparison.candidate):
        lines += [f"{side.label}: left out, {line}" for line in side.left_out]
        invalid = [run.label for run in side.runs if run.level == "invalid"]
        if invalid and not refusals:
            lines.append(f"{side.label}: left out with their pairs, measurement not valid: {', '.join(invalid)}")
    if comparison.condition:
        lines.append(f"holds for {comparison.condition.holds_for}: {comparison.condition.reason}")
    lines += untested(comparison)
    turns, unpaired = comparison.not_served, ", ".join(run.label for run in comparison.unpaired)
    if not turns.more and any(side is not None and side.count for side in (turns.baseline, turns.candidate)):
        lines.append(not_served_text(turns))  # else in the headline, or none
    if comparison.pairs and unpaired:
        lines.append(f"left out, no run of this seed on the other side: {unpaired}")
    elif not comparison.pairs and comparison.occasions is None and not refusals:
        lines.append("no pairs: the means are over all runs, of different seeds")
    return lines


def folded(comparison: Comparison) -> tuple[str, Sequence[str]]:
    """Return the remark that counts the differences beyond the first few, and these; empty if there are no more than a few."""
    left_out = comparison.differences.refusals[_SHOWN_DIFFERENCES:]
    if len(left_out) < 2:
        return "", ()
    return f"not comparable: {len(left_out)} more differences (comparison.json or --format json has all)", left_out


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
        failed = [limit.text for limit in comparison.limits if not limit.passed]
        lines += [("error", f"{comparison.candidate.label}: {limit}") for limit in failed]
    return lines
