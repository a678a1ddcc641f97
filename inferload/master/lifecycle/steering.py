"""Changes of users during a run, by hand or by a LoadTestShape; in an open loop users stand for the rate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from inferload.process import messages
from inferload.process.run_spec import RunSpec
from inferload.scenario.schema.arrivals import Closed

if TYPE_CHECKING:
    from inferload.master.lifecycle.run import MasterRun


ChangedBy = Literal["hand", "shape"]
_BY: dict[ChangedBy, str] = {"hand": "by hand", "shape": "by the LoadTestShape"}


class Steering:
    """The number of users that a run has now, and the rates that these changes set as (instant, sessions per second)."""

    def __init__(self, spec: RunSpec) -> None:
        self.rate_changes: list[tuple[int, float]] = []
        self._spec = spec
        self._users = spec.users

    def change_users(self, run: MasterRun, users: int, by: ChangedBy) -> None:
        """Mark a change of users, and send the workers the rate that it sets."""
        if users == self._users:
            return
        text, rate = f"users changed {_BY[by]}: {self._users} -> {users}", self._spec.rate_for(users)
        self._users = users
        arrivals = self._spec.scenario.arrivals
        if rate is None or isinstance(arrivals, Closed):
            run.marks.add("users", text, users=users, by=by)
            return
        at_ns, key = run.earliest_ns(), arrivals.rate_key
        text = f"{text}, so arrivals.{key} is {rate:g}"
        rates = {key.replace(".", "_"): rate}
        run.marks.add("users", text, run.anchor.to_wall_ns(at_ns), users=users, by=by, **rates)
        self.rate_changes.append((at_ns, rate))
        run.tell(messages.RATE, {"run_id": run.run_id, "at_ns": at_ns, "rate": rate})

    def load(self) -> str | None:
        """What the users of now mean in an open loop, in the scenario's own word; None in a closed one."""
        rate, arrivals = self._spec.rate_for(self._users), self._spec.scenario.arrivals
        return None if rate is None or isinstance(arrivals, Closed) else f"{arrivals.rate_key} {rate:g}"

    def planned_users(self, users: int) -> None:
        """Note a change of users that the scenario plans."""
        self._users = users
