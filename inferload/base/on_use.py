"""Imports on first use: a process imports the kinds that its scenario and options name, no others."""

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import TypeVar

Row = TypeVar("Row")


@contextmanager
def importing() -> Iterator[None]:
    """Context of imports, without garbage collection: hardly any of the many new objects is garbage, now or later."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


class OnUse(Mapping[str, Row]):
    """Rows by name, each given as `module:object`; iteration and `in` import nothing."""

    def __init__(self, places: Mapping[str, str]) -> None:
        self._places = places
        self._rows: dict[str, Row] = {}

    def __getitem__(self, name: str) -> Row:
        """Return a row; import its module if none was asked for before."""
        if name not in self._rows:
            module, _, attribute = self._places[name].partition(":")
            self._rows[name] = getattr(import_module(module), attribute)
        return self._rows[name]

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)
