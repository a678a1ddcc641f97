"""Which of the two readers a process uses: the compiled thread, or the Python code that does the same within the event loop."""

import os
from typing import Literal, get_args

from inferload.errors import UsageError

try:
    from inferload.client.connection import _native
except ImportError:
    _native = None  # type: ignore[assignment]  # it was not built: no compiler, no headers, or not Linux

ReaderName = Literal["native", "python"]
VARIABLE = "INFERLOAD_READER"
HOW_TO_BUILD = "it was not compiled: apt-get install gcc python3-dev (or your system's like), then make setup"


def built() -> bool:
    """Whether the extension is there."""
    return _native is not None


def chosen() -> ReaderName:
    """The reader of this process; UsageError where the environment asks for what there is not."""
    wanted = os.environ.get(VARIABLE, "")
    if wanted == "":
        return "native" if built() else "python"
    if wanted == "native" and not built():
        raise UsageError(f"{VARIABLE}=native: {HOW_TO_BUILD}")
    known: tuple[ReaderName, ...] = get_args(ReaderName)
    if wanted in known:
        return known[known.index(wanted)]
    raise UsageError(f"{VARIABLE}={wanted}: native or python")
