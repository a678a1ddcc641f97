"""Choice of the socket reader of a process: the native thread, or the equivalent Python code in the event loop."""

import os
from typing import Literal, get_args

from inferload.base.errors import UsageError

try:
    from inferload.client.connection import _native
except ImportError:
    _native = None  # type: ignore[assignment]  # not built: no compiler, no headers, or not Linux

ReaderName = Literal["native", "python"]
VARIABLE = "INFERLOAD_READER"
HOW_TO_BUILD = "not compiled; apt-get install gcc python3-dev (or the packages of your system), then make setup"


def built() -> bool:
    """Return True if the extension is available."""
    return _native is not None


def chosen() -> ReaderName:
    """Return the reader of this process. Raise UsageError if the environment variable selects one that is not available."""
    name = os.environ.get(VARIABLE, "")
    if name == "":
        return "native" if built() else "python"
    if name == "native" and not built():
        raise UsageError(f"{VARIABLE}=native: {HOW_TO_BUILD}")
    known: tuple[ReaderName, ...] = get_args(ReaderName)
    if name in known:
        return known[known.index(name)]
    raise UsageError(f"{VARIABLE}={name}: unknown reader; use native or python")
