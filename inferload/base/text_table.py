"""Plain text tables for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from inferload.base.escaping import escaped, markdown

Row = Sequence[str]


def align(rows: Sequence[Row], left: int = 1) -> str:
    """Format rows in columns as wide as the widest cell, the first `left` columns aligned left. Cells are escaped."""
    rows = [[escaped(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  " + "  ".join(cells).rstrip())
    return "\n".join(lines)


def piped(rows: Sequence[Row], right: bool = True) -> str:
    """Format rows as a Markdown table with the first row as head. `right`: align all columns but the first right."""
    cells: list[list[str]] = [[markdown(cell) for cell in row] for row in rows]
    head, *body = cells
    rule = [":---", *(("---:" if right else ":---") for _ in head[1:])]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, rule, *body))
