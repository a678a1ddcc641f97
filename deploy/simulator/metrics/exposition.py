"""Prometheus text (version 0.0.4) of the simulator's metrics. Pure: values in, text out."""

from collections.abc import Iterable, Mapping
from functools import cache

from inferload.servers.text_format import header, number, pairs

from .engine_metrics import Gauges, Histogram, Metrics, gauge_rows
from .lateness import Lateness

_Labels = tuple[tuple[str, str], ...]


def render(
    metrics: Metrics,
    gauges: Gauges,
    lateness: Lateness,
    *,
    cache: Mapping[str, object],
    model: str,
    cpu_s: float,
    started_wall_s: float,
) -> str:
    """Render all metrics. `cache`: labels of its info metric; `started_wall_s`: start of counting."""
    base = {"engine": "0", "model_name": model}
    page = _MetricsPage()
    page.rows("process_start_time_seconds", "gauge", "Start of the server.", [({}, started_wall_s)])
    page.rows("process_cpu_seconds_total", "counter", "CPU time of the server.", [({}, cpu_s)])
    for suffix, kind, all_rows in (("", "gauge", gauge_rows(gauges)), ("_total", "counter", metrics.counters(gauges))):
        for name, text, rows in all_rows:
            page.rows(f"vllm:{name}{suffix}", kind, text, [({**base, **more}, value) for more, value in rows])
    refused = [({"model_name": model, "reason": reason}, float(count)) for reason, count in metrics.rejections.items()]
    page.rows("vllm:admission_rejections_total", "counter", "Requests refused because the queue was full.", refused)
    for name, text, histogram in metrics.histograms():
        page.histogram(f"vllm:{name}", text, histogram, base)
    page.rows(
        "vllm:cache_config_info", "gauge", "The KV cache.", [({name: str(value) for name, value in cache.items()}, 1.0)]
    )
    late = lateness.histogram()
    page.histogram("inferload_simulator_lateness_seconds", "Write time minus due time.", late, base)
    return "\n".join(page.lines) + "\n"


class _MetricsPage:
    """Lines of the exposition."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def rows(self, name: str, kind: str, text: str, rows: Iterable[tuple[Mapping[str, str], float]]) -> None:
        self.lines += header(name, kind, text)
        self.lines += [f"{name}{_braces(tuple(labels.items()))} {number(value)}" for labels, value in rows]

    def histogram(self, name: str, text: str, histogram: Histogram, base: Mapping[str, str]) -> None:
        self.rows(name, "histogram", text, ())
        labels, total = tuple(base.items()), 0
        for series, count in zip(_buckets(name, histogram.bounds, labels), histogram.counts, strict=True):
            total += count
            self.lines.append(f"{series} {number(total)}")
        self.lines.append(f"{name}_count{_braces(labels)} {number(total)}")
        self.lines.append(f"{name}_sum{_braces(labels)} {number(histogram.sum)}")


# Cached, since a page has hundreds of series that do not change.
@cache
def _buckets(name: str, bounds: tuple[float, ...], labels: _Labels) -> tuple[str, ...]:
    """Series of the buckets."""
    texts = (*map(number, bounds), "+Inf")
    return tuple(f"{name}_bucket{_braces((*labels, ('le', text)))}" for text in texts)


@cache
def _braces(labels: _Labels) -> str:
    """Labels in braces, sorted by name; empty without labels."""
    return f"{{{pairs(dict(sorted(labels)))}}}" if labels else ""
