"""Choice of the socket reader of a process: the native thread, or the equivalent Python code in the event loop.

The compiled code has two parts, of which either may be missing: the thread (`_transport`), and the parser (`_parser`), which serves
both readers.
"""

import os
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from inferload.base.deployments import repository
from inferload.base.errors import UsageError, instead
from inferload.client.connection.target import Target
from inferload.turns.socket_reader import SocketReader

try:
    from inferload.client.connection import _transport
except ImportError:
    _transport = None  # type: ignore[assignment]  # not built: no compiler, no headers, or not Linux
try:
    from inferload.client.connection import _parser
except ImportError:
    _parser = None  # type: ignore[assignment]  # not built: no compiler, or no headers

ReaderName = Literal["native", "python"]
VARIABLE = "INFERLOAD_READER"
_KEY_LOG = "SSLKEYLOGFILE"
NOT_COMPILED = "the extension is not compiled"
_COMPILER = (
    "install a C compiler and Python's headers (apt-get install gcc python3-dev, or the packages of your system), then "
)
_BY_PIP = (
    "repeat the installation as pip install --force-reinstall --no-deps --no-cache-dir --no-binary inferload "
    "(its wheel without the extension may be in pip's cache)"
)


def built() -> bool:
    """Return True if the native thread is available."""
    return _transport is not None


def parser() -> ModuleType | None:
    """Return the compiled parser; None if it is not available."""
    return _parser


def no_tls() -> str:
    """Return why the native thread, which is available, cannot decrypt TLS; empty if it can.

    It uses the libssl of Python's ssl module (ADR 6). Python makes the handshake (`TlsLayer`), so that its settings decide which
    servers are accepted; then the thread takes over.
    """
    if os.environ.get(_KEY_LOG):  # its callback would need the GIL in the thread
        return f"{_KEY_LOG} is set"
    return _tls_loaded()


@cache
def _tls_loaded() -> str:
    if sys.implementation.name != "cpython":
        return f"{sys.implementation.name} is not CPython"
    import ssl  # of runs with TLS

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    example: Any = context.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_hostname="localhost")
    try:
        _transport.load_tls(getattr(sys.modules["_ssl"], "__file__", None), example._sslobj, context)
    except OSError as error:
        return str(error)
    return ""


def how_to_build() -> str:
    """Return how to add the extension to this installation, a clone or one by pip; on other systems than Linux there is none."""
    if sys.platform != "linux":
        return "run the workers on Linux"
    root = repository()
    if root is None:
        return _COMPILER + _BY_PIP
    # With -B: it was set up without the extension, and is up to date for make.
    by_make = Path(sys.prefix).is_relative_to(root)
    return _COMPILER + ("make -B setup in the clone" if by_make else "pip install --no-deps -e . in the clone")


def chosen() -> ReaderName:
    """Return the reader of this process. Raise UsageError if the environment variable selects one that is not available."""
    name = os.environ.get(VARIABLE, "")
    if name == "native" and not built():
        raise UsageError(f"{VARIABLE}=native: {NOT_COMPILED}; {how_to_build()}")
    if name not in ("", "native", "python"):
        raise UsageError(f"{VARIABLE}={name}: unknown reader; {instead(name, ('native', 'python'))}")
    return "native" if built() and name != "python" else "python"


def reader_of(target: Target) -> SocketReader:
    """Return the reader of this process for the connections to a target. Raise UsageError as `chosen` does."""
    name = chosen()
    if name == "native":
        why = f"TLS: {no_tls()}" if target.scheme == "https" and no_tls() else ""
        return SocketReader(target=target.url, reader="python" if why else name, why=why)
    if built():
        return SocketReader(target=target.url, reader=name, why=f"{VARIABLE}=python", remedy=f"unset {VARIABLE}")
    return SocketReader(target=target.url, reader=name, why=NOT_COMPILED, remedy=how_to_build())
