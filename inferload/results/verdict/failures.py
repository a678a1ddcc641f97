"""Failed turns of a run in words, and the time at which a server stopped answering. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from inferload.base.escaping import escaped
from inferload.base.numbers import percent
from inferload.turns.record import Failure

MOST_MESSAGES = 50  # stored messages of exceptions
MOST_CHARACTERS = 300  # of a stored message
# Failures of a server that is down or hangs. A server that sends a status or an error event still answers.
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
_MOST_CLASSES = 3  # of turns, named with a message
_LEAST_TURNS = 2  # failures without an answer after the last answer

Floats = npt.NDArray[np.float64]


def message(text: str) -> str:
    """Return a server's message as one printable line of at most 300 characters."""
    line = escaped(text.strip())
    return line if len(line) <= MOST_CHARACTERS else line[: MOST_CHARACTERS - 3] + "..."


def add_message(counts: Counter[str], text: str, count: int) -> None:
    """Count a message; beyond MOST_MESSAGES distinct messages, a new one is counted as `others`."""
    counts[text if text in counts or len(counts) < MOST_MESSAGES else "others"] += count


@dataclass(frozen=True, slots=True)
class Stopped:
    """Server that stopped answering. `at_s`: its last answer. `by_failure`: failed turns after it."""

    at_s: float
    by_failure: Mapping[str, int]


class _Answers:
    """Last answer of a server, and its failures without an answer."""

    def __init__(self) -> None:
        self._last_s = np.nan
        self._silent_s: list[Floats] = [np.zeros(0)]
        self._names: list[npt.NDArray[np.object_]] = [np.zeros(0, dtype=object)]

    def add(self, names: npt.NDArray[np.object_], heard_s: Floats, closed_s: Floats) -> None:
        """Add turns. `names`: classes of failure, empty if a turn ended well."""
        silent = np.isin(names, _SILENT)
        answered_s = np.where(np.isin(names, _NO_ANSWER), heard_s, closed_s)
        self._last_s = float(np.fmax.reduce(answered_s, initial=self._last_s))
        self._silent_s.append(closed_s[silent])
        self._names.append(names[silent])

    def stopped(self) -> Stopped | None:
        """Find the time at which the server stopped answering."""
        silent_s = np.concatenate(self._silent_s)
        if not len(silent_s):
            return None
        last_s = float(silent_s.min()) if np.isnan(self._last_s) else self._last_s
        after = silent_s >= last_s
        if np.count_nonzero(after) < _LEAST_TURNS:
            return None
        classes, counts = np.unique(np.concatenate(self._names)[after].astype(str), return_counts=True)
        order = np.argsort(-counts, kind="stable")
        return Stopped(last_s, {str(classes[index]): int(counts[index]) for index in order})


def stopped_answering(failures: Sequence[str | None], heard_s: Floats, closed_s: Floats) -> Stopped | None:
    """Find the time at which a server stopped answering; None if it answered to the end, or failed in another way.

    Per turn: class of failure, None if it ended well; last output event, NaN without one; end.
    """
    answers = _Answers()
    answers.add(np.array([failure or "" for failure in failures], dtype=object), heard_s, closed_s)
    return answers.stopped()


def counts_by_name(counts: Mapping[str, int]) -> str:
    """`connect 37, cut 3`."""
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items(), key=lambda item: -item[1]))


def count_text(failed: int, ok: int) -> str:
    """`5 of 8 turns failed`, without unfinished turns, as `failed_ratio`."""
    return f"{failed} of {ok + failed} turns failed"


def lines(summary: Mapping[str, Any]) -> list[str]:
    """Return the failures of a run in words, from its summary; empty if no turn failed."""
    turns = summary.get("turns") or {}
    everything = (turns.get("by_phase") or {}).get("all") or turns
    failed, ok = everything.get("failed") or 0, everything.get("ok") or 0
    if not failed:
        return []
    by_failure = everything.get("by_failure") or turns.get("by_failure") or {}
    texts = [f"{count_text(failed, ok)} ({percent(failed / (ok + failed))}): {counts_by_name(by_failure)}"]
    texts += [stopped_text(entry) for entry in summary.get("stopped_answering") or ()]
    return texts + first_lines(turns.get("first_errors") or ())


def first_lines(errors: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for each class of failure, HTTP status and message, with the classes of turns that had it.

    `errors`: `first_errors` of summary.json.
    """
    alike: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for error in errors:
        alike.setdefault((kind_text(error), str(error["text"])), []).append(error)
    return [
        f"first {kind}{_among(group)} at {group[0]['at_s']:.1f} s{_of(group[0].get('worker'))}: {message(text)}"
        for (kind, text), group in alike.items()
    ]


def kind_text(error: Mapping[str, Any]) -> str:
    """Return class of failure and HTTP status of an entry of `first_errors`, as `http_4xx 404`."""
    return f"{error['failure']} {error.get('status') or ''}".strip()


def _among(errors: Sequence[Mapping[str, Any]]) -> str:
    """` of chat, agent and 3 more classes`; empty if the class of turns is not known."""
    names = [str(error["class"]) for error in errors if error.get("class")]
    more = len(names) - _MOST_CLASSES
    return f" of {', '.join(names[:_MOST_CLASSES])}{f' and {more} more classes' if more > 0 else ''}" if names else ""


def stopped_text(entry: Mapping[str, Any]) -> str:
    """Return an entry of `stopped_answering` in words."""
    return f"the server {entry['target']} stopped answering at {entry['at_s']:.1f} s: {counts_by_name(entry['by_failure'])}"


def _of(worker: object) -> str:
    return f" on {worker}" if worker else ""


def stopped_by_target(
    targets: Iterable[str | None], failures: Sequence[str | None], heard_s: Floats, closed_s: Floats
) -> list[dict[str, Any]]:
    """Return the `stopped_answering` block of summary.json; arguments as of `stopped_answering`."""
    return stopped_by_target_of([(targets, failures, heard_s, closed_s)])


# Target, class of failure, last output event and end of some turns.
TurnEnds = tuple[Iterable[str | None], Sequence[str | None], Floats, Floats]


def stopped_by_target_of(batches: Iterable[TurnEnds]) -> list[dict[str, Any]]:
    """Return `stopped_by_target` of turns in batches; only failures without an answer are kept in memory."""
    servers: dict[str, _Answers] = {}
    for targets, failures, heard_s, closed_s in batches:
        of = np.array([target or "" for target in targets], dtype=object)
        names = np.array([failure or "" for failure in failures], dtype=object)
        for target in set(of.tolist()):
            own = of == target
            servers.setdefault(target, _Answers()).add(names[own], heard_s[own], closed_s[own])
    entries = []
    for target in sorted(servers):
        stopped = servers[target].stopped()
        if stopped is not None:
            at_s, counts = round(stopped.at_s, 3), dict(stopped.by_failure)
            entries.append({"target": target, "at_s": at_s, "by_failure": counts})
    return entries
