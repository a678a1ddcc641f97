"""Failed turns of a run: the first error message of each class, and the time at which a server stopped answering. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from inferload.escaping import escaped
from inferload.measure.record import Failure
from inferload.numbers import percent

MOST_MESSAGES = 50  # different messages of exceptions that are kept
MOST_CHARACTERS = 300  # of a message that is kept
# Classes of a server that is gone or hangs. A server that sends a status or an error event still answers.
_SILENT = [
    Failure.CONNECT.value,
    Failure.CUT.value,
    Failure.TIMEOUT_CONNECT.value,
    Failure.TIMEOUT_FIRST_EVENT.value,
    Failure.TIMEOUT_BETWEEN_EVENTS.value,
    Failure.TIMEOUT_TURN.value,
]
# The end of such a turn is no answer of the server.
_NO_ANSWER = [*_SILENT, Failure.UNFINISHED.value, Failure.CLIENT_ERROR.value, Failure.TLS.value]
_LEAST_TURNS = 2  # that fail without an answer after the last answer

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class FirstError:
    """The first failed turn of a class. `at_ns`: when it ended, monotonic."""

    text: str
    at_ns: int
    worker: str


class FirstErrors:
    """The earliest error of each class of failure."""

    def __init__(self) -> None:
        self._found: dict[str, FirstError] = {}
        self._taken: set[str] = set()

    def add(self, failure: str, text: str, at_ns: int, worker: str) -> None:
        """Keep an error if it is the earliest of its class."""
        known = self._found.get(failure)
        if known is None or at_ns < known.at_ns:
            self._found[failure] = FirstError(message(text), at_ns, worker)

    def take(self) -> dict[str, Any]:
        """In wire form, the classes that were not taken before."""
        taken = {failure: error for failure, error in self.to_wire().items() if failure not in self._taken}
        self._taken.update(taken)
        return taken

    def absorb(self, wire: Mapping[str, Mapping[str, Any]], offset_ns: int = 0) -> None:
        """Add errors in wire form. `offset_ns`: their clock minus this one."""
        for failure, error in wire.items():
            self.add(str(failure), str(error["text"]), int(error["at_ns"]) - offset_ns, str(error["worker"]))

    def to_wire(self) -> dict[str, Any]:
        """Plain values, for a message or a file."""
        return {failure: asdict(error) for failure, error in self._found.items()}

    @property
    def texts(self) -> dict[str, str]:
        """The message of each class."""
        return {failure: error.text for failure, error in self._found.items()}

    def document(self, start_ns: int) -> dict[str, Any]:
        """As it stands in summary.json, earliest first. `start_ns`: when the run began."""
        return {
            failure: {"text": error.text, "at_s": round((error.at_ns - start_ns) / 1e9, 3), "worker": error.worker}
            for failure, error in sorted(self._found.items(), key=lambda item: item[1].at_ns)
        }


def message(text: str) -> str:
    """A message of a server as one printable line of at most 300 characters."""
    line = escaped(text.strip())
    return line if len(line) <= MOST_CHARACTERS else line[: MOST_CHARACTERS - 3] + "..."


def add_message(counts: Counter[str], text: str, count: int) -> None:
    """Count a message; beyond MOST_MESSAGES different ones, a new one is counted as `others`."""
    counts[text if text in counts or len(counts) < MOST_MESSAGES else "others"] += count


@dataclass(frozen=True, slots=True)
class Stopped:
    """A server that stopped answering. `at_s`: its last answer. `by_failure`: turns that failed from then on."""

    at_s: float
    by_failure: Mapping[str, int]


def stopped_answering(failures: Sequence[str | None], heard_s: Floats, closed_s: Floats) -> Stopped | None:
    """When one server stopped answering for good; None if it answered to the end, or failed in another way.

    Per turn: its class of failure, None if it ended well; its last output event, NaN if there was none; its end.
    """
    names = np.array([failure or "" for failure in failures], dtype=object)
    silent = np.isin(names, _SILENT)
    answered_s = np.where(np.isin(names, _NO_ANSWER), heard_s, closed_s)
    if not silent.any():
        return None
    none = bool(np.isnan(answered_s).all())
    last_s = float(closed_s[silent].min() if none else np.nanmax(answered_s))
    after = silent & (closed_s >= last_s)
    if np.count_nonzero(after) < _LEAST_TURNS:
        return None
    classes, counts = np.unique(names[after].astype(str), return_counts=True)
    order = np.argsort(-counts, kind="stable")
    return Stopped(last_s, {str(classes[place]): int(counts[place]) for place in order})


def failed_text(by_failure: Mapping[str, int]) -> str:
    """`connect 37, cut 3`."""
    return ", ".join(f"{name} {count}" for name, count in sorted(by_failure.items(), key=lambda item: -item[1]))


def share_text(failed: int, finished: int) -> str:
    """`26 of 26 turns failed (100 %)`."""
    return f"{failed} of {finished} turns failed ({percent(failed / finished if finished else 0.0)})"


def lines(summary: Mapping[str, Any]) -> list[str]:
    """The failures of a run in words, from its summary; empty if no turn failed."""
    turns = summary.get("turns") or {}
    everything = (turns.get("by_phase") or {}).get("all") or turns
    failed = everything.get("failed") or 0
    if not failed:
        return []
    by_failure = everything.get("by_failure") or turns.get("by_failure") or {}
    said = [f"{share_text(failed, failed + (everything.get('ok') or 0))}: {failed_text(by_failure)}"]
    said += [stopped_text(one) for one in summary.get("stopped_answering") or ()]
    said += [
        f"first {failure} at {error['at_s']:.1f} s{_of(error.get('worker'))}: {message(str(error['text']))}"
        for failure, error in (turns.get("first_errors") or {}).items()
    ]
    return said


def stopped_text(one: Mapping[str, Any]) -> str:
    """An entry of `stopped_answering` in words."""
    return f"the server {one['target']} stopped answering at {one['at_s']:.1f} s: {failed_text(one['by_failure'])}"


def _of(worker: object) -> str:
    return f" on {worker}" if worker else ""


def stopped_by_target(
    targets: Iterable[str | None], failures: Sequence[str | None], heard_s: Floats, closed_s: Floats
) -> list[dict[str, Any]]:
    """Each server that stopped answering, as it stands in summary.json; arguments as of `stopped_answering`."""
    of = np.array([target or "" for target in targets], dtype=object)
    found = []
    for target in sorted(set(of.tolist())):
        own = np.flatnonzero(of == target)
        stopped = stopped_answering([failures[place] for place in own.tolist()], heard_s[own], closed_s[own])
        if stopped is not None:
            at_s, counts = round(stopped.at_s, 3), dict(stopped.by_failure)
            found.append({"target": target, "at_s": at_s, "by_failure": counts})
    return found
