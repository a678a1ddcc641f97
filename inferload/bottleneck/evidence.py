"""Evidence for a diagnosis: figures of one window at one server. None: unknown. No I/O.

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
    """Scrapes of the window, one entry each; NaN if not published."""

    running: Floats
    capacity: Floats  # waiting for capacity
    deferred: Floats
    kv_usage: Floats  # of the fullest engine
    head_tokens: Floats  # uncached prompt tokens of the head of the queue; NaN if no request waits or it is unknown

    @property
    def waits(self) -> npt.NDArray[np.bool_]:
        """Scrapes at which requests wait for capacity."""
        return np.nan_to_num(self.capacity) > 0


@dataclass(frozen=True, slots=True)
class ClientReason:
    """A reason of the verdict that concerns the client: code, level (suspect or invalid), text."""

    code: str
    level: str
    text: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """Figures of one window. Times in ms."""

    start_s: float
    end_s: float
    target: str
    scrapes: Scrapes
    max_num_seqs: int | None = None  # of one engine
    engines: int = 1
    stream_interval: int | None = None  # tokens per event that the server was configured to send
    cache_tokens: int | None = None  # KV-cache size of an engine
    preemptions: int | None = None
    finished: int | None = None
    computed_tok_per_s: float | None = None  # prompt tokens that were computed
    generation_tok_per_s: float | None = None
    queue_ms: float | None = None  # the server's means, of requests that ended in the window
    prefill_ms: float | None = None
    decode_ms: float | None = None
    server_ttft_ms: float | None = None
    server_itl_ms: float | None = None
    server_cpu_share: float | None = None
    mean_acceptance_length: float | None = None
    draft_tokens: int | None = None  # of one draft
    engines_kv_spread: float | None = None
    engines_waiting: tuple[float, ...] = ()
    client_ttft_ms: float | None = None
    client_itl_p50_ms: float | None = None
    client_delay_p99_ms: float | None = None
    loop_lag_p99_ms: float | None = None
    client_cpu_share: float | None = None
    client_reasons: tuple[ClientReason, ...] = ()  # of the run's verdict, in the measure phase
    tokens_per_event: float | None = None
    itl_by_running: tuple[float, float] | None = (
        None  # mean ITL at the lowest and the highest third of running requests
    )
    itl_alone_ms: float | None = None  # the lowest mean ITL of any second of the run
    expected_hit_rate: float | None = None
    counted_hit_rate: float | None = None
    uncached_prompt_tokens: float | None = None  # mean of a turn
    slo: Mapping[str, float] = field(default_factory=dict)
    troubled: bool = False  # turns failed, or the server stopped answering or restarted
    rates: str | None = None  # text on the rates of an open loop without growth

    @property
    def length_s(self) -> float:
        """Length of the window in seconds."""
        return self.end_s - self.start_s

    @property
    def waiting_share(self) -> float:
        """Share of scrapes at which requests wait for capacity; 0 without scrapes."""
        return float(np.mean(self.scrapes.waits)) if len(self.scrapes.capacity) else 0.0

    @property
    def waiting_known(self) -> bool:
        """True if the server published the number of waiting requests."""
        return not np.isnan(self.scrapes.capacity).all()


def max_num_seqs(manifest: Mapping[str, Any]) -> int | None:
    """max_num_seqs of the deployed server; None if unknown."""
    variant = manifest.get("variant") or {}
    server = (variant.get("config") or {}).get("server") or {}
    configured = (server.get("scheduler_config") or {}).get("max_num_seqs")
    if isinstance(configured, int):
        return configured
    value = _flag(variant, "--max-num-seqs")
    return int(value) if value is not None and value.isdecimal() else None


def stream_interval(manifest: Mapping[str, Any]) -> int | None:
    """Tokens per event (vLLM's default is 1); None if the command line of the server is unknown."""
    variant = manifest.get("variant") or {}
    if not variant.get("argv"):
        return None
    value = _flag(variant, "--stream-interval") or _flag(variant, "--tokens-per-event") or "1"
    return int(value) if value.isdecimal() else None


def _flag(variant: Mapping[str, Any], flag: str) -> str | None:
    """Value of a flag of the server's command line; None if absent."""
    argv = [str(word) for word in variant.get("argv") or ()]
    for index, word in enumerate(argv):
        name, sign, value = word.partition("=")
        if name == flag:
            return value if sign else argv[index + 1] if index + 1 < len(argv) else None
    return None
