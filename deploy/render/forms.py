"""Forms of a run in containers: the files of one plan for each kind of cluster. No I/O."""

import shlex
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

from inferload.base.errors import UsageError

from . import compose_run, helm
from .run_objects import (
    common_values,
    escape,
    jobs,
    key_of,
    mount_of,
    objects,
    reader_file,
    service,
    volumes_of,
)
from .run_plan import METRICS_PORT, TERMINATION_LOG, RunPlan
from .yaml_files import Object, as_yaml, document, head

Files = dict[str, str]
_MOST_WORKERS = 500  # maximum of the schema
_NONE = {"none.txt": "The operator wants a file.\n"}
_HEADS = {
    "token.yaml": "Only processes with this token can join the run, and their connection is encrypted. Keep this file secret.",
    "policies.yaml": "Nothing in, and out only to names and addresses of the run. The network plugin must enforce policies.",
}


def kubernetes(plan: RunPlan) -> Files:
    """Return the files of a run as Jobs."""
    return _files(plan, "run.yaml", [service(plan), *jobs(plan)])


def jobset(plan: RunPlan) -> Files:
    """Return the files of a run as a JobSet of the same Jobs."""
    master, worker = (job["spec"] for job in jobs(plan))
    del worker["podFailurePolicy"]  # a Job that fails ends the set, so that the outcome of the master could be lost
    values = {**common_values(plan), "master": master, "worker": worker}
    return _files(plan, "jobset.yaml", [service(plan), document("jobset.yaml", values)])


def locusttest_v2(plan: RunPlan) -> Files:
    """Return the files of a run as a LocustTest of locust.io/v2."""
    if any(map(str.isspace, plan.locustfile)):
        raise UsageError(f"-f {plan.locustfile}: the operator splits its path at blanks; give it a name without")
    if plan.workers > _MOST_WORKERS:
        raise UsageError(f"--workers {plan.workers}: a LocustTest of locust.io/v2 has at most {_MOST_WORKERS}")
    plan = replace(plan, metrics_port=METRICS_PORT + 1)  # the operator's exporter has that of a run
    of_master, of_worker = ([*volumes_of(plan, part)] for part in ("master", "worker"))
    mounts: list[Object] = [{**mount_of(*one), "target": "both"} for one in of_master if one in of_worker]
    for target, own, others in (("master", of_master, of_worker), ("worker", of_worker, of_master)):
        mounts += [{**mount_of(*one), "target": target} for one in own if one not in others]
    values = {
        **common_values(plan),
        "seed": f"-f {plan.locust()[-1]}",
        "master_arguments": escape([*plan.master_words(), "--termination-message", TERMINATION_LOG]),
        "worker_arguments": escape(plan.common_words()),
        "volumes": [*{volume["name"]: volume for volume, _path in (*of_worker, *of_master)}.values()],
        "mounts": mounts,
    }
    scheduling = {"nodeSelector": values["node_selector"], "tolerations": values["tolerations"]}
    values["scheduling"] = {key: value for key, value in scheduling.items() if value} or None
    return _files(plan, "locusttest-v2.yaml", [document("locusttest-v2.yaml", values)])


def locusttest_cloud(plan: RunPlan) -> Files:
    """Return the files of a run as a LocustTest of locust.cloud/v1. Raise UsageError for modules in folders."""
    if any(key_of(path) != path for path in plan.files):
        raise UsageError(
            f"{', '.join(plan.files)}: a LocustTest of locust.cloud/v1 takes plain names; use --format locusttest-v2"
        )
    # Its operator mounts one ConfigMap, at this place, and adds `--master` or `--worker --master-host` to the arguments of both.
    own = replace(plan, token=None, made_token="", folder="/home/locust", files=plan.files or _NONE)
    arguments = ["-f", own.locust()[-1], *own.run_words(), *own.common_words(), "--expect-workers", str(own.workers)]
    arguments += ["--expect-workers-max-wait", str(own.ready_timeout_s), "--autostart"]
    values = {**common_values(own), "arguments": shlex.join(escape(arguments))}
    return _files(own, "locusttest-cloud.yaml", [document("locusttest-cloud.yaml", values)])


def _files(plan: RunPlan, template: str, run: list[Object]) -> Files:
    """Return the texts of all files of a form for Kubernetes. `template`: of the run, with the comment of its file."""
    values = common_values(plan)
    texts = {name: as_yaml(*contents, head=_HEADS.get(name, "")) for name, contents in objects(plan).items()}
    texts["run.yaml"] = as_yaml(*run, head=head(template, values))
    return {**texts, **reader_file(plan)}


_APPLY = "kubectl{where} apply --server-side -f {folder}"  # without, an annotation limits a ConfigMap to 262,144 bytes


class Form(NamedTuple):
    """Form of the files.

    `files`: function that returns them; `start`: command that starts the run; `checked`: form that the cluster checks; `refused`:
    options, or beginnings of an option with its value, which the form cannot have.
    """

    files: Callable[[RunPlan], Files]
    start: str
    checked: str = ""
    refused: tuple[str, ...] = ()


_COMPOSE = "docker compose -f {folder}/compose.yaml up --detach"
_NOT_CLOUD = ("--token-secret", "--api-key-secret", "--ca-configmap", "--results", "--node-selector", "--toleration")
FORMS: Mapping[str, Form] = {
    "kubernetes": Form(kubernetes, _APPLY, "kubernetes"),
    "jobset": Form(jobset, _APPLY, "jobset"),
    "locusttest-v2": Form(locusttest_v2, _APPLY, "locusttest-v2", ("--results s3",)),
    "locusttest-cloud": Form(locusttest_cloud, _APPLY, "locusttest-cloud", _NOT_CLOUD),
    "helm": Form(helm.files, "helm install{where} {name} {folder}", "kubernetes"),
    "compose": Form(compose_run.files, _COMPOSE, "", ("--namespace", "--pull-secret", "--scraper", *_NOT_CLOUD)),
}
