"""Files for Kubernetes: Deployment and Service of a variant's server, volume of the results, and a run against the server."""

from collections.abc import Mapping
from typing import Any

from . import forms
from .container_plan import Server
from .run_objects import escape
from .run_plan import RunPlan
from .yaml_files import Object, as_yaml, document, documents, head


def files(plan: Server, run: RunPlan) -> dict[str, str]:
    """Return the files by name."""
    values = plan.values(run)
    mode = "ReadWriteMany" if run.shared_runs else "ReadWriteOnce"
    claim = document("results.yaml", {**values, "claim": run.results.place, "access_mode": mode})
    return {
        "server.yaml": as_yaml(*server_objects(plan, values), head=head("server.yaml", values)),
        "results.yaml": as_yaml(claim, head=head("results.yaml", values)),
        **forms.kubernetes(run),
    }


def server_objects(plan: Server, values: Mapping[str, Any]) -> list[Object]:
    """Return the Deployment, Service, and the volume of weights for vLLM. `values`: of `Server.values`."""
    is_vllm = plan.engine == "vllm"
    environment = [{"name": name, "value": escape([str(value)])[0]} for name, value in plan.variant.environment.items()]
    resources = {"limits": {"nvidia.com/gpu": plan.gpus}} if plan.gpus else None
    own = {"server_command": escape(plan.command()), "resources": resources}
    models, deployment, service = documents("server.yaml", {**values, **own})
    pod = deployment["spec"]["template"]["spec"]
    server = pod["containers"][0]
    server["env"] = [*environment, *server["env"]]
    if is_vllm:
        return [models, deployment, service]
    server["env"] = [*environment, *(entry for entry in server["env"] if entry["name"] == "VLLM_API_KEY")]
    del server["volumeMounts"], pod["volumes"]
    return [deployment, service]
