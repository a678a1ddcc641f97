"""Scrapes of a run directory as one table."""

from collections.abc import Collection
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from inferload.servers.scrapes_file import SCHEMA, read_scrapes


def table_of(run_dir: Path, metrics: Collection[str] | None = None) -> pa.Table:
    """Return all scrapes of a run, or those of some metrics, in the order of their instants."""
    table = pa.concat_tables([SCHEMA.empty_table(), *read_scrapes(run_dir)]).unify_dictionaries().sort_by("wall_ns")
    return (
        table if metrics is None else table.filter(pc.is_in(table["metric"].cast(pa.string()), pa.array(list(metrics))))
    )
