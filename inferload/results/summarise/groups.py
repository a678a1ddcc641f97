"""Groups of samples that start together, from turn records: time of each group, and how long its slowest sample holds it up."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from operator import itemgetter
from statistics import median
from typing import Any

import numpy as np

from inferload.base.arrow import pa, pc
from inferload.base.clock import NS_PER_S
from inferload.results.documents.summary_document import Groups
from inferload.results.summary import exact_block

COLUMNS = ("session_id", "turn_index", "class", "phase", "planned_ns", "sent_ns", "closed_ns", "final", "failure")


def facts(turns: pa.Table) -> pa.Table:
    """Return a row for each turn: its sample, its group, and what is summed over them."""
    ids, ok = turns["session_id"], pc.is_null(turns["failure"])
    return pa.table(
        {
            "class": turns["class"],
            "sample": ids,
            "group": pc.list_element(pc.split_pattern(ids, "/", max_splits=1), 0),
            "begun": pc.and_(pc.equal(turns["turn_index"], 0), pc.equal(turns["phase"], "measure")),
            "failed": pc.invert(ok),
            "whole": pc.and_(ok, pc.fill_null(turns["final"], False)),
            "sent_ns": pc.coalesce(turns["sent_ns"], turns["planned_ns"]),
            "closed_ns": turns["closed_ns"],
        }
    )


def groups_by_class(parts: Iterable[pa.Table], samples: Mapping[str, int]) -> dict[str, Groups]:
    """Return the groups of each class. `parts`: tables of `facts` that hold whole groups. `samples`: of a group, by class."""
    begun = dict.fromkeys(samples, 0)
    times: dict[str, list[float]] = {name: [] for name in samples}
    ratios: dict[str, list[float]] = {name: [] for name in samples}
    for part in parts:
        for name, rows in _groups(part):
            if name not in samples or not any(row["begun"] for row in rows):
                continue
            begun[name] += 1
            if len(rows) == samples[name] and all(row["whole"] and not row["failed"] for row in rows):
                lasted_ns = [row["closed_ns"] - row["sent_ns"] for row in rows]
                ended_ns = max(row["closed_ns"] for row in rows)
                times[name].append((ended_ns - min(row["sent_ns"] for row in rows)) / NS_PER_S)
                ratios[name].append(max(lasted_ns) / median(lasted_ns))
    return {
        name: Groups(
            samples=most,
            begun=begun[name],
            done=len(times[name]),
            group_s=exact_block(np.array(times[name], dtype=np.float64)),
            straggler_ratio=exact_block(np.array(ratios[name], dtype=np.float64)),
        )
        for name, most in samples.items()
    }


def _groups(part: pa.Table) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield the class and the samples of each group."""
    sums = [("begun", "max"), ("failed", "max"), ("whole", "max"), ("sent_ns", "min"), ("closed_ns", "max")]
    by_sample = part.group_by(["class", "group", "sample"]).aggregate(sums)
    by_sample = by_sample.rename_columns(
        [name.removesuffix("_max").removesuffix("_min") for name in by_sample.column_names]
    )
    rows = by_sample.sort_by([("class", "ascending"), ("group", "ascending")]).to_pylist()
    for (name, _group), of_group in groupby(rows, itemgetter("class", "group")):
        yield name, [*of_group]
