"""Values from run.json: the scenario, and the prices of the servers."""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from inferload.results import prices
from inferload.results.documents.manifest_document import Manifest
from inferload.results.prices import Prices
from inferload.scenario.files.yaml_text import data_of


def scenario_of(manifest: Manifest) -> dict[str, Any]:
    """Return the parsed scenario; empty if unknown."""
    return _parsed(manifest.scenario.text)


@lru_cache(maxsize=16)  # of the runs that are compared; several parts of a report need it
def _parsed(text: str | None) -> dict[str, Any]:
    document = data_of(text)
    return document if isinstance(document, dict) else {}


def slo_of(manifest: Manifest) -> dict[str, float]:
    """Return the SLO limits of the scenario by measure."""
    return _limits(scenario_of(manifest).get("slo", {}))


def slos_of(manifest: Manifest) -> dict[str, dict[str, float]]:
    """Return the SLO limits by class; those of the scenario, for classes without their own, are named ""."""
    workload = scenario_of(manifest).get("workload", {})
    own = {str(part.get("name")): part["slo"] for part in workload.get("classes") or () if part.get("slo")}
    return {"": slo_of(manifest)} | {name: _limits(slo) for name, slo in own.items()}


def _limits(slo: dict[str, Any]) -> dict[str, float]:
    return {name: float(limit) for name, limit in slo.items() if isinstance(limit, int | float)}


def arrivals_of(manifest: Manifest) -> Mapping[str, Any]:
    """Return the `arrivals` block of the scenario; empty if unknown."""
    arrivals = scenario_of(manifest).get("arrivals")
    return arrivals if isinstance(arrivals, Mapping) else {}


def recorded_prices(manifest: Manifest, path: Path) -> Prices:
    """Return the prices of the variant; without a number of GPUs, those that the variant requires. `path`: of the run."""
    deployed = manifest.deployed
    return prices.from_document(deployed.prices, f"{path}: prices").over(Prices(gpus=deployed.gpus or None))


def with_gpus(known: Prices, variant: Mapping[str, Any] | None) -> Prices:
    """Count a priced server without GPUs as a single GPU."""
    hardware = (variant or {}).get("hardware") or {}
    return known.over(Prices(gpus=1)) if known.gpu_hour is not None and hardware.get("gpus") == 0 else known
