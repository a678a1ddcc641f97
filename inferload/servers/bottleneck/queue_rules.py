"""Rules of the diagnosis on the queue of vLLM's scheduler, which stops admitting requests for five reasons.

The token budget of the step is used up, max_num_seqs requests run, free KV blocks do not suffice for the head of the queue, a
request was preempted in this step, or the head waits for something other than capacity. If four reasons are excluded, the queue has
the fifth.
"""

import numpy as np
from msgspec import Struct

from inferload.base.numbers import number, percent
from inferload.servers.bottleneck.evidence import Floats, Served, WindowEvidence, mean_of
from inferload.servers.bottleneck.finding import HIGH_KV_USAGE, LEAST_QUEUE_MS, MIN_SHARE_FULL, QUEUED_SHARE, Finding

_MOST_PREEMPTED, _LEAST_PREEMPTIONS = 0.05, 10  # share of the finished requests, and number
BUSY_PREFILL = 0.7  # requests in prefill, of a server without decode


def preemption(evidence: WindowEvidence) -> Finding | None:
    """Return the finding that requests are preempted and computed again."""
    preemptions, finished = evidence.served.preemptions, evidence.served.finished
    if preemptions is None or finished is None or preemptions < _LEAST_PREEMPTIONS:
        return None
    if preemptions / max(1, finished) <= _MOST_PREEMPTED:
        return None
    figures = f"{preemptions} preemptions, {finished} requests finished"
    return Finding("preemption-thrash", 5.0, (f"{figures}: preempted requests are recomputed",), figures=figures)


class _Slots(Struct, frozen=True):
    """Use of the sequence slots of each engine, or of all if the page has only sums, at the scrapes at which requests wait."""

    slots: int
    engines: int  # that have these slots together
    running: float  # on average
    full: float  # share of these scrapes with all in use
    flickers: bool  # few are free: as many as between the end of a request and the next


def _slots(evidence: WindowEvidence) -> _Slots | None:
    """Return the use of the slots; None if it is unknown. Without max_num_seqs, the most requests that ran are the slots."""
    queues = [queue for queue in evidence.scrapes.by_engine if queue.waits.any()]
    engines = 1 if queues else evidence.setup.engines
    queues = queues or [evidence.scrapes]  # without a queue of one of them, only the sum of the queues is known
    running = np.concatenate([queue.running[queue.waits] for queue in queues])
    running = running[~np.isnan(running)]
    if not running.any():
        return None
    slots = engines * (evidence.setup.max_num_seqs or 0) or round(running.max())
    full, free = float(np.mean(running >= slots)), float(np.mean(np.maximum(slots - running, 0)))
    ended, step_s = evidence.served.finished or 0, (evidence.served.server_itl_ms or 0.0) / 1000  # about an ITL
    per_step = ended / max(evidence.length_s, 1.0) * step_s / len(queues)
    return _Slots(slots, engines, float(running.mean()), full, free <= min(0.5 * slots, 0.8) + 1.25 * per_step)


def sequence_slots(evidence: WindowEvidence) -> Finding | None:
    """Return the finding that requests wait because max_num_seqs requests run, in each engine that has a queue."""
    use, usage = _slots(evidence), mean_of(evidence.scrapes.kv_usage[evidence.scrapes.waits])
    if use is None or not evidence.queued or preemption(evidence) is not None:
        return None
    known, scarce = evidence.setup.max_num_seqs is not None, usage is not None and usage >= HIGH_KV_USAGE
    blocks = scarce or head_exceeds_free(evidence)
    # A number that varies is that of the slots only if it is known, or if the token budget is free.
    flickers = use.flickers and not blocks and (known or _budget_is_used(evidence) is False)
    # vLLM checks max_num_seqs before it allocates blocks, so a full batch is the limit at any KV-cache usage.
    full = use.full >= 0.5 if known else use.full >= MIN_SHARE_FULL and not blocks
    if not (flickers or full):
        return None
    certain = known and use.full >= MIN_SHARE_FULL and not scarce and use.engines == 1
    each = " per engine" if evidence.setup.engines > use.engines else ""
    in_full = f"{percent(use.full, limit=MIN_SHARE_FULL)} of these"
    in_use = f"at most {use.slots} requests ran{each}, and this number in {in_full}, {number(use.running)} on average"
    figures = f"{number(use.running)} running{each}"
    if known:
        in_use = f"in {in_full} all {use.slots} sequence slots (max-num-seqs){each} were in use"
        figures = f"{number(use.running)} of {use.slots} slots{each}"
    weight = 4.0 if certain else 3.2 if known else 3.0
    sentences = (_queue(evidence), in_use, _usage(usage))
    return Finding("queue-bound", weight, sentences, probable=not certain, figures=f"{figures}, {_waiting(evidence)}")


def _queue(evidence: WindowEvidence) -> str:
    waited, queue_ms = percent(evidence.waiting_share, limit=QUEUED_SHARE), evidence.served.queue_ms
    mean = "" if queue_ms is None else f"; mean queue time is {number(queue_ms)} ms"
    return f"requests waited in {waited} of the scrapes{mean}"


def _running(evidence: WindowEvidence) -> str:
    """Format the mean number of running requests while others wait."""
    return number(mean_of(evidence.scrapes.running[evidence.scrapes.waits]))


def _waiting(evidence: WindowEvidence) -> str:
    return f"{number(mean_of(evidence.scrapes.capacity))} waiting on average"


def _usage(usage: float | None) -> str:
    known = f"KV-cache usage was {percent(usage, limit=HIGH_KV_USAGE)} in these"
    return "KV-cache usage is not known" if usage is None else known


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
        return Finding("kv-bound", 3.0, sentences, probable=True, figures=f"KV {percent(usage)}, {_waiting(evidence)}")
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
    if not decode_ms and (evidence.in_prefill or 0.0) < BUSY_PREFILL:  # it has nothing else to do, as one for prefill
        return None
    decode = f", mean decode time {number(decode_ms)} ms" if decode_ms else ""
    figures = f"mean prefill time is {number(prefill_ms)} ms{decode}"
    return Finding("prefill-bound", 2.5, (f"few requests waited; {figures}", *_computed(served)), figures=figures)


def _budget_is_used(evidence: WindowEvidence) -> bool | None:
    """Return False if the server's own times refute that the token budget limits; None if they do not tell.

    Where it does, a request of each engine is in prefill while others wait: rate x prefill time (Little's law).
    """
    served = evidence.served
    if served.queue_ms is not None and served.queue_ms < LEAST_QUEUE_MS:
        return False
    if evidence.in_prefill is None or served.decode_ms is None:
        return None
    return evidence.in_prefill >= 0.5 * evidence.waiting_share * evidence.setup.engines


def _queued_prefill(evidence: WindowEvidence) -> Finding | None:
    """Return the token budget as what is left over, if the server's own times support it."""
    served, used = evidence.served, _budget_is_used(evidence)
    if sequence_slots(evidence) is not None or kv_cache(evidence) is not None or used is False:
        return None
    free = evidence.setup.max_num_seqs is not None and _slots(evidence) and head_exceeds_free(evidence) is not None
    if not free and not (used and (served.prefill_ms or 0.0) >= (served.decode_ms or 0.0)):
        return None
    times = f"mean prefill time is {number(served.prefill_ms)} ms, decode time {number(served.decode_ms)} ms"
    why = "with free sequence slots and KV cache" if free else "and most of the time of the others is prefill"
    sentences = (f"{_queue(evidence)}, {why}: the token budget of a step is the limit", times, *_computed(served))
    figures = f"{_running(evidence)} running, {_waiting(evidence)}, {why}"
    return Finding("prefill-bound", 3.5 if free else 2.4, sentences, probable=not (free and used), figures=figures)


def _computed(served: Served) -> tuple[str, ...]:
    computed, generated = served.computed_tok_per_s, served.generation_tok_per_s
    if computed is None or generated is None:
        return ()
    return (f"{computed:,.0f} prompt tok/s computed, {generated:,.0f} tok/s generated",)
