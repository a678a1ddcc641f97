"""`run.json`: all that is needed to know what a run was, and to run it again."""

import os
import platform
import socket
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from inferload import __version__, deployments, rundir
from inferload.master.lifecycle.preflight import Preflight
from inferload.master.lifecycle.run import MasterRun
from inferload.process.run_spec import RunSpec


def models_of(spec: RunSpec, preflight: Preflight) -> list[str]:
    """The models that are asked: those that the scenario names, or the run's one."""
    return [one.name for one in spec.scenario.request.models] or [preflight.facts.model]


def versions(run: MasterRun) -> dict[str, str | None]:
    """What took part, by version."""
    return {
        "inferload": __version__,
        "locust": version("locust"),
        "python": platform.python_version(),
        "server": run.preflight.facts.version,
    }


def started_at(run: MasterRun) -> str:
    """When the run was begun, UTC."""
    return datetime.fromtimestamp(run.anchor.wall_ns / 1e9, UTC).isoformat(timespec="milliseconds")


def _variant(url: str) -> dict[str, Any] | None:
    """What `inferload deploy up` started at the target, here or on another machine; None where that is not known."""
    server = deployments.of_target(url)
    if server is None:
        return None
    kept = (
        "engine",
        "argv",
        "started_at",
        "startup_s",
        "version",
        "memory_mb",
        "gpu_memory_mb",
        "prices",
        "config",
        "cores",
        "machine",
    )
    variant = server.get("variant") or {}
    named = {key: variant.get(key) for key in ("name", "hardware")}
    return {**named, **{key: server.get(key) for key in kept}}


def about(run: MasterRun) -> dict[str, Any]:
    """The summary's `run` block."""
    scenario = run.spec.scenario
    return {
        "id": run.run_id,
        "scenario": scenario.name,
        "digest": scenario.digest,
        "seed": scenario.seed,
        "target": ", ".join(target.url for target in run.spec.targets),
        "model": ", ".join(models_of(run.spec, run.preflight)),
        "engine": run.preflight.engine,
        "started_at": started_at(run),
        "versions": versions(run),
    }


def manifest(run: MasterRun, counts: dict[str, Any] | None) -> dict[str, Any]:
    """The document; `counts` is None while the run is under way."""
    spec, facts, vocabulary = run.spec, run.preflight.facts, run.preflight.vocabulary
    return {
        "format": rundir.FORMAT,
        "id": run.run_id,
        "scenario": {
            "name": spec.scenario.name,
            "origin": spec.origin,
            "digest": spec.scenario.digest,
            "text": spec.scenario.resolved_text(),
            "overrides": spec.overrides,
        },
        "seed": spec.scenario.seed,
        "target": spec.target.url,
        "targets": [
            {
                "url": target.url,
                "engine": looked.engine,
                "version": looked.version,
                "models": list(looked.models),
                "max_model_len": looked.max_model_len,
            }
            for target, looked in zip(spec.targets, run.preflight.targets, strict=True)
        ],
        "model": ", ".join(models_of(run.spec, run.preflight)),
        "models": list(facts.models),
        "endpoint": spec.scenario.request.endpoint,
        "engine": run.preflight.engine,
        "variant": _variant(spec.target.url),
        "max_model_len": facts.max_model_len,
        "versions": versions(run),
        "adaptations_left_out": [one.to_dict() for one in run.left_out],
        "hosts": sorted({socket.gethostname(), *(str(m.facts.get("host")) for m in run.roster.members if m.facts)}),
        "machine": {"system": platform.system(), "release": platform.release(), "cpus": os.cpu_count()},
        "started_at": started_at(run),
        "anchor": {"wall_ns": run.anchor.wall_ns, "mono_ns": run.anchor.mono_ns},
        "phases": [
            {
                "phase": window.phase,
                "start_wall_ns": run.anchor.to_wall_ns(window.start_ns),
                "end_wall_ns": None if window.end_ns is None else run.anchor.to_wall_ns(window.end_ns),
            }
            for window in run.windows
        ],
        "steady_s": run.steadiness.since_s,
        "workers": [member.manifest() for member in run.roster.members],
        "metrics_urls": list(run.preflight.metrics_urls),
        "insecure": run.own.tls.insecure,
        "key_withheld_from": run.own.withheld_from(
            [target.url for target in spec.targets] + list(run.preflight.metrics_urls)
        ),
        "cache_isolation": {
            "isolate": spec.scenario.cache.isolate,
            "by": "salt" if run.preflight.salts else "first_line",
        },
        "workload": {
            "data": {name: one.facts() for name, one in run.preflight.sessions.open().items()},
            "notes": dict(run.notes) if counts is not None else None,
        },
        "prompt_tokens": {"exactness": vocabulary.exactness, "error": vocabulary.error},
        "counts": counts,
        "stop_reason": run.stop_reason if counts is not None else None,
        "complete": run.complete and run.early_by is None,
    }
