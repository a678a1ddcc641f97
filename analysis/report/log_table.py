"""Table of the figures in a server log."""

import numpy as np

from inferload.base.numbers import NOT_KNOWN, number, percent

from ..data.vllm_log import FIELDS, VllmLog
from ..pages.tables import Table


def table(log: VllmLog | None) -> Table | None:
    """Return mean, minimum and maximum over the lines of a log; None without a log."""
    if log is None:
        return None
    rows = []
    for field in FIELDS:
        column = field.figure.key
        if column in log.rows and log.rows[column].notna().any():
            form = percent if field.figure.form == "share" else number
            values = log.rows[column].dropna()
            rows.append(
                (
                    field.figure.heading,
                    form(float(values.mean())),
                    form(float(values.min())),
                    form(float(values.max())),
                    f"{len(values):,}",
                )
            )
    positions = [shares for _, shares in log.per_position]
    for index in range(max((len(shares) for shares in positions), default=0)):
        values_at = np.array([shares[index] for shares in positions if len(shares) > index])
        low, high = percent(float(values_at.min())), percent(float(values_at.max()))
        mean = percent(float(values_at.mean())) if len(values_at) else NOT_KNOWN
        rows.append((f"accepted at position {index}", mean, low, high, f"{len(values_at):,}"))
    note = (
        f"From {log.name}. Rates and acceptance: means since the previous line; hit rates: over the last 1,000 requests of the "
        "engine; prompt tokens: without cached tokens. Assumed time zone: that of this machine."
    )
    return Table(
        "server-log",
        "Server log",
        ("", "mean of lines", "min", "max", "lines"),
        tuple(rows),
        note,
    )
