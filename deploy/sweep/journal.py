"""Journal of a sweep: its runs, servers and port."""

from pathlib import Path
from typing import Any, ClassVar

from inferload.campaign.journal import Entry, Journal

from ..launcher import launch, server_state


class PortChosen(Entry, frozen=True, kw_only=True, tag="port"):
    """All servers of the sweep have this port."""

    port: int


class ServerStarting(Entry, frozen=True, kw_only=True, tag="server_starting"):
    """A server is being started."""

    start_id: str
    port: int
    variant: str


class ServerReady(Entry, frozen=True, kw_only=True, tag="server_ready"):
    """A server answers."""

    port: int
    took_s: float


class ServerDown(Entry, frozen=True, kw_only=True, tag="server_down"):
    """A server was stopped."""

    start_id: str


class SweepJournal(Journal):
    """Journal of the runs and servers of a sweep."""

    kinds: ClassVar[Any] = Journal.kinds | PortChosen | ServerStarting | ServerReady | ServerDown

    def __init__(self, folder: Path) -> None:
        self.servers: set[str] = set()  # start ids of the servers that were not stopped
        self.port: int | None = None
        self.start_durations_s: list[float] = []
        super().__init__(folder)

    def run_durations_s(self) -> dict[str, list[float]]:
        """Return the durations of completed runs by scenario."""
        durations_s: dict[str, list[float]] = {}
        for entry in self.runs:
            if not entry.cause:
                durations_s.setdefault(entry.folder.partition("/")[0], []).append(entry.took_s)
        return durations_s

    def take(self, entry: Entry) -> None:
        """Update the state by an entry."""
        super().take(entry)
        match entry:
            case PortChosen():
                self.port = entry.port
            case ServerStarting():
                self.servers.add(entry.start_id)
            case ServerReady():
                self.start_durations_s.append(entry.took_s)
            case ServerDown():
                self.servers.discard(entry.start_id)


def clear_up(journal: SweepJournal) -> None:
    """Stop the run and the server of a killed sweep."""
    journal.end_orphans()
    for server in server_state.remembered():
        if server.start_id in journal.servers:
            launch.stop(server)
            journal.write(ServerDown(start_id=server.start_id))
