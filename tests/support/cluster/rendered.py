"""Pods of `inferload render run` in a cluster on this machine, with a simulator as their target."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import forge
import yaml

from .kube import Cluster, Job, Object, Pod

HOST = "http://target.serving:8000"
CLAIM = "results"


def files(
    folder: Path, scenario: Path | str, *options: str, host: str = HOST, run: tuple[str, ...] = ()
) -> list[Object]:
    """Return the objects of a rendered run. `options`: of the command; `run`: of the run."""
    words = ["render", "run", str(scenario), "--host", host, "--name", "run", "-o", str(folder), *options]
    process = forge.COMMANDS.start("inferload", [*words, "--", *run], env=os.environ, errors_too=True)
    assert process.stdout is not None
    text = process.stdout.read()
    assert process.wait(60) == 0, text
    return [each for file in sorted(folder.glob("*.yaml")) for each in yaml.safe_load_all(file.read_text())]


def target(flags: Sequence[str], files: Mapping[str, str]) -> list[Object]:
    """Return a simulator with its Service, in a namespace of its own. `files`: in its folder /tls."""
    labels = {"app": "target"}
    command = ["inferload", "simulator", "--host", "0.0.0.0", "--port", "8000", "--exit-after-s", "600", *flags]
    container = {"name": "server", "image": "inferload:test", "command": command}
    container["volumeMounts"] = [{"name": "files", "mountPath": "/tls"}]
    spec = {"containers": [container], "volumes": [{"name": "files", "configMap": {"name": "target"}}]}
    of = {"name": "target", "namespace": "serving"}
    return [
        {"kind": "ConfigMap", "metadata": of, "data": dict(files)},
        {"kind": "Service", "metadata": of, "spec": {"clusterIP": "None", "selector": labels}},
        {"kind": "Pod", "metadata": {**of, "labels": labels}, "spec": spec},
    ]


class Run:
    """A rendered run in a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    @property
    def master(self) -> Job:
        return self.cluster.jobs["run-master"]

    @property
    def workers(self) -> Job:
        return self.cluster.jobs["run-worker"]

    @property
    def master_pod(self) -> Pod:
        return self.master.pods[0][0]

    @property
    def run_dir(self) -> Path:
        """The newest run directory in the master's volume."""
        return (self.master_pod.volume("/data/runs") / "latest").resolve()

    @property
    def text(self) -> str:
        """The logs of all pods."""
        return "\n".join(f"-- {pod.name}: {pod.exit_code}\n{pod.log}" for pod in self.cluster.pods)


@contextmanager
def started(
    folder: Path,
    *objects: Object,
    simulator: tuple[str, ...] | None = (),
    simulator_files: Mapping[str, str] | None = None,
    niceness: int = 0,
) -> Iterator[Run]:
    """Start a rendered run beside a simulator, if there is one, until the end of the context. `simulator`: its options."""
    run = Run(Cluster(folder, niceness))
    try:
        if simulator is not None:
            run.cluster.apply(*target(simulator, simulator_files or {}))
            run.cluster.pods[0].running.wait_for_line("http")
        run.cluster.apply(*objects)
        yield run
    except Exception as error:
        error.add_note(run.text)
        raise
    finally:
        run.cluster.close()
