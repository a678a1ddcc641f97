"""Evidence for a diagnosis: figures of a window at a server. None: unknown. No I/O.

Means and shares of gauges are over the scrapes of the window; counts and rates are between its first and last scrape.
"""

import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field

from inferload.base.deployments import Deployment
from inferload.base.numbers import whole
from inferload.figures.pages.page_kinds import VLLM
from inferload.figures.servers import server_blocks, server_figures
from inferload.figures.servers.server_formulas import Window, known
from inferload.figures.servers.tier_figures import LOAD_OF_REQUEST
from inferload.servers.bottleneck.finding import LEAST_QUEUE_MS, QUEUED_SHARE

Floats = npt.NDArray[np.float64]


class KvBlocks(Struct, frozen=True):
    """KV cache of one engine. `usable`: blocks for requests, without the one that vLLM reserves; `size`: tokens of a block."""

    usable: float
    size: int

    @classmethod
    def of(cls, tokens: float | None, size: float | None, blocks: float | None) -> "KvBlocks | None":
        """Return the cache from the figures that a server publishes; None if its size or that of a block is unknown.

        `blocks`: of the whole pool. A model with several kinds of layers takes several of them for the same tokens.
        """
        if not tokens or not size or tokens < 2 * size:
            return None
        pool = blocks or tokens / size
        return cls(tokens / size * (1 - 1 / pool), round(size))

    def free(self, usage: Floats) -> Floats:
        """Return the whole blocks that are free at each usage (0 to 1)."""
        return np.floor((1 - usage) * self.usable + _ROUNDING)

    def needed(self, tokens: Floats) -> Floats:
        """Return the blocks that a prompt needs: a part of a block takes a whole one."""
        return np.ceil(tokens / self.size)


def mean_of(values: Floats) -> float | None:
    """Return the mean of the known values; None without any."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else None


def standing_still(at_s: Floats, running: Floats, *others: Floats) -> npt.NDArray[np.bool_]:
    """Return the mask of the scrapes within 10 s or more in which requests ran and no value changed; NaN is a change."""
    steady = np.all([np.diff(values) == 0 for values in (running, *others)], axis=0) & (running[1:] > 0)
    mask = np.zeros(len(at_s), dtype=np.bool_)
    ends = np.flatnonzero(np.diff(steady.astype(int), prepend=0, append=0))
    for first, last in zip(ends[::2], ends[1::2], strict=True):
        mask[first : last + 1] = at_s[last] - at_s[first] >= LEAST_STILL_S
    return mask


LEAST_STILL_S = 10.0  # longer than a step
_ROUNDING = 1e-3  # of a block: the usage is a rounded quotient


class EngineQueue(Struct, frozen=True):
    """Queue at each scrape of the window; NaN if not published. `at_s`: times on the clock of the window."""

    at_s: Floats
    running: Floats
    capacity: Floats  # waiting for capacity

    @property
    def waits(self) -> npt.NDArray[np.bool_]:
        """Mask of scrapes at which requests wait for capacity."""
        return np.nan_to_num(self.capacity) > 0


class Scrapes(EngineQueue, frozen=True):
    """Values of all engines together. `by_engine`: the queue of each, if the page names them."""

    deferred: Floats
    kv_usage: Floats  # of the fullest engine
    head_tokens: Floats  # uncached prompt tokens of the head of the queue; NaN if no request waits or it is unknown
    by_engine: tuple[EngineQueue, ...] = ()
    in_flight: Floats | None = None  # turns that have waited for output for some time; None: not known
    asleep: npt.NDArray[np.bool_] | None = None  # sleep state of the server; None: not published
    fetching: Floats | None = None  # requests that fetch KV blocks from another server; None: not published
    still: npt.NDArray[np.bool_] | None = None  # of `standing_still`, with the counters of tokens


class ClientReason(Struct, frozen=True):
    """Reason of the verdict that concerns the client. `level`: suspect or invalid."""

    code: str
    level: str
    text: str


class Setup(Struct, frozen=True):
    """Configuration of the server. None: not known. `server`: engine, by the names of its metrics."""

    max_num_seqs: int | None = None  # per engine
    engines: int = 1
    stream_interval: int | None = None  # configured tokens per event
    kv: KvBlocks | None = None
    server: str | None = None
    servers: int = 1  # scraped inference servers
    role: str | None = None  # prefill or decode
    gpus: int | None = None  # of the deployment; 0: it runs on a CPU
    command: tuple[str, ...] | None = None  # command line of the server
    cache_config: Mapping[str, str] = field(default_factory=dict)  # labels of vLLM's cache_config_info


class Served(Struct, frozen=True):
    """Figures of the server. Times are its means over requests that ended in the window."""

    preemptions: int | None = None
    finished: int | None = None
    computed_tok_per_s: float | None = None  # prompt tokens that were computed
    generation_tok_per_s: float | None = None
    queue_ms: float | None = None
    prefill_ms: float | None = None
    decode_ms: float | None = None
    load_ms: float | None = None  # of KV from other tiers, of all requests that ended, with and without a load
    server_ttft_ms: float | None = None
    server_itl_ms: float | None = None
    server_cpu_share: float | None = None
    mean_acceptance_length: float | None = None
    draft_tokens: int | None = None  # per draft
    engines_kv_spread: float | None = None
    transfers: int | None = None  # of KV blocks to this server
    transfer_ms: float | None = None

    @classmethod
    def of(cls, window: Window, **more: Any) -> "Served":
        """Return the figures of a window, at its end or while it lasts. `more`: further fields."""
        return cls(
            preemptions=whole(server_figures.PREEMPTIONS.number(window)),
            finished=whole(server_figures.FINISHED.number(window)),
            computed_tok_per_s=server_figures.COMPUTED_RATE.number(window),
            generation_tok_per_s=server_figures.GENERATION_RATE.number(window),
            queue_ms=server_figures.QUEUE.number(window),
            prefill_ms=server_figures.PREFILL.number(window),
            decode_ms=server_figures.DECODE.number(window),
            load_ms=known(LOAD_OF_REQUEST.value(window)),
            server_ttft_ms=server_figures.TTFT.number(window),
            server_itl_ms=server_figures.ITL.number(window),
            transfers=whole(server_blocks.TRANSFERS.number(window)),
            transfer_ms=server_blocks.TRANSFER_TIME.number(window),
            **more,
        )


class ClientSide(Struct, frozen=True):
    """Figures of the client. `attributed`: of the turns that this server answered; else of those of all servers."""

    behind: bool = False  # turns were sent to another address than that of the metrics page
    attributed: bool = True
    client_ttft_ms: float | None = None
    round_trip_ms: float | None = None  # median over these turns, of the network to the server or the first proxy
    client_gap_ms: float | None = None  # median gap; the mean, where most events arrive together
    events_per_arrival: float | None = None
    client_delay_p99_ms: float | None = None
    client_cpu_share: float | None = None  # of the busiest worker
    client_reasons: tuple[ClientReason, ...] = ()  # in the measure phase
    tokens_per_event: float | None = None
    routers: tuple[str, ...] = ()  # repeats and queue, by the pages of routers in front


class ItlByLoad(Struct, frozen=True):
    """ITL of the client by the load. `itl_by_running`: means at the lowest and the highest third of running requests."""

    itl_by_running: tuple[float, float] | None = None
    itl_alone_ms: float | None = None  # lowest mean ITL of a second of the run
    load_ratio: float | None = None  # mean number of decoding requests over that in this second


class WholeRun(Struct, frozen=True):
    """Figures and limits of the run. `expected_hit_rate`, `counted_hit_rate`: of the prefix caches of all servers."""

    expected_hit_rate: float | None = None
    engine_hit_rate: float | None = None  # the same with the memory of the engine, an estimate
    counted_hit_rate: float | None = None
    slo: Mapping[str, float] = field(default_factory=dict)
    troubled: bool = False  # turns failed, or the server stopped answering or restarted
    rates: str | None = None  # rates of an open loop without growth, as text
    hit_notes: tuple[str, ...] = ()  # why the hit rates are approximate
    missed: tuple[str, ...] = ()  # latency limits that the run missed: gates, SLO
    turns: int | None = None  # that ended well


class WindowEvidence(Struct, frozen=True):
    """Evidence of a window. diagnosis.json has the fields of all parts but the scrapes side by side."""

    start_s: float
    end_s: float
    target: str
    scrapes: Scrapes
    setup: Setup = Setup()
    served: Served = Served()
    client: ClientSide = ClientSide()
    itl: ItlByLoad = ItlByLoad()
    run: WholeRun = WholeRun()

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
    def queued(self) -> bool:
        """True if requests wait at many scrapes, or, by the server's own times, for a large part of the time of a request."""
        served, waiting = self.served, mean_of(self.scrapes.capacity) or 0.0
        times_ms = np.array([served.queue_ms, served.prefill_ms, served.decode_ms], dtype=np.float64)
        finished, at_begin = served.finished or 0, (self.scrapes.running + self.scrapes.capacity)[:1].sum()
        # Of requests that waited before the window, the scrapes show less (Little's law), if some were in flight at its begin.
        shown = 1000 * waiting * self.length_s >= 0.5 * times_ms[0] * finished
        in_window = finished > 0 and (shown or at_begin <= 0.2 * finished)
        long = in_window and times_ms[0] >= LEAST_QUEUE_MS and times_ms[0] >= QUEUED_SHARE * times_ms.sum()
        return self.waiting_share >= QUEUED_SHARE or bool(long and not served.transfers)  # which are in the queue time

    @property
    def in_prefill(self) -> float | None:
        """Mean number of requests in prefill, by the server's own times (Little's law); None if they are not known."""
        served = self.served
        if served.prefill_ms is None or served.finished is None:
            return None
        return served.finished / max(self.length_s, 1.0) * served.prefill_ms / 1000

    @property
    def waiting_known(self) -> bool:
        """True if the server published the number of waiting requests."""
        return not np.isnan(self.scrapes.capacity).all()


def max_num_seqs(deployed: Deployment) -> int | None:
    """Return max_num_seqs of the deployed server, by the configuration that it reports or its command line; None if unknown."""
    configured: Any = deployed.config
    for key in ("server", "scheduler_config", "max_num_seqs"):
        configured = configured.get(key) if isinstance(configured, Mapping) else None
    if isinstance(configured, int):
        return configured
    value = quantity(option_of(deployed.command or (), "--max-num-seqs"))
    return None if value is None else int(value)


def ranks_of(setup: Setup) -> int | None:
    """Return the ranks whose transfers a server counts together: of vLLM all of an engine; None if they are not known."""
    if setup.server != VLLM.key or setup.gpus == 0:
        return 1
    if setup.command is None or option_of(setup.command, "--config") is not None:
        return None
    options = (option_of(setup.command, f"--{kind}-parallel-size") for kind in ("tensor", "pipeline"))
    return math.prod(int(quantity(option) or 1) for option in options)


def stream_interval(deployed: Deployment) -> int | None:
    """Return the configured tokens per event (vLLM's default: 1); None if the options of the server are not known."""
    if deployed.command is None or option_of(deployed.command, "--config") is not None:
        return None
    value = quantity(option_of(deployed.command, "--stream-interval") or "1")
    return None if value is None else int(value)


def option_of(command: Sequence[str], option: str) -> str | None:
    """Return the last value of an option, empty for one without a value; None if absent. vLLM also reads `_` in names as `-`."""
    found = None
    for word, following in pairwise((*command, "--")):
        name, sign, value = word.partition("=")
        if _SHORT.get(name, name.replace("_", "-")) == option:
            found = value if sign else "" if re.match("--?[a-zA-Z]|--$", following) else following
    return found


def quantity(text: str | None) -> float | None:
    """Return the number of an option, such as 8192, 0.9, 8k (8,000) or 8K (8,192); None for other text."""
    number, unit = (text[:-1], _UNITS[text[-1]]) if text and text[-1] in _UNITS else (text, 1)
    with suppress(TypeError, ValueError):
        return float(number) * unit  # type: ignore[arg-type]
    return None


_SHORT = {
    **{"-q": "--quantization", "-dt": "--dtype", "-tp": "--tensor-parallel-size", "-pp": "--pipeline-parallel-size"}
}
_UNITS = {"k": 1000, "K": 1024, "m": 1000**2, "M": 1024**2}
