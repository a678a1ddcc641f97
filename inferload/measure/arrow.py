"""pyarrow, without pandas: whoever writes or reads columns where tokens are stamped takes `pa` and `pc` from here.

pyarrow imports pandas at the first array that it makes, only to ask whether it was given one of pandas' own: 40 MB and half
a second of a core, in every worker and scraper, and in the middle of a run. It asks once; here it asks while there is none
to be found. A program that wants pandas imports it all the same, before or after, and `to_pandas` still works.

`pc` is imported when it is first asked for: a fourth of a second of a core that a scraper does not need.
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    import pyarrow.compute as pc

__all__ = ["pa", "pc"]


class _NoPandas:
    """A finder of modules by which there is no pandas."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name)


def _ask_without_pandas() -> None:
    if "pandas" in sys.modules:
        return
    sys.meta_path.insert(0, _NoPandas)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(_NoPandas)


_ask_without_pandas()


def __getattr__(name: str) -> Any:
    if name == "pc":
        return importlib.import_module("pyarrow.compute")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
