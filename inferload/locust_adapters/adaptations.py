"""Adaptations of Locust: requirements of each on the installed version, and the consequence of its absence.

`python -m inferload.locust_adapters.adaptations` prints docs/reference/locust-versions.md.
"""

import logging
import re
from collections.abc import Iterable

import locust
import locust.argument_parser
import locust.main
import locust.runners
import locust.stats

from inferload.base.errors import UsageError
from inferload.locust_adapters import compat, logs, membership, messages, process, runners, tables, tasks, web_page
from inferload.locust_adapters.compat import Adaptation

OLDEST_TESTED = "2.46.0"
NEWEST_TESTED = "2.47.0"
TESTED = f"{OLDEST_TESTED} to {NEWEST_TESTED}"

logger = logging.getLogger(__name__)


def apply_all(adaptations: Iterable[Adaptation], version: str) -> set[str]:
    """Apply adaptations in order; return the names of those that do not fit. UsageError if one of these is required."""
    misfits = set()
    for adaptation in adaptations:
        if adaptation.applied():
            continue
        if adaptation.required:
            raise UsageError(
                f"locust {version}: {adaptation.consequence}; inferload is tested with {TESTED}: "
                f"pip install 'locust>={OLDEST_TESTED},<={NEWEST_TESTED}'"
            )
        misfits.add(adaptation.name)
    return misfits


def check_version(version: str) -> None:
    """Raise UsageError if Locust is older than the oldest tested version."""
    if _numbers(version) < _numbers(OLDEST_TESTED):
        raise UsageError(
            f"locust {version}: inferload needs {OLDEST_TESTED} or newer; pip install 'locust>={OLDEST_TESTED},<3'"
        )


def _numbers(version: str) -> tuple[int, ...]:
    """Return major, minor and patch; a version without numbers, as of a build from a repository, counts as newest."""
    match = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", version)
    return tuple(int(part or 0) for part in match.groups()) if match else (10**6,)


ADAPTATIONS = (
    Adaptation(
        "start_stop",
        runners.has_start_and_stop,
        "start, stop or messages of Locust's runners have changed, so that no run is possible",
        required=True,
    ),
    Adaptation(
        "command_line",
        process.has_command_line,
        "Locust's options or their parser have changed, so that no run is possible",
        required=True,
    ),
    Adaptation(
        "default_arguments",
        process.asks_for_defaults,
        "each change of the number of users blocks every worker's event loop for 55 to 75 ms",
        process.cache_default_arguments,
        figures=True,
        workers=True,
    ),
    Adaptation(
        "buckets",
        tables.has_bucket_hook,
        "percentiles of requests other than turns, and of Locust's tables, are rounded to two significant digits",
        tables.use_fine_buckets,
        figures=True,
    ),
    Adaptation(
        "bounded_names",
        tables.keeps_entries,
        "request names that contain IDs can exhaust memory",
        tables.bound_names,
    ),
    Adaptation(
        "fractions",
        tables.has_whole_milliseconds,
        "the web UI shows minima and maxima in whole milliseconds",
        tables.keep_fractions,
    ),
    Adaptation(
        "even_clock",
        process.asks_wall_clock,
        "a step of the wall clock can end workers and distort rates in Locust's tables",
        process.use_steady_clock,
    ),
    Adaptation(
        "forked_workers",
        process.waits_for_forks,
        "a run with --processes can end with a traceback",
        process.tolerate_reaped_workers,
        workers=True,
    ),
    Adaptation(
        "callers",
        process.inspects_callers,
        "a stop of the users blocks the event loop for 50 ms",
        process.inspect_without_source,
    ),
    Adaptation(
        "malformed_packets",
        messages.receives_packets,
        "one malformed packet to the master's port ends reception of all workers' messages",
        messages.survive_malformed_packets,
        workers=True,
    ),
    Adaptation(
        "known_senders",
        messages.handles_messages,
        "Locust's tables include statistics of senders that are not workers of the run, and an unexpected message ends reception",
        messages.check_senders,
        workers=True,
    ),
    Adaptation(
        membership.NAME,
        membership.creates_sockets,
        "a process that reaches the master's port can join a run with --processes, and --token-file is refused",
        membership.authenticate,
        figures=True,
        workers=True,
    ),
    Adaptation(
        "signals",
        process.sets_signal_handlers,
        "a run that is ended by SIGTERM does not exit with 143",
        process.disable_signal_handlers,
    ),
    Adaptation(
        "task_names",
        tasks.executes_tasks,
        "turns of tasks without name= are counted under the name of their user class",
        tasks.note_task_names,
        figures=True,
    ),
    Adaptation(
        "late_wakes",
        tasks.sleeps_between_tasks,
        "the lag of a task that another task delayed is not measured, so that reason client_lag can be missing",
        tasks.note_late_wakes,
        figures=True,
    ),
    Adaptation(
        "run_time_hint",
        process.hints_at_run_time,
        "the log contains Locust's hint that no run time limit is set, although there is one",
        process.drop_hint,
    ),
    Adaptation(
        "listener_errors",
        logs.logs_listeners,
        "exceptions of event listeners are not counted, and do not change the exit code",
        figures=True,
    ),
    Adaptation(
        "members_only",
        runners.takes_dispatcher,
        "a worker that connects during a run gets users that send nothing, so that the load is too low",
        figures=True,
        workers=True,
    ),
    Adaptation(
        "worker_order",
        runners.hands_out_in_order,
        "users and sessions are distributed among workers in different orders, so that some users can get no session",
        figures=True,
        workers=True,
    ),
    Adaptation(
        "missing_workers",
        runners.waits_for_missing_workers,
        'the web UI shows "stopping" for a minute after a run that lost a worker',
        runners.ignore_missing_workers,
        workers=True,
    ),
    Adaptation(
        "last_stats",
        messages.sends_stats,
        "requests other than turns of a worker's last 3 s can be missing",
        figures=True,
        workers=True,
    ),
    Adaptation(
        "final_tables",
        tables.prints_tables,
        "Locust's own tables are printed too at the end of a headless run",
    ),
    Adaptation(
        "json_output",
        tables.prints_json,
        "with --json, the run's summary precedes Locust's JSON on standard output",
    ),
    Adaptation(
        "batches",
        tables.logs_in_batches,
        "Locust's tables are filled request by request, which costs workers more CPU time",
    ),
    Adaptation(
        "web_run_time",
        web_page.starts_run_timer,
        "a run time given in the web UI counts from the click, and the run ends as stopped by hand",
    ),
    Adaptation(
        "web_page",
        web_page.has_page,
        "the web UI shows no state of the run, and no reason of a refused start",
    ),
)


def apply() -> None:
    """Apply every adaptation that fits. UsageError if a required one does not, or if Locust is too old. Idempotent."""
    check_version(locust.__version__)
    compat.left_out.update(apply_all(ADAPTATIONS, locust.__version__))


def left_out_of(names: Iterable[str], *, workers: bool) -> tuple[Adaptation, ...]:
    """Return the named adaptations that concern a run with or without workers."""
    known = set(names)
    return tuple(each for each in ADAPTATIONS if each.name in known and (workers or not each.workers))


def log_differences() -> None:
    """Log a warning for a Locust newer than the tested versions, and one for each adaptation that was left out."""
    if _numbers(locust.__version__) > _numbers(NEWEST_TESTED):
        logger.warning("locust %s is newer than the tested versions, %s", locust.__version__, TESTED)
    for adaptation in left_out_of(compat.left_out, workers=True):
        text = "locust %s: adaptation %s does not fit: %s"
        logger.warning(text, locust.__version__, adaptation.name, adaptation.consequence)


_HEAD = """# Versions of Locust

<!-- Generated: python -m inferload.locust_adapters.adaptations > docs/reference/locust-versions.md -->

inferload is tested with Locust {tested}. An older version is refused, with exit code 2. A newer one is accepted with one
warning. `make test-locust VERSION=2.46.0` runs end-to-end tests with another version.

inferload changes some parts of Locust, and uses some private parts: the *adaptations* in the table below, all in
`inferload/locust_adapters/`, one module for each part of Locust. Each is checked when inferload is imported: names, signatures
and, where that is cheap, behaviour. An adaptation that does not fit the installed Locust is left out with one warning in the
log. In addition:

* `run.json` lists it in `adaptations_left_out`, with its consequence. The list includes those that any worker left out; for a
  local run it excludes those that concern only workers;
* if figures can be wrong without it, the verdict is *suspect*, with reason `locust_adaptation`;
* if no run is possible without it, the program ends with exit code 2 and one line with the installed and the tested versions.

| adaptation | without it | then |
| --- | --- | --- |
"""


def document(adaptations: Iterable[Adaptation]) -> str:
    """Return the text of docs/reference/locust-versions.md."""
    rows = []
    for each in adaptations:
        then = "exit code 2" if each.required else "suspect" if each.figures else "listed"
        rows.append(f"| `{each.name}` | {each.consequence} | {then}{', with workers' if each.workers else ''} |\n")
    return _HEAD.format(tested=TESTED) + "".join(rows)


if __name__ == "__main__":
    print(document(ADAPTATIONS), end="")
