"""Groups of samples that start together, from turn records: time of each group, and how long its slowest sample holds it up."""

from collections.abc import Iterable, Mapping

import numpy as np

from inferload.base.arrow import pa, pc
from inferload.base.clock import NS_PER_S
from inferload.results.documents.summary_document import Groups
from inferload.results.summary import exact_block

COLUMNS = ("session_id", "turn_index", "class", "phase", "planned_ns", "sent_ns", "closed_ns", "final", "failure")


def facts(turns: pa.Table) -> pa.Table:
    """Return a row for each turn: its sample, its group, and what is summed over them."""
    ids, ok = turns["session_id"], pc.is_null(turns["failure"])
    first = pc.and_(pc.equal(turns["turn_index"], 0), pc.equal(turns["phase"], "measure"))
    return pa.table(
        {
            "class": turns["class"],
            "sample": ids,
            "group": pc.list_element(pc.split_pattern(ids, "/", max_splits=1), 0),
            "begun": first,
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
        sums = [("begun", "max"), ("failed", "max"), ("whole", "max"), ("sent_ns", "min"), ("closed_ns", "max")]
        by_sample = part.group_by(["class", "group", "sample"]).aggregate(sums)
        for name, most in samples.items():
            mine = by_sample.filter(pc.equal(by_sample["class"], name)).sort_by("group")
            starts = np.flatnonzero(np.array(mine["group"]) != np.array(["", *mine["group"].to_pylist()])[:-1])
            column = {key: np.array(mine[key]) for key in mine.column_names}
            for low, high in zip(starts.tolist(), [*starts[1:].tolist(), len(mine)], strict=True):
                rows = slice(low, high)
                if not column["begun_max"][rows].any():
                    continue
                begun[name] += 1
                if high - low == most and column["whole_max"][rows].all() and not column["failed_max"][rows].any():
                    ended_ns, sent_ns = column["closed_ns_max"][rows], column["sent_ns_min"][rows]
                    lasted_ns = ended_ns - sent_ns
                    times[name].append((ended_ns.max() - sent_ns.min()) / NS_PER_S)
                    ratios[name].append(lasted_ns.max() / np.median(lasted_ns))
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
