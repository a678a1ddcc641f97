"""Locust's runner: start and stop, and the distribution of users among workers."""

import inspect
from collections import Counter
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import locust
import locust.runners

from inferload.locust_adapters import compat
from inferload.locust_adapters.compat import names_in, parameters

_NODES = ("b_2", "a_9", "b_1", "a_1")


def has_start_and_stop() -> bool:
    """Return True if the runners have the methods, messages and attributes that a run needs."""
    runners = locust.runners
    masters = (runners.LocalRunner, runners.MasterRunner)
    for kind in masters:  # a TypeError if the controller's call does not bind
        inspect.signature(kind.start).bind(None, 1, 1.0, wait=False, user_classes=None)
    stops = all(callable(kind.stop) and callable(kind.quit) for kind in masters)
    messages = all(
        parameters(kind.register_message) == ["self", "msg_type", "listener", "concurrent"]
        and parameters(kind.send_message) == ["self", "msg_type", "data", "client_id"]
        for kind in (*masters, runners.WorkerRunner)
    )
    attributes = names_in(runners.Runner.__init__) >= {"exceptions", "shape_greenlet", "shape_last_tick"}
    counts = hasattr(runners.LocalRunner, "user_classes_count") and hasattr(
        runners.MasterRunner, "reported_user_classes_count"
    )
    of_master = {"clients", "_users_dispatcher"} <= names_in(runners.MasterRunner.__init__)
    return stops and messages and attributes and counts and of_master and callable(runners.MasterRunner.check_stopped)


def take_over(runner: Any, start: Callable[..., None], stop: Callable[..., None]) -> tuple[Any, Any]:
    """Replace a runner's start and stop, which web UI, --headless, --autostart and keyboard call. Return the original two.

    The stop that is returned also ends a run whose workers have all left.
    """
    own_start, own_stop = runner.start, runner.stop
    runner.start, runner.stop = start, stop

    def stop_users(*arguments: Any, **options: Any) -> None:
        # A master without workers is in the state "stopped", in which Locust's stop has no effect: the next run would begin
        # with the users of this one, and workers that report again would keep theirs.
        without_stop = (
            hasattr(runner, "clients")
            and runner.state == locust.runners.STATE_STOPPED
            and runner._users_dispatcher is not None
        )
        if without_stop:
            runner.update_state(locust.runners.STATE_SPAWNING)  # in which Locust redistributes no users
        own_stop(*arguments, **options)
        if without_stop:
            runner.check_stopped()

    return own_start, stop_users


def waits_for_missing_workers() -> bool:
    """Return True if the master, after each message, leaves the state "stopping" once all of its workers are ready."""
    after_messages = "check_stopped" in names_in(locust.runners.MasterRunner.handle_message)
    ready, running = locust.runners.STATE_INIT, locust.runners.STATE_RUNNING
    return after_messages and state_after_stop([ready, ready]) == locust.runners.STATE_STOPPED != state_after_stop(
        [running]
    )


def state_after_stop(workers: list[str]) -> str:
    """Return the state of a master in "stopping" after a check of its workers, which are in the given states."""
    nodes = [SimpleNamespace(state=state) for state in workers]
    master = SimpleNamespace(state=locust.runners.STATE_STOPPING, clients=SimpleNamespace(all=nodes))
    master.update_state = lambda state: setattr(master, "state", state)
    locust.runners.MasterRunner.check_stopped(master)
    return str(master.state)


def ignore_missing_workers() -> None:
    """Have the master leave the state "stopping" without the workers that are missing.

    A killed worker never becomes ready, and Locust removes it from its list only after a minute; until then, if two others remain,
    the web UI's page has no start form. A worker that reports again gets the message to stop, which is queued.
    """
    original = locust.runners.MasterRunner.check_stopped

    @compat.replacing(locust.runners.MasterRunner, "check_stopped")
    def check_stopped(self: Any) -> None:
        original(self)
        left = {locust.runners.STATE_INIT, locust.runners.STATE_MISSING}
        if self.state == locust.runners.STATE_STOPPING and left.issuperset(client.state for client in self.clients.all):
            self.update_state(locust.runners.STATE_STOPPED)


def end_shape(runner: Any) -> None:
    """End the greenlet of a LoadTestShape; the `stop` of Locust's master does not end it before the first users."""
    if runner.shape_greenlet is not None:
        runner.shape_greenlet.kill()
    runner.shape_greenlet = runner.shape_last_tick = None


def user_counts(runner: Any) -> dict[str, int]:
    """Return the number of running users by class; on a master, those that the workers have reported."""
    on_master = hasattr(runner, "clients")
    return dict(runner.reported_user_classes_count if on_master else runner.user_classes_count)


def clear_statistics(runner: Any) -> None:
    """Clear the statistics of the previous run; Locust clears them only when it starts the first users."""
    runner.stats.clear_all()
    runner.exceptions = {}


def client_ids(runner: Any, most: int | None = None) -> list[str | None]:
    """Return Locust's IDs of the ready workers, in the order in which it distributes users; [None] for a local run.

    `most`: number of workers; those that connected first. None: all.
    """
    if not hasattr(runner, "clients"):
        return [None]
    ready = {client.id for client in runner.clients.ready + runner.clients.running + runner.clients.spawning}
    return [*in_order([client_id for client_id in runner.clients if client_id in ready][:most])]


def in_order(client_ids: Iterable[str]) -> list[str]:
    """Sort IDs by the number of a worker on its host, then by ID, as Locust's dispatcher does."""
    on_host: Counter[str] = Counter()
    numbered = []
    for client_id in sorted(client_ids):
        host = client_id.split("_")[0]
        numbered.append((on_host[host], client_id))
        on_host[host] += 1
    return [client_id for _number, client_id in sorted(numbered)]


def hands_out_in_order() -> bool:
    """Return True if Locust's dispatcher gives users to workers in the order of `in_order`."""
    order = in_order(_NODES)
    return all(set(_dispatched(count)) == set(order[:count]) for count in range(1, len(order) + 1))


def _dispatched(count: int) -> list[str]:
    """Ids of the workers to which Locust's dispatcher gives the first users."""
    from locust.dispatch import UsersDispatcher
    from locust.runners import WorkerNode

    dispatcher = UsersDispatcher([WorkerNode(name) for name in _NODES], [locust.User])
    dispatcher.new_dispatch(target_user_count=count, spawn_rate=count)
    users: dict[str, dict[str, int]] = list(dispatcher)[-1]
    return [name for name, by_class in users.items() if sum(by_class.values())]


def share_among(environment: Any, members: Callable[[], set[str] | None]) -> None:
    """Have Locust distribute users among the workers of a run only. `members`: returns their IDs; None for all workers."""
    if "members_only" not in compat.left_out:
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


def takes_dispatcher() -> bool:
    """Return True if the master uses `Environment.dispatcher_class`, and `members_only` works with it."""
    from locust.dispatch import UsersDispatcher
    from locust.runners import WorkerNode

    dispatcher = members_only(lambda: {"a_1"})([WorkerNode("a_1"), WorkerNode("a_2")], [locust.User])
    dispatcher.add_worker(WorkerNode("a_3"))
    dispatcher.new_dispatch(target_user_count=2, spawn_rate=2)
    return (
        "dispatcher_class" in names_in(locust.runners.MasterRunner.start)
        and parameters(UsersDispatcher.add_worker) == ["self", "worker_node"]
        and parameters(UsersDispatcher.remove_worker) == ["self", "worker_node"]
        and list(list(dispatcher)[-1]) == ["a_1"]
    )
