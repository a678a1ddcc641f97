"""Canary requests of one worker: sent beside the turns that the seed selects, in no count of them."""

from collections.abc import Sequence
from random import Random
from typing import Any

from msgspec import to_builtins

from inferload.base.clock import now_ns
from inferload.client.client import Client, ClientSettings
from inferload.client.turn_record import TurnRequest, TurnResult
from inferload.run.process.canary_orders import CanaryOrders, EndedCanary, answer_of


class Canaries:
    """Canaries of a run. The ids of its turns select them, so that any number of workers sends the same ones.

    `clients`: one of each server. A canary goes to the server and the model of its turn, with its headers.
    """

    def __init__(self, orders: CanaryOrders, seed: int, servers: Sequence[ClientSettings]) -> None:
        self._orders = orders
        self._seed = seed
        self._ended: list[EndedCanary] = []
        self.clients = [Client(settings, self._end) for settings in servers]

    def beside(self, turn: TurnRequest, server: int) -> None:
        """Send a canary beside a turn to the server of this number, if the turn is selected.

        A server that joined during the run gets none: it has no reference.
        """
        if server >= len(self.clients):
            return
        random = Random(f"{self._seed}/canary/{turn.turn_id}")
        if random.random() >= self._orders.share:
            return
        client, bodies = self.clients[server], self._orders.bodies
        model = turn.model if turn.model in bodies else next(iter(bodies))
        prompt = random.randrange(len(bodies[model]))
        client.start(
            TurnRequest(
                bodies[model][prompt].encode(),
                turn_id=f"{turn.turn_id}~canary",
                session_id=model,
                turn_index=prompt,
                class_name=turn.class_name,
                phase=turn.phase,
                planned_ns=now_ns(),
                headers=turn.headers,
                max_tokens=self._orders.max_tokens,
                step=turn.step,
                model=model,
            )
        )

    def take(self) -> list[Any]:
        """Return the canaries that have ended since the last call, as plain values."""
        ended, self._ended = self._ended, []
        return [to_builtins(each) for each in ended]

    def _end(self, result: TurnResult) -> None:
        record = result.record
        ns = 0 if record.sent_ns is None else record.closed_ns - record.sent_ns
        answer = answer_of(result, record.turn_index, record.session_id)
        self._ended.append(EndedCanary(answer, record.phase, record.class_name, record.step, ns))
