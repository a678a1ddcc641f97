"""Parsing of API keys and headers from options. Error messages contain no value that may be a secret."""

import os
from pathlib import Path

from inferload.errors import UsageError


def api_key(path: str, variable: str) -> str | None:
    """Return the key in a file, or without a path the one in an environment variable; None if there is neither."""
    if not path:
        return os.environ.get(variable) or None
    try:
        key = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not text"
        raise UsageError(f"--api-key-file {path}: {why}; name a readable file with the key alone") from error
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise UsageError(f"--api-key-file {path}: holds no key; the file has the key alone, on one line")
    return key


def header(text: str) -> tuple[str, str]:
    """Return name and value of a text `NAME: VALUE`. Raise UsageError if it is invalid."""
    name, colon, value = text.partition(":")
    name, value = name.strip(), value.strip()
    fits = colon and name and all(c.isalnum() or c in "-_" for c in name) and value.isprintable() and value.isascii()
    if not fits or not name.isascii():
        # The message omits the text, which may be a key.
        raise UsageError("--header: not 'NAME: VALUE'; write it as --header 'X-Tenant: a'")
    return name, value
