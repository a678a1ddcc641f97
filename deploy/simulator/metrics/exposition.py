"""Prometheus text (version 0.0.4) of the simulator's metrics. Pure: values in, text out."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from inferload.server_metrics.text_format import header, number, pairs

from ..protocol.model import Model
from .engine_metrics import Gauges, Histogram, Metrics
from .lateness import Lateness
from .process import ProcessStats


@dataclass(frozen=True, slots=True)
class CacheInfo:
    """Labels of vLLM's info metric of the KV cache."""

    block_size: int
    num_gpu_blocks: int
    prefix_caching: bool
    gpu_memory_utilization: float = 0.92
    cache_dtype: str = "auto"
    user_specified_block_size: bool = False
    max_model_len: int = 0  # 0: unknown


def render(
    metrics: Metrics,
    gauges: Gauges,
    lateness: Lateness,
    *,
    process: ProcessStats,
    cache: CacheInfo,
    model: Model,
    python_text: str,
    http_text: str,
) -> str:
    """Render all metrics in vLLM's order. The process starts again at each reset."""
    base = {"engine": "0", "model_name": model.name}
    page = _MetricsPage(process.start_wall_s)
    page.lines += python_text.splitlines()
    page.lines += _process(process)
    _gauges(page, gauges, base)
    for name, text, rows in metrics.counters(gauges):
        page.counter(f"vllm:{name}", text, [({**base, **more}, value) for more, value in rows])
    refused = [
        ({"model_name": model.name, "reason": reason}, float(count)) for reason, count in metrics.rejections.items()
    ]
    page.counter("vllm:admission_rejections", "Requests refused because the queue was full.", refused)
    for name, text, histogram in metrics.histograms():
        page.histogram(f"vllm:{name}", text, histogram, base)
        page.created(f"vllm:{name}", [base])
    page.gauge("vllm:cache_config_info", "The KV cache.", [(_cache_labels(cache), 1.0)])
    page.lines += http_text.splitlines()
    if model.tool_parser:
        page.counter("vllm:tool_call_parser_invocations", "Not counted: always zero.", _tool_call_rows(model.name))
    late = lateness.histogram()
    page.histogram("inferload_simulator_lateness_seconds", "Write time minus due time.", late, base)
    return "\n".join(page.lines) + "\n"


class _MetricsPage:
    """Lines of the exposition. Labels are sorted by name."""

    def __init__(self, created_s: float) -> None:
        self._created_s = created_s
        self.lines: list[str] = []

    def gauge(self, name: str, text: str, rows: Iterable[tuple[Mapping[str, str], float]]) -> None:
        self.lines += header(name, "gauge", text)
        self.lines += [f"{name}{_labels(labels)} {number(value)}" for labels, value in rows]

    def counter(self, name: str, text: str, rows: list[tuple[dict[str, str], float]]) -> None:
        self.lines += header(f"{name}_total", "counter", text)
        self.lines += [f"{name}_total{_labels(labels)} {number(value)}" for labels, value in rows]
        self.created(name, [labels for labels, _value in rows])

    def created(self, name: str, labels: Iterable[Mapping[str, str]]) -> None:
        self.gauge(
            f"{name}_created",
            "Wall time of the start of counting.",
            [(labelset, self._created_s) for labelset in labels],
        )

    def histogram(self, name: str, text: str, histogram: Histogram, base: Mapping[str, str]) -> None:
        self.lines += header(name, "histogram", text)
        total = 0
        for bound, count in zip((*map(number, histogram.bounds), "+Inf"), histogram.counts, strict=True):
            total += count
            self.lines.append(f"{name}_bucket{_labels({**base, 'le': bound})} {number(total)}")
        self.lines.append(f"{name}_count{_labels(base)} {number(total)}")
        self.lines.append(f"{name}_sum{_labels(base)} {number(histogram.sum)}")


def _labels(labels: Mapping[str, str]) -> str:
    return "{" + pairs(dict(sorted(labels.items()))) + "}"


def _gauges(page: _MetricsPage, gauges: Gauges, base: Mapping[str, str]) -> None:
    waiting = float(gauges.waiting)
    reasons = {"capacity": waiting, "deferred": 0.0}
    states = {"awake": 1.0, "weights_offloaded": 0.0, "discard_all": 0.0}
    page.gauge("vllm:num_requests_running", "Running requests.", [(base, float(gauges.running))])
    page.gauge("vllm:num_requests_waiting", "Waiting requests.", [(base, waiting)])
    page.gauge(
        "vllm:num_requests_waiting_by_reason",
        "Waiting requests by reason.",
        [({**base, "reason": reason}, value) for reason, value in reasons.items()],
    )
    page.gauge(
        "vllm:engine_sleep_state",
        "Always awake.",
        [({**base, "sleep_state": state}, value) for state, value in states.items()],
    )
    usage = [(base, gauges.kv_cache_usage)]
    page.gauge("vllm:kv_cache_usage_perc", "Share of referenced KV blocks, 0 to 1.", usage)


def _tool_call_rows(model: str) -> list[tuple[dict[str, str], float]]:
    rows = []
    for mode in ("streaming", "non_streaming"):
        for outcome in ("tool_call", "no_tool_call"):
            for kind in ("chat_completions", "responses", "other"):
                labels = {"mode": mode, "model_name": model, "outcome": outcome, "request_type": kind}
                rows.append((labels, 0.0))
    return rows


def _cache_labels(cache: CacheInfo) -> dict[str, str]:
    """Labels of vLLM 0.32, with vLLM's defaults for features that are not modelled."""
    size = cache.num_gpu_blocks * cache.block_size
    known: dict[str, object] = {
        **{"block_size": cache.block_size, "effective_attention_block_size": cache.block_size},
        **{"enable_prefix_caching": cache.prefix_caching, "num_gpu_blocks": cache.num_gpu_blocks},
        **{"gpu_memory_utilization": cache.gpu_memory_utilization, "cache_dtype": cache.cache_dtype},
        **{"kv_cache_size_tokens": size, "user_specified_block_size": cache.user_specified_block_size},
        "kv_cache_max_concurrency": size / cache.max_model_len if cache.max_model_len else None,
    }
    return {"engine": "0", **_CACHE_DEFAULTS, **{name: str(value) for name, value in known.items()}}


_CACHE_DEFAULTS: Mapping[str, str] = {
    **dict.fromkeys(("_block_size_resolved", "swa_bounded_replay"), "True"),
    **dict.fromkeys(
        (
            *("enable_mamba_shared_prefix_checkpoint", "is_attention_free", "kv_sharing_fast_prefill"),
            *("use_kda_recoverssm", "use_replayssm"),
        ),
        "False",
    ),
    **dict.fromkeys(
        (
            *("cache_hit_alignment_tokens", "hash_block_size", "kv_cache_layout", "kv_cache_memory_bytes"),
            *("kv_offloading_size", "mamba_block_size", "mamba_page_size_padded", "num_cpu_blocks"),
            *("num_gpu_blocks_override", "prefix_match_unit", "skip_page_size_padded", "sliding_window"),
        ),
        "None",
    ),
    **{"kv_cache_dtype_skip_layers": "[]", "kv_offloading_backend": "native", "mamba_cache_dtype": "auto"},
    **{"mamba_cache_mode": "none", "mamba_ssm_cache_dtype": "float32", "prefix_caching_hash_algo": "sha256"},
    **{"prefix_cache_retention_interval": "0", "replayssm_buffer_len": "16"},
}


def _process(process: ProcessStats) -> list[str]:
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
        lines += [*header(name, kind, "Server process."), f"{name} {number(value)}"]
    return lines
