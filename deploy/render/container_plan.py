"""Common part of Compose and Kubernetes files: images, command lines, templates, and the plan of both."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import takewhile
from pathlib import Path
from typing import Any

import yaml

from inferload import __version__
from inferload.base.errors import UsageError, explained
from inferload.scenario.files import catalog
from inferload.scenario.files.yaml_text import data_of
from inferload.scenario.scenario import load as load_scenario

from ..servers.engines import ServerSpec, program_argv
from ..variants.variant import Variant
from ..vllm_cpu.install import VLLM

PORT = 8000
METRICS_PORT = 9646
LOCUSTFILE = "/opt/inferload/locustfiles/chat.py"
SCENARIO = "/scenario/scenario.yaml"
_PLACEHOLDER = re.compile(r"\$([a-z_]+)")


@dataclass(frozen=True, slots=True)
class ContainerImages:
    """Container images. vLLM has the version of the variants; Containerfile builds the image of inferload."""

    vllm: str = f"vllm/vllm-openai:v{VLLM}"
    inferload: str = f"inferload:{__version__}"


@dataclass(frozen=True, slots=True)
class ContainerPlan:
    """Server and a run against it. `scenario_text`: content of a scenario file, None for a bundled scenario."""

    variant: Variant
    engine: str
    scenario: str
    scenario_text: str | None
    workers: int
    images: ContainerImages

    @property
    def name(self) -> str:
        """DNS label of the deployment, at most 40 characters."""
        plain = re.sub(r"[^a-z0-9]+", "-", self.variant.name.lower()).strip("-")
        return f"inferload-{plain}"[:40].rstrip("-")

    @property
    def gpus(self) -> int:
        """Number of GPUs of the server; 0 for the simulator."""
        return 0 if self.engine == "simulator" else self.variant.hardware.gpus

    @property
    def scenario_argument(self) -> str:
        return self.scenario if self.scenario_text is None else SCENARIO

    def server_command(self) -> list[str]:
        spec = ServerSpec(self.engine, self.variant.model, host="0.0.0.0", port=PORT, variant=self.variant)
        return list(program_argv(spec))

    def master_command(self, server: str) -> list[str]:
        """Return the command line of the master of a headless run."""
        options = ["--headless", "--host", server, "--scenario", self.scenario_argument]
        options += ["--export-metrics", f"0.0.0.0:{METRICS_PORT}"]
        return ["locust", "-f", LOCUSTFILE, *options, "--master", "--expect-workers", str(self.workers)]

    def worker_command(self, master: str) -> list[str]:
        return ["locust", "-f", LOCUSTFILE, "--worker", "--master-host", master]

    def values(self) -> dict[str, Any]:
        """Return the values of the common template placeholders."""
        return {
            "name": self.name,
            "variant": self.variant.name,
            "purpose": self.variant.purpose,
            "hardware": str(self.variant.hardware),
            "server_image": self.images.inferload if self.engine == "simulator" else self.images.vllm,
            "image": self.images.inferload,
            "prometheus_image": "prom/prometheus:v3.5.0",
            "grafana_image": "grafana/grafana:12.1.0",
            "dcgm_image": "nvcr.io/nvidia/k8s/dcgm-exporter:4.6.0-4.8.3-distroless",
            "gpus": self.gpus,
            "workers": self.workers,
        }


def head(name: str, plan: ContainerPlan) -> str:
    """Return the comment at the top of a template, with the values of the plan."""
    lines = takewhile(lambda line: line.startswith("# "), _template(name).splitlines())
    return str(_filled("\n".join(line.removeprefix("# ") for line in lines), plan.values()))


def documents(name: str, plan: ContainerPlan, **values: Any) -> list[Any]:
    """Return the documents of a template. A value of any type replaces a placeholder scalar; values are not parsed."""
    return [_filled(document, {**plan.values(), **values}) for document in _parsed(name)]


@cache
def _parsed(name: str) -> tuple[Any, ...]:
    return tuple(yaml.safe_load_all(_template(name)))


def _template(name: str) -> str:
    return files("inferload.deploy.render").joinpath("templates", name).read_text(encoding="utf-8")


def _filled(part: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(part, dict):
        return {key: _filled(value, values) for key, value in part.items()}
    if isinstance(part, list):
        return [_filled(value, values) for value in part]
    if not isinstance(part, str):
        return part
    whole = _PLACEHOLDER.fullmatch(part)
    return values[whole[1]] if whole else _PLACEHOLDER.sub(lambda name: str(values[name[1]]), part)


def plan_of(variant: Variant, engine: str, scenario: str, workers: int, images: ContainerImages) -> ContainerPlan:
    """Build a plan. Raise UsageError for a variant or a scenario that cannot run in containers."""
    if workers < 1:
        raise UsageError(f"--workers {workers}: must be 1 or more")
    if engine == "vllm" and not variant.hardware.gpus:
        raise UsageError(
            f"{variant.name}: its model is generated and not in the image of vLLM; use --engine simulator, or a variant for GPUs"
        )
    return ContainerPlan(variant, engine, *_scenario(scenario), workers, images)


def _scenario(scenario_name: str) -> tuple[str, str | None]:
    """Name and text of a scenario; no text for a bundled scenario that reads other bundled files in the image."""
    path, scenario = catalog.resolve(scenario_name), load_scenario(scenario_name)
    is_user_file = path.parent.resolve() != catalog.folder().resolve()
    if reads := [*_files(data_of(scenario.resolved_text()))]:
        if is_user_file or not all((catalog.folder() / name).is_file() for name in reads):
            raise UsageError(
                f"scenario {scenario_name}: reads {', '.join(reads)}, not in the image; build an image with these files"
            )
        return path.stem, None
    return path.stem, catalog.read(path)


def _files(part: Any) -> Iterator[str]:
    """Yield the paths of data and code files in a part of a scenario."""
    if isinstance(part, dict):
        if part.get("path"):
            yield str(part["path"])
        if ".py" in str(part.get("agent")):
            yield part["agent"]
        part = [*part.values()]
    for each in part if isinstance(part, list) else ():
        yield from _files(each)


class _Dumper(yaml.SafeDumper):
    """YAML without aliases, and with multi-line strings as literal blocks."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def as_yaml(*documents: dict[str, Any], head: str = "") -> str:
    """Return the YAML text of documents after a comment, with unchanged key order."""
    comment = "".join(f"# {line}\n" for line in head.splitlines())
    return comment + yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=10_000)


def escaped(words: list[str], sign: str) -> list[str]:
    """Double the `$` of a sign of variable expansion: `$` in Compose, `$(` in Kubernetes."""
    return [word.replace(sign, f"${sign}") for word in words]


def write(folder: Path, files: dict[str, str]) -> None:
    """Write files into a folder and create it if necessary. Raise UsageError if it is not writable."""
    with explained(f"-o {folder}", "choose a writable folder"):
        for name, text in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
