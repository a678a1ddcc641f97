"""Contents of the live view: columns of figures, and their charts, tiles and table. A page gets these texts with the data.

Texts are in sentence case, as all labels of the view.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from inferload.figures.figure import Figure
from inferload.figures.rate_figures import ACHIEVED, ATTAINMENT, OFFERED, OUTPUT, RATE_FIGURES, TURNS
from inferload.figures.servers.server_figure import GPU, SPEC_DECODE, ServerFigure
from inferload.figures.servers.server_figures import KV_CACHE_USAGE, SERVER_FIGURES, WAITING
from inferload.figures.turn_figures import HEADLINES, OF_STREAM
from inferload.results.documents.figures_document import Figures
from inferload.results.latency_limits import IN_RANGE
from inferload.turns.states import BY_KEY, DROPPED, ENDS, NOT_SERVED

LOAD = {"in_flight": "in flight", "users": "users"}  # columns that are no figures, of all classes
_REQUESTS = WAITING.panel
_COUNTS = {BY_KEY["sent"].key: "turns"} | {state.key: state.key for state in (*ENDS, DROPPED)}
_BAD = tuple(state.key for state in NOT_SERVED)
RATES = tuple(figure for figure in RATE_FIGURES if figure.panel is not None)
OF_SERVERS = tuple(row for row in SERVER_FIGURES if row.headline)
PERCENTILES = tuple((figure, name) for figure in HEADLINES for name in ("p50", figure.tail))
CLIENT = (*(figure.column(name) for figure, name in PERCENTILES), *(figure.key for figure in RATES))
SERVER = tuple(row.key for row in OF_SERVERS)


def sentence_case(label: str) -> str:
    """Return a label with a capital, unless its first word has a digit or a sign: `In flight`, but `p50`."""
    return re.sub(r"^[a-z-]+(?=[ ,]|$)", lambda word: word[0].capitalize(), label)


def view() -> dict[str, Any]:
    """Return the charts, tiles and columns of the table of classes. `in_range`: of limits, over the highest value of a chart."""
    return {"charts": _charts(), "tiles": _tiles(), "columns": _columns(), "in_range": IN_RANGE}


def _charts() -> list[dict[str, Any]]:
    """Return a chart for each headline measure and for each panel of rates, load and servers."""
    charts = [
        _chart(
            figure.heading,
            [{"key": figure.column(name), "label": name} for name in ("p50", figure.tail)],
            measure=figure.key,
            optional=figure.key in OF_STREAM,
        )
        for figure in HEADLINES
    ]
    panels: dict[str, list[Figure]] = {}
    for figure in (*RATES, *OF_SERVERS):
        panels.setdefault(figure.panel or figure.heading, []).append(figure)
    for title, figures in panels.items():
        servers = [row for row in figures if isinstance(row, ServerFigure)]
        load = [{"key": key, "label": label} for key, label in LOAD.items()] if title == _REQUESTS else []
        charts.append(
            _chart(
                title,
                [
                    *load,
                    *(
                        {"key": figure.key, "label": figure.label if isinstance(figure, ServerFigure) else figure.title}
                        for figure in figures
                    ),
                ],
                share=all(figure.form == "share" for figure in figures),
                server=not load and len(servers) == len(figures),
                optional=any(row.block in (GPU, SPEC_DECODE) for row in servers),
            )
        )
    return [*charts, _chart("failed turns, /s", [], failures=True, optional=True)]


def _chart(title: str, lines: Iterable[Mapping[str, Any]], **more: Any) -> dict[str, Any]:
    coloured = [
        {**line, "label": sentence_case(line["label"]), "colour": number, "step": line["key"] == "users"}
        for number, line in enumerate(lines, 1)
    ]
    return {"title": sentence_case(title), "lines": coloured, **more}


def _tiles() -> list[dict[str, Any]]:
    shown = [(figure, name) for figure, name in PERCENTILES if figure.panel is not None or name != "p50"]
    tiles = [_tile(figure.column(name), f"{figure.title} {name}", figure) for figure, name in shown]
    tiles += [_tile(figure.key, figure.title, figure) for figure in (OFFERED, ACHIEVED, OUTPUT)]
    tiles += [{"key": key, "title": title, "unit": "", "share": False, "server": False} for key, title in LOAD.items()]
    tiles += [_tile(row.key, row.title, row) for row in (KV_CACHE_USAGE, WAITING)]
    return [tile | {"title": sentence_case(tile["title"])} for tile in tiles]


def _tile(key: str, title: str, figure: Figure) -> dict[str, Any]:
    share = figure.form == "share"
    unit = "%" if share else figure.unit
    return {"key": key, "title": title, "unit": unit, "share": share, "server": isinstance(figure, ServerFigure)}


def _columns() -> list[dict[str, Any]]:
    """Return the columns of the table of classes. `bad`: a count that should be 0."""
    columns: list[dict[str, Any]] = [{"key": key, "title": title, "bad": key in _BAD} for key, title in _COUNTS.items()]
    columns += [{"key": figure.key, "title": figure.heading} for figure in (TURNS, OUTPUT)]
    columns += [{"key": figure.column(name), "title": figure.head(name).text} for figure, name in PERCENTILES]
    columns += [{"key": ATTAINMENT.key, "title": ATTAINMENT.title, "share": True}]
    return [column | {"title": sentence_case(column["title"])} for column in columns]


def class_row(name: str | None, part: Figures) -> dict[str, Any]:
    """Return the row of a class: counts, rates and percentiles by the keys of the columns."""
    turns = part.turns
    return {
        "name": name,
        "sent": turns.sent,
        **{state.key: getattr(turns, state.key) for state in ENDS},
        DROPPED.key: part.sessions.dropped,
        **{figure.key: part.rates.get(figure.key) for figure in (*RATES, ATTAINMENT)},
        **{figure.column(name): part.latency_of(figure.key).statistic(name) for figure, name in PERCENTILES},
    }
