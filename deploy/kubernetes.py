"""Kubernetes: a Deployment and Service of the server, and a run against it as Jobs of a master and its workers.

The tests hold each object against Kubernetes' own schemas. `operators.py` has the same run for Locust's operators.
"""

from typing import Any

from .containers import (
    MASTER_PORT,
    MODELS,
    PORT,
    RUNS,
    SCENARIO,
    SHARED_MEMORY_GIB,
    START_S,
    VLLM_ENVIRONMENT,
    Plan,
    as_yaml,
)
from .operators import custom_resources

Object = dict[str, Any]

SECRET = "inferload"  # made by hand; every key in it is optional
_USER = 1000  # Containerfile's
_PROBE_S = 10
_SERVER_HEAD = """\
{variant}: {purpose} ({hardware}). Written by `inferload deploy kubernetes`.
Keys are read from a Secret, where there is one:
kubectl create secret generic {secret} --from-literal=api-key=... --from-literal=hf-token=..."""
_RUN_HEAD = """\
One run: kubectl apply -f run.yaml; kubectl logs -f job/{name}-master; kubectl get job {name}-master
For the next one: kubectl delete -f run.yaml --cascade=foreground, which leaves results.yaml's volume alone."""
_RESULTS_HEAD = """\
Where runs are kept. Their files:
kubectl apply -f extras/reader.yaml; kubectl wait --for=condition=Ready pod/{name}-reader; kubectl cp {name}-reader:{runs} runs
Workers write beside the master only where the volume can be mounted by several nodes (--shared-runs); otherwise each keeps
its own turns until its pod is deleted, and percentiles come from sketches."""


def files(plan: Plan, shared_runs: bool) -> dict[str, str]:
    """The files of the folder by name. `shared_runs`: the volume of results can be mounted by several nodes at once."""
    head = {
        "variant": plan.variant.name,
        "purpose": plan.variant.purpose,
        "hardware": plan.variant.hardware,
        "secret": SECRET,
        "name": plan.name,
        "runs": RUNS,
    }
    made = {
        "server.yaml": as_yaml(*server_objects(plan), head=_SERVER_HEAD.format(**head)),
        "results.yaml": as_yaml(_claim(f"{plan.name}-runs", "20Gi", shared_runs), head=_RESULTS_HEAD.format(**head)),
        "extras/reader.yaml": as_yaml(_reader(plan)),
        "run.yaml": as_yaml(*run_objects(plan, shared_runs), head=_RUN_HEAD.format(**head)),
    }
    for name, (comment, resource) in custom_resources(plan, server_url(plan), f"{plan.name}-runs", SECRET).items():
        made[name] = as_yaml(*_scenario(plan), resource, head=comment)
    return made


def server_url(plan: Plan) -> str:
    """Where pods of the namespace reach the server."""
    return f"http://{plan.name}:{PORT}"


def server_objects(plan: Plan) -> list[Object]:
    """Deployment, Service, and for vLLM the volume that keeps its weights."""
    objects = [_deployment(plan), _service(plan.name, _labels(plan, "server"), "http", PORT)]
    if plan.engine == "vllm":
        objects.insert(0, _claim(f"{plan.name}-models", "200Gi"))
    return objects


def run_objects(plan: Plan, shared_runs: bool) -> list[Object]:
    """ConfigMap of the scenario, headless Service of the master, Jobs of the master and the workers."""
    master = f"{plan.name}-master"
    service = _service(master, _labels(plan, "master"), "locust", MASTER_PORT)
    # Without an address of its own: the name is the master's pod, and is known before the pod is ready.
    service["spec"] |= {"clusterIP": "None", "publishNotReadyAddresses": True}
    runs = {"persistentVolumeClaim": {"claimName": f"{plan.name}-runs"}}
    own = runs if shared_runs else {"emptyDir": {}}
    waits = {"master": f"{server_url(plan)}/health", "worker": f"tcp://{master}:{MASTER_PORT}"}
    return [
        *_scenario(plan),
        service,
        _job(plan, 1, _pod(plan, "master", plan.master_command(server_url(plan)), runs, waits["master"])),
        _job(plan, plan.workers, _pod(plan, "worker", plan.worker_command(master), own, waits["worker"])),
    ]


def _labels(plan: Plan, part: str) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": "inferload",
        "app.kubernetes.io/instance": plan.name,
        "app.kubernetes.io/component": part,
    }


def _metadata(plan: Plan, part: str) -> Object:
    return {"name": plan.name if part == "server" else f"{plan.name}-{part}", "labels": _labels(plan, part)}


def _plain(words: list[str]) -> list[str]:
    """Words in which Kubernetes finds no variable."""
    return [word.replace("$(", "$$(") for word in words]


def _secret(variable: str, key: str) -> Object:
    return {"name": variable, "valueFrom": {"secretKeyRef": {"name": SECRET, "key": key, "optional": True}}}


def _service(name: str, labels: dict[str, str], port_name: str, port: int) -> Object:
    ports = [{"name": port_name, "port": port, "targetPort": port_name}]
    metadata = {"name": name, "labels": labels}
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"selector": labels, "ports": ports}}


def _claim(name: str, size: str, shared: bool = False) -> Object:
    mode = "ReadWriteMany" if shared else "ReadWriteOnce"
    spec = {"accessModes": [mode], "resources": {"requests": {"storage": size}}}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec}


def _scenario(plan: Plan) -> list[Object]:
    if plan.scenario_text is None:
        return []
    data = {"scenario.yaml": plan.scenario_text}
    return [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": _metadata(plan, "scenario"), "data": data}]


def _deployment(plan: Plan) -> Object:
    labels = _labels(plan, "server")
    annotations = {"prometheus.io/scrape": "true", "prometheus.io/port": str(PORT), "prometheus.io/path": "/metrics"}
    pod: Object = {
        # Else a variable for each Service of the namespace, some by names that vLLM reads settings from.
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 60,
        "containers": [_server(plan)],
    }
    if plan.engine == "vllm":
        pod["volumes"] = [
            {"name": "models", "persistentVolumeClaim": {"claimName": f"{plan.name}-models"}},
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{SHARED_MEMORY_GIB}Gi"}},
        ]
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(plan, "server"),
        "spec": {
            "replicas": 1,
            "strategy": {"type": "Recreate"},  # a second one beside it would find no free GPU
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels, "annotations": annotations}, "spec": pod},
        },
    }


def _server(plan: Plan) -> Object:
    health = {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": _PROBE_S, "timeoutSeconds": 5}
    environment = [{"name": name, "value": _plain([str(value)])[0]} for name, value in plan.variant.environment.items()]
    container: Object = {
        "name": "server",
        "image": plan.server_image,
        "command": _plain(plan.server_command()),
        "env": [*environment, _secret("VLLM_API_KEY", "api-key")],
        "ports": [{"name": "http", "containerPort": PORT}],
        "startupProbe": {**health, "failureThreshold": START_S // _PROBE_S},
        "readinessProbe": {**health, "failureThreshold": 3},
        # Slow to act: a server under full load answers late, and a restart in mid-run spoils the run.
        "livenessProbe": {**health, "failureThreshold": 12},
    }
    if plan.engine == "vllm":
        own = [{"name": name, "value": value} for name, value in VLLM_ENVIRONMENT.items()]
        container["env"] += [*own, _secret("HF_TOKEN", "hf-token")]
        container["volumeMounts"] = [{"name": "models", "mountPath": MODELS}, {"name": "shm", "mountPath": "/dev/shm"}]
    if plan.gpus:
        container["resources"] = {"limits": {"nvidia.com/gpu": plan.gpus}}
    return container


def _pod(plan: Plan, part: str, command: list[str], runs: Object, wait_for: str = "") -> Object:
    """A pod of the load generator: no root, nothing to gain, and rather not on the server's node."""
    environment = [_secret("OPENAI_API_KEY", "api-key"), {"name": "INFERLOAD_WAIT_FOR", "value": wait_for}]
    volumes: list[Object] = [{"name": "runs", **runs}]
    mounts = [{"name": "runs", "mountPath": RUNS}]
    if part == "master" and plan.scenario_text is not None:
        volumes.append({"name": "scenario", "configMap": {"name": f"{plan.name}-scenario"}})
        mounts.append({"name": "scenario", "mountPath": SCENARIO.rpartition("/")[0]})
    away = {"labelSelector": {"matchLabels": _labels(plan, "server")}, "topologyKey": "kubernetes.io/hostname"}
    return {
        "restartPolicy": "Never",
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 120,
        "affinity": {
            "podAntiAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": away}]
            }
        },
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "fsGroup": _USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [
            {
                "name": part,
                "image": plan.images.inferload,
                "args": _plain(command),
                "env": environment,
                "ports": [{"name": "locust", "containerPort": MASTER_PORT}] if part == "master" else [],
                "resources": {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "4Gi"}},
                "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                "volumeMounts": mounts,
            }
        ],
        "volumes": volumes,
    }


def _job(plan: Plan, count: int, pod: Object) -> Object:
    """A Job whose pods are never tried again: a run that lost one is not valid, and says so itself."""
    part = pod["containers"][0]["name"]
    spec: Object = {
        "backoffLimit": 0,
        "completions": count,
        "parallelism": count,
        "completionMode": "Indexed",
        "template": {"metadata": {"labels": _labels(plan, part)}, "spec": pod},
    }
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": _metadata(plan, part), "spec": spec}


def _reader(plan: Plan) -> Object:
    """A pod that holds the results, for `kubectl cp`."""
    runs = {"persistentVolumeClaim": {"claimName": f"{plan.name}-runs"}}
    spec = _pod(plan, "reader", ["sleep", "3600"], runs)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": _metadata(plan, "reader"), "spec": spec}
