"""Figures of the tiers of a KV cache: memory of the engine, memory of the host, disks, other servers."""

from typing import Annotated

from msgspec import Struct

from inferload.base.json_text import Count as CountOf
from inferload.base.json_text import Number, means
from inferload.figures.pages import metric_names as names
from inferload.figures.servers.server_entry import MeanAndMax
from inferload.figures.servers.server_figure import ServerFigure, row, unwanted
from inferload.figures.servers.server_formulas import MS_PER_S, Count, Gauge, HitShare, Ratio

_GB = 1e-9
_SUMMED = "summed over operations: the speed of one"


def _share(source: str, name: str, where: str) -> ServerFigure:
    text = f"prompt tokens whose KV came from {where} / prompt tokens looked up at admission"
    formula = HitShare(names.CACHED_BY_SOURCE, label=("source", source))
    return row(formula, f"hit share: {name}", text, form="share", better="higher")


def _gb(metric: str, title: str, text: str) -> ServerFigure:
    text = f"KV moved {text}; of all ranks of a parallel group, of SGLang of one"
    return row(Count(metric, scale=_GB), title, text, form="number", unit="GB")


def _speed(moved: str, seconds: str, title: str, text: str) -> ServerFigure:
    return row(Ratio(moved, seconds, scale=_GB), title, f"{text}, {_SUMMED}", unit="GB/s", better="higher")


_LOAD_MS = row(
    Ratio(names.LOAD_SECONDS, names.LOADS, scale=MS_PER_S),
    "time of a load",
    "seconds of loads / number of loads; a request can have several",
    unit="ms",
    better="lower",
)
LOAD_OF_REQUEST = Ratio(names.LOAD_SECONDS, names.FINISHED, scale=MS_PER_S)
_USAGE = row(
    Gauge(names.HOST_USAGE, "highest"),
    "host cache usage",
    "share of the cache in host memory that is in use. Maximum over engines",
    form="share",
)
_FAILURES = unwanted(
    names.OFFLOAD_FAILURES, "failures of offloading", "allocations and transfers between tiers that failed"
)


class Tiers(Struct, frozen=True, kw_only=True):
    """Tiers of the KV cache ([cache](../background/cache.md#tiers)); null if only the engine's memory is used."""

    hits: Annotated[dict[str, CountOf], means("prompt tokens from each source that had hits")] = {}
    device_hit_share: Annotated[Number | None, _share(names.DEVICE, "device", "the memory of the engine")] = None
    host_hit_share: Annotated[Number | None, _share(names.HOST, "host", "the memory of the host")] = None
    disk_hit_share: Annotated[Number | None, _share(names.DISK, "disk", "a disk")] = None
    p2p_hit_share: Annotated[Number | None, _share(names.PEER, "peers", "another server")] = None
    external_hit_share: Annotated[
        Number | None, _share(names.OTHER, "other tiers", "a tier that the server does not name, or its storage")
    ] = None
    loaded_gb: Annotated[Number | None, _gb(names.LOAD_BYTES, "loaded KV", "into the memory of the engine")] = None
    load_gb_per_s: Annotated[
        Number | None, _speed(names.LOAD_BYTES, names.LOAD_SECONDS, "speed of loads", "loaded GB / seconds of loads")
    ] = None
    load_ms: Annotated[Number | None, _LOAD_MS] = None
    stored_gb: Annotated[Number | None, _gb(names.STORE_BYTES, "stored KV", "out of the memory of the engine")] = None
    store_gb_per_s: Annotated[
        Number | None,
        _speed(names.STORE_BYTES, names.STORE_SECONDS, "speed of stores", "stored GB / seconds of stores"),
    ] = None
    tier_read_gb: Annotated[
        Number | None, _gb(names.READ_BYTES, "read from lower tiers", "to the host from the tiers beyond it")
    ] = None
    tier_read_gb_per_s: Annotated[
        Number | None,
        _speed(names.READ_BYTES, names.READ_SECONDS, "speed of lower-tier reads", "read GB / seconds of reads"),
    ] = None
    tier_written_gb: Annotated[
        Number | None, _gb(names.WRITTEN_BYTES, "written to lower tiers", "from the host to the tiers beyond it")
    ] = None
    host_cache_usage: Annotated[MeanAndMax | None, _USAGE] = None
    offload_failures: Annotated[CountOf | None, _FAILURES] = None
