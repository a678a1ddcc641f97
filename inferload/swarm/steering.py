"""What people change while a run is under way: its users, which in an open loop stand for its rate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inferload.swarm import messages
from inferload.swarm.order import Order
from inferload.workload.arrivalkinds import Closed

if TYPE_CHECKING:
    from inferload.swarm.masterrun import MasterRun


class Steering:
    """How many users a run was last told to have, and the rates that were set by hand as (instant, sessions per second)."""

    def __init__(self, order: Order) -> None:
        self.rate_changes: list[tuple[int, float]] = []
        self._order = order
        self._users = order.users

    def change_users(self, run: MasterRun, users: int) -> None:
        """Somebody changed the number of users: mark it, and tell the workers the rate that it means."""
        if users == self._users:
            return
        text, rate = f"users changed by hand: {self._users} -> {users}", self._order.rate_for(users)
        self._users = users
        arrivals = self._order.scenario.arrivals
        if rate is None or isinstance(arrivals, Closed):
            run.marks.add("users", text, users=users)
            return
        at_ns, key = run.earliest_ns(), arrivals.rate_key
        text = f"{text}, so arrivals.{key} is {rate:g}"
        run.marks.add("users", text, run.anchor.to_wall_ns(at_ns), users=users, **{key.replace(".", "_"): rate})
        self.rate_changes.append((at_ns, rate))
        run.tell(messages.RATE, {"run_id": run.run_id, "at_ns": at_ns, "rate": rate})

    def load(self) -> str | None:
        """What the users of now mean in an open loop, in the scenario's own word; None in a closed one."""
        rate, arrivals = self._order.rate_for(self._users), self._order.scenario.arrivals
        return None if rate is None or isinstance(arrivals, Closed) else f"{arrivals.rate_key} {rate:g}"

    def planned_users(self, users: int) -> None:
        """The scenario's own change of users: nobody's hand."""
        self._users = users
