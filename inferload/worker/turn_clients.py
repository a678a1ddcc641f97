"""Clients of one worker: one for each target and endpoint, created at the first turn that needs it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from random import Random

from inferload.client.client import Client
from inferload.client.connection.target import Target
from inferload.client.turn_record import TurnResult
from inferload.process.protocol import Assignment
from inferload.process.settings import ProcessSettings, client_settings
from inferload.scenario.scenario import Scenario
from inferload.scenario.schema.endpoints import Endpoint


class TurnClients:
    """Clients by number. `on_turn`: called from the event loop with the number of the client and each result."""

    def __init__(
        self,
        scenario: Scenario,
        assignment: Assignment,
        own: ProcessSettings,
        on_turn: Callable[[int, TurnResult], None],
    ) -> None:
        if not own.origins and assignment.origins is not None:
            # A worker started without --host uses the master's list of servers that the key may be sent to.
            own = replace(own, origins=frozenset(assignment.origins))
        targets = [Target.parse(url) for url in assignment.target_urls]
        self._settings = [
            client_settings(scenario, target, assignment.model, own, assignment.name) for target in targets
        ]
        self._seed = scenario.seed
        self._endpoint = scenario.request.endpoint
        self._on_turn = on_turn
        self._clients: list[Client] = []
        self._numbers: dict[tuple[int, Endpoint], int] = {}
        for target in range(len(targets)):
            self._number(target, self._endpoint)

    def __iter__(self) -> Iterator[Client]:
        return iter(self._clients)

    def __getitem__(self, number: int) -> Client:
        return self._clients[number]

    def number_of(self, session: int, endpoint: Endpoint | None = None) -> int:
        """Return the number of a session's client; a session keeps its target. `endpoint` None: the scenario's."""
        return self._number(server_of(self._seed, session, len(self._settings)), endpoint or self._endpoint)

    @property
    def reader(self) -> str:
        """Reader of the sockets: native or python."""
        return ", ".join(sorted({client.reader for client in self._clients}))

    def _number(self, target: int, endpoint: Endpoint) -> int:
        number = self._numbers.get((target, endpoint))
        if number is None:
            number = self._numbers[target, endpoint] = len(self._clients)
            settings = replace(self._settings[target], endpoint=endpoint)
            self._clients.append(Client(settings, partial(self._on_turn, number)))
        return number


def server_of(seed: int, index: int, servers: int) -> int:
    """Return the server of session `index`: each of `servers` consecutive sessions goes to a different server.

    The order is shuffled in each round, because workers take sessions at fixed intervals and would reach one server only.
    """
    if servers == 1:
        return 0
    round_number, position = divmod(index, servers)
    order = list(range(servers))
    Random(f"{seed}/servers/{round_number}").shuffle(order)
    return order[position]
