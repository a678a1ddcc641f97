"""Server of a variant in a container: its image, command line, and values of the templates."""

from dataclasses import dataclass
from typing import Any

from inferload.base.errors import UsageError

from ..servers.engines import ServerSpec, program_argv
from ..variants.variant import Variant
from ..vllm_cpu.install import VLLM
from .run_plan import RunPlan

PORT = 8000
VLLM_IMAGE = f"vllm/vllm-openai:v{VLLM}"  # the version of the variants


@dataclass(frozen=True, slots=True)
class Server:
    """Server of a variant. `vllm_image`: of its container, except for the simulator, which is in inferload's image."""

    variant: Variant
    engine: str
    vllm_image: str = VLLM_IMAGE

    @property
    def gpus(self) -> int:
        """Number of GPUs of the server; 0 for the simulator."""
        return 0 if self.engine == "simulator" else self.variant.hardware.gpus

    def command(self) -> list[str]:
        """Return the command line of the server."""
        spec = ServerSpec(self.engine, self.variant.model, host="0.0.0.0", port=PORT, variant=self.variant)
        return list(program_argv(spec))

    def values(self, run: RunPlan) -> dict[str, Any]:
        """Return the values of the templates of the server. `run`: that against it."""
        return {
            "name": run.name,
            "namespace": run.cluster.namespace,
            "variant": self.variant.name,
            "purpose": self.variant.purpose,
            "hardware": str(self.variant.hardware),
            "server_image": run.image if self.engine == "simulator" else self.vllm_image,
            "prometheus_image": "prom/prometheus:v3.5.0",
            "grafana_image": "grafana/grafana:12.1.0",
            "dcgm_image": "nvcr.io/nvidia/k8s/dcgm-exporter:4.6.0-4.8.3-distroless",
        }


def check_engine(variant: Variant, engine: str) -> None:
    """Raise UsageError for a variant whose server cannot run in a container."""
    if engine == "vllm" and not variant.hardware.gpus:
        raise UsageError(
            f"{variant.name}: its model is generated and not in the image of vLLM; use --engine simulator, or a variant for GPUs"
        )
