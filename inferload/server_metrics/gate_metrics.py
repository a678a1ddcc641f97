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
        """Return the figure of one server; None if not measured, or if it is of a part of the window only."""
        if too_long_gap_s(entry) is not None and self._over_scrapes(entry):
            return None
        value: Any = entry if self.block is None else entry.get(self.block)
        for key in (self.key or self.name, *([statistic] if statistic else [])):
            value = value.get(key) if isinstance(value, Mapping) else None
        return float(value) if isinstance(value, int | float) else None

    def _over_scrapes(self, entry: Mapping[str, Any]) -> bool:
        """Return True if the figure is a mean or maximum over the scrapes. Counters need the scrapes at the ends only."""
        return self.statistics == _GAUGE or (
            self.name == "prefix_cache_hit_rate" and entry.get("prefix_cache_hit_rate_from") == "gauge"
        )

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


def too_long_gap_s(entry: Mapping[str, Any]) -> float | None:
    """Return the longest time without a scrape of a server if it exceeds the limit, else None."""
    gap_s, limit_s = entry.get("longest_gap_s"), entry.get("gap_limit_s")
    return gap_s if gap_s is not None and limit_s is not None and gap_s > limit_s else None


def values(name: str, statistic: str | None, servers: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """Return the figure of each server that should report it, by target; None if not measured."""
    metric = BY_NAME[name]
    return {str(entry.get("target")): metric.of(entry, statistic) for entry in servers if metric.expected_of(entry)}
