"""`inferload render run --dry-run` with a made kubectl, which prints what kubectl 1.32 does."""

from collections.abc import Callable
from pathlib import Path

import pytest
from inferload.deploy.render import dry_run
from rendered import rendered

HOST = "http://llama.serving:8000"
ALL = (
    "--namespace",
    "load",
    "--api-key-secret",
    "llm/key",
    "--token-secret",
    "mine",
    "--ca-configmap",
    "roots/ca.pem",
    "--pull-secret",
    "pull",
)
ALL += ("--results", "pvc:kept")
# Answers by the end of the words. The keys of an object are printed as the template of the command asks for them.
THERE = {
    "get --raw /version": "echo '{}'",
    "get secret llm": "echo -n 'key other '",
    "get secret mine": "echo -n 'token '",
    "get secret pull": "echo -n '.dockerconfigjson '",
    "get configmap roots": "echo -n 'ca.pem '",
    "get persistentvolumeclaim kept": "echo persistentvolumeclaim/kept",
    "apply ": "cat > $0.applied; echo 'job.batch/x serverside-applied (server dry run)'",
}


def not_found(kind: str, name: str) -> str:
    return f"""echo 'Error from server (NotFound): {kind} "{name}" not found' >&2; exit 1"""


def no_kind(kind: str, version: str) -> str:
    said = f'name: "x" namespace: "" from "STDIN": no matches for kind "{kind}" in version "{version}"'
    told = f"error: resource mapping not found for {said}\nensure CRDs are installed first"
    return f"cat >/dev/null; echo '{told}' >&2; exit 1"


NO_CLUSTER = """\
echo 'E1130 06:51:22.142891   32530 memcache.go:265] "Unhandled Error" err="dial tcp: connection refused"' >&2
echo 'The connection to the server localhost:8080 was refused - did you specify the right host or port?' >&2; exit 1"""
SAID = 'Error from server (Forbidden): secrets "llm" is forbidden: User "u" cannot get resource "secrets"'
FORBIDDEN = f"echo '{SAID}' >&2; exit 1"
CASES: dict[str, tuple[str, dict[str, str], str]] = {
    "no namespace": (
        "kubernetes",
        {"get secret llm": not_found("namespaces", "load")},
        'namespaces "load" not found; create the namespace, or name another with --namespace',
    ),
    "no namespace of a plain run": (
        "kubernetes",
        {"apply ": not_found("namespaces", "load")},
        'namespaces "load" not found; create the namespace, or name another with --namespace',
    ),
    "no Secret": (
        "kubernetes",
        {"get secret mine": not_found("secrets", "mine")},
        'secrets "mine" not found; create the Secret, or name another',
    ),
    "no pull Secret": (
        "helm",
        {"get secret pull": not_found("secrets", "pull")},
        'secrets "pull" not found; create the Secret, or name another',
    ),
    "no ConfigMap": (
        "kubernetes",
        {"get configmap roots": not_found("configmaps", "roots")},
        'configmaps "roots" not found; create the ConfigMap, or name another',
    ),
    "no claim": (
        "kubernetes",
        {"get persistentvolumeclaim kept": not_found("persistentvolumeclaims", "kept")},
        'persistentvolumeclaims "kept" not found; create the claim, or name another with --results',
    ),
    "no JobSet": (
        "jobset",
        {"apply ": no_kind("JobSet", "jobset.x-k8s.io/v1alpha2")},
        'no matches for kind "JobSet" in version "jobset.x-k8s.io/v1alpha2"; install JobSet, or use --format kubernetes',
    ),
    "no operator": (
        "locusttest-v2",
        {"apply ": no_kind("LocustTest", "locust.io/v2")},
        'kind "LocustTest" in version "locust.io/v2"; install the operator of this format, or use --format kubernetes',
    ),
    "no right": (
        "kubernetes",
        {"get secret llm": FORBIDDEN},
        'cannot get resource "secrets"; ask for the right to it, or leave --dry-run out',
    ),
    "no cluster": (
        "kubernetes",
        {"get --raw /version": NO_CLUSTER},
        "server localhost:8080 was refused - did you specify the right host or port?; check kubectl and its context",
    ),
    "no message": ("kubernetes", {"apply ": "exit 7"}, "cluster: exit code 7; check kubectl and its context"),
}


@pytest.fixture
def kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, str]], Path]:
    """A function that puts a kubectl alone on PATH, and returns its path. It answers by the begin of its words."""

    def put(answers: dict[str, str]) -> Path:
        script = tmp_path / "bin" / "kubectl"
        script.parent.mkdir()
        cases = "\n".join(f'"{words}"*) {answer} ;;' for words, answer in answers.items())
        script.write_text(
            f'#!/bin/sh\necho "$*" >> "$0.log"\ncase "$*" in\n{cases}\n*) echo "error: unknown: $*" >&2; exit 1 ;;\nesac\n'
        )
        script.chmod(0o755)
        monkeypatch.setenv("PATH", f"{script.parent}:/bin:/usr/bin")
        monkeypatch.chdir(tmp_path)
        return script

    return put


def words(form: str, *more: str) -> tuple[str, ...]:
    return ("render", "run", "smoke", "--host", HOST, "--format", form, *more, "--dry-run", "-o", "out")


@pytest.mark.parametrize("form", ["kubernetes", "jobset", "helm"])
def test_a_cluster_with_all_objects_passes(
    kubectl: Callable[[dict[str, str]], Path], command: Callable[..., str], form: str
) -> None:
    script = kubectl(THERE)
    assert command(*words(form, *ALL)).splitlines()[0] == "options and cluster: valid; nothing was created"
    asked = Path(f"{script}.log").read_text().splitlines()
    wanted = sorted([*list(THERE)[:-1], "apply --server-side --dry-run=server"])
    assert sorted(" ".join(line.split()[:3]) for line in asked) == wanted
    assert all("-n load" in line for line in asked[1:])
    files = rendered(
        "render", "run", "smoke", "--host", HOST, *ALL, "--format", form if form == "jobset" else "kubernetes"
    )
    documents = "---\n".join(text for name, text in files.items() if "/" not in name)
    assert Path(f"{script}.applied").read_text() == documents
    assert not Path("out").exists()


@pytest.mark.parametrize("case", CASES)
def test_each_state_of_a_cluster_is_one_line(
    kubectl: Callable[[dict[str, str]], Path], command: Callable[..., str], case: str
) -> None:
    form, answers, wanted = CASES[case]
    kubectl({**THERE, **answers})
    options = () if form == "jobset" or "plain" in case else ALL
    lines = [line for line in command(*words(form, *options), code=2).splitlines() if line.startswith("inferload: ")]
    assert len(lines) == 1
    assert lines[0].startswith("inferload: cluster: ")
    assert lines[0].endswith(wanted)
    assert not Path("out").exists()


def test_a_missing_key_of_an_object_is_named(
    kubectl: Callable[[dict[str, str]], Path], command: Callable[..., str]
) -> None:
    kubectl({**THERE, "get secret llm": "echo -n 'key2 keys '"})
    refused = command(*words("kubernetes", *ALL), code=2).splitlines()[-1]
    assert refused == "inferload: secret llm: has no key key; add it, or name another as NAME/KEY"


def test_a_kubectl_that_hangs_is_ended(
    kubectl: Callable[[dict[str, str]], Path], command: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kubectl({**THERE, "get --raw /version": "exec sleep 600"})
    monkeypatch.setattr(dry_run, "_TIMEOUT_S", 0.2)
    refused = command(*words("kubernetes"), code=2).splitlines()[-1]
    assert refused == "inferload: kubectl get: no answer for 0.2 s; check kubectl and its context"


def test_without_kubectl_the_options_alone_are_checked(
    command: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    shown = command(*words("helm", *ALL)).splitlines()[0]
    assert shown == "options: valid; the cluster was not asked, as kubectl is not installed"
    refused = command(*words("kubernetes", "--toleration", "=x"), code=2).splitlines()[-1]
    assert refused.startswith("inferload: --toleration =x: must be ")
    assert not [*tmp_path.iterdir()]
