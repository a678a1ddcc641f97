"""The files for Docker Compose, from templates/compose.yaml: server, master, workers, Prometheus and NVIDIA's GPU exporter."""

from typing import Any

from .container_plan import PORT, ContainerPlan, as_yaml, documents, head

SERVER = f"http://server:{PORT}"


def files(plan: ContainerPlan) -> dict[str, str]:
    """The files of the folder by name."""
    made = {
        "compose.yaml": as_yaml(document(plan), head=head("compose.yaml", plan)),
        "prometheus.yml": as_yaml(prometheus(plan)),
    }
    if plan.scenario_text is not None:
        made["scenario.yaml"] = plan.scenario_text
    return made


def document(plan: ContainerPlan) -> dict[str, Any]:
    """compose.yaml."""
    command = plan.server_command()
    (made,) = documents(
        "compose.yaml",
        plan,
        server_program=command[:1],
        server_words=_plain(command[1:]),
        master_command=_plain(plan.master_command(SERVER)),
        worker_command=plan.worker_command("master"),
    )
    services = made["services"]
    server, master = services["server"], services["master"]
    own = {name: _plain([str(value)])[0] for name, value in plan.variant.environment.items()}
    server["environment"] = {**own, **server["environment"]}
    if plan.engine == "simulator":
        server["environment"] = {**own, "VLLM_API_KEY": None}
        del server["volumes"], server["shm_size"], made["volumes"]["models"]
    if not plan.gpus:
        del server["deploy"], services["dcgm"]
    if plan.scenario_text is None:
        master["volumes"].pop()
    return dict(made)


def prometheus(plan: ContainerPlan) -> dict[str, Any]:
    """prometheus.yml: scrapes the server, and the GPU exporter if there are GPUs."""
    (made,) = documents("prometheus.yaml", plan)
    if not plan.gpus:
        made["scrape_configs"].pop()
    return dict(made)


def _plain(words: list[str]) -> list[str]:
    """Words in which Compose finds no variable."""
    return [word.replace("$", "$$") for word in words]
