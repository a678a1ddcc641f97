"""Notes on parts of a report that are left out because files of the run are damaged."""

from collections.abc import Callable
from typing import TypeVar

from inferload.base.errors import UsageError

Result = TypeVar("Result")

# Errors from documents with missing keys or values of other types.
_DAMAGED = (UsageError, KeyError, TypeError, ValueError, AttributeError, IndexError, ZeroDivisionError, OverflowError)


class Notes:
    """Collected notes on unreadable data."""

    def __init__(self, notes: tuple[str, ...] = ()) -> None:
        self._notes = list(notes)

    def unless_damaged(self, part: str, make: Callable[[], Result]) -> Result | None:
        """Return the result of `make`; None and a note on the part if the data is damaged."""
        try:
            return make()
        except _DAMAGED as error:
            self._notes.append(f"{part} is left out: damaged files ({type(error).__name__}: {error})")
            return None

    def all(self) -> tuple[str, ...]:
        """Return all notes without duplicates."""
        return tuple(dict.fromkeys(self._notes))
