"""Bound on the names that a run keeps apart: classes of turns, and names of other requests. No I/O."""

from collections.abc import Iterable

# A class of turns costs 7 ms and 7 kB of summary.json at the end of a run, a row of Locust's tables 30 us in each second.
MOST_NAMES = 200
OTHER_NAMES = "(other names)"  # a class of a turn has no blank, so that no task can use this one


class BoundedNames:
    """The first MOST_NAMES distinct names beside the known ones; further ones become OTHER_NAMES.

    `overflows`: number of calls with a further name.
    """

    def __init__(self, known: Iterable[str] = ()) -> None:
        self.overflows = 0
        self._names = set(known)
        self._most = MOST_NAMES + len(self._names)

    def of(self, name: str) -> str:
        """Return the name under which to count."""
        if name in self._names or name == OTHER_NAMES:
            return name
        if len(self._names) < self._most:
            self._names.add(name)
            return name
        self.overflows += 1
        return OTHER_NAMES


def overflow_text(what: str) -> str:
    """The warning of a process that meets more names of `what` than it keeps apart."""
    return f"more than {MOST_NAMES:,} names of {what}: further names are counted together, as {OTHER_NAMES!r}"
