"""What each word of a report means: the measures from their table, all else from here. A page links its numbers to these."""

import re

from inferload.measure.measures import MEASURES

_STATISTICS = (
    ("count", "", "samples that the line's figures are made of"),
    ("mean", "", "the sum over the count"),
    ("p50", "", "the value of nearest rank that half of the samples do not pass; p90 to p999 likewise for 90 % to 99.9 %. "
     "Not known where fewer than 10 samples lie above it"),
    ("min", "", "the smallest sample"),
    ("max", "", "the largest sample"),
)  # fmt: skip

_RATES = (
    ("offered sessions per s", "1/s", "sessions that the scenario planned for the window, over its length"),
    ("achieved sessions per s", "1/s", "sessions that were begun in the window, over its length"),
    ("turns per s", "1/s", "turns that ended well in the window, over its length"),
    ("output tok per s", "tok/s", "output tokens whose event fell into the window, over its length"),
    ("input tok per s", "tok/s", "prompt tokens of turns whose first token fell into the window, over its length"),
    ("goodput turns per s", "1/s", "turns that met every limit of the SLO, over the window's length"),
    ("slo attainment", "%", "turns that met every limit of the SLO, over all that were planned in the window: dropped and failed "
     "ones count against. In an open loop TTFT counts from the plan"),
    ("turns with a stall (a gap over 250 ms)", "", "turns with two output events more than 250 ms apart"),
    ("longest gap, ms", "ms", "the longest time between two output events of a turn"),
    ("tokens per event, mean", "", "output tokens over output events: above 1 the server sends several tokens at once"),
)  # fmt: skip

_BOOKS = (
    ("turns sent", "", "requests whose first byte went out: ok + failed + unfinished"),
    ("turns ok", "", "turns that came to their proper end"),
    ("turns failed", "", "turns that ended with one of the classes of failure"),
    ("turns unfinished", "", "turns still in flight when the drain was over"),
    ("sessions planned", "", "sessions of the schedule, in the phase of their planned start: dropped + started"),
    ("sessions dropped", "", "sessions that could not be begun when they were due"),
    ("sessions started", "", "sessions whose first turn was set about"),
    ("sessions completed", "", "sessions whose last turn ended well"),
)

_SERVERS = (
    ("KV cache usage", "%", "vllm:kv_cache_usage_perc, mean and highest over the scrapes: blocks that requests hold; cached but "
     "free blocks count as free. Of several engines the fullest"),
    ("requests running", "", "vllm:num_requests_running, summed over engines"),
    ("requests waiting", "", "vllm:num_requests_waiting, summed over engines"),
    ("prefix cache hit rate", "%", "prompt tokens found in the prefix cache over those looked up at admission"),
    ("cached prompt tokens", "", "vllm:prompt_tokens_cached_total over the window"),
    ("preemptions", "", "requests that lost their place to others and were computed again"),
    ("prompt tok/s", "tok/s", "vllm:prompt_tokens_total per second; cached tokens are in it"),
    ("prompt tok/s computed", "tok/s", "the part of it that was computed here (source local_compute)"),
    ("generation tok/s", "tok/s", "vllm:generation_tokens_total per second"),
    ("drafts accepted (speculation)", "%", "draft tokens accepted over those drafted; mean length = 1 + accepted / drafts"),
    ("TTFT mean, ms", "ms", "the server's own histogram, from its receipt of the request; p50 and p99 are buckets' bounds"),
    ("ITL mean, ms", "ms", "the server's own histogram, one sample per output of a request; p50 and p99 are buckets' bounds"),
    ("queue mean, ms", "ms", "arrival to first scheduling, of requests that ended in the window"),
    ("CPU of its front end, cores", "", "processor time of the process that serves the metrics, per second"),
    ("restarts", "", "times that a counter fell or the process's start time moved"),
    ("seen over, s", "s", "time between the two scrapes nearest to the window's ends"),
    ("GPU use", "%", "DCGM_FI_DEV_GPU_UTIL: part of the time in which anything ran on the GPU, not how much of it was used"),
    ("GPU memory, GiB", "GiB", "DCGM_FI_DEV_FB_USED, summed over GPUs"),
    ("GPU power, W", "W", "DCGM_FI_DEV_POWER_USAGE, summed over GPUs"),
    ("GPU clock, MHz", "MHz", "DCGM_FI_DEV_SM_CLOCK, the slowest GPU's"),
)  # fmt: skip

_CLIENT = (
    (
        "time a chunk waited in the client, ms",
        "ms",
        "user-space read less the kernel's receive stamp: our own part of every latency",
    ),
    ("event loop late by, ms", "ms", "how much later than asked the client's event loop woke"),
    ("garbage collection, ms", "ms", "pauses of the client's processes"),
    ("CPU share of the busiest worker", "%", "of one core, the highest second"),
    ("instants read from", "", "kernel: packets carry the time of their arrival; user: our process read the clock"),
)

_CACHE = (
    (
        "expected of an endless cache",
        "%",
        "prompt tokens that an endless prefix cache would have held, from the prompts' pieces",
    ),
    ("the same, upper bound", "%", "with all that might be shared counted as shared"),
    ("counted by the server", "%", "vllm:prefix_cache_hits_total over vllm:prefix_cache_queries_total, over the run"),
    ("told with the answers", "%", "usage.prompt_tokens_details.cached_tokens over prompt tokens, summed over turns"),
)

_LOAD = (
    ("knee", "", "the load with the most turns per second over their mean E2E (Kleinrock's power): below it more load buys more "
     "throughput than it costs in waiting, above it less. At an end of what was tried it may lie beyond"),
)  # fmt: skip

_PARTS = (
    ("client lag", "ms", "plan to send, without connecting: our own lateness"),
    ("connect", "ms", "DNS, TCP and TLS, where a connection was opened"),
    ("upload", "ms", "first byte sent to request handed over whole"),
    ("front end, network", "ms", "request written to last token, less the server's own three parts"),
    ("queue", "ms", "the server's own: arrival to first scheduling"),
    ("prefill", "ms", "the server's own: first scheduling to first token"),
    ("decode", "ms", "the server's own: first token to last"),
)

DEFINITIONS: tuple[tuple[str, str, str], ...] = (
    *((measure.name, measure.unit, measure.text) for measure in MEASURES),
    *_STATISTICS, *_RATES, *_BOOKS, *_SERVERS, *_CLIENT, *_CACHE, *_LOAD, *_PARTS,
)  # fmt: skip

# Words of a page that mean what another row says.
SAME = {
    "p90": "p50", "p95": "p50", "p99": "p50", "p999": "p50",
    "TTFT p50, ms": "TTFT mean, ms", "TTFT p99, ms": "TTFT mean, ms", "ITL p50, ms": "ITL mean, ms", "ITL p99, ms": "ITL mean, ms",
    "TTFT, median": "ttft_ms", "ITL, median": "itl_ms", "E2E, median": "e2e_ms", "Output": "output tok per s",
    "Turns that met the SLO": "slo attainment", "Failed turns": "turns failed",
    "TTFT, ms": "ttft_ms", "E2E, ms": "e2e_ms", "longest gap": "longest gap, ms", "lag, ms": "lag_ms", "TTFT p95, ms": "ttft_ms",
    "ITL p95, ms": "itl_ms", "offered sessions/s": "offered sessions per s", "achieved sessions/s": "achieved sessions per s",
    "output tok/s": "output tok per s", "failed turns": "turns failed", "ok": "turns ok", "failed": "turns failed",
    "unfinished": "turns unfinished", "hit rate": "prefix cache hit rate",
}  # fmt: skip
TEXTS = {term: text for term, _, text in DEFINITIONS}


def meant(word: str) -> str | None:
    """The term whose definition a word of the page has; None where there is none."""
    term = SAME.get(word, word)
    return term if term in TEXTS else None


def anchor(term: str) -> str:
    """The definition's place in the page."""
    return "def-" + re.sub(r"[^A-Za-z0-9_]+", "-", term).strip("-")
