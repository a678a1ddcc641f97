"""The summary of a run that is over: from its books and, where they are at hand, its turns."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from inferload import scrapefile, turnfile
from inferload.measure import evidence, outcome, servers, summary, validity
from inferload.measure.arrow import pa, pc
from inferload.measure.clock import NS_PER_S
from inferload.measure.exact import batched_values, exact_values
from inferload.measure.failures import stopped_by_target
from inferload.measure.intervals import SLICES
from inferload.measure.overload import Growth, growth_of_turns, worst
from inferload.measure.record import PHASES, Phase
from inferload.measure.splits import split
from inferload.measure.tasks import tasks_by_class
from inferload.swarm import cachefigures, stepping
from inferload.swarm.cachefigures import CacheFigures
from inferload.swarm.ended import EndedRun, lasted_s
from inferload.wire.scrapehttp import MetricsUrl
from inferload.workload.arrivalkinds import OpenArrivals, Rated, TraceTimes
from inferload.workload.idhits import IdHits
from inferload.workload.profiles import Steps
from inferload.workload.senthits import SentHits


@dataclass(frozen=True, slots=True)
class Closed:
    """The summary's document, and an endless prefix cache as the run left it (None: nobody can tell)."""

    document: dict[str, Any]
    left: SentHits | IdHits | None


def close(run: EndedRun) -> Closed:
    """What the run came to."""
    turns = run.turns()
    cache = cachefigures.figures(run, turns)
    document = summary.build(_input(run, turns, cache)) | _splits(run, turns) | {"cache": cache.block}
    document["tasks"] = None if turns is None else tasks_by_class(turns)
    document["outcome"] = outcome.judge(document, run.early, run.policy).to_dict()
    return Closed(document, cache.left)


def _splits(run: EndedRun, turns: pa.Table | None) -> dict[str, Any]:
    """By target and by model, where there are several; None where turns are not all at hand."""
    wanted = {"target": [target.url for target in run.order.targets], "model": run.models}
    several = {column: values for column, values in wanted.items() if len(values) > 1}
    return {
        f"by_{column}": None if turns is None else split(turns, column, values) for column, values in several.items()
    }


def _input(run: EndedRun, turns: pa.Table | None, cache: CacheFigures) -> summary.SummaryInput:
    windows: dict[Phase, float] = {w.phase: run.window_s(w.phase) for w in run.windows}
    entries = _servers(run)
    growths = _growths(run, turns)
    facts = replace(_facts(run, turns, entries, cache), growth=worst(growths))
    judged = validity.judge(evidence.gather(run.seen.tallies, run.seen.health, windows, facts))
    scenario = run.order.scenario
    classes = run.seen.tallies.by_class("measure")
    exact = None if turns is None else exact_values(turns)
    return summary.SummaryInput(
        run=dict(run.about),
        tallies=run.seen.tallies,
        health=run.seen.health,
        windows=windows,
        servers=entries,
        verdict=judged,
        gates=list(scenario.gates),
        inconclusive=run.inconclusive,
        batches=None if turns is None else lambda name, of_class: batched_values(turns, name, SLICES, of_class),
        other_requests=run.others.requests,
        exceptions=run.others.exceptions,
        users=run.others.users,
        stamps=facts.stamps,
        reader=_reader(run),
        step_windows={w.step: lasted_s(w) for w in run.stepped if w.step is not None},
        step_levels=stepping.levels(scenario),
        first_errors=run.seen.errors.document(run.anchor.mono_ns),
        stopped_answering=None if turns is None else _stopped_answering(run, turns),
        growth=facts.growth,
        step_growth={one.step: one for one in growths if one.step is not None},
        overload_not_judged=_not_judged(run, turns),
        aborted=None if run.aborted is None else run.aborted.result(),
        exact=exact,
        exact_by_class=None if turns is None else {name: exact_values(turns, class_name=name) for name in classes},
    )


def _servers(run: EndedRun) -> list[dict[str, Any]]:
    """The servers over the measure phase."""
    window = next((w for w in run.windows if w.phase == "measure"), None)
    if window is None or window.end_ns is None or not run.preflight.metrics_urls:
        return []
    start_ns, end_ns = run.anchor.to_wall_ns(window.start_ns), run.anchor.to_wall_ns(window.end_ns)
    targets = [MetricsUrl.parse(url).target for url in run.preflight.metrics_urls]
    return servers.servers_block(scrapefile.read_scrapes(run.place.path), start_ns, end_ns, targets)


def _facts(
    run: EndedRun, turns: pa.Table | None, entries: list[dict[str, Any]], cache: CacheFigures
) -> evidence.RunFacts:
    remote = [member.uncertain_ns / 1e6 for member in run.roster.members if member.client_id is not None]
    restarts = [entry["restarts"] for entry in entries if entry["restarts"] is not None]
    return evidence.RunFacts(
        stamps=_stamps(run),
        workers=len(run.roster),
        lost_workers=len(run.roster.gone),
        report_gaps=sum(member.missing_reports for member in run.roster.members),
        clock_uncertainty_ms=max(remote, default=None),
        server_restarts=sum(restarts) if restarts else None,
        warm_cache_share=_warm_cache_share(run, turns, cache),
        server_in_flight_mean=_in_flight(entries, len(run.order.targets)),
        lost_records=run.lost_records,
        lost_records_why=_why_lost(run),
        write_errors=run.write_errors,
        adaptations_left_out=run.adaptations_left_out,
    )


def _stamps(run: EndedRun) -> validity.Stamps | None:
    """What dates the reads; None where nothing was read."""
    health = [run.seen.health.total(phase) for phase in PHASES]
    if any(one.reads_stamped for one in health):
        return "kernel"
    return "user" if any(one.reads_unstamped for one in health) else None


def _why_lost(run: EndedRun) -> str:
    """The first worker that lost records, the path and the error."""
    for member in run.roster.members:
        if member.lost_records:
            why = member.write_error or f"{member.facts.get('folder')}: files were removed while the run lasted"
            return f"worker {member.name}: {why}"
    return ""


def _not_judged(run: EndedRun, turns: pa.Table | None) -> str | None:
    """Why overload of an open loop was not judged; None if it was, and in a closed loop."""
    arrivals = run.order.scenario.arrivals
    if not isinstance(arrivals, OpenArrivals):
        return None
    if isinstance(arrivals, TraceTimes):
        return "sessions begin at recorded times"
    if arrivals.profile is not None and not isinstance(arrivals.profile, Steps):
        return f"the rate changes without steps (arrivals.profile.kind {arrivals.profile.kind})"
    if run.rate_changed:
        return "the rate was changed while the run lasted"
    return "turn records are not all in the run directory" if turns is None else None


def _growths(run: EndedRun, turns: pa.Table | None) -> list[Growth]:
    """Growth of the turns in flight in an open loop of constant rate; in each step of a load with steps."""
    if turns is None or not isinstance(run.order.scenario.arrivals, Rated) or _not_judged(run, turns):
        return []
    shifts_ns, begun_ns = _shifts_ns(run), run.windows[0].start_ns
    found = [
        growth_of_turns(turns, shifts_ns, window, 0.0 if window.step else (window.start_ns - begun_ns) / NS_PER_S)
        for window in run.stepped
        if window.phase == "measure"
    ]
    return [one for one in found if one is not None]


def _shifts_ns(run: EndedRun) -> dict[str, int]:
    """Per worker, what brings the instants of its turn file to the master's monotonic clock."""
    anchors = turnfile.anchors(run.place.path)
    members = [member for member in run.roster.members if member.name in anchors]
    return {member.name: anchors[member.name].mono_ns - member.offset_ns for member in members}


def _stopped_answering(run: EndedRun, turns: pa.Table) -> list[dict[str, Any]]:
    """The servers that stopped answering, in seconds since the run began."""
    shifts_ns = _shifts_ns(run)
    starts_ns = np.array(
        [run.anchor.mono_ns - shifts_ns[name] for name in turns["worker"].to_pylist()], dtype=np.float64
    )
    heard_ns = pc.coalesce(turns["last_ns"], turns["first_event_ns"])
    heard_s, closed_s = (
        (column.cast(pa.float64()).to_numpy() - starts_ns) / NS_PER_S for column in (heard_ns, turns["closed_ns"])
    )
    return stopped_by_target(turns["target"].to_pylist(), turns["failure"].to_pylist(), heard_s, closed_s)


def _reader(run: EndedRun) -> str | None:
    """What read on the workers; "mixed" where they differ."""
    names = {name for name in (member.facts.get("reader") for member in run.roster.members) if name}
    return None if not names else names.pop() if len(names) == 1 else "mixed"


def _in_flight(entries: list[dict[str, Any]], targets: int) -> float | None:
    """Turns that all servers together held on average; None where one of them does not say."""
    if len(entries) < targets:
        return None
    means = [entry[name]["mean"] for entry in entries for name in ("requests_running", "requests_waiting")]
    known = [mean for mean in means if mean is not None]
    return sum(known) if known and len(known) == len(means) else None


def _warm_cache_share(run: EndedRun, turns: pa.Table | None, cache: CacheFigures) -> float | None:
    """Of the prompt tokens, those that were cached though nothing that was sent before was the same; None: nobody can tell.

    Where the expected hits are not known, of first turns, and only where these have nothing in common.
    """
    if run.arm == "warm":
        return None  # it is meant to be
    if cache.unexpected_share is not None:
        return cache.unexpected_share
    if turns is None or run.preflight.sessions.first_turns_share():
        return None
    known = pc.and_(pc.equal(turns["turn_index"], 0), pc.is_valid(turns["cached_tokens"]))
    first = turns.filter(pc.and_(known, pc.is_valid(turns["input_tokens"])))
    asked = pc.sum(first["input_tokens"]).as_py()
    return pc.sum(first["cached_tokens"]).as_py() / asked if asked else None
