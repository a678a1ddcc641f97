"""Names of the combinations of a grid, by what differs between the values of each argument. No I/O."""

import re
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import product
from typing import Any

from inferload.deploy.variants.variant import MAX_NAME

Grid = Mapping[str, Sequence[Any]]  # values by argument of the server; None: without the argument


def points(grid: Grid) -> dict[str, dict[str, Any]]:
    """Return the arguments of each combination by its name, such as `max-num-seqs-16.dtype-float16`.

    The last argument changes fastest. Names are distinct, also in upper and lower case, and valid as names of variants.
    """
    if not grid:
        return {}
    parts = [
        [
            word if isinstance(value, Mapping) else f"{flag}-{word}"
            for word, value in zip(words(values), values, strict=True)
        ]
        for flag, values in grid.items()
    ]
    names = _distinct(list(map(".".join, product(*parts))))
    return dict(zip(names, (dict(zip(grid, each, strict=True)) for each in product(*grid.values())), strict=True))


def words(values: Sequence[Any]) -> tuple[str, ...]:
    """Return a distinct word for each value of an argument: of a mapping, the keys in which it differs from the others."""
    leaves = [dict(_leaves(value)) for value in values if isinstance(value, Mapping)]
    keys = list(dict.fromkeys(key for each in leaves for key in each))
    differing = [key for key in keys if len({each.get(key) for each in leaves}) > 1] or keys

    def word(value: Any) -> str:
        if not isinstance(value, Mapping):
            return _word(value)
        found = dict(_leaves(value))
        kept = [f"{key}-{found[key]}" for key in differing if key in found]
        return ".".join(kept or [f"{key}-off" for key in differing] or ["empty"])

    return tuple(_distinct(list(map(word, values))))


def _leaves(value: Mapping[Any, Any], path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the word of each value by its key, with the keys around it."""
    for key, inner in value.items():
        name = path + _word(key)
        if isinstance(inner, Mapping) and inner:
            yield from _leaves(inner, f"{name}-")
        else:
            yield name, _word(inner)


def _word(value: Any) -> str:
    """Return a value in letters, digits, '.', '_' and '-'."""
    if isinstance(value, Mapping):
        return "-".join(f"{key}-{word}" for key, word in _leaves(value)) or "empty"
    if isinstance(value, list | tuple):
        return "-".join(map(_word, value)) or "empty"
    text = str(value).lower() if isinstance(value, bool) else "off" if value is None else str(value)
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text) or "empty"


def _distinct(names: Sequence[str]) -> list[str]:
    """Return valid names that differ in more than upper and lower case: shortened ones end in a digest, later ones in a number."""
    used: set[str] = set()
    found = []
    for name in names:
        start = name if name[:1].isalnum() else f"x{name}"
        if len(start) > MAX_NAME:
            start = f"{start[: MAX_NAME - 9]}-{sha256(name.encode()).hexdigest()[:8]}"
        each, number = start, 1
        while each.casefold() in used:
            number += 1
            each = f"{start[: MAX_NAME - 4]}-{number}"
        used.add(each.casefold())
        found.append(each)
    return found
