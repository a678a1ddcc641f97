"""The Locust users of ours. A locustfile declares its own subclass of one; what it does comes from the scenario."""

from typing import Any

import gevent
from locust import User, task


class InferenceUser(User):
    """One person of a closed loop, who has one session at a time; in an open loop one share of the rate."""

    abstract = True
    _free_ns: int | None = None  # since when this user has had no session

    def wait_time(self) -> float:
        """Sessions follow one another at once: pauses belong to the scenario."""
        return 0

    @task
    def session(self) -> None:
        """One whole session, by the plan of the run."""
        agent: Any = getattr(self.environment, "inferload_agent", None)
        if agent is None:  # a locustfile without plugin.install(), or a master: nothing to do here
            gevent.sleep(1)
        else:
            self._free_ns = agent.user(self._free_ns)
