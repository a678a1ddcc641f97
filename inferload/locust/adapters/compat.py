"""All changes to Locust, and all uses of its private parts. `adaptations` lists them, with their requirements."""

import contextlib
import functools
import logging
import math
import os
from collections import Counter
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import gevent
import gevent.monkey
import locust
import locust.argument_parser
import locust.main
import locust.runners
import locust.stats
import numpy as np
import numpy.typing as npt
import psutil

from inferload.errors import UsageError
from inferload.escaping import escaped_lines
from inferload.measure.bounded_names import MOST_NAMES, OTHER_NAMES, overflow_text
from inferload.measure.clock import NS_PER_S, Anchor, now_ns

_FLUSH_MS = 2_000  # for messages to a master that does not read them
_WORKER_END_S = 3.0
_MAX_SHOWN = 120  # characters of an untrusted text in the log
OWN_ROWS = ("TURN", "TTFT", "ITL")  # types of the rows of turns in Locust's table
RUN_TIME_HINT = "No run time limit set, use CTRL+C to interrupt"
_FIRST_MESSAGES = ("client_ready", "locustfile")  # of senders that are not registered yet

logger = logging.getLogger(__name__)


left_out: set[str] = set()  # names of adaptations that this process left out


def check_patched() -> None:
    """Raise UsageError if gevent has not patched the standard library: the first wait would block the process for ever."""
    if not gevent.monkey.is_module_patched("socket"):
        raise UsageError("LOCUST_SKIP_MONKEY_PATCH is set in the environment, and a run would block for ever; unset it")


def cache_default_arguments() -> None:
    """Cache Locust's default arguments: at each spawn message a worker builds the whole parser once per option (55 to 75 ms)."""
    current = locust.argument_parser.default_args_dict
    if not hasattr(current, "cache_info"):
        locust.argument_parser.default_args_dict = functools.cache(current)


def keep_fractions() -> None:
    """Keep fractions of minimum and maximum: Locust's page and console would show 8.37 ms as 8."""
    original = locust.stats.StatsEntry.to_dict
    if getattr(original, "keeps_fractions", False):
        return

    @functools.wraps(original)
    def to_dict(self: Any, *arguments: Any, **options: Any) -> dict[str, Any]:
        row: dict[str, Any] = original(self, *arguments, **options)
        row["min_response_time"] = round(self.min_response_time or 0, 2)
        row["max_response_time"] = round(self.max_response_time, 2)
        return row

    to_dict.keeps_fractions = True  # type: ignore[attr-defined]
    locust.stats.StatsEntry.to_dict = to_dict


def use_steady_clock() -> None:
    """Replace the wall clock in Locust by one that follows the monotonic clock.

    Locust measures durations by the wall clock. After a step forward, workers take the master for dead and end; after a step
    back, they discard its later messages as old, and rates refer to a wrong duration.
    """
    if hasattr(locust.runners.time, "anchor"):
        return
    anchor = Anchor.take()
    steady = SimpleNamespace(**vars(locust.runners.time))
    steady.anchor, steady.time = anchor, lambda: anchor.to_wall_ns(now_ns()) / NS_PER_S
    locust.runners.time = locust.stats.time = steady


def tolerate_reaped_workers() -> None:
    """Replace `waitpid` in Locust by one that returns "exited" for a child that was already reaped.

    gevent discards the status of a child when another ends over a minute later. Locust then polls for it for three seconds,
    writes a traceback each time, and ends with one.
    """
    if hasattr(locust.main.os, "lenient"):
        return

    def waitpid(pid: int, options: int) -> tuple[int, int]:
        try:
            return os.waitpid(pid, options)
        except ChildProcessError:
            return pid, 0

    locust.main.os = SimpleNamespace(**{**vars(os), "waitpid": waitpid, "lenient": True})


class IgnoredMessages:
    """Counts of ignored messages to the master, by reason; the first of each reason is logged."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def add(self, reason: str, detail: object) -> None:
        """Count a message. `detail`: from the network, so it is escaped and truncated."""
        self.counts[reason] += 1
        if self.counts[reason] == 1:
            logger.warning(
                "%s ignored (%s); further ones are only counted", reason, ascii(str(detail)[:_MAX_SHOWN])[:_MAX_SHOWN]
            )


ignored_messages = IgnoredMessages()


def survive_malformed_packets() -> None:
    """Count and skip packets that cannot be decoded.

    Locust catches two of the exceptions that decoding raises; any other ends the greenlet that receives from all workers. It
    also logs each such packet, so that a flood of packets fills the log.
    """
    from locust.exception import RPCError
    from locust.rpc.zmqrpc import Server

    original = Server.recv_from_client
    if hasattr(original, "skips_malformed"):
        return

    @functools.wraps(original)
    def recv_from_client(self: Any) -> tuple[str, Any]:
        while True:
            try:
                client_id, message = original(self)
                if not (isinstance(message.type, str) and isinstance(message.node_id, str)):
                    raise TypeError("type or sender of a message is not a string")
            except RPCError:  # of the connection, not of the packet: Locust reconnects
                raise
            except Exception as error:  # noqa: BLE001  decoding raises bare Exception too
                ignored_messages.add("malformed packet", repr(error))
                gevent.sleep(0)  # other greenlets must run during a flood
                continue
            if message.node_id == client_id:
                return client_id, message
            ignored_messages.add("message under another sender's name", f"{message.node_id} from {client_id}")
            gevent.sleep(0)

    recv_from_client.skips_malformed = True  # type: ignore[attr-defined]
    Server.recv_from_client = recv_from_client


def check_senders() -> None:
    """Ignore messages of senders that are not registered, and messages that raise an exception.

    Locust merges statistics of unregistered senders, and an exception while it handles a message, as of missing fields, ends the
    greenlet that receives from all workers.
    """
    original = locust.runners.MasterRunner.handle_message
    if hasattr(original, "checks_sender"):
        return

    @functools.wraps(original)
    def handle_message(self: Any, client_id: str, message: Any) -> None:
        if message.type not in _FIRST_MESSAGES and client_id not in self.worker_indexes:
            ignored_messages.add("message of an unknown sender", f"{message.type} from {client_id}")
            return
        try:
            original(self, client_id, message)
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            ignored_messages.add("message that cannot be handled", f"{message.type} from {client_id}: {error!r}")

    handle_message.checks_sender = True  # type: ignore[attr-defined]
    locust.runners.MasterRunner.handle_message = handle_message


def disable_signal_handlers() -> None:
    """Disable Locust's signal handlers: that of SIGTERM ends the process with the wrong exit code; SIGHUP has none."""
    if not hasattr(locust.main.gevent, "without_signals"):
        names = {**vars(gevent), "signal_handler": lambda *_arguments: None, "without_signals": True}
        locust.main.gevent = SimpleNamespace(**names)


def note_task_names() -> None:
    """Record the name of a user's running task, under which its turns are counted; Locust does not provide it."""
    from locust.user.task import DefaultTaskSet, TaskSet

    for kind in (TaskSet, DefaultTaskSet):
        original = kind.__dict__["execute_task"]
        if not hasattr(original, "notes_name"):
            kind.execute_task = _noting_name(original)


def _noting_name(original: Any) -> Any:
    @functools.wraps(original)
    def execute_task(self: Any, task: Any) -> None:
        user = self.user
        before = task_name(user)
        user.inferload_task_name = getattr(task, "__name__", None)
        try:
            original(self, task)
        finally:
            user.inferload_task_name = before

    execute_task.notes_name = True  # type: ignore[attr-defined]
    return execute_task


def note_late_wakes() -> None:
    """Record the delay of a user's wake-up after a wait, as when another task blocked the process."""
    from locust.user.task import TaskSet

    original = TaskSet._sleep
    if hasattr(original, "notes_lateness"):
        return

    @functools.wraps(original)
    def _sleep(self: Any, seconds: float) -> None:
        due_ns = now_ns() + round(seconds * NS_PER_S)
        original(self, seconds)
        self.user.inferload_late_ns = max(0, now_ns() - due_ns)

    _sleep.notes_lateness = True  # type: ignore[attr-defined]
    TaskSet._sleep = _sleep


def task_name(user: Any) -> str | None:
    """Return the name of a user's running task; None outside of tasks, as in on_start."""
    name: str | None = vars(user).get("inferload_task_name")
    return name


def bucket_ms(response_time_ms: float) -> float:
    """Round to three significant digits; Locust rounds 1.5 ms to 2 and 1234 ms to 1200."""
    if response_time_ms <= 0:
        return 0
    return round(response_time_ms, 2 - math.floor(math.log10(response_time_ms)))


def use_fine_buckets() -> None:
    """Set Locust's documented hook for response time buckets."""
    locust.stats.bucket_response_time = bucket_ms


def bound_names() -> None:
    """Bound the number of entries in Locust's tables: request names that contain IDs would exhaust memory."""
    if hasattr(locust.stats.EntriesDict, "bounds_names"):
        return
    locust.stats.EntriesDict = _bounded_entries(locust.stats.EntriesDict)
    log_error = locust.stats.RequestStats.log_error

    @functools.wraps(log_error)
    def log_bounded(self: Any, method: str, name: str, error: Any) -> None:
        log_error(self, method, self.entries[name, method].name, error)

    locust.stats.RequestStats.log_error = log_bounded


def _bounded_entries(base: Any) -> Any:
    """Return Locust's dictionary of entries with one bound for each type of turn rows, and one for all other requests."""

    class BoundedEntries(base):  # type: ignore[misc]
        bounds_names = True

        def __init__(self, request_stats: Any) -> None:
            super().__init__(request_stats)
            self._names: Counter[str] = Counter()
            self._warned = False

        def __missing__(self, key: tuple[str, str]) -> Any:
            if self._admits(key):
                return super().__missing__(key)
            if not self._warned and key[1] not in OWN_ROWS:
                logger.warning("%s", overflow_text("requests"))
                self._warned = True
            return self[OTHER_NAMES, key[1]]

        def __setitem__(self, key: tuple[str, str], entry: Any) -> None:
            known = key in self
            if known or self._admits(key):  # Locust's master sets an entry before it reads it
                self._names[_kind(key)] += not known and key[0] != OTHER_NAMES
                super().__setitem__(key, entry)

        def _admits(self, key: tuple[str, str]) -> bool:
            return key[0] == OTHER_NAMES or self._names[_kind(key)] < MOST_NAMES

    return BoundedEntries


def _kind(key: tuple[str, str]) -> str:
    """Return the type of an entry of turns; "" for all others."""
    return key[1] if key[1] in OWN_ROWS else ""


def drop_hint() -> None:
    logging.getLogger("locust.main").addFilter(_not_about_run_time)


def _not_about_run_time(record: logging.LogRecord) -> bool:
    """Filter Locust's hint to press Ctrl-C: the controller implements --run-time, so that Locust finds none."""
    return record.msg != RUN_TIME_HINT


def check_after_parsing(check: Callable[[Any], object]) -> None:
    """Call `check` with the parsed command line before Locust forks workers: a later exit would leave orphans."""
    get_parser = locust.main.get_parser
    known: list[Callable[[Any], object]] | None = getattr(get_parser, "checks", None)
    if known is not None:
        known += [check] if check not in known else []
        return
    checks = [check]

    def checking() -> Any:
        parser = get_parser()
        parse_args = parser.parse_args

        def parse_and_check(*arguments: Any) -> Any:
            try:
                options = parse_args(*arguments)
                for check_options in checks:
                    check_options(options)
            except UsageError as error:
                parser.exit(2, f"inferload: {escaped_lines(str(error))}\n")
            return options

        parser.parse_args = parse_and_check
        return parser

    checking.checks = checks  # type: ignore[attr-defined]
    locust.main.get_parser = checking


def flush_messages(runner: Any) -> None:
    """Wait until a worker's messages to the master are sent, at most _FLUSH_MS: the exit of the process drops others."""
    client = runner.client
    client.close(linger=_FLUSH_MS)
    client.socket.context.term()


def end_forked_workers() -> None:
    """Terminate forked workers that still run at the end of the master; Locust would leave them running."""
    left = _waited_for(psutil.Process().children())
    for end in (psutil.Process.terminate, psutil.Process.kill):
        for child in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                end(child)
        left = _waited_for(left)


def _waited_for(children: list[psutil.Process]) -> list[psutil.Process]:
    """Wait, and return the children that still run. gevent's loop must reap them: Locust waits for them afterwards."""
    deadline_ns = now_ns() + round(_WORKER_END_S * NS_PER_S)
    while (left := [child for child in children if child.is_running()]) and now_ns() < deadline_ns:
        gevent.sleep(0.02)
    return left


def log_many(entry: Any, values_ms: npt.NDArray[np.float64]) -> None:
    """Add many samples to one of Locust's entries; its own `log` reads the clock for each sample."""
    if "batches" not in left_out:
        log_batch(entry, values_ms)
        return
    for value in values_ms.tolist():
        entry.log(value, 0)


def log_batch(entry: Any, values_ms: npt.NDArray[np.float64]) -> None:
    if not len(values_ms):
        return
    entry.log(float(values_ms[0]), 0)  # updates the cache of its sliding window
    rest = values_ms[1:]
    if not len(rest):
        return
    buckets, counts = np.unique(_buckets_ms(rest), return_counts=True)
    for bucket, count in zip(buckets.tolist(), counts.tolist(), strict=True):
        entry.response_times[bucket] += count
    entry.num_requests += len(rest)
    entry.total_response_time += float(rest.sum())
    entry.min_response_time = min(entry.min_response_time, float(rest.min()))
    entry.max_response_time = max(entry.max_response_time, float(rest.max()))
    entry.num_reqs_per_sec[int(entry.last_request_timestamp)] += len(rest)


def only_locust_listens(environment: Any) -> bool:
    """Return True if only Locust's own listener receives request events; `log_batch` may then add many at once."""
    names = [getattr(handler, "__qualname__", "") for handler in environment.events.request._handlers]
    return "batches" not in left_out and names == ["Runner.__init__.<locals>.on_request"]


def _buckets_ms(values_ms: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Apply `bucket_ms` to an array."""
    positive = np.maximum(values_ms, 1e-6)
    scale = 10.0 ** (2 - np.floor(np.log10(positive)))
    return np.where(values_ms > 0, np.round(positive * scale) / scale, 0.0)


def take_over(runner: Any, start: Callable[..., None], stop: Callable[..., None]) -> tuple[Any, Any]:
    """Replace a runner's start and stop, which web UI, --headless, --autostart and keyboard call. Return the original two."""
    own = runner.start, runner.stop
    runner.start, runner.stop = start, stop
    return own


FINAL_TABLES = ("print_stats", "print_percentile_stats", "print_error_report")  # of locust.stats


def take_options_over(parsed: Any, users: int, spawn_per_s: float) -> int:
    """Reset the options of Locust that the controller implements; return the number of workers to wait for.

    `users`, `spawn_per_s`: defaults for the start form and for a run without these options.
    """
    expected: int = parsed.expect_workers
    parsed.num_users = users if parsed.num_users is None else parsed.num_users
    parsed.spawn_rate = spawn_per_s if parsed.spawn_rate is None else parsed.spawn_rate
    if parsed.headless or parsed.autostart:
        parsed.run_time = None  # Locust would end streams; the controller drains the run
    if parsed.headless and not parsed.print_stats:
        parsed.only_summary = True  # instead of a table every two seconds: a terminal has status lines
        omit_final_tables()
    parsed.expect_workers = 0  # Locust's wait for workers has no time limit
    return expected


def omit_final_tables() -> None:
    """Omit the tables that Locust prints at the end of a headless run; the run's own summary contains their figures."""
    if "final_tables" in left_out:
        return
    for name in FINAL_TABLES:
        setattr(locust.stats, name, _print_nothing)


def _print_nothing(*_arguments: object, **_options: object) -> None:
    """Stand in for a function that prints a table."""


def complete_early_report(data: dict[str, Any], **_event: Any) -> None:
    """Add the counts of users to a report that a worker sends before Locust's own listener is registered.

    A worker that must quit while it connects sends such a report, and Locust's master fails on the missing keys.
    """
    data.setdefault("user_classes_count", {})
    data.setdefault("user_count", 0)


def send_last_stats(runner: Any) -> None:
    """Send a worker's share of Locust's own tables, complete to the last request; do nothing for a local runner."""
    if "last_stats" not in left_out and hasattr(runner, "_send_stats"):
        runner._send_stats()


def client_ids(runner: Any) -> list[str | None]:
    """Return Locust's IDs of the ready workers, in the order in which it distributes users; [None] for a local run."""
    if not hasattr(runner, "clients"):
        return [None]
    clients = runner.clients.ready + runner.clients.running + runner.clients.spawning
    return [*in_order(client.id for client in clients)]


def in_order(client_ids: Iterable[str]) -> list[str]:
    """Sort IDs by the number of a worker on its host, then by ID, as Locust's dispatcher does."""
    on_host: Counter[str] = Counter()
    numbered = []
    for client_id in sorted(client_ids):
        host = client_id.split("_")[0]
        numbered.append((on_host[host], client_id))
        on_host[host] += 1
    return [client_id for _number, client_id in sorted(numbered)]


def share_among(environment: Any, members: Callable[[], set[str] | None]) -> None:
    """Have Locust distribute users among the workers of a run only. `members`: returns their IDs; None for all workers."""
    if "members_only" not in left_out:
        environment.dispatcher_class = members_only(members)


def members_only(members: Callable[[], set[str] | None]) -> type[Any]:
    """Return a dispatcher of users (`Environment.dispatcher_class`) that excludes workers that are not of the run.

    Locust distributes users to every worker that connects; those of a worker that came too late for the run would be idle, and
    the load would be too low.
    """
    from locust.dispatch import UsersDispatcher

    def taken(node: Any) -> bool:
        ids = members()
        return ids is None or node.id in ids

    class MembersOnly(UsersDispatcher):  # type: ignore[misc]  # Locust has no types
        def __init__(self, worker_nodes: list[Any], user_classes: list[type]) -> None:
            super().__init__([node for node in worker_nodes if taken(node)] or worker_nodes, user_classes)

        def add_worker(self, worker_node: Any) -> None:
            if taken(worker_node):
                super().add_worker(worker_node)

        def remove_worker(self, worker_node: Any) -> None:
            if taken(worker_node):
                super().remove_worker(worker_node)

    return MembersOnly


def disable_run_timer(web_ui: Any) -> None:
    """Disable the web UI's run timer: it would end streams; the controller drains the run."""
    if "web_run_time" not in left_out:
        web_ui._stop_runners = lambda: None


def end_start_of_page(web_ui: Any) -> None:
    """End the greenlet in which the web UI starts users: two starts at a time would share one dispatcher."""
    greenlet = getattr(web_ui, "_swarm_greenlet", None)
    if greenlet is not None:
        greenlet.kill(block=False)


def with_script(page: str, address: str) -> str:
    """Return a page of the web UI with a script added."""
    return page.replace("</body>", f'<script src="{address}"></script></body>')


def shown_under_way(document: dict[str, Any], *, preparing: bool) -> dict[str, Any]:
    """Return the state that the page polls. The page stops polling at any state except these two."""
    if document.get("state") in ("spawning", "running"):
        return document
    return document | {"state": "spawning" if preparing else "running"}


class AnyOf(list[str]):
    """Choices that a form shows as a select, while argparse accepts any text: it tests with `in`."""

    def __contains__(self, _value: object) -> bool:
        return True
