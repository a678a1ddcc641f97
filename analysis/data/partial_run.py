"""Parts of a report that cannot be made of a damaged run: left out, and said, where all else of the page still holds."""

from collections.abc import Callable
from typing import TypeVar

Made = TypeVar("Made")

# What reading a document brings that lacks a key, or has another kind of value there.
_NOT_AS_WRITTEN = (KeyError, TypeError, ValueError, AttributeError, IndexError, ZeroDivisionError, OverflowError)


class Notes:
    """What this report could not read, in the order in which it was met."""

    def __init__(self, notes: tuple[str, ...] = ()) -> None:
        self._notes = list(notes)

    def unless_damaged(self, what: str, make: Callable[[], Made]) -> Made | None:
        """What `make` makes; None, and a note that names the part, where the run's files do not carry it."""
        try:
            return make()
        except _NOT_AS_WRITTEN as error:
            self._notes.append(
                f"{what} is left out: the run's files are not as a run writes them ({type(error).__name__}: {error})"
            )
            return None

    def all(self) -> tuple[str, ...]:
        """Each once."""
        return tuple(dict.fromkeys(self._notes))
