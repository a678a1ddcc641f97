"""Charts of a study: changes published and measured, figures over the load, heat maps of a grid."""

from collections.abc import Sequence

from inferload.campaign.sweep.study import Study, StudyTable

from ..charts.chart import BLUE, GREEN, HEAT, ORANGE, RED, TEAL, VIOLET, Picture, PlotlyDict, layout, numbers, title
from ..pages.texts import tr
from .measured_rows import Grid, MeasuredRow, anchor, bases, grid_of, published_change, row_effect, term_of

_COLOURS = (BLUE, ORANGE, GREEN, VIOLET, TEAL, RED)
_ROW_PX = 26


def pictures(table: StudyTable, rows: Sequence[MeasuredRow], plan: Study) -> list[Picture]:
    """Return the charts of a table; none for a table of single values without changes."""
    if (grid := grid_of(table, plan, rows)) is not None:
        return [_heat(table, name, grid) for name in table.figures]
    if any(each.row.load is not None for each in rows):
        return [_over_load(table, name, rows) for name in table.figures]
    if table.has_changes:
        changes = _changes(table, rows, plan)
        return [] if changes is None else [changes]
    return []


def _markers(name: str, changes: Sequence[tuple[str, float]], marker: PlotlyDict) -> PlotlyDict:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": numbers([100 * change for _, change in changes]),
        "y": [label for label, _ in changes],
        "marker": marker,
        "hovertemplate": f"%{{y}}: %{{x:+.3~g}} %<extra>{name}</extra>",
    }


def _changes(table: StudyTable, rows: Sequence[MeasuredRow], study: Study) -> Picture | None:
    """Return the chart of changes against the base: published as a diamond, here with the interval."""
    base_of = bases(table, study, rows)
    points = [
        (
            f"{each.row.label}{tr(': ')}{tr(term_of(name).title)}",
            published_change(table, base.row, each.row, name),
            row_effect(base, each, name),
        )
        for name in reversed(table.figures)
        for each in reversed(rows)
        if (base := base_of.get(each.name)) is not None
    ]
    here = [(label, found) for label, _, found in points if found is not None]
    said = [(label, change) for label, change, _ in points if change is not None]
    if not here:
        return None
    bars = {
        "type": "data",
        "symmetric": False,
        "array": numbers([100 * ((found.high or found.ratio) - found.ratio) for _, found in here]),
        "arrayminus": numbers([100 * (found.ratio - (found.low or found.ratio)) for _, found in here]),
    }
    measured = _markers("here", [(label, found.ratio - 1) for label, found in here], {"size": 8, "color": BLUE})
    data = [measured | {"error_x": bars}]
    if said:
        data.append(_markers("published", said, {"size": 9, "color": ORANGE, "symbol": "diamond"}))
    plan = layout(
        110 + _ROW_PX * len(points),
        {"title": title(f"change against {table.base_label or 'the baseline'}, %"), "zeroline": True},
        {"automargin": True, "categoryorder": "array", "categoryarray": [label for label, _, _ in points]},
    )
    note = "Circles: mean over the pairs with the 95 % interval. Diamonds: published, one run each."
    return Picture(f"{table.key}-chart", f"{table.title}: changes", note, {"data": data, "layout": plan})


def _over_load(table: StudyTable, name: str, rows: Sequence[MeasuredRow]) -> Picture:
    """Return the chart of a figure over the steps of the load, a line for each variant and scenario."""
    term = term_of(name)
    lines: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for each in rows:
        value = each.value(name)
        if each.row.load is not None and value is not None:
            lines.setdefault((each.row.variant or "", each.row.scenario or ""), []).append((each.row.load, value))
    several = len({scenario for _, scenario in lines}) > 1
    data = [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": f"{variant}, {scenario}" if several else variant,
            "x": numbers([load for load, _ in sorted(points)]),
            "y": numbers([value for _, value in sorted(points)]),
            "line": {"color": _COLOURS[index % len(_COLOURS)]},
            "hovertemplate": f"load %{{x}}: %{{y:,.4~g}} {term.unit}<extra></extra>",
        }
        for index, ((variant, scenario), points) in enumerate(lines.items())
    ]
    plan = layout(320, {"title": title("load")}, {"title": title(term.head.text), "rangemode": "tozero"})
    return _of_figure(table, name, data, plan | {"showlegend": len(data) > 1})


def _heat(table: StudyTable, name: str, grid: Grid) -> Picture:
    """Return the heat map of a figure over two arguments."""
    term = term_of(name)
    cells = [[float("nan") if value is None else value for value in line] for line in grid.values(name)]
    data = [
        {
            "type": "heatmap",
            "x": list(grid.acrosses),
            "y": list(grid.downs),
            "z": [numbers(line) for line in cells],
            "texttemplate": "%{z:,.4~g}",
            "colorscale": HEAT,
            "hovertemplate": f"{grid.down} %{{y}}, {grid.across} %{{x}}: %{{z:,.4~g}} {term.unit}<extra></extra>",
            "colorbar": {"thickness": 12, "outlinewidth": 0},
        }
    ]
    axis = {"type": "category"}
    plan = layout(130 + 34 * len(grid.downs), {"title": title(grid.across)} | axis, {"title": title(grid.down)} | axis)
    return _of_figure(table, name, data, plan)


def _of_figure(table: StudyTable, name: str, data: list[PlotlyDict], plan: PlotlyDict) -> Picture:
    term, chart = term_of(name), {"data": data, "layout": plan}
    return Picture(f"{anchor(table, name)}-chart", f"{table.title}: {term.head.text}", "", chart, (term.figure.key,))
