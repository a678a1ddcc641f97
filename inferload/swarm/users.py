"""The Locust users of ours. A locustfile declares its own subclass of one; what it does comes from the scenario."""

from typing import Any, ClassVar

import gevent
from locust import User, task

from inferload.errors import UsageError
from inferload.swarm import compat

_NOT_INSTALLED = (
    "InferenceUser: the locustfile has no plugin.install(...), so no load would be sent; add: from inferload.swarm import plugin; "
    'plugin.install(default_scenario="chat")'
)


def _check_installed(_options: object) -> None:
    """UsageError if a locustfile defines an InferenceUser and does not install the plugin, which sends its load."""
    if not InferenceUser.plugin_installed:
        raise UsageError(_NOT_INSTALLED)


class InferenceUser(User):
    """One person of a closed loop, who has one session at a time; in an open loop one share of the rate."""

    abstract = True
    plugin_installed: ClassVar[bool] = False
    _free_ns: int | None = None  # since when this user has had no session

    def wait_time(self) -> float:
        """Sessions follow one another at once: pauses belong to the scenario."""
        return 0

    def __init_subclass__(cls, **others: Any) -> None:
        super().__init_subclass__(**others)
        compat.check_after_parsing(_check_installed)

    @task
    def session(self) -> None:
        """One whole session, by the plan of the run."""
        agent: Any = getattr(self.environment, "inferload_agent", None)
        if agent is None:  # Locust used as a library: its command line has been checked
            gevent.sleep(1)
            raise UsageError(_NOT_INSTALLED)
        self._free_ns = agent.user(self._free_ns)
