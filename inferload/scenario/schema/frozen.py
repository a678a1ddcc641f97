"""Immutable JSON-like values, for the free-form mappings of a scenario."""

from collections.abc import Iterator, Mapping
from typing import Any


class Frozen(Mapping[str, Any]):
    """Immutable mapping; equal to any mapping with the same items, copyable, picklable."""

    __slots__ = ("_items",)

    def __init__(self, items: Mapping[str, Any]) -> None:
        self._items = dict(items)

    def __getitem__(self, key: str) -> Any:
        return self._items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __repr__(self) -> str:
        return repr(self._items)


def freeze(value: Any) -> Any:
    """Return the value with mappings as `Frozen` and lists as tuples."""
    if isinstance(value, Mapping):
        return Frozen({key: freeze(item) for key, item in value.items()})
    return tuple(freeze(item) for item in value) if isinstance(value, list | tuple) else value


def thaw(value: Any) -> Any:
    """Return the frozen value as plain dicts and lists."""
    if isinstance(value, Mapping):
        return {key: thaw(item) for key, item in value.items()}
    return [thaw(item) for item in value] if isinstance(value, tuple) else value
