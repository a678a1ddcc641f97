"""The end of a run, once all workers have drained: the verdict, the summary, the tables, and the report's own process."""

import logging
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from pathlib import Path

from inferload import rundir
from inferload.measure import console, summary
from inferload.measure.clock import now_ns
from inferload.runoptions import API_KEY_VARIABLE
from inferload.swarm import closing, ended
from inferload.swarm.lostload import count_lost_arrivals
from inferload.swarm.manifest import about, manifest
from inferload.swarm.masterrun import MasterRun
from inferload.workload.idhits import IdHits
from inferload.workload.senthits import SentHits

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
    left: SentHits | IdHits | None = None  # an endless prefix cache as the run left it


def begin(run: MasterRun) -> None:
    """Write the manifest as it stands before the load: a run that is killed has one too."""
    rundir.write_json(run.place.path / rundir.MANIFEST, manifest(run, counts=None))


def conclude(run: MasterRun) -> Outcome:
    """Write the run's own documents, print its tables, and have the report made."""
    folder = run.place.path
    lost = count_lost_arrivals(run)
    if lost:
        run.marks.add("dropped", f"{lost} arrivals of lost workers were dropped", arrivals=lost)
    over = _over(run)
    closed = closing.close(over)
    document = closed.document
    rundir.write_json(folder / rundir.SUMMARY, document)
    counts = {"sessions": summary.sessions(run.seen.tallies.total()), "turns": document["turns"]["by_phase"]["all"]}
    rundir.write_json(folder / rundir.MANIFEST, manifest(run, counts))
    (folder / rundir.TOKEN).unlink(missing_ok=True)
    if any(member.facts.get("folder") != str(folder) for member in run.roster.members):
        ended.keep(over)
    tables = console.tables(document)
    print(tables, flush=True)
    if run.own.report:
        make_report(folder)
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
        closed.left,
    )


def _over(run: MasterRun) -> ended.EndedRun:
    """What its documents are made of; the phase that is still open ends now."""
    at_ns = now_ns()
    return ended.EndedRun(
        about=about(run),
        order=run.order,
        preflight=run.preflight,
        place=run.place,
        anchor=run.anchor,
        windows=tuple(replace(one, end_ns=at_ns if one.end_ns is None else one.end_ns) for one in run.windows),
        roster=run.roster,
        seen=run.seen,
        complete=run.complete,
        arm=run.arm,
        salt=run.salt,
        earlier=run.earlier,
        inconclusive=run.own.inconclusive,
        rate_changed=bool(run.steering.rate_changes),
    )


def make_report(folder: Path) -> None:
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
