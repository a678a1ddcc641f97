"""Files for Docker Compose: server of a variant, a run against it, Prometheus, Grafana and NVIDIA's GPU exporter."""

import json
from typing import Any

from . import compose_run, dashboard
from .compose_run import plain
from .container_plan import PORT, Server
from .run_plan import RunPlan
from .yaml_files import Object, as_yaml, document, documents, head

SERVER, GPUS = f"http://server:{PORT}", "http://dcgm:9400"


def pages(plan: Server) -> tuple[str, ...]:
    """Return the metrics pages of the run: with GPUs, those of the server and of NVIDIA's exporter; else the server's default."""
    return (f"{SERVER}/metrics", f"{GPUS}/metrics") if plan.gpus else ()


def files(plan: Server, run: RunPlan) -> dict[str, str]:
    """Return the files by name."""
    values = plan.values(run)
    datasources, providers = documents("grafana.yaml", {**values, "datasource": dashboard.DATASOURCE})
    return {
        "compose.yaml": as_yaml(services(plan, run), head=head("compose.yaml", values)),
        "prometheus.yml": as_yaml(prometheus(plan, run)),
        "grafana/datasources.yaml": as_yaml(datasources),
        "grafana/dashboards.yaml": as_yaml(providers),
        "grafana/inferload.json": json.dumps(dashboard.document(bool(plan.gpus)), indent=1) + "\n",
        **compose_run.texts(run),
    }


def services(plan: Server, run: RunPlan) -> Object:
    """Return the document of compose.yaml: that of the run, with the other services."""
    command, is_vllm = plan.command(), plan.engine == "vllm"
    environment: dict[str, Any] = {name: plain([str(value)])[0] for name, value in plan.variant.environment.items()}
    environment |= {"VLLM_API_KEY": None}
    if is_vllm:
        environment |= {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "HF_TOKEN": None}
    devices = [{"driver": "nvidia", "count": plan.gpus, "capabilities": ["gpu"]}]
    values = {
        **plan.values(run),
        "server_program": command[:1],
        "server_words": plain(command[1:]),
        "environment": environment,
        "models": ["models:/root/.cache/huggingface"] if is_vllm else None,
        "shared_memory": "16gb" if is_vllm else None,
        "gpu_devices": {"resources": {"reservations": {"devices": devices}}} if plan.gpus else None,
    }
    content, of_run = document("compose.yaml", values), compose_run.services(run)
    own = content["services"]
    if not plan.gpus:
        del own["dcgm"]
    master = of_run["services"]["master"]
    master["depends_on"] = {"server": {"condition": "service_healthy"}}
    master["depends_on"] |= {"dcgm": {"condition": "service_started"}} if plan.gpus else {}
    return {
        **of_run,
        "services": {"server": own.pop("server"), **of_run["services"], **own},
        "volumes": {**of_run["volumes"], "prometheus": {}, **({"models": {}} if is_vllm else {})},
    }


def prometheus(plan: Server, run: RunPlan) -> Object:
    """Return the document of prometheus.yml, which scrapes the server, the master and, with GPUs, the GPU exporter."""
    content = document("prometheus.yaml", plan.values(run))
    if not plan.gpus:
        content["scrape_configs"].pop()
    return content
