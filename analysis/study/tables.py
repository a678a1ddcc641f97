"""Tables of a study's page: measured figures, published ones beside them, changes, grids, and findings."""

from collections.abc import Sequence

from inferload.base.numbers import NOT_KNOWN, listed, number, percent, plural, short
from inferload.campaign.sweep.study import Study, StudyTable
from inferload.figures.figure import Head
from inferload.figures.table import Cell, Table
from inferload.results.statistics.paired_runs import Effect

from . import findings as claims
from .results import StudyResults, StudyRun

_NOT_PUBLISHED = "not published"
_UNSTEADY = "~: in a run, fewer than 10 samples beyond the percentile."


def findings(found: Sequence[claims.Finding]) -> Table:
    rows = [
        (
            f"{each.claim.text} ({each.claim.source})" if each.claim.source else str(each.claim.text),
            each.published or "-",
            each.here,
            each.answer,
            each.why or "-",
        )
        for each in found
    ]
    return Table("findings", "Claims", ("claim", "published", "here", "finding", "why"), rows)


def of(table: StudyTable, rows: Sequence[claims.MeasuredRow], plan: Study) -> list[Table]:
    if (grid := claims.grid_of(table, plan, rows)) is not None:
        return _grid(table, grid, rows)
    unsteady = any(row.is_unsteady(name) for row in rows for name in table.figures)
    here = Table(
        table.key,
        str(table.title),
        ("", *(claims.term_of(name).head for name in table.figures)),
        [(str(each.row.label), *(_value(each, name) for name in table.figures)) for each in rows],
        " ".join(filter(None, (_note(table), _UNSTEADY if unsteady else ""))),
    )
    shown = [here]
    if table.highest:
        shown.append(_highest(table, rows))
    if any(row.published for row in table.rows):
        shown += [_published(table, plan)]
    if table.has_changes:
        shown += [_changes(table, rows, plan)]
    return shown


def _note(table: StudyTable) -> str:
    """Return the remark of a table, with the variants that an engine has in the place of others."""
    instead = [f"{old} is {new}" for old, new in table.instead.items()]
    return " ".join(filter(None, (str(table.note), f"On this engine, {listed(instead)}." if instead else "")))


def _value(row: claims.MeasuredRow, name: str) -> Cell:
    """Return the mean of a figure over the runs, with a mark for a percentile of few samples."""
    value = row.value(name)
    if value is not None and claims.term_of(name).figure.form == "share":
        return percent(value)
    return f"{short(value)} ~" if value is not None and row.is_unsteady(name) else value


def _published(table: StudyTable, plan: Study) -> Table:
    rows = []
    for row in table.rows:
        if row.published:
            rows.append((str(row.label), *(_NOT_PUBLISHED if value is None else value for value in row.published)))
    columns: list[str | Head] = ["", *(claims.term_of(name).head for name in table.figures)]
    return Table(f"{table.key}-published", f"{table.title}: published", columns, rows, str(plan.source.setting))


def _changes(table: StudyTable, rows: Sequence[claims.MeasuredRow], plan: Study) -> Table:
    """Return the changes against the base: a row for each row and figure, published and here."""
    base_of = claims.bases(table, plan, rows)
    lines: list[tuple[Cell, ...]] = []
    for each in rows:
        if (base := base_of.get(each.name)) is None:
            continue
        for name in table.figures:
            found = claims.row_effect(base, each, name)
            said = claims.published_change(table, base.row, each.row, name)
            if said is None and found is None:
                continue
            single = claims.spread(base, each, name)
            lines.append(
                (
                    str(each.row.label),
                    claims.term_of(name).head,
                    "-" if said is None else f"{100 * said:+.3g} %",
                    NOT_KNOWN if found is None else claims.effect_text(found),
                    "-" if single is None else f"{100 * single[0]:+.3g} to {100 * single[1]:+.3g} %",
                    "-" if said is None or found is None else _direction(said, found),
                )
            )
    columns = ("", "figure", "published", "here", "single pairs", "direction")
    note = (
        f"Change against {table.base or 'the baseline at the same load'}. Here: mean over the pairs "
        "with its 95 % interval, for each figure alone, without a "
        "correction for their number. Single pairs: the lowest and the highest change of one pair, as one run of each shows it."
    )
    return Table(f"{table.key}-changes", f"{table.title}: changes", columns, lines, note)


def _direction(said: float, found: Effect) -> str:
    """Compare the direction of a published change with the measured one."""
    same = "same" if (found.ratio < 1) == (said < 0) else "opposite"
    match claims.direction(found):
        case "not tested":
            return f"{same}, not tested"
        case "none":
            return "no difference here"
        case _:
            return same


def _highest(table: StudyTable, rows: Sequence[claims.MeasuredRow]) -> Table:
    found = claims.highest(table, rows)
    several = len({scenario for _, scenario in found}) > 1
    lines = [
        (f"{variant}, {scenario}" if several else variant, "none of the steps" if load is None else number(load))
        for (variant, scenario), load in found.items()
    ]
    note = f"The highest step such that {table.highest} holds on it and on all lower ones."
    return Table(f"{table.key}-highest", f"{table.title}: highest load", ("", "highest load"), lines, note)


def _grid(table: StudyTable, grid: claims.Grid, rows: Sequence[claims.MeasuredRow]) -> list[Table]:
    """Return a matrix for each figure, with the values of the first argument as rows, and the Pareto front."""
    shown = []
    columns = (f"{grid.down} (down), {grid.across}", *grid.acrosses)
    for name in table.figures:
        head = claims.term_of(name).head.text
        lines = [(x, *values) for x, values in zip(grid.downs, grid.values(name), strict=True)]
        shown.append(Table(claims.anchor(table, name), f"{table.title}: {head}", columns, lines, _note(table)))
    best = claims.front(rows, table.figures)
    leading = [
        (str(each.row.label), *(_value(each, name) for name in table.figures)) for each in rows if each.name in best
    ]
    note = "No other combination is better in one of the figures without being worse in another."
    heads: list[str | Head] = ["", *(claims.term_of(name).head for name in table.figures)]
    return [*shown, Table(f"{table.key}-front", f"{table.title}: Pareto front", heads, leading, note)]


def _level(runs: Sequence[StudyRun], level: str) -> str:
    """Return the number of runs of a level, and of those with each of its reasons."""
    of_level = [run for run in runs if run.level == level]
    codes = [code for run in of_level for code in run.reasons]
    reasons = ", ".join(f"{code} {codes.count(code)}" for code in dict.fromkeys(codes))
    return f"{len(of_level)} {level}" + (f" ({reasons})" if reasons else "")


def facts(plan: Study, results: StudyResults) -> list[tuple[str, str]]:
    runs = [run for run in results.runs if run.load is None]
    counts = [plural(len(runs), "run"), *(_level(runs, level) for level in dict.fromkeys(run.level for run in runs))]
    shortened = ", shortened by --quick" if plan.quick else ""
    return [
        ("Source", f"{plan.source.title}, {plan.source.date}"),
        ("Published with", str(plan.source.setting)),
        ("Command", plan.command),
        ("Date", f"{results.started_at[:10]}, inferload {results.inferload}"),
        ("Engine", results.server or plan.engine),
        ("Machine of the client", results.machine),
        ("Runs", ", ".join(counts) + shortened),
    ]
