"""Damaged run directories, as after crashes, with full disks, or by other versions; each with a single damage."""

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from inferload.base import rundir

Damage = Callable[[Path], None]


def truncations(path: Path, parts: tuple[float, ...]) -> Iterator[tuple[str, Damage]]:
    """Yield truncations of each file to parts of its length."""
    for file in sorted(path.rglob("*")):
        if file.is_file() and file.name not in (rundir.REPORT_HTML, rundir.REPORT_MD):
            for part in parts:
                yield f"{file.name} cut at {part:.0%}", _truncation(file.relative_to(path), part)


def _truncation(name: Path, part: float) -> Damage:
    def damage(path: Path) -> None:
        data = (path / name).read_bytes()
        (path / name).write_bytes(data[: int(len(data) * part)])

    return damage


def documents(path: Path) -> Iterator[tuple[str, Damage]]:
    """Yield changes of each value of manifest and summary: removed, null, or a text."""
    for name in (rundir.MANIFEST, rundir.SUMMARY):
        whole = json.loads((path / name).read_text())
        for keys in _paths(whole):
            for label, change in (("removed", _remove), ("null", _set_null), ("text", _set_text)):
                changed = copy.deepcopy(whole)
                change(changed, keys)
                yield f"{name}: {'.'.join(map(str, keys))} {label}", _replacement(name, changed)


def _paths(document: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    children = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    for key, value in children:
        yield (*before, key)
        yield from _paths(value, (*before, key))


def _parent(document: Any, keys: tuple[Any, ...]) -> Any:
    for key in keys[:-1]:
        document = document[key]
    return document


def _remove(document: Any, keys: tuple[Any, ...]) -> None:
    del _parent(document, keys)[keys[-1]]


def _set_null(document: Any, keys: tuple[Any, ...]) -> None:
    _parent(document, keys)[keys[-1]] = None


def _set_text(document: Any, keys: tuple[Any, ...]) -> None:
    _parent(document, keys)[keys[-1]] = "abc"


def _replacement(name: str, document: Any) -> Damage:
    def damage(path: Path) -> None:
        (path / name).write_text(json.dumps(document))

    return damage
