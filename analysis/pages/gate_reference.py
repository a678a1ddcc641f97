"""Reference of gate terms as Markdown tables: `python -m inferload.analysis.pages.gate_reference`."""

from inferload.figures import client_figures, rate_figures, turn_figures
from inferload.figures.figure import Figure
from inferload.figures.limits import gate_grammar
from inferload.figures.servers.server_figures import SERVER_FIGURES

_STATISTICS = ", ".join((*gate_grammar.STATISTICS, "any percentile"))


def document() -> str:
    """Return the tables of docs/reference/gates.md."""
    classes = "{CLASS}"
    turns = [
        _of(figure, "", f"{classes}` or `{{TYPE NAME}}" if figure is rate_figures.FAILED_RATIO else classes)
        if not figure.of_power
        else _of(figure, "", "")
        for figure in rate_figures.RATE_FIGURES
    ]
    turns += [_of(figure, _STATISTICS, classes) for figure in turn_figures.TURN_FIGURES]
    turns += [_of(figure, _STATISTICS if figure.sketch else "", "") for figure in client_figures.CLIENT_FIGURES]
    servers = [_of(row, ", ".join(row.statistics), "") for row in SERVER_FIGURES]
    head = ["name", "statistics", "selector", "unit", "definition"]
    return "\n".join(
        [
            *_table("### Turns and client", [head, *turns]),
            *_table("### Server metrics", [_without(head), *map(_without, servers)]),
        ]
    )


def _of(figure: Figure, statistics: str, selector: str) -> list[str]:
    unit = "0 to 1" if figure.form == "share" else figure.unit
    return [f"`{figure.key}`", statistics, f"`{selector}`" if selector else "", unit, figure.text]


def _without(row: list[str]) -> list[str]:
    """Remove the selector column, which server metrics lack."""
    return [*row[:2], *row[3:]]


def _table(title: str, rows: list[list[str]]) -> list[str]:
    lines = [f"| {' | '.join(row)} |" for row in (rows[0], ["---"] * len(rows[0]), *rows[1:])]
    return [title, "", *lines, ""]


if __name__ == "__main__":
    print(document(), end="")
