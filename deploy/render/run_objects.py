"""Objects of a run for Kubernetes: token, files, network policies, Service, and Jobs of the master and the workers."""

import ipaddress
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from .run_plan import AWS, CERTIFICATES, FILES, MASTER_PORT, RUNS, SECRETS, TERMINATION_LOG, RunPlan, urlsplit_or_none
from .yaml_files import Object, as_yaml, document, escaped, head

POD_SECURITY = {
    **{"runAsNonRoot": True, "runAsUser": 1000, "runAsGroup": 1000},  # Containerfile's user
    **{"fsGroup": 1000, "fsGroupChangePolicy": "OnRootMismatch", "seccompProfile": {"type": "RuntimeDefault"}},
}
CONTAINER_SECURITY = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
UPLOADER_IMAGE = "amazon/aws-cli:2.42.1"
S3_SECRET = "inferload-s3"

# An image without inferload ends with one line in its log and in the pod's status.
_START = (
    "command -v inferload-entrypoint >/dev/null 2>&1 || "
    '{ echo "inferload: the image has no inferload; build it from Containerfile, and name it with --image" '
    f"| tee {TERMINATION_LOG} >&2; exit 2; }}; "
)
# The uploader waits for the end of a pipe that the run holds open, however it ends; the run does not start without the uploader.
_PIPE = "/tmp/run"
_WITH_UPLOADER = f'mkfifo {_PIPE}; echo "inferload: waits for the container uploader" >&2; exec 3>{_PIPE}; '


def objects(plan: RunPlan) -> dict[str, list[Object]]:
    """Return the objects of a run beside its Jobs, by file: what all forms for Kubernetes have in common."""
    files = {key_of(path): text for path, text in plan.files.items()}
    token, own = {"token": plan.made_token}, partial(_object, plan, "v1")
    return {
        **({"token.yaml": [own("Secret", "token", stringData=token)]} if plan.made_token else {}),
        **({"files.yaml": [own("ConfigMap", "files", data=files)]} if files else {}),
        "policies.yaml": policies(plan),
    }


def _object(plan: RunPlan, version: str, kind: str, suffix: str, part: str = "", **content: Any) -> Object:
    namespace = {"namespace": plan.cluster.namespace} if plan.cluster.namespace else {}
    metadata = {"name": f"{plan.name}-{suffix}", **namespace, "labels": labels(plan.name, part)}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **content}


def common_values(plan: RunPlan) -> dict[str, Any]:
    """Return the values of the templates of a run."""
    cluster = plan.cluster
    return {
        "name": plan.name,
        "namespace": cluster.namespace,
        "in_namespace": cluster.where,
        "image": plan.image,
        "scenario": plan.scenario or "of the locustfile",
        "workers": plan.workers,
        "pull_secrets": [{"name": cluster.pull_secret}] if cluster.pull_secret else None,
        "node_selector": cluster.node_selector or None,
        "tolerations": [*map(dict, cluster.tolerations)] or None,
        "pod_security": POD_SECURITY,
        "container_security": CONTAINER_SECURITY,
        "annotations": _scraped(plan),
        **{f"{part}_resources": getattr(plan.sizes, part).resources() for part in ("master", "worker")},
        **{f"{part}_labels": labels(plan.name, part) for part in ("master", "worker")},
    }


def _scraped(plan: RunPlan) -> dict[str, str] | None:
    of = {"scrape": "true", "port": str(plan.metrics_port), "path": "/metrics"}
    return {f"prometheus.io/{key}": value for key, value in of.items()} if plan.cluster.scraper else None


def key_of(path: str) -> str:
    """Return the key of a file in a ConfigMap, where only some characters are allowed."""
    if re.fullmatch(r"(?!\.)[-._a-zA-Z0-9]{1,253}", path):
        return path
    return f"{re.sub(r'[^-_a-zA-Z0-9]', '_', path)[-200:]}.{zlib.crc32(path.encode()):08x}"


def labels(name: str, part: str = "") -> dict[str, str]:
    """Return the labels by which Service and network policies select pods. `part`: of the run; empty: all parts."""
    of = {"name": "inferload", "instance": name, **({"component": part} if part else {})}
    return {f"app.kubernetes.io/{key}": value for key, value in of.items()}


# -- pods


def jobs(plan: RunPlan) -> list[Object]:
    """Return the Jobs of the master and of the workers."""
    failed = {"containerName": "master", "operator": "NotIn", "values": [0]}
    lost = {"type": "DisruptionTarget", "status": "True"}
    # Another worker would be refused too. One that did not find the master, which is scheduled later, is started again.
    refused = {"containerName": "worker", "operator": "In", "values": [2]}
    of_master = pod(plan, "master", plan.master_command())
    of_worker = pod(plan, "worker", plan.worker_command(f"{plan.name}-master"))
    own = common_values(plan)
    return [
        document("run.yaml", {**own, "labels": labels(plan.name, part), "part": part, **values})
        for part, values in {
            "master": {"pod": of_master, "pods": 1, "restarts": 0}
            | {"failure_policy": _fail_job({"onPodConditions": [lost]}, {"onExitCodes": failed})},
            "worker": {"pod": of_worker, "pods": plan.workers, "restarts": plan.workers}
            | {"failure_policy": _fail_job({"onExitCodes": refused}), "annotations": None},
        }.items()
    ]


def _fail_job(*rules: Object) -> Object:
    return {"rules": [{"action": "FailJob", **rule} for rule in rules]}


def service(plan: RunPlan) -> Object:
    """Return the headless Service by which workers find the master: its name is the pod, and resolves before the pod is ready."""
    ports = [{"name": "locust", "port": MASTER_PORT, "targetPort": MASTER_PORT}]
    headless = {"clusterIP": "None", "publishNotReadyAddresses": True}
    spec = {"selector": labels(plan.name, "master"), "ports": ports, **headless}
    return _object(plan, "v1", "Service", "master", "master", spec=spec)


def pod(plan: RunPlan, part: str, command: Sequence[str]) -> Object:
    """Return the specification of a pod."""
    volumes = [*volumes_of(plan, part)]
    is_master, uploads = part == "master", part == "master" and plan.results.kind == "s3"
    ports = [{"name": "locust", "containerPort": MASTER_PORT}]
    ports += [{"name": "metrics", "containerPort": plan.metrics_port}] if plan.cluster.scraper else []
    start = f'{_WITH_UPLOADER if uploads else ""}{_START}exec inferload-entrypoint "$@"'
    values = {
        **common_values(plan),
        "part": part,
        "program": escape(["sh", "-c", start, "inferload"]),
        "arguments": escape([*command, *(["--termination-message", TERMINATION_LOG] if is_master else [])]),
        "environment": [{"name": "HOME", "value": "/tmp"}, *(_optional_key(plan) if part != "reader" else ())],
        "ports": ports if is_master else None,
        "resources": (plan.sizes.master if is_master else plan.sizes.worker).resources(),
        "mounts": [mount_of(volume, path) for volume, path in volumes],
        "volumes": [volume for volume, _path in volumes],
        "affinity": _away_from(plan.beside) if plan.beside else None,
        "labels": labels(plan.name, part),
        "uploader": uploader(plan) if uploads else None,
    }
    return document("pod.yaml", values)


def _optional_key(plan: RunPlan) -> Iterator[Object]:
    if key := plan.optional_api_key:
        reference = {"name": key.name, "key": key.key, "optional": True}
        yield {"name": "OPENAI_API_KEY", "valueFrom": {"secretKeyRef": reference}}


def mount_of(volume: Object, path: str) -> Object:
    writable = "emptyDir" in volume or "persistentVolumeClaim" in volume
    return {"name": volume["name"], "mountPath": path, **({} if writable else {"readOnly": True})}


def volumes_of(plan: RunPlan, part: str) -> Iterator[tuple[Object, str]]:
    """Yield the volumes of a pod with their paths. Workers share the master's claim of results only with `shared_runs`.

    Secrets and ConfigMaps of others that are not there leave their files out: inferload then ends with a line that names the file.
    """
    if plan.results.kind != "pvc" or (part == "worker" and not plan.shared_runs):
        yield {"name": "runs", "emptyDir": {}}, RUNS
    else:
        yield {"name": "results", "persistentVolumeClaim": {"claimName": plan.results.place}}, RUNS
    if part == "reader":
        return
    for number, secret in enumerate(dict.fromkeys(key.name for key in (plan.token, plan.api_key) if key)):
        made = plan.made_token and plan.token and secret == plan.token.name
        yield {"name": f"key-{number}", "secret": {"secretName": secret, "optional": not made}}, f"{SECRETS}/{secret}"
    if plan.ca:
        yield {"name": "ca", "configMap": {"name": plan.ca.name, "optional": True}}, f"{CERTIFICATES}/{plan.ca.name}"
    if plan.files:
        items = [{"key": key_of(path), "path": path} for path in plan.files]
        yield {"name": "files", "configMap": {"name": f"{plan.name}-files", "items": items}}, FILES
    yield {"name": "tmp", "emptyDir": {}}, "/tmp"


def _away_from(others: Mapping[str, str]) -> Object:
    term = {"labelSelector": {"matchLabels": dict(others)}, "topologyKey": "kubernetes.io/hostname"}
    preferred = [{"weight": 100, "podAffinityTerm": term}]
    return {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}


def uploader(plan: RunPlan) -> Object:
    """Return the container that copies the run directory to object storage when the run has ended.

    An ordinary container: if the copy fails, the pod fails too. Its credentials are the variables of a Secret.
    """
    wait = f"until [ -p {_PIPE} ]; do sleep 1; done; read ended < {_PIPE}"
    command = f'{wait}; exec aws s3 cp {RUNS} "$@" --recursive --no-progress --no-follow-symlinks'
    own = ["--endpoint-url", plan.results.endpoint] if plan.results.endpoint != AWS else []
    return {
        "name": "uploader",
        "image": UPLOADER_IMAGE,
        "command": escape(["sh", "-c", command, "aws", plan.results.place, *own]),
        "env": [{"name": "HOME", "value": "/tmp"}, {"name": "AWS_EC2_METADATA_DISABLED", "value": "true"}],
        "envFrom": [{"secretRef": {"name": S3_SECRET}}],
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}},
        "securityContext": CONTAINER_SECURITY,
        "volumeMounts": [{"name": "runs", "mountPath": RUNS}, {"name": "tmp", "mountPath": "/tmp"}],
    }


def reader_file(plan: RunPlan) -> dict[str, str]:
    """Return the file of the pod that mounts the results, for `kubectl cp`, in a folder of its own: it is for later."""
    if plan.results.kind != "pvc":
        return {}
    spec = {**pod(plan, "reader", ["sleep", "3600"]), "terminationGracePeriodSeconds": 1}
    own = _object(plan, "v1", "Pod", "reader", "reader", spec=spec)
    return {"after/reader.yaml": as_yaml(own, head=head("reader.yaml", common_values(plan)))}


# -- network


def policies(plan: RunPlan) -> list[Object]:
    """Return the network policies of the pods of a run."""
    master, worker = ({"podSelector": {"matchLabels": labels(plan.name, part)}} for part in ("master", "worker"))
    ports = [{"protocol": "TCP", "port": MASTER_PORT}]
    ingress: list[Object] = [{"from": [worker], "ports": ports}]
    if plan.cluster.scraper:
        source = {"namespaceSelector": {}, "podSelector": {"matchLabels": dict(plan.cluster.scraper)}}
        ingress.append({"from": [source], "ports": [{"protocol": "TCP", "port": plan.metrics_port}]})
    parts = {"key": "app.kubernetes.io/component", "operator": "In", "values": ["master", "worker", "reader"]}
    all_pods = {"podSelector": {"matchLabels": labels(plan.name), "matchExpressions": [parts]}}
    specs = {
        "run": {**all_pods, "policyTypes": ["Ingress", "Egress"], "egress": egress(plan)},
        "master": {**master, "policyTypes": ["Ingress"], "ingress": ingress},
        "worker": {**worker, "policyTypes": ["Egress"], "egress": [{"to": [master], "ports": ports}]},
    }
    of_kind = partial(_object, plan, "networking.k8s.io/v1", "NetworkPolicy")
    return [of_kind(name, spec=spec) for name, spec in specs.items()]


def egress(plan: RunPlan) -> list[Object]:
    """Return the rules that let pods ask for names, and connect to the addresses of the run."""
    dns = {"ports": [{"protocol": protocol, "port": 53} for protocol in ("UDP", "TCP")]}
    addresses = [*plan.addresses(), *([plan.results.endpoint] if plan.results.kind == "s3" else [])]
    rules = [dns, *(rule for address in addresses for rule in egress_to(address))]
    return [rule for index, rule in enumerate(rules) if rule not in rules[:index]]


def egress_to(url: str) -> Iterator[Object]:
    """Yield the rules that let pods connect to the server of a URL.

    A name of one or two parts, or with `.svc`, may be a Service: policies know only the pods behind it, whose ports are not in the
    URL, so all ports of its namespace are open. For other names all addresses are, on the port of the URL.
    https://kubernetes.io/docs/concepts/services-networking/network-policies/
    """
    found = urlsplit_or_none(url)
    if found is None:
        return
    host, port = found
    ports = {"ports": [{"protocol": "TCP", "port": port}]} if port else {}
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        parts = host.rstrip(".").split(".")
        inside = "svc" in parts[2:]
        namespace = parts[parts.index("svc", 2) - 1 if inside else -1]
        if len(parts) == 1:
            yield {"to": [{"podSelector": {}}]}
        elif len(parts) == 2 or inside:
            yield {"to": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}]}
        if not inside and len(parts) > 1:
            yield {"to": [{"ipBlock": {"cidr": every}} for every in ("0.0.0.0/0", "::/0")], **ports}
    else:
        yield {"to": [{"ipBlock": {"cidr": f"{address}/{address.max_prefixlen}"}}], **ports}


escape = partial(escaped, sign=r"\$\$+|\$\(")
