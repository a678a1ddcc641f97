"""Failed turns and other requests of a run in words, and the time at which a server stopped answering. No I/O."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from inferload.base.escaping import escaped
from inferload.base.numbers import percent
from inferload.results.documents.summary_document import FirstError, RequestName, Results, Stopped
from inferload.turns.record import Failure
from inferload.turns.sketch import Floats

MOST_MESSAGES = 50  # stored messages of exceptions
MOST_CHARACTERS = 300  # of a stored message
_READ_CHARACTERS = 4 * MOST_CHARACTERS  # of an exception's text, which may have any length and many blanks
_MOST_NAMES = 20  # of other requests, with a line each
# Failures of a server that is down or hangs. A server that sends a status or an error event still answers.
_SILENT = [
    Failure.CONNECT.value, Failure.CUT.value, Failure.TIMEOUT_CONNECT.value, Failure.TIMEOUT_FIRST_EVENT.value,
    Failure.TIMEOUT_BETWEEN_EVENTS.value, Failure.TIMEOUT_TURN.value,
]  # fmt: skip
# The end of such a turn is no answer of the server.
_NO_ANSWER = [*_SILENT, Failure.UNFINISHED.value, Failure.CLIENT_ERROR.value, Failure.TLS.value]
_OWN_TEXT = ("CatchResponseError", "LocustError")  # exceptions of Locust: their text is the locustfile's own
_MOST_CLASSES = 3  # of turns, named with a message
_LEAST_TURNS = 2  # failures without an answer after the last answer


def message(text: str) -> str:
    """Return a server's message as one printable line of at most 300 characters."""
    line = escaped(text.strip())
    return line if len(line) <= MOST_CHARACTERS else line[: MOST_CHARACTERS - 3] + "..."


def exception_text(error: object) -> str:
    """Return an exception, or the text or value that stands for one, in a line of at most 1,200 characters, control characters
    included; never empty.

    As in a traceback, an exception has its type, unless its text is that of `failure("...")` in a locustfile.
    """
    kind = type(error).__name__
    try:
        text = str(error)
    except Exception:  # noqa: BLE001  a class of the locustfile can raise anything here
        return f"{kind} (its text cannot be read)"
    line = " ".join(text[: 2 * _READ_CHARACTERS].split())[:_READ_CHARACTERS]
    if isinstance(error, str) or (line and kind in _OWN_TEXT):
        return line or "failure without a message"
    return f"{kind}: {line}" if line else kind


def add_message(counts: Counter[str], text: str, count: int) -> None:
    """Count a message; beyond MOST_MESSAGES distinct messages, a new one is counted as `others`."""
    counts[text if text in counts or len(counts) < MOST_MESSAGES else "others"] += count


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

    def stopped(self, target: str) -> Stopped | None:
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
        by_failure = dict(zip(classes[order].tolist(), counts[order].tolist(), strict=True))
        return Stopped(target=target, at_s=round(last_s, 3), by_failure=by_failure)


def counts_by_name(counts: Mapping[str, int]) -> str:
    """`connect 37, cut 3`."""
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items(), key=lambda item: -item[1]))


def count_text(failed: int, ok: int) -> str:
    """`5 of 8 turns failed`, without unfinished turns, as `failed_ratio`."""
    return f"{failed} of {ok + failed} turns failed"


def lines(results: Results) -> list[str]:
    """Return the failed turns and other requests of a run in words; empty if none failed."""
    return [*turn_lines(results), *request_lines(results.other_requests.by_name)]


def request_lines(by_name: Sequence[RequestName]) -> list[str]:
    """Return a line for each failed request that is not a turn, with its first message; of many names, the most frequent."""
    failed = sorted((row for row in by_name if row.failed), key=lambda row: -(row.failed or 0))
    shown = failed if len(failed) <= _MOST_NAMES else failed[: _MOST_NAMES - 1]
    texts = [f"{row.failed} of {row.sent} {row.text} failed{_first_of(row)}" for row in shown]
    if more := failed[len(shown) :]:
        texts.append(f"{sum(row.failed or 0 for row in more)} requests of {len(more)} more names failed")
    return texts


def _first_of(row: RequestName) -> str:
    """`, first at 1.2 s on worker: message`; empty if the message is not known."""
    first = row.first_error
    return "" if first is None else f", first at {first.at_s:.1f} s{_of(first.worker)}: {message(first.text)}"


def turn_lines(results: Results) -> list[str]:
    """Return the failed turns of a run in words; empty if no turn failed."""
    turns = results.turns.whole_run
    if not turns.failed:
        return []
    by_failure = counts_by_name(turns.by_failure or results.turns.by_failure)
    count = f"{count_text(turns.failed, turns.ok)} ({percent(turns.failed / (turns.ok + turns.failed))}): {by_failure}"
    return [
        "; ".join([count, *_course(results)]),
        *(stopped_text(entry, results) for entry in results.stopped_answering or ()),
        *first_lines(results.turns.first_errors),
    ]


def in_short(results: Results) -> str:
    """Return when and why turns failed: servers that stopped answering, else their number; a message of the commonest class."""
    first, *others = turn_lines(results)
    if stopped := others[: len(results.stopped_answering or ())]:
        first = "; ".join([*stopped, *_course(results, whole=False)])
    by_failure = results.turns.whole_run.by_failure or results.turns.by_failure
    errors = [
        error for error in results.turns.first_errors if error.failure == max(by_failure, key=by_failure.__getitem__)
    ]
    message_of = [f"{kind_text(error)}: {message(error.text)}" for error in errors[:1]]
    return "; ".join([first, *message_of])


def _course(results: Results, *, whole: bool = True) -> list[str]:
    """Return the times of the first failure and of the last success, as far as they are known. `whole`: with the time of day."""
    first_s = min((error.at_s for error in results.turns.first_errors), default=None)
    at = "" if first_s is None else instant(results, first_s) if whole else f"{first_s:.1f} s"
    first = [f"first failure at {at}"] if at else []
    if not results.turns.whole_run.ok:
        return [*first, "no success"]
    last_s = results.turns.last_ok_s
    return first if last_s is None else [*first, f"last success at {last_s:.1f} s"]


def instant(results: Results, at_s: float) -> str:
    """Return an instant since the start of the run, with its place in the run and its time of day, as far as they are known."""
    places = []
    if (from_s := results.measure_from_s) is not None:
        into_s, ended = at_s - from_s, results.window_s is not None and at_s > from_s + results.window_s
        outside = "before the measure phase" if into_s < 0 else "after the measure phase" if ended else ""
        places.append(outside or f"{into_s:.1f} s into the measure phase")
    with suppress(ValueError, OverflowError):  # of a document of others
        at = datetime.fromisoformat(results.run.started_at or "") + timedelta(seconds=at_s)
        places += [] if results.run.clock == "virtual" else [f"{at.astimezone(UTC):%H:%M:%S} UTC"]
    return f"{at_s:.1f} s" + (f" ({', '.join(places)})" if places else "")


def first_lines(errors: Sequence[FirstError]) -> list[str]:
    """Return a line for each class of failure, HTTP status and message, with the classes of turns that had it."""
    alike: dict[tuple[str, str], list[FirstError]] = {}
    for error in errors:
        alike.setdefault((kind_text(error), error.text), []).append(error)
    return [
        f"first {kind}{_among(group)} at {group[0].at_s:.1f} s{_of(group[0].worker)}: {message(text)}"
        for (kind, text), group in alike.items()
    ]


def kind_text(error: FirstError) -> str:
    """Return class of failure and HTTP status, as `http_4xx 404`."""
    return f"{error.failure} {error.status or ''}".strip()


def _among(errors: Sequence[FirstError]) -> str:
    """` of chat, agent and 3 more classes`; empty if the class of turns is not known."""
    names = [error.turn_class for error in errors if error.turn_class]
    more = len(names) - _MOST_CLASSES
    return f" of {', '.join(names[:_MOST_CLASSES])}{f' and {more} more classes' if more > 0 else ''}" if names else ""


def stopped_text(entry: Stopped, results: Results) -> str:
    """Return an entry of `stopped_answering` in words."""
    at = instant(results, entry.at_s)
    return f"the server {entry.target} stopped answering at {at}: {counts_by_name(entry.by_failure)}"


def _of(worker: str | None) -> str:
    return f" on {worker}" if worker else ""


# Target, class of failure, last output event and end of some turns; None: of a turn that ended well, NaN: without an event.
TurnEnds = tuple[Iterable[str | None], Sequence[str | None], Floats, Floats]


class Answering(NamedTuple):
    """Servers that stopped answering, and the end of the last turn that ended well; None: no turn did."""

    stopped: list[Stopped]
    last_ok_s: float | None


def answering(batches: Iterable[TurnEnds]) -> Answering:
    """Return how the servers answered; only failures without an answer are kept in memory."""
    servers: dict[str, _Answers] = {}
    last_ok_s = -np.inf
    for targets, failures, heard_s, closed_s in batches:
        of = np.array([target or "" for target in targets], dtype=object)
        names = np.array([failure or "" for failure in failures], dtype=object)
        last_ok_s = max(last_ok_s, float(closed_s[names == ""].max(initial=-np.inf)))
        for target in set(of.tolist()):
            own = of == target
            servers.setdefault(target, _Answers()).add(names[own], heard_s[own], closed_s[own])
    found = [servers[target].stopped(target) for target in sorted(servers)]
    stopped = [each for each in found if each is not None]
    return Answering(stopped, round(last_ok_s, 3) if np.isfinite(last_ok_s) else None)
