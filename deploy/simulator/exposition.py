"""Prometheus text (version 0.0.4) of the simulator's metrics. Pure: values in, text out."""

from collections.abc import Iterable
from dataclasses import dataclass

from .lateness import Lateness
from .metrics import Gauges, Histogram, Metrics

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Process:
    """The server's own process as prometheus clients report it."""

    cpu_s: float
    resident_bytes: int
    virtual_bytes: int
    start_wall_s: float
    open_fds: int
    max_fds: int


@dataclass(frozen=True, slots=True)
class CacheInfo:
    """What vLLM says of its KV cache in an info metric."""

    block_size: int
    num_gpu_blocks: int
    prefix_caching: bool


def label(text: str) -> str:
    """A label value with what must be escaped."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def number(value: float) -> str:
    """A value as Prometheus reads it."""
    return repr(float(value))


def render(
    metrics: Metrics,
    gauges: Gauges,
    lateness: Lateness,
    *,
    process: Process,
    cache: CacheInfo,
    model: str,
    created_s: float,
) -> str:
    """The whole page. `created_s` is the wall time since when the counters count."""
    base = f'engine="0",model_name="{label(model)}"'
    lines: list[str] = []
    lines += _gauges(gauges, base)
    for name, text, rows in metrics.counters(gauges):
        full = f"vllm:{name}"
        lines += _header(f"{full}_total", text, "counter")
        lines += [f"{full}_total{{{_join(base, more)}}} {number(value)}" for more, value in rows]
        lines += _created(full, [_join(base, more) for more, _value in rows], created_s)
    for name, text, histogram in metrics.histograms():
        lines += _histogram(f"vllm:{name}", text, histogram, base)
        lines += _created(f"vllm:{name}", [base], created_s)
    lines += _cache_info(cache)
    lines += _histogram("inferload_simulator_lateness_seconds", "Write time less due time.", lateness.histogram(), base)
    lines += _process(process)
    return "\n".join(lines) + "\n"


def _join(base: str, more: str) -> str:
    return f"{base},{more}" if more else base


def _header(name: str, text: str, kind: str) -> list[str]:
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]


def _created(name: str, labels: Iterable[str], created_s: float) -> list[str]:
    lines = _header(f"{name}_created", "Since when it counts, wall time.", "gauge")
    return lines + [f"{name}_created{{{each}}} {number(created_s)}" for each in labels]


def _gauges(gauges: Gauges, base: str) -> list[str]:
    rows = [
        ("num_requests_running", "Requests that hold a slot.", [("", float(gauges.running))]),
        ("num_requests_waiting", "Requests in the queue.", [("", float(gauges.waiting))]),
        (
            "num_requests_waiting_by_reason",
            "Requests in the queue by reason.",
            [('reason="capacity"', float(gauges.waiting)), ('reason="deferred"', 0.0)],
        ),
        ("kv_cache_usage_perc", "Share of the KV blocks that is referenced; 1 is all.", [("", gauges.kv_cache_usage)]),
        (
            "engine_sleep_state",
            "Always awake.",
            [
                ('sleep_state="awake"', 1.0),
                ('sleep_state="weights_offloaded"', 0.0),
                ('sleep_state="discard_all"', 0.0),
            ],
        ),
    ]
    lines: list[str] = []
    for name, text, values in rows:
        lines += _header(f"vllm:{name}", text, "gauge")
        lines += [f"vllm:{name}{{{_join(base, more)}}} {number(value)}" for more, value in values]
    return lines


def _histogram(name: str, text: str, histogram: Histogram, base: str) -> list[str]:
    lines = _header(name, text, "histogram")
    total = 0
    for bound, count in zip((*map(number, histogram.bounds), "+Inf"), histogram.counts, strict=True):
        total += count
        lines.append(f'{name}_bucket{{{base},le="{bound}"}} {number(total)}')
    return [*lines, f"{name}_count{{{base}}} {number(total)}", f"{name}_sum{{{base}}} {number(histogram.sum)}"]


def _cache_info(cache: CacheInfo) -> list[str]:
    labels = (
        f'block_size="{cache.block_size}",enable_prefix_caching="{cache.prefix_caching}",engine="0",'
        f'kv_cache_size_tokens="{cache.num_gpu_blocks * cache.block_size}",num_gpu_blocks="{cache.num_gpu_blocks}"'
    )
    return [*_header("vllm:cache_config_info", "The KV cache.", "gauge"), f"vllm:cache_config_info{{{labels}}} 1.0"]


def _process(process: Process) -> list[str]:
    rows = (
        ("process_virtual_memory_bytes", "gauge", process.virtual_bytes),
        ("process_resident_memory_bytes", "gauge", process.resident_bytes),
        ("process_start_time_seconds", "gauge", process.start_wall_s),
        ("process_cpu_seconds_total", "counter", process.cpu_s),
        ("process_open_fds", "gauge", process.open_fds),
        ("process_max_fds", "gauge", process.max_fds),
    )
    lines: list[str] = []
    for name, kind, value in rows:
        lines += [*_header(name, "Of the server's process.", kind), f"{name} {number(value)}"]
    return lines
