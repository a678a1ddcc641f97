"""Tables of server figures in docs/reference/summary.md: `python -m inferload.analysis.pages.summary_reference` rewrites them."""

from inferload.figures.server_figures import ENGINE_GAUGES, GPU, SERVER_FIGURES, SPEC_DECODE, ServerFigure
from inferload.figures.server_formulas import HistogramMean

_HEAD = "| key | type | meaning |\n|---|---|---|\n"
_TABLES = {
    "server": tuple(row for row in SERVER_FIGURES if row.block is None),
    "engine": ENGINE_GAUGES,
    "speculation": tuple(row for row in SERVER_FIGURES if row.block == SPEC_DECODE),
    "gpu": tuple(row for row in SERVER_FIGURES if row.block == GPU),
}
_END = "<!-- end -->"


def with_tables(page: str) -> str:
    """Return the page with the tables of today's figures."""
    for name, rows in _TABLES.items():
        begin = f"<!-- figures of {name} -->\n"
        before, _, rest = page.partition(begin)
        page = before + begin + _HEAD + "".join(map(_line, rows)) + _END + rest.partition(_END)[2]
    return page


def _line(row: ServerFigure) -> str:
    return f"| `{row.entry_key}` | {_type(row)} | {row.text} |\n"


def _type(row: ServerFigure) -> str:
    if isinstance(row.formula, HistogramMean):
        return "[histogram](#histogram) or null"
    if row.statistics:
        return "[gauge](#gauge)"
    return "int or null" if row.form == "count" else "number or null"


def main(page: str) -> None:
    """Rewrite the tables of the page."""
    from pathlib import Path

    path = Path(page)
    path.write_text(with_tables(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main("docs/reference/summary.md")
