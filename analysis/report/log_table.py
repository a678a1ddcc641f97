"""Table of the figures in a server log."""

from collections.abc import Sequence

import numpy as np

from inferload.base.numbers import percent
from inferload.figures.figure import Head
from inferload.figures.table import Cell, Table

from ..data.frame import known
from ..data.vllm_log import FIELDS, VllmLog


def table(log: VllmLog | None) -> Table | None:
    """Return mean, minimum and maximum over the lines of a log; None without a log."""
    if log is None:
        return None
    rows: list[Sequence[Cell]] = []
    for field in FIELDS:
        column = field.figure.key
        if column in log.rows and known(log.rows[column]).any():
            values = log.rows[column][known(log.rows[column])]
            shown = [float(value) for value in (values.mean(), values.min(), values.max())]
            cells = map(percent, shown) if field.figure.form == "share" else shown
            rows.append((field.figure.head(), *cells, len(values)))
    positions = [shares for _, shares in log.per_position]
    for index in range(max((len(shares) for shares in positions), default=0)):
        values_at = np.array([shares[index] for shares in positions if len(shares) > index])
        shares = [percent(float(value)) for value in (values_at.mean(), values_at.min(), values_at.max())]
        head = Head(f"accepted at position {index}", "accepted at position")
        rows.append((head, *shares, len(values_at)))
    note = (
        f"From {log.name}. Rates and acceptance: means since the previous line; hit rates: over the last 1,000 requests of the "
        "engine; prompt tokens: without cached tokens. Assumed time zone: that of this machine."
    )
    return Table("server-log", "Server log", ("", Head("mean of lines", "mean"), "min", "max", "lines"), rows, note)
