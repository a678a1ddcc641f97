"""The same run as a custom resource, for each of the two operators for Locust: examples to start from.

Written from their custom resource definitions: `locust.io/v2` of AbdelrhmanHamouda/locust-k8s-operator (the Go types in
api/v2/locusttest_types.go), and `locust.io/v1` of locustio/k8s-operator, once locustcloud's (its chart's crds/locusttest.yaml, and
Locust's own page on it). Both call their resource `LocustTest` of `locust.io`: a cluster has one of the two.
"""

from typing import Any

from .containers import LOCUSTFILE, RUNS, SCENARIO, Plan

_THIRD_PARTY = """\
For AbdelrhmanHamouda/locust-k8s-operator (locust.io/v2). It adds --master, --worker, their ports and --expect-workers itself.
results.yaml has to be applied before; the master's files are kept there."""
_OFFICIAL = """\
For locustio/k8s-operator (locust.io/v1). It adds --master and --worker itself, knows neither volumes nor Secrets, and deletes the
pods at the end: what the run found is in the master's log only, and a server with a key cannot be asked. Follow the log
(kubectl logs -f -l locust.io/test-run={name},locust.io/component=master), or use run.yaml where files are to be kept."""


def custom_resources(plan: Plan, server: str, claim: str, secret: str) -> dict[str, tuple[str, dict[str, Any]]]:
    """File names, each with the comment on top and the resource. `claim`: the volume of results; `secret`: of the keys."""
    return {
        "extras/locust-k8s-operator.yaml": (_THIRD_PARTY, _third_party(plan, server, claim, secret)),
        "extras/locustio-k8s-operator.yaml": (_OFFICIAL.format(name=plan.name), _official(plan, server)),
    }


def _third_party(plan: Plan, server: str, claim: str, secret: str) -> dict[str, Any]:
    key = {"secretKeyRef": {"name": secret, "key": "api-key", "optional": True}}
    resources = {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "4Gi"}}
    spec: dict[str, Any] = {
        "image": plan.images.inferload,
        # --headless starts and ends the run; the operator's own ways to do that are off.
        "master": {
            "command": " ".join(plan.master_options(server)),
            "autostart": False,
            "autoquit": {"enabled": False},
            "resources": resources,
        },
        "worker": {"command": f"-f {LOCUSTFILE}", "replicas": plan.workers, "resources": resources},
        "env": {
            "variables": [
                {"name": "OPENAI_API_KEY", "valueFrom": key},
                {"name": "INFERLOAD_WAIT_FOR", "value": f"{server}/health"},
            ]
        },
        "volumes": [{"name": "runs", "persistentVolumeClaim": {"claimName": claim}}],
        "volumeMounts": [{"name": "runs", "mountPath": RUNS, "target": "master"}],
        "security": {
            "podSecurityContext": {
                "runAsNonRoot": True,
                "runAsUser": 1000,
                "fsGroup": 1000,
                "seccompProfile": {"type": "RuntimeDefault"},
            }
        },
    }
    if plan.scenario_text is not None:
        spec["testFiles"] = {"configMapRef": f"{plan.name}-scenario", "srcMountPath": SCENARIO.rpartition("/")[0]}
    return {"apiVersion": "locust.io/v2", "kind": "LocustTest", "metadata": {"name": plan.name}, "spec": spec}


def _official(plan: Plan, server: str) -> dict[str, Any]:
    words = plan.master_options(server)
    resources = {"resources": {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "4Gi"}}}
    spec: dict[str, Any] = {
        "image": plan.images.inferload,
        "imagePullPolicy": "IfNotPresent",
        "workers": plan.workers,
        "env": [{"name": "INFERLOAD_WAIT_FOR", "value": f"{server}/health"}],
        "master": resources,
        "worker": resources,
    }
    if plan.scenario_text is not None:
        # It mounts the ConfigMap where Locust's own image has its locustfile.
        words = [word.replace(SCENARIO, "/home/locust/scenario.yaml") for word in words]
        spec["locustfile"] = {"configMap": {"name": f"{plan.name}-scenario"}}
    spec["args"] = " ".join([*words, "--expect-workers", str(plan.workers)])
    return {"apiVersion": "locust.io/v1", "kind": "LocustTest", "metadata": {"name": plan.name}, "spec": spec}
