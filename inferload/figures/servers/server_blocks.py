"""Blocks of an entry of `servers` in summary.json, with a field for each figure: waiting requests, speculation, GPUs, routers."""

from typing import Annotated

from msgspec import Struct

from inferload.base.json_text import Count as CountOf
from inferload.base.json_text import Number, means
from inferload.figures.pages import metric_names as names
from inferload.figures.servers.server_entry import Histogram, MeanAndMax
from inferload.figures.servers.server_figure import row, unwanted
from inferload.figures.servers.server_formulas import Count, Energy, Gauge, HistogramMean, Rate, Ratio

_SPECULATION, _DRAFTS = "speculation", "draft tokens, tok/s"


WAITING_CAPACITY = row(
    Gauge(names.WAITING_BY_REASON, label=("reason", names.CAPACITY)),
    "waiting, capacity",
    "requests waiting for a free place in the batch or for KV blocks",
    key="waiting_capacity",
    better="lower",
)
WAITING_DEFERRED = row(
    Gauge(names.WAITING_BY_REASON, label=("reason", names.DEFERRED)),
    "waiting, deferred",
    "requests waiting for something other than capacity: LoRA adapter, grammar, KV transfer",
    key="waiting_deferred",
    better="lower",
)


class WaitingByReason(Struct, frozen=True, kw_only=True):
    """Waiting requests by the reason why they wait."""

    capacity: Annotated[MeanAndMax | None, WAITING_CAPACITY] = None
    deferred: Annotated[MeanAndMax | None, WAITING_DEFERRED] = None


DRAFTS = row(Count(names.SPEC_DRAFTS), "drafts", "steps with draft tokens")
DRAFTED_TOKENS = row(Count(names.SPEC_DRAFT_TOKENS), "drafted tokens", "draft tokens proposed", key="drafted_tokens")
ACCEPTED_TOKENS = row(Count(names.SPEC_ACCEPTED), "accepted tokens", "draft tokens accepted")
DRAFTED_RATE = row(
    Rate(names.SPEC_DRAFT_TOKENS), "drafted", "draft tokens proposed per second", live=("drafted tok/s", _DRAFTS)
)
ACCEPTED_RATE = row(
    Rate(names.SPEC_ACCEPTED),
    "accepted",
    "draft tokens accepted per second, without the regular token of each step",
    better="higher",
    live=("accepted tok/s", _DRAFTS),
)
ACCEPTANCE_RATE = row(
    Ratio(names.SPEC_ACCEPTED, names.SPEC_DRAFT_TOKENS),
    "drafts accepted",
    "accepted / drafted tokens",
    form="share",
    better="higher",
    chart=("drafts accepted, %", _SPECULATION),
)
ACCEPTANCE_LENGTH = row(
    Ratio(names.SPEC_ACCEPTED, names.SPEC_DRAFTS, plus=1.0),
    "mean acceptance length",
    "tokens per step with speculation: 1 + accepted tokens / drafts",
    better="higher",
    chart=("tokens per step", _SPECULATION),
)


class Speculation(Struct, frozen=True, kw_only=True):
    """Speculative decoding; null without drafts."""

    acceptance_by_position: Annotated[list[Number | None], means("acceptance rate of each draft position")] = []
    drafts: Annotated[CountOf | None, DRAFTS] = None
    draft_tokens: Annotated[CountOf | None, DRAFTED_TOKENS] = None
    accepted_tokens: Annotated[CountOf | None, ACCEPTED_TOKENS] = None
    drafted_tok_per_s: Annotated[Number | None, DRAFTED_RATE] = None
    accepted_tok_per_s: Annotated[Number | None, ACCEPTED_RATE] = None
    acceptance_rate: Annotated[Number | None, ACCEPTANCE_RATE] = None
    mean_acceptance_length: Annotated[Number | None, ACCEPTANCE_LENGTH] = None


TRANSFERS = row(
    Count(f"{names.TRANSFER}_count"), "KV transfers", "fetches of the KV blocks of a request from another server"
)
TRANSFER_TIME = row(HistogramMean(names.TRANSFER), "KV transfer", "time of a fetch from its start to the last block")
_POST = row(HistogramMean(names.TRANSFER_POST), "KV transfer, start", "time to start a fetch, in the transfer's")
_FETCHING = "requests that wait for the start of a fetch, for its end, or for their place after it; in the queue time"
_UNTOLD = "ends of a fetch of which the other server was not told, so that it holds the blocks until they expire"
_EXPIRED = "requests whose blocks nobody fetched in time, at the server that held them"


class Transfer(Struct, frozen=True, kw_only=True):
    """KV transfer between servers for prefill and decode."""

    count: Annotated[CountOf | None, TRANSFERS] = None
    time_ms: Annotated[Histogram | None, TRANSFER_TIME] = None
    start_ms: Annotated[Histogram | None, _POST] = None
    bytes: Annotated[
        CountOf | None,
        row(Count(f"{names.TRANSFER_BYTES}_sum"), "KV transferred", "bytes of the fetched KV blocks", unit="bytes"),
    ] = None
    fetching: Annotated[
        MeanAndMax | None, row(Gauge(names.FETCHING), "requests that fetch KV", _FETCHING, better="lower")
    ] = None
    failed: Annotated[
        CountOf | None, unwanted(names.TRANSFER_FAILURES, "KV transfers failed", "fetches that failed")
    ] = None
    notifications_failed: Annotated[
        CountOf | None, unwanted(names.TRANSFER_LOST, "KV notifications failed", _UNTOLD)
    ] = None
    expired: Annotated[CountOf | None, unwanted(names.TRANSFER_EXPIRED, "KV blocks expired", _EXPIRED)] = None
    notifications_late: Annotated[
        CountOf | None,
        unwanted(names.TRANSFER_LATE, "KV notifications late", "ends of a fetch after its blocks expired"),
    ] = None


GPU_USE = row(
    Gauge(names.GPU_USE, "highest", scale=0.01),
    "GPU use",
    f"{names.GPU_USE}: share of time in which a kernel ran on the GPU, not its load. Maximum over GPUs",
    form="share",
    live=("GPU use", "GPU, %"),
)
GPU_MEMORY = row(
    Gauge(names.GPU_MEMORY),
    "GPU memory",
    f"{names.GPU_MEMORY}, summed over GPUs",
    unit="MiB",
    chart=("used", "GPU memory, MiB"),
)
GPU_POWER = row(
    Gauge(names.GPU_POWER),
    "GPU power",
    f"{names.GPU_POWER}, summed over GPUs",
    unit="W",
    live=("GPU power, W", "GPU power, W"),
)
GPU_CLOCK = row(
    Gauge(names.GPU_SM_CLOCK, "lowest"),
    "GPU clock",
    f"{names.GPU_SM_CLOCK}, minimum over GPUs",
    unit="MHz",
    chart=("SM", "GPU clock, MHz"),
)


GPU_ENERGY = row(
    Energy(),
    "GPU energy",
    f"energy of all GPUs over the measure phase: {names.GPU_ENERGY} between its updates; of a GPU without the counter mean "
    "power x time",
    unit="J",
    better="lower",
)
GPU_COUNTED_POWER = row(
    Energy(per_s=True), "GPU power, counted", "the same / time, if all GPUs have the counter", unit="W"
)


class Gpu(Struct, frozen=True, kw_only=True):
    """Figures of a GPU exporter, over the scrapes of the measure phase."""

    gpus: Annotated[CountOf | None, means("GPUs on the page, as boards; null: none with a name")] = None
    energy_from: Annotated[
        str | None, means("`counters`, `power gauges` or `counters and power gauges`; null: not known")
    ] = None
    use: Annotated[MeanAndMax | None, GPU_USE] = None
    memory_mib: Annotated[MeanAndMax | None, GPU_MEMORY] = None
    power_w: Annotated[MeanAndMax | None, GPU_POWER] = None
    sm_clock_mhz: Annotated[MeanAndMax | None, GPU_CLOCK] = None
    energy_j: Annotated[Number | None, GPU_ENERGY] = None
    counted_power_w: Annotated[Number | None, GPU_COUNTED_POWER] = None


REQUESTS = row(Count(names.ROUTER_REQUESTS), "requests at the router", "requests that the router received, each once")
ATTEMPTS = row(
    Count(names.ROUTER_ATTEMPTS),
    "attempts of the router",
    "requests that the router sent to servers, repeated ones included; Envoy's are to all clusters, also ext_proc",
)
ROUTER_FAILED = unwanted(
    names.ROUTER_FAILED,
    "failures at the router",
    "attempts that failed, also if a repeated one did not; of llm-d: requests",
    label="failed attempts",
)
RETRIES = unwanted(
    names.ROUTER_RETRIES, "retries of the router", "attempts that repeated an earlier one", label="retries"
)
IN_FLIGHT = row(
    Gauge(names.ROUTER_IN_FLIGHT), "in flight at the router", "requests that it has sent and whose answer has not ended"
)
ROUTER_WAITING = row(
    Gauge(names.ROUTER_WAITING),
    "waiting in the router",
    "requests in the router's own queue",
    label="waiting",
    better="lower",
)
ROUTER_QUEUE = row(
    HistogramMean(names.ROUTER_QUEUE), "queue of the router", "time in the router's own queue", label="ms in its queue"
)


class Router(Struct, frozen=True, kw_only=True):
    """Figures of a router or gateway in front of servers."""

    attempts_by_server: Annotated[
        dict[str, CountOf], means("requests to each server, by the name that the router has for it")
    ] = {}
    requests: Annotated[CountOf | None, REQUESTS] = None
    attempts: Annotated[CountOf | None, ATTEMPTS] = None
    failed: Annotated[CountOf | None, ROUTER_FAILED] = None
    retries: Annotated[CountOf | None, RETRIES] = None
    in_flight: Annotated[MeanAndMax | None, IN_FLIGHT] = None
    waiting: Annotated[MeanAndMax | None, ROUTER_WAITING] = None
    queue_ms: Annotated[Histogram | None, ROUTER_QUEUE] = None
