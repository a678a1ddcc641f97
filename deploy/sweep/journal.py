"""Journal of a sweep: its runs, servers and port."""

from pathlib import Path
from typing import Any

from inferload.campaign import journal as campaign_journal
from inferload.measure import clock

from ..launcher import launch, server_state


class SweepJournal(campaign_journal.Journal):
    """Journal of the runs and servers of a sweep."""

    def __init__(self, folder: Path) -> None:
        self.servers: dict[int, int] = {}  # port -> pid of running servers
        self.starting_ns: int | None = None  # wall time of an unrecorded start
        self.port: int | None = None
        self.start_durations_s: list[float] = []
        super().__init__(folder)

    def run_durations_s(self) -> dict[str, list[float]]:
        """Return the durations of completed runs by scenario."""
        durations_s: dict[str, list[float]] = {}
        for entry in self.runs:
            if "took_s" in entry and not entry.get("cause"):
                durations_s.setdefault(entry["folder"].partition("/")[0], []).append(entry["took_s"])
        return durations_s

    def take(self, entry: dict[str, Any]) -> None:
        """Update the state with an entry."""
        super().take(entry)
        kind = entry.get("kind")
        if kind == "port":
            self.port = entry["port"]
        elif kind == "server_starting":
            self.starting_ns = entry["wall_ns"]
        elif kind == "server_up":
            self.servers[entry["port"]] = entry["pid"]
            self.starting_ns = None
        elif kind == "server_ready":
            self.start_durations_s.append(entry["took_s"])
        elif kind == "server_down":
            self.servers.pop(entry["port"], None)
            self.starting_ns = None


def clear_up(journal: SweepJournal) -> None:
    """Stop the run and the server of a killed sweep."""
    journal.end_orphans()
    for server in server_state.remembered():
        if journal.servers.get(server.port) == server.pid or _is_unrecorded_start(journal, server):
            launch.stop(server)
            journal.write(kind="server_down", port=server.port)


def _is_unrecorded_start(journal: SweepJournal, server: server_state.LocalServer) -> bool:
    """Return True for a server on the sweep's port whose start was not recorded before the sweep was killed."""
    if journal.starting_ns is None or server.port != journal.port:
        return False
    started_s = clock.wall_ns() / clock.NS_PER_S - server_state.age_s(server)
    return started_s + 1 >= journal.starting_ns / clock.NS_PER_S  # started_at is in whole seconds
