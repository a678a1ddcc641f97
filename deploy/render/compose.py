"""Files for Docker Compose: server, master, workers, Prometheus, Grafana and NVIDIA's GPU exporter."""

import json
from functools import partial
from typing import Any

from . import dashboard
from .container_plan import PORT, ContainerPlan, as_yaml, documents, escaped, head

SERVER, GPUS = f"http://server:{PORT}", "http://dcgm:9400"


def files(plan: ContainerPlan) -> dict[str, str]:
    datasources, providers = documents("grafana.yaml", plan, datasource=dashboard.DATASOURCE)
    texts = {
        "compose.yaml": as_yaml(document(plan), head=head("compose.yaml", plan)),
        "prometheus.yml": as_yaml(prometheus(plan)),
        "grafana/datasources.yaml": as_yaml(datasources),
        "grafana/dashboards.yaml": as_yaml(providers),
        "grafana/inferload.json": json.dumps(dashboard.document(bool(plan.gpus)), indent=1) + "\n",
    }
    if plan.scenario_text is not None:
        texts["scenario.yaml"] = plan.scenario_text
    return texts


def document(plan: ContainerPlan) -> dict[str, Any]:
    command = plan.server_command()
    pages = [word for page in (SERVER, GPUS) for word in ("--metrics-url", f"{page}/metrics")] if plan.gpus else []
    (content,) = documents(
        "compose.yaml",
        plan,
        server_program=command[:1],
        server_words=_plain(command[1:]),
        master_command=_plain([*plan.master_command(SERVER), *pages]),
        worker_command=plan.worker_command("master"),
    )
    services = content["services"]
    server, master = services["server"], services["master"]
    variant_environment = {name: _plain([str(value)])[0] for name, value in plan.variant.environment.items()}
    server["environment"] = {**variant_environment, **server["environment"]}
    if plan.engine == "simulator":
        server["environment"] = {**variant_environment, "VLLM_API_KEY": None}
        del server["volumes"], server["shm_size"], content["volumes"]["models"]
    if not plan.gpus:
        del server["deploy"], services["dcgm"], master["depends_on"]["dcgm"]
    if plan.scenario_text is None:
        master["volumes"].pop()
    return dict(content)


def prometheus(plan: ContainerPlan) -> dict[str, Any]:
    """Return the document of prometheus.yml, which scrapes the server, the master and, with GPUs, the GPU exporter."""
    (content,) = documents("prometheus.yaml", plan)
    if not plan.gpus:
        content["scrape_configs"].pop()
    return dict(content)


_plain = partial(escaped, sign="$")
