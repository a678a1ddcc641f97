"""Grafana dashboard of a run: figures of inferload's exporter, of vLLM and of NVIDIA's GPU exporter on one time axis."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from inferload.figures.pages import metric_names as vllm
from inferload.figures.turn_figures import E2E, HEADLINES, ITL, TTFT, TurnFigure

DATASOURCE = "prometheus"
_COLUMNS, _WIDTH, _HEIGHT = 3, 8, 8
_RUN = '{run="$run"}'
_OF_SERVERS = {TTFT: vllm.TTFT, ITL: vllm.ITL, E2E: vllm.E2E}

_SOURCE = {"type": "prometheus", "uid": DATASOURCE}
_OPTIONS: Mapping[str, Any] = {
    "stat": {"textMode": "name", "reduceOptions": {"calcs": ["lastNotNull"]}},
    "timeseries": {"tooltip": {"mode": "multi"}},
}

Target = tuple[str, str]  # expression and legend
Panel = tuple[str, str, Sequence[Target]]  # title, unit, targets


def document(gpus: bool = False) -> dict[str, Any]:
    """Return the dashboard in Grafana's JSON model. `gpus`: with panels of a GPU exporter."""
    state = [(f"inferload_{name}{_RUN} == 1", f"{{{{{label}}}}}") for name, label in _STATES]
    every = [*_panels(), *_speculation_panels(), *_last_panels(), *(_gpu_panels() if gpus else ())]
    return {
        "uid": "inferload",
        "title": "inferload",
        "schemaVersion": 39,
        "refresh": "5s",
        "time": {"from": "now-15m", "to": "now"},
        "timezone": "utc",
        "templating": {"list": [_run_variable()]},
        "panels": [
            _panel(0, "Run", "short", state, "stat"),
            *(_panel(number, *panel) for number, panel in enumerate(every, 1)),
        ],
    }


def _panels() -> Iterable[Panel]:
    rates = [(f"inferload_{name}_sessions_per_second{_RUN}", f"{name} sessions/s") for name in ("offered", "achieved")]
    yield "Load", "short", [*rates, (f"inferload_users{_RUN}", "users")]
    in_flight = (f"inferload_turns_in_flight{_RUN}", "client: in flight")
    server = [(f"sum({name})", f"server: {text}") for name, text in _REQUESTS]
    yield "Requests", "short", [in_flight, *server]
    for figure in HEADLINES:
        yield figure.title, "s", _quantiles(figure)
    for kind, of_server in (("output", vllm.GENERATION_TOKENS), ("prompt", vllm.PROMPT_TOKENS)):
        client = (_rate(f"inferload_{kind}_tokens_total{_RUN}"), "client")
        yield f"{kind.capitalize()} tokens/s", "short", [client, (_rate(of_server), "server")]
    turns = (_rate(f"inferload_turns_total{_RUN}", "state"), "client: {{state}}")
    finished = (_rate(vllm.FINISHED, "finished_reason"), "server: {{finished_reason}}")
    yield "Turns/s", "short", [turns, finished]
    yield "KV cache usage", "percentunit", [(f"max({vllm.KV_CACHE_USAGE})", "server: fullest engine")]
    cached = f"{_rate(f'inferload_cached_prompt_tokens_total{_RUN}')} / {_rate(f'inferload_prompt_tokens_total{_RUN}')}"
    hits = (f"{_rate(vllm.PREFIX_HITS)} / {_rate(vllm.PREFIX_QUERIES)}", "server: hits / queries")
    yield "Prefix-cache hit rate", "percentunit", [(cached, "client: cached / prompt tokens"), hits]
    yield "Preemptions/s", "short", [(_rate(vllm.PREEMPTIONS), "server")]


def _speculation_panels() -> Iterable[Panel]:
    """Yield the panels of speculative decoding, empty of a server without it."""
    drafts, drafted, accepted = map(_rate, (vllm.SPEC_DRAFTS, vllm.SPEC_DRAFT_TOKENS, vllm.SPEC_ACCEPTED))
    by_position = f"{_rate(vllm.SPEC_ACCEPTED_PER_POS, 'position')} / on() group_left () {drafts}"
    yield "Draft acceptance rate", "percentunit", [(f"{accepted} / {drafted}", "accepted / drafted")]
    yield "Draft tokens/s", "short", [(drafted, "drafted"), (accepted, "accepted")]
    yield "Mean acceptance length", "short", [(f"1 + {accepted} / {drafts}", "tokens per step")]
    yield "Accepted by position", "percentunit", [(by_position, "position {{position}}")]


def _last_panels() -> Iterable[Panel]:
    yield "Failures/s", "short", [(f"{_rate(f'inferload_failures_total{_RUN}', 'failure')} > 0", "{{failure}}")]
    yield "Dropped sessions/s", "short", [(_rate(f"inferload_sessions_dropped_total{_RUN}"), "dropped")]
    buckets = [(f"inferload_{name}_seconds_bucket{_RUN}", text) for name, text in _CLIENT]
    yield "Client p99", "s", [(_quantile(0.99, series), text) for series, text in buckets]


def _gpu_panels() -> Iterable[Panel]:
    """Yield a panel for each metric of the GPUs. A GPU may have several series, one for each label of its users."""
    for metric, title, unit, factor in _GPU:
        yield title, unit, [(f"max by (Hostname, gpu) ({metric}){factor}", "{{Hostname}} GPU {{gpu}}")]


_GPU = (  # metric, title, Grafana's unit, factor to it
    (vllm.GPU_USE, "GPU utilisation", "percent", ""),
    (vllm.GPU_MEMORY, "GPU memory", "mbytes", ""),  # MiB
    (vllm.GPU_POWER, "GPU power", "watt", ""),
    (vllm.GPU_SM_CLOCK, "GPU SM clock", "hertz", " * 1e6"),
)
_STATES = (("run_phase", "phase"), ("verdict", "verdict"), ("outcome", "outcome"))
_REQUESTS = ((vllm.RUNNING, "running"), (vllm.WAITING, "waiting"))
_CLIENT = (("client_delay", "read delay"), ("loop_lag", "event loop lag"))


def _rate(series: str, by: str = "") -> str:
    return f"sum{f' by ({by})' if by else ''} (rate({series}[$__rate_interval]))"


def _quantile(q: float, buckets: str) -> str:
    return f"histogram_quantile({q:g}, {_rate(buckets, 'le')})"


def _quantiles(figure: TurnFigure) -> list[Target]:
    """Return median and tail of a measure, and of the server's histogram of it if there is one."""
    histograms = [("client", f"{figure.exported}_bucket{_RUN}")]
    if figure in _OF_SERVERS:
        histograms.append(("server", f"{_OF_SERVERS[figure]}_bucket"))
    percentiles = (("p50", 0.5), (figure.tail, int(figure.tail[1:]) / 100))
    return [(_quantile(q, buckets), f"{side} {name}") for side, buckets in histograms for name, q in percentiles]


def _panel(number: int, title: str, unit: str, targets: Sequence[Target], kind: str = "timeseries") -> dict[str, Any]:
    row, column = divmod(number, _COLUMNS)
    return {
        "id": number + 1,
        "title": title,
        "type": kind,
        "datasource": _SOURCE,
        "gridPos": {"x": column * _WIDTH, "y": row * _HEIGHT, "w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + at), "expr": expression, "legendFormat": legend, "datasource": _SOURCE}
            for at, (expression, legend) in enumerate(targets)
        ],
        "options": _OPTIONS[kind],
    }


def _run_variable() -> dict[str, Any]:
    """Return the variable for the run, of which the newest is the default: run IDs begin with the time."""
    query = "label_values(inferload_run_info, run)"
    variable = {"name": "run", "type": "query", "query": query, "definition": query, "datasource": _SOURCE}
    return {**variable, "refresh": 2, "sort": 2}  # refresh with the time range, descending
