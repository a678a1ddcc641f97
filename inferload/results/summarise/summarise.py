"""Summary of a run directory, from its counts, its scrapes and, if complete, its turn records."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from inferload.base import rundir
from inferload.base.arrow import pa, pc
from inferload.base.clock import NS_PER_S
from inferload.base.errors import UsageError
from inferload.figures.rate_figures import of_power
from inferload.figures.servers import server_figures
from inferload.figures.servers.server_figures import Server
from inferload.figures.turn_values import SLICES, ExactValues, batch_sums, batched_values
from inferload.results import readers, summary
from inferload.results.documents.figures_document import Growth, worst
from inferload.results.documents.summary_document import Energy, Groups, RunPart, Summary, Task, TurnRecords
from inferload.results.documents.typed_documents import document_of
from inferload.results.documents.verdict_document import Conformity
from inferload.results.open_run import OpenRun
from inferload.results.summarise import cache_figures
from inferload.results.summarise.between import between
from inferload.results.summarise.cache_figures import CacheFigures
from inferload.results.summarise.counts import Counts, Servers, Totals, Workers, lasted_s
from inferload.results.summarise.splits import splits
from inferload.results.summarise.turns import CLASS_COLUMNS, MOST_TURNS, Turns, agent_classes
from inferload.results.summary_input import (
    Counted,
    Gating,
    Overload,
    Steps,
    SummaryInput,
    Surroundings,
    Troubles,
    TurnValues,
)
from inferload.results.verdict import outcome, phase_evidence, validity
from inferload.results.verdict.evidence import GpuClock, RunFacts, ScrapeGap
from inferload.results.verdict.failures import Answering, TurnEnds, answering
from inferload.servers import window_figures
from inferload.servers.series import ServerSeries
from inferload.servers.servers_window import ServersWindow
from inferload.servers.window import ServerWindow, windows_of
from inferload.turns.record import Phase
from inferload.turns.tally import Tally
from inferload.workload.sessions import Sessions


def summarise(run_dir: Path, counts: Counts | None = None) -> Summary:
    """Return the summary of a run directory.

    `counts`: None: from counts.json. UsageError if a file cannot be read, or is not of this run.
    """
    return of_run(OpenRun(run_dir, counts))


def of_run(opened: OpenRun) -> Summary:
    """Return the summary of a run; UsageError as in `summarise`."""
    run, turns, servers = opened.counts, Turns.of(opened), cache_figures.servers_of(opened)
    cache = cache_figures.figures(run, turns, servers, opened.earlier)
    exact = None if turns is None or not turns.few else ExactValues(turns.read, ["class", *_split_by(run.servers)])
    tallies = run.totals.tallies
    if not cache.reported:
        for _, tally in tallies.items():
            tally.cached_tokens = tally.cached_tokens_from = 0  # not known
    measured = summary.build(_input(run, turns, cache, exact, servers))
    if len(measured.by_class) > 1:
        from inferload.results.summarise import acceptance, attained  # of runs with several classes

        measured = acceptance.with_acceptance(measured, tallies.by_class("measure"), tallies.total("measure"))
        measured = replace(measured, by_class=attained.with_intervals(measured.by_class, run, turns))
    records, notes = _turn_records(run.workers), []
    sketched = "percentiles from sketches, within 0.25 %"
    if records.why is not None:
        at_hand = f"{records.at_hand} of {records.counted} turn records are in the run directory"
        notes.append(f"{at_hand} ({records.why}); {sketched}")
    elif turns is not None and not turns.few:
        notes.append(f"{turns}: {sketched}")
    notes += [] if cache.note is None else [cache.note]
    results = replace(
        measured,
        **splits(turns, exact, _split_by(run.servers)),
        measure_from_s=_measure_from_s(run),
        notes=[*measured.notes, *notes],
        cache=cache.block,
        turn_records=records,
        tasks={} if turns is None else _tasks(turns, run.plan.scenario.groups),
        groups={} if turns is None else _groups(turns, run.plan.scenario.groups),
        conformity=_conformity(run, turns),
        by_phase=_by_phase(opened, turns, servers),
    )
    return Summary.of(results, outcome.judge(results, run.early, run.policies.policy))


def _measure_from_s(run: Counts) -> float | None:
    starts_ns = (window.start_ns for window in run.course.windows if window.phase == "measure")
    start_ns = next(starts_ns, None)
    return None if start_ns is None else round((start_ns - run.course.anchor.mono_ns) / NS_PER_S, 3)


def _by_phase(opened: OpenRun, turns: Turns | None, servers: Mapping[str, ServerSeries]) -> list[RunPart]:
    marked = any(mark.kind in rundir.PART_KINDS for mark in opened.marks)
    changed = marked or any(server.restarted.any() for server in servers.values())
    if turns is None or turns.count > MOST_TURNS or not (changed or any(each.step for each in opened.counts.stepped)):
        return []
    from inferload.results.summarise import by_phase  # of runs with marks or steps

    return by_phase.parts(opened.counts, turns, opened.marks, servers)


def refresh(run: OpenRun) -> None:
    """Write summary.json if it is missing or older than its sources. Do nothing for a run without counts.

    UsageError if the files are not those of a run.
    """
    target, counts = run.path / rundir.SUMMARY, run.path / rundir.COUNTS
    if not run.has(rundir.COUNTS):
        return
    folders = (rundir.TURNS, rundir.SERVER_METRICS)
    sources = [counts, *(path for name in folders for path in rundir.plain_files(run.path / name, "*.parquet"))]
    newest_ns = max(path.lstat().st_mtime_ns for path in sources)
    if run.has(rundir.SUMMARY) and target.lstat().st_mtime_ns >= newest_ns:
        return
    try:
        document = of_run(run)
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise UsageError(f"{counts}: not the counts of a run ({error!r}); the run directory was changed") from error
    rundir.write_json(target, document_of(document))


def _split_by(servers: Servers) -> dict[str, list[str]]:
    """Targets and models, if there are several."""
    columns = {"target": list(servers.targets), "model": list(servers.models)}
    return {column: values for column, values in columns.items() if len(values) > 1}


def _gpus(
    windows: Sequence[ServerWindow], window_s: float | None, measured: Tally, entries: Sequence[Server]
) -> tuple[Energy | None, GpuClock | None]:
    """Energy, and the clock that fell most."""
    if not any(window.has_gpus for window in windows):
        return None, None
    from inferload.results.summarise.gpus import energy_of, fallen_most  # of runs with a GPU exporter

    roles = {each.target: each.role for each in entries if each.role}
    energy = energy_of(windows, window_s, lambda watts: of_power(measured, window_s, watts), roles)
    return energy, fallen_most(windows)


def _conformity(run: Counts, turns: Turns | None) -> Conformity | None:
    if run.plan.scenario.rules is None:
        return None
    from inferload.results.verdict.conformity import conformity  # of runs by published rules

    return conformity(run, turns)


def _groups(turns: Turns, samples: Mapping[str, int]) -> dict[str, Groups]:
    if not samples:
        return {}
    from inferload.results.summarise import groups  # of runs with groups

    return groups.groups_by_class(turns.by_session(groups.COLUMNS, groups.facts, turns.parts), samples)


def _tasks(turns: Turns, groups: Mapping[str, int]) -> dict[str, Task]:
    names = [name for name in agent_classes(turns.read(CLASS_COLUMNS)) if name not in groups]
    if not names:
        return {}
    from inferload.results import agent_tasks  # of runs with agents

    return agent_tasks.tasks_by_class(turns.by_session(agent_tasks.COLUMNS, agent_tasks.facts, turns.parts), names)


def _input(
    run: Counts,
    turns: Turns | None,
    cache: CacheFigures,
    exact: ExactValues | None,
    servers: Mapping[str, ServerSeries],
) -> SummaryInput:
    at_servers = _windows(run, servers)
    windows: dict[Phase, float] = {w.phase: run.course.window_s(w.phase) for w in run.course.windows}
    entries = window_figures.entries(at_servers)
    together, measured = window_figures.together(at_servers), run.totals.tallies.total("measure")
    if measured.whole and measured.whole == measured.ended:
        entries = [replace(entry, **{row.entry_key: None for row in server_figures.OF_STREAMS}) for entry in entries]
        together = {
            key: None if server_figures.BY_KEY[key] in server_figures.OF_STREAMS else together[key] for key in together
        }
    growths = _growths(run, turns)
    energy, gpu_clock = _gpus(at_servers, windows.get("measure"), measured, entries)
    facts = replace(
        _facts(run, turns, entries, cache),
        growth=worst(growths),
        server_itl_ms=server_figures.ITL.number(ServersWindow(at_servers)),
        between=between(run, turns, servers),
        gpu_clock=gpu_clock,
    )
    judged = validity.judge(phase_evidence.evidence_by_phase(run.totals.tallies, run.totals.health, windows, facts))
    scenario, aborted = run.plan.scenario, run.course.aborted
    return SummaryInput(
        Surroundings(
            run.run,
            facts.stamps,
            readers.uses_of(worker.readers for worker in run.workers.workers),
            {} if run.plan.scenario.open_loop else run.totals.others.users,
            servers=entries,
            servers_together=together,
            energy=energy,
        ),
        Counted(run.totals.tallies, run.totals.health, windows, lambda name: scenario.slo_of(name).limits),
        judged,
        _values(turns, exact),
        Steps({w.step: lasted_s(w) for w in run.stepped if w.step is not None}, scenario.arrivals.step_levels),
        Overload(facts.growth, {of.step: of for of in growths if of.step is not None}, _not_judged(run, turns)),
        Gating(scenario.gates, run.policies.inconclusive, aborted=None if aborted is None else aborted.result()),
        _troubles(run.totals, run.course.anchor.mono_ns, None if turns is None else _answering(run, turns)),
    )


def _troubles(totals: Totals, first_ns: int, answered: Answering | None) -> Troubles:
    """`first_ns`: start of the run."""
    return Troubles(
        first_errors=totals.errors.document(first_ns),
        remarks=totals.errors.remarks(first_ns),
        stopped_answering=None if answered is None else answered.stopped,
        last_ok_s=None if answered is None else answered.last_ok_s,
        other_requests=totals.others.requests(totals.errors, first_ns),
        exceptions=totals.others.exceptions,
        canary=totals.canary,
    )


def _values(turns: Turns | None, exact: ExactValues | None) -> TurnValues:
    if turns is None:
        return TurnValues()
    if exact is None:
        return TurnValues(sums=lambda name, of, limit: batch_sums(turns.read, name, SLICES, of, limit))
    return TurnValues(
        lambda name, of: exact.of(name, None if of is None else "class", of),
        lambda name, of: batched_values(turns.read, name, SLICES, of),
    )


def _windows(run: Counts, servers: Mapping[str, ServerSeries]) -> list[ServerWindow]:
    window = next((w for w in run.course.windows if w.phase == "measure"), None)
    if window is None or window.end_ns is None or not run.servers.metrics_targets:
        return []
    start_ns, end_ns = run.course.anchor.to_wall_ns(window.start_ns), run.course.anchor.to_wall_ns(window.end_ns)
    of, interval_s = run.servers, run.plan.scenario.server.interval_s
    return windows_of(servers, start_ns, end_ns, list(of.metrics_targets), interval_s, joined=of.joined, left=of.left)


def _facts(run: Counts, turns: Turns | None, entries: list[Server], cache: CacheFigures) -> RunFacts:
    counted = (server_figures.RESTARTS.of(entry, None) for entry in entries)
    restarts = [count for count in counted if count is not None]
    return replace(
        phase_evidence.client_facts(run.totals.health, run.workers.workers, run.defects.adaptations_left_out),
        server_restarts=round(sum(restarts)) if restarts else None,
        scrape_gap=_scrape_gap(entries),
        warm_cache_share=_warm_cache_share(run, turns, cache),
        server_in_flight_mean=None
        if run.totals.tallies.total("measure").whole  # each text is a request there
        else _in_flight(entries, len(run.servers.targets), run.totals.tallies.total("measure")),
        lost_records=run.workers.lost_records,
        lost_records_why=run.workers.why_lost,
        write_errors=run.defects.write_errors,
    )


def _turn_records(workers: Workers) -> TurnRecords:
    """Counted turns, and turn records in the run directory. `why`: reason for missing records."""
    held_back = [worker for worker in workers.workers if worker.held_back_records]
    return TurnRecords(
        counted=sum(worker.turns for worker in workers.workers),
        at_hand=sum(worker.at_hand or 0 for worker in workers.workers),
        held_back=sum(worker.held_back_records for worker in held_back),
        lost=workers.lost_records,
        why=workers.why_lost or next((f"worker {worker.name}: {worker.held_back}" for worker in held_back), None),
    )


def _not_judged(run: Counts, turns: Turns | None) -> str | None:
    """Reason why overload of an open loop was not evaluated; None if it was, and in a closed loop."""
    if not run.plan.scenario.open_loop:
        return None
    if run.plan.scenario.arrivals.uneven is not None:
        return run.plan.scenario.arrivals.uneven
    if run.course.rate_changed:
        return "the rate was changed during the run"
    return "turn records are not all in the run directory" if turns is None else None


def _growths(run: Counts, turns: Turns | None) -> list[Growth]:
    """Growth of the number of turns in flight in an open loop of constant rate, per step of a load with steps."""
    if turns is None or not run.plan.scenario.open_loop or _not_judged(run, turns):
        return []
    from inferload.results.statistics.overload import Ends, growth_of_turns  # of open loops

    ends, begun_ns = Ends.of(turns.read, turns.shifts_ns(run.workers.workers)), run.course.windows[0].start_ns
    pa.default_memory_pool().release_unused()  # the C library keeps what its pieces took
    growths = [
        growth_of_turns(ends, window, 0.0 if window.step else (window.start_ns - begun_ns) / NS_PER_S)
        for window in run.stepped
        if window.phase == "measure"
    ]
    return [growth for growth in growths if growth is not None]


def _answering(run: Counts, turns: Turns) -> Answering:
    """How the servers answered, in seconds since the run began."""
    shifts_ns, start_ns = turns.shifts_ns(run.workers.workers), run.course.anchor.mono_ns

    def ends() -> Iterator[TurnEnds]:
        for table in turns.read(("worker", "target", "failure", "last_ns", "first_event_ns", "closed_ns")):
            of = np.array([start_ns - shifts_ns[name] for name in table["worker"].to_pylist()], dtype=np.float64)
            at_ns = (pc.coalesce(table["last_ns"], table["first_event_ns"]), table["closed_ns"])
            heard_s, closed_s = ((column.cast(pa.float64()).to_numpy() - of) / NS_PER_S for column in at_ns)
            yield table["target"].to_pylist(), table["failure"].to_pylist(), heard_s, closed_s

    return answering(ends())


def _scrape_gap(entries: list[Server]) -> ScrapeGap:
    """Longest time without a scrape, relative to its limit, of the servers that ever answered."""
    times = [(entry.target, entry.longest_gap_s, entry.gap_limit_s) for entry in entries]
    gaps = [ScrapeGap(name, gap_s, limit_s) for name, gap_s, limit_s in times if gap_s is not None and limit_s]
    return max(gaps, key=lambda gap: gap.gap_s / gap.limit_s, default=ScrapeGap())


def _in_flight(entries: list[Server], targets: int, measured: Tally) -> float | None:
    """Mean number of turns in all servers; None if a server does not report it over the whole window.

    Turns have their share of the client's requests beside canaries. Those in flight in a front end are in it or in the
    engines behind it.
    """
    if len(entries) < targets or any(entry.too_long_gap_s is not None or entry.seen_s for entry in entries):
        return None
    front = [entry for entry in entries if entry.kind is not None and entry.kind.kind == "front end"]
    gauges = (server_figures.RUNNING,) if front else (server_figures.RUNNING, server_figures.WAITING)
    means = [gauge.of(entry, "mean") for entry in front or entries for gauge in gauges]
    known = [mean for mean in means if mean is not None]
    in_flight_ns = measured.window_in_flight_ns + measured.canary_ns
    share = measured.window_in_flight_ns / in_flight_ns if measured.canary_ns else 1.0
    return sum(known) * share if known and len(known) == len(means) else None


def _warm_cache_share(run: Counts, turns: Turns | None, cache: CacheFigures) -> float | None:
    """Share of the prompt tokens of first turns that were cached before the run sent them; None: unknown.

    Without expected hits, all cached tokens, if first turns have no common prefix.
    """
    if run.of_pass.arm == "warm" or not cache.reported:
        return None  # warm on purpose, or not known
    if cache.unexpected_share is not None:
        return cache.unexpected_share
    if turns is None or Sessions(run.plan.scenario, run.plan.data).first_turns_share():
        return None
    cached = tokens = 0
    for table in turns.read(("turn_index", "cached_tokens", "input_tokens")):
        known = pc.and_(pc.equal(table["turn_index"], 0), pc.is_valid(table["cached_tokens"]))
        first = table.filter(pc.and_(known, pc.is_valid(table["input_tokens"])))
        cached += pc.sum(first["cached_tokens"]).as_py() or 0
        tokens += pc.sum(first["input_tokens"]).as_py() or 0
    return cached / tokens if tokens else None
