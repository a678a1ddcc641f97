"""Findings on the whole run: failed turns, servers that stopped answering, overload, saturation."""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct

from inferload.base.numbers import number, percent, plural
from inferload.figures import rate_figures, turn_figures
from inferload.figures.limits import gate_grammar
from inferload.figures.pages import metric_names as names
from inferload.figures.rate_figures import ATTAINMENT
from inferload.results.documents.figures_document import Growth
from inferload.results.documents.summary_document import Results, Turns
from inferload.results.verdict.failures import Answering, answering, in_short, instant, turn_lines
from inferload.servers.bottleneck.evidence import WindowEvidence
from inferload.servers.bottleneck.finding import QUEUED_SHARE, Finding
from inferload.servers.bottleneck.peers import OUTLIER
from inferload.servers.bottleneck.rules import BETWEEN, LEAST_TURNS, RULES, paused
from inferload.servers.series import ServerSeries
from inferload.turns.record import refused_turns

from ..data.frame import Frame, concat
from ..data.frames import UNFINISHED, RunFrames
from ..data.manifest import arrivals_of
from . import routing, turn_causes
from .advice import ADVICE, Advice
from .group import STARVED, group_findings, passing
from .measured_load import MeasuredLoad, Unmet

_ROUNDED_S = 0.001
_GONE_S = 2.0  # minimum time without a scrape before the end of the load
_GONE_SCRAPES = 5
_SLO_MET = 0.9  # of the turns; a gate on slo_attainment can demand more
_LATENCY_LIMITS = (*turn_figures.BY_KEY, rate_figures.GOODPUT.key, rate_figures.ATTAINMENT.key)


class RunRule(Struct, frozen=True):
    """Finding on the whole run. `holds`: documentation; `do`, `why`, `effects`: of its advice, if it has its own."""

    code: str
    title: str
    holds: str
    do: str = ""
    why: str = ""
    effects: str = "none"

    @property
    def advice(self) -> tuple[Advice, ...]:
        """What to try; for a cause of a single server, what is advised there."""
        return (Advice(self.do, self.why, self.effects),) if self.do else ADVICE.get(self.code, ())


RUN_RULES = (
    RunRule(
        "failures",
        "Turns failed",
        "at least one turn of any phase failed; latencies are of successful turns",
        "check the first message of each class and the server log at that time",
        "the capacity of a failing server is unknown",
    ),
    RunRule(
        "refused",
        "Turns were refused",
        "each failed turn got a client error (4xx other than 408, 425 and 429), or a message that the prompt is too long: then "
        "probable, as only the first message of each class is known",
        "shorter prompts, or what the first message names",
        "they fail at any load",
    ),
    RunRule(
        "failed-between",
        "Turns failed between client and server",
        "five turns or more failed after they were sent, and the servers count at least half of them as finished; probable, since "
        "other clients can have sent as many requests",
        "timeouts and limits of the proxy, gateway or router",
        "the server answered these turns",
    ),
    RunRule(
        "serial",
        "Requests wait for each other",
        f"no metrics page: while more turns are in flight, one number of them, {turn_causes.MOST_AT_ONCE} at most, is served for "
        "80 % of the time (from the first output, less the lowest TTFT, to the last), and more for 3 % at most; probable above "
        "one, or if half of this time is the lowest TTFT: prompts that are computed one after another look the same",
        "more requests at once",
        "turns wait for others",
        "TTFT shorter, TPOT longer, throughput higher",
    ),
    RunRule(
        "server-gone",
        "The metrics page stopped answering",
        f"no scrape in the last {_GONE_S:g} s of the load, or in {_GONE_SCRAPES} scrape intervals if that is longer",
        "check the server log at that time",
        "later server metrics are missing",
    ),
    RunRule(
        "restarted",
        "The server restarted",
        "a counter decreased, or the process start time changed",
        "check the server log at that time",
        "a restart clears caches and aborts requests",
    ),
    RunRule(
        OUTLIER,
        "A server differs from its peers",
        "several servers: one has twice the mean TTFT, ITL or queue time of the median of its peers that answered, with 30 "
        "requests or more (three times with 10), or its metrics page did not answer for 3 s while those of its peers did",
        "check log, hardware and other load of this server",
        "the figures of the group are a mixture of its servers",
    ),
    *(
        RunRule(rule.code, rule.title, f"several servers behind one address, together: {rule.looks_like}")
        for rule in RULES
        if rule.code in BETWEEN
    ),
    RunRule(
        routing.LOSES_HITS,
        "Routing loses prefix-cache hits",
        f"several servers: hits more than {percent(routing.LEAST_LOSS)} of the prompt tokens below those of sessions that each "
        f"stay on one server, and {percent(routing.LEAST_MOVED)} of the turns or more came to another server than the turn before; "
        "probable if the server of each turn is not known: the hits are then those of turns that go to the servers in turn",
        "request.affinity_header or request.session_token_header, and a router that keeps a session on its server by it",
        "the server of the turn before has the prefix in its cache",
        "TTFT shorter, TPOT unchanged, throughput higher; the load of the servers may differ",
    ),
    RunRule(
        routing.STAYS,
        "Sessions stay on one server",
        f"several servers: fewer than {percent(routing.LEAST_MOVED)} of the turns came to another server than the turn before; if "
        f"the server of each turn is not known: hits at most {percent(routing.LEAST_LOSS)} of the prompt tokens below those of "
        "sessions that stay, and different from those of turns that go to the servers in turn",
    ),
    RunRule(
        "overload",
        "Overloaded",
        "open loop: the number of turns in flight grew during the window (docs/reference/arrivals.md); probable if the evaluated "
        "time is too short for a decision, otherwise with the capacity if no server stopped or restarted and no worker was lost",
        "inferload search",
        "finds the highest rate that the server sustains within the SLO",
        "latencies do not depend on the duration of the run",
    ),
    RunRule(
        STARVED,
        "Decode waits for prefill",
        "servers for prefill and decode: requests wait for a prefill server (20 % of the scrapes, or of their time and 10 ms), and "
        "on decode servers at most half of the slots run, few wait, KV-cache usage is below 85 % and no transfer limits; probable "
        "if max-num-seqs is unknown",
        "more servers for prefill, or some for decode made such",
        "decode has free slots while prompts wait",
        "TTFT shorter, TPOT longer, throughput higher, memory unchanged",
    ),
    RunRule(
        "overload-undecided",
        "Overload not decided",
        "open loop: the number of turns in flight did not grow significantly, but the evaluated time is shorter than three turns, "
        "or the interval of the growth includes growth that matters (docs/reference/arrivals.md)",
        "phases.measure_s longer",
        "a decision needs three durations of a turn after the start of the load, and enough turns",
    ),
    RunRule(
        "overload-not-judged",
        "Overload not judged",
        "open loop without constant rate or steps, or without the records of all turns",
        "arrivals.profile.kind steps",
        "each step has a constant rate and is checked separately",
    ),
    RunRule(
        "saturated",
        "Saturated",
        f"closed loop: requests wait for capacity in {percent(QUEUED_SHARE)} of the scrapes or more; a throughput is the limit of "
        "the server only over 10 s or more with a constant number of users, a queue at most scrapes, 20 turns or more and no "
        "failed turn; otherwise the condition that is not met is named",
        "fewer users (inferload search finds the highest number within the SLO)",
        "less queueing",
        "TTFT shorter, TPOT unchanged, throughput unchanged while requests still queue",
    ),
    RunRule(
        "kept-up",
        "The server kept up",
        f"open loop without server metrics: the number of turns in flight did not grow, and {LEAST_TURNS} turns or more ended well",
        "inferload search",
        "finds the maximum load",
    ),
)
RULE_OF: Mapping[str, RunRule] = {rule.code: rule for rule in RUN_RULES}


def failed_turns(run: RunFrames) -> Results:
    """Return the results; without a summary, the failure counts from the turn records."""
    if run.summary is not None:
        return run.summary
    by_failure: Counter[str] = Counter()
    ok, unfinished, kept = 0, 0, []
    for turns in run.batches("failure", "ok", "last_s", "first_event_s", "closed_s", "target"):
        failed = turns[~turns["ok"]]
        ok += len(turns) - len(failed)
        by_failure.update(failure for failure in failed["failure"] if failure != UNFINISHED)
        unfinished += int((failed["failure"] == UNFINISHED).sum())
        # Of the other turns, only the last end at each server says when it still answered.
        latest = turns[turns["ok"]].sorted_by("closed_s")
        last_rows = {target: row for row, target in enumerate(latest.texts("target"))}
        kept += [failed, latest[sorted(last_rows.values())]]
    failures = by_failure.total()
    sent = ok + failures + unfinished
    answered = _answering(concat(kept)) if kept else Answering([], None)
    measure_s = next((span.start_s for span in run.phases if span.phase == "measure"), None)
    counts = Turns(
        sent=sent,
        ok=ok,
        failed=failures,
        unfinished=unfinished,
        by_failure=dict(by_failure),
        last_ok_s=answered.last_ok_s,
    )
    return Results(turns=counts, stopped_answering=answered.stopped, run=run.manifest.run, measure_from_s=measure_s)


def recorded_until(run: RunFrames) -> str:
    """Describe how far the records of a run without a summary reach."""
    results = failed_turns(run)
    ended = f"{plural(results.turns.ok, 'turn')} ended well, {number(results.turns.failed)} failed"
    return f"the records end at {instant(results, run.end_s)}: {ended}"


def _answering(rows: Frame) -> Answering:
    heard_s = np.where(np.isnan(rows["last_s"]), rows["first_event_s"], rows["last_s"])
    targets, failures = rows.texts("target").tolist(), rows["failure"].tolist()
    return answering([(targets, failures, heard_s, rows["closed_s"])])


def gone(run: RunFrames, server: ServerSeries) -> str | None:
    """Describe a metrics page that stopped answering before the end of the load; None if it did not, or left the run's servers."""
    end_s, seen_s = load_end_s(run), passing(run).get(server.target)
    at_s = run.since_start_s(server.wall_ns)
    if end_s is None or len(at_s) < 2:
        return None
    measure_s = next((span.start_s for span in run.phases if span.phase == "measure"), 0.0)
    if seen_s is not None and measure_s + seen_s[1] < end_s - _ROUNDED_S:  # it left
        return None
    if end_s - at_s[-1] <= max(_GONE_S, _GONE_SCRAPES * float(np.median(np.diff(at_s)))):
        return None
    return f"the metrics page of {server.target} last answered at {at_s[-1]:.1f} s, the load ended at {end_s:.1f} s"


def restarted(run: RunFrames, server: ServerSeries) -> str | None:
    """Describe the restarts of a server; None without any."""
    if not server.restarted.any():
        return None
    at_s = run.since_start_s(server.wall_ns)
    times = ", ".join(f"{at_s[index]:.1f} s" for index in np.flatnonzero(server.restarted)[:5])
    return f"the counters of {server.target} were reset before {times}: the server restarted"


def load_end_s(run: RunFrames) -> float | None:
    """Return the end of the last phase with load; None if unknown."""
    ends = [span.end_s for span in run.phases if span.phase in ("warmup", "measure")]
    return ends[-1] if ends else None


def is_troubled(run: RunFrames, server: ServerSeries) -> bool:
    """Return True if the server stopped answering or restarted, or fell behind an open loop or may have."""
    grew = growth(run)
    behind = grew is not None and grew.state != "kept up"
    return behind or bool(gone(run, server) or restarted(run, server))


def only_refused(results: Results) -> bool:
    """Return True if each failed turn, if any, failed for what it asked."""
    return turn_causes.refused(results) == results.turns.whole_run.failed


def sent_no_turn(run: RunFrames) -> bool:
    """Return True if the run is known to have sent no turn in any phase."""
    return run.summary is not None and run.summary.turns.whole_run.sent == 0


def run_findings(run: RunFrames, servers: Sequence[WindowEvidence], load: MeasuredLoad) -> tuple[Finding, ...]:
    """Return the findings on the whole run, failures first. `servers`: evidence of the measure phase at each scraped server."""
    results = failed_turns(run)
    failed = turn_lines(results)
    gone_servers = [text for server in run.servers.values() if (text := gone(run, server))]
    restarts = [text for server in run.servers.values() if (text := restarted(run, server))]
    findings: list[Finding | None] = []
    if failed:
        findings += [_failed(results, (*gone_servers, *restarts)), _counted(run, results)]
    else:
        findings += [Finding("server-gone", 900.0, tuple(gone_servers))] if gone_servers else []
        findings += [Finding("restarted", 800.0, tuple(restarts))] if restarts else []
    disturbed = bool(gone_servers or restarts or _stopped(run) or any(mark.kind == "worker_lost" for mark in run.marks))
    findings += group_findings(run, servers)
    not_judged = None if run.summary is None else run.summary.overload_not_judged
    findings += [_overload(run, disturbed), Finding("overload-not-judged", 0.05, (not_judged,)) if not_judged else None]
    findings.append(_saturated(run, servers, load))
    serial = [] if run.inference_servers else _serial(run)
    findings += serial
    enough, rates = only_refused(results) and results.turns.ok >= LEAST_TURNS, kept_up_rates(run)
    if rates is not None and enough and not servers and not gone_servers and not restarts and not serial:
        findings.append(Finding("kept-up", 0.1, (rates, "no server metrics: headroom is not known")))
    return tuple(finding for finding in findings if finding is not None)


def _failed(results: Results, others: tuple[str, ...]) -> Finding:
    """Return the finding on failed turns. `others`: sentences on what else happened."""
    refused, counts = turn_causes.refused(results), results.turns.whole_run
    by_text = refused > refused_turns(counts.by_failure, counts.by_status)
    turns = f"{refused:,} of the failed turns{', by the first message of each class,' * by_text}"
    text = f"{turns} were refused at any load: for a client error, or a prompt that is too long"
    lines = (*turn_lines(results), *([text] if refused else []), *others)
    code = "refused" if refused == counts.failed else "failures"
    return Finding(code, 1000.0, lines, probable=by_text and code == "refused", figures=in_short(results))


def _counted(run: RunFrames, results: Results) -> Finding | None:
    """Return the finding that the servers count failed turns as finished; None if they do not tell."""
    counts = []
    for target in run.inference_servers:
        server = run.servers[target]
        grown, *dropped = (server.grown(names.FINISHED, **label) for label in ({}, *names.DROPPED))
        if grown is None or (server.page is not None and names.FINISHED in server.page.unlike):
            return None
        counts.append(float(grown[-1]) - sum(float(each[-1]) for each in dropped if each is not None))
    before = sum(target.before_load.requests for target in run.manifest.targets)
    counted = turn_causes.counted_as_finished(results, sum(counts), before)
    if counted is None:
        return None
    figures = "the servers count {:,} of the {:,} turns that failed on the way as finished".format(*counted)
    between = "a proxy, gateway or router ended them, or changed their answers"
    # Requests of other clients can have the same number, and a server may go on after a timeout of the client.
    return Finding("failed-between", 950.0, (figures, between), probable=True)


def _serial(run: RunFrames) -> list[Finding]:
    """Return the finding that requests wait for each other, of each target whose turns show it; none of a sample."""
    findings = []
    for target in () if run.sample is not None or not len(run.turns) else sorted(run.sent_to, key=str):
        own = run.turns[run.turns.texts("target") == target]
        sent, first, last, closed = (own[f"{name}_s"] for name in ("sent", "first", "last", "closed"))
        whole = own["ok"] & np.isnan(first)  # an answer without a stream comes at its end
        first, last = (np.where(whole, closed, each) for each in (first, last))
        found = turn_causes.served_at_once(sent, first, last, closed)
        if found is not None:
            ttft = f"mean TTFT is {number(1000 * found.others_s)} ms, {number(1000 * found.alone_s)} ms without others"
            at_once = f"{target} answered at most {plural(found.served, 'turn')} at once"
            figures = f"{at_once} while {number(found.in_flight)} were in flight: {ttft}"
            # A server that computes prompts one after another, and answers together, looks the same.
            findings.append(Finding("serial", 450.0, (figures,), probable=found.served > 1 or found.streamed < 0.5))
    return findings


def missed_limits(run: RunFrames) -> tuple[str, ...]:
    """Return the latency limits that the run missed, with their figures: gates, and an SLO that too few turns met."""
    if run.summary is None:
        return ()
    failed = [gate for gate in run.summary.verdict.gates if gate.failed and gate.answer != "inconclusive"]
    missed = [
        f"{gate.gate} (it is {parsed.shown(gate.value)})"
        for gate in failed
        if gate.value is not None and (parsed := gate_grammar.parse(gate.gate)).name in _LATENCY_LIMITS
    ]
    attainment = run.summary.rates.get(ATTAINMENT.key)
    if attainment is not None and attainment < _SLO_MET:
        missed.append(f"{percent(attainment, limit=_SLO_MET)} of the turns met the SLO")
    return tuple(missed)


def growth(run: RunFrames) -> Growth | None:
    """Return the growth of the turns in flight from the summary; None in a closed loop or if unknown."""
    return None if run.summary is None else run.summary.growth


def _highest_kept_up(grew: Growth) -> list[str]:
    """Format the highest rate of a stepped load without growth."""
    rate = grew.kept_up_per_s
    return [] if rate is None else [f"the highest step without growth offered {number(rate)} turns/s"]


def _stopped(run: RunFrames) -> list[float]:
    """Return the times at which a server stopped answering."""
    return [entry.at_s for entry in failed_turns(run).stopped_answering or ()]


def _overload(run: RunFrames, disturbed: bool) -> Finding | None:
    """Return the growth of the turns in flight. `disturbed`: a server or a part of the load was lost, so no capacity is stated."""
    grew = growth(run)
    if grew is None or grew.state == "kept up":
        return None
    if grew.state == "undecided":
        short = "this time is too short to exclude overload: measure longer"
        return Finding("overload-undecided", 0.05, (grew.text, short))
    if grew.state == "unsettled":
        short = "this time is too short, relative to a turn, to distinguish overload from ramp-up: measure longer"
        return Finding("overload", 500.0, (grew.text, short), probable=True, figures=grew.rates)
    sentences = [grew.text]
    if not disturbed:
        completed_per_s = grew.ended_per_s - grew.failed_per_s
        sentences.append(f"the capacity for turns of this kind is about {number(completed_per_s)}/s")
        sentences += _highest_kept_up(grew)
        sentences.append("latencies grow until the end of the load and depend on the duration of the run")
    return Finding("overload", 500.0, tuple(sentences), figures=grew.rates)


def _saturated(run: RunFrames, servers: Sequence[WindowEvidence], load: MeasuredLoad) -> Finding | None:
    queued = [each for each in servers if each.waiting_share >= QUEUED_SHARE and paused(each) is None]
    if arrivals_of(run.manifest).get("kind") != "closed" or not queued:
        return None
    worst = max(queued, key=lambda evidence: evidence.waiting_share)
    users, waited = load.between(worst.start_s, worst.end_s), percent(worst.waiting_share, limit=QUEUED_SHARE)
    return Finding(
        "saturated",
        400.0,
        (
            f"closed loop{'' if users is None else f' of {users}'}: requests waited for capacity in "
            f"{waited} of the scrapes, {number(float(np.nanmean(worst.scrapes.capacity)))} on average",
            *_limit(run, servers, load, worst),
        ),
    )


def _limit(
    run: RunFrames, servers: Sequence[WindowEvidence], load: MeasuredLoad, phase: WindowEvidence
) -> tuple[str, ...]:
    """Format the throughput that is the limit of the server: of a time with a queue in which the load did not change."""
    limit = load.saturated(servers, phase.start_s, min([phase.end_s, *_stopped(run)]))
    if isinstance(limit, Unmet):
        return (f"no throughput is stated as the limit of the server: {limit}",)
    tokens = "" if limit.output_tok_per_s is None else f", {number(limit.output_tok_per_s)} output tok/s"
    return (
        f"throughput at {limit.load} ({number(limit.turns_per_s)} turns/s{tokens}, from {limit.start_s} to {limit.end_s} s) is the "
        "limit of the server; latency is set by the number of users",
    )


def kept_up_rates(run: RunFrames) -> str | None:
    """Format the rates of an open loop without growth of the turns in flight; else None."""
    grew = growth(run)
    if grew is None or grew.state != "kept up":
        return None
    return "; ".join([f"{grew.rates}, without significant growth of the turns in flight", *_highest_kept_up(grew)])
