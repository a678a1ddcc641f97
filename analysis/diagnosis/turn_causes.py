"""Causes that the records of turns show without a metrics page: refused prompts, requests that wait for each other, and failures
that the server does not know of. No I/O.
"""

import re
from dataclasses import dataclass

import numpy as np

from inferload.results.documents.summary_document import FirstError, Results
from inferload.turns.record import Failure
from inferload.turns.sketch import Floats

# Statuses that a busy server answers.
_BUSY = (408, 425, 429)
# Refusals of too long prompts, in the words of vLLM, SGLang, TGI, TensorRT-LLM, llama.cpp, OpenAI and gateways, some with a 5xx
# status or in an event of the stream.
_TOO_LONG = re.compile(
    r"context[ _-]?(length|size|window)|max_model_len|max_seq_len|exceed_context|"
    r"(prompt|input|sequence)\b.{0,80}(too long|longer than|too many tokens|exceeds?\b.{0,60}\b(max|limit|length|tokens))|"
    r"inputs. (tokens \+|must have less)",
    re.IGNORECASE | re.DOTALL,
)
# Failures of a request that the server may have answered whole.
_ON_THE_WAY = frozenset(
    {
        Failure.TIMEOUT_FIRST_EVENT, Failure.TIMEOUT_BETWEEN_EVENTS, Failure.TIMEOUT_TURN, Failure.HTTP_5XX,
        Failure.HTTP_OTHER, Failure.NOT_SSE, Failure.BAD_EVENT, Failure.SERVER_ERROR, Failure.CUT, Failure.BAD_HTTP,
    }
)  # fmt: skip
_LEAST_FAILED, _COUNTED = 5, 0.5  # turns, and share of them that the server must have counted


@dataclass(frozen=True, slots=True)
class Refused:
    """Turns that the server refused for what they ask, at any load. `too_long`: some of them for the length of the prompt."""

    turns: int
    too_long: bool


def refused(results: Results) -> Refused:
    """Return the refused turns of a run: a client error other than that of a busy server, or a prompt that is too long."""
    counts, errors = results.turns.whole_run, results.turns.first_errors
    statuses = {int(status): count for status, count in counts.by_status.items() if status.isdecimal()}
    turns = sum(count for status, count in statuses.items() if 400 <= status < 500 and status not in _BUSY)
    by_kind = {(error.failure, error.status): error for error in errors if is_too_long(error)}
    for failure, status in by_kind:
        if failure == Failure.SERVER_ERROR:
            turns += counts.by_failure.get(failure, 0)
        elif status is not None and status >= 500:
            turns += statuses.get(status, 0)
    return Refused(min(turns, counts.failed), bool(by_kind))


def is_too_long(error: FirstError) -> bool:
    """Return True if the message of a failure says that the prompt is too long."""
    return error.failure in (Failure.HTTP_4XX, Failure.HTTP_5XX, Failure.SERVER_ERROR) and bool(
        _TOO_LONG.search(error.text)
    )


def counted_as_finished(results: Results, finished: float, before_load: int) -> tuple[int, int] | None:
    """Return how many of the turns that failed on the way the servers count as finished, and the number of these turns.

    None if they are few, or if other requests can explain the count. `finished`: by the servers, without aborted requests;
    `before_load`: requests of the preflight.
    """
    counts = results.turns.whole_run
    failed = sum(count for name, count in counts.by_failure.items() if name in _ON_THE_WAY)
    known = counts.ok + counts.by_failure.get(Failure.REJECTED, 0) + counts.by_failure.get(Failure.EMPTY, 0)
    surplus = finished - known
    others = before_load + (counts.retried or 0) + counts.unfinished
    known_least = failed >= _LEAST_FAILED and _COUNTED * failed <= surplus - others <= failed
    return (min(failed, round(surplus)), failed) if known_least else None


MOST_AT_ONCE, _MOST_TURNS = 16, 20_000
_LEAST_CROWDED = 20  # turns that others precede
_LEAST_TIME = 0.1  # of the time with turns in flight
_MOST_OVER, _LEAST_EXACT = 0.01, 0.8  # of the time, and of that with more turns in flight


@dataclass(frozen=True, slots=True)
class AtOnce:
    """Server that answers `served` requests at once while others wait. `in_flight`: mean number of turns then.

    `alone_ms`, `others_ms`: TTFT of a turn that found the server free, and mean TTFT of the others.
    """

    served: int
    in_flight: float
    alone_ms: float
    others_ms: float


def served_at_once(sent_s: Floats, first_s: Floats, last_s: Floats, closed_s: Floats) -> AtOnce | None:
    """Return how many requests a server answers at once, if others wait for them; None if turns do not show it.

    One value per turn; NaN: did not happen. A turn is served from its TTFT alone before its first output to its last one. Of a
    server that answers k at once, k turns are served whenever more are in flight. Of one that answers all at once, as many as are
    in flight; a number that varies by itself is rarely the same for long.
    """
    order = np.argsort(sent_s)[: min(_MOST_TURNS, int(np.count_nonzero(~np.isnan(sent_s))))]
    sent_s, first_s, last_s, closed_s = (each[order] for each in (sent_s, first_s, last_s, closed_s))
    closed_s = np.where(np.isnan(closed_s), np.inf, closed_s)
    ttft_s = first_s - sent_s
    before = np.arange(len(sent_s)) - np.searchsorted(
        np.sort(closed_s), sent_s, side="right"
    )  # in flight when it was sent
    ok = ~np.isnan(ttft_s) & ~np.isnan(last_s)
    for served in range(1, min(MOST_AT_ONCE, int(before.max(initial=0))) + 1):
        crowded = ok & (before >= served)
        free = ok & (before < served)
        if np.count_nonzero(crowded) < _LEAST_CROWDED or not free.any():
            continue
        alone_s = float(ttft_s[free].min())
        begin_s = np.maximum(sent_s, first_s - alone_s)[ok]
        at_s = np.unique(np.concatenate([sent_s, closed_s[np.isfinite(closed_s)], begin_s, last_s[ok]]))
        lasts_s, at_s = np.diff(at_s), at_s[:-1]
        in_flight, now = _at(at_s, sent_s, closed_s), _at(at_s, begin_s, last_s[ok])
        busy, more = in_flight > 0, in_flight > served
        busy_s, more_s = float(lasts_s[busy].sum()), float(lasts_s[more].sum())
        if more_s < _LEAST_TIME * busy_s or not more_s:
            continue
        over, exact = (float(lasts_s[mask].sum()) for mask in (now > served, more & (now == served)))
        if over <= _MOST_OVER * busy_s and exact >= _LEAST_EXACT * more_s:
            mean = float(np.average(in_flight[more], weights=lasts_s[more]))
            return AtOnce(served, mean, alone_s * 1000, float(ttft_s[crowded].mean()) * 1000)
    return None


def _at(at_s: Floats, begin_s: Floats, end_s: Floats) -> Floats:
    """Return how many half-open times hold each instant."""
    begun, ended = (np.searchsorted(np.sort(each), at_s, side="right") for each in (begin_s, end_s))
    return (begun - ended).astype(np.float64)
