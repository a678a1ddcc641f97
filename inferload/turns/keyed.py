"""Mergeable records by key: the sets of counts whose deltas workers send, and which the master adds up."""

from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar


class Mergeable(Protocol):
    """Record that takes in another one, which stays unchanged."""

    def absorb(self, other: Any, /) -> None: ...


Key = TypeVar("Key")
Record = TypeVar("Record", bound=Mergeable)


class Keyed(Generic[Key, Record]):
    """Records by key. Merging is associative and commutative; `take` returns deltas. `new`: makes an empty record."""

    __slots__ = ("_records",)
    new: ClassVar[Any]

    def __init__(self) -> None:
        self._records: dict[Key, Record] = {}

    def of_key(self, key: Key) -> Record:
        """Return the record of a key, created on first use."""
        record = self._records.get(key)
        if record is None:
            record = self._records[key] = self.new()
        return record

    def absorb(self, other: Self) -> None:
        """Add another set, which stays unchanged."""
        for key, record in other._records.items():
            self.of_key(key).absorb(record)

    def take(self) -> Self:
        """Return the records since the last call, and empty this set."""
        taken = type(self)()
        taken._records, self._records = self._records, {}
        return taken

    def __eq__(self, other: object) -> bool:
        return self._records == other._records if isinstance(other, type(self)) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # mutable
