"""Journal of a sweep: its runs, servers and port."""

from pathlib import Path
from typing import Any

from inferload.campaign import journal as campaign_journal

from ..launcher import launch, server_state


class SweepJournal(campaign_journal.Journal):
    """Journal of the runs and servers of a sweep."""

    def __init__(self, folder: Path) -> None:
        self.servers: set[str] = set()  # start ids of the servers that were not stopped
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
            self.servers.add(entry["start_id"])
        elif kind == "server_ready":
            self.start_durations_s.append(entry["took_s"])
        elif kind == "server_down":
            self.servers.discard(entry["start_id"])


def clear_up(journal: SweepJournal) -> None:
    """Stop the run and the server of a killed sweep."""
    journal.end_orphans()
    for server in server_state.remembered():
        if server.start_id in journal.servers:
            launch.stop(server)
            journal.write(kind="server_down", start_id=server.start_id)
