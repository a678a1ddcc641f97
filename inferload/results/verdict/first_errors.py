"""First error message of each kind of failed turn, and first example of each remark. No I/O.

The kind is class of failure, HTTP status and class of turns. Their number is bounded so that the result does not depend on the
order of the errors nor on the workers that had them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any

import msgspec

from inferload.base.clock import NS_PER_S
from inferload.results.documents import summary_document
from inferload.results.documents.summary_document import FirstExample
from inferload.results.verdict.failures import message
from inferload.turns.record import TurnRecord
from inferload.turns.remarks import MEANINGS, Remark

MOST_KINDS = 30  # more than there are classes of failure and remarks

# Class of failure or remark, HTTP status, class of turns; an earlier end is the key of a coarser table.
Kind = tuple[str, int | None, str]


@dataclass(frozen=True, slots=True)
class FirstError:
    """First failed turn of a kind. `at_ns`: its end, monotonic. A remark has neither status nor class of turns."""

    failure: str
    status: int | None
    turn_class: str
    text: str
    at_ns: Annotated[int, msgspec.Meta(ge=-(1 << 62), le=1 << 62)]
    worker: str

    @property
    def kind(self) -> Kind:
        """Kind of the failure."""
        return self.failure, self.status, self.turn_class

    @property
    def order(self) -> tuple[object, ...]:
        """Key of a total order, earliest first, the same in every process."""
        return self.at_ns, self.failure, self.status or 0, self.turn_class, self.worker, self.text


class FirstErrors:
    """Earliest error of each kind.

    There is a table of the classes of failure, one of these by status, and one of these by class of turns; each keeps its
    MOST_KINDS earliest errors. So many turns of one kind cannot displace the first of another class of failure, and a union of
    tables from several workers has the same contents in every order.
    """

    def __init__(self) -> None:
        self._tables: tuple[dict[tuple[object, ...], FirstError], ...] = ({}, {}, {})
        self._taken: set[FirstError] = set()

    def add_ended(self, record: TurnRecord, detail: str, examples: Mapping[Remark, str]) -> None:
        """Add the failure of an ended turn with its text, and the examples of its remarks."""
        if record.failure is not None and record.finished:
            self.add(_error(record, record.failure, record.status, record.class_name, detail))
        for remark in record.remarks:
            self.add(_error(record, remark, None, "", examples[remark]))

    def add(self, error: FirstError) -> None:
        """Store an error if it is the earliest of its kind."""
        known = self._tables[-1].get(error.kind)
        if known is not None and known.at_ns < error.at_ns:
            return
        error = replace(error, text=message(error.text))
        for depth, table in enumerate(self._tables, start=1):
            key = error.kind[:depth]
            table[key] = min(error, table.get(key, error), key=lambda error: error.order)
            if len(table) > MOST_KINDS:
                del table[max(table, key=lambda key: table[key].order)]

    def take(self) -> list[Any]:
        """Return the errors that no earlier call returned, in wire form."""
        errors = self.errors
        new = [error for error in errors if error not in self._taken]
        self._taken = set(errors)
        return [asdict(error) for error in new]

    def absorb(self, wire: Sequence[Any], offset_ns: int = 0) -> None:
        """Add errors in wire form; ValueError if they are not. `offset_ns`: their clock minus this one."""
        for error in msgspec.convert(wire, list[FirstError]):
            self.add(replace(error, at_ns=error.at_ns - offset_ns))

    def to_wire(self) -> list[Any]:
        """Return plain values, for a message or a file."""
        return [asdict(error) for error in self.errors]

    @property
    def errors(self) -> list[FirstError]:
        """Stored errors and examples of remarks, earliest first."""
        stored = {error for table in self._tables for error in table.values()}
        return sorted(stored, key=lambda error: error.order)

    @property
    def texts(self) -> dict[Kind, str]:
        """Message of each kind of failure."""
        return {error.kind: error.text for error in reversed(self.errors) if error.failure not in MEANINGS}

    def document(self, start_ns: int) -> list[summary_document.FirstError]:
        """Return the errors as in summary.json, earliest first. `start_ns`: start of the run."""
        return [
            summary_document.FirstError(
                failure=error.failure,
                status=error.status,
                turn_class=error.turn_class,
                text=error.text,
                at_s=_at_s(error, start_ns),
                worker=error.worker,
            )
            for error in self.errors
            if error.failure not in MEANINGS
        ]

    def remarks(self, start_ns: int) -> dict[str, FirstExample]:
        """Return the first example of each remark."""
        return {
            error.failure: FirstExample(text=error.text, at_s=_at_s(error, start_ns), worker=error.worker)
            for error in self.errors
            if error.failure in MEANINGS
        }


def _at_s(error: FirstError, start_ns: int) -> float:
    return round((error.at_ns - start_ns) / NS_PER_S, 3)


def _error(record: TurnRecord, failure: str, status: int | None, turn_class: str, text: str) -> FirstError:
    return FirstError(str(failure), status, turn_class, text, record.closed_ns, record.worker)
