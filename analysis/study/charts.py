"""Charts of a study: changes published and measured, figures over the load, heat maps of a grid."""

from collections.abc import Sequence
from itertools import cycle

from inferload.campaign.sweep.study import Study, StudyTable

from ..charts import chart
from ..charts.chart import BLUE, ORANGE, Picture, PlotlyDict
from ..pages.texts import tr
from .measured_rows import Grid, MeasuredRow, anchor, bases, grid_of, published_change, row_effect, term_of

_COLOURS = (BLUE, ORANGE, chart.GREEN, chart.VIOLET, chart.TEAL, chart.RED)
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


def _markers(name: str, changes: Sequence[tuple[str, float]], **look: PlotlyDict) -> PlotlyDict:
    x, y = chart.numbers([100 * change for _, change in changes]), [label for label, _ in changes]
    return chart.scatter("markers", name, x, y, hovertemplate=f"%{{y}}: %{{x:+.3~g}} %<extra>{name}</extra>", **look)


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
    bars = chart.error_bars([(found.ratio, found.low, found.high) for _, found in here], 100)
    measured = [(label, found.ratio - 1) for label, found in here]
    data = [_markers("here", measured, marker={"size": 8, "color": BLUE}, error_x=bars)]
    if said:
        data.append(_markers("published", said, marker={"size": 9, "color": ORANGE, "symbol": "diamond"}))
    plan = chart.layout(
        110 + _ROW_PX * len(points),
        chart.axis(f"change against {table.base_label or 'the baseline'}, %", zeroline=True),
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
    data = []
    for colour, ((variant, scenario), points) in zip(cycle(_COLOURS), lines.items(), strict=False):
        look = {"line": {"color": colour}, "hovertemplate": f"load %{{x}}: %{{y:,.4~g}} {term.unit}<extra></extra>"}
        loads, values = map(chart.numbers, zip(*sorted(points), strict=True))
        label = f"{variant}, {scenario}" if several else variant
        data.append(chart.scatter("lines+markers", label, loads, values, **look))
    plan = chart.layout(320, chart.axis("load"), chart.axis(term.head.text, rangemode="tozero"))
    return _of_figure(table, name, data, plan | {"showlegend": len(data) > 1})


def _heat(table: StudyTable, name: str, grid: Grid) -> Picture:
    term = term_of(name)
    cells = [[float("nan") if value is None else value for value in line] for line in grid.values(name)]
    data = [
        {
            "type": "heatmap",
            "x": list(grid.acrosses),
            "y": list(grid.downs),
            "z": [chart.numbers(line) for line in cells],
            "texttemplate": "%{z:,.4~g}",
            "colorscale": chart.HEAT,
            "hovertemplate": f"{grid.down} %{{y}}, {grid.across} %{{x}}: %{{z:,.4~g}} {term.unit}<extra></extra>",
            "colorbar": {"thickness": 12, "outlinewidth": 0},
        }
    ]
    axes = (chart.axis(title, type="category") for title in (grid.across, grid.down))
    plan = chart.layout(130 + 34 * len(grid.downs), *axes)
    return _of_figure(table, name, data, plan)


def _of_figure(table: StudyTable, name: str, data: list[PlotlyDict], plan: PlotlyDict) -> Picture:
    term, figure = term_of(name), {"data": data, "layout": plan}
    return Picture(f"{anchor(table, name)}-chart", f"{table.title}: {term.head.text}", "", figure, (term.figure.key,))
