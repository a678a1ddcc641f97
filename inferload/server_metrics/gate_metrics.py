"""Server metrics for gates: figures of the `servers` entries of summary.json, over the measure phase."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True, slots=True)
class ServerMetric:
    """Figure of a server. `statistics`: empty for a single number. `block`: key of its group, None at the top."""

    name: str
    statistics: tuple[str, ...] = ()
    block: str | None = None
    key: str = ""  # within the block

    def of(self, entry: Mapping[str, Any], statistic: str | None) -> float | None:
        """Return the figure of one server; None if not measured."""
        value: Any = entry if self.block is None else entry.get(self.block)
        for key in (self.key or self.name, *([statistic] if statistic else [])):
            value = value.get(key) if isinstance(value, Mapping) else None
        return float(value) if isinstance(value, int | float) else None

    def expected_of(self, entry: Mapping[str, Any]) -> bool:
        """Return True if the server's kind of page has the metric: GPU exporters and engines have different metrics."""
        reported = entry.get("gpu") if self.block == "gpu" else entry.get("engines")
        return bool(reported) or not entry.get("scrapes")


_GAUGE = ("mean", "max")
SERVER_METRICS = (
    ServerMetric("kv_cache_usage", _GAUGE),
    ServerMetric("requests_running", _GAUGE),
    ServerMetric("requests_waiting", _GAUGE),
    ServerMetric("prefix_cache_hit_rate"),
    ServerMetric("cached_tokens"),
    ServerMetric("preemptions"),
    ServerMetric("restarts"),
    ServerMetric("prompt_tok_per_s"),
    ServerMetric("prompt_tok_computed_per_s"),
    ServerMetric("generation_tok_per_s"),
    ServerMetric("queue_ms", ("mean",)),
    ServerMetric("prefill_ms", ("mean",)),
    ServerMetric("decode_ms", ("mean",)),
    ServerMetric("process_cpu_share"),
    ServerMetric("acceptance_rate", block="spec_decode"),
    ServerMetric("mean_acceptance_length", block="spec_decode"),
    ServerMetric("gpu_use", _GAUGE, "gpu", "use"),
    ServerMetric("gpu_power_w", _GAUGE, "gpu", "power_w"),
    ServerMetric("gpu_sm_clock_mhz", _GAUGE, "gpu", "sm_clock_mhz"),
)
BY_NAME = MappingProxyType({metric.name: metric for metric in SERVER_METRICS})


def values(name: str, statistic: str | None, servers: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """Return the figure of each server that should report it, by target; None if not measured."""
    metric = BY_NAME[name]
    return {str(entry.get("target")): metric.of(entry, statistic) for entry in servers if metric.expected_of(entry)}
