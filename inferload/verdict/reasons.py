"""What can speak against a measurement: the table of rules that its evidence is held against."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from inferload.measure.record import PHASES, Phase
from inferload.numbers import number, percent
from inferload.statistics.overload import LEAST_SHARE
from inferload.verdict.evidence import (
    Evidence,
    at_limit_share,
    at_limit_text,
    client_delay,
    client_delay_text,
    client_lag,
    dropped_share,
    late_share,
    late_text,
    littles_law,
    littles_law_text,
    overload_share,
    overload_text,
    own_lag_ms,
    stamped_share,
    token_balance,
    token_balance_text,
    unfinished_share,
)

Level = Literal["suspect", "invalid"]


@dataclass(frozen=True, slots=True)
class Rule:
    """One row: a figure, its two limits (None: that level does not exist), what it means and what to do.

    The limit is broken by a value above it; by one below it where `below` is set.
    """

    code: str
    value: Callable[[Evidence], float | None]
    suspect: float | None
    invalid: float | None
    unit: str
    finding: Callable[[Evidence], str]
    means: str
    remedy: str
    below: bool = False
    phases: tuple[Phase, ...] = PHASES

    def broken(self, value: float) -> tuple[Level, float] | None:
        """The worst level whose limit the value breaks, and that limit."""
        levels: tuple[tuple[Level, float | None], ...] = (("invalid", self.invalid), ("suspect", self.suspect))
        for level, limit in levels:
            if limit is not None and (value < limit if self.below else value > limit):
                return level, limit
        return None


def _count(number: int | None) -> float | None:
    return None if number is None else float(number)


RULES: tuple[Rule, ...] = (
    Rule(
        "no_turns",
        lambda e: float(e.turns_finished),
        None,
        1,
        "finished turns",
        lambda e: f"no turn {'ended' if e.turns_begun else 'was sent'} in the measure phase",
        "there is nothing to report on",
        "measure for longer, or find out why the server does not answer, or why the tasks send no turn",
        below=True,
        phases=("measure",),
    ),
    Rule(
        "overload",
        overload_share,
        LEAST_SHARE,
        None,
        "of the offered turns, by which the number in flight grew",
        overload_text,
        "fewer turns ended than arrived: rates are those of the server at its limit, but latencies grow until the load ends, and "
        "are no property of the server. Looked at in an open loop of constant rate",
        "lower the rate, or find the one that holds with `inferload search`; if turns are long, measure longer after a warm-up",
        phases=("measure",),
    ),
    Rule(
        "client_delay",
        client_delay,
        0.50,
        1.00,
        "p99 of the client's delay over the median gap",
        client_delay_text,
        "the kernel's stamp dates what waited in the client; but tokens that wait together are read as one and share the "
        "newest stamp: then gaps, and TTFT where a first token is among them, are the client's in their upper percentiles",
        "use more workers, each on a core of its own, or fewer streams",
    ),
    Rule(
        "client_lag",
        client_lag,
        0.05,
        0.25,
        "mean lag without connecting over the mean time of a turn",
        lambda e: (
            f"turns left {number(own_lag_ms(e))} ms late on average, and take {number((e.turn_mean_s or 0) * 1e3)} ms"
        ),
        "the client was busy when they were due, so the server had less to do than was asked",
        "use more workers, each on a core of its own, fewer streams, or less work in the tasks of the locustfile",
    ),
    Rule(
        "loop_lag",
        lambda e: e.loop_lag_p99_ms,
        5,
        50,
        "ms, p99 of the worst worker",
        lambda e: f"a worker's event loop was {number(e.loop_lag_p99_ms)} ms late in 1 % of its beats",
        "the event loop was held up: what arrives together is read as one, and large requests leave late "
        "(not looked at where a thread of its own reads and requests leave in one piece)",
        "use more workers, each on a core of its own; look for other work on the machine",
    ),
    Rule(
        "client_pause",
        lambda e: e.pause_max_ms,
        250,
        1000,
        "ms, longest of the worst worker",
        lambda e: f"a worker stood still for {number(e.pause_max_ms)} ms",
        "what arrived meanwhile was read at once, dated by the last of it: gaps and stalls of that time are the client's",
        "look for what stopped the process: other work on the machine, a paused guest, a listener that blocks",
    ),
    Rule(
        "cpu",
        lambda e: e.cpu_share,
        0.85,
        0.97,
        "of one core, worst worker",
        lambda e: f"a worker used {percent(e.cpu_share)} of a core",
        "a worker is one process on one core, and near its limit everything queues in it",
        "use more workers",
    ),
    Rule(
        "steal",
        lambda e: e.steal_share,
        0.05,
        0.20,
        "of the machine's processor time, worst worker",
        lambda e: f"the hypervisor took {percent(e.steal_share)} of the client machine's processor time",
        "other guests of the same host stretched the client's time",
        "use a machine with processors of its own",
    ),
    Rule(
        "gc_pause",
        lambda e: e.gc_pause_max_ms,
        50,
        250,
        "ms, longest of the worst worker",
        lambda e: f"a garbage collection stopped a worker for {number(e.gc_pause_max_ms)} ms",
        "a stop as long as a stall looks like one of the server's",
        "use more workers; look for a locustfile that keeps much in memory",
    ),
    Rule(
        "at_limit",
        at_limit_share,
        0.01,
        None,
        "of the turns and sessions, held back or dropped",
        at_limit_text,
        "the load was max_in_flight's, not the one that was planned: an open loop that is capped asks a slow server less",
        "raise arrivals.max_in_flight, or lower the rate",
    ),
    Rule(
        "dropped_sessions",
        dropped_share,
        0.001,
        0.05,
        "of the planned sessions",
        lambda e: (
            f"{e.sessions_dropped - e.sessions_at_limit} of {e.sessions_planned} planned sessions were dropped, "
            "since no user was free"
        ),
        "the load was lower than what was asked for",
        "allow more users, or ask for fewer sessions a second",
    ),
    Rule(
        "offered_vs_achieved",
        late_share,
        0.01,
        0.05,
        "of the planned sessions, neither dropped nor begun in their phase",
        late_text,
        "the achieved rate is not the offered one",
        "use more workers",
    ),
    Rule(
        "lost_worker",
        lambda e: _count(e.lost_workers),
        None,
        0,
        "workers",
        lambda e: f"{e.lost_workers} of {e.workers} workers were lost while the run lasted",
        "their turns are missing, and the load fell with them",
        "see the worker's log, and run again",
    ),
    Rule(
        "report_gap",
        lambda e: _count(e.report_gaps),
        None,
        0,
        "reports",
        lambda e: f"{e.report_gaps} reports of workers never reached the master",
        "counts and percentiles miss what was in them",
        "look at the network between master and workers, and run again",
    ),
    Rule(
        "lost_records",
        lambda e: float(e.lost_records),
        None,
        0,
        "turn records",
        lambda e: f"{e.lost_records} records of turns that were counted are missing ({e.lost_records_why})",
        "counts and rates are the workers' own and complete; percentiles are approximate, and figures that need records "
        "are missing or incomplete",
        "see the worker's log; free disk space or raise the file size limit (ulimit -f), and run again",
    ),
    Rule(
        "write_error",
        lambda e: float(len(e.write_errors)),
        0,
        None,
        "files of the run, other than turn records, that could not be written",
        lambda e: f"not all files of the run could be written ({'; '.join(e.write_errors)})",
        "server metrics, marks or Locust's tables are incomplete",
        "see the worker's log; free disk space or raise the file size limit (ulimit -f), and run again",
    ),
    Rule(
        "locust_adaptation",
        lambda e: float(len(e.adaptations_left_out)),
        0,
        None,
        "adaptations of Locust, left out, that figures depend on",
        lambda e: f"adaptations do not fit the installed Locust ({'; '.join(e.adaptations_left_out)})",
        "the installed version of Locust is not a tested one; docs/locust-versions.md lists the adaptations",
        "install a tested version of Locust, or a newer inferload",
    ),
    Rule(
        "clock_skew",
        lambda e: e.clock_uncertainty_ms,
        5,
        None,
        "ms, worst worker",
        lambda e: f"a worker's clock is known to within {number(e.clock_uncertainty_ms)} ms only",
        "durations are right, but workers' and servers' curves may lie side by side by that much",
        "use a quieter network between master and workers",
    ),
    Rule(
        "clock_step",
        lambda e: float(e.clock_steps),
        0,
        None,
        "times that a worker's wall clock was set",
        lambda e: f"the wall clock of the workers was set while they measured, by {e.clock_stepped_s:+,.1f} s in all",
        "durations are on the monotonic clock and stay right; of what was just being read, the kernel's stamp is not believed, "
        "or is off by a small step; logs of other programs lie apart by as much. A machine that slept looks the same",
        "set the clock before a run, and have it slewed while it lasts (chrony, ntpd -x)",
    ),
    Rule(
        "unfinished_drain",
        unfinished_share,
        0,
        0.05,
        "of the turns begun",
        lambda e: f"{e.turns_unfinished} of {e.turns_begun} turns were still streaming when the run gave them up",
        "the longest turns are missing from every percentile, which makes the server look faster",
        "give the drain more time (phases.drain_s), or ask for less load",
    ),
    Rule(
        "books",
        lambda e: float(len(e.books)),
        None,
        0,
        "sentences that do not hold",
        lambda e: f"the books do not balance ({'; '.join(e.books)})",
        "turns or sessions were lost or counted twice",
        "a worker that was lost, or a report that never came, explains it; without either it is a fault of inferload: "
        "please report it, with the run directory",
    ),
    Rule(
        "server_restart",
        lambda e: _count(e.server_restarts),
        None,
        0,
        "restarts",
        lambda e: f"a server restarted {e.server_restarts} times while it was measured",
        "two servers were measured, and one of them was cold",
        "see the server's log, and run again",
    ),
    Rule(
        "warm_cache",
        lambda e: e.warm_cache_share,
        0.01,
        None,
        "of prompt tokens",
        lambda e: f"{percent(e.warm_cache_share)} of the prompts' tokens were cached before this run had sent them",
        "an earlier run had warmed the prefix cache: TTFT is shorter than a cold server's",
        "restart the server or reset its cache, or set cache.isolate: run; see docs/cache.md",
    ),
    Rule(
        "littles_law",
        littles_law,
        0.25,
        None,
        "relative difference",
        littles_law_text,
        "turns in flight must be their rate times their duration: else the load was not steady, the server had other "
        "clients, or a figure is wrong",
        "measure for longer, after a warm-up, on a server of its own",
    ),
    Rule(
        "token_balance",
        token_balance,
        0.10,
        0.50,
        "relative difference beyond the turns that lie partly outside",
        token_balance_text,
        "tokens that stream in the window must be those of the turns that end in it: else the server's running token counts "
        "and its totals disagree, or a figure is wrong",
        "turn request.continuous_usage off and compare; if it stays, report a fault of inferload, with the run directory",
    ),
    Rule(
        "stamps_missing",
        stamped_share,
        0.5,
        None,
        "of the reads",
        lambda e: f"only {percent(e.stamped_share)} of the reads carried a kernel receive stamp",
        "the others were stamped when the process came to read them, and the client's delay is not known for them",
        "run `inferload doctor` on the worker's machine",
        below=True,
    ),
    Rule(
        "user_stamps",
        lambda e: None if e.stamps is None else float(e.stamps == "user"),
        0,
        None,
        "1: no kernel stamps",
        lambda e: (
            "this system gives no kernel receive stamps, so that the client's own delay is in every figure, unmeasured"
        ),
        "times are those at which the process came to read",
        "run the workers on Linux, or `inferload doctor` to see why there are none",
    ),
)
