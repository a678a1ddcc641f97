"""Changes of the number of users during a run, by hand or by a LoadTestShape; in an open loop they change the rate."""

from collections.abc import Callable
from typing import Literal

from inferload.master.lifecycle.marks import Marks
from inferload.process.run_spec import RunSpec
from inferload.scenario.schema.arrivals import Closed

ChangedBy = Literal["hand", "shape"]
_BY: dict[ChangedBy, str] = {"hand": "by hand", "shape": "by the LoadTestShape"}


class Steering:
    """Current number of users of a run.

    `announce_rate` sends a rate to the workers, and returns the instant from which it applies.
    `rate_changes`: (instant in ns, rate) of each change in an open loop.
    """

    def __init__(self, spec: RunSpec, marks: Marks, announce_rate: Callable[[float], int]) -> None:
        self.rate_changes: list[tuple[int, float]] = []
        self._spec = spec
        self._marks = marks
        self._announce_rate = announce_rate
        self._users = spec.users

    def change_users(self, users: int, by: ChangedBy) -> None:
        """Mark a change of users; in an open loop, send the new rate to the workers."""
        if users == self._users:
            return
        text, rate = f"users changed {_BY[by]}: {self._users} -> {users}", self._spec.rate_for(users)
        self._users = users
        arrivals = self._spec.scenario.arrivals
        if rate is None or isinstance(arrivals, Closed):
            self._marks.add("users", text, users=users, by=by)
            return
        at_ns, key = self._announce_rate(rate), arrivals.rate_key
        self.rate_changes.append((at_ns, rate))
        text = f"{text}, so arrivals.{key} is {rate:g}"
        self._marks.add("users", text, at_ns, users=users, by=by, **{key.replace(".", "_"): rate})

    def load(self) -> str | None:
        """Return the current rate with the scenario's key; None in a closed loop."""
        rate, arrivals = self._spec.rate_for(self._users), self._spec.scenario.arrivals
        return None if rate is None or isinstance(arrivals, Closed) else f"{arrivals.rate_key} {rate:g}"

    def planned_users(self, users: int) -> None:
        """Record a change of users that the scenario plans."""
        self._users = users
