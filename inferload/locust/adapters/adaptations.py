"""Adaptations of Locust: requirements of each on the installed version, and the consequence of its absence.

`python -m inferload.locust.adapters.adaptations` prints docs/locust-versions.md.
"""

import inspect
import logging
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, SimpleNamespace
from typing import Any

import locust
import locust.argument_parser
import locust.main
import locust.runners
import locust.stats
import numpy as np

from inferload.errors import UsageError
from inferload.locust.adapters import compat, logs

OLDEST_TESTED = "2.46.0"
NEWEST_TESTED = "2.47.0"
TESTED = f"{OLDEST_TESTED} to {NEWEST_TESTED}"

logger = logging.getLogger(__name__)


def _nothing() -> None:
    """Apply nothing: the adaptation is a function that is called later."""


@dataclass(frozen=True, slots=True)
class Adaptation:
    """A change to Locust, or a use of its private parts.

    `fits`: returns True if this Locust has these parts and they behave as expected; an exception counts as False.
    `consequence`: of its absence. `figures`: True if figures can be wrong without it. `workers`: it concerns only runs with
    workers. `required`: no run is possible without it.
    """

    name: str
    fits: Callable[[], bool]
    consequence: str
    apply: Callable[[], None] = _nothing
    figures: bool = False
    workers: bool = False
    required: bool = False

    def applied(self) -> bool:
        """Apply the adaptation if it fits. Return True if it did."""
        try:
            if not self.fits():
                return False
            self.apply()
        except Exception:  # a changed Locust may raise anything
            logger.debug("adaptation %s does not fit", self.name, exc_info=True)
            return False
        return True

    def to_dict(self) -> dict[str, Any]:
        """The entry in run.json."""
        return {"name": self.name, "consequence": self.consequence}


def apply_all(adaptations: Iterable[Adaptation], version: str) -> set[str]:
    """Apply adaptations in order; return the names of those that do not fit. UsageError if one of these is required."""
    left_out = set()
    for adaptation in adaptations:
        if adaptation.applied():
            continue
        if adaptation.required:
            raise UsageError(
                f"locust {version}: {adaptation.consequence}; inferload is tested with {TESTED}: "
                f"pip install 'locust>={OLDEST_TESTED},<={NEWEST_TESTED}'"
            )
        left_out.add(adaptation.name)
    return left_out


def check_version(version: str) -> None:
    """Raise UsageError if Locust is older than the oldest tested version."""
    if _numbers(version) < _numbers(OLDEST_TESTED):
        raise UsageError(
            f"locust {version}: inferload needs {OLDEST_TESTED} or newer; pip install 'locust>={OLDEST_TESTED},<3'"
        )


def _is_newer(version: str) -> bool:
    """Return True if a version is newer than every tested one."""
    return _numbers(version) > _numbers(NEWEST_TESTED)


def _numbers(version: str) -> tuple[int, ...]:
    """Return major, minor and patch; a version without numbers, as of a build from a repository, counts as newest."""
    match = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", version)
    return tuple(int(part or 0) for part in match.groups()) if match else (10**6,)


def _parameters(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)


def _names_in(function: Any) -> set[str]:
    """Return names, attributes and strings in the code of a function and of functions nested in it."""
    names: set[str] = set()
    todo = [inspect.unwrap(function).__code__]
    while todo:
        code = todo.pop()
        names |= {code.co_name, *code.co_names, *(text for text in code.co_consts if isinstance(text, str))}
        todo += [nested for nested in code.co_consts if isinstance(nested, CodeType)]
    return names


# -- checks


_OPTIONS = {
    "num_users",
    "--spawn-rate",
    "--run-time",
    "--headless",
    "--autostart",
    "--autoquit",
    "--only-summary",
    "--print-stats",
    "--expect-workers",
    "--processes",
    "--worker",
    "--web-host",
    "--web-base-path",
}


def _has_start_and_stop() -> bool:
    runners = locust.runners
    masters = (runners.LocalRunner, runners.MasterRunner)
    for kind in masters:  # a TypeError if the controller's call does not bind
        inspect.signature(kind.start).bind(None, 1, 1.0, wait=False, user_classes=None)
    stops = all(callable(kind.stop) and callable(kind.quit) for kind in masters)
    messages = all(
        _parameters(kind.register_message) == ["self", "msg_type", "listener", "concurrent"]
        and _parameters(kind.send_message) == ["self", "msg_type", "data", "client_id"]
        for kind in (*masters, runners.WorkerRunner)
    )
    attributes = _names_in(runners.Runner.__init__) >= {"shape_greenlet", "target_user_classes_count"}
    return stops and messages and attributes and "clients" in _names_in(runners.MasterRunner.__init__)


def _has_command_line() -> bool:
    options = _names_in(locust.argument_parser.setup_parser_arguments)
    return options >= _OPTIONS and {"get_parser", "parse_args"} <= _names_in(locust.main.main)


def _asks_for_defaults() -> bool:
    asks = "default_args_dict" in _names_in(locust.runners.WorkerRunner.handle_message)
    return asks and not _parameters(locust.argument_parser.default_args_dict)


def _entry() -> Any:
    return locust.stats.RequestStats(use_response_times_cache=False).get("name", "method")


def _has_bucket_hook() -> bool:
    hook, entry = locust.stats.bucket_response_time, _entry()
    locust.stats.bucket_response_time = lambda _ms: 7.25
    try:
        entry.log(1.5, 0)
    finally:
        locust.stats.bucket_response_time = hook
    return list(entry.response_times) == [7.25]


def _keeps_entries() -> bool:
    kind = locust.stats.RequestStats
    uses = all("EntriesDict" in _names_in(function) for function in (kind.__init__, kind.clear_all))
    entries = locust.stats.EntriesDict(kind(use_response_times_cache=False))
    entry = entries["name", "method"]
    stores = isinstance(entries, dict) and list(entries.items()) == [(("name", "method"), entry)]
    return (
        uses and stores and entry.name == "name" and _parameters(kind.log_error) == ["self", "method", "name", "error"]
    )


def _has_whole_milliseconds() -> bool:
    entry = _entry()
    entry.log(1.5, 0)
    return {"min_response_time", "max_response_time"} <= set(entry.to_dict(escape_string_values=True))


def _asks_wall_clock() -> bool:
    clock = locust.stats.time
    locust.stats.time = SimpleNamespace(time=lambda: 5.0)
    try:
        entry = _entry()
        entry.log(1.5, 0)
    finally:
        locust.stats.time = clock
    heartbeats = "time" in _names_in(locust.runners.WorkerRunner.heartbeat_timeout_checker)
    return entry.start_time == entry.last_request_timestamp == 5.0 and heartbeats and callable(locust.runners.time.time)


def _waits_for_forks() -> bool:
    return "waitpid" in _names_in(locust.main.main) and locust.main.os.getpid() == os.getpid()


def _receives_packets() -> bool:
    from locust.exception import RPCError
    from locust.rpc.protocol import Message
    from locust.rpc.zmqrpc import Server

    fields = _parameters(Message.__init__)[1:]
    return (
        issubclass(RPCError, Exception)
        and _parameters(Server.recv_from_client) == ["self"]
        and fields == ["message_type", "data", "node_id"]
    )


def _handles_messages() -> bool:
    master = locust.runners.MasterRunner
    return len(_parameters(master.handle_message)) == 3 and "worker_indexes" in _names_in(master.__init__)


def _sets_signal_handlers() -> bool:
    return "signal_handler" in _names_in(locust.main.main) and callable(locust.main.gevent.signal_handler)


def _executes_tasks() -> bool:
    from locust.user.task import DefaultTaskSet, TaskSet

    calls = "execute_task" in _names_in(TaskSet.execute_next_task)
    return calls and all(
        _parameters(kind.__dict__["execute_task"]) == ["self", "task"] for kind in (TaskSet, DefaultTaskSet)
    )


def _sleeps_between_tasks() -> bool:
    from locust.user.task import TaskSet

    return _parameters(TaskSet._sleep) == ["self", "seconds"] and "_sleep" in _names_in(TaskSet.wait)


def _hints_at_run_time() -> bool:
    return compat.RUN_TIME_HINT in _names_in(locust.main.main)


def _logs_listeners() -> bool:
    from locust.event import EventHook

    return any(text.startswith(logs._LISTENER) for text in _names_in(EventHook.fire))


def _dispatched(count: int) -> list[str]:
    """Ids of the workers to which Locust's dispatcher gives the first users."""
    from locust.dispatch import UsersDispatcher
    from locust.runners import WorkerNode

    dispatcher = UsersDispatcher([WorkerNode(name) for name in _NODES], [locust.User])
    dispatcher.new_dispatch(target_user_count=count, spawn_rate=count)
    users: dict[str, dict[str, int]] = list(dispatcher)[-1]
    return [name for name, by_class in users.items() if sum(by_class.values())]


_NODES = ("b_2", "a_9", "b_1", "a_1")


def _hands_out_in_order() -> bool:
    order = compat.in_order(_NODES)
    return all(set(_dispatched(count)) == set(order[:count]) for count in range(1, len(order) + 1))


def _takes_dispatcher() -> bool:
    from locust.dispatch import UsersDispatcher
    from locust.runners import WorkerNode

    dispatcher = compat.members_only(lambda: {"a_1"})([WorkerNode("a_1"), WorkerNode("a_2")], [locust.User])
    dispatcher.add_worker(WorkerNode("a_3"))
    dispatcher.new_dispatch(target_user_count=2, spawn_rate=2)
    return (
        "dispatcher_class" in _names_in(locust.runners.MasterRunner.start)
        and _parameters(UsersDispatcher.add_worker) == ["self", "worker_node"]
        and _parameters(UsersDispatcher.remove_worker) == ["self", "worker_node"]
        and list(list(dispatcher)[-1]) == ["a_1"]
    )


def _prints_tables() -> bool:
    return locust.main.stats is locust.stats and all(
        _parameters(getattr(locust.stats, name))[:1] == ["stats"] for name in compat.FINAL_TABLES
    )


def _sends_stats() -> bool:
    return _parameters(locust.runners.WorkerRunner._send_stats) == ["self"]


def _logs_in_batches() -> bool:
    values_ms, single, many = np.array([0.25, 12.5, 1234.5]), _entry(), _entry()
    for value in values_ms.tolist():
        single.log(value, 0)
    compat.log_batch(many, values_ms)
    return _counters(single) == _counters(many) and "on_request" in _names_in(locust.runners.Runner.__init__)


def _counters(entry: Any) -> dict[str, Any]:
    """Return the counters of an entry, without instants."""
    counters = {name: value for name, value in vars(entry).items() if name not in ("stats", "start_time")}
    counters["last_request_timestamp"] = counters["last_request_timestamp"] is not None
    return counters | {"num_reqs_per_sec": sum(counters["num_reqs_per_sec"].values())}


def _starts_run_timer() -> bool:
    from locust.web import WebUI

    return "_stop_runners" in _names_in(WebUI.__init__) and _parameters(WebUI._stop_runners) == ["self"]


def _has_page() -> bool:
    from locust.html import DEFAULT_BUILD_PATH
    from locust.web import WebUI

    has_paths = {"/swarm", "/stats/requests"} <= _names_in(WebUI.__init__)
    return has_paths and "</body>" in Path(DEFAULT_BUILD_PATH, "index.html").read_text("utf-8")


ADAPTATIONS = (
    Adaptation(
        "start_stop",
        _has_start_and_stop,
        "start, stop or messages of its runners have changed, so that no run is possible",
        required=True,
    ),
    Adaptation(
        "command_line",
        _has_command_line,
        "its options or their parser have changed, so that no run is possible",
        required=True,
    ),
    Adaptation(
        "default_arguments",
        _asks_for_defaults,
        "each change of the number of users blocks every worker's event loop for 55 to 75 ms",
        compat.cache_default_arguments,
        figures=True,
        workers=True,
    ),
    Adaptation(
        "buckets",
        _has_bucket_hook,
        "percentiles of requests other than turns, and of Locust's tables, are rounded to two significant digits",
        compat.use_fine_buckets,
        figures=True,
    ),
    Adaptation(
        "bounded_names",
        _keeps_entries,
        "request names that contain IDs can exhaust memory",
        compat.bound_names,
    ),
    Adaptation(
        "fractions",
        _has_whole_milliseconds,
        "the web UI shows minima and maxima in whole milliseconds",
        compat.keep_fractions,
    ),
    Adaptation(
        "even_clock",
        _asks_wall_clock,
        "a step of the wall clock can end workers and distort rates in Locust's tables",
        compat.use_steady_clock,
    ),
    Adaptation(
        "forked_workers",
        _waits_for_forks,
        "a run with --processes can end with a traceback",
        compat.tolerate_reaped_workers,
        workers=True,
    ),
    Adaptation(
        "malformed_packets",
        _receives_packets,
        "one malformed packet to the master's port ends reception of all workers' messages",
        compat.survive_malformed_packets,
        workers=True,
    ),
    Adaptation(
        "known_senders",
        _handles_messages,
        "Locust's tables include statistics of senders that are not workers of the run, and an unexpected message ends reception",
        compat.check_senders,
        workers=True,
    ),
    Adaptation(
        "signals",
        _sets_signal_handlers,
        "a run that is ended by SIGTERM does not exit with 143",
        compat.disable_signal_handlers,
    ),
    Adaptation(
        "task_names",
        _executes_tasks,
        "turns of tasks without name= are counted under the name of their user class",
        compat.note_task_names,
        figures=True,
    ),
    Adaptation(
        "late_wakes",
        _sleeps_between_tasks,
        "the lag of a task that another task delayed is not measured, so that reason client_lag can be missing",
        compat.note_late_wakes,
        figures=True,
    ),
    Adaptation(
        "run_time_hint",
        _hints_at_run_time,
        "the log contains Locust's hint that no run time limit is set, although there is one",
        compat.drop_hint,
    ),
    Adaptation(
        "listener_errors",
        _logs_listeners,
        "exceptions of event listeners are not counted, and do not change the exit code",
        figures=True,
    ),
    Adaptation(
        "members_only",
        _takes_dispatcher,
        "a worker that connects during a run gets users that send nothing, so that the load is too low",
        figures=True,
        workers=True,
    ),
    Adaptation(
        "worker_order",
        _hands_out_in_order,
        "users and sessions are distributed among workers in different orders, so that some users can get no session",
        figures=True,
        workers=True,
    ),
    Adaptation(
        "last_stats",
        _sends_stats,
        "requests other than turns of a worker's last 3 s can be missing",
        figures=True,
        workers=True,
    ),
    Adaptation(
        "final_tables",
        _prints_tables,
        "Locust's own tables are printed too at the end of a headless run",
    ),
    Adaptation(
        "batches",
        _logs_in_batches,
        "Locust's tables are filled request by request, which costs workers more CPU time",
    ),
    Adaptation(
        "web_run_time",
        _starts_run_timer,
        "a run time given in the web UI counts from the click, and the run ends as stopped by hand",
    ),
    Adaptation(
        "web_page",
        _has_page,
        "the web UI shows no state of the run, and no reason of a refused start",
    ),
)


def apply() -> None:
    """Apply every adaptation that fits. UsageError if a required one does not, or if Locust is too old. Idempotent."""
    check_version(locust.__version__)
    compat.left_out.update(apply_all(ADAPTATIONS, locust.__version__))


def left_out() -> list[str]:
    """Return the names of the adaptations that this process left out."""
    return sorted(compat.left_out)


def left_out_of(names: Iterable[str], *, workers: bool) -> tuple[Adaptation, ...]:
    """Return the named adaptations that concern a run with or without workers."""
    known = set(names)
    return tuple(each for each in ADAPTATIONS if each.name in known and (workers or not each.workers))


def log_differences() -> None:
    """Log a warning for a Locust newer than the tested versions, and one for each adaptation that was left out."""
    if _is_newer(locust.__version__):
        logger.warning("locust %s is newer than the tested versions, %s", locust.__version__, TESTED)
    for adaptation in left_out_of(compat.left_out, workers=True):
        text = "locust %s: adaptation %s does not fit: %s"
        logger.warning(text, locust.__version__, adaptation.name, adaptation.consequence)


_HEAD = """# Versions of Locust

<!-- Generated: python -m inferload.locust.adapters.adaptations > docs/locust-versions.md -->

inferload is tested with Locust {tested}. An older version is refused, with exit code 2. A newer one is accepted with one
warning. `make test-locust VERSION=2.46.0` runs end-to-end tests with another version.

inferload changes some parts of Locust, and uses some private parts: the *adaptations* in the table below, all in
`inferload/locust/adapters/compat.py`. Each is checked when inferload is imported: names, signatures and, where that is cheap,
behaviour. An adaptation that does not fit the installed Locust is left out with one warning in the log. In addition:

* `run.json` lists it in `adaptations_left_out`, with its consequence. The list includes those that any worker left out; for a
  local run it excludes those that concern only workers;
* if figures can be wrong without it, the verdict is *suspect*, with reason `locust_adaptation`;
* if no run is possible without it, the program ends with exit code 2 and one line with the installed and the tested versions.

| adaptation | without it | then |
| --- | --- | --- |
"""


def document(adaptations: Iterable[Adaptation]) -> str:
    """Return the text of docs/locust-versions.md."""
    rows = []
    for each in adaptations:
        then = "exit code 2" if each.required else "suspect" if each.figures else "listed"
        rows.append(f"| `{each.name}` | {each.consequence} | {then}{', with workers' if each.workers else ''} |\n")
    return _HEAD.format(tested=TESTED) + "".join(rows)


if __name__ == "__main__":
    print(document(ADAPTATIONS), end="")
