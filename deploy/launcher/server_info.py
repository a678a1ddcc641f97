"""Properties of a running server: version, resolved configuration, memory."""

import contextlib
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import psutil

from inferload.base.errors import UsageError
from inferload.servers.exposition import PromParser

from . import machine_checks, probe, server_state
from .server_state import LocalServer

# Timeout: vLLM inspects the machine before it responds with its configuration.
_INFO_S = 60.0
MIB = 1.048576  # MB


def measured(server: LocalServer, startup_s: float) -> LocalServer:
    facts: dict[str, Any] = {"startup_s": round(startup_s, 3), "memory_mb": memory_mb(server)}
    facts |= reported(server_state.reachable(server.host), server.port)
    if gpu := gpu_memory_mb(server):
        facts["gpu_memory_mb"] = gpu
    return replace(server, facts=facts)


def reported(host: str, port: int) -> dict[str, Any]:
    """Return the version and resolved configuration of a server, over HTTP."""
    facts: dict[str, Any] = {}
    version = _ask(host, port, "/version")
    if isinstance(version, dict) and "version" in version:
        facts["version"] = version["version"]
    config = {"cache": cache_config(host, port)}
    info = _ask(host, port, "/server_info?config_format=json", _INFO_S)
    if isinstance(info, dict):
        config["server"] = info.get("vllm_config", info)
    facts["config"] = {name: value for name, value in config.items() if value}
    return facts


def _ask(host: str, port: int, path: str, timeout_s: float = probe.TIMEOUT_S) -> Any:
    try:
        return probe.ask(host, port, path, timeout_s=timeout_s)
    except UsageError:
        return None  # not every engine has the endpoint


def memory_mb(server: LocalServer) -> float:
    """Return the resident memory of all processes of a server, in MB; shared pages count once per process."""
    resident_bytes = 0
    for pid in server_state.group(server):
        with contextlib.suppress(psutil.Error):  # has ended
            resident_bytes += psutil.Process(pid).memory_info().rss
    return round(resident_bytes / 1e6, 1)


def gpu_memory_mb(server: LocalServer) -> dict[str, float]:
    """Return the GPU memory of a server's processes in MB, by UUID of the GPU; empty if nvidia-smi reports none."""
    members = {str(pid) for pid in server_state.group(server)}
    rows = machine_checks.nvidia_smi("--query-compute-apps=pid,gpu_uuid,used_memory")
    return _by_gpu((gpu, mib) for pid, gpu, mib in rows if pid in members)


def _by_gpu(rows: Iterable[tuple[str, str]]) -> dict[str, float]:
    """Sum (GPU, MiB) rows to MB by GPU. GPUs with a non-numeric value such as `[N/A]` are omitted."""
    memory_mb_by_gpu: dict[str, float | None] = {}
    for gpu, mib in rows:
        previous = memory_mb_by_gpu.get(gpu, 0.0)
        memory_mb_by_gpu[gpu] = previous + float(mib) * MIB if previous is not None and mib.isdecimal() else None
    return {gpu: round(mb, 1) for gpu, mb in memory_mb_by_gpu.items() if mb is not None}


def cache_config(host: str, port: int) -> dict[str, str]:
    """Return the labels of `vllm:cache_config_info`; empty without that metric."""
    try:
        samples = PromParser(("vllm:cache_config_info",)).parse(probe.text(host, port, "/metrics"))
    except (UsageError, ValueError):  # no page, or another one
        return {}
    return dict(samples[0].labels) if samples else {}
