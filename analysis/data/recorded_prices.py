"""Prices of a run's servers, from its manifest."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from inferload.results import prices
from inferload.results.cost import Prices
from inferload.results.documents.manifest_document import Manifest


def recorded_prices(manifest: Manifest, path: Path) -> Prices:
    """Return the prices of the variant; without a number of GPUs, those that the variant requires. `path`: of the run."""
    deployed = manifest.deployed
    return prices.from_document(deployed.prices, f"{path}: prices").over(Prices(gpus=deployed.gpus or None))


def with_gpus(known: Prices, variant: Mapping[str, Any] | None) -> Prices:
    """Count a priced server without GPUs as a single GPU."""
    hardware = (variant or {}).get("hardware") or {}
    return known.over(Prices(gpus=1)) if known.gpu_hour is not None and hardware.get("gpus") == 0 else known
