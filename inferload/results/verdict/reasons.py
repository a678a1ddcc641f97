"""Rules of a measurement's validity: each compares a value of the evidence with two limits."""

from collections.abc import Callable
from typing import Literal

from msgspec import Struct

from inferload.base.numbers import number, percent, plural
from inferload.figures.client_figures import LATE_CLIENT, LEAST_DELAY_MS
from inferload.figures.rate_figures import HELD_EVENTS
from inferload.results.documents.figures_document import LEAST_SHARE, Growth
from inferload.results.verdict import evidence
from inferload.turns.record import PHASES, Phase

Level = Literal["suspect", "invalid"]
Cause = Literal["client", "server", "overload"]


class Rule(Struct, frozen=True):
    """Rule with the limits of its levels, suspect and invalid (None: no such level), its meaning and its remedy.

    A value above the limit breaks it; if `below` is set, a value below it. `if_idle`: remedy if no worker used half a core.
    `at_end`: only the ended run has its value; other rules are evaluated during the run too.
    `cause` of an invalid level: an overload of the server is enough; the server; or else the client, or what is unknown.
    `of_reader`: the finding depends on the reader of the sockets, and names it if it is Python code.
    """

    code: str
    value: Callable[[evidence.Evidence], float | None]
    limits: tuple[float | None, float | None]
    unit: str
    finding: Callable[[evidence.Evidence], str]
    means: str
    remedy: str
    below: bool = False
    phases: tuple[Phase, ...] = PHASES
    if_idle: str = ""
    at_end: bool = False
    cause: Cause = "client"
    of_reader: bool = False

    def text_for(self, e: evidence.Evidence) -> str:
        """Return finding, reader where it matters, and remedy for these figures."""
        reader = f", reader: {e.reader}" if self.of_reader and "python" in e.reader else ""
        remedy = self.if_idle if self.if_idle and evidence.has_idle_workers(e.cpu_share) else self.remedy
        return f"{self.finding(e)}{reader}; {remedy}"

    def broken(self, value: float) -> tuple[Level, float] | None:
        """Return the worst level whose limit the value breaks, and the limit."""
        levels: tuple[Level, Level] = ("suspect", "invalid")
        for level, limit in reversed([*zip(levels, self.limits, strict=True)]):
            if limit is not None and (value < limit if self.below else value > limit):
                return level, limit
        return None


def _overloaded(grew: Growth) -> str:
    if grew.state == "unsettled":
        return f"overloaded, or not settled yet: {grew.text}; the window is too short for the duration of a turn"
    return f"overloaded: {grew.text}; latencies depend on the duration of the run"


_OTHERS = "no worker used half a core: stop other processes on the machine, or use one without the server"

RULES: tuple[Rule, ...] = (
    Rule(  # first, as the cause of others: a headline has the first finding
        "lost_worker",
        lambda e: e.lost_workers,
        (None, 0),
        "workers",
        lambda e: f"{e.lost_workers} of {e.workers} workers were lost during the run",
        "their turns are missing, and the load was lower from then on",
        "see the worker's log, and run again",
    ),
    Rule(
        "no_turns",
        lambda e: e.turns_finished,
        (None, 1),
        "finished turns",
        lambda e: f"no turn {'ended' if e.turns_begun else 'was sent'} in the measure phase",
        "the measure phase has no result",
        "measure for longer; check that the server answers and that the tasks send turns",
        below=True,
        phases=("measure",),
        at_end=True,
        cause="overload",
    ),
    Rule(
        "overload",
        lambda e: None if e.growth is None else e.growth.share if e.growth.grew else 0.0,
        (LEAST_SHARE, None),
        "of the offered turns: growth of the number in flight",
        lambda e: "" if e.growth is None else _overloaded(e.growth),
        "fewer turns ended than arrived: rates are the capacity of the server, but latencies grow for as long as the load lasts. "
        "Evaluated in an open loop of constant rate",
        "lower the rate, or find the capacity with `inferload search`; if turns are long, use a longer warm-up and measure phase",
        at_end=True,
    ),
    Rule(
        "client_delay",
        evidence.client_delay,
        (LATE_CLIENT, 1.00),
        f"p99 of the client delay / median gap (mean gap of a held stream); 0 below {LEAST_DELAY_MS:g} ms",
        lambda e: (
            f"the client added at least {number(e.delay_p99_ms)} ms to 1 % of the gaps, whose median is {number(e.itl_ms)} ms"
        ),
        "data that waits in the client keeps its kernel timestamp, but chunks that wait together are read as one with the "
        "newest timestamp: upper percentiles of gaps, and of TTFT if a first token is among them, include client delay",
        "use more workers, each on its own core, or fewer streams",
        if_idle=_OTHERS,
        of_reader=True,
    ),
    Rule(
        "held_stream",
        evidence.held_stream,
        (HELD_EVENTS, None),
        "output events per arrival, or tokens if these are fewer, - p99 of the client delay / mean gap",
        lambda e: (
            f"the stream arrived in bursts of {number(e.events_per_arrival)} events, with a mean gap of {number(e.itl_ms)} ms: a "
            "proxy, a gateway or the server holds it, or each token of a draft is an event"
        ),
        "TTFT and ITL are those of what holds the stream: the first token waits for later ones, and most gaps are 0. TPOT is too "
        "short by this wait / tokens; E2E and rates are correct. Events that a late client can have joined are not counted",
        "turn off buffering on the way (docs/how-to/gateways.md); `inferload doctor` shows how a stream arrives",
        phases=("measure",),
    ),
    Rule(
        "held_gaps",
        lambda e: evidence.ratio(e.between.held_ms, e.between.gap_ms),
        (0.15, None),
        "(median gap - last gap) / median gap of turns with a token in each event, if nearly all agree; 0 otherwise",
        lambda e: (
            f"the last gap of each turn is {number(e.between.held_ms)} ms shorter than the others ({number(e.between.gap_ms)} ms): "
            "each event was held for as long, and the last one sent at once"
        ),
        "TTFT is longer by this difference, and TPOT shorter by it / tokens; E2E and the other gaps are correct, ITL includes the "
        "last gap, which is too short. Seen with haproxy, which holds small writes for 200 ms",
        "turn off the delay on the way (haproxy: option http-no-delay; docs/how-to/gateways.md)",
        at_end=True,
    ),
    Rule(
        "more_requests",
        evidence.more_requests,
        (0.001, None),
        "requests at the servers that the client did not send / requests that it sent; 0 for a single one",
        lambda e: f"{e.between.arrived} requests arrived at the servers, and the client sent {e.between.sent}",
        "a proxy or gateway repeats requests (after 429, 5xx or a timeout), or other clients used the servers: their load was "
        "higher than planned",
        "turn off the retries of the proxy or gateway, and keep other clients away",
        at_end=True,
    ),
    Rule(
        "completed_cuts",
        lambda e: evidence.ratio(e.between.cut, e.between.ok),
        (0, None),
        "of the turns that ended well: aborted or failed at the servers",
        lambda e: (
            f"{e.between.cut} of {e.between.ok} turns ended well, but the servers completed fewer: a proxy or gateway ended cut "
            "answers as if they were complete"
        ),
        "failures are counted as successes, with shorter answers and an invented usage: error rate, E2E and tokens are too good",
        "compare with a run on the servers themselves; see their logs",
        at_end=True,
        cause="server",
    ),
    Rule(
        "other_usage",
        evidence.other_usage,
        (0.02, None),
        "difference between the output tokens of client and servers / those of the servers, if both finished the same requests",
        lambda e: (
            f"the answers report {e.between.output_tokens} output tokens, and the servers generated {e.between.generated_tokens}"
        ),
        "the usage of the answers is not that of the servers: token rates, TPOT and lengths are wrong by this difference",
        "`inferload doctor --direct` shows whether a proxy or gateway changes the usage",
        at_end=True,
        cause="server",
    ),
    Rule(
        "refused_idle",
        lambda e: evidence.ratio(e.between.refused_idle, e.between.turns),
        (0.001, None),
        "of the turns: 429 or 5xx while the metrics pages show no request, and, where they count all requests, no arrival",
        lambda e: (
            f"{e.between.refused_idle} of {e.between.turns} turns were refused (429 or 5xx) while the servers had no request"
        ),
        "the errors come from a router, a gateway or its circuit breaker, or from a server that does not count them: rates are not "
        "those of the servers, which were idle meanwhile",
        "see the log of the router or gateway; turn off its circuit breaker, cooldown or rate limit for a load test",
        at_end=True,
    ),
    Rule(
        "client_lag",
        evidence.client_lag,
        (0.05, 0.25),
        "mean lag without connecting / mean duration of a turn",
        lambda e: (
            f"turns were sent {number(evidence.own_lag_ms(e))} ms late on average, and last {number((e.turn_mean_s or 0) * 1e3)} ms"
        ),
        "the client was busy when turns were due, so the load was lower than planned",
        "use more workers, each on its own core, fewer streams, or less work in the tasks of the locustfile",
        if_idle=_OTHERS,
        of_reader=True,
    ),
    Rule(
        "loop_lag",
        lambda e: e.loop_lag_p99_ms,
        (5, 50),
        "ms, p99 of the worst worker",
        lambda e: f"the p99 of a worker's event loop lag was at least {number(e.loop_lag_p99_ms)} ms",
        "the event loop was blocked: chunks that arrive meanwhile are read as one, and large requests are sent late "
        "(not evaluated if a separate thread reads and requests are sent in one piece)",
        "use more workers, each on its own core; check for other processes on the machine",
        if_idle=_OTHERS,
        of_reader=True,
    ),
    Rule(
        "client_pause",
        lambda e: e.pause_max_ms,
        (250, 1000),
        "ms, longest of the worst worker",
        lambda e: f"a worker was blocked for {number(e.pause_max_ms)} ms",
        "chunks that arrived meanwhile were read as one with the newest timestamp: gaps and stalls of that time are the client's",
        "check for other processes on the machine, a suspended virtual machine, and blocking event listeners",
        of_reader=True,
    ),
    Rule(
        "cpu",
        lambda e: e.cpu_share,
        (0.85, 0.97),
        "of one core, worst worker",
        lambda e: f"a worker used {percent(e.cpu_share)} of a core",
        "a worker is one process on one core; near its limit, requests and responses queue in it",
        "use more workers",
        of_reader=True,
    ),
    Rule(
        "steal",
        lambda e: e.steal_share,
        (0.05, 0.20),
        "of the machine's CPU time, worst worker",
        lambda e: f"the hypervisor took {percent(e.steal_share)} of the client machine's CPU time",
        "other virtual machines on the host delayed the client",
        "use a machine with dedicated CPUs",
    ),
    Rule(
        "gc_pause",
        lambda e: e.gc_pause_max_ms,
        (50, 250),
        "ms, longest of the worst worker",
        lambda e: f"a garbage collection stopped a worker for {number(e.gc_pause_max_ms)} ms",
        "a pause of this length cannot be distinguished from a stall of the server",
        "use more workers, each on its own core; do not call gc.collect in the locustfile",
    ),
    Rule(
        "at_limit",
        lambda e: evidence.ratio(e.turns_delayed + e.sessions_at_limit, e.turns_begun + e.sessions_at_limit),
        (0.01, None),
        "of the turns and sessions: delayed or dropped",
        evidence.at_limit_text,
        "arrivals.max_in_flight limited the load, so that a slow server received less than was planned",
        "--set arrivals.max_in_flight=N with a higher number, or lower the rate",
    ),
    Rule(
        "dropped_sessions",
        lambda e: evidence.ratio(e.sessions_dropped - e.sessions_at_limit, e.sessions_planned),
        (0.001, 0.05),
        "of the planned sessions",
        lambda e: (
            f"{e.sessions_dropped - e.sessions_at_limit} of {e.sessions_planned} planned sessions were dropped, "
            "as no worker started them in time"
        ),
        "the load was lower than planned",
        "use more workers, or lower the session rate",
    ),
    Rule(
        "offered_vs_achieved",
        evidence.late_share,
        (0.01, 0.05),
        "of the planned sessions: neither dropped, nor delayed into a later phase by max_in_flight, nor started in their phase",
        lambda e: f"only {e.sessions_begun} of {e.sessions_due} sessions that were due in this phase started in it",
        "the achieved rate is lower than the offered rate",
        "use more workers",
        at_end=True,
    ),
    Rule(
        "report_gap",
        lambda e: e.report_gaps,
        (None, 0),
        "reports",
        lambda e: f"{e.report_gaps} reports of workers never reached the master",
        "counts and percentiles do not include the turns in these reports",
        "check the network between master and workers, and run again",
    ),
    Rule(
        "lost_records",
        lambda e: e.lost_records,
        (None, 0),
        "turn records",
        lambda e: f"{e.lost_records} records of turns that were counted are missing ({e.lost_records_why})",
        "counts and rates are the workers' own and complete; percentiles are approximate, and figures that need records "
        "are missing or incomplete",
        "see the worker's log; free disk space or raise the file size limit (ulimit -f), and run again",
        at_end=True,
    ),
    Rule(
        "write_error",
        lambda e: len(e.write_errors),
        (0, None),
        "files that could not be written, without turn records",
        lambda e: f"not all files of the run could be written ({'; '.join(e.write_errors)})",
        "server metrics, marks or Locust's tables are incomplete",
        "see the worker's log; free disk space or raise the file size limit (ulimit -f), and run again",
        at_end=True,
    ),
    Rule(
        "locust_adaptation",
        lambda e: len(e.adaptations_left_out),
        (0, None),
        "adaptations of Locust that figures depend on and that were not applied",
        lambda e: f"adaptations do not fit the installed Locust ({'; '.join(e.adaptations_left_out)})",
        "the installed version of Locust is not a tested one; docs/reference/locust-versions.md lists the adaptations",
        "install a tested version of Locust, or a newer inferload",
    ),
    Rule(
        "clock_skew",
        lambda e: e.clock_uncertainty_ms,
        (5, None),
        "ms, worst worker",
        lambda e: f"a worker's clock offset has an uncertainty of {number(e.clock_uncertainty_ms)} ms",
        "durations are correct, but time series of workers and servers may be shifted against each other by this much",
        "use a network with less delay variation between master and workers",
    ),
    Rule(
        "clock_step",
        lambda e: e.clock_steps,
        (0, None),
        "steps of a worker's wall clock",
        lambda e: f"the wall clock of the workers was set during the run, by {e.clock_stepped_s:+,.1f} s in total",
        "durations use the monotonic clock and stay correct; kernel timestamps of data that was being read are ignored, or wrong "
        "by a small step; logs of other programs are shifted by the step. A suspended machine has the same effect",
        "set the clock before a run, and slew it during the run (chrony, ntpd -x)",
    ),
    Rule(
        "unfinished_drain",
        lambda e: evidence.ratio(e.turns_unfinished, e.turns_begun),
        (0, 0.05),
        "of the turns begun",
        lambda e: f"{e.turns_unfinished} of {e.turns_begun} turns were still streaming at the end of the drain",
        "the longest turns are missing from every percentile, so that latencies are too low",
        "--set phases.drain_s=N with a longer time, or lower the load",
        at_end=True,
        cause="overload",
    ),
    Rule(
        "count_mismatch",
        lambda e: len(e.count_faults),
        (None, 0),
        "inconsistent counts",
        lambda e: f"counts are inconsistent ({'; '.join(e.count_faults)})",
        "turns or sessions were lost or counted twice",
        "expected after a lost worker or a missing report; otherwise report a bug of inferload, with the run directory",
        at_end=True,
    ),
    Rule(
        "server_restart",
        lambda e: e.server_restarts,
        (None, 0),
        "restarts",
        lambda e: f"a server restarted {plural(e.server_restarts or 0, 'time')} during the measure phase",
        "results include a server with cold caches",
        "see the server's log, and run again",
        at_end=True,
        cause="server",
    ),
    Rule(
        "gpu_clock",
        lambda e: None if e.gpu_clock is None else e.gpu_clock.fall,
        (0.10, None),
        "1 - SM clock in the last / in the first quarter of the measure phase, of scrapes with a GPU use of 50 % or more",
        lambda e: (
            ""
            if e.gpu_clock is None
            else f"the clock of GPU {e.gpu_clock.gpu} at {e.gpu_clock.target} fell from {number(e.gpu_clock.first_mhz)} to "
            f"{number(e.gpu_clock.last_mhz)} MHz"
        ),
        "the server became slower while it was measured, by heat or a limit of power: figures are of several speeds, and a longer "
        "run has others",
        "lock the clock (nvidia-smi -lgc) or warm the GPU up for longer; see docs/how-to/benchmark-settings.md",
        at_end=True,
        cause="server",
    ),
    Rule(
        "scrape_gap",
        lambda e: e.scrape_gap.gap_s / e.scrape_gap.limit_s,
        (1, None),
        "longest time without a scrape of a server / max(5 s, 2.5 scrape intervals)",
        lambda e: f"the metrics page of {e.scrape_gap.target} was not scraped for {number(e.scrape_gap.gap_s)} s",
        "server figures are of a part of the measure phase: means and maxima of gauges lack the gap, and counts are unknown if "
        "it is at an end of the phase; gates on such figures fail",
        "check that the metrics page answers under load; the scraper's errors are in the master's standard error",
        at_end=True,
    ),
    Rule(
        "warm_cache",
        lambda e: e.warm_cache_share,
        (0.01, None),
        "of prompt tokens of first turns",
        lambda e: (
            f"{percent(e.warm_cache_share)} of the prompt tokens of first turns were cached before this run sent them"
        ),
        "the prefix cache was warm from an earlier run: TTFT is shorter than on a cold server",
        "restart the server or reset its cache, or --set cache.isolate=run; see docs/background/cache.md",
        at_end=True,
    ),
    Rule(
        "littles_law",
        evidence.littles_law,
        (0.25, None),
        "relative difference",
        evidence.littles_law_text,
        "turns in flight must equal rate x duration (Little's law); otherwise the load was not steady, the server had other "
        "clients or was paused, requests waited before it, or a figure is wrong",
        "measure for longer, after a warm-up, without other clients; with fewer turns at the server see the diagnosis",
        at_end=True,
    ),
    Rule(
        "token_balance",
        evidence.token_balance,
        (0.10, 0.50),
        "relative difference, without turns that are partly outside the window",
        evidence.token_balance_text,
        "tokens that stream in the window must equal the tokens of the turns that end in it; otherwise the server's running token "
        "counts and its totals disagree, or a figure is wrong",
        "--set request.continuous_usage=false and compare; if the difference stays, report a bug of inferload, with the run "
        "directory",
        at_end=True,
        cause="server",
    ),
    Rule(
        "stamps_missing",
        lambda e: None if e.stamps == "user" else e.stamped_share,  # "user": the system provides none
        (0.5, None),
        "of the reads",
        lambda e: f"only {percent(e.stamped_share)} of the reads had a kernel receive timestamp",
        "other reads have the time of the read in the process, and their client delay is not known",
        "run `inferload doctor` on the worker's machine",
        below=True,
    ),
    Rule(
        "user_stamps",
        lambda e: None if e.stamps is None else float(e.stamps == "user"),
        (0, None),
        "1: no kernel timestamps",
        lambda e: (
            "this system provides no kernel receive timestamps, so every latency includes an unknown client delay"
        ),
        "instants are the times of the reads in the process",
        "run the workers on Linux; `inferload doctor` reports the cause",
    ),
)
