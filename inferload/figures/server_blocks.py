"""Blocks of an entry of `servers` in summary.json, with a field for each figure: waiting requests, speculation, GPUs, routers."""

from typing import Annotated, Any

from msgspec import Meta, Struct

from inferload.base.json_text import Count as CountOf
from inferload.base.json_text import Number
from inferload.figures import metric_names as names
from inferload.figures.figure import Form
from inferload.figures.server_entry import Histogram, MeanAndMax
from inferload.figures.server_figure import ServerFigure
from inferload.figures.server_formulas import Count, Formula, Gauge, HistogramMean, Rate, Ratio, Reading

_SPECULATION, _DRAFTS = "speculation", "draft tokens, tok/s"


class WaitingByReason(Struct, frozen=True, kw_only=True):
    """Waiting requests by the reason why they wait."""

    capacity: Annotated[
        MeanAndMax | None,
        ServerFigure(
            key="waiting_capacity",
            title="waiting, capacity",
            text="requests waiting for a free place in the batch or for KV blocks",
            better="lower",
            formula=Gauge(Reading(names.WAITING_BY_REASON, label=("reason", names.CAPACITY))),
        ),
    ] = None
    deferred: Annotated[
        MeanAndMax | None,
        ServerFigure(
            key="waiting_deferred",
            title="waiting, deferred",
            text="requests waiting for something other than capacity: LoRA adapter, grammar, KV transfer",
            better="lower",
            formula=Gauge(Reading(names.WAITING_BY_REASON, label=("reason", names.DEFERRED))),
        ),
    ] = None


class Speculation(Struct, frozen=True, kw_only=True):
    """Speculative decoding; null without drafts."""

    acceptance_by_position: Annotated[
        list[Number | None], Meta(description="acceptance rate of each draft position")
    ] = []
    drafts: Annotated[
        CountOf | None,
        ServerFigure(
            title="drafts",
            form="count",
            text="steps with draft tokens",
            formula=Count(Reading(names.SPEC_DRAFTS)),
        ),
    ] = None
    draft_tokens: Annotated[
        CountOf | None,
        ServerFigure(
            key="drafted_tokens",
            title="drafted tokens",
            form="count",
            text="draft tokens proposed",
            formula=Count(Reading(names.SPEC_DRAFT_TOKENS)),
        ),
    ] = None
    accepted_tokens: Annotated[
        CountOf | None,
        ServerFigure(
            title="accepted tokens",
            form="count",
            text="draft tokens accepted",
            formula=Count(Reading(names.SPEC_ACCEPTED)),
        ),
    ] = None
    drafted_tok_per_s: Annotated[
        Number | None,
        ServerFigure(
            title="drafted",
            unit="tok/s",
            label="drafted tok/s",
            text="draft tokens proposed per second",
            formula=Rate(Reading(names.SPEC_DRAFT_TOKENS)),
            headline=True,
            panel=_DRAFTS,
        ),
    ] = None
    accepted_tok_per_s: Annotated[
        Number | None,
        ServerFigure(
            title="accepted",
            unit="tok/s",
            label="accepted tok/s",
            text="draft tokens accepted per second, without the regular token of each step",
            better="higher",
            formula=Rate(Reading(names.SPEC_ACCEPTED)),
            headline=True,
            panel=_DRAFTS,
        ),
    ] = None
    acceptance_rate: Annotated[
        Number | None,
        ServerFigure(
            title="drafts accepted",
            form="share",
            label="drafts accepted, %",
            text="accepted / drafted tokens",
            better="higher",
            formula=Ratio(Reading(names.SPEC_ACCEPTED), Reading(names.SPEC_DRAFT_TOKENS)),
            panel=_SPECULATION,
        ),
    ] = None
    mean_acceptance_length: Annotated[
        Number | None,
        ServerFigure(
            title="mean acceptance length",
            label="tokens per step",
            text="tokens per step with speculation: 1 + accepted tokens / drafts",
            better="higher",
            formula=Ratio(Reading(names.SPEC_ACCEPTED), Reading(names.SPEC_DRAFTS), plus=1.0),
            panel=_SPECULATION,
        ),
    ] = None


class Gpu(Struct, frozen=True, kw_only=True):
    """Figures of a GPU exporter, over the scrapes of the measure phase."""

    use: Annotated[
        MeanAndMax | None,
        ServerFigure(
            key="gpu_use",
            title="GPU use",
            form="share",
            label="GPU use",
            text="DCGM_FI_DEV_GPU_UTIL: share of time in which a kernel ran on the GPU, not its load. Maximum over GPUs",
            formula=Gauge(Reading(names.GPU_USE, "highest"), scale=0.01),
            layer="system",
            headline=True,
            panel="GPU, %",
        ),
    ] = None
    memory_mib: Annotated[
        MeanAndMax | None,
        ServerFigure(
            key="gpu_memory_mib",
            title="GPU memory",
            unit="MiB",
            label="used",
            text="DCGM_FI_DEV_FB_USED, summed over GPUs",
            formula=Gauge(Reading(names.GPU_MEMORY)),
            layer="system",
            panel="GPU memory, MiB",
        ),
    ] = None
    power_w: Annotated[
        MeanAndMax | None,
        ServerFigure(
            key="gpu_power_w",
            title="GPU power",
            unit="W",
            label="GPU power, W",
            text="DCGM_FI_DEV_POWER_USAGE, summed over GPUs",
            formula=Gauge(Reading(names.GPU_POWER)),
            layer="system",
            headline=True,
            panel="GPU power, W",
        ),
    ] = None
    sm_clock_mhz: Annotated[
        MeanAndMax | None,
        ServerFigure(
            key="gpu_sm_clock_mhz",
            title="GPU clock",
            unit="MHz",
            label="SM",
            text="DCGM_FI_DEV_SM_CLOCK, minimum over GPUs",
            formula=Gauge(Reading(names.GPU_SM_CLOCK, "lowest")),
            layer="system",
            panel="GPU clock, MHz",
        ),
    ] = None


def _row(key: str, title: str, text: str, formula: Formula, **more: Any) -> ServerFigure:
    """Return a row of a router's figures. Its label is the key, unless `more` has another."""
    form: Form = "count" if isinstance(formula, Count) else "number"
    more = {"label": key.replace("_", " "), "form": form} | more
    return ServerFigure(key=f"router_{key}", title=title, text=text, formula=formula, **more)


# fmt: off
_REQUESTS = _row("requests", "requests at the router", "requests that the router received, each once",
                 Count(Reading(names.ROUTER_REQUESTS)))
_ATTEMPTS = _row("attempts", "attempts of the router", "requests that the router sent to servers, repeated ones included; of "
                 "Envoy to all clusters, such as ext_proc, which gets each request once more",
                 Count(Reading(names.ROUTER_ATTEMPTS)))
_FAILED = _row("failed", "failures at the router", "attempts, of llm-d requests, that failed, also if a repeated one did not",
               Count(Reading(names.ROUTER_FAILED)), label="failed attempts", better="lower")
_RETRIES = _row("retries", "retries of the router", "attempts that repeated an earlier one",
                Count(Reading(names.ROUTER_RETRIES)), better="lower")
_IN_FLIGHT = _row("in_flight", "in flight at the router", "requests that the router has sent and whose answer has not ended",
                  Gauge(Reading(names.ROUTER_IN_FLIGHT)))
_WAITING = _row("waiting", "waiting in the router", "requests in the router's own queue",
                Gauge(Reading(names.ROUTER_WAITING)), better="lower")
_QUEUE = _row("queue_ms", "queue of the router", "time in the router's own queue",
              HistogramMean(names.ROUTER_QUEUE), label="ms in its queue", better="lower", unit="ms")
# fmt: on


class Router(Struct, frozen=True, kw_only=True):
    """Figures of a router or gateway in front of servers."""

    attempts_by_server: Annotated[
        dict[str, CountOf], Meta(description="requests to each server, by the name that the router has for it")
    ] = {}
    requests: Annotated[CountOf | None, _REQUESTS] = None
    attempts: Annotated[CountOf | None, _ATTEMPTS] = None
    failed: Annotated[CountOf | None, _FAILED] = None
    retries: Annotated[CountOf | None, _RETRIES] = None
    in_flight: Annotated[MeanAndMax | None, _IN_FLIGHT] = None
    waiting: Annotated[MeanAndMax | None, _WAITING] = None
    queue_ms: Annotated[Histogram | None, _QUEUE] = None
