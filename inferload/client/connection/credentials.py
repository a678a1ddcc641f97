"""Parsing of API keys and headers from options. Error messages contain no value that may be a secret."""

import os
from pathlib import Path

from inferload.base.errors import UsageError, instead_of_file

LEAST_TOKEN = 20  # characters: someone who records the handshake can try short ones offline


def api_key(path: str, variable: str, named_by: str = "--api-key-file") -> str | None:
    """Return the key in a file, or without a path the one in an environment variable; None if there is neither.

    `named_by`: the option or key that names the file, for error messages.
    """
    if path:
        return _secret(named_by, path, "key")
    key = os.environ.get(variable, "").strip()
    if key and not _is_word(key):
        raise UsageError(f"{variable}: holds no key; set it to the key alone, without blanks or control characters")
    return key or None


def run_token(path: str) -> str | None:
    """Return the token of a run in a file; None without a path."""
    if not path:
        return None
    token = _secret("--token-file", path, "token")
    if len(token) < LEAST_TOKEN:
        raise UsageError(
            f"--token-file {path}: holds fewer than {LEAST_TOKEN} characters; create one with openssl rand -hex 32 > {path}"
        )
    return token


def _secret(flag: str, path: str, noun: str) -> str:
    """Return the one word in a file. `noun`: what it is, for error messages."""
    try:
        secret = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not text"
        remedy = instead_of_file(Path(path), f"name a file with the {noun} alone (pod: create its Secret)")
        raise UsageError(f"{flag} {path}: {why}; {remedy}") from error
    if not _is_word(secret):
        raise UsageError(f"{flag} {path}: holds no {noun}; the file has the {noun} alone, on one line")
    return secret


def _is_word(text: str) -> bool:
    """Return True if a text is one word that a header can carry."""
    return bool(text) and text.isascii() and text.isprintable() and " " not in text


def header(text: str) -> tuple[str, str]:
    """Return name and value of a text `NAME: VALUE`. Raise UsageError if it is invalid."""
    name, colon, value = text.partition(":")
    name, value = name.strip(), value.strip()
    fits = colon and name and all(c.isalnum() or c in "-_" for c in name) and value.isprintable() and value.isascii()
    if not fits or not name.isascii():
        # The message omits the text, which may be a key.
        raise UsageError("--header: not 'NAME: VALUE'; write it as --header 'X-Tenant: a'")
    return name, value
