"""What a process of a run knows by itself, and how it sends with that."""

from dataclasses import dataclass
from pathlib import Path

from inferload.measure import gates
from inferload.wire.client import ClientSettings, Credentials
from inferload.wire.client import Timeouts as ClientTimeouts
from inferload.wire.dial import TlsSettings
from inferload.wire.target import Target
from inferload.workload import scenario as scenarios


@dataclass(frozen=True, slots=True)
class OwnSettings:
    """What a process knows by itself and never hears from, nor tells, another one."""

    credentials: Credentials
    headers: tuple[tuple[str, str], ...]
    tls: TlsSettings
    run_dir: Path | None
    report: bool = True  # whether the pages are made at a run's end
    inconclusive: gates.Policy = "warn"  # what a gate does whose interval holds its limit
    inconclusive_code: int = 1  # exit code where such gates alone failed
    progress_file: Path | None = None


def client_settings(
    scenario: scenarios.Scenario, target: Target, model: str, own: OwnSettings, worker: str
) -> ClientSettings:
    """How turns of a scenario are sent from this process."""
    limits = scenario.request.timeouts
    return ClientSettings(
        target=target,
        model=model,
        worker=worker,
        tls=own.tls,
        timeouts=ClientTimeouts(limits.connect_s, limits.first_event_s, limits.between_events_s, limits.turn_s),
        credentials=own.credentials,
        headers=(*scenario.request.headers.items(), *own.headers),
        endpoint=scenario.request.endpoint,
    )
