"""Checks of a rendered run against the cluster of kubectl, which create nothing."""

import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence

from inferload.base.errors import UsageError

from .run_objects import S3_SECRET
from .run_plan import RunPlan

_TIMEOUT_S, _LINE_CHARS = 60, 300  # of a message, which may have the whole template of a pod
_KEYS = "go-template={{range $key, $value := .data}}{{$key}} {{end}}"
_PREFIXES = re.compile(r"^(error: |Error from server |\(\w+\): |error when creating \"STDIN\": )*")
# What kubectl's messages have, with the remedy.
_REMEDIES = {
    "(Forbidden)": "ask for the right to it, or leave --dry-run out",
    "field is immutable": "delete the earlier run first",
    'kind "JobSet"': "install JobSet, or use --format kubernetes",
    'kind "LocustTest"': "install the operator of this format, or use --format kubernetes",
    "namespaces ": "create the namespace, or name another with --namespace",
    "secrets ": "create the Secret, or name another",
    "configmaps ": "create the ConfigMap, or name another",
    "persistentvolumeclaims ": "create the claim, or name another with --results",
}


def check(plan: RunPlan, texts: Mapping[str, str]) -> str:
    """Return what was checked. Raise UsageError for objects that are missing, or that the cluster refuses.

    `texts`: the YAML files of a form for Kubernetes.
    """
    if shutil.which("kubectl") is None:
        return "options: valid; the cluster was not asked, as kubectl is not installed"
    where = ["-n", plan.cluster.namespace] if plan.cluster.namespace else []
    _kubectl(["get", "--raw", "/version"])  # without a cluster the other commands say less
    documents = "---\n".join(text for name, text in texts.items() if "/" not in name)
    # First: it knows of namespaces.
    _kubectl(["apply", "--server-side", "--dry-run=server", *where, "-f", "-"], documents)
    for kind, name, key in _needed(plan):
        found = _kubectl(["get", kind, name, *where, "-o", _KEYS if key else "name"])
        if key and key not in found.split():
            raise UsageError(f"{kind} {name}: has no key {key}; add it, or name another as NAME/KEY")
    return "options and cluster: valid; nothing was created"


def _needed(plan: RunPlan) -> Iterator[tuple[str, str, str]]:
    """Yield kind, name and key of the objects that must be there; no key where none is read."""
    secrets = (plan.api_key, None if plan.made_token else plan.token)
    for kind, keys in (("secret", secrets), ("configmap", (plan.ca,))):
        yield from ((kind, key.name, key.key) for key in keys if key)
    if plan.cluster.pull_secret:
        yield "secret", plan.cluster.pull_secret, ""
    if plan.results.kind == "s3":
        yield "secret", S3_SECRET, ""
    if plan.results.kind == "pvc":
        yield "persistentvolumeclaim", plan.results.place, ""


def _kubectl(words: Sequence[str], text: str = "") -> str:
    """Return the output of kubectl. Raise UsageError with its last message and a remedy."""
    try:
        done = subprocess.run(
            ["kubectl", *words], input=text, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        said = f"no answer for {_TIMEOUT_S} s" if isinstance(error, subprocess.TimeoutExpired) else error
        raise UsageError(f"kubectl {words[0]}: {said}; check kubectl and its context") from error
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or [f"exit code {done.returncode}"]
        said = next((line for line in lines for part in _REMEDIES if part in line), lines[-1])
        remedy = next((remedy for part, remedy in _REMEDIES.items() if part in said), "check kubectl and its context")
        raise UsageError(f"cluster: {_PREFIXES.sub('', said)[:_LINE_CHARS]}; {remedy}")
    return done.stdout
