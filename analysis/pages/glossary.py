"""What each word of a report means: the measures from their table, all else from here. A page links its numbers to these."""

import re

from inferload.measure.measures import MEASURES
from inferload.results.terminal_tables import TASK_ROWS
from inferload.verdict import reasons
from inferload.verdict.gates import RATE_NAMES

from ..data.figures import ALL
from ..diagnosis import rules as causes

_STATISTICS = (
    ("count", "", "samples that the line's figures are made of"),
    ("mean", "", "the sum over the count"),
    ("p50", "", "the value of nearest rank that half of the samples do not pass; p90 to p999 likewise for 90 % to 99.9 %. "
     "~: fewer than 10 samples lie above it"),
    ("min", "", "the smallest sample"),
    ("max", "", "the largest sample"),
)  # fmt: skip

_RATES = (
    ("offered sessions per s", "1/s", "sessions that the scenario planned for the window, over its length"),
    ("achieved sessions per s", "1/s", "sessions planned in the window that began in it, over its length, sub-agents not counted"),
    ("turns per s", "1/s", "turns that ended well in the window, over its length"),
    ("output tok per s", "tok/s", "output tokens whose event fell into the window, over its length"),
    ("input tok per s", "tok/s", "prompt tokens of turns whose first token fell into the window, over its length"),
    ("goodput turns per s", "1/s", "turns that ended well in the window and met every limit of the SLO, over its length"),
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
    ("server TTFT, ms", "ms", "the server's own histogram, from its receipt of the request; p50 and p99 are buckets' bounds"),
    ("server ITL, ms", "ms", "the server's own histogram, one sample per output of a request; p50 and p99 are buckets' bounds"),
    ("queue mean, ms", "ms", "arrival to first scheduling, of requests that ended in the window"),
    ("front end CPU, cores", "", "processor time of the process that serves the metrics, per second"),
    ("restarts", "", "times that a counter fell or the process's start time moved"),
    ("observed, s", "s", "time between the two scrapes nearest to the window's ends"),
    ("GPU use", "%", "DCGM_FI_DEV_GPU_UTIL: part of the time in which anything ran on the GPU, not how much of it was used"),
    ("GPU memory, GiB", "GiB", "DCGM_FI_DEV_FB_USED, summed over GPUs"),
    ("GPU power, W", "W", "DCGM_FI_DEV_POWER_USAGE, summed over GPUs"),
    ("GPU clock, MHz", "MHz", "DCGM_FI_DEV_SM_CLOCK, the slowest GPU's"),
    ("waiting, deferred", "", "requests that wait for something other than capacity: an adapter, a grammar, a transfer"),
    ("external prefix cache hit rate", "%", "prompt tokens found in a cache outside the engine, over those looked up there"),
    ("MM cache hit rate", "%", "pictures and the like whose processed form was at hand"),
    ("mean acceptance length", "", "tokens of a step with speculation: 1 + accepted / drafts"),
    ("accepted tok/s", "tok/s", "draft tokens accepted per second; the one that each step adds is not in it"),
    ("drafted tok/s", "tok/s", "draft tokens proposed per second"),
    ("accepted tokens", "", "draft tokens accepted since the line before"),
    ("drafted tokens", "", "draft tokens proposed since the line before"),
    ("accepted at position", "%", "how often the draft at this place, from 0 on, was accepted"),
    ("lines", "", "lines of the log that say it"),
)  # fmt: skip

_CLIENT = (
    (
        "client delay, ms",
        "ms",
        "user-space read less the kernel's receive stamp: our own part of every latency",
    ),
    ("event loop lag, ms", "ms", "delay of timers in the event loop of a worker"),
    ("garbage collection, ms", "ms", "pauses of the client's processes"),
    ("CPU, busiest worker", "%", "of one core, the highest second"),
    ("timestamps", "", "kernel: receive time of the packet; user: clock of the worker process at the read"),
    ("CPU steal", "%", "processor time that the hypervisor gave to other machines"),
    ("longest pause between reads, ms", "ms", "longest time in which a worker with data in flight read no socket"),
)

_CACHE = (
    (
        "expected, unlimited cache",
        "%",
        "prompt tokens that an endless prefix cache would have held, from the prompts' pieces",
    ),
    ("expected, upper bound", "%", "with all that might be shared counted as shared"),
    ("counted by the server", "%", "vllm:prefix_cache_hits_total over vllm:prefix_cache_queries_total, over the run"),
    (
        "reported per turn (usage)",
        "%",
        "usage.prompt_tokens_details.cached_tokens over prompt tokens, summed over turns",
    ),
)

_TURNS = (
    ("planned at, s", "s", "the planned instant, since the run's start"),
    ("input tokens", "", "tokens of the prompts, as the server's usage says"),
    ("cached", "", "of these, tokens that the prefix cache had (usage.prompt_tokens_details.cached_tokens)"),
    ("output tokens", "", "tokens of the answers, as the server's usage says"),
    ("turns", "", "turns that the line's figures are made of"),
    ("total, ms", "ms", "the planned instant to the last token: the mean of the turns of the line"),
    ("window, s", "s", "length of what was measured, without warm-up and drain"),
    ("failed_ratio", "", "turns failed over turns that ended (ok + failed), in the measure phase"),
    ("dropped_ratio", "", "sessions dropped over sessions planned, in the measure phase"),
    ("failures by class", "", "turns that failed, by the first thing that went wrong: the classes are a closed list"),
    ("first at, s", "s", "end of the first turn that failed with this class, since the run's start"),
    ("seed", "", "number that all random choices of the run follow from"),
    ("worker", "", "the process that sent the turn"),
    ("workers", "", "processes that sent the load"),
    ("phases", "", "the run's parts: a turn belongs to that of its planned instant, and figures are of the measure phase"),
)  # fmt: skip

_TASKS = (
    ("whole task", "s", "first turn's plan to the last one's end, of tasks of the measure phase that were done"),
    ("model time", "s", "of a task: its turns, from the send to the end"),
    ("tool time", "s", "of a task: what its tools took between turns"),
    ("think time", "s", "of a task: what its person took between requests"),
    ("lag", "s", "of a task: how late its turns were sent, summed"),
    ("first call", "s", "the task's first plan to the end of the turn that made the first tool call"),
    ("steps", "", "turns of a task"),
)  # fmt: skip

_SEARCH = (
    ("load", "", "sessions per second in an open loop, users in a closed loop"),
    ("verdict", "", "holds or breaks: the whole interval lies on one side of the condition; undecided: it does not; overloaded: "
     "turns in flight grew, so that there is no steady value"),
    ("measured", "s", "length of the window"),
    ("run", "", "the directory below points/ that holds the point's run"),
)  # fmt: skip

_COMPARED = (
    ("input + output tok per s", "tok/s", "the rates of input and of output tokens, summed"),
    ("runs", "", "runs of the mean, without invalid ones"),
    ("change", "%", "candidate / baseline - 1: over pairs of runs if there are any, else of the two means"),
    ("95 % CI", "%", "confidence interval of the change, from the spread of the pairs"),
    ("p", "", "probability of a change of this size or larger without a difference: paired t-test over pairs of runs, with "
     "Holm's correction for all but the primary figure"),
    ("p, sign flips", "", "the same without a distribution: permutation test over all swaps of the sides of the pairs"),
)  # fmt: skip

_AGREE = (
    ("parts of a turn", "", "whether the times that the server reports with a turn fit into the turn"),
    ("requests", "", "turns that we sent against vllm:request_success_total, between two instants at which the server was idle"),
    ("prompt tokens", "", "usage.prompt_tokens of our turns against vllm:prompt_tokens_total, likewise"),
    ("output tokens, both", "", "usage.completion_tokens of our turns against vllm:generation_tokens_total, likewise"),
    ("turns against histograms", "ms", "means of what the server reports with each turn against those of its histograms"),
    ("Little's law", "", "requests on average = their rate x their mean time"),
    ("front end", "ms", "request written to last token, less the server's own queue, prefill and decode"),
    ("sums", "", "whether client and server counted the same, between two instants at which the server was idle"),
)  # fmt: skip

_LOCUST = (
    ("requests by Locust", "", "requests that the locustfile fired, with their failures"),
    ("response time by Locust", "ms", "what the locustfile timed; Locust rounds its percentiles to two digits"),
)  # fmt: skip

_JUDGED = tuple((rule.code, "", rule.means) for rule in reasons.RULES) + tuple(
    (rule.code, "", f"{rule.looks_like}; {rule.limits}") for rule in causes.RULES
)

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
    *_STATISTICS, *_RATES, *_BOOKS, *_SERVERS, *_CLIENT, *_CACHE, *_PARTS,
    *_TURNS, *_TASKS, *_SEARCH, *_COMPARED, *_AGREE, *_LOCUST, *_JUDGED,
)  # fmt: skip

# A figure of a comparison stands as a column, and as a row with or without a mark.
_FIGURES = {
    form.format(figure.title, figure.unit): figure.name.partition("(")[2].rstrip(")") or figure.name.replace("_", " ")
    for figure in ALL
    for form in ("{} ({})", "{}, {}", "{}, {} (primary)", "{}")
}

# Server metrics as gates name them.
SERVER_METRICS = {
    "kv_cache_usage": "KV cache usage", "requests_running": "requests running", "requests_waiting": "requests waiting",
    "prefix_cache_hit_rate": "prefix cache hit rate", "cached_tokens": "cached prompt tokens", "preemptions": "preemptions",
    "restarts": "restarts", "prompt_tok_per_s": "prompt tok/s", "prompt_tok_computed_per_s": "prompt tok/s computed",
    "generation_tok_per_s": "generation tok/s", "queue_ms": "queue", "prefill_ms": "prefill", "decode_ms": "decode",
    "process_cpu_share": "front end CPU, cores", "acceptance_rate": "drafts accepted (speculation)",
    "mean_acceptance_length": "mean acceptance length", "gpu_use": "GPU use", "gpu_power_w": "GPU power, W",
    "gpu_sm_clock_mhz": "GPU clock, MHz",
}  # fmt: skip

# Words of a page that mean what another row says.
SAME = {
    **_FIGURES, "total tok per s": "input + output tok per s",
    "p90": "p50", "p95": "p50", "p99": "p50", "p999": "p50",
    "TTFT": "ttft_ms", "ITL": "itl_ms", "TPOT": "tpot_ms", "E2E": "e2e_ms", "Output, tok/s": "output tok per s",
    "SLO attainment": "slo attainment", "Failed turns": "turns failed",
    "TTFT, ms": "ttft_ms", "E2E, ms": "e2e_ms", "E2E from plan, ms": "e2e_planned_ms", "lag, ms": "lag_ms",
    **{f"{name} {q}, ms": f"{name.lower()}_ms" for name in ("TTFT", "ITL") for q in ("mean", "p50", "p95", "p99")},
    "offered sessions/s": "offered sessions per s", "achieved sessions/s": "achieved sessions per s",
    "output tok/s": "output tok per s", "turns/s": "turns per s", "failed turns": "turns failed", "ok": "turns ok",
    "failed": "turns failed", "unfinished": "turns unfinished", "hit rate": "prefix cache hit rate",
    "sessions/s": "load", "users": "load", "goodput, turns/s": "goodput turns per s",
    "Seed": "seed", "Workers": "workers", "Phases": "phases", "Measured window": "window, s", "Percentiles from": "p50",
    **{name: name.replace("_", " ") for name in RATE_NAMES}, **SERVER_METRICS,
    **{f"{text}, {unit}": text for text in TASK_ROWS.values() for unit in ("s", "turns")},
}  # fmt: skip
# The same, of words that mean something else in one table.
IN_TABLE: dict[str, dict[str, str]] = {
    "servers": {f"{name} {q}, ms": f"server {name}, ms" for name in ("TTFT", "ITL") for q in ("mean", "p50", "p99")}
    | {"queue mean, ms": "queue mean, ms"},
    "agreement": {"output tokens": "output tokens, both", "Little's law, queue": "Little's law"},
    "server-log": {f"accepted at position {place}": "accepted at position" for place in range(64)},
    "failures": {"turns": "failures by class", "in the measure phase": "failures by class"},
    "locust": {"requests": "requests by Locust", "failures": "requests by Locust", "requests/s": "requests by Locust"}
    | {f"{name}, ms": "response time by Locust" for name in ("mean", "p50", "p95", "p99", "max")},
}


def anchor(term: str) -> str:
    """The definition's place in the page."""
    return "def-" + re.sub(r"[^A-Za-z0-9_]+", "-", term).strip("-")
