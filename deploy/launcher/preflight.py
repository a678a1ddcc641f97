"""The checks before vLLM is started on a machine. Standard library only."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..vllm.arguments import refuse_removed
from . import machine_checks, weights
from .machine_checks import Hardware


@dataclass(frozen=True, slots=True)
class Requirements:
    """What a variant needs of a machine. `model`: to be in the cache or downloaded, None for one of a folder."""

    name: str
    hardware: Hardware
    utilization: float
    model: str | None


def check(need: Requirements, argv: Sequence[str], environment: Mapping[str, str]) -> None:
    """UsageError for missing GPUs, missing or too large weights, and for flags that are gone from vLLM."""
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    machine_checks.check_gpus(need.name, need.hardware, machine_checks.gpus(visible), visible, need.utilization)
    refuse_removed(need.name, argv, environment)
    if need.model is not None:
        weights.check(need.model, environment)
