"""AIPerf's printed tables and its CSV, as the document of its JSON export.

A row is a metric by its title and unit, a column one of its statistics (`avg`, `p50`, ...): aiperf 0.13,
`exporters/console_metrics_exporter.py` and `metrics_csv_exporter.py`. A metric with one value has only `avg`, or a column `Value`.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from . import tables
from .published import number

CUT = "cut off"  # key of the metrics with a cell that the width of the terminal cut off

_TITLE = re.compile(r"^\W*NVIDIA AIPerf \|", re.M)
_NAME = re.compile(r"(?P<title>.*?)\s*(?:\((?P<unit>[^()]*)\))?")


def documents(text: str) -> list[dict[str, Any]]:
    """Return a document for each result in a text; none for a text that is not AIPerf's. ValueError for a malformed CSV."""
    if not (_TITLE.search(text) or text.lstrip("\ufeff").startswith("Metric,avg,min,max,sum,")):
        return []
    found: list[dict[str, Any]] = [{}]
    for table in tables.grids(text):
        for tag, metric, cut in _metrics(table):
            if tag in found[-1]:
                found.append({})
            if cut:
                found[-1].setdefault(CUT, []).append(cut)
            if "…" not in tag:
                found[-1][tag] = metric
    return [document for document in found if document]


def _metrics(table: Sequence[Sequence[str]]) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield the key of each metric, its statistics, and its name if a cell was cut off by the width of the terminal."""
    header, *body = table
    if header[0] != "Metric":
        return
    statistics = ["avg" if name == "Value" else name for name in header[1:]]
    for row in body:
        name = _NAME.fullmatch(" ".join(row[0].split()))
        if name is None or not name["title"]:
            continue
        values = zip(statistics, row[1:], strict=False)
        known = {statistic: value for statistic, cell in values if (value := number(cell.strip())) is not None}
        tag = re.sub(r"[\s-]+", "_", name["title"].lower())
        cut = f"{row[0]} (cut off)" if any("…" in cell for cell in row) else ""
        yield tag, {"unit": name["unit"] or "requests", **known}, cut
