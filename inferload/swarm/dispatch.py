"""Who gets users: the workers of the run, and none that came while it was under way, where they would do nothing."""

from collections.abc import Callable
from typing import Any

from locust.dispatch import UsersDispatcher


def among(takes_part: Callable[[str], bool]) -> type[UsersDispatcher]:
    """Locust's dispatcher for the workers that `takes_part` knows by their ids; where it knows none, for all."""

    class Among(UsersDispatcher):  # type: ignore[misc]
        def __init__(self, worker_nodes: list[Any], user_classes: list[Any]) -> None:
            ours = [node for node in worker_nodes if takes_part(node.id)]
            super().__init__(ours or worker_nodes, user_classes)

        def add_worker(self, worker_node: Any) -> None:
            if takes_part(worker_node.id):
                super().add_worker(worker_node)

        def remove_worker(self, worker_node: Any) -> None:
            if any(node.id == worker_node.id for node in self._worker_nodes):
                super().remove_worker(worker_node)

    return Among
