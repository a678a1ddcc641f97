"""Rules of the diagnosis on the queue of vLLM's scheduler, which stops admitting requests for five reasons.

The token budget of the step is used up, max_num_seqs requests run, free KV blocks do not suffice for the head of the queue, a
request was preempted in this step, or the head waits for something other than capacity. If four reasons are excluded, the queue has
the fifth.
"""

import numpy as np
from msgspec import Struct

from inferload.base.numbers import number, percent
from inferload.servers.bottleneck.evidence import Floats, Served, WindowEvidence, mean_of
from inferload.servers.bottleneck.finding import (
    HIGH_KV_USAGE,
    MAX_PREEMPTION_RATIO,
    MIN_SHARE_FULL,
    QUEUED_SHARE,
    Finding,
)


def preemption(evidence: WindowEvidence) -> Finding | None:
    """Return the finding that requests are preempted and computed again."""
    preemptions, finished = evidence.served.preemptions, evidence.served.finished
    if not preemptions or finished is None or preemptions / max(1, finished) <= MAX_PREEMPTION_RATIO:
        return None
    figures = f"{preemptions} preemptions, {finished} requests finished"
    return Finding("preemption-thrash", 5.0, (f"{figures}: preempted requests are recomputed",), figures=figures)


def sequence_slots(evidence: WindowEvidence) -> Finding | None:
    """Return the finding that requests wait because max_num_seqs requests run."""
    if evidence.waiting_share < QUEUED_SHARE or preemption(evidence) is not None:
        return None
    usage = mean_of(evidence.scrapes.kv_usage[evidence.scrapes.waits])
    share_full = _share_at_max_num_seqs(evidence)
    if share_full is not None and evidence.setup.max_num_seqs is not None:
        return _known_slots(evidence, evidence.setup.max_num_seqs * evidence.setup.engines, share_full, usage)
    if usage is not None and usage >= HIGH_KV_USAGE:
        return None
    running = evidence.scrapes.running[evidence.scrapes.waits]
    top = float(np.nanmax(running)) if len(running) and not np.isnan(running).all() else 0.0
    if not top or float(np.mean(running >= top)) < MIN_SHARE_FULL or head_exceeds_free(evidence):
        return None
    sentences = (_queue(evidence), f"at most {top:.0f} requests ran, and this number in most scrapes", _usage(usage))
    figures = f"{_running(evidence)} running, {_waiting(evidence)}"
    return Finding("queue-bound", 3.0, sentences, probable=True, figures=figures)


def _known_slots(evidence: WindowEvidence, slots: int, share_full: float, usage: float | None) -> Finding | None:
    if share_full < 0.5:
        return None
    # vLLM checks max_num_seqs before it allocates blocks, so a full batch is the limit at any KV-cache usage.
    certain = share_full >= MIN_SHARE_FULL and (usage is None or usage < HIGH_KV_USAGE) and evidence.setup.engines == 1
    sentences = (
        _queue(evidence),
        f"in {percent(share_full)} of these all {slots} sequence slots (max-num-seqs) were in use",
        _usage(usage),
    )
    figures = f"{_running(evidence)} of {slots} slots, {_waiting(evidence)}"
    return Finding("queue-bound", 4.0 if certain else 3.2, sentences, probable=not certain, figures=figures)


def _queue(evidence: WindowEvidence) -> str:
    return f"requests waited in {percent(evidence.waiting_share)} of the scrapes"


def _running(evidence: WindowEvidence) -> str:
    """Format the mean number of running requests while others wait."""
    return number(mean_of(evidence.scrapes.running[evidence.scrapes.waits]))


def _waiting(evidence: WindowEvidence) -> str:
    return f"{number(mean_of(evidence.scrapes.capacity))} waiting on average"


def _share_at_max_num_seqs(evidence: WindowEvidence) -> float | None:
    """Return the share of the queued scrapes with max_num_seqs requests running; None if unknown."""
    if evidence.setup.max_num_seqs is None:
        return None
    running = evidence.scrapes.running[evidence.scrapes.waits]
    return mean_of(np.where(np.isnan(running), np.nan, running >= evidence.setup.max_num_seqs * evidence.setup.engines))


def _usage(usage: float | None) -> str:
    return "KV-cache usage is not known" if usage is None else f"KV-cache usage was {percent(usage)} in these"


class _Heads(Struct, frozen=True):
    """Blocks that the head of the queue needs, and free blocks, at each queued scrape at which both are known."""

    needed: Floats
    free: Floats

    @property
    def exceeding(self) -> float:
        """Share of the scrapes at which the head does not fit."""
        return float(np.mean(self.free < self.needed))


def _heads(evidence: WindowEvidence) -> _Heads | None:
    """Return the heads of the queue; None if unknown, as for several engines, whose queues are published as a sum."""
    kv, scrapes = evidence.setup.kv, evidence.scrapes
    if evidence.setup.engines > 1 or kv is None:
        return None
    free, needed = kv.free(scrapes.kv_usage[scrapes.waits]), kv.needed(scrapes.head_tokens[scrapes.waits])
    known = ~np.isnan(free) & ~np.isnan(needed)
    return _Heads(needed[known], free[known]) if known.any() else None


def head_exceeds_free(evidence: WindowEvidence) -> bool | None:
    """Return True if the head of the queue needs more blocks than are free in most queued scrapes; None if unknown."""
    heads = _heads(evidence)
    return None if heads is None else heads.exceeding >= 0.5


def head_could_refute(finding: Finding, evidence: WindowEvidence) -> bool:
    """Return True for a cause of a queue whose rule has not been checked against the head of the queue, which is unknown."""
    if head_exceeds_free(evidence) is not None or evidence.waiting_share < QUEUED_SHARE:
        return False
    return finding.code == "prefill-bound" or (finding.code == "queue-bound" and evidence.setup.max_num_seqs is None)


def kv_cache(evidence: WindowEvidence) -> Finding | None:
    """Return the finding that requests wait because the blocks for the head of the queue are missing."""
    if evidence.waiting_share < QUEUED_SHARE or preemption(evidence) or sequence_slots(evidence):
        return None
    queue = f"{_queue(evidence)}, with {_running(evidence)} running"
    usage = mean_of(evidence.scrapes.kv_usage[evidence.scrapes.waits])
    heads = _heads(evidence)
    if heads is None and usage is not None and usage >= HIGH_KV_USAGE:
        sentences = (queue, _usage(usage), "the prompt length of the head of the queue is not known")
        figures = f"KV {percent(usage)}, {_waiting(evidence)}"
        return Finding("kv-bound", 3.0, sentences, probable=True, figures=figures)
    if heads is None or evidence.setup.kv is None or not head_exceeds_free(evidence):
        return None
    needed, free, all_blocks = (
        f"{value:,.0f}" for value in (*map(np.median, (heads.needed, heads.free)), evidence.setup.kv.usable)
    )
    return Finding(
        "kv-bound",
        4.0,
        (
            queue,
            f"in {percent(heads.exceeding)} of these the head of the queue needed more KV-cache blocks ({needed}) than were "
            f"free ({free} of {all_blocks}, each of {evidence.setup.kv.size:,} tokens)",
            f"{_usage(usage)}: a request is admitted only if its whole prompt fits",
        ),
        figures=f"the next prompt needs {needed} blocks, {free} of {all_blocks} free, {_waiting(evidence)}",
    )


def prefill(evidence: WindowEvidence) -> Finding | None:
    """Return the finding that the token budget of a step limits, or that most of the request time is prefill."""
    if preemption(evidence) is not None:
        return None
    if evidence.waiting_share >= QUEUED_SHARE:
        return _queued_prefill(evidence)
    served = evidence.served
    queue_ms, prefill_ms, decode_ms = served.queue_ms, served.prefill_ms, served.decode_ms
    if queue_ms is None or prefill_ms is None or decode_ms is None:
        return None
    if prefill_ms <= 0.7 * (queue_ms + prefill_ms) or prefill_ms <= 0.5 * (prefill_ms + decode_ms):
        return None
    decode = f", mean decode time {number(decode_ms)} ms" if decode_ms else ""
    figures = f"mean prefill time is {number(prefill_ms)} ms{decode}"
    return Finding(
        "prefill-bound", 2.5, (f"few requests waited; {figures}", *_computed(evidence.served)), figures=figures
    )


def _queued_prefill(evidence: WindowEvidence) -> Finding | None:
    if sequence_slots(evidence) is not None or kv_cache(evidence) is not None:
        return None
    share_full, exceeds = _share_at_max_num_seqs(evidence), head_exceeds_free(evidence)
    proven = share_full is not None and exceeds is not None  # neither slots nor blocks were missing
    why = "with free sequence slots and KV cache" if proven else "without evidence for another cause"
    sentences = (f"{_queue(evidence)}, {why}: the token budget of a step is the limit", *_computed(evidence.served))
    figures = f"{_running(evidence)} running, {_waiting(evidence)}, {why}"
    return Finding("prefill-bound", 3.5 if proven else 2.4, sentences, probable=not proven, figures=figures)


def _computed(served: Served) -> tuple[str, ...]:
    computed, generated = served.computed_tok_per_s, served.generation_tok_per_s
    if computed is None or generated is None:
        return ()
    return (f"{computed:,.0f} prompt tok/s computed, {generated:,.0f} tok/s generated",)
