"""What Compose and Kubernetes files have in common: images, command lines, and the plan that both are rendered from. No I/O
but the reading of a scenario."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from inferload import __version__
from inferload.errors import UsageError
from inferload.workload import catalog
from inferload.workload.scenario import Scenario
from inferload.workload.scenario import load as load_scenario
from inferload.workload.yamltext import data_of

from .engines import served_name
from .variant import Variant
from .vllm_cpu.install import VLLM

PORT = 8000
MASTER_PORT = 5557
SHARED_MEMORY_GIB = 16  # what the processes of a tensor-parallel server share, of which NCCL takes part
START_S = 1800  # how long a server may take until it answers: weights are downloaded and graphs captured
LOCUSTFILE = "/opt/inferload/locustfiles/chat.py"
SCENARIO = "/scenario/scenario.yaml"
RUNS = "/data/runs"
MODELS = "/root/.cache/huggingface"
# Environment of every vLLM that is started here: nobody is told of it.
VLLM_ENVIRONMENT = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}


@dataclass(frozen=True, slots=True)
class Images:
    """Images by tag: vLLM's of the version that the variants are written for, inferload's as Containerfile builds it."""

    vllm: str = f"vllm/vllm-openai:v{VLLM}"
    inferload: str = f"inferload:{__version__}"
    prometheus: str = "prom/prometheus:v3.5.0"
    dcgm: str = "nvcr.io/nvidia/k8s/dcgm-exporter:4.6.0-4.8.3-distroless"


@dataclass(frozen=True, slots=True)
class Plan:
    """A server and a run against it. `scenario`: a bundled one's name where `scenario_text` is None, else a file with that text."""

    variant: Variant
    engine: str
    scenario: str
    scenario_text: str | None
    workers: int
    images: Images

    @property
    def name(self) -> str:
        """A name for the whole, as DNS takes it: at most 40 characters."""
        plain = re.sub(r"[^a-z0-9]+", "-", self.variant.name.lower()).strip("-")
        return f"inferload-{plain}"[:40].rstrip("-")

    @property
    def gpus(self) -> int:
        """GPUs that the server takes: the variant's, none for the simulator."""
        return 0 if self.engine == "simulator" else self.variant.hardware.gpus

    @property
    def server_image(self) -> str:
        """The image that the server runs in."""
        return self.images.inferload if self.engine == "simulator" else self.images.vllm

    @property
    def scenario_argument(self) -> str:
        """What --scenario is given inside a container."""
        return self.scenario if self.scenario_text is None else SCENARIO

    def server_command(self) -> list[str]:
        """The whole command line of the server."""
        listen = ["--host", "0.0.0.0", "--port", str(PORT)]
        model = self.variant.model
        if self.engine == "simulator":
            simulated = ["--model", model, "--hardware", self.variant.simulated_as]
            return ["inferload", "simulator", *listen, *simulated, *self.variant.argv]
        return ["vllm", "serve", model, *listen, *served_name(model, self.variant.argv), *self.variant.argv]

    def master_command(self, server: str) -> list[str]:
        """The whole command line of the master of a headless run."""
        options = ["--headless", "--host", server, "--scenario", self.scenario_argument]
        return ["locust", "-f", LOCUSTFILE, *options, "--master", "--expect-workers", str(self.workers)]

    def worker_command(self, master: str) -> list[str]:
        """The whole command line of a worker."""
        return ["locust", "-f", LOCUSTFILE, "--worker", "--master-host", master]


def plan_of(variant: Variant, engine: str, scenario: str, workers: int, images: Images) -> Plan:
    """The plan; UsageError for what cannot run in containers."""
    if workers < 1:
        raise UsageError(f"--workers {workers}: at least one")
    if engine == "vllm" and not variant.hardware.gpus:
        raise UsageError(
            f"{variant.name}: its model is made on the spot, no image of vLLM holds it; --engine simulator, or a variant for GPUs"
        )
    return Plan(variant, engine, *_scenario(scenario), workers, images)


def _scenario(given: str) -> tuple[str, str | None]:
    """Name and text. A scenario that reads other files goes by name where the image holds both."""
    path, scenario = catalog.resolve(given), load_scenario(given)
    own = path.parent.resolve() != catalog.folder().resolve()
    if reads := _files(scenario):
        if own or not all((catalog.folder() / name).is_file() for name in reads):
            raise UsageError(
                f"scenario {given}: reads {', '.join(reads)}, which no container has; build an image with both in it"
            )
        return path.stem, None
    return path.stem, catalog.read(path)


def _files(scenario: Scenario) -> list[str]:
    """Files and code that a scenario names, by the keys under which it can."""
    found: list[str] = []

    def look(part: Any) -> None:
        if isinstance(part, dict):
            found.extend([str(part["path"])] if part.get("path") else [])
            found.extend([part["agent"]] if ".py" in str(part.get("agent")) else [])
            for value in part.values():
                look(value)
        elif isinstance(part, list):
            for value in part:
                look(value)

    look(data_of(scenario.resolved_text()))
    return found


class _Dumper(yaml.SafeDumper):
    """Long words stay on their line, texts of several lines stand as they are, and nothing is an alias."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def as_yaml(*documents: dict[str, Any], head: str = "") -> str:
    """Documents of one file, keys in their order, behind a comment."""
    comment = "".join(f"# {line}\n" for line in head.splitlines())
    return comment + yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=10_000)


def write(folder: Path, files: dict[str, str]) -> None:
    """Files into a folder that is made where it is not there; UsageError where that cannot be."""
    try:
        for name, text in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"-o {folder}: {error.strerror}; name a folder that can be written") from error
