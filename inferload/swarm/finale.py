"""The end of a run, once all workers have drained: the verdict, the summary, the tables, and the report's own process."""

import logging
import os
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from inferload import rundir, scrapefile, turnfile
from inferload.measure import console, evidence, servers, summary, validity
from inferload.measure.arrow import pa, pc
from inferload.measure.exact import batched_values, exact_values
from inferload.measure.intervals import BATCHES
from inferload.measure.record import PHASES, Phase
from inferload.measure.splits import split
from inferload.measure.tasks import tasks_by_class
from inferload.runoptions import API_KEY_VARIABLE
from inferload.swarm import cachefigures, stepping
from inferload.swarm.cachefigures import CacheFigures
from inferload.swarm.lostload import count_lost_arrivals
from inferload.swarm.manifest import manifest, models_of, started_at, versions
from inferload.swarm.masterrun import MasterRun
from inferload.wire.scrapehttp import MetricsUrl
from inferload.workload.senthits import SentHits
from inferload.workload.sessions import Sessions

logger = logging.getLogger(__name__)

_REPORT_S = 120.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run came to, in short."""

    run_dir: Path
    headline: str
    measurement: str
    passed: bool
    undecided: bool  # it failed by inconclusive gates alone
    engine: str
    left: SentHits | None = None  # an endless prefix cache as the run left it


def begin(run: MasterRun) -> None:
    """Write the manifest as it stands before the load: a run that is killed has one too."""
    rundir.write_json(run.place.path / rundir.MANIFEST, manifest(run, counts=None))


def conclude(run: MasterRun) -> Outcome:
    """Write the run's own documents, print its tables, and have the report made."""
    folder = run.place.path
    lost = count_lost_arrivals(run)
    if lost:
        run.marks.add("dropped", f"{lost} arrivals of lost workers were dropped", arrivals=lost)
    turns = _turns(run)
    cache = cachefigures.figures(run, turns)
    document = summary.build(_input(run, turns, cache)) | _splits(run, turns) | {"cache": cache.block}
    document["tasks"] = None if turns is None else tasks_by_class(turns)
    rundir.write_json(folder / rundir.SUMMARY, document)
    counts = {"sessions": document["sessions"], "turns": document["turns"]["by_phase"]["all"]}
    rundir.write_json(folder / rundir.MANIFEST, manifest(run, counts))
    (folder / rundir.TOKEN).unlink(missing_ok=True)
    tables = console.tables(document)
    print(tables, flush=True)
    if run.own.report:
        _report(folder)
    else:
        logger.info("no report was wanted; make it with: inferload report %s", folder)
    verdict = document["verdict"]
    return Outcome(
        folder,
        tables.splitlines()[0],
        verdict["measurement"],
        bool(verdict["passed"]),
        all(gate["answer"] == "inconclusive" for gate in verdict["gates"] if not gate["passed"])
        and bool(verdict["gates"]),
        run.preflight.engine,
        cache.left,
    )


def _turns(run: MasterRun) -> pa.Table | None:
    """Every worker's turns; None where some are on another disk, or died with their worker."""
    here = str(run.place.path)
    if run.roster.lost or not run.complete or any(m.facts.get("folder") != here for m in run.roster.members):
        return None
    return turnfile.read_turns(run.place.path)


def _splits(run: MasterRun, turns: pa.Table | None) -> dict[str, Any]:
    """By target and by model, where there are several; None where turns are not all at hand."""
    wanted = {"target": [target.url for target in run.order.targets], "model": models_of(run)}
    several = {column: values for column, values in wanted.items() if len(values) > 1}
    return {
        f"by_{column}": None if turns is None else split(turns, column, values) for column, values in several.items()
    }


def _input(run: MasterRun, turns: pa.Table | None, cache: CacheFigures) -> summary.SummaryInput:
    windows: dict[Phase, float] = {w.phase: run.window_s(w.phase) for w in run.windows}
    entries = _servers(run)
    facts = _facts(run, turns, entries, cache)
    judged = validity.judge(evidence.gather(run.seen.tallies, run.seen.health, windows, facts))
    scenario = run.order.scenario
    classes = run.seen.tallies.by_class("measure")
    exact = None if turns is None else exact_values(turns)
    return summary.SummaryInput(
        run={
            "id": run.run_id,
            "scenario": scenario.name,
            "digest": scenario.digest,
            "seed": scenario.seed,
            "target": ", ".join(target.url for target in run.order.targets),
            "model": ", ".join(models_of(run)),
            "engine": run.preflight.engine,
            "started_at": started_at(run),
            "versions": versions(run),
        },
        tallies=run.seen.tallies,
        health=run.seen.health,
        windows=windows,
        servers=entries,
        verdict=judged,
        gates=list(scenario.gates),
        inconclusive=run.own.inconclusive,
        batches=None if turns is None else lambda name: batched_values(turns, name, BATCHES),
        stamps=facts.stamps,
        reader=_reader(run),
        step_windows={w.step: run.lasted_s(w) for w in run.stepped if w.step is not None},
        step_levels=stepping.levels(scenario),
        exact=exact,
        exact_by_class=None if turns is None else {name: exact_values(turns, class_name=name) for name in classes},
    )


def _servers(run: MasterRun) -> list[dict[str, Any]]:
    """The servers over the measure phase."""
    window = next((w for w in run.windows if w.phase == "measure"), None)
    if window is None or window.end_ns is None or not run.preflight.metrics_urls:
        return []
    start_ns, end_ns = run.anchor.to_wall_ns(window.start_ns), run.anchor.to_wall_ns(window.end_ns)
    targets = [MetricsUrl.parse(url).target for url in run.preflight.metrics_urls]
    return servers.servers_block(scrapefile.read_scrapes(run.place.path), start_ns, end_ns, targets)


def _facts(
    run: MasterRun, turns: pa.Table | None, entries: list[dict[str, Any]], cache: CacheFigures
) -> evidence.RunFacts:
    health = [run.seen.health.total(phase) for phase in PHASES]
    remote = [member.rtt_ns / 2e6 for member in run.roster.members if member.client_id is not None]
    restarts = [entry["restarts"] for entry in entries if entry["restarts"] is not None]
    return evidence.RunFacts(
        stamps="kernel" if any(one.reads_stamped for one in health) else "user",
        workers=len(run.roster),
        lost_workers=len(run.roster.gone),
        report_gaps=sum(member.missing_reports for member in run.roster.members),
        clock_uncertainty_ms=max(remote, default=None),
        server_restarts=sum(restarts) if restarts else None,
        warm_cache_share=_warm_cache_share(run, turns, cache),
        server_in_flight_mean=_in_flight(entries, len(run.order.targets)),
    )


def _reader(run: MasterRun) -> str | None:
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


def _warm_cache_share(run: MasterRun, turns: pa.Table | None, cache: CacheFigures) -> float | None:
    """Of the prompt tokens, those that were cached though nothing that was sent before was the same; None: nobody can tell.

    Where the expected hits are not known, of first turns, and only where these have nothing in common.
    """
    if run.arm == "warm":
        return None  # it is meant to be
    if cache.unexpected_share is not None:
        return cache.unexpected_share
    if turns is None or Sessions(run.order.scenario, run.preflight.data).first_turns_share():
        return None
    known = pc.and_(pc.equal(turns["turn_index"], 0), pc.is_valid(turns["cached_tokens"]))
    first = turns.filter(pc.and_(known, pc.is_valid(turns["input_tokens"])))
    asked = pc.sum(first["input_tokens"]).as_py()
    return pc.sum(first["cached_tokens"]).as_py() / asked if asked else None


def _report(folder: Path) -> None:
    """Have the pages made by a process of their own; one that fails changes nothing but a line in the log."""
    if not any(entry.name == "report" for entry in entry_points(group="inferload.commands")):
        logger.warning("the report command is not installed: no report.html; pip install inferload")
        return
    command = [sys.executable, "-m", "inferload", "report", str(folder)]
    environment = {name: value for name, value in os.environ.items() if name != API_KEY_VARIABLE}
    try:
        made = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_REPORT_S,
            check=False,
            env=environment,
            process_group=0,  # a Ctrl-C that comes late must not cost the report
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        logger.warning("no report: %s; make it with: inferload report %s", error, folder)
        return
    if made.returncode:
        last = (made.stderr.strip() or "no reason given").splitlines()[-1]
        logger.warning("no report: %s; try again with: inferload report %s", last, folder)
    else:
        logger.info("report: %s", folder / rundir.REPORT_HTML)
