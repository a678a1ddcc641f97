"""Causes that the results and the records of turns show without a metrics page. No I/O."""

import re
from typing import NamedTuple

import numpy as np

from inferload.results.documents.summary_document import Results
from inferload.turns.record import Failure, refused_turns
from inferload.turns.sketch import Floats

# Refusals of too long prompts, in the words of vLLM, SGLang, TGI, TensorRT-LLM, llama.cpp, OpenAI and gateways.
_TOO_LONG = re.compile(
    r"context[ _-]?(length|size|window)|max_model_len|max_seq_len|session_len|exceed_context|input_length_error|"
    r"(prompt|input|sequence)\b(.{0,80} (is|are))? too (long|large|many tokens)|"
    r"(prompt|input|sequence)\b.{0,80}((longer|larger|greater) than|exceeds?\b.{0,60}\b(max|limit|length|tokens))|"
    r"inputs. (tokens \+|must have less)",
    re.IGNORECASE | re.DOTALL,
)
# Messages in such words that depend on the load. llama.cpp ends all running requests with the first one when the cache that its
# slots share is full (ggml-org/llama.cpp#23652); a prompt that is too long by itself has another message.
_OF_LOAD = re.compile(
    r"context size has been exceeded|queue|rate.limit|per (second|minute)|\bis full|\bfree\b|\bretry\b|\blater\b",
    re.IGNORECASE,
)
_WHOLE = (Failure.EMPTY, Failure.REJECTED)  # answers that the server completed
_NOT_SERVED = {Failure.CONNECT, Failure.TLS, Failure.TIMEOUT_CONNECT, Failure.HTTP_4XX, Failure.HTTP_429, *_WHOLE}
_LEAST_FAILED, _COUNTED = 5, 0.5  # turns, and share of them that the server must have counted


def refused(results: Results) -> int:
    """Return the turns of a run that the server refused for what they ask: client errors, and prompts that are too long.

    With a 5xx status, or in an event of the stream, they are too long if the first message of each class of turns says so.
    """
    counts, errors = results.turns.whole_run, results.turns.first_errors
    turns = refused_turns(counts.by_failure, counts.by_status)
    kinds = [(each.failure, each.failure == Failure.HTTP_5XX and each.status, each.text) for each in errors]
    others = {kind[:2] for kind in kinds if _OF_LOAD.search(kind[2]) or not _TOO_LONG.search(kind[2])}
    for failure, status in {kind[:2] for kind in kinds} - others:
        if failure == Failure.SERVER_ERROR:
            turns += counts.by_failure.get(failure, 0)
        elif failure == Failure.HTTP_5XX:
            turns += counts.by_status.get(str(status), 0)
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
    enough = failed >= _LEAST_FAILED and not counts.texts  # each text counts as a request
    return (min(failed, round(surplus)), failed) if enough and _COUNTED * failed <= least <= failed else None


MOST_AT_ONCE, _MOST_TURNS = 16, 20_000
_LEAST_CROWDED, _LEAST_TIME = 20, 0.1  # turns that others precede, share of the time with turns in flight
_MOST_OVER, _LEAST_EXACT = 0.03, 0.8  # of this time, and of that with more turns in flight


class AtOnce(NamedTuple):
    """Requests that a server answers at once while others wait, mean turns in flight then, lowest TTFT, mean TTFT of others.

    `streamed`: part of the time in which a turn is served that is from its first output to its last one.
    """

    served: int
    in_flight: float
    alone_s: float
    others_s: float
    streamed: float


def served_at_once(sent_s: Floats, first_s: Floats, last_s: Floats, closed_s: Floats) -> AtOnce | None:
    """Return how many requests a server answers at once, if others wait for them; None if turns do not show it.

    One value per turn; NaN: did not happen. A turn is served from the lowest TTFT before its first output to its last one. Of a
    server that answers k at once, k turns are served whenever more are in flight. Of one that answers all at once, as many as are
    in flight; a number that varies by itself is rarely the same for long.
    """
    order = np.argsort(sent_s)[: min(_MOST_TURNS, int(np.count_nonzero(~np.isnan(sent_s))))]
    sent_s, first_s, last_s, closed_s = (each[order] for each in (sent_s, first_s, last_s, closed_s))
    closed_s = np.where(np.isnan(closed_s), np.inf, closed_s)
    ttft_s, ok = first_s - sent_s, ~np.isnan(first_s) & ~np.isnan(last_s)
    alone_s = float(ttft_s[ok].min(initial=np.inf))
    begin_s, end_s = first_s[ok] - alone_s, last_s[ok]
    at_s = np.unique(np.concatenate([sent_s, closed_s[np.isfinite(closed_s)], begin_s, end_s]))
    in_flight, now = (begun_not_ended(at_s[:-1], *times) for times in ((sent_s, closed_s), (begin_s, end_s)))
    lasts_s = np.diff(at_s)
    busy_s = lasts_s[in_flight > 0].sum()
    served = next((k for k in range(MOST_AT_ONCE + 1) if lasts_s[now > k].sum() <= _MOST_OVER * busy_s), 0)
    before = np.arange(len(sent_s)) - np.searchsorted(np.sort(closed_s), sent_s, side="right")
    crowded, more = ok & (before >= served), lasts_s * (in_flight > served)
    if not served or np.count_nonzero(crowded) < _LEAST_CROWDED or more.sum() < _LEAST_TIME * busy_s:
        return None
    if more[now == served].sum() < _LEAST_EXACT * more.sum():
        return None
    streamed = float(1 - np.count_nonzero(ok) * alone_s / (end_s - begin_s).sum())
    return AtOnce(served, float(np.average(in_flight, weights=more)), alone_s, float(ttft_s[crowded].mean()), streamed)


def begun_not_ended(at_s: Floats, begin_s: Floats, end_s: Floats) -> Floats:
    """Return how many half-open times hold each instant."""
    begun, ended = (np.searchsorted(np.sort(each), at_s, side="right") for each in (begin_s, end_s))
    return (begun - ended).astype(np.float64)
