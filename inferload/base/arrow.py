"""pyarrow without modules that no run needs: `pa`, `pq`, and `pc` on first use.

pyarrow imports pandas when it creates its first array, to check for pandas types: 40 MB and half a second of CPU time in
every worker and scraper, in the middle of a run. It checks once; this module makes that check fail. Programs that import
pandas themselves, before or after, can still use it, and `to_pandas` works. Its file system of S3, 3 MB, is left out in the same
way: those who import `pyarrow.fs` get a complete one.

`pc` is imported on first use: it takes 9 MB and much CPU time, and workers and scrapers do not need it. The memory pool is the C
library's, chosen before the import: Arrow's own reserves 1 GB of addresses, and keeps about 30 MB more after a part of turns.
"""

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")

import pyarrow as pa


class _Missing:
    """Module finder that reports one module as missing."""

    def __init__(self, name: str) -> None:
        self._name = name

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name == self._name:
            raise ModuleNotFoundError(name)


@contextlib.contextmanager
def _without(name: str) -> Iterator[None]:
    """Context in which the import of a module fails, unless it was imported before."""
    finder: Any = _Missing(name)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


with _without("pandas"):
    pa.array([0])
_HAD_FILE_SYSTEMS = "pyarrow.fs" in sys.modules
with _without("pyarrow._s3fs"):
    import pyarrow.parquet as pq
if not _HAD_FILE_SYSTEMS:
    del sys.modules["pyarrow.fs"], pa.fs

if TYPE_CHECKING:
    import pyarrow.compute as pc
else:

    class _Compute:
        def __getattr__(self, name: str) -> Any:
            return getattr(importlib.import_module("pyarrow.compute"), name)

    pc = _Compute()

__all__ = ["pa", "pc", "pq"]
