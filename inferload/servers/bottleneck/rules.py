"""Rules of the diagnosis: a pure function for each cause. The thresholds are set by judgement."""

from collections.abc import Callable

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from inferload.base.numbers import apart, number, percent
from inferload.figures.client_figures import LATE_CLIENT, LEAST_DELAY_MS
from inferload.figures.rate_figures import HELD_EVENTS, joined_on_the_way
from inferload.figures.turn_figures import ITL, TPOT
from inferload.servers.bottleneck import queue_rules
from inferload.servers.bottleneck.evidence import LEAST_STILL_S, ItlByLoad, WindowEvidence, mean_of, ranks_of
from inferload.servers.bottleneck.finding import BUSY_CLIENT, LEAST_QUEUE_MS, QUEUED_SHARE, Finding
from inferload.servers.roles import DECODE, PREFILL

KEPT_UP = "kept-up"
BETWEEN = ("stream-held", "network-bound", "before-server")  # causes between client and server
_LEAST_EXTRA_MS = 10.0  # of TTFT between client and server
_BUSY_FRONT_END = 0.9  # of a core
_BETWEEN_WEIGHT = 2.7
_LOAD_SHARE = 0.5  # of the time before the first token
_TRANSFER_SHARE = 0.25  # of the time that requests wait for KV blocks
_LEAST_HELD, _HELD_SHARE = 4, 0.1  # scrapes of a server that runs nothing while turns are in flight
LEAST_TURNS = 10  # that ended well, for a server that kept up


class CauseRule(Struct, frozen=True):
    """Cause and its test. `looks_like`, `limits`: documentation; `judge`: returns the finding, None if the cause does not hold."""

    code: str
    title: str
    looks_like: str
    limits: str
    judge: Callable[[WindowEvidence], Finding | None]


def _client(evidence: WindowEvidence) -> Finding | None:
    """Return the client as the primary cause if it invalidates the measurement, else as a contributing cause."""
    sentences = []
    delay, gap, share = evidence.client.client_delay_p99_ms, _gap_ms(evidence), evidence.client.client_cpu_share
    delayed = delay is not None and gap is not None and delay >= LEAST_DELAY_MS and delay > LATE_CLIENT * gap
    if delayed:
        sentences.append(f"client delay p99 is {number(delay)} ms, the typical gap of a stream {number(gap)} ms")
    if share is not None and share > BUSY_CLIENT:
        sentences.append(f"the busiest client process used {percent(share, limit=BUSY_CLIENT)} of a core")
    reasons = evidence.client.client_reasons
    sentences += [reason.text.partition(";")[0] for reason in reasons if reason.code != "client_delay" or not delayed]
    decisive = (
        (delayed and delay is not None and gap is not None and delay > gap)
        or (share is not None and share > 0.97)
        or any(reason.level == "invalid" for reason in reasons)
    )
    return Finding("client-bound", 100.0 if decisive else 0.5, tuple(sentences)) if sentences else None


def _gap_ms(evidence: WindowEvidence) -> float | None:
    """Return the typical gap of a stream: that of the server, if a proxy, gateway or router has joined its events."""
    known = [gap for gap in (evidence.client.client_gap_ms, evidence.served.server_itl_ms) if gap is not None]
    return max(known, default=None)


def is_held(evidence: WindowEvidence) -> bool:
    """Return True if events arrive together that a late client has not joined."""
    client = evidence.client
    delay_ms, gap_ms = client.client_delay_p99_ms, _gap_ms(evidence)
    joined = joined_on_the_way(client.events_per_arrival, delay_ms, gap_ms, client.tokens_per_event)
    return joined is not None and joined > HELD_EVENTS


def _held(evidence: WindowEvidence) -> Finding | None:
    if not evidence.client.attributed or not is_held(evidence):
        return None
    gap = evidence.served.server_itl_ms
    apart = "" if gap is None else f"; the server's mean gap is {number(gap)} ms"
    figures = f"{number(evidence.client.events_per_arrival)} events arrive together{apart}"
    return Finding("stream-held", 6.0, (figures, "TTFT and ITL are those of what holds the stream, not the server's"))


def _extra_ms(evidence: WindowEvidence) -> float | None:
    """Return the part of TTFT between client and server, if it matters. The server's own TTFT includes its queue."""
    client, server = evidence.client.client_ttft_ms, evidence.served.server_ttft_ms
    if not evidence.client.attributed or client is None or server is None or is_held(evidence):
        return None
    if evidence.setup.role is not None:  # another server has a part of each request
        return None
    return client - server if client - server > max(_LEAST_EXTRA_MS, 0.1 * server) else None


def _both(evidence: WindowEvidence) -> str:
    """Format TTFT of client and server."""
    client, server = evidence.client.client_ttft_ms, evidence.served.server_ttft_ms
    return (
        f"mean TTFT is {number(client)} ms at the client (turns that ended well), {number(server)} ms in the server "
        "(all its requests, its queue included)"
    )


def _network(evidence: WindowEvidence) -> Finding | None:
    extra_ms, trip_ms = _extra_ms(evidence), evidence.client.round_trip_ms
    if extra_ms is None or trip_ms is None or trip_ms <= 0.5 * extra_ms:
        return None
    trip = f"the round trip of the network is {number(trip_ms)} ms"
    return Finding("network-bound", _BETWEEN_WEIGHT, (_both(evidence), trip), figures=f"{trip}, {_both(evidence)}")


def _before_server(evidence: WindowEvidence) -> Finding | None:
    """Return the finding that requests wait, unless the network or an API server that uses a whole core explains it."""
    extra_ms, trip_ms, cpu = _extra_ms(evidence), evidence.client.round_trip_ms, evidence.served.server_cpu_share
    if extra_ms is None or _network(evidence) is not None or (cpu is not None and cpu > _BUSY_FRONT_END):
        return None
    if not evidence.client.behind and evidence.client.client_reasons:  # a busy machine, on which the server may be too
        return None
    trip = "" if trip_ms is None else f"; a round trip of the network takes {number(trip_ms)} ms"
    waits = f"requests wait {number(extra_ms)} ms before the server counts them{trip}"
    sentences = (_both(evidence), waits, *evidence.client.routers)
    if not evidence.client.behind:
        late = "in a proxy at this address, or because the API server or its machine reads them late"
        return Finding("before-server", 2.0, (*sentences, late), probable=True)
    if cpu is None:
        late = "in a proxy, gateway or router, or because the API server, whose CPU time is not known, reads them late"
        return Finding("before-server", _BETWEEN_WEIGHT, (*sentences, late), probable=True)
    weight = 4.5 if extra_ms > (evidence.served.server_ttft_ms or 0.0) else _BETWEEN_WEIGHT
    return Finding("before-server", weight, sentences)


def _front_end(evidence: WindowEvidence) -> Finding | None:
    sentences: list[str] = []
    merged, interval = evidence.client.tokens_per_event, evidence.setup.stream_interval
    busy = evidence.served.server_cpu_share
    speculates = evidence.served.mean_acceptance_length is not None
    batches = interval is None or interval > 1  # merged events are configured
    if merged is not None and merged > 1.05 and not speculates and not batches:
        sentences.append(
            f"{merged:.2f} tokens per event without speculation: the API server merges events because it cannot send them in time"
        )
    if busy is not None and busy > _BUSY_FRONT_END:
        sentences.append(f"the API server process used {busy:.2f} of a core")
    return Finding("front-end-bound", 2.0, tuple(sentences)) if sentences else None


def _decode(evidence: WindowEvidence) -> Finding | None:
    served, slo = evidence.served, evidence.run.slo
    queue, prefill, decode = served.queue_ms, served.prefill_ms, served.decode_ms
    if evidence.queued or queue is None or prefill is None or decode is None:
        return None
    whole = queue + prefill + decode
    computed, generated = served.computed_tok_per_s, served.generation_tok_per_s
    unknown = computed is None or generated is None
    if decode <= 0.8 * whole or (computed is not None and generated is not None and computed >= generated):
        return None
    itl, limit = served.server_itl_ms, slo.get(TPOT.key) or slo.get(ITL.key)
    over = itl is not None and limit is not None and itl > limit
    rise = _rise(evidence.itl)
    alone_ms, ratio = evidence.itl.itl_alone_ms, evidence.itl.load_ratio
    # At the same load, an ITL above its lowest value is not the effect of the load.
    slower = None not in (itl, alone_ms, ratio) and (ratio or 0.0) > 1.3 and (itl or 0.0) > 1.3 * (alone_ms or 0.0)
    if not (over or rise or slower):
        return None
    sentences = [f"few requests waited; decode is {percent(decode / whole)} of the request time"]
    if itl is not None:
        beside = f"{apart(itl, limit)} ms, its limit {number(limit)}" if over and limit is not None else number(itl)
        sentences.append(f"the server's mean ITL is {beside} ms")
    return Finding("decode-bound", 2.2 if over else 1.8, (*sentences, *rise), probable=unknown)


def _rise(itl: ItlByLoad) -> list[str]:
    if itl.itl_by_running is None or itl.itl_by_running[1] <= 1.15 * itl.itl_by_running[0]:
        return []
    few, many = map(number, itl.itl_by_running)
    return [f"ITL rises with the number of running requests: {few} to {many} ms"]


def _cache_miss(evidence: WindowEvidence) -> Finding | None:
    expected, counted = evidence.run.expected_hit_rate, evidence.run.counted_hit_rate
    if expected is None or counted is None or expected - counted <= 0.10 or evidence.setup.role == DECODE:
        return None
    hits = f"{percent(counted)} of the prompt tokens were prefix-cache hits; an unlimited cache would have had {percent(expected)}"
    if evidence.run.engine_hit_rate is not None and evidence.run.engine_hit_rate < expected:
        hits += f", the memory of the engine about {percent(evidence.run.engine_hit_rate)}"
    notes = (f"these rates are approximate: {note}" for note in evidence.run.hit_notes)
    return Finding("cache-miss-bound", 2.8, (hits, *notes), probable=True)


def _tier_load(evidence: WindowEvidence) -> Finding | None:
    """Return the finding that loads of KV take most of the time before the first token, in which they are."""
    served = evidence.served
    if served.load_ms is None or served.queue_ms is None or served.prefill_ms is None:
        return None
    ranks = ranks_of(evidence.setup)
    load_ms, before_ms = served.load_ms / (ranks or 1), served.queue_ms + served.prefill_ms
    if load_ms < LEAST_QUEUE_MS or load_ms <= _LOAD_SHARE * before_ms:
        return None
    figures = f"loads of KV take {number(load_ms)} ms per request, queue and prefill together {number(before_ms)} ms"
    return Finding("tier-load", 3.6, (figures,), probable=ranks is None or load_ms > before_ms)


def _speculation(evidence: WindowEvidence) -> Finding | None:
    length, drafted = evidence.served.mean_acceptance_length, evidence.served.draft_tokens
    if length is None or not drafted or length >= 1.3:
        return None
    text = f"{length:.2f} tokens per step at {drafted} draft tokens: compare with a run without speculation"
    return Finding("speculation", 1.5, (text,), probable=True)


def transfer(evidence: WindowEvidence) -> Finding | None:
    """Return the finding that requests wait for KV blocks of another server rather than for capacity."""
    served, capacity = evidence.served, mean_of(evidence.scrapes.capacity) or 0.0
    fetching = np.zeros(1) if evidence.scrapes.fetching is None else evidence.scrapes.fetching
    waiting, queue_ms, transfer_ms = mean_of(fetching) or 0.0, served.queue_ms or 0.0, served.transfer_ms or 0.0
    often = waiting > capacity and np.mean(np.nan_to_num(fetching) > 0) >= QUEUED_SHARE
    # By Little's law. vLLM lets a request whose blocks have arrived wait until the running step ends.
    in_transfer = (served.transfers or 0) * transfer_ms / 1000 / max(evidence.length_s, 1.0)
    at_scrapes = often and (served.transfer_ms is None or in_transfer >= _TRANSFER_SHARE * waiting)
    whole_ms = queue_ms + (served.prefill_ms or 0.0) + (served.decode_ms or 0.0)
    long = queue_ms >= max(LEAST_QUEUE_MS, QUEUED_SHARE * whole_ms) and transfer_ms >= 0.5 * queue_ms
    if not served.transfers or not (at_scrapes or (long and evidence.waiting_share < QUEUED_SHARE)):
        return None
    figures = f"a transfer takes {number(served.transfer_ms)} ms"
    figures += "" if served.queue_ms is None else f", mean queue time is {number(served.queue_ms)} ms"
    waits = f"{number(waiting)} requests fetched KV blocks on average, {number(capacity)} waited for capacity"
    return Finding("transfer-bound", 3.1, (figures, waits))


def _deferred(evidence: WindowEvidence) -> Finding | None:
    if transfer(evidence) is not None:
        return None
    deferred = np.nan_to_num(evidence.scrapes.deferred)
    share = deferred.sum() / max(1e-9, deferred.sum() + np.nansum(evidence.scrapes.capacity))
    if share <= 0.2 or np.mean(deferred > 0) < QUEUED_SHARE:
        return None
    text = f"{percent(share, limit=0.2)} of the waiting requests wait for something other than capacity"
    return Finding("deferred", 3.0, (text,))


def _unbalanced(evidence: WindowEvidence) -> Finding | None:
    """Return the finding that some engines have more to do than others: the cause of a queue that others could serve."""
    spread = evidence.served.engines_kv_spread
    waiting = np.array([mean_of(engine.capacity) for engine in evidence.scrapes.by_engine], dtype=np.float64)
    queued, idle = int(np.sum(waiting > 0.5)), int(np.sum(waiting < 0.05))
    sentences = [f"{queued} of {len(waiting)} engines have a queue, {idle} none"] if queued and idle else []
    first = sentences or (evidence.queued and queue_rules.sequence_slots(evidence) is None)
    if spread is not None and (sentences or spread > 0.3):
        sentences = [*sentences, f"KV-cache usage differs by {percent(spread, limit=0.3)} between engines"]
    return Finding("engines-unbalanced", 4.2 if first else 2.6, tuple(sentences)) if sentences else None


def paused(evidence: WindowEvidence) -> Finding | None:
    """Return the finding that the server runs nothing although turns are in flight; vLLM may still publish some as waiting."""
    scrapes = evidence.scrapes
    if scrapes.in_flight is None or not evidence.client.attributed:
        return None
    never = np.zeros(len(scrapes.in_flight), dtype=np.bool_)
    asleep, still = (never if mask is None else mask for mask in (scrapes.asleep, scrapes.still))
    nothing_runs = (scrapes.running == 0) & (np.nan_to_num(scrapes.deferred) == 0)
    held = (scrapes.in_flight > 0) & (nothing_runs | asleep | still)
    if np.count_nonzero(held) < _LEAST_HELD or np.mean(held) < _HELD_SHARE:
        return None
    certain = (held & asleep).any()
    # vLLM publishes a request at the end of its first step: a long one is in the prefill time of the request when it ends.
    in_step = float(np.where(nothing_runs, scrapes.in_flight, 0.0).mean()) <= 2 * (evidence.in_prefill or 0.0)
    if not (certain or still.any()) and in_step:
        return None
    if not certain and _before_server(evidence) is not None:  # the server has nothing to do because they wait before it
        return None
    stands = "no request ran" if (held & ~still).any() else f"no figure of the server changed for {LEAST_STILL_S:g} s"
    waited = f"{number(mean_of(scrapes.in_flight[held]))} turns waited for output, and {stands}"
    figures = f"in {percent(float(np.mean(held)), limit=_HELD_SHARE)} of the scrapes {waited}"
    sentences = (figures, "its sleep state is not awake") if certain else (figures,)
    return Finding("paused", 5.5, sentences, probable=not certain)


def _kept_up(evidence: WindowEvidence) -> Finding | None:
    """Return the headroom of a server that kept up."""
    run = evidence.run
    few = run.turns is not None and run.turns < LEAST_TURNS
    if run.troubled or few or evidence.queued or (run.rates is None and not evidence.waiting_known):
        return None
    sentences = [] if run.rates is None else [run.rates]
    if evidence.waiting_known:
        waited = percent(evidence.waiting_share, limit=QUEUED_SHARE)
        sentences.append(f"requests waited for capacity in {waited} of the scrapes")
    if run.missed:
        sentences.append(f"latencies miss their limit although few requests waited: {', '.join(run.missed)}")
    headroom = _headroom(evidence)
    figures = "; ".join([*sentences[-1:], *headroom[:1]])
    steady = _steady(evidence.served.server_itl_ms, evidence.itl.itl_alone_ms)
    return Finding(KEPT_UP, 0.1, (*sentences, *headroom, *steady), figures=figures)


def _headroom(evidence: WindowEvidence) -> list[str]:
    queues = evidence.scrapes.by_engine or (evidence.scrapes,)
    fullest = max(queues, key=lambda queue: np.nanmax(queue.running, initial=0.0))
    running, usage = (values[~np.isnan(values)] for values in (fullest.running, evidence.scrapes.kv_usage))
    if evidence.setup.role == PREFILL:
        running = running[:0]  # a request that ends with its first step is never published as running
    cap, sentences = evidence.setup.max_num_seqs, []
    if len(running) and cap is not None:
        slots = cap * (1 if evidence.scrapes.by_engine else evidence.setup.engines)
        of = " of the fullest engine" if len(queues) > 1 else ""
        sentences.append(
            f"at most {running.max():.0f} of {slots} sequence slots{of} were in use ({percent(running.max() / slots)}), "
            f"{number(running.mean())} on average"
        )
    elif len(running):
        sentences.append(
            f"at most {running.max():.0f} requests ran, {number(running.mean())} on average; max-num-seqs is not known"
        )
    if len(usage):
        sentences.append(f"KV-cache usage was at most {percent(usage.max())}")
    return sentences


def _steady(itl: float | None, alone: float | None) -> list[str]:
    if itl is None or alone is None:
        return []
    if itl <= 1.1 * alone:
        return [f"mean ITL ({number(itl)} ms) is that of the second with the lowest ITL ({number(alone)} ms)"]
    return [f"mean ITL is {number(itl)} ms, {number(alone)} ms in the second with the lowest ITL"]


RULES: tuple[CauseRule, ...] = (
    CauseRule(
        "client-bound",
        "The load generator limits",
        f"client delay p99 of {LEAST_DELAY_MS:g} ms or more and above half the typical gap of a stream, a client process above "
        "85 % of a core, or turns sent late; primary cause above the gap or 97 %, or if the verdict is invalid for one of these "
        "reasons",
        "checked first; as the primary cause it invalidates all others",
        _client,
    ),
    CauseRule(
        "stream-held",
        "The stream is held on its way",
        f"more than {HELD_EVENTS:g} output events per arrival, without those that a late client can have joined (p99 of its "
        "delay / mean gap)",
        "a proxy, a gateway and a server that writes several events at once are not distinguished; of the whole run",
        _held,
    ),
    CauseRule(
        "network-bound",
        "The network",
        f"client TTFT above the server's by {_LEAST_EXTRA_MS:g} ms and 10 %, of which over half is one round trip",
        "the round trip is that to the first proxy, if there is one; needs Linux on the client",
        _network,
    ),
    CauseRule(
        "before-server",
        "Requests wait before the server",
        f"client TTFT above the server's by {_LEAST_EXTRA_MS:g} ms and 10 %, no long round trip, and the API server does not use a "
        "core",
        "in a proxy, gateway or router, with the retries and queue of its page if there is one; probable if turns were sent to the "
        "address of the metrics page, or without process metrics of the API server; of several servers behind one address only "
        "together",
        _before_server,
    ),
    CauseRule(
        "paused",
        "The server runs nothing",
        f"at {percent(_HELD_SHARE)} of the scrapes, and at least {_LEAST_HELD}, turns have waited for output for a second while no "
        f"request runs, no gauge or token counter changes for {LEAST_STILL_S:g} s, or the sleep state is not awake",
        "paused, asleep, hanging, or requests that do not reach it; without a sleep state probable, and not stated if requests "
        "wait before the server or half of that time is in their prefill; needs the turns of this server, and running requests "
        "that include those in prefill",
        paused,
    ),
    CauseRule(
        "preemption-thrash",
        "Preemption",
        "10 preemptions or more, and above 5 % of the finished requests",
        "the counter increases at the next token of the preempted request; recomputed tokens are not counted",
        queue_rules.preemption,
    ),
    CauseRule(
        "queue-bound",
        "max-num-seqs reached",
        "requests wait for capacity (20 % of the scrapes, or of their time and 10 ms), then max-num-seqs requests run in each "
        "engine with a queue, or as many less as end in a step; no preemptions",
        "probable if they run at fewer than 80 % of these scrapes, at a KV-cache usage from 85 % on, and if max-num-seqs is "
        "unknown: the number of running requests is then constant",
        queue_rules.sequence_slots,
    ),
    CauseRule(
        "kv-bound",
        "KV cache too small for the head of the queue",
        "requests wait, sequence slots are free, and the uncached prompt of the head needs more whole blocks than are free; the "
        "block that vLLM reserves is not free",
        "whole prompts are allocated, so usage may be near 50 %; usage above 95 % alone is not evidence; probable if the sizes of "
        "cache and block are not published",
        queue_rules.kv_cache,
    ),
    CauseRule(
        "prefill-bound",
        "Prefill",
        "requests wait with free sequence slots and blocks, so the token budget limits, and by the server's own times at least "
        "half a request is in prefill per engine; or most of the request time is prefill",
        "without the server's times probable, and with unknown slots or blocks only if prefill takes longer than decode",
        queue_rules.prefill,
    ),
    CauseRule(
        "decode-bound",
        "Decode",
        "few requests wait, over 80 % of the request time is decode, more tokens are generated than computed, and ITL is over its "
        "limit or rises with the load",
        "memory bandwidth, compute and host are not distinguished",
        _decode,
    ),
    CauseRule(
        "cache-miss-bound",
        "Prefix-cache misses",
        "hit rate of all tiers 10 points below that of an unlimited cache",
        "rates of all servers over the whole run; the reason is not counted: salt, a changing prefix, reuse shorter than a block, "
        "or eviction",
        _cache_miss,
    ),
    CauseRule(
        "tier-load",
        "Loads from another cache tier",
        f"by the server's own counters, loads of KV from other tiers take {LEAST_QUEUE_MS:g} ms per request or more, and more "
        f"than {percent(_LOAD_SHARE)} of its time in queue and prefill",
        "needs the seconds of loads ([tiers](../background/cache.md#tiers)); probable if they exceed that time (loads overlap, or "
        "are of requests that have not ended), and if the command line of vLLM is not known, which counts those of all ranks",
        _tier_load,
    ),
    CauseRule(
        "front-end-bound",
        "The API server",
        "several tokens per event without speculation, or its process uses a whole core",
        "no process metrics with several API servers",
        _front_end,
    ),
    CauseRule(
        "deferred",
        "Deferred requests",
        "at 20 % of the scrapes or more requests wait for something other than capacity; they are over 20 % of those that wait",
        "LoRA and grammars are not distinguished; nor is a KV transfer whose server does not count transfers",
        _deferred,
    ),
    CauseRule(
        "transfer-bound",
        "KV transfer",
        "KV blocks were fetched from another server, and at 20 % of the scrapes requests fetch, more than wait for capacity, "
        f"for {percent(_TRANSFER_SHARE)} of their time at least by the times of the transfers; or queue time is "
        f"{LEAST_QUEUE_MS:g} ms and 20 % of a request or more, half of it the transfer, and few wait for capacity",
        "the queue time of vLLM contains the transfer; needs the counters of the NixlConnector",
        transfer,
    ),
    CauseRule(
        "engines-unbalanced",
        "Unbalanced engines",
        "KV-cache usage differs by more than 30 points between engines, or one has a queue and another none",
        "needs the engine label; secondary if all slots of the engines with a queue are in use and none is idle",
        _unbalanced,
    ),
    CauseRule(
        "speculation",
        "Speculative decoding is inefficient",
        "mean acceptance length below 1.3",
        "only a run without speculation shows the effect; synthetic text is not representative",
        _speculation,
    ),
    CauseRule(
        KEPT_UP,
        "The server kept up",
        f"no other rule holds, requests wait in less than {percent(QUEUED_SHARE)} of the scrapes and of their time, {LEAST_TURNS} "
        "turns or more ended well, none failed but refused ones, and in an open loop the number of turns in flight did not grow",
        "headroom is given only if max-num-seqs and the gauges are known; latencies can miss their limits, which are then named",
        _kept_up,
    ),
)


def between(evidence: WindowEvidence) -> list[Finding]:
    """Return the findings on proxies, gateways, routers and the network."""
    findings = (rule(evidence) for rule in (_held, _network, _before_server))
    return [finding for finding in findings if finding is not None]


class WindowDiagnosis(Struct, frozen=True):
    """Findings of a window, by descending weight."""

    evidence: WindowEvidence
    findings: tuple[Finding, ...]

    @property
    def primary(self) -> Finding | None:
        """Finding with the highest weight; None if no rule holds."""
        return self.findings[0] if self.findings else None


def judge(evidence: WindowEvidence) -> WindowDiagnosis:
    """Apply all rules to a window. Gaps of a held stream, and of the turns of other servers, say nothing about the server."""
    if is_held(evidence) or not evidence.client.attributed:
        evidence = replace(evidence, itl=ItlByLoad())
    findings = [finding for rule in RULES if (finding := rule.judge(evidence)) is not None]
    causes = [finding for finding in findings if finding.code != KEPT_UP]
    return WindowDiagnosis(evidence, tuple(sorted(causes or findings, key=lambda finding: -finding.weight)))
