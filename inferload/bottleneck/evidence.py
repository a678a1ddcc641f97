"""Evidence for a diagnosis: figures of a window at a server. None: unknown. No I/O.

Means and shares of gauges are over the scrapes of the window; counts and rates are between its first and last scrape.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Scrapes:
    """Values at each scrape of the window; NaN if not published."""

    running: Floats
    capacity: Floats  # waiting for capacity
    deferred: Floats
    kv_usage: Floats  # of the fullest engine
    head_tokens: Floats  # uncached prompt tokens of the head of the queue; NaN if no request waits or it is unknown

    @property
    def waits(self) -> npt.NDArray[np.bool_]:
        """Mask of scrapes at which requests wait for capacity."""
        return np.nan_to_num(self.capacity) > 0


@dataclass(frozen=True, slots=True)
class ClientReason:
    """Reason of the verdict that concerns the client. `level`: suspect or invalid."""

    code: str
    level: str
    text: str


@dataclass(frozen=True, slots=True)
class WindowEvidence:
    """Figures of a window."""

    start_s: float
    end_s: float
    target: str
    scrapes: Scrapes
    max_num_seqs: int | None = None  # per engine
    engines: int = 1
    stream_interval: int | None = None  # configured tokens per event
    cache_tokens: int | None = None  # KV-cache size per engine
    preemptions: int | None = None
    finished: int | None = None
    computed_tok_per_s: float | None = None  # prompt tokens that were computed
    generation_tok_per_s: float | None = None
    queue_ms: float | None = None  # means of the server over requests that ended in the window
    prefill_ms: float | None = None
    decode_ms: float | None = None
    server_ttft_ms: float | None = None
    server_itl_ms: float | None = None
    server_cpu_share: float | None = None
    mean_acceptance_length: float | None = None
    draft_tokens: int | None = None  # per draft
    engines_kv_spread: float | None = None
    engines_waiting: tuple[float, ...] = ()
    client_ttft_ms: float | None = None
    client_itl_p50_ms: float | None = None
    client_delay_p99_ms: float | None = None
    loop_lag_p99_ms: float | None = None
    client_cpu_share: float | None = None
    client_reasons: tuple[ClientReason, ...] = ()  # in the measure phase
    tokens_per_event: float | None = None
    # Mean ITL at the lowest and the highest third of running requests.
    itl_by_running: tuple[float, float] | None = None
    itl_alone_ms: float | None = None  # lowest mean ITL of a second of the run
    # Prefix-cache hits of all servers over the whole run.
    expected_hit_rate: float | None = None
    counted_hit_rate: float | None = None
    slo: Mapping[str, float] = field(default_factory=dict)
    troubled: bool = False  # turns failed, or the server stopped answering or restarted
    rates: str | None = None  # rates of an open loop without growth, as text

    @property
    def length_s(self) -> float:
        """Length of the window."""
        return self.end_s - self.start_s

    @property
    def waiting_share(self) -> float:
        """Share of the scrapes with a known queue at which requests wait for capacity; 0 without any."""
        known = ~np.isnan(self.scrapes.capacity)
        return float(np.mean(self.scrapes.waits[known])) if known.any() else 0.0

    @property
    def waiting_known(self) -> bool:
        """True if the server published the number of waiting requests."""
        return not np.isnan(self.scrapes.capacity).all()


def max_num_seqs(manifest: Mapping[str, Any]) -> int | None:
    """Return max_num_seqs of the deployed server; None if unknown."""
    variant = manifest.get("variant") or {}
    server = (variant.get("config") or {}).get("server") or {}
    configured = (server.get("scheduler_config") or {}).get("max_num_seqs")
    if isinstance(configured, int):
        return configured
    value = server_option(variant, "--max-num-seqs")
    return int(value) if value is not None and value.isdecimal() else None


def stream_interval(manifest: Mapping[str, Any]) -> int | None:
    """Return the configured tokens per event (vLLM's default: 1); None if the command line of the server is unknown."""
    variant = manifest.get("variant") or {}
    if not variant.get("argv"):
        return None
    value = server_option(variant, "--stream-interval") or server_option(variant, "--tokens-per-event") or "1"
    return int(value) if value.isdecimal() else None


def server_option(variant: Mapping[str, Any], option: str) -> str | None:
    """Return the value of an option of the server's command line; None if absent."""
    argv = [str(word) for word in variant.get("argv") or ()]
    for index, word in enumerate(argv):
        name, sign, value = word.partition("=")
        if name == option:
            return value if sign else argv[index + 1] if index + 1 < len(argv) else None
    return None
