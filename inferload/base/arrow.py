"""pyarrow without the import of pandas: `pa`, and `pc` on first use.

pyarrow imports pandas when it creates its first array, to check for pandas types: 40 MB and half a second of CPU time in
every worker and scraper, in the middle of a run. It checks once; this module makes that check fail. Programs that import
pandas themselves, before or after, can still use it, and `to_pandas` works.

`pc` is imported on first use, because it takes a quarter of a second of CPU time, and scrapers do not need it.
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    import pyarrow.compute as pc

__all__ = ["pa", "pc"]


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


def __getattr__(name: str) -> Any:
    if name == "pc":
        return importlib.import_module("pyarrow.compute")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
