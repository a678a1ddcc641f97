"""Bound on the distinct names of a run: classes of turns, and names of other requests."""

import logging
from collections.abc import Hashable, Iterable

logger = logging.getLogger(__name__)

# A class of turns costs 7 ms and 7 kB of summary.json at the end of a run, a row of Locust's tables 30 us in each second.
MOST_NAMES = 200
OTHER_NAMES = "(other names)"  # contains a blank, unlike a class of turns, so that no task can use it


class BoundedNames:
    """The first MOST_NAMES distinct names beside the known ones; further names become OTHER_NAMES.

    `overflows`: number of calls with a further name. `kind`: of what the names are; the first further one is a warning in the log.
    """

    def __init__(self, known: Iterable[Hashable] = (), kind: str = "") -> None:
        self.overflows = 0
        self._kind = kind
        self._names = set(known)
        self._most = MOST_NAMES + len(self._names)

    def admits(self, name: Hashable) -> bool:
        """Return True for a name that is counted by itself."""
        if name not in self._names:
            if len(self._names) >= self._most:
                self.overflows += 1
                if self._kind and self.overflows == 1:
                    text = "more than %s names of %s: further names are counted together, as %r"
                    logger.warning(text, f"{MOST_NAMES:,}", self._kind, OTHER_NAMES)
                return False
            self._names.add(name)
        return True

    def of(self, name: str) -> str:
        return name if name == OTHER_NAMES or self.admits(name) else OTHER_NAMES
