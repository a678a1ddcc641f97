"""Definitions of the terms of a report: measures from their table, others from here. Pages link their numbers to them."""

import re

from inferload.figures.client_figures import CLIENT_FIGURES
from inferload.figures.rate_figures import RATE_FIGURES
from inferload.figures.servers.server_figures import SERVER_FIGURES
from inferload.figures.turn_figures import TURN_FIGURES
from inferload.results.tables.server_tables import OBSERVED
from inferload.results.verdict import reasons
from inferload.servers.bottleneck import rules as causes
from inferload.turns.states import NOT_SERVED_TEXT, NOT_SERVED_WORD, STATES

from ..data.figures import OF_GOALS
from ..data.vllm_log import LOG_FIGURES

_STATISTICS = (
    ("count", "", "number of samples"),
    ("mean", "", "sum / count"),
    ("p50", "", "median (nearest rank); p90 to p99.9 likewise. ~: fewer than 10 samples above the percentile"),
    ("min", "", "smallest sample"),
    ("max", "", "largest sample"),
)  # fmt: skip

_RATES = (
    ("slo missed", "", "limit of one turn, and turns that missed it / turns planned in the window; those not served (failed, "
     "unfinished, dropped) miss the SLO whatever their latencies, and are counted by their own word"),
    ("turns with a stall (a gap over 250 ms)", "", "successful turns with two output events more than 250 ms apart; gaps in which "
     "the client was blocked do not count"),
    ("longest gap, ms", "ms", "longest gap that is a stall; in the table of the slowest turns: longest time between two output "
     "events of the turn"),
    ("tokens per event, mean", "", "output tokens / output events; above 1 the server sends several tokens per event"),
)  # fmt: skip

_COUNTS = (
    *((state.title, "", state.text) for state in STATES),
    (NOT_SERVED_WORD, "", NOT_SERVED_TEXT),
    ("requests without a connection", "", "turns that failed before a byte of their request was sent"),
    ("requests sent", "", "requests that may have arrived at the server: before the load, and first and second ones of turns"),
)  # fmt: skip

_SERVERS = (
    (OBSERVED, "s", "time between the scrapes nearest to the ends of the window"),
    ("accepted at position", "%", "acceptance rate of the draft token at this position, from 0"),
    ("lines", "", "lines of the log with a value"),
)  # fmt: skip

_CLIENT = (("timestamps", "", "kernel: receive time of the packet; user: clock of the worker process at the read"),)

_CACHE = (
    ("expected, unlimited cache", "%", "hit rate of an unlimited prefix cache, computed from the parts of the prompts"),
    ("expected, memory of the engine", "%", "estimate: the same with a cache of the engine's size, least recently used first"),
    ("counted by the server", "%", "vllm:prefix_cache_hits_total / vllm:prefix_cache_queries_total over the run"),
    ("counted, with other tiers", "%", "the same, with hits in the tiers beyond the memory of the engines (`tiers`)"),
    ("reported with answers", "%", "usage.prompt_tokens_details.cached_tokens / prompt tokens, summed over turns"),
)  # fmt: skip

_TURNS = (
    ("planned at, s", "s", "planned start since the start of the run"),
    ("input tokens", "", "prompt tokens from the usage of the server"),
    ("cached", "", "prompt tokens from the prefix cache (usage.prompt_tokens_details.cached_tokens)"),
    ("output tokens", "", "output tokens from the usage of the server"),
    ("turns", "", "number of turns"),
    ("total, ms", "ms", "planned start to last token, mean over turns"),
    ("window, s", "s", "length of a step"),
    ("Measured window", "s", "length of the measure phase"),
    ("Percentiles from", "", "turn records: exact; sketches: within 0.25 % of the value"),
    ("failures by class", "", "failed turns by their first error"),
    ("HTTP status", "", "status of the response; empty without one"),
    ("first at, s", "s", "end of the first failed turn of the class since the start of the run"),
    ("Seed", "", "seed of the random generators of the run"),
    ("worker", "", "process that sent the turn"),
    ("Workers", "", "processes that generated the load"),
    ("Phases", "", "parts of the run; a turn belongs to the phase of its planned start; figures are of the measure phase"),
)  # fmt: skip

_TASKS = (
    ("whole task", "s", "planned start of the first turn to end of the last, completed tasks of the measure phase"),
    ("model time", "s", "per task: time in which at least one turn was in flight"),
    ("tool time", "s", "per task: time without a turn in flight, in which tools ran"),
    ("think time", "s", "per task: time without a turn in flight, in which the user paused"),
    ("lag", "s", "per task: time in which a turn was due and not yet sent, and none was in flight"),
    ("first call", "s", "planned start of the task to the end of the turn with the first tool call"),
    ("steps", "", "turns per task"),
    ("group time", "s", "first sample of a group sent to the end of its last one, completed groups of the measure phase"),
    ("straggler ratio", "", "time of the slowest sample over the median one of its group; 1: none holds it up"),
)  # fmt: skip

_SEARCH = (
    ("load", "", "sessions per second in an open loop, users in a closed loop"),
    ("verdict", "", "holds or breaks: the whole interval is on one side of the limit; undecided: it is not; overloaded: turns in "
     "flight grew, so there is no steady value"),
    ("measured", "s", "length of the window"),
    ("run", "", "run directory of the point, in points/"),
)  # fmt: skip

_COMPARISON = (
    ("runs", "", "runs of the mean, without invalid ones"),
    ("change", "%", "candidate / baseline - 1: over pairs of runs if there are any, else of the two means"),
    ("difference", "", "candidate - baseline of the same values as the change, in the unit of the figure; shares as shares of 1"),
    ("best value", "", "of a goal: the best mean of a side, over its pairs with the closest other side"),
    ("95 % CI", "%", "confidence interval of the change of this figure alone, from the spread of the pairs; not corrected, so it "
     "may exclude 0 where the corrected p shows no difference"),
    ("p", "", "how often chance alone gives a change of this size or larger: paired t-test over pairs of runs, with "
     "Holm's correction for all but the primary figure; times 5 for these if the primary figure does not differ"),
    ("p, sign flips", "", "the same, counted over all swaps of the two sides of pairs: it assumes no normal distribution"),
)  # fmt: skip

_AGREEMENT = (
    ("parts of a turn", "", "consistency of the server's times per turn with the client's"),
    ("requests", "", "turns of the client and vllm:request_success_total between two scrapes of the idle server"),
    ("prompt tokens", "", "usage.prompt_tokens of the turns and vllm:prompt_tokens_total, likewise"),
    ("output tokens, both", "", "usage.completion_tokens of the turns and vllm:generation_tokens_total, likewise"),
    ("front end", "ms", "request written to last token - queue, prefill and decode of the server"),
    ("sums", "", "equality of the counts of client and server between two scrapes of the idle server"),
)  # fmt: skip

_LOCUST = (
    ("requests by Locust", "", "requests and failures reported by the locustfile"),
    ("response time by Locust", "ms", "time reported by the locustfile; Locust rounds percentiles to two digits"),
)  # fmt: skip

_CODES = tuple((rule.code, "", rule.means) for rule in reasons.RULES) + tuple(
    (rule.code, "", f"{rule.looks_like}; {rule.limits}") for rule in causes.RULES
)

_PARTS = (
    ("client lag", "ms", "planned start to send, without connect: delay of the load generator"),
    ("connect", "ms", "DNS, TCP and TLS of a new connection"),
    ("upload", "ms", "first byte to last byte of the request"),
    ("front end, network", "ms", "request written to last token - queue, prefill and decode"),
    ("queue", "ms", "reported by the server: arrival to first scheduling"),
    ("prefill", "ms", "reported by the server: first scheduling to first token"),
    ("decode", "ms", "reported by the server: first token to last token"),
)

_OF_GOALS = (term.figure for term in OF_GOALS)
FIGURES = (*TURN_FIGURES, *RATE_FIGURES, *CLIENT_FIGURES, *SERVER_FIGURES, *LOG_FIGURES, *_OF_GOALS)

# (term, name, unit, definition). The term of a figure is its key; a table names it in the head of a column or row.
DEFINITIONS: tuple[tuple[str, str, str, str], ...] = (
    *((figure.key, figure.title, "%" if figure.form == "share" else figure.unit, figure.text) for figure in FIGURES),
    *((term, term, unit, text) for term, unit, text in (
        *_STATISTICS, *_RATES, *_COUNTS, *_SERVERS, *_CLIENT, *_CACHE, *_PARTS,
        *_TURNS, *_TASKS, *_SEARCH, *_COMPARISON, *_AGREEMENT, *_LOCUST, *_CODES,
    )),
)  # fmt: skip


def anchor(term: str) -> str:
    return "def-" + re.sub(r"[^A-Za-z0-9_]+", "-", term).strip("-")
