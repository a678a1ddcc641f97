"""Samples of all scrapes by target and metric, in a memory that does not grow with their number.

The samples of one metric between two instants are a compressed block; blocks beyond a size are in a temporary file. A metric
is read when it is used, and the latest ones are kept.
"""

import tempfile
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Generic, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Struct, field

from inferload.base import json_text
from inferload.base.arrow import pa
from inferload.base.errors import UsageError
from inferload.figures.pages.page_kinds import PageKind
from inferload.figures.pages.page_names import kind_of
from inferload.figures.servers.server_formulas import Floats
from inferload.servers.exposition import TOO_LARGE

Instants = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
# Values of a series at each scrape, NaN without a usable one, and the mask of unusable ones; None: no such scrape.
Grid = tuple[Floats, Bools | None]

_ROWS = 120_000  # samples that are compressed together
_IN_MEMORY_BYTES = 4 << 20  # of compressed blocks; with more, all are in a temporary file
_MOST_ARRAYS = 64  # of the instants of a target, before they are joined
_CODEC = "zstd"
_UNUSABLE = np.inf  # in a block, where NaN is a sample that the page lacks

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class Recent(Generic[_Key, _Value], Struct):
    """Latest results by key, up to a total size; the newest two are kept in any case."""

    size_of: Callable[[_Value], int]
    most: int = 1 << 19  # numbers, of 8 bytes
    _kept: OrderedDict[_Key, _Value] = field(default_factory=OrderedDict)
    _size: int = 0

    def get(self, key: _Key, make: Callable[[], _Value]) -> _Value:
        """Return the result of a key; `make` computes one that is not kept."""
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        value = make()
        self._kept[key] = value
        self._size += self.size_of(value)
        while self._size > self.most and len(self._kept) > 2:
            self._size -= self.size_of(self._kept.popitem(last=False)[1])
        return value


class _Block(Struct, frozen=True):
    """Place of a compressed block: a row per series, a column per instant. `round`: of the instants of its target."""

    round: int
    rows: int
    begin: int
    size: int


class ScrapeStore:
    """Samples of several targets: `add` all tables (SCHEMA of `scrapes_file`), then `flush`, then read.

    `wanted`: metrics whose samples are kept, by their names on the page. ValueError for labels that are no JSON object of texts.
    """

    def __init__(self, wanted: Callable[[str], bool] = lambda metric: True) -> None:
        self._wanted = wanted
        self._waiting: list[pa.Table] = []
        self._rows = 0  # of these
        self._scraped: dict[str, list[Instants]] = {}  # instants of all scrapes of a target
        self._columns: dict[str, list[Instants]] = {}  # instants of its blocks, by round, ascending
        self._blocks: dict[str, dict[str, list[_Block]]] = {}
        self._numbers: dict[str, int] = {}  # of the texts of labels
        self._kinds: dict[str, PageKind] = {}  # of targets
        self._unknown: dict[str, set[tuple[str, str]]] = {}  # series of targets of no known kind
        self._labels: list[dict[str, str]] = []
        self._file = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES)  # noqa: SIM115  lives as long as the store
        self._end = 0
        weakref.finalize(self, self._file.close)

    def add(self, table: pa.Table) -> None:
        """Add the samples of wanted metrics, and the instants of all."""
        for batch in table.to_batches():
            if not len(batch):
                continue
            self._note_instants(batch)
            self._note_kinds(batch)
            metric = batch.column("metric")
            wanted = np.array([self._wanted(name) for name in metric.dictionary.to_pylist()], dtype=np.bool_)
            rows = np.flatnonzero(wanted[metric.indices.to_numpy()])
            kept = batch if len(rows) == len(batch) else batch.take(pa.array(rows, pa.int64()))
            if len(kept):
                self._waiting.append(pa.Table.from_batches([kept]))
                self._rows += len(kept)
            if self._rows >= _ROWS:
                self.flush()

    def flush(self) -> None:
        """Compress the samples that were added last."""
        waiting, self._waiting, self._rows = self._waiting, [], 0
        if not waiting:
            return
        (batch,) = pa.concat_tables(waiting).unify_dictionaries().combine_chunks().to_batches()
        target, metric, labels = (batch.column(name) for name in ("target", "metric", "labels"))
        target_of, metric_of = (column.indices.to_numpy().astype(np.int64) for column in (target, metric))
        number_of = np.array([self._number(text) for text in labels.dictionary.to_pylist()], dtype=np.int32)
        series, wall_ns = number_of[labels.indices.to_numpy()], batch.column("wall_ns").to_numpy()
        values = batch.column("value").to_numpy()
        values = np.where(np.abs(values) < TOO_LARGE, values, _UNUSABLE)  # NaN is not usable either
        columns: dict[int, Instants] = {}
        for rows in _groups(target_of * len(metric.dictionary) + metric_of):
            server, name = int(target_of[rows[0]]), metric.dictionary[int(metric_of[rows[0]])].as_py()
            address = target.dictionary[server].as_py()
            if server not in columns:
                columns[server] = np.unique(wall_ns[target_of == server])
                self._columns.setdefault(address, []).append(columns[server])
            place = len(self._columns[address]) - 1
            block = self._write(columns[server], series[rows], wall_ns[rows], values[rows], place)
            self._blocks.setdefault(address, {}).setdefault(name, []).append(block)

    def targets(self) -> list[str]:
        """Return the targets, sorted."""
        return sorted(self._scraped)

    def metrics(self, target: str) -> list[str]:
        """Return the wanted metrics of a target."""
        return list(self._blocks.get(target, ()))

    def kind(self, target: str) -> PageKind | None:
        """Return the kind of a target's page, by all its metrics; None if it is not known."""
        return self._kinds.get(target)

    def unknown(self, target: str) -> int:
        """Return the number of series of a target of no known kind; 0 for others."""
        return 0 if target in self._kinds else len(self._unknown.get(target, ()))

    def instants(self, target: str) -> Instants:
        """Return the instants of all scrapes of a target, ascending."""
        self._scraped[target] = [np.unique(np.concatenate(self._scraped[target]))]
        return self._scraped[target][0]

    def grids(self, target: str, metric: str) -> Iterator[tuple[Mapping[str, str], Grid]]:
        """Yield the labels and the values of each series of a metric, on the grid of `instants`."""
        instants = self.instants(target)
        found: dict[int, Floats] = {}
        for block in self._blocks.get(target, {}).get(metric, ()):
            columns = self._columns[target][block.round]
            at = np.searchsorted(instants, columns)
            for number, row in self._read(block, len(columns)):
                grid = found.setdefault(number, np.full(len(instants), np.nan))
                sampled = ~np.isnan(row)
                grid[at[sampled]] = row[sampled]
        for number, grid in found.items():
            unusable = np.isinf(grid)
            grid[unusable] = np.nan
            yield self._labels[number], (grid, unusable if unusable.any() else None)

    def _number(self, text: str) -> int:
        if text not in self._numbers:
            self._labels.append(msgspec.convert(json_text.parse(text), dict[str, str]))
            self._numbers[text] = len(self._numbers)
        return self._numbers[text]

    def _note_kinds(self, batch: pa.RecordBatch) -> None:
        """Note the kinds of targets that are not known yet, or their series, those of our own left out."""
        target, metric, labels = (batch.column(name) for name in ("target", "metric", "labels"))
        target_of, metric_of, labels_of = (
            each.indices.to_numpy().astype(np.int64) for each in (target, metric, labels)
        )
        for number, address in enumerate(target.dictionary.to_pylist()):
            if address not in self._kinds:
                # Each series has many rows.
                pairs = np.unique((metric_of * len(labels.dictionary) + labels_of)[target_of == number])
                places = (divmod(int(pair), len(labels.dictionary)) for pair in pairs)
                found = ((metric.dictionary[name].as_py(), labels.dictionary[text].as_py()) for name, text in places)
                series = {each for each in found if not each[0].startswith("inferload_scrape")}
                kind = kind_of({name for name, _labels in series})
                if kind is None:
                    self._unknown.setdefault(address, set()).update(series)
                else:
                    self._kinds[address] = kind

    def _note_instants(self, batch: pa.RecordBatch) -> None:
        """Add the instants of a batch, whose rows are page by page."""
        wall_ns, target = batch.column("wall_ns").to_numpy(), batch.column("target")
        target_of = target.indices.to_numpy()
        first = np.flatnonzero(np.r_[True, (np.diff(wall_ns) != 0) | (np.diff(target_of) != 0)])
        for number, address in enumerate(target.dictionary.to_pylist()):
            of_target = first[target_of[first] == number]
            if len(of_target):
                known = self._scraped.setdefault(address, [])
                known.append(np.unique(wall_ns[of_target]))
                if len(known) > _MOST_ARRAYS:
                    self.instants(address)

    def _write(
        self, columns: Instants, series: npt.NDArray[np.int32], wall_ns: Instants, values: Floats, at: int
    ) -> _Block:
        numbers, row_of = np.unique(series, return_inverse=True)
        matrix = np.full((len(numbers), len(columns)), np.nan)
        matrix[row_of, np.searchsorted(columns, wall_ns)] = values
        content = pa.compress(numbers.tobytes() + matrix.tobytes(), codec=_CODEC, asbytes=True)
        block = _Block(at, len(numbers), self._end, len(content))
        try:
            self._file.seek(self._end)
            self._file.write(content)
        except OSError as error:
            raise UsageError(
                f"{tempfile.gettempdir()}: no room for {self._end + len(content)} bytes of scrapes ({error.strerror}); "
                "name another folder with TMPDIR"
            ) from error
        self._end += len(content)
        return block

    def _read(self, block: _Block, columns: int) -> Iterator[tuple[int, Floats]]:
        """Yield number and values of each series of a block."""
        self._file.seek(block.begin)
        sizes = (4 * block.rows, 8 * block.rows * columns)
        content = pa.decompress(self._file.read(block.size), sum(sizes), codec=_CODEC, asbytes=True)
        numbers = np.frombuffer(content, dtype=np.int32, count=block.rows)
        matrix = np.frombuffer(content[sizes[0] :], dtype=np.float64).reshape(block.rows, columns)
        return zip(numbers.tolist(), matrix, strict=True)


def _groups(codes: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int64]]:
    """Return the rows of each code."""
    order = np.argsort(codes, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(codes[order])) + 1)
