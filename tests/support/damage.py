"""Run directories as crashes, full disks and other versions leave them: one thing is damaged at a time."""

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from inferload import rundir

Damage = Callable[[Path], None]


def truncations(path: Path, parts: tuple[float, ...]) -> Iterator[tuple[str, Damage]]:
    """Each file of the run cut off after such a part of it."""
    for file in sorted(path.rglob("*")):
        if file.is_file() and file.name not in (rundir.REPORT_HTML, rundir.REPORT_MD):
            for part in parts:
                yield f"{file.name} cut at {part:.0%}", _cut(file.relative_to(path), part)


def _cut(name: Path, part: float) -> Damage:
    def damage(path: Path) -> None:
        data = (path / name).read_bytes()
        (path / name).write_bytes(data[: int(len(data) * part)])

    return damage


def documents(path: Path) -> Iterator[tuple[str, Damage]]:
    """Each value of the manifest and of the summary left out, made null, or made a word."""
    for name in (rundir.MANIFEST, rundir.SUMMARY):
        whole = json.loads((path / name).read_text())
        for place in _places(whole):
            for label, change in (("gone", _gone), ("null", _null), ("a word", _word)):
                changed = copy.deepcopy(whole)
                change(changed, place)
                yield f"{name}: {'.'.join(map(str, place))} {label}", _rewritten(name, changed)


def _places(document: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    children = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    for key, value in children:
        yield (*before, key)
        yield from _places(value, (*before, key))


def _inner(document: Any, place: tuple[Any, ...]) -> Any:
    for key in place[:-1]:
        document = document[key]
    return document


def _gone(document: Any, place: tuple[Any, ...]) -> None:
    del _inner(document, place)[place[-1]]


def _null(document: Any, place: tuple[Any, ...]) -> None:
    _inner(document, place)[place[-1]] = None


def _word(document: Any, place: tuple[Any, ...]) -> None:
    _inner(document, place)[place[-1]] = "abc"


def _rewritten(name: str, document: Any) -> Damage:
    def damage(path: Path) -> None:
        (path / name).write_text(json.dumps(document))

    return damage
