"""Checks of a machine before vLLM is started on it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..vllm.arguments import refuse_removed
from . import machine_checks, weights
from .machine_checks import Hardware


@dataclass(frozen=True, slots=True)
class Requirements:
    """Requirements of a variant. `model`: cached or downloaded model; None for a model folder."""

    name: str
    hardware: Hardware
    utilization: float
    model: str | None


def check(requirements: Requirements, argv: Sequence[str], environment: Mapping[str, str]) -> None:
    """Raise UsageError for missing GPUs, missing or too large weights, and flags removed from vLLM."""
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    machine_checks.check_gpus(
        requirements.name, requirements.hardware, machine_checks.gpus(visible), visible, requirements.utilization
    )
    refuse_removed(requirements.name, argv, environment)
    if requirements.model is not None:
        weights.check(requirements.model, environment)
