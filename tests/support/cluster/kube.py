"""A cluster on this machine: Jobs, pods, Services and policies of parsed YAML files, and what Kubernetes says of them."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from locust_process import LocustProcess
from paths import SUPPORT

from .container import INFERLOAD, Container, Mount, why_impossible
from .policies import Peer, selects
from .switch import NAME_SERVER
from .volumes import contents, writable, write_keys

Object = dict[str, Any]
_PYTHON = sys.executable  # which tests replace by a proxy
_INDEX = "batch.kubernetes.io/job-completion-index"
_JOB_NAME = "batch.kubernetes.io/job-name"
_MESSAGE_BYTES, _LOG_BYTES, _LOG_LINES = 4096, 2048, 80
_VARIABLE = re.compile(r"\$\$|\$\(([-._a-zA-Z0-9]+)\)")
PATIENCE_S = 180.0  # a hundred pods may start at the same time
_RESTART_S = 0.1  # Kubernetes: 10 s, and twice as long after each failure


@dataclass(frozen=True, slots=True)
class Node:
    """Node with another monotonic clock than this machine, and with own variables and mounts for its containers."""

    monotonic_s: int = 0
    environment: Mapping[str, str] = field(default_factory=dict)
    mounts: Sequence[Mount] = ()


@dataclass
class Part:
    """A running container of a pod, and what the pod's status says of it."""

    name: str
    spec: Object
    container: Container
    running: LocustProcess
    exit_code: int | None = None

    @property
    def message(self) -> str:
        """The termination message, after its end."""
        assert self.exit_code is not None, "still running"
        message = self.container.termination_log.read_bytes()[:_MESSAGE_BYTES].decode(errors="replace")
        if not message and self.exit_code and self.spec.get("terminationMessagePolicy") == "FallbackToLogsOnError":
            lines = self.running.text.splitlines(keepends=True)[-_LOG_LINES:]
            return "".join(lines).encode()[-_LOG_BYTES:].decode(errors="replace")
        return message


@dataclass
class Pod:
    """A pod with its containers. Where there is one answer, it is that of the first of them."""

    name: str
    namespace: str
    labels: Mapping[str, str]
    spec: Object
    address: str
    folder: Path
    parts: list[Part]
    disrupted: bool = False  # it has the condition DisruptionTarget
    ended: threading.Event = field(default_factory=threading.Event)

    @property
    def running(self) -> LocustProcess:
        return self.parts[0].running

    @property
    def log(self) -> str:
        """Output of `kubectl logs`."""
        return self.running.text

    @property
    def message(self) -> str:
        """The termination message, after its end."""
        return self.parts[0].message

    @property
    def exit_code(self) -> int | None:
        return self.parts[0].exit_code

    @property
    def succeeded(self) -> bool:
        return all(part.exit_code == 0 for part in self.parts)

    def kill(self) -> None:
        """Kill its processes, as at the end of its node."""
        for part in self.parts:
            part.running.process.kill()

    def wait(self, timeout_s: float = PATIENCE_S) -> int:
        """Wait for its end; return the exit code."""
        assert self.ended.wait(timeout_s), f"{self.name} is running after {timeout_s} s:\n{self.log}"
        assert self.exit_code is not None
        return self.exit_code

    def volume(self, path: str) -> Path:
        """Return the folder that is mounted at a path."""
        return next(mount.source for mount in self.parts[0].container.mounts if mount.path == path)


@dataclass
class Job:
    """A Job with all pods that it has had, by their index, and its conditions."""

    name: str
    spec: Object
    namespace: str
    pods: list[list[Pod]] = field(default_factory=list)
    failures: int = 0
    succeeded: set[int] = field(default_factory=set)
    conditions: list[dict[str, str]] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)
    fault: Exception | None = None  # of its controller

    def wait(self, timeout_s: float = PATIENCE_S) -> dict[str, str]:
        """Wait for its end; return its last condition."""
        texts = "\n".join(pods[-1].log for pods in self.pods)
        assert self.ended.wait(timeout_s), f"{self.name} is running after {timeout_s} s:\n{texts}"
        if self.fault is not None:
            raise self.fault
        return self.conditions[-1]

    def end(self, kind: str, reason: str, message: str) -> None:
        """Set the conditions of the end: https://kubernetes.io/docs/concepts/workloads/controllers/job/#job-termination-and-cleanup"""
        before = {"Complete": "SuccessCriteriaMet", "Failed": "FailureTarget"}[kind]
        self.conditions += [
            {"type": each, "status": "True", "reason": reason, "message": message} for each in (before, kind)
        ]


class Cluster:
    """Pods with a network. `close` ends them all. `folder`: for volumes, by pod. `niceness`: of all processes."""

    def __init__(self, folder: Path, niceness: int = 0) -> None:
        if why := why_impossible():
            pytest.skip(f"pods need namespaces of the kernel: {why}")
        self.folder, self.namespace, self._niceness = folder, "default", niceness
        self.jobs: dict[str, Job] = {}
        self.pods: list[Pod] = []
        self.delays_s: dict[tuple[str, str], float] = {}  # one way, between pods whose names begin so
        self.dropped: list[str] = []
        self.nodes: dict[str, Node] = {}  # other ones than this machine, by the start of the names of their pods
        self.images: dict[str, Mapping[str, Path]] = {"inferload": INFERLOAD}  # their programs, by name
        self._objects: dict[tuple[str, str, str], Object] = {}
        self._lock = threading.RLock()
        self._closing = False
        self._count = 0
        self._peers: list[Peer] = []
        self._network, far_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with far_end:
            program = [_PYTHON, "-m", "cluster.switch"]
            self._switch = subprocess.Popen(program, stdin=far_end, env={**os.environ, "PYTHONPATH": str(SUPPORT)})

    # -- objects

    def apply(self, *objects: Object) -> None:
        """Create objects, as `kubectl apply`: the pods of Jobs after all others."""
        for each in objects:
            name = each["metadata"]["name"]
            namespace = each["metadata"].setdefault("namespace", self.namespace)
            self._objects[each["kind"], namespace, name] = each
        self._update()
        for each in objects:
            if each["kind"] == "Job":
                self._start_job(each)
            if each["kind"] == "Pod":
                self._start_pod(each["metadata"]["name"], each["metadata"], each["spec"])

    def get(self, kind: str, name: str, namespace: str | None = None) -> Object | None:
        """Return an object, or None if there is none of this name."""
        return self._objects.get((kind, namespace or self.namespace, name))

    def of_kind(self, kind: str) -> list[Object]:
        """Return the objects of a kind, in all namespaces."""
        return [each for (its, _namespace, _name), each in self._objects.items() if its == kind]

    # -- network

    def _update(self, peer: Peer | None = None, device: int | None = None) -> None:
        """Tell the network about a new pod, or about other policies, Services and delays."""
        with self._lock:
            if peer is not None:
                self._peers.append(peer)
            state = {
                "pods": [astuple(each) for each in self._peers],
                "policies": self.of_kind("NetworkPolicy"),
                "names": dict(self._names()),
                "delays_s": dict(self._delays()),
            }
            socket.send_fds(self._network, [json.dumps(state).encode()], [] if device is None else [device])
            self.dropped = json.loads(self._network.recv(1 << 20))

    def refresh(self) -> None:
        """Tell the network about changed delays, and ask for the dropped flows."""
        self._update()

    def _names(self) -> Iterator[tuple[str, list[str]]]:
        """Yield the names of headless Services with the addresses of their pods."""
        ended = {pod.address for pod in self.pods if pod.ended.is_set()}
        for service in self.of_kind("Service"):
            name, namespace = service["metadata"]["name"], service["metadata"]["namespace"]
            assert service["spec"]["clusterIP"] == "None", f"{name}: only headless Services are simulated"
            selector = {"matchLabels": service["spec"]["selector"]}
            chosen = (each for each in self._peers if each.namespace == namespace and selects(selector, each.labels))
            yield (
                f"{name}.{namespace}.svc.cluster.local",
                [each.address for each in chosen if each.address not in ended],
            )

    def _delays(self) -> Iterator[tuple[str, float]]:
        """Yield pairs of addresses with the delay between them."""
        for (start, end), delay_s in self.delays_s.items():
            for source, target in product(self._peers, repeat=2):
                if source.name.startswith(start) and target.name.startswith(end):
                    yield f"{source.address} {target.address}", delay_s
                    yield f"{target.address} {source.address}", delay_s

    # -- Jobs

    def _start_job(self, job: Object) -> None:
        spec, metadata = job["spec"], job["metadata"]
        assert spec["completionMode"] == "Indexed"
        assert spec["parallelism"] == spec["completions"]
        started = Job(metadata["name"], spec, metadata["namespace"])
        self.jobs[started.name] = started
        started.pods = [[] for _ in range(spec["completions"])]
        for index in range(spec["completions"]):
            self._start_pod_of(started, index)

    def _start_pod_of(self, job: Job, index: int) -> None:
        metadata = job.spec["template"]["metadata"]
        labels = {**metadata["labels"], _JOB_NAME: job.name, _INDEX: str(index)}
        name = f"{job.name}-{index}-{len(job.pods[index])}"
        described = {"namespace": job.namespace, "labels": labels}
        pod = self._start_pod(name, described, job.spec["template"]["spec"], f"{job.name}-{index}")
        job.pods[index].append(pod)
        threading.Thread(target=self._watch, args=(pod, job, index), daemon=True).start()

    def _watch(self, pod: Pod, job: Job, index: int) -> None:
        pod.ended.wait()
        try:
            self._control(pod, job, index)
        except Exception as error:  # noqa: BLE001 (raised where the test waits)
            job.fault = error
            job.ended.set()

    def _control(self, pod: Pod, job: Job, index: int) -> None:
        """Do what the Job's controller does at the end of a pod."""
        with self._lock:
            if self._closing or job.conditions:
                pass
            elif pod.succeeded:
                job.succeeded.add(index)
                if len(job.succeeded) == job.spec["completions"]:
                    job.end("Complete", "CompletionsReached", "Reached expected number of succeeded pods")
            elif failed := _failed_by(job.spec.get("podFailurePolicy", {}), pod):
                job.end("Failed", "PodFailurePolicy", failed)
            else:
                job.failures += 1
                if job.failures > job.spec.get("backoffLimit", 6):
                    job.end("Failed", "BackoffLimitExceeded", "Job has reached the specified backoff limit")
        if not self._closing and not job.conditions and not pod.succeeded:
            time.sleep(_RESTART_S)
            if not self._closing:
                self._start_pod_of(job, index)  # without the lock, which its thread needs
        if job.conditions and not job.ended.is_set():
            for others in job.pods:
                self.terminate(others[-1])
            job.ended.set()

    # -- pods

    def terminate(self, pod: Pod) -> None:
        """End a pod as at its deletion: SIGTERM, and SIGKILL after its grace period. Returns at its end."""
        for part in pod.parts:
            part.running.send(signal.SIGTERM)
        if not pod.ended.wait(pod.spec.get("terminationGracePeriodSeconds", 30)):
            pod.kill()
            pod.ended.wait()

    def evict(self, pod: Pod) -> None:
        """End a pod as at its preemption, or before the end of its node."""
        pod.disrupted = True
        self.terminate(pod)

    def _start_pod(self, name: str, metadata: Object, spec: Object, host_name: str | None = None) -> Pod:
        with self._lock:
            self._count += 1
            number = self._count
        address = f"10.244.{number // 250}.{number % 250 + 1}"
        namespace, labels = metadata["namespace"], metadata.get("labels", {})
        folder = self.folder / f"{number:03}-{name}"
        security, parts = spec.get("securityContext", {}), list[Part]()
        sources = {
            each["name"]: self._volume(each, namespace, folder, security.get("fsGroup"))
            for each in spec.get("volumes", ())
        }
        pod = Pod(name, namespace, labels, spec, address, folder, parts)
        with self._lock:
            self.pods.append(pod)
        for each in spec["containers"]:
            container = self._container(name, namespace, {**security, **each.get("securityContext", {})}, each, sources)
            container = replace(container, folder=folder / each["name"], address=address, host_name=host_name or name)
            if parts:
                process = container.start(beside=parts[0].running.process.pid)
            else:
                process = container.start(lambda device: self._update(Peer(address, namespace, labels, name), device))
            parts.append(Part(each["name"], each, container, LocustProcess(process)))
        if self._closing:
            pod.kill()
        for follow in (*(part.running.read for part in parts), lambda: self._follow(pod)):
            threading.Thread(target=follow, daemon=True).start()
        return pod

    def _follow(self, pod: Pod) -> None:
        for part in pod.parts:
            code = part.running.exit_code(timeout_s=1e6)
            part.exit_code = 128 - code if code < 0 else code
        pod.ended.set()

    def _container(
        self, name: str, namespace: str, security: Object, given: Object, sources: Mapping[str, Path]
    ) -> Container:
        node = next((start for start in self.nodes if name.startswith(start)), "")
        environment = {**dict(self._environment(given, namespace)), **self.nodes.get(node, Node()).environment}
        group, image = security.get("fsGroup"), given["image"].partition(":")[0]
        return Container(
            command=[_expanded(word, environment) for word in (*given["command"], *given.get("args", ()))],
            environment=environment,
            resolver=f"search {namespace}.svc.cluster.local svc.cluster.local cluster.local\n"
            f"nameserver {NAME_SERVER}\noptions ndots:5\n",
            mounts=[
                *(
                    Mount(sources[each["name"]], each["mountPath"], each.get("readOnly", False))
                    for each in given.get("volumeMounts", ())
                ),
                *self.nodes.get(node, Node()).mounts,
            ],
            programs=self.images.get(image, {}),
            user=security.get("runAsUser", 1000),
            group=security.get("runAsGroup", 1000),
            groups=() if group is None else (group,),
            read_only=security.get("readOnlyRootFilesystem", False),
            no_new_privileges=not security.get("allowPrivilegeEscalation", True),
            no_capabilities="ALL" in security.get("capabilities", {}).get("drop", ()),
            monotonic_s=self.nodes.get(node, Node()).monotonic_s,
            niceness=self._niceness,
        )

    def _environment(self, main: Object, namespace: str) -> Iterator[tuple[str, str]]:
        for each in main.get("env", ()):
            if "value" in each:
                yield each["name"], each["value"]
                continue
            reference = each["valueFrom"]["secretKeyRef"]
            secret = self.get("Secret", reference["name"], namespace)
            values = {} if secret is None else contents(secret)
            if reference["key"] in values:
                yield each["name"], values[reference["key"]].decode()
            else:
                assert reference.get("optional"), f"CreateContainerConfigError: {reference}"

    def _volume(self, volume: Object, namespace: str, folder: Path, group: int | None) -> Path:
        """Return the folder of a volume. Kubernetes waits for objects that are not there: here that is an error."""
        place = folder / "volumes" / volume["name"]
        for kind, key, its_name in (("Secret", "secret", "secretName"), ("ConfigMap", "configMap", "name")):
            if source := volume.get(key):
                given = self.get(kind, source[its_name], namespace)
                assert given or source.get("optional"), f"FailedMount: {kind} {source[its_name]} not found"
                values = contents(given) if given else {}
                write_keys(place, values, source.get("items") if given else (), group or 0)
                return place
        if claim := volume.get("persistentVolumeClaim"):
            place = self.claim(claim["claimName"])
            writable(place, group, 0o755)
            return place
        assert "emptyDir" in volume, volume
        writable(place, group, 0o777)
        return place

    def claim(self, name: str) -> Path:
        """Return the folder of a persistent volume claim."""
        return self.folder / "claims" / name

    def close(self) -> None:
        """End all pods and the network."""
        self._closing = True
        for pod in self.pods:
            pod.kill()
        for pod in self.pods:
            pod.ended.wait(10)
            for part in pod.parts:
                part.running.read_all.wait(10)
                if part.running.process.stdout is not None:
                    part.running.process.stdout.close()
        self._network.close()
        self._switch.wait(10)


def _failed_by(policy: Object, pod: Pod) -> str | None:
    """Return the message of the condition if a failed pod fails its Job by the first rule that matches, else None."""
    for number, rule in enumerate(policy.get("rules", ())):
        assert rule["action"] == "FailJob"
        where = f"matching FailJob rule at index {number}"
        if conditions := rule.get("onPodConditions"):
            assert [{"status": "True", **each} for each in conditions] == [
                {"type": "DisruptionTarget", "status": "True"}
            ]
            if pod.disrupted:
                return f"Pod {pod.namespace}/{pod.name} has condition DisruptionTarget {where}"
            continue
        codes = rule["onExitCodes"]
        for part in pod.parts:
            matches = (part.exit_code in codes["values"]) == (codes["operator"] == "In")
            if part.exit_code and matches and part.name == codes.get("containerName", part.name):
                of = f"Container {part.name} for pod {pod.namespace}/{pod.name}"
                return f"{of} failed with exit code {part.exit_code} {where}"
    return None


def _expanded(word: str, environment: Mapping[str, str]) -> str:
    """Expand `$(NAME)`; `$$` stands for `$`, and unknown names remain."""
    return _VARIABLE.sub(lambda found: "$" if found[1] is None else environment.get(found[1], found[0]), word)
