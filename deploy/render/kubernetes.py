"""Files for Kubernetes: Deployment and Service of the server, and a run against it as Jobs."""

from functools import partial
from typing import Any

from .container_plan import PORT, ContainerPlan, as_yaml, documents, escaped, head

Object = dict[str, Any]


def files(plan: ContainerPlan, shared_runs: bool) -> dict[str, str]:
    """Return the files by name. `shared_runs`: several nodes can mount the results volume at once."""
    mode = "ReadWriteMany" if shared_runs else "ReadWriteOnce"
    objects = {
        "server.yaml": server_objects(plan),
        "results.yaml": documents("results.yaml", plan, access_mode=mode),
        "reader.yaml": documents("reader.yaml", plan, pod=_pod(plan, "reader", ["sleep", "3600"], True)),
        "run.yaml": run_objects(plan, shared_runs),
    }
    return {name: as_yaml(*items, head=head(name, plan)) for name, items in objects.items()}


def server_objects(plan: ContainerPlan) -> list[Object]:
    """Return the Deployment, Service, and the volume of weights for vLLM."""
    models, deployment, service = documents("server.yaml", plan, server_command=_plain(plan.server_command()))
    pod = deployment["spec"]["template"]["spec"]
    server = pod["containers"][0]
    variant_environment = [
        {"name": name, "value": _plain([str(value)])[0]} for name, value in plan.variant.environment.items()
    ]
    server["env"] = [*variant_environment, *server["env"]]
    if not plan.gpus:
        del server["resources"]
    if plan.engine == "vllm":
        return [models, deployment, service]
    server["env"] = [*variant_environment, *(entry for entry in server["env"] if entry["name"] == "VLLM_API_KEY")]
    del server["volumeMounts"], pod["volumes"]
    return [deployment, service]


def run_objects(plan: ContainerPlan, shared_runs: bool) -> list[Object]:
    """Return the ConfigMap of the scenario, headless Service of the master, Jobs of the master and the workers."""
    scenario, *others = documents(
        "run.yaml",
        plan,
        scenario_text=plan.scenario_text,
        master_pod=_pod(plan, "master", plan.master_command(f"http://{plan.name}:{PORT}"), True),
        worker_pod=_pod(plan, "worker", plan.worker_command(f"{plan.name}-master"), shared_runs),
    )
    return others if plan.scenario_text is None else [scenario, *others]


def _pod(plan: ContainerPlan, part: str, command: list[str], on_volume: bool) -> Object:
    """Pod of the load generator. `on_volume`: its runs are on the results volume."""
    runs = {"persistentVolumeClaim": {"claimName": f"{plan.name}-runs"}} if on_volume else {"emptyDir": {}}
    volume = {"name": "runs", **runs}
    (pod,) = documents("pod.yaml", plan, part=part, command=_plain(command), runs_volume=volume)
    container = pod["containers"][0]
    if part != "master":
        del container["ports"]
    if part != "master" or plan.scenario_text is None:
        container["volumeMounts"].pop()
        pod["volumes"].pop()
    return dict(pod)


_plain = partial(escaped, sign="$(")
