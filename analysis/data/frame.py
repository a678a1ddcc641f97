"""Frames: named columns of equal length, as arrays. Unknown is NaN in a column of numbers, and None in one of texts."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from inferload.figures.turn_values import coded
from inferload.turns.sketch import Bools, Floats

Column = npt.NDArray[Any]


class Frame:
    """Rows with named columns, in order. `frame["name"]` is a column; `frame[rows]` a frame of a slice, a mask or indexes."""

    def __init__(self, columns: Mapping[str, npt.ArrayLike]) -> None:
        self._columns = {name: np.asarray(column) for name, column in columns.items()}
        lengths = {len(column) for column in self._columns.values()}
        if len(lengths) > 1:
            raise ValueError(f"columns of {len(lengths)} lengths")
        self._rows = lengths.pop() if lengths else 0

    def __len__(self) -> int:
        return self._rows

    def __iter__(self) -> Iterator[str]:
        """Yield the names of the columns."""
        return iter(self._columns)

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    @overload
    def __getitem__(self, chosen: str) -> Column: ...
    @overload
    def __getitem__(self, chosen: slice | Column | Sequence[int]) -> "Frame": ...
    def __getitem__(self, chosen: str | slice | Column | Sequence[int]) -> "Column | Frame":
        if isinstance(chosen, str):
            return self._columns[chosen]
        rows = np.array(chosen, dtype=np.int64) if isinstance(chosen, list) else chosen
        return Frame({name: column[rows] for name, column in self._columns.items()})

    def numbers(self, name: str) -> Floats:
        """Return a column as floats; NaN for all rows if there is no such column."""
        return np.asarray(self._columns.get(name, np.full(self._rows, np.nan)), dtype=np.float64)

    def texts(self, name: str, otherwise: str | None = None) -> Column:
        """Return a column of texts; `otherwise` for all rows if there is no such column."""
        return self._columns.get(name, np.full(self._rows, otherwise, dtype=object))

    def with_columns(self, columns: Mapping[str, npt.ArrayLike]) -> "Frame":
        """Return the frame with more columns, or others in place of its own."""
        return Frame({**self._columns, **columns})

    def sorted_by(self, name: str) -> "Frame":
        """Return the rows in the order of a column of numbers, unknown ones last; rows of one number stay in order."""
        return self[np.argsort(self._columns[name], kind="stable")]

    def items(self) -> Iterable[tuple[str, Column]]:
        return self._columns.items()


def concat(frames: Sequence[Frame]) -> Frame:
    """Return the rows of several frames; unknown in a column that a frame lacks."""
    columns = {}
    for name in dict.fromkeys(chain(*frames)):
        own = [frame[name] for frame in frames if name in frame]
        if len(own) < len(frames):
            of_texts = own[0].dtype == object
            own = [frame.texts(name) if of_texts else frame.numbers(name) for frame in frames]
        columns[name] = np.concatenate(own)
    return Frame(columns)


def known(column: Column) -> Bools:
    """Return True for each value that is known."""
    if column.dtype == object:
        return np.array([value is not None for value in column], dtype=np.bool_)
    return ~np.isnan(column)


def mean(column: Column) -> float:
    """Return the mean of the known values; NaN without any."""
    values = column[known(column)]
    return float(values.mean()) if len(values) else float("nan")


def last_known(column: Floats) -> Floats:
    """Return for each row the latest known value up to it; NaN before the first."""
    return column[np.maximum.accumulate(np.where(np.isnan(column), 0, np.arange(len(column))))]


def rows_by_text(column: Column) -> dict[str | None, npt.NDArray[np.int64]]:
    """Return the rows of each text of a column, by text; those of None, if any, come last."""
    codes: dict[str | None, int] = {}
    code = coded(pa.array(column, pa.string()), codes)
    rows = np.split(np.argsort(code, kind="stable"), np.cumsum(np.bincount(code, minlength=len(codes)))[:-1])
    return {text: rows[codes[text]] for text in sorted(codes, key=lambda text: (text is None, text or ""))}
