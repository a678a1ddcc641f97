"""The rules: what each cause looks like, one pure function each. Thresholds are judgement, and stand here by name.

The scheduler of vLLM stops admitting for five reasons only: its token budget is spent, as many run as may, blocks for the
head of the queue are lacking, something was preempted in this step, or the head waits for something else. So what is
left after four of them is the fifth.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from inferload.numbers import number, percent

from .evidence import Evidence

QUEUES = 0.2  # from this part of the scrapes on a window has a queue
AT_CAP = 0.8
THRASH = 0.05
KV_FULL = 0.85


@dataclass(frozen=True, slots=True)
class Finding:
    """A cause that holds. `weight` ranks several; `said`: the evidence in numbers, a sentence each; `probable`: not proven."""

    code: str
    weight: float
    said: tuple[str, ...]
    probable: bool = False


@dataclass(frozen=True, slots=True)
class Rule:
    """`looks_like` and `limits` are for people; `judge` gives the finding, None where the cause does not hold."""

    code: str
    title: str
    looks_like: str
    limits: str
    judge: Callable[[Evidence], Finding | None]


def _client(evidence: Evidence) -> Finding | None:
    """It comes first only where the measurement is no longer the server's; before that it is one contributor."""
    said = []
    delay, gap, share = evidence.client_delay_p99_ms, evidence.client_itl_p50_ms, evidence.client_cpu_share
    delayed = delay is not None and gap is not None and delay > 0.5 * gap
    if delayed:
        said.append(f"p99 of the client's own delay is {number(delay)} ms at a median gap of {number(gap)} ms")
    if share is not None and share > 0.85:
        said.append(f"the client's busiest process used {percent(share)} of its core")
    reasons = evidence.client_reasons
    said += [one.text.partition(";")[0] for one in reasons if one.code != "client_delay" or not delayed]
    spoilt = (
        (delay is not None and gap is not None and delay > gap)
        or (share is not None and share > 0.97)
        or any(one.level == "invalid" for one in reasons)
    )
    return Finding("client-bound", 100.0 if spoilt else 0.5, tuple(said)) if said else None


def _front_end(evidence: Evidence) -> Finding | None:
    said: list[str] = []
    merged, guessing = evidence.tokens_per_event, evidence.mean_acceptance_length is not None
    gathers = evidence.stream_interval is None or evidence.stream_interval > 1  # then merging is no sign of haste
    if merged is not None and merged > 1.05 and not guessing and not gathers:
        said.append(
            f"{merged:.2f} tokens in an event without speculation: the API server merges what it cannot send in time"
        )
    client, server = evidence.client_ttft_ms, evidence.server_ttft_ms
    if client is not None and server is not None and client - server > max(10.0, 0.1 * server):
        said.append(
            f"mean TTFT is {number(client)} ms at the client and {number(server)} ms by the server's own histogram"
        )
    if evidence.server_cpu_share is not None and evidence.server_cpu_share > 0.9:
        said.append(f"the process that serves the API used {evidence.server_cpu_share:.2f} of a core")
    return Finding("front-end-bound", 2.0, tuple(said)) if said else None


def _thrash(evidence: Evidence) -> Finding | None:
    if not evidence.preemptions:
        return None
    share = evidence.preemptions / max(1, evidence.finished or 0)
    if share <= THRASH:
        return None
    return Finding(
        "preemption-thrash",
        5.0,
        (
            f"{evidence.preemptions} preemptions for {evidence.finished or 0} requests that ended: "
            "their prompts are computed again",
        ),
    )


def _cap(evidence: Evidence) -> Finding | None:
    scrapes = evidence.scrapes
    if evidence.waiting_share < QUEUES or _thrash(evidence) is not None:
        return None
    waits = scrapes.waits
    usage = _mean(scrapes.kv_usage[waits])
    running = scrapes.running[waits]
    queue = f"requests wait at {percent(evidence.waiting_share)} of the scrapes"
    at_cap = _at_cap(evidence)
    if at_cap is not None and evidence.max_num_seqs is not None:
        if at_cap < 0.5:
            return None
        # The places are looked at first, so where all are taken they bind, whatever the cache holds.
        sure = at_cap >= AT_CAP and (usage is None or usage < KV_FULL) and evidence.engines == 1
        places = evidence.max_num_seqs * evidence.engines
        said = (queue, f"{percent(at_cap)} of them with all {places} places taken", _usage(usage))
        return Finding("queue-bound", 4.0 if sure else 3.2, said, probable=not sure)
    if usage is not None and usage >= KV_FULL:
        return None
    top = float(np.nanmax(running)) if len(running) and not np.isnan(running).all() else 0.0
    if not top or float(np.mean(running >= top)) < AT_CAP or _head_lacks(evidence):
        return None
    return Finding(
        "queue-bound",
        3.0,
        (queue, f"never more than {top:.0f} run, and mostly exactly so many", _usage(usage)),
        probable=True,
    )


def _at_cap(evidence: Evidence) -> float | None:
    """Part of the scrapes with a queue at which all places are taken; None where the number of places is not known."""
    if evidence.max_num_seqs is None:
        return None
    return float(np.mean(evidence.scrapes.running[evidence.scrapes.waits] >= evidence.max_num_seqs * evidence.engines))


def _mean(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float | None:
    """Mean of what is known; None where nothing is."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else None


def _usage(usage: float | None) -> str:
    return "KV-cache usage is not known" if usage is None else f"KV-cache usage is {percent(usage)} then"


def _room(evidence: Evidence) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Tokens that the cache has left at each scrape; not known of several engines, whose queues are one figure."""
    if evidence.engines > 1 or evidence.cache_tokens is None:
        return np.full(len(evidence.scrapes.kv_usage), np.nan)
    return (1 - evidence.scrapes.kv_usage) * evidence.cache_tokens


def _head_lacks(evidence: Evidence) -> bool | None:
    """Whether the head of the queue mostly lacks room; None where that cannot be told."""
    waits = evidence.scrapes.waits
    room, head = _room(evidence)[waits], evidence.scrapes.head_tokens[waits]
    known = ~np.isnan(room) & ~np.isnan(head)
    return float(np.mean(room[known] < head[known])) >= 0.5 if known.any() else None


def _kv(evidence: Evidence) -> Finding | None:
    scrapes = evidence.scrapes
    if evidence.waiting_share < QUEUES or _thrash(evidence) is not None or _cap(evidence) is not None:
        return None
    waits = scrapes.waits
    running = number(_mean(scrapes.running[waits]) or 0)
    queue = f"requests wait at {percent(evidence.waiting_share)} of the scrapes, with {running} running"
    usage, lacks = _mean(scrapes.kv_usage[waits]), _head_lacks(evidence)
    if lacks is None and usage is not None and usage >= KV_FULL:
        said = (queue, _usage(usage), "how long the prompt at the head of the queue is, nobody knows")
        return Finding("kv-bound", 3.0, said, probable=True)
    if not lacks:
        return None
    room, head = _room(evidence)[waits], scrapes.head_tokens[waits]
    known = ~np.isnan(room) & ~np.isnan(head)
    short = float(np.mean(room[known] < head[known]))
    return Finding(
        "kv-bound",
        4.0,
        (
            queue,
            f"at {percent(short)} of these the head of the queue needs more "
            f"({float(np.median(head[known])):,.0f} tokens) than is free "
            f"({float(np.median(room[known])):,.0f} of {evidence.cache_tokens:,})",
            f"{_usage(usage)}: a whole prompt must fit before it is let in",
        ),
    )


def _prefill(evidence: Evidence) -> Finding | None:
    if _thrash(evidence) is not None:
        return None
    queue, prefill = evidence.queue_ms or 0.0, evidence.prefill_ms
    if evidence.waiting_share >= QUEUES:
        if _cap(evidence) is not None or _kv(evidence) is not None:
            return None
        at_cap, lacks = _at_cap(evidence), _head_lacks(evidence)
        shown = at_cap is not None and lacks is not None  # that there are places, and room
        why = "there are places and room" if shown else "no other cause shows"
        said = (
            f"requests wait at {percent(evidence.waiting_share)} of the scrapes, {why}: the budget of a step is left",
        )
        return Finding("prefill-bound", 3.5 if shown else 2.4, (*said, *_computed(evidence)), probable=not shown)
    decode = evidence.decode_ms or 0.0
    if prefill is None or prefill / (queue + prefill) <= 0.7 or prefill <= 0.5 * (prefill + decode):
        return None
    return Finding(
        "prefill-bound",
        2.5,
        (
            f"hardly anybody waits, and {number(prefill)} ms of a request go into its prompt ({number(decode)} ms into its answer)",
            *_computed(evidence),
        ),
    )


def _computed(evidence: Evidence) -> tuple[str, ...]:
    if evidence.computed_tok_per_s is None or evidence.generation_tok_per_s is None:
        return ()
    return (
        f"{evidence.computed_tok_per_s:,.0f} prompt tok/s are computed, {evidence.generation_tok_per_s:,.0f} tok/s generated",
    )


def _decode(evidence: Evidence) -> Finding | None:
    if evidence.waiting_share >= QUEUES or evidence.decode_ms is None:
        return None
    whole = (evidence.queue_ms or 0.0) + (evidence.prefill_ms or 0.0) + evidence.decode_ms
    computed, generated = evidence.computed_tok_per_s or 0.0, evidence.generation_tok_per_s or 0.0
    if evidence.decode_ms / whole <= 0.8 or computed >= generated:
        return None
    itl, limit = evidence.server_itl_ms, evidence.slo.get("tpot_ms") or evidence.slo.get("itl_ms")
    rises = evidence.itl_by_running is not None and evidence.itl_by_running[1] > 1.15 * evidence.itl_by_running[0]
    slow = itl is not None and evidence.itl_alone_ms is not None and itl > 1.3 * evidence.itl_alone_ms
    over = itl is not None and limit is not None and itl > limit
    if not (over or rises or slow):
        return None
    said = [f"hardly anybody waits, and {percent(evidence.decode_ms / whole)} of a request's time is its answer"]
    if itl is not None:
        said.append(f"the server's mean ITL is {number(itl)} ms" + (f", the limit {limit:g} ms" if over else ""))
    if rises and evidence.itl_by_running is not None:
        said.append(
            f"the gap grows with the load: {number(evidence.itl_by_running[0])} to {number(evidence.itl_by_running[1])} ms"
        )
    return Finding("decode-bound", 2.2 if over else 1.8, tuple(said))


def _cache_miss(evidence: Evidence) -> Finding | None:
    expected, counted = evidence.expected_hit_rate, evidence.counted_hit_rate
    if expected is None or counted is None or expected - counted <= 0.10:
        return None
    return Finding(
        "cache-miss-bound",
        2.8,
        (
            f"{percent(counted)} of the prompt tokens were found in the prefix cache, "
            f"an endless one would have held {percent(expected)}",
        ),
        probable=True,
    )


def _speculation(evidence: Evidence) -> Finding | None:
    length, drafted = evidence.mean_acceptance_length, evidence.draft_tokens
    if length is None or not drafted or length >= 1.3:
        return None
    return Finding(
        "speculation",
        1.5,
        (
            f"{length:.2f} tokens come of a step that guesses {drafted}: a run without speculation tells whether it pays",
        ),
        probable=True,
    )


def _deferred(evidence: Evidence) -> Finding | None:
    deferred = np.nansum(evidence.scrapes.deferred) if len(evidence.scrapes.deferred) else 0.0
    waiting = deferred + (np.nansum(evidence.scrapes.capacity) if len(evidence.scrapes.capacity) else 0.0)
    if not waiting or deferred / waiting <= 0.2:
        return None
    return Finding("deferred", 3.0, (f"{percent(deferred / waiting)} of those who wait do not wait for capacity",))


def _unbalanced(evidence: Evidence) -> Finding | None:
    spread, waiting = evidence.engines_kv_spread, evidence.engines_waiting
    alone = len(waiting) > 1 and max(waiting) > 0.5 and sorted(waiting)[-2] < 0.05
    if (spread is None or spread <= 0.3) and not alone:
        return None
    said = [] if spread is None else [f"KV-cache usage differs by {percent(spread)} between engines"]
    return Finding("engines-unbalanced", 2.6, (*said, *(["one engine alone has a queue"] if alone else [])))


def _kept_up(evidence: Evidence) -> Finding | None:
    """Nothing held the server back; how much more it could take is said as far as its gauges tell."""
    if evidence.troubled or evidence.waiting_share >= QUEUES:
        return None
    if evidence.rates is None and not evidence.waiting_known:
        return None
    said = [] if evidence.rates is None else [evidence.rates]
    if evidence.waiting_known:
        said.append(f"requests wait for capacity at {percent(evidence.waiting_share)} of the scrapes")
    return Finding("kept-up", 0.1, (*said, *_headroom(evidence), *_steady(evidence)))


def _headroom(evidence: Evidence) -> list[str]:
    running, usage = (values[~np.isnan(values)] for values in (evidence.scrapes.running, evidence.scrapes.kv_usage))
    said = []
    if len(running) and evidence.max_num_seqs is not None:
        places = evidence.max_num_seqs * evidence.engines
        said.append(
            f"at most {running.max():.0f} of {places} places are taken ({percent(running.max() / places)}), "
            f"{number(running.mean())} on average"
        )
    elif len(running):
        said.append(
            f"at most {running.max():.0f} requests run, {number(running.mean())} on average; the number of places is not known"
        )
    if len(usage):
        said.append(f"KV-cache usage is {percent(usage.max())} at most")
    return said


def _steady(evidence: Evidence) -> list[str]:
    itl, alone = evidence.server_itl_ms, evidence.itl_alone_ms
    if itl is None or alone is None:
        return []
    if itl <= 1.1 * alone:
        return [f"the ITL is that of its quietest second ({number(itl)} against {number(alone)} ms)"]
    return [f"the mean ITL is {number(itl)} ms, {number(alone)} ms in its quietest second"]


RULES: tuple[Rule, ...] = (
    Rule(
        "client-bound",
        "The client held it back",
        "client delay p99 above half a gap, a client process above 85 % of a core, or turns that left late; the cause from a "
        "whole gap, 97 %, or where the verdict says for one of them that the measurement is not valid",
        "looked at first: as the cause it voids all others",
        _client,
    ),
    Rule(
        "preemption-thrash",
        "Preemption",
        "preemptions / finished requests above 0.05",
        "the counter moves at the victim's next token; recomputed tokens are in no counter",
        _thrash,
    ),
    Rule(
        "queue-bound",
        "All places of max-num-seqs are taken",
        "somebody waits for capacity, as many run as may at 80 % of these scrapes, KV usage below 85 %, no preemptions",
        "where max-num-seqs is not known, a ceiling that is always touched: probable",
        _cap,
    ),
    Rule(
        "kv-bound",
        "KV cache: the head of the queue does not fit",
        "somebody waits, places are free, and the head's uncached prompt is longer than what is free",
        "whole prompts are reserved, so usage may be near a half; usage above 95 % alone is no rule",
        _kv,
    ),
    Rule(
        "prefill-bound",
        "Prefill",
        "somebody waits though there are places and room: the token budget is left; or hardly anybody waits and most of a "
        "request's time is its prompt",
        "what a step mixes is seen with --enable-logging-iteration-details only",
        _prefill,
    ),
    Rule(
        "decode-bound",
        "Decode",
        "hardly anybody waits, over 80 % of a request's time is its answer, more tokens are generated than computed, and the "
        "gap is over its limit or grows with the load",
        "bandwidth, arithmetic and host are not told apart",
        _decode,
    ),
    Rule(
        "cache-miss-bound",
        "The prefix cache misses",
        "10 points fewer hits than an endless cache would have",
        "why is not counted: salt, a beginning that changes, reuse shorter than a block, or eviction",
        _cache_miss,
    ),
    Rule(
        "front-end-bound",
        "The API server",
        "tokens merged into events without speculation, a client's TTFT well above the server's, or a full core of its process",
        "there are no process figures with several API servers",
        _front_end,
    ),
    Rule(
        "deferred",
        "Waiting for something else",
        "over 20 % of those who wait do not wait for capacity",
        "LoRA, grammars and KV transfer are not told apart",
        _deferred,
    ),
    Rule(
        "engines-unbalanced",
        "Engines unevenly loaded",
        "KV usage differs by more than 30 points between engines, or one alone has a queue",
        "needs the engine label",
        _unbalanced,
    ),
    Rule(
        "speculation",
        "Speculation may not pay",
        "a step that guesses k tokens yields fewer than 1.3",
        "only an arm without it tells; never judged on made-up text",
        _speculation,
    ),
    Rule(
        "kept-up",
        "The server kept up",
        "no other rule holds, requests wait at fewer than 20 % of the scrapes, no turn failed, and in an open loop the number of "
        "turns in flight did not grow",
        "headroom is said as far as max-num-seqs and the gauges are known",
        _kept_up,
    ),
)
