"""Causes that the results and the records of turns show without a metrics page. No I/O."""

import re
from typing import NamedTuple

import numpy as np

from inferload.results.documents.summary_document import Results
from inferload.turns.record import Failure
from inferload.turns.sketch import Floats

_BUSY = ("408", "425", "429")  # statuses of a busy server
# Refusals of too long prompts, in the words of vLLM, SGLang, TGI, TensorRT-LLM, llama.cpp, OpenAI and gateways.
_TOO_LONG = re.compile(
    r"context[ _-]?(length|size|window)|max_model_len|max_seq_len|exceed_context|"
    r"(prompt|input|sequence)\b.{0,80}(too long|longer than|too many tokens|exceeds?\b.{0,60}\b(max|limit|length|tokens))|"
    r"inputs. (tokens \+|must have less)",
    re.IGNORECASE | re.DOTALL,
)
_WHOLE = (Failure.EMPTY, Failure.REJECTED)  # answers that the server completed
_NOT_SERVED = {Failure.CONNECT, Failure.TLS, Failure.TIMEOUT_CONNECT, Failure.HTTP_4XX, Failure.HTTP_429, *_WHOLE}
_LEAST_FAILED, _COUNTED = 5, 0.5  # turns, and share of them that the server must have counted


def refused(results: Results) -> int:
    """Return the turns of a run that the server refused for what they ask: client errors, and prompts that are too long.

    With a 5xx status, or in an event of the stream, they are too long if the first message of each class of turns says so.
    """
    counts, too_long = results.turns.whole_run, dict[tuple[str, int | None], bool]()
    turns = sum(count for status, count in counts.by_status.items() if status.startswith("4") and status not in _BUSY)
    for error in results.turns.first_errors:
        kind = error.failure, error.status if error.failure == Failure.HTTP_5XX else None
        too_long[kind] = too_long.get(kind, True) and _TOO_LONG.search(error.text) is not None
    turns += too_long.get((Failure.SERVER_ERROR, None), False) * counts.by_failure.get(Failure.SERVER_ERROR, 0)
    for (_, status), all_of_them in too_long.items():
        turns += all_of_them * (0 if status is None else counts.by_status.get(str(status), 0))
    return min(turns, counts.failed)


def counted_as_finished(results: Results, finished: float, before_load: int) -> tuple[int, int] | None:
    """Return how many of the turns that failed on the way the servers count as finished, and the number of these turns.

    None if they are few, or if other requests can explain the count. `finished`: by the servers, without aborted requests;
    `before_load`: requests of the preflight.
    """
    counts = results.turns.whole_run
    failed = sum(count for name, count in counts.by_failure.items() if name not in _NOT_SERVED)
    surplus = finished - counts.ok - sum(counts.by_failure.get(name, 0) for name in _WHOLE)
    least = surplus - before_load - (counts.retried or 0) - counts.unfinished
    return (
        (min(failed, round(surplus)), failed)
        if failed >= _LEAST_FAILED and _COUNTED * failed <= least <= failed
        else None
    )


MOST_AT_ONCE, _MOST_TURNS = 16, 20_000
_LEAST_CROWDED = 20  # turns that others precede
_LEAST_TIME = 0.1  # of the time with turns in flight
_MOST_OVER, _LEAST_EXACT = 0.01, 0.8  # of the time, and of that with more turns in flight


class AtOnce(NamedTuple):
    """Requests that a server answers at once while others wait, mean turns in flight then, mean TTFT alone and with others."""

    served: int
    in_flight: float
    alone_s: float
    others_s: float


def served_at_once(sent_s: Floats, first_s: Floats, last_s: Floats, closed_s: Floats) -> AtOnce | None:
    """Return how many requests a server answers at once, if others wait for them; None if turns do not show it.

    One value per turn; NaN: did not happen. A turn is served from its TTFT alone before its first output to its last one. Of a
    server that answers k at once, k turns are served whenever more are in flight. Of one that answers all at once, as many as are
    in flight; a number that varies by itself is rarely the same for long.
    """
    order = np.argsort(sent_s)[: min(_MOST_TURNS, int(np.count_nonzero(~np.isnan(sent_s))))]
    sent_s, first_s, last_s, closed_s = (each[order] for each in (sent_s, first_s, last_s, closed_s))
    closed_s = np.where(np.isnan(closed_s), np.inf, closed_s)
    ok = ~np.isnan(first_s) & ~np.isnan(last_s)
    ttft_s, last_s = first_s - sent_s, last_s[ok]
    before = np.arange(len(sent_s)) - np.searchsorted(np.sort(closed_s), sent_s, side="right")
    for served in range(1, min(MOST_AT_ONCE, int(before.max(initial=0))) + 1):
        crowded, free = ok & (before >= served), ok & (before < served)
        if np.count_nonzero(crowded) < _LEAST_CROWDED or not free.any():
            continue
        alone_s = float(ttft_s[free].min())
        begin_s = np.maximum(sent_s, first_s - alone_s)[ok]
        at_s = np.unique(np.concatenate([sent_s, closed_s, begin_s, last_s]))
        at_s = at_s[np.isfinite(at_s)]
        in_flight, now = (begun_not_ended(at_s[:-1], *times) for times in ((sent_s, closed_s), (begin_s, last_s)))
        busy_s, more_s, over_s, exact_s = (
            float(np.diff(at_s)[mask].sum())
            for mask in (in_flight > 0, in_flight > served, now > served, (in_flight > served) & (now == served))
        )
        enough = more_s > 0 and more_s >= _LEAST_TIME * busy_s
        if enough and over_s <= _MOST_OVER * busy_s and exact_s >= _LEAST_EXACT * more_s:
            mean = float(np.average(in_flight, weights=np.diff(at_s) * (in_flight > served)))
            return AtOnce(served, mean, alone_s, float(ttft_s[crowded].mean()))
    return None


def begun_not_ended(at_s: Floats, begin_s: Floats, end_s: Floats) -> Floats:
    """Return how many half-open times hold each instant."""
    begun, ended = (np.searchsorted(np.sort(each), at_s, side="right") for each in (begin_s, end_s))
    return (begun - ended).astype(np.float64)
