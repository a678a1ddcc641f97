"""End of a run after the drain: verdict, summary, tables, and the report in a process of its own."""

import contextlib
import logging
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from msgspec import Struct, structs, to_builtins

from inferload.base import rundir
from inferload.base.clock import NS_PER_S, now_ns
from inferload.base.errors import UsageError
from inferload.base.escaping import escaped, own_command
from inferload.base.status_lines import columns, painting
from inferload.base.threads import in_thread
from inferload.results.documents.summary_document import Summary
from inferload.results.documents.typed_documents import document_of
from inferload.results.documents.verdict_document import Reason
from inferload.results.summarise import counts as counted
from inferload.results.summarise.summarise import summarise
from inferload.results.summary import sessions
from inferload.results.terminal_summary import brief, details, diagnosis_line
from inferload.results.verdict import outcome
from inferload.run.master.analysis_process import analyse
from inferload.run.master.lifecycle.master_run import MasterRun
from inferload.run.master.manifest import about, manifest, models_of
from inferload.run.master.run_redaction import redacted
from inferload.run.master.workers.workers import Member
from inferload.servers.scrape_http import MetricsUrl
from inferload.workload.arrivals import schedule_of
from inferload.workload.plan.load_text import LoadText, load_text
from inferload.workload.quota import Quota

logger = logging.getLogger(__name__)


class RunResult(Struct, frozen=True):
    """Result of a run, for the next pass and the web page."""

    run_dir: Path
    summary: Summary
    page: Path = Path()  # the report, or the run directory if there is none


def begin(run: MasterRun) -> None:
    """Write the manifest, and the references of canaries, before the load, so that a killed run has them."""
    if (canaries := run.preflight.canaries) is not None:
        known = {"format": rundir.FORMAT} | document_of(canaries.references) | {"sha256": canaries.references.sha256}
        in_thread(rundir.write_json, run.directory.path / rundir.CANARY, run.redaction.document(known))
    _write_manifest(run, counts=None)


def _write_manifest(run: MasterRun, counts: dict[str, Any] | None, load: LoadText | None = None) -> None:
    """Write run.json. `counts` and `load`: None during the run."""
    document = redacted(run.redaction, run.spec, document_of(manifest(run, counts, load)))
    in_thread(rundir.write_json, run.directory.path / rundir.MANIFEST, document)


def conclude(run: MasterRun, csv_errors: Sequence[str] = ()) -> RunResult:
    """Write the run's documents, print its tables, and start the report.

    `csv_errors`: of Locust's tables. If a document cannot be written, the measurement is invalid, and the tables are still printed.
    """
    folder = run.directory.path
    rundir.free_reserve(folder)
    lost = _count_lost_arrivals(run)
    if lost:
        run.marks.add("dropped", f"{lost} arrivals of lost workers were dropped", arrivals=lost)
    run.marks.flush()
    counts = counts_of(run, csv_errors)
    # In a thread, since workers leave a master whose event loop does not respond: the summary of a long run takes minutes.
    summary: Summary = run.redaction.document(in_thread(summarise, folder, counts))
    load = load_text(run.spec.scenario, run.marks.entries, run.preflight.data)
    written = _write_documents(run, counts, summary, load)
    if not written:
        summary = _unwritten(folder, summary, counts)
    run.summary = summary
    detailed = run.own.details
    _show(details(summary, load.text) if detailed else brief(summary, load.users_or_rate))
    if not written:
        logger.error("no report: the run's documents could not be written")
    elif run.own.report:
        make_report(folder)
        _show_diagnosis(folder, detailed)
    else:
        logger.info("no report (--no-report); create it with: %s", own_command("report", folder))
    page = folder / rundir.REPORT_HTML
    page = page if page.is_file() else folder
    _show(str(page))
    return RunResult(folder, summary, page)


def _targets_of(pages: Iterable[str]) -> tuple[str, ...]:
    return tuple(MetricsUrl.parse(url).target for url in pages)


def counts_of(run: MasterRun, csv_errors: Sequence[str]) -> counted.Counts:
    """Return the counts of a run; an open phase ends now. `csv_errors`: of Locust's tables."""
    at_ns, preflight, earlier, end = now_ns(), run.preflight, run.setup.earlier, run.state.end
    canaries = preflight.canaries
    scraped = None if run.scraping is None else run.scraping.write_error
    targets, pages = run.servers
    windows = (replace(window, end_ns=at_ns if window.end_ns is None else window.end_ns) for window in run.windows)
    return counted.Counts(
        about(run),
        counted.Plan(run.spec.scenario.resolved_text(), run.spec.origin, preflight.data.to_wire()),
        counted.Prompts(run.salt, preflight.salts, preflight.counted.vocabulary.exactness, preflight.counted.template),
        counted.Servers(
            tuple(targets),
            tuple(models_of(run.spec, preflight)),
            _targets_of(pages),
            _targets_of(() if run.following is None else run.following.joined),
            _targets_of(() if run.following is None else run.following.left),
            preflight.roles,
        ),
        counted.Pass(run.setup.arm, None if earlier is None else counted.Earlier(earlier.arm, earlier.run_dir.name)),
        counted.Course(
            run.anchor, tuple(windows), end.early_by, end.aborted, rate_changed=bool(run.steering.rate_changes)
        ),
        counted.Workers(tuple(member.ended() for member in run.roster.members), end.complete),
        counted.Totals(
            run.inbox.totals.tallies.to_wire(),
            run.inbox.totals.health.to_wire(),
            run.inbox.totals.errors.to_wire(),
            run.others(),
            None if canaries is None else canaries.answers.document(run.inbox.totals.tallies),
        ),
        counted.Policies(run.own.inconclusive, run.own.policy),
        counted.Defects(
            (*csv_errors, *(error for error in (scraped, run.marks.error) if error is not None)), run.left_out_texts
        ),
    )


def _show(text: str) -> None:
    """Print a text. If the terminal or the reader of the pipe has closed, all further output is dropped."""
    try:
        print(text, file=painting(sys.stdout), flush=True)
    except OSError:  # else the flush at the interpreter's end would change the exit code
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _show_diagnosis(folder: Path, detailed: bool) -> None:
    """Print the report's diagnosis, if there is one: the main cause, or all causes."""
    with contextlib.suppress(UsageError):
        document = rundir.read_object(folder / rundir.DIAGNOSIS)
        lines, bottleneck = document.get("lines"), document.get("brief")
        if detailed and lines:
            _show("\n  ".join(["diagnosis", *map(escaped, lines)]) + "\n")
        elif bottleneck:
            _show(diagnosis_line(escaped(str(bottleneck)), columns(sys.stdout)))


def _unwritten(folder: Path, summary: Summary, counts: counted.Counts) -> Summary:
    """Return the summary of a run whose files could not be written, with an invalid measurement."""
    text = f"{folder}: the run's documents could not be written"
    reasons = [Reason(code="not_written", level="invalid", value=1, limit=0, text=text), *summary.verdict.reasons]
    verdict = structs.replace(summary.verdict, measurement="invalid", reasons=reasons)
    changed = structs.replace(summary, verdict=verdict)
    return structs.replace(changed, outcome=outcome.judge(changed, counts.early, counts.policies.policy))


def _write_documents(run: MasterRun, counts: counted.Counts, summary: Summary, load: LoadText) -> bool:
    """Write counts, summary and manifest; return False if one of them cannot be written."""
    folder = run.directory.path
    try:
        in_thread(rundir.write_json, folder / rundir.COUNTS, redacted(run.redaction, run.spec, counts.to_wire()))
        in_thread(rundir.write_json, folder / rundir.SUMMARY, document_of(summary))
        totals = {
            "sessions": to_builtins(sessions(run.inbox.totals.tallies.total())),
            "turns": to_builtins(summary.turns.whole_run),
        }
        _write_manifest(run, totals, load)
        (folder / rundir.TOKEN).unlink(missing_ok=True)
    except OSError as error:
        logger.error("%s: %s; the summary is printed and not saved", folder, rundir.reason(error))
        return False
    return True


def make_report(folder: Path) -> None:
    """Create the report; a failure is a warning in the log."""
    try:
        analyse("report", str(folder))
    except UsageError as error:
        logger.warning("no report: %s; create it with: %s", error, own_command("report", folder))


def _count_lost_arrivals(run: MasterRun) -> int:
    """Count arrivals of lost workers as dropped; return their number.

    These are the arrivals that a worker had not begun at its last report, and those due from then to the end of the load.
    """
    if not run.roster.gone or not run.windows:
        return 0
    waiting, rate = run.inbox.totals.tallies.drop_waiting(), run.spec.rate
    return waiting + (0 if rate is None else sum(_of_worker(run, member, rate) for member in run.roster.gone))


def _of_worker(run: MasterRun, member: Member, first_rate: float) -> int:
    start_ns, measure = run.windows[0].start_ns, run.phases.window("measure")
    if measure is None or measure.end_ns is None:
        return 0
    scenario, sessions = run.spec.scenario, run.preflight.sessions
    schedule = schedule_of(scenario, sessions, first_rate, member.stripe, len(run.roster))
    for at_ns, rate in run.steering.rate_changes:
        schedule.set_rate(max(0.0, (at_ns - start_ns) / NS_PER_S), rate)
    quota = Quota.of(scenario, member.stripe, len(run.roster))
    dropped = 0
    while (arrival := schedule.next()) is not None:
        due_ns = start_ns + round(arrival.due_s * NS_PER_S)
        if due_ns >= measure.end_ns:
            break
        window = next(w for w in run.state.phases.stepped if w.holds(due_ns))
        if not quota.take_session(window.phase):
            break
        if due_ns >= member.booked_ns:
            class_name = sessions.class_of(arrival.index)
            tally = run.inbox.totals.tallies.at(window.phase, class_name, window.step)
            tally.sessions_planned += 1
            tally.sessions_dropped += 1
            dropped += 1
    return dropped
