"""Table of configurations with a row per metric: `inferload compare --format block`."""

from collections.abc import Sequence

from inferload.base.numbers import NOT_MEASURED, number
from inferload.figures.rate_figures import OUTPUT, TURNS
from inferload.figures.turn_figures import E2E, TPOT, TTFT

from .compare import Comparison, table_rows
from .sides import Side
from .text import headline, remarks

# (title, figure, decimals; None: 3 significant digits)
_BLOCK: tuple[tuple[str, str, int | None], ...] = (
    ("TTFT P50 (ms)", f"p50({TTFT.key})", 1),
    ("TTFT P99 (ms)", f"p99({TTFT.key})", 1),
    ("TPOT mean (ms)", f"mean({TPOT.key})", 1),
    ("E2E P50 (ms)", f"p50({E2E.key})", 1),
    ("QPS", TURNS.key, None),
    ("Throughput (tok/s)", OUTPUT.key, 0),
)
BLOCK_NAMES = tuple(name for _, name, _ in _BLOCK)


def ab_block(comparisons: Sequence[Comparison]) -> str:
    """Format a row per metric and a column per side, then gains and remarks of each candidate."""
    sides = [side for side, _ in table_rows(comparisons)]
    width = max(len("Throughput (tok/s)"), 22)
    columns = [max(25, len(side.heading)) for side in sides]
    head = " | ".join(
        ["metric".ljust(width), *(side.heading.ljust(wide) for side, wide in zip(sides, columns, strict=True))]
    )
    lines = ["A/B comparison", head.rstrip(), "-" * len(head)]
    rows = [("success", [_success(side) for side in sides])]
    rows += [(title, [_text(side.mean(name), decimals) for side in sides]) for title, name, decimals in _BLOCK]
    for title, cells in rows:
        lines.append(
            " | ".join(
                [title.ljust(width), *(cell.ljust(wide) for cell, wide in zip(cells, columns, strict=True))]
            ).rstrip()
        )
    for comparison in comparisons:
        base, side = comparison.paired
        lines += ["", headline(comparison), f"[gains of {side.label}]"]
        lines += [] if comparison.differences.refusals else _gains(base, side)
        lines += [f"  {line}" for line in remarks(comparison)]
    return "\n".join(lines) + "\n"


def _success(side: Side) -> str:
    ok, sent = side.ok_and_sent or (0, 0)
    return f"{ok}/{sent} ({ok / sent:.0%})" if sent else NOT_MEASURED


def _text(value: float | None, decimals: int | None) -> str:
    if decimals is None:
        return number(value, unknown=NOT_MEASURED)
    return NOT_MEASURED if value is None else f"{value:.{decimals}f}"


def _gains(base: Side, side: Side) -> list[str]:
    """Return TTFT and QPS as changes of the first side's value, throughput as a factor."""
    values = {name: (base.mean(name), side.mean(name)) for name in (f"p50({TTFT.key})", TURNS.key, OUTPUT.key)}
    lines = []
    for title, name in (("TTFT", f"p50({TTFT.key})"), ("QPS", TURNS.key)):
        before, after = values[name]
        if not before or after is None:
            lines.append(f"  {title}: {NOT_MEASURED}")
        else:
            lines.append(f"  {title}: {'↓' if after < before else '↑'} {abs(after / before - 1):.1%}")
    before, after = values[OUTPUT.key]
    lines.append(f"  throughput: {NOT_MEASURED if not before or after is None else f'{after / before:.2f}x'}")
    return lines
