"""Turns of one worker between its sessions and the counts: sent by the client of their server, gathered when they end."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from random import Random
from typing import TYPE_CHECKING

import gevent
import gevent.event
import msgspec

from inferload.base.clock import now_ns
from inferload.client.client import Client, ClientSettings
from inferload.client.connection.target import Target
from inferload.client.turn import Turn
from inferload.client.turn_record import TurnRequest, TurnResult
from inferload.run.process.greenlets import DrainedGreenlet
from inferload.run.process.protocol import Assignment
from inferload.run.process.settings import ProcessSettings, client_settings
from inferload.run.worker.turn_counter import CountedTurns, TurnCounter
from inferload.scenario.scenario import Scenario
from inferload.scenario.schema.endpoints import EndpointName
from inferload.turns.record import Failure
from inferload.turns.run_windows import RunWindows
from inferload.turns.tally import TallySet

if TYPE_CHECKING:
    from inferload.run.worker.canaries import Canaries

GATHER_S = 0.25  # turns that end within this time are counted together
MAX_BATCH = 64  # turns; a batch of this size takes a millisecond


class TurnDispatcher:
    """Sends turns, and gathers their results until they are counted. Call `start` before the first turn.

    `tallies`: of turns that begin.
    """

    def __init__(self, clients: "TurnClients", tallies: TallySet, windows: RunWindows, counter: TurnCounter) -> None:
        self.clients = clients
        self._tallies = tallies
        self._windows = windows
        self._counter = counter
        self._paces_starts = False
        self._starting = 0  # turns whose greenlets are in `starting`: a drain waits for them
        self.closed = False
        self._unjudged: dict[str, tuple[int, TurnResult] | None] = {}  # by turn id; callers have not judged these
        self._ended: dict[int, list[TurnResult]] = {}  # not counted yet, by number of the client
        self._counted: list[CountedTurns] = []  # not in Locust's tables yet
        self._pending = 0  # turns ended that are not in Locust's tables yet
        self._news = gevent.event.Event()
        self._gathering = DrainedGreenlet(self._gather)
        self.canaries: Canaries | None = None

    def start(self) -> None:
        """Create the clients of the scenario's endpoint, and begin to gather results."""
        self.clients.open(self._on_turn)
        self._paces_starts = any(client.reader.reader == "python" for client in self.clients)
        self._gathering.start()

    def close(self) -> None:
        """Count no further turns. No turn may be in flight."""
        self.closed = True
        self._gathering.kill()

    def close_clients(self) -> None:
        """Close all clients. Nothing may be in flight."""
        for client in self._all_clients:
            client.close()

    @property
    def _all_clients(self) -> list[Client]:
        """Clients of turns and of canaries."""
        return [*self.clients, *([] if self.canaries is None else self.canaries.clients)]

    @property
    def in_flight(self) -> int:
        """Turns begun and not ended; one that its caller has not judged yet is in flight."""
        return sum(client.in_flight for client in self.clients) + sum(map(bool, self._unjudged.values()))

    @property
    def busy(self) -> bool:
        """True while a turn or a canary is in flight, or a turn waits to begin or is not in Locust's tables yet."""
        return bool(self._starting or self._pending or any(client.in_flight for client in self._all_clients))

    # -- for sessions

    def await_turn(self) -> None:
        """Wait until this greenlet may build its request: many that became ready at once would delay all reads.

        With the native reader, which reads in a thread, there is no wait.
        """
        if not self._paces_starts:
            return
        with self.starting():
            self.clients[0].parse_queue.wait()

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Delay the end of a drain: after this context, the greenlet sends a turn without another wait."""
        self._starting += 1
        try:
            yield
        finally:
            self._starting -= 1

    def send(self, request: TurnRequest, session: int, endpoint: EndpointName | None = None) -> Turn:
        """Send a turn, and count it as begun. A session keeps its target. `endpoint`: None for the scenario's."""
        windows = self._windows
        windows.latest_ns = max(windows.latest_ns, request.planned_ns)
        self._tallies.at(request.phase, request.class_name, request.step).turns_begun += 1
        if self.canaries is not None:
            self.canaries.beside(request, self.clients.server_of(session))
        if self._counter.tracer is not None:
            headers = (*request.headers, self._counter.tracer.header(request.turn_id))
            request = msgspec.structs.replace(request, headers=headers)
        return self.clients[self.clients.number_of(session, endpoint)].start(request)

    def defer_count(self, turn_id: str) -> None:
        """Count a turn only after `release`. Call it before the turn is sent."""
        self._unjudged[turn_id] = None

    def release(self, turn_id: str, rejected: str | None = None) -> None:
        """Count a deferred turn. `rejected`: reason why its caller rejected the answer; a successful turn then counts as failed."""
        deferred = self._unjudged.pop(turn_id, None)
        if deferred is None:
            return
        client, result = deferred
        if rejected is not None and result.record.ok:
            record = msgspec.structs.replace(result.record, failure=Failure.REJECTED)
            result = msgspec.structs.replace(result, record=record, detail=rejected)
        self._take(client, result)

    def fail(self, request: TurnRequest, session: int, detail: str) -> None:
        """Count a turn that could not be built as a client error; do nothing once the dispatcher is closed."""
        if self.closed:
            return
        self._tallies.at(request.phase, request.class_name, request.step).turns_begun += 1
        client = self.clients.number_of(session)
        self._on_turn(client, self.clients[client].never_sent(request, detail))

    def give_up(self) -> None:
        """End turns in flight as unfinished."""
        for client in self._all_clients:
            client.give_up_all()
        for turn_id in list(self._unjudged):
            self.release(turn_id)

    # -- results

    def _on_turn(self, client: int, result: TurnResult) -> None:
        """Take a result from the event loop, without blocking: another greenlet counts it."""
        self._pending += 1
        if result.record.turn_id in self._unjudged:
            self._unjudged[result.record.turn_id] = client, result
        else:
            self._take(client, result)

    def _take(self, client: int, result: TurnResult) -> None:
        ended = self._ended.setdefault(client, [])
        ended.append(result)
        if len(ended) >= MAX_BATCH:
            self.count()
        self._news.set()

    def count(self) -> None:
        """Count and write the turns that have ended since the last call: a batch costs less per turn than single turns."""
        ended, self._ended = self._ended, {}
        for client, results in ended.items():
            self._counted.append(self._counter.count(self.clients[client], results))

    def _gather(self) -> None:
        while True:
            self._news.wait()
            gevent.sleep(GATHER_S)
            self._news.clear()
            self.count()
            batches, self._counted = self._counted, []
            for counted in batches:
                self._counter.add_to_locust(counted)
                self._pending -= len(counted.results)
                gevent.sleep(0)


class TurnClients:
    """Clients of one worker by number: one for each target and endpoint, created at the first turn that needs it.

    Targets can change during a run. A session keeps its own as long as it is among them.
    """

    def __init__(self, scenario: Scenario, assignment: Assignment, own: ProcessSettings) -> None:
        if not own.origins and assignment.origins is not None:
            # A worker started without --host uses the master's list of servers that the key may be sent to.
            own = msgspec.structs.replace(own, origins=frozenset(assignment.origins), lists=frozenset(assignment.lists))
        self._own, self._scenario, self._assignment = own, scenario, assignment
        self._targets: list[Target] = []  # that the run has had
        self._settings: list[ClientSettings] = []  # of each of them
        for fields, known in zip(assignment.targets, assignment.finish_reasons, strict=True):
            self._add(Target(**fields), known=known)
        self._current = list(range(len(self._targets)))  # numbers of the targets of new sessions
        self._coming: deque[tuple[int, list[int]]] = deque()  # instants from which others hold
        self._kept: dict[int, int] | None = {} if assignment.follows else None  # targets of sessions
        self._canary = assignment.canary
        self._seed = scenario.seed
        self._endpoint = scenario.request.endpoint
        self._on_turn: Callable[[int, TurnResult], None] | None = None
        self._clients: list[Client] = []
        self._numbers: dict[tuple[int, EndpointName], int] = {}

    def open(self, on_turn: Callable[[int, TurnResult], None]) -> None:
        """Create the clients of the scenario's endpoint.

        `on_turn`: called from the event loop with the number of the client and each result.
        """
        self._on_turn = on_turn
        for target in range(len(self._settings)):
            self._number(target, self._endpoint)

    def __iter__(self) -> Iterator[Client]:
        return iter(self._clients)

    def __getitem__(self, number: int) -> Client:
        return self._clients[number]

    def number_of(self, session: int, endpoint: EndpointName | None = None) -> int:
        """Return the number of a session's client; a session keeps its target. `endpoint` None: the scenario's."""
        return self._number(self.server_of(session), endpoint or self._endpoint)

    def change(self, at_ns: int, targets: Sequence[Target], lists: Sequence[str]) -> None:
        """Have other targets from an instant on (ns, of this process). `lists`: DNS names and files that have them now."""
        self._own = self._own.also_to(lists, [target.url for target in targets])
        for target in targets:
            if target not in self._targets:
                self._add(target, known=all(self._assignment.finish_reasons))
        self._coming.append((at_ns, list(map(self._targets.index, targets))))

    def _add(self, target: Target, *, known: bool) -> None:
        settings = client_settings(self._scenario, target, self._assignment.model, self._own, self._assignment.name)
        self._targets.append(target)
        self._settings.append(replace(settings, finish_reasons=known))

    def server_of(self, session: int) -> int:
        """Return the number of the target of a session."""
        if self._kept is None:
            return server_of(self._seed, session, len(self._settings))
        while self._coming and self._coming[0][0] <= now_ns():
            self._current = self._coming.popleft()[1]
        kept = self._kept.get(session)
        if kept is None or kept not in self._current:
            kept = self._current[server_of(self._seed, session, len(self._current))]
            self._kept[session] = kept
        return kept

    def forget(self, session: int) -> None:
        """Forget the target of a session that has ended: a run can have millions."""
        if self._kept:
            self._kept.pop(session, None)

    def may_have_key(self, session: int) -> bool:
        """Return whether a key may be sent to the target of a session."""
        return self._own.may_send_to(self._targets[self.server_of(session)])

    def canaries(self) -> "Canaries | None":
        """Return the canaries of the run; None if it has none."""
        if self._canary is None:
            return None
        from inferload.run.process.canary_orders import CanaryOrders  # of few scenarios
        from inferload.run.worker.canaries import Canaries

        return Canaries(
            msgspec.convert(self._canary, CanaryOrders), self._seed, self._settings[: len(self._assignment.targets)]
        )

    def _number(self, target: int, endpoint: EndpointName) -> int:
        number = self._numbers.get((target, endpoint))
        if number is None:
            assert self._on_turn is not None
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
