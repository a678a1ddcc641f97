"""Documents of a run directory: compared with their types where they are read, and written from them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import msgspec

from inferload.base import rundir
from inferload.base.errors import UsageError

Document = TypeVar("Document", bound=msgspec.Struct)


def read(path: Path, kind: type[Document]) -> Document:
    """Read a JSON document of a run. UsageError if it is missing or invalid, or has a value of another type."""
    return read_typed(path, rundir.read_object(path), kind)


def read_typed(path: Path, document: Mapping[str, Any], kind: type[Document]) -> Document:
    """Return a document that was read from a file as its type; UsageError if a value has another one."""
    try:
        return typed(document, kind)
    except msgspec.ValidationError as error:
        raise invalid(path, error) from error


def invalid(path: Path, error: msgspec.ValidationError) -> UsageError:
    """Return the error of a file with a value of another type."""
    return UsageError(f"{path}: {in_words(error)}; the file is damaged, or another version wrote it")


def typed(document: Mapping[str, Any], kind: type[Document]) -> Document:
    """Return a document as its type; msgspec.ValidationError if a value has another one. A null key is unknown."""
    return msgspec.convert({key: value for key, value in document.items() if value is not None}, kind)


def document_of(typed_document: msgspec.Struct) -> dict[str, Any]:
    document: dict[str, Any] = msgspec.to_builtins(typed_document, enc_hook=float)  # numbers of NumPy
    return document


def faults(document: Mapping[str, Any], kind: type) -> dict[str, str]:
    """Return the problem of each key of a document whose value is not of its type."""
    found, types = {}, get_type_hints(kind, include_extras=True)
    for key, value in document.items():
        if key in types and value is not None:
            try:
                msgspec.convert(value, types[key])
            except msgspec.ValidationError as error:
                found[key] = in_words(error, key)
    return found


def in_words(error: msgspec.ValidationError, before: str = "") -> str:
    """Return an error as `turns.sent: expected ...`. `before`: path of the value that was compared."""
    problem, _, path = str(error).partition(" - at `$")
    problem, path = problem[:1].lower() + problem[1:], f"{before}{path.rstrip('`')}".lstrip(".")
    return f"{path}: {problem}" if path else problem
