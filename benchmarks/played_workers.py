"""Process of `benchmarks.workers`: many workers in one process, each with a connection of its own and a played server.

All of a worker is inferload's and Locust's own (connection, messages, counts, reports, turn files and their delivery), but two
parts: a played client answers turns without a server, and a played load begins them at a constant rate. Prints the number of turns.
"""

from __future__ import annotations

import argparse
import sys
from array import array
from collections import deque
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gevent
import numpy as np
from locust.env import Environment
from locust.util.load_locustfile import load_locustfile
from msgspec import structs

import inferload.users  # noqa: F401  prepares Locust, before anything else is imported
from benchmarks.cases import PLAYED_TOKENS
from inferload.base.clock import NS_PER_MS, NS_PER_S, now_ns
from inferload.base.tls import TlsSettings
from inferload.client.client import Credentials
from inferload.client.connection.target import Target
from inferload.client.turn_record import TurnRequest, TurnResult
from inferload.locust_adapters import membership, messages
from inferload.run.process.program_code import LoadedCode, imported_files
from inferload.run.process.protocol import Assignment
from inferload.run.process.settings import ProcessSettings
from inferload.run.worker import worker as worker_module
from inferload.run.worker import worker_run
from inferload.scenario.schema.endpoints import ENDPOINTS
from inferload.turns.record import Failure, TurnRecord
from inferload.turns.socket_reader import SocketReader

_TTFT_MS, _GAP_MS = (150.0, 40.0), (15.0, 3.0)  # mean and deviation
_ANSWERS = 256  # different ones
_STEP_S = 0.1  # turns begin and end in steps; their instants are exact
_SENT_NS = NS_PER_MS // 5  # after the planned instant


class PlayedClient:
    """Client whose turns end after the times of an answer, once `play` is called."""

    def __init__(self, assignment: Assignment, on_turn: Callable[[TurnResult], None]) -> None:
        self.endpoint = ENDPOINTS["chat"]
        self._target = Target(**assignment.targets[0]).url
        self.reader = SocketReader(target=self._target, reader="native")
        self._assignment = assignment
        self._on_turn = on_turn
        self._turns: deque[tuple[TurnRequest, array[int]]] = deque()
        self._answers, self._delays_ns = _answers()
        self.begun = 0

    @property
    def in_flight(self) -> int:
        """Turns begun and not ended."""
        return len(self._turns)

    def pauses(self) -> list[tuple[int, int]]:
        """Return the pauses of the reading thread: none."""
        return []

    def start(self, request: TurnRequest) -> None:
        self._turns.append((request, self._answers[(self.begun + 7 * self._assignment.stripe) % _ANSWERS]))
        self.begun += 1

    def play(self, at_ns: int) -> None:
        """End the turns that are over."""
        while self._turns and self._closed_ns(*self._turns[0]) <= at_ns:
            self._end(*self._turns.popleft())

    def give_up_all(self) -> None:
        while self._turns:
            self._end(*self._turns.popleft(), failure=Failure.UNFINISHED)

    def close(self) -> None:
        """Do nothing: there is no connection."""

    @staticmethod
    def _closed_ns(request: TurnRequest, event_ns: array[int]) -> int:
        return request.planned_ns + _SENT_NS + event_ns[-1] + NS_PER_MS

    def _end(self, request: TurnRequest, event_ns: array[int], failure: Failure | None = None) -> None:
        sent_ns = request.planned_ns + _SENT_NS
        record = TurnRecord(
            request.turn_id,
            request.session_id,
            request.turn_index,
            request.class_name,
            self._assignment.name,
            request.phase,
            request.planned_ns,
            self._closed_ns(request, event_ns),
            sent_ns=sent_ns,
            written_ns=sent_ns + 50_000,
            first_event_ns=sent_ns + event_ns[0],
            first_ns=sent_ns + event_ns[0],
            first_visible_ns=sent_ns + event_ns[0],
            last_ns=sent_ns + event_ns[-1],
            round_trip_ns=100_000,
            input_tokens=100,
            output_tokens=len(event_ns),
            cached_tokens=0,
            event_ns=event_ns,
            delay_ns=self._delays_ns[event_ns[0] % _ANSWERS],
            target=self._target,
            model=self._assignment.model,
            max_tokens=request.max_tokens,
            finish_reason="length",
            request_id=request.turn_id,
            failure=failure,
            status=200,
        )
        self._on_turn(TurnResult(record, "", ""))


@cache
def _answers() -> tuple[list[array[int]], list[array[int]]]:
    """Return the event times of answers and the delays of their reads."""
    draw = np.random.default_rng(1)
    times_ms = draw.normal(*_GAP_MS, (_ANSWERS, PLAYED_TOKENS))
    times_ms[:, 0] = draw.normal(*_TTFT_MS, _ANSWERS)
    events_ns = np.cumsum(np.rint(np.maximum(times_ms, 0.1) * NS_PER_MS).astype(np.int64), axis=1)
    delays_ns = draw.integers(20_000, 200_000, (_ANSWERS, PLAYED_TOKENS))
    return [array("q", row) for row in events_ns.tolist()], [array("q", row) for row in delays_ns.tolist()]


class PlayedClients(list[PlayedClient]):
    """Stands in for `TurnClients`: one played client for all sessions."""

    def __init__(self, _scenario: Any, assignment: Assignment, _own: ProcessSettings) -> None:
        self._assignment = assignment

    def open(self, on_turn: Callable[[int, TurnResult], None]) -> None:
        self.append(PlayedClient(self._assignment, partial(on_turn, 0)))

    def number_of(self, _session: int, _endpoint: str | None = None) -> int:
        return 0

    def canaries(self) -> None:
        """Return that there are none."""


class PlayedRun(worker_run.WorkerRun):
    """A run whose turns begin at a constant rate, each in a session of its own, and whose folder is not the master's."""

    turns_per_s = 1.0
    runs: list[PlayedRun] = []

    def __init__(self, assignment: Assignment, *others: Any) -> None:
        super().__init__(structs.replace(assignment, token="of another file system"), *others)
        self.runs.append(self)

    def start(self) -> None:
        super().start()
        gevent.spawn(self._play)

    @property
    def begun(self) -> int:
        return sum(client.begun for client in self.turns.clients)

    def _play(self) -> None:
        client = self.turns.clients[0]
        while self.context.open or client.in_flight:
            gevent.sleep(_STEP_S)
            if self.windows.load_start_ns is not None:
                self._begin_due(now_ns())
                client.play(now_ns())

    def _begin_due(self, at_ns: int) -> None:
        assignment, step_ns = self.part.assignment, round(NS_PER_S / self.turns_per_s)
        start_ns = self.windows.load_start_ns + step_ns * assignment.stripe // assignment.stripes
        until_ns = min(at_ns, (self.windows.load_end_ns or at_ns) - 1)
        tallies, class_name = self.context.tallies, self.part.sessions.classes[0]
        while self.context.open and (due_ns := start_ns + self.begun * step_ns) <= until_ns:
            number = self.begun * assignment.stripes + assignment.stripe
            phase = self.windows.at(due_ns).phase
            tallies.at(phase, class_name).sessions_planned += 1
            tallies.at(phase, class_name).sessions_started += 1
            tallies.at(phase, class_name).sessions_completed += 1
            session = f"s{number}"
            self.turns.send(
                TurnRequest(b"", f"{session}/0", session, 0, class_name, phase, due_ns, PLAYED_TOKENS),
                number,
            )


def main() -> int:
    """Play workers until the master ends them."""
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--turns-per-s", type=float, required=True, help="of each worker")
    parser.add_argument("--master-port", type=int, required=True)
    parser.add_argument("--token", required=True)
    parser.add_argument("--locustfile", required=True)
    parser.add_argument("--folder", type=Path, required=True, help="for the workers' run directories")
    arguments = parser.parse_args()
    PlayedRun.turns_per_s = arguments.turns_per_s
    worker_run.TurnClients, worker_module.WorkerRun = PlayedClients, PlayedRun
    membership.use_token(arguments.token)
    user_classes = load_locustfile(arguments.locustfile)[0].values()
    code = LoadedCode([arguments.locustfile], imported=imported_files())
    runners = [_worker(arguments, number, list(user_classes), code) for number in range(arguments.workers)]
    for runner in runners:
        runner.greenlet.join()
        messages.flush_messages(runner)
    print(sum(run.begun for run in PlayedRun.runs))
    return 0


def _worker(arguments: argparse.Namespace, number: int, user_classes: list[type], code: LoadedCode) -> Any:
    environment = Environment(user_classes=user_classes)
    runner = environment.create_worker_runner("127.0.0.1", arguments.master_port)
    own = ProcessSettings(
        Credentials(), (), TlsSettings(), run_dir=arguments.folder / f"{number}", code=code, token=arguments.token
    )
    worker_module.Worker(environment, own).follow_master()
    # Locust's users only exist.
    environment.inferload_worker = SimpleNamespace(user=lambda *_of_user: gevent.sleep(3600))
    return runner


if __name__ == "__main__":
    sys.exit(main())
