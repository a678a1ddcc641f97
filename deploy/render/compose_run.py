"""A run as Docker Compose files, for a host with containers. No I/O."""

from dataclasses import replace
from functools import partial
from typing import Any

from .run_objects import common_values
from .run_plan import FILES, RUNS, SECRETS, Key, RunPlan
from .yaml_files import Object, as_yaml, document, escaped, head

EXPORTER = "exporter"  # name of the master in the network of the metrics, which workers are not in


def files(plan: RunPlan) -> dict[str, str]:
    """Return the files of a run by name."""
    return {**texts(plan), "compose.yaml": as_yaml(services(plan), head=head("compose-run.yaml", common_values(plan)))}


def texts(plan: RunPlan) -> dict[str, str]:
    """Return the files that the services read, by name."""
    return {"secrets/token": f"{plan.made_token}\n", **{f"files/{name}": text for name, text in plan.files.items()}}


def services(plan: RunPlan) -> Object:
    """Return the document of a run: master, workers, networks, volume and token."""
    own = replace(plan, token=Key("run", "token"), metrics_host=EXPORTER)
    metrics = {"metrics": {"aliases": [EXPORTER]}} if own.cluster.scraper else {}
    values: dict[str, Any] = {
        **common_values(own),
        "master_command": plain(own.master_command()),
        "worker_command": plain(own.worker_command("master")),
        "token_path": Key("run", "token").path(SECRETS),
        "mounts": [f"runs:{RUNS}", *([f"./files:{FILES}:ro"] if own.files else [])],
        "master_networks": {"run": None, **metrics},
        "networks": {"run": {}, **({"metrics": {"internal": True}} if own.cluster.scraper else {})},
        "exposed": ["5557", *([str(own.metrics_port)] if own.cluster.scraper else [])],
        "nothing": None,
        "worker_memory": f"{own.sizes.worker.memory_mib}m",
    }
    return document("compose-run.yaml", values)


plain = partial(escaped, sign=r"\$")
