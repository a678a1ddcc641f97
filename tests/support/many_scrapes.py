"""Scrapes of many vLLM pages, generated with numpy: row groups as a run of hours leaves them."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from inferload.base import rundir
from inferload.figures.pages import metric_names as names
from inferload.servers.scrapes_file import JOINED, SCHEMA, labels_json

S = 1_000_000_000
_GROUP_ROWS = 450_000
_BUCKETS = 24
PAGE = 900  # samples; of figures, and of other histograms
_FAMILIES = (names.TTFT, names.ITL, names.E2E)
_SINGLE = (
    names.RUNNING,
    names.WAITING,
    names.KV_CACHE_USAGE,
    names.PREFIX_QUERIES,
    names.PREFIX_HITS,
    names.PROMPT_TOKENS,
    names.GENERATION_TOKENS,
)


def addresses(servers: int) -> list[str]:
    """Return the metrics URLs."""
    return [f"http://host-{number}:8000/metrics" for number in range(servers)]


def write(run_dir: Path, servers: int, pages: int, begin_wall_ns: int, interval_ns: int = S) -> int:
    """Write so many pages of each server at an interval; return the number of samples. Counters grow by random amounts."""
    series = _series()
    folder = run_dir / rundir.SERVER_METRICS
    folder.mkdir(parents=True, exist_ok=True)
    rng, totals = np.random.default_rng(1), np.zeros((servers, len(series)))
    at_once = max(1, _GROUP_ROWS // (servers * len(series)))
    with pq.ParquetWriter(folder / JOINED, SCHEMA, compression="zstd") as writer:
        for first in range(0, pages, at_once):
            count = min(at_once, pages - first)
            grown = totals + np.cumsum(rng.integers(0, 50, (count, servers, len(series))) + rng.random(), axis=0)
            totals = grown[-1]
            walls = begin_wall_ns + (first + np.arange(count)) * interval_ns
            columns = [
                pa.array(np.repeat(walls, servers * len(series))),
                _words(np.tile(np.repeat(np.arange(servers), len(series)), count), addresses(servers)),
                *(
                    _words(np.tile(np.arange(len(series)), count * servers), list(texts))
                    for texts in zip(*series, strict=True)
                ),
                pa.array(grown.ravel()),
            ]
            writer.write_table(
                pa.Table.from_arrays([_as(*pair) for pair in zip(columns, SCHEMA.types, strict=True)], schema=SCHEMA)
            )
    return pages * servers * len(series)


def _series() -> list[tuple[str, str]]:
    """Return metric and labels of each sample of a page."""
    engine = ("engine", "0")
    found = [(name, labels_json([engine])) for name in _SINGLE]
    for family in _FAMILIES:
        found += [(family + suffix, labels_json([engine])) for suffix in ("_sum", "_count")]
        found += [(f"{family}_bucket", labels_json([engine, ("le", f"{bound / 10}")])) for bound in range(_BUCKETS)]
    return found + [(f"vllm:other_{number}_bucket", labels_json([engine])) for number in range(PAGE - len(found))]


def _words(codes: "np.ndarray[tuple[int], np.dtype[np.int64]]", words: list[str]) -> pa.DictionaryArray:
    distinct = list(dict.fromkeys(words))
    number_of = np.array([distinct.index(word) for word in words], dtype=np.int32)
    return pa.DictionaryArray.from_arrays(pa.array(number_of[codes]), pa.array(distinct, pa.string()))


def _as(column: pa.Array, kind: pa.DataType) -> pa.Array:
    return column if column.type == kind else column.cast(kind)
