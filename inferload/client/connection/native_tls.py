"""TLS that the native thread decrypts, with the libssl of Python's ssl module (ADR 6).

Python makes the handshake (`TlsLayer`), so that its settings decide which servers are accepted; then the thread takes over.
"""

import os
import ssl
import sys
from functools import cache
from typing import Any

from inferload.client.connection import _transport

_KEY_LOG = "SSLKEYLOGFILE"


def why_not() -> str:
    """Return why the thread cannot decrypt in this process; empty if it can."""
    if os.environ.get(_KEY_LOG):  # its callback would need the GIL in the thread
        return f"{_KEY_LOG} is set"
    return _loaded()


@cache
def _loaded() -> str:
    if sys.implementation.name != "cpython":
        return f"{sys.implementation.name} is not CPython"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    example: Any = context.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_hostname="localhost")
    try:
        _transport.load_tls(getattr(sys.modules["_ssl"], "__file__", None), example._sslobj, context)
    except OSError as error:
        return str(error)
    return ""
