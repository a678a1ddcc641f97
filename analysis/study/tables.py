"""Tables of a study's page: measured figures, published ones beside them, changes, grids, and findings."""

from collections.abc import Sequence
from contextlib import suppress

from inferload.base.errors import UsageError
from inferload.base.numbers import NOT_KNOWN, listed, number, percent, plural, short
from inferload.campaign.sweep.study import Study, StudyTable
from inferload.figures.figure import Head
from inferload.figures.table import Cell, Table
from inferload.results.statistics.paired_runs import Effect
from inferload.workload.plan.load_text import load_text

from ..data import ran as of_load
from ..data.ran import Ran
from ..pages.texts import Name, tr
from . import findings as claims
from . import measured_rows
from .results import StudyResults, StudyRun

_NOT_PUBLISHED = "not published"
_UNSTEADY = "~: in a run, fewer than 10 samples beyond the percentile."


def findings(found: Sequence[claims.Finding]) -> Table:
    """Return the table of claims, with the place of each in the source where the study names it."""
    rows = []
    for each in found:
        claimed, place = str(each.claim.text), str(each.claim.source) or "-"
        rows.append((claimed, each.published or "-", _clauses(each.here), each.answer, each.why or "-", place))
    columns = ("claim", "published", "here", "finding", "why", "source")
    shown = len(columns) if any(each.claim.source for each in found) else -1
    return Table("findings", "Claims", columns[:shown], [row[:shown] for row in rows])


def figures_of(found: claims.Finding) -> str:
    """Return what was published and what was measured, in one line."""
    said = [found.published and f"published {found.published}", found.here and f"here {found.here}"]
    return _clauses("; ".join(filter(None, said)))


def _clauses(text: str) -> str:
    """Return a text in the language of the process, clause by clause: the whole would be read as one comparison."""
    return Name(tr("; ").join(map(tr, text.split("; "))))


def loads(part: str, plan: Study, results: StudyResults) -> list[tuple[str, str]]:
    """Return (scenarios, load) for each load of a part as it ran; users or rate of its plan where that is not recorded."""
    runs = [run for run in results.runs if run.part == part and run.load is None]
    by_scenario: dict[str, list[Ran]] = {}
    for run in runs:
        if run.ran is not None:
            by_scenario.setdefault(run.scenario, []).append(run.ran)
    last = of_load.runs_text(len({run.pair for run in runs}), plan.quick)
    if by_scenario:
        return of_load.lines(by_scenario, last)
    with suppress(UsageError):  # a scenario of an earlier version may be gone
        planned = {
            name: [Ran(users_or_rate=of_load.in_words(load_text(load.scenario, ())))]
            for name, load in plan.parts[part].loads().items()
        }
        return of_load.lines(planned, f"as planned; {last}")
    return [("", last)]


def of(table: StudyTable, rows: Sequence[measured_rows.MeasuredRow], plan: Study) -> list[Table]:
    if (grid := measured_rows.grid_of(table, plan, rows)) is not None:
        return _grid(table, grid, rows)
    unsteady = any(row.is_unsteady(name) for row in rows for name in table.figures)
    note = Name(" ".join(filter(None, (_note(table), tr(_UNSTEADY if unsteady else "")))))
    return [
        _of_figures(table, table.key, Name(table.title), rows, note),
        *([_highest(table, rows)] if table.highest else []),
        *([_published(table, plan)] if any(row.published for row in table.rows) else []),
        *([_changes(table, rows, plan)] if table.has_changes else []),
    ]


def _of_figures(table: StudyTable, key: str, title: str, rows: Sequence[measured_rows.MeasuredRow], note: str) -> Table:
    lines = [(Name(each.row.label), *(_value(each, name) for name in table.figures)) for each in rows]
    return Table(key, title, _heads(table), lines, note)


def _heads(table: StudyTable) -> list[str | Head]:
    return ["", *(measured_rows.term_of(name).head for name in table.figures)]


def _note(table: StudyTable) -> str:
    """Return the remark of a table, with the variants that an engine has in the place of others."""
    instead = [f"{old} is {new}" for old, new in table.instead.items()]
    engine = tr(f"On this engine, {listed(instead)}.") if instead else ""
    return Name(" ".join(filter(None, (str(table.note), engine))))


def _value(row: measured_rows.MeasuredRow, name: str) -> Cell:
    """Return the mean of a figure over the runs, with a mark for a percentile of few samples."""
    value = row.value(name)
    if value is not None and measured_rows.term_of(name).figure.form == "share":
        return percent(value)
    return f"{short(value)} ~" if value is not None and row.is_unsteady(name) else value


def _published(table: StudyTable, plan: Study) -> Table:
    rows = [
        (Name(row.label), *(_NOT_PUBLISHED if value is None else value for value in row.published))
        for row in table.rows
        if row.published
    ]
    return Table(f"{table.key}-published", f"{table.title}: published", _heads(table), rows, Name(plan.source.setting))


def _changes(table: StudyTable, rows: Sequence[measured_rows.MeasuredRow], plan: Study) -> Table:
    """Return the changes against the base: a row for each row and figure, published and here."""
    base_of = measured_rows.bases(table, plan, rows)
    lines: list[tuple[Cell, ...]] = []
    for each in rows:
        if (base := base_of.get(each.name)) is None:
            continue
        for name in table.figures:
            found = measured_rows.row_effect(base, each, name)
            said = measured_rows.published_change(table, base.row, each.row, name)
            if said is None and found is None:
                continue
            single = measured_rows.spread(base, each, name)
            cells = (
                "-" if said is None else f"{claims.signed(said)} %",
                NOT_KNOWN if found is None else claims.effect_text(found),
                "-" if single is None else f"{claims.signed(single[0])} to {claims.signed(single[1])} %",
                "-" if said is None or found is None else _direction(said, found),
            )
            lines.append((Name(each.row.label), measured_rows.term_of(name).head, *cells))
    columns = ("", "figure", "published", "here", "single pairs", "direction")
    note = (
        f"Change against {table.base_label or 'the baseline at the same load'}. Here: mean over the pairs "
        "with its 95 % interval, for each figure alone, without a "
        "correction for their number. Single pairs: the lowest and the highest change of one pair, as one run of each shows it."
    )
    return Table(f"{table.key}-changes", f"{table.title}: changes", columns, lines, note)


def _direction(said: float, found: Effect) -> str:
    """Compare the direction of a published change with the measured one."""
    same = "same" if (found.ratio < 1) == (said < 0) else "opposite"
    without = {"not tested": f"{same}, not tested", "none": "no difference here"}
    return without.get(claims.direction(found), same)


def _highest(table: StudyTable, rows: Sequence[measured_rows.MeasuredRow]) -> Table:
    found = measured_rows.highest(table, rows)
    several = len({scenario for _, scenario in found}) > 1
    lines = [
        (f"{variant}, {scenario}" if several else variant, "none of the steps" if load is None else number(load))
        for (variant, scenario), load in found.items()
    ]
    note = f"The highest step such that {table.highest} holds on it and on all lower ones."
    return Table(f"{table.key}-highest", f"{table.title}: highest load", ("", "highest load"), lines, note)


def _grid(table: StudyTable, grid: measured_rows.Grid, rows: Sequence[measured_rows.MeasuredRow]) -> list[Table]:
    """Return a matrix for each figure, with the values of the first argument as rows, and the Pareto front."""
    shown = []
    columns = (f"{grid.down} (down), {grid.across}", *grid.acrosses)
    for name in table.figures:
        head = measured_rows.term_of(name).head.text
        lines = [(x, *values) for x, values in zip(grid.downs, grid.values(name), strict=True)]
        shown.append(Table(measured_rows.anchor(table, name), f"{table.title}: {head}", columns, lines, _note(table)))
    best = measured_rows.front(rows, table.figures)
    leading = [each for each in rows if each.name in best]
    note = "No other combination is better in one of the figures without being worse in another."
    return [*shown, _of_figures(table, f"{table.key}-front", f"{table.title}: Pareto front", leading, note)]


def _level(runs: Sequence[StudyRun], level: str) -> str:
    """Return the number of runs of a level, and of those with each of its reasons."""
    of_level = [run for run in runs if run.level == level]
    codes = [code for run in of_level for code in run.reasons]
    reasons = ", ".join(f"{code} {codes.count(code)}" for code in dict.fromkeys(codes))
    return f"{len(of_level)} {level}" + (f" ({reasons})" if reasons else "")


def facts(plan: Study, results: StudyResults) -> list[tuple[str, str]]:
    runs = [run for run in results.runs if run.load is None]
    counts = [plural(len(runs), "run"), *(_level(runs, level) for level in dict.fromkeys(run.level for run in runs))]
    counts += ["shortened by --quick"] if plan.quick else []
    return [
        ("Source", f"{plan.source.title}, {plan.source.date}"),
        ("Published with", str(plan.source.setting)),
        ("Command", plan.command),
        ("Date", f"{results.started_at[:10]}, inferload {results.inferload}"),
        ("Engine", results.server or plan.engine),
        ("Machine of the client", results.machine),
        ("Runs", "; ".join(counts)),
    ]
