"""Rows of integers by group: the positions of a file's records, and what is known of them, by session. No I/O."""

from array import array
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
from msgspec import Struct

Ints = npt.NDArray[np.int64]


class Grouped(Struct, frozen=True):
    """Rows of several columns; group g has the rows firsts[g] : firsts[g + 1]."""

    rows: Ints
    firsts: Ints

    @classmethod
    def of(cls, groups: "Iterable[array[int]]", columns: int) -> "Grouped":
        """Return the rows of groups, each given as arrays of its rows one after the other."""
        whole, ends = array("q"), array("q", [0])
        for group in groups:
            whole.extend(group)
            ends.append(len(whole) // columns)
        return cls(np.asarray(whole).reshape(-1, columns), np.asarray(ends))

    def __len__(self) -> int:
        return len(self.firsts) - 1

    def __getitem__(self, group: int) -> list[list[int]]:
        """Return the rows of a group, in order."""
        rows: list[list[int]] = self.rows[self.firsts[group] : self.firsts[group + 1]].tolist()
        return rows

    def first(self, column: int) -> Ints:
        """Return a column of the first row of each group."""
        values: Ints = self.rows[self.firsts[:-1], column]
        return values

    def sums(self, column: int) -> Ints:
        """Return the sum of a column in each group."""
        sums: Ints = np.diff(np.concatenate(([0], np.cumsum(self.rows[:, column])))[self.firsts])
        return sums
