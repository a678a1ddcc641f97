"""pyarrow without the import of pandas: `pa`, `pq`, and `pc` on first use.

pyarrow imports pandas when it creates its first array, to check for pandas types: 40 MB and half a second of CPU time in
every worker and scraper, in the middle of a run. It checks once; this module makes that check fail. Programs that import
pandas themselves, before or after, can still use it, and `to_pandas` works.

`pc` is imported on first use: it takes 9 MB and much CPU time, and workers and scrapers do not need it. The memory pool is the C
library's, chosen before the import: Arrow's own reserves 1 GB of addresses, and keeps about 30 MB more after a part of turns.
"""

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")

import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    import pyarrow.compute as pc
else:

    class _Compute:
        def __getattr__(self, name: str) -> Any:
            return getattr(importlib.import_module("pyarrow.compute"), name)

    pc = _Compute()

__all__ = ["pa", "pc", "pq"]


class _NoPandas:
    """Module finder that reports pandas as missing."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name)


def _check_without_pandas() -> None:
    if "pandas" in sys.modules:
        return
    sys.meta_path.insert(0, _NoPandas)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(_NoPandas)


_check_without_pandas()
