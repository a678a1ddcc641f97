"""First error message of each kind of failed turn and of each other request, and first example of each remark. No I/O.

The kind is class of failure, HTTP status and class of turns; of a request that is not a turn, Locust's type and name. Their
number is bounded so that the result does not depend on the order of the errors nor on the workers that had them.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Struct, structs
from msgspec.structs import replace

from inferload.base.clock import NS_PER_S
from inferload.results.documents import summary_document
from inferload.results.documents.summary_document import FirstExample, RequestName
from inferload.results.verdict.failures import message
from inferload.turns.bounded_names import MOST_NAMES, OTHER_NAMES
from inferload.turns.record import TurnRecord
from inferload.turns.remarks import MEANINGS, Remark

MOST_KINDS = 30  # more than there are classes of failure and remarks
MOST_REQUESTS = 2 * MOST_NAMES  # workers count their first names, and these may differ

# Class of failure or remark, HTTP status, class of turns; an earlier end is the key of a coarser table.
Kind = tuple[str, int | None, str]
RequestKind = tuple[str, str]  # Locust's type and name


class FirstError(Struct, frozen=True):
    """First failed turn of a kind, or first failed request of a name. `at_ns`: its end, monotonic.

    A remark has neither status nor class of turns. `request`: of a request that is not a turn, which has only this as its kind.
    """

    failure: str
    status: int | None
    turn_class: str
    text: str
    at_ns: Annotated[int, msgspec.Meta(ge=-(1 << 62), le=1 << 62)]
    worker: str
    request: RequestKind | None = None

    @classmethod
    def of_request(cls, request: RequestKind, text: str, at_ns: int, worker: str) -> "FirstError":
        """Return the failure of a request that is not a turn."""
        return cls("", None, "", text, at_ns, worker, request)

    @property
    def kind(self) -> Kind:
        """Kind of the failure."""
        return self.failure, self.status, self.turn_class

    @property
    def order(self) -> tuple[object, ...]:
        """Key of a total order, earliest first, the same in every process."""
        return self.at_ns, self.failure, self.status or 0, self.turn_class, self.worker, self.text, self.request or ()


class FirstErrors:
    """Earliest error of each kind.

    There is a table of the classes of failure, one of these by status, and one of these by class of turns; each keeps its
    MOST_KINDS earliest errors. So many turns of one kind cannot displace the first of another class of failure, and a union of
    tables from several workers has the same contents in every order. A further table has the MOST_REQUESTS earliest errors of
    other requests.
    """

    def __init__(self) -> None:
        self._tables: tuple[dict[tuple[object, ...], FirstError], ...] = ({}, {}, {})
        self._requests: dict[tuple[object, ...], FirstError] = {}
        self._taken: set[FirstError] = set()

    def add_ended(self, record: TurnRecord, detail: str, examples: Mapping[Remark, str]) -> None:
        """Add the failure of an ended turn with its text, and the examples of its remarks."""
        if record.failure is not None and record.finished:
            self.add(_error(record, record.failure, record.status, record.class_name, detail))
        for remark in record.remarks:
            self.add(_error(record, remark, None, "", examples[remark]))

    def add(self, error: FirstError) -> None:
        """Store an error if it is the earliest of its kind."""
        known = self._tables[-1].get(error.kind) if error.request is None else self._requests.get(error.request)
        if known is not None and known.at_ns < error.at_ns:
            return
        error = replace(error, text=message(error.text))
        if error.request is not None:
            _keep(self._requests, error.request, error, MOST_REQUESTS)
            return
        for depth, table in enumerate(self._tables, start=1):
            _keep(table, error.kind[:depth], error, MOST_KINDS)

    def has_request(self, request: RequestKind) -> bool:
        """Return True if an error of the request is stored."""
        return request in self._requests

    def take(self) -> list[Any]:
        """Return the errors that no earlier call returned, in wire form."""
        errors = self.errors
        new = [error for error in errors if error not in self._taken]
        self._taken = set(errors)
        return [structs.asdict(error) for error in new]

    def absorb(self, wire: Sequence[Any], offset_ns: int = 0) -> None:
        """Add errors in wire form; ValueError if they are not. `offset_ns`: their clock minus this one."""
        for error in msgspec.convert(wire, list[FirstError]):
            self.add(replace(error, at_ns=error.at_ns - offset_ns))

    def to_wire(self) -> list[Any]:
        """Return plain values, for a message or a file."""
        return [structs.asdict(error) for error in self.errors]

    @property
    def errors(self) -> list[FirstError]:
        """Stored errors and examples of remarks, earliest first."""
        stored = {error for table in (*self._tables, self._requests) for error in table.values()}
        return sorted(stored, key=lambda error: error.order)

    @property
    def texts(self) -> dict[Kind, str]:
        """Message of each kind of failure."""
        return {error.kind: error.text for error in reversed(self._of_turns)}

    @property
    def _of_turns(self) -> list[FirstError]:
        return [error for error in self.errors if error.request is None and error.failure not in MEANINGS]

    def document(self, start_ns: int) -> list[summary_document.FirstError]:
        """Return the errors of turns as in summary.json, earliest first. `start_ns`: start of the run."""
        return [
            summary_document.FirstError(
                failure=error.failure,
                status=error.status,
                turn_class=error.turn_class,
                **structs.asdict(_example(error, start_ns)),
            )
            for error in self._of_turns
        ]

    def with_first(self, rows: Sequence[RequestName], start_ns: int) -> list[RequestName]:
        """Return the rows of other requests with the first error of each that has failures.

        A name that no row has was counted together with others, by the master or by a worker.
        """
        first: dict[RequestKind, FirstError] = {}
        known = {_request_of(row) for row in rows}
        for error in reversed(self.errors):
            if error.request is not None:
                first[error.request if error.request in known else (error.request[0], OTHER_NAMES)] = error
        errors = (first.get(_request_of(row)) if row.failed else None for row in rows)
        return [
            row if error is None else replace(row, first_error=_example(error, start_ns))
            for row, error in zip(rows, errors, strict=True)
        ]

    def remarks(self, start_ns: int) -> dict[str, FirstExample]:
        """Return the first example of each remark."""
        return {error.failure: _example(error, start_ns) for error in self.errors if error.failure in MEANINGS}


def _keep(table: dict[tuple[object, ...], FirstError], key: tuple[object, ...], error: FirstError, most: int) -> None:
    """Store an error if it is the earliest of its key, and at most the `most` earliest of all."""
    table[key] = min(error, table.get(key, error), key=lambda error: error.order)
    if len(table) > most:
        del table[max(table, key=lambda key: table[key].order)]


def _request_of(row: RequestName) -> RequestKind:
    return row.type or "", row.name


def _example(error: FirstError, start_ns: int) -> FirstExample:
    at_s = round((error.at_ns - start_ns) / NS_PER_S, 3)
    return FirstExample(text=error.text, at_s=at_s, worker=error.worker)


def _error(record: TurnRecord, failure: str, status: int | None, turn_class: str, text: str) -> FirstError:
    return FirstError(str(failure), status, turn_class, text, record.closed_ns, record.worker)
