"""`inferload render run`: each form of several plans against its schema and the rules of its controllers; security of the pods."""

import copy
import functools
import json
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from inferload.deploy.render import forms
from rendered import check_kubernetes, compose_schema, objects, rendered

from inferload import cli

HOST = "http://llama.serving:8000"
DIGEST = "registry.example/team/inferload@sha256:" + "0a" * 32
# The words of a user are numbers in YAML 1.2, variables of Kubernetes, Compose and the shell, and expressions of Helm.
ODD_WORDS = ("--seed", "08", "--tag", "1e3", "--note", 'a $(HOME) $HOME ${X} {{ .Values.x }} "b" é\n- c')
FORMS = tuple(forms.FORMS)


@functools.cache
def own_locustfile() -> str:
    """The path of a locustfile beside modules in folders, one of which has an odd name."""
    folder = tempfile.TemporaryDirectory()
    root = Path(folder.name)
    for name in ("users.py", "shapes/steps.py", "shapes/odd näme.py"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(f"# {name}: {{{{ braces }}}} $(HOME)\n\ttab = 'x'  \n")
    own_locustfile.folder = folder  # type: ignore[attr-defined]  # kept until the process ends
    return str(root / "users.py")


def plans() -> dict[str, tuple[str, ...]]:
    cluster = ("--namespace", "load", "--image", DIGEST, "--pull-secret", "pull", "--node-selector", "pool=08")
    cluster += (
        "--node-selector",
        "kubernetes.io/arch=arm64",
        "--toleration",
        "dedicated=1e3:NoSchedule",
        "--toleration",
        "gpu",
    )
    secrets = ("--api-key-secret", "llm/key", "--ca-configmap", "roots", "--token-secret", "mine/word")
    pages = ("--metrics-url", "http://10.1.2.3:9400/metrics", "--metrics-url", "dns://pods.serving.svc:9400")
    return {
        "plain": (),
        "cluster": (
            *cluster,
            *secrets,
            *pages,
            "--results",
            "pvc:kept",
            "--scraper",
            "app=agent",
            "--scraper",
            "tier=08",
        ),
        "s3": (
            "--results",
            "s3://bucket/load/runs",
            "--s3-endpoint",
            "http://minio.storage:9000",
            "-f",
            own_locustfile(),
        ),
        "silent": ("--scraper", "none", "--workers", "500", "--name", "x" * 40, "--", *ODD_WORDS),
    }


PLANS = ("plain", "cluster", "s3", "silent")
REFUSED = {
    ("locusttest-v2", "s3"): "--results s3",
    ("locusttest-cloud", "cluster"): "--token-secret",
    ("locusttest-cloud", "s3"): "--results",
    ("compose", "cluster"): "--namespace",
    ("compose", "s3"): "--results",
}
RENDERED = [(form, name) for form in FORMS for name in PLANS if (form, name) not in REFUSED]
OF_KUBERNETES = [(form, name) for form, name in RENDERED if form not in ("helm", "compose")]


def files_of(form: str, name: str = "plain") -> dict[str, str]:
    return rendered("render", "run", "smoke", "--host", HOST, "--format", form, *plans()[name])


@functools.cache
def objects_of(form: str, name: str) -> list[dict[str, Any]]:
    return objects(files_of(form, name))


def of_kind(kind: str, form: str, name: str = "plain") -> list[dict[str, Any]]:
    return [entry for entry in objects_of(form, name) if entry["kind"] == kind]


def pods(form: str, name: str) -> Iterator[tuple[str, dict[str, str], dict[str, Any]]]:
    """Yield part, labels and specification of each pod; those of a LocustTest of locust.io/v2 as its operator makes them."""
    yield from pods_of(objects_of(form, name))


def pods_of(found: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, str], dict[str, Any]]]:
    for entry in found:
        if entry["kind"] == "Job":
            template = entry["spec"]["template"]
            yield template["spec"]["containers"][0]["name"], template["metadata"]["labels"], template["spec"]
        elif entry["kind"] == "Pod":
            yield "reader", entry["metadata"]["labels"], entry["spec"]
        elif entry["kind"] == "JobSet":
            for each in entry["spec"]["replicatedJobs"]:
                template = each["template"]["spec"]["template"]
                yield each["name"], template["metadata"]["labels"], template["spec"]
        elif entry["apiVersion"] == "locust.io/v2":
            spec = entry["spec"]
            for part in ("master", "worker"):
                mounts = [dict(each) for each in spec["volumeMounts"] if each["target"] in (part, "both")]
                names = {each["name"] for each in mounts if each.pop("target")}
                container = {
                    "name": part,
                    "image": spec["image"],
                    "args": [*spec[part]["command"].split(), *spec[part]["extraArgs"]],
                    "env": spec["env"]["variables"],
                    "volumeMounts": mounts,
                    "securityContext": spec["security"]["containerSecurityContext"],
                }
                volumes = [each for each in spec["volumes"] if each["name"] in names]
                security = spec["security"]["podSecurityContext"]
                yield (
                    part,
                    spec[part]["labels"],
                    {"containers": [container], "volumes": volumes, "securityContext": security},
                )


# -- schemas -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("form", "name"), OF_KUBERNETES)
def test_objects_are_valid(form: str, name: str) -> None:
    found = objects_of(form, name)
    for entry in found:
        check_kubernetes(entry)
    kinds = [entry["kind"] for entry in found]
    assert kinds.count("NetworkPolicy") == 3
    assert ("Secret" in kinds) is (form != "locusttest-cloud" and name != "cluster")
    assert ("Pod" in kinds) is (name == "cluster")
    assert {entry["metadata"].get("namespace") for entry in found} == {"load" if name == "cluster" else None}


@pytest.mark.parametrize("name", [name for form, name in RENDERED if form == "compose"])
def test_compose_files_are_valid(name: str) -> None:
    document = yaml.safe_load(files_of("compose", name)["compose.yaml"])
    compose_schema().validate(document)
    document["services"]["worker"]["cap_dorp"] = []
    with pytest.raises(jsonschema.ValidationError, match="cap_dorp"):
        compose_schema().validate(document)


BROKEN: list[tuple[str, str, tuple[str | int, ...], Any]] = [
    ("kubernetes", "Secret", ("stringDate",), {}),
    ("kubernetes", "NetworkPolicy", ("spec", "egress", 0, "prots"), []),
    ("kubernetes", "Job", ("spec", "podFailurePolicy", "rules", 1, "onExitCodes", "vlaues"), [1]),
    ("kubernetes", "Job", ("spec", "template", "spec", "containers", 0, "args", 0), 8),
    ("jobset", "JobSet", ("spec", "succesPolicy"), {}),
    (
        "jobset",
        "JobSet",
        ("spec", "replicatedJobs", 0, "template", "spec", "template", "spec", "volumes", 0, "emptyDri"),
        {},
    ),
    ("jobset", "JobSet", ("spec", "successPolicy", "operator"), "Every"),
    ("locusttest-v2", "LocustTest", ("spec", "volumeMounts", 0, "target"), "all"),
    ("locusttest-v2", "LocustTest", ("spec", "volumeMounts", 0, "mountpath"), "/x"),
    ("locusttest-v2", "LocustTest", ("spec", "master", "extraArgs", 0), 8),
    ("locusttest-v2", "LocustTest", ("spec", "worker", "replicas"), 501),
    ("locusttest-cloud", "LocustTest", ("spec", "env", 0, "valueFrom"), {}),
    ("locusttest-cloud", "LocustTest", ("spec", "volumes"), []),
    ("locusttest-cloud", "LocustTest", ("spec", "locustfile", "content"), "x"),
]


@pytest.mark.parametrize(("form", "kind", "path", "value"), BROKEN)
def test_a_broken_field_is_refused(form: str, kind: str, path: tuple[str | int, ...], value: Any) -> None:
    entry = copy.deepcopy(of_kind(kind, form)[0])
    part: Any = entry
    for step in path[:-1]:
        part = part[step]
    part[path[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        check_kubernetes(entry)


@pytest.mark.parametrize(("form", "name"), REFUSED)
def test_what_a_form_cannot_have_is_refused(command: Callable[..., str], tmp_path: Path, form: str, name: str) -> None:
    words = ("render", "run", "smoke", "--host", HOST, "--format", form, "-o", tmp_path, *plans()[name])
    (line,) = [line for line in command(*words, code=2).splitlines() if line.startswith("inferload: ")]
    assert line.startswith(f"inferload: {REFUSED[form, name]}")
    assert "; use " in line or "; leave it out, or use " in line
    assert not [*tmp_path.iterdir()]


OF_A_CLUSTER = {
    "--namespace": "load",
    "--pull-secret": "pull",
    "--node-selector": "a=b",
    "--toleration": "gpu",
    "--token-secret": "mine",
    "--api-key-secret": "llm",
    "--ca-configmap": "roots",
    "--results": "pvc:kept",
}
SECRETS_AND_PLACES = ("--api-key-secret", "--ca-configmap", "--results", "--node-selector", "--toleration")


@pytest.mark.parametrize(
    ("form", "options"), [("compose", tuple(OF_A_CLUSTER)), ("locusttest-cloud", SECRETS_AND_PLACES)]
)
def test_every_option_that_a_form_has_no_field_for_is_refused(
    command: Callable[..., str], form: str, options: tuple[str, ...]
) -> None:
    for option in options:
        words = ("render", "run", "smoke", "--host", HOST, "--format", form, "--dry-run", option, OF_A_CLUSTER[option])
        assert command(*words, code=2).splitlines()[-1].startswith(f"inferload: {option}: not ")


# -- rules of the controllers beside the schemas

FOLDERS = {"--token-file": "/secrets/", "--api-key-file": "/secrets/", "--ca-file": "/ca/", "--scenario": "/files/"}


@pytest.mark.parametrize(("form", "name"), OF_KUBERNETES)
def test_volumes_of_a_pod_are_there_and_are_mounted(form: str, name: str) -> None:
    maps = {entry["metadata"]["name"]: entry["data"] for entry in of_kind("ConfigMap", form, name)}
    made = {entry["metadata"]["name"] for entry in of_kind("Secret", form, name)}
    for part, _labels, spec in pods(form, name):
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        mounts = [mount for container in spec["containers"] for mount in container["volumeMounts"]]
        assert {mount["name"] for mount in mounts} == volumes.keys()
        of_first = [mount["mountPath"] for mount in spec["containers"][0]["volumeMounts"]]
        assert len({*of_first}) == len(of_first)
        words = spec["containers"][0].get("args", [])
        for flag, folder in FOLDERS.items():
            if flag in words:
                assert words[words.index(flag) + 1].startswith(folder)
                assert str(Path(words[words.index(flag) + 1]).parent) in of_first
        if name == "cluster" and part != "reader":
            keys = (
                "--token-file",
                "/secrets/mine/word",
                "--api-key-file",
                "/secrets/llm/key",
                "--ca-file",
                "/ca/roots/ca.crt",
            )
            assert " ".join(keys) in " ".join(words)
        for volume in volumes.values():
            if "secret" in volume:
                secret = volume["secret"]
                assert secret["optional"] is (secret["secretName"] not in made), part
            elif volume["name"] == "files":
                items = {item["key"]: item["path"] for item in volume["configMap"]["items"]}
                assert items.keys() == maps[volume["configMap"]["name"]].keys()
                if name == "s3":
                    assert sorted(items.values()) == ["shapes/odd näme.py", "shapes/steps.py", "smoke.yaml", "users.py"]


@pytest.mark.parametrize("name", ["plain", "cluster", "silent"])
def test_a_locusttest_v2_fits_its_operator(name: str) -> None:
    """Its webhook, and its managed flags: internal/resources/command.go and api/v2/locusttest_webhook.go."""
    (entry,) = of_kind("LocustTest", "locusttest-v2", name)
    own, spec = entry["metadata"]["name"], entry["spec"]
    assert len(own) <= 56
    managed = {
        "--master",
        "--worker",
        "--master-port",
        "--master-host",
        "--expect-workers",
        "--autostart",
        "--autoquit",
    }
    for part in ("master", "worker"):
        seed = spec[part]["command"].split()
        assert seed[0] == "-f"
        assert len(seed) == 2
        assert not managed & {*spec[part]["extraArgs"]}
        assert "--headless" in spec["master"]["extraArgs"]
    assert (spec["master"]["autostart"], spec["master"]["autoquit"]) == (False, {"enabled": False})
    for volume in spec["volumes"]:
        assert not volume["name"].startswith("secret-")
        assert volume["name"] not in ("locust-lib", f"{own}-master", f"{own}-worker")
    assert not {"/lotest/src", "/opt/locust/lib"} & {mount["mountPath"] for mount in spec["volumeMounts"]}
    assert (spec["master"]["extraArgs"][-2:]) == ["--termination-message", "/dev/termination-log"]


def test_a_locusttest_of_locust_cloud_fits_its_operator() -> None:
    """It splits the arguments like a shell, and gives them to master and workers: locust_operator/objects.py."""
    (entry,) = of_kind("LocustTest", "locusttest-cloud", "silent")
    words = [word.replace("$$(", "$(") for word in shlex.split(entry["spec"]["args"])]
    assert words[:2] == ["-f", "/opt/inferload/locustfiles/chat.py"]
    assert words[words.index("--scenario") + 1] == "/home/locust/smoke.yaml"
    assert words[words.index("--expect-workers") + 1] == "500"
    assert words[words.index(ODD_WORDS[0]) :][: len(ODD_WORDS)] == [*ODD_WORDS]
    assert "--headless" not in words


def test_a_jobset_has_the_jobs_of_the_kubernetes_form() -> None:
    for name in PLANS:
        (jobset,) = of_kind("JobSet", "jobset", name)
        jobs = of_kind("Job", "kubernetes", name)
        replicated = jobset["spec"]["replicatedJobs"]
        master, worker = (job["spec"] for job in jobs)
        del worker["podFailurePolicy"]  # it would fail the set
        assert [each["template"]["spec"] for each in replicated] == [master, worker]
        own = jobset["metadata"]["name"]
        for each in replicated:  # pkg/webhooks/jobset_webhook.go: the last pod, with the suffix of a pod
            assert len(f"{own}-{each['name']}-0-{each['template']['spec']['completions'] - 1}-abcde") <= 63
            assert each["template"]["spec"]["template"]["spec"]["restartPolicy"] == "Never"
        assert jobset["spec"]["successPolicy"]["targetReplicatedJobs"] == ["master"]


@pytest.mark.parametrize(("form", "name"), OF_KUBERNETES)
def test_commands_of_the_comments_name_what_is_there(form: str, name: str) -> None:
    found = objects_of(form, name)
    there = {f"{entry['kind'].lower()}/{entry['metadata']['name']}" for entry in found}
    (own,) = {entry["metadata"]["labels"]["app.kubernetes.io/instance"] for entry in found}
    there |= {f"job/{own}-master-0"} if form == "jobset" else {f"job/{own}-master"}  # by the controllers
    where = " -n load " if name == "cluster" else " "
    comments = [line for text in files_of(form, name).values() for line in text.splitlines() if line.startswith("#")]
    for line in comments:
        for kind, named in re.findall(r"\b(job|pod)[/ ]([-a-z0-9]*[a-z0-9])\b(?! -l)", line.replace("pod -l", "")):
            assert f"{kind}/{named}" in there, line
        for named in re.findall(r"job-name=([-a-z0-9]+)", line):
            assert f"job/{named}" in there
        for named in re.findall(r"cp ([-a-z0-9]+):/data/runs", line):
            assert f"pod/{named}" in there
        for verb in re.findall(r"kubectl(.*?)(?:logs|get|apply|wait|cp|port-forward|delete)\b", line):
            assert verb == where, line
    assert "".join(comments).count("kubectl") >= (1 if form == "locusttest-cloud" else 3)


@pytest.mark.parametrize(("form", "name"), OF_KUBERNETES)
def test_words_of_the_run_arrive_as_they_were_given(form: str, name: str) -> None:
    for part, _labels, spec in pods(form, name):
        words = [word.replace("$$(", "$(") for word in spec["containers"][0].get("args", [])]
        if part == "master" and name == "silent":
            start = words.index(ODD_WORDS[0])
            assert words[start : start + len(ODD_WORDS)] == [*ODD_WORDS]
        if part == "worker":
            assert not {"--host", "--scenario", "--seed", "--headless", "--export-metrics"} & {*words}


# Numbers, truth values and the like in one version of YAML or another.
YAML_WORDS = (
    "y",
    "N",
    "on",
    "1_000",
    "0o7",
    "0x1f",
    "1:30",
    "+.5e-3",
    ".inf",
    "-1",
    "08",
    "12e45",
    "2026-01-01",
    "null",
    "~",
)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_kubectl_reads_words_as_words(tmp_path: Path) -> None:
    """Go's parser takes more words for numbers and truth values than Python's."""
    files = rendered("render", "run", "smoke", "--host", HOST, "--", *YAML_WORDS, *ODD_WORDS)
    (tmp_path / "run.yaml").write_text(files["run.yaml"])
    shown = 'jsonpath={.spec.template.spec.containers[0].args}{"\\n"}'
    command = ["kubectl", "label", "--local", "-f", str(tmp_path / "run.yaml"), "-o", shown, "x=y"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    master, worker = (json.loads(line) for line in done.stdout.splitlines() if line)
    assert all(isinstance(word, str) for word in (*master, *worker))
    start = master.index(YAML_WORDS[0])
    found = [word.replace("$$(", "$(") for word in master[start:]]
    assert found[: len(YAML_WORDS) + len(ODD_WORDS)] == [*YAML_WORDS, *ODD_WORDS]


def test_workers_get_the_options_that_each_process_needs() -> None:
    of_each = ("--header", "a: b", "--trace-ratio=0.5", "--header", "c: --seed")
    of_master = ("--seed", "3", "--tag=x", "--note", "y")
    for form in ("kubernetes", "jobset", "locusttest-v2"):
        files = rendered(
            "render", "run", "smoke", "--host", HOST, "--format", form, "--", *of_each[:2], *of_master, *of_each[2:]
        )
        found = {part: spec["containers"][0]["args"] for part, _labels, spec in pods_of(objects(files))}
        for part, words in found.items():
            assert [word for word in words if word in of_each] == [*of_each]
            assert [word for word in words if word in of_master] == ([*of_master] if part == "master" else [])


# -- security ----------------------------------------------------------------------------------------------------------

VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}


@pytest.mark.parametrize(("form", "name"), OF_KUBERNETES)
def test_pods_meet_the_restricted_standard_and_have_no_key_in_variables(form: str, name: str) -> None:
    """https://kubernetes.io/docs/concepts/security/pod-security-standards/ and a read-only root file system."""
    found = [*pods(form, name)]
    assert bool(found) is (form != "locusttest-cloud")  # whose operator lets nothing of it be set
    for part, _labels, spec in found:
        security = spec["securityContext"]
        assert security["runAsNonRoot"] is True
        assert security["runAsUser"] > 0
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC", "serviceAccountName", "initContainers"} & spec.keys()
        if form != "locusttest-v2":  # whose operator has no field for it
            assert spec["automountServiceAccountToken"] is False
        for volume in spec["volumes"]:
            assert volume.keys() - {"name"} <= VOLUMES
        for container in spec["containers"]:
            own = container["securityContext"]
            assert (own["allowPrivilegeEscalation"], own["readOnlyRootFilesystem"]) == (False, True)
            assert own["capabilities"] == {"drop": ["ALL"]}
            assert not {"privileged", "runAsUser", "procMount"} & own.keys()
            assert all("valueFrom" not in entry for entry in container.get("env", []))
            assert ("envFrom" in container) is (container["name"] == "uploader")
            assert not any("hostPort" in port for port in container.get("ports", []))
            for mount in container["volumeMounts"]:
                assert mount.get("readOnly") is True or mount["mountPath"] in ("/tmp", "/data/runs"), (part, mount)


def selects(policy: dict[str, Any], labels: dict[str, str]) -> bool:
    selector = policy["spec"]["podSelector"]
    matches = selector.get("matchLabels", {}).items() <= labels.items()
    for term in selector.get("matchExpressions", []):
        assert term["operator"] == "In"
        matches = matches and labels.get(term["key"]) in term["values"]
    return matches


@pytest.mark.parametrize(("form", "name"), OF_KUBERNETES)
def test_policies_let_through_what_the_run_needs(form: str, name: str) -> None:
    policies = of_kind("NetworkPolicy", form, name)
    of_pods = {part: labels for part, labels, _spec in pods(form, name)}
    if form == "locusttest-cloud":
        (entry,) = of_kind("LocustTest", form, name)
        of_pods = {part: entry["spec"][part]["labels"] for part in ("master", "worker")}
    for part, labels in of_pods.items():
        mine = [policy for policy in policies if selects(policy, labels)]
        assert {each for policy in mine for each in policy["spec"]["policyTypes"]} == {"Ingress", "Egress"}
        comes_in = [rule for policy in mine for rule in policy["spec"].get("ingress", [])]
        goes_out = [rule for policy in mine for rule in policy["spec"].get("egress", [])]
        to_pods = [rule for rule in goes_out if any(labels_of(peer) for peer in rule.get("to", []))]
        if part != "worker":
            assert not to_pods
        if part != "master":
            assert not comes_in
            continue
        from_workers, *from_scraper = comes_in
        assert from_workers["ports"] == [{"protocol": "TCP", "port": 5557}]
        assert [labels_of(peer) for peer in from_workers["from"]] == [of_pods["worker"]]
        wanted = {"silent": {}, "cluster": {"app": "agent", "tier": "08"}}.get(
            name, {"app.kubernetes.io/name": "prometheus"}
        )
        assert len(from_scraper) == bool(wanted)
        for rule in from_scraper:
            assert [labels_of(peer) for peer in rule["from"]] == [wanted]
            assert rule["ports"] == [{"protocol": "TCP", "port": 9647 if form == "locusttest-v2" else 9646}]
    out = [
        rule for policy in policies if selects(policy, of_pods["worker"]) for rule in policy["spec"].get("egress", [])
    ]
    dns, *targets, to_master = out
    assert dns == {"ports": [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}]}
    assert [labels_of(peer) for peer in to_master["to"]] == [of_pods["master"]]
    assert to_master["ports"] == [{"protocol": "TCP", "port": 5557}]
    assert all(rule["to"] for rule in targets)  # none is open to all
    spaces = [
        peer["namespaceSelector"]["matchLabels"]
        for rule in targets
        for peer in rule["to"]
        if "namespaceSelector" in peer
    ]
    assert {"kubernetes.io/metadata.name": "serving"} in spaces
    assert ({"kubernetes.io/metadata.name": "storage"} in spaces) is (name == "s3")
    page = {"to": [{"ipBlock": {"cidr": "10.1.2.3/32"}}], "ports": [{"protocol": "TCP", "port": 9400}]}
    assert (page in targets) is (name == "cluster")


def labels_of(peer: dict[str, Any]) -> dict[str, str]:
    return dict(peer.get("podSelector", {}).get("matchLabels", {}))


@pytest.mark.parametrize(("form", "name"), OF_KUBERNETES)
def test_metrics_are_served_only_for_a_scraper(form: str, name: str) -> None:
    text = files_of(form, name)["run.yaml"]
    assert ("--export-metrics" in text) is ("prometheus.io/scrape" in text) is (name != "silent")
    for part, _labels, spec in pods(form, name):
        ports = {port["name"]: port["containerPort"] for port in spec["containers"][0].get("ports", [])}
        if form.startswith("locusttest"):
            assert ports == {}
            assert ("9646" in text, "9647" in text) == (
                name != "silent" and form == "locusttest-cloud",
                name != "silent" and form == "locusttest-v2",
            )
        else:
            wanted = {"locust": 5557, **({} if name == "silent" else {"metrics": 9646})}
            assert ports == (wanted if part == "master" else {})


@pytest.mark.parametrize("name", [name for form, name in RENDERED if form == "compose"])
def test_services_of_compose_have_no_rights_and_no_port_of_the_host(name: str) -> None:
    files = files_of("compose", name)
    document = yaml.safe_load(files["compose.yaml"])
    assert document["services"].keys() == {"master", "worker"}
    for part, service in document["services"].items():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert not {"ports", "privileged", "network_mode", "cap_add", "user", "env_file"} & service.keys()
        assert [secret["source"] for secret in service["secrets"]] == ["token"]
        assert service["environment"] == {"OPENAI_API_KEY": None, "HOME": "/tmp"}
        assert {*service["networks"]} == {"run", *(["metrics"] if part == "master" and name != "silent" else [])}
    assert document["networks"].get("metrics", {"internal": True}) == {"internal": True}
    words = document["services"]["master"]["command"]
    if name == "silent":
        start = words.index(ODD_WORDS[0])
        assert [word.replace("$$", "$") for word in words[start : start + len(ODD_WORDS)]] == [*ODD_WORDS]
        assert "--export-metrics" not in words
    else:
        assert words[words.index("--export-metrics") + 1] == "exporter:9646"
        assert document["services"]["master"]["networks"]["metrics"] == {"aliases": ["exporter"]}


# -- the command -------------------------------------------------------------------------------------------------------


def test_the_help_names_every_option_and_form(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["render", "run", "--help"])
    assert ended.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    examples, options = text.partition("Examples:")[2].split("positional arguments:")
    assert all(form in options for form in FORMS)
    assert options.endswith("Words after -- are further options of the run.")
    for used in re.findall(r"(--[a-z0-9-]+) ", examples):
        assert used in options or used in ("--gate", "--seed", "--"), used


def test_the_command_prints_files_and_the_line_that_starts_the_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    starts = {
        "kubernetes": "kubectl -n load apply --server-side -f {}",
        "jobset": "kubectl -n load apply --server-side -f {}",
        "locusttest-v2": "kubectl -n load apply --server-side -f {}",
        "locusttest-cloud": "kubectl -n load apply --server-side -f {}",
        "helm": "helm install -n load inferload-smoke {}",
        "compose": "docker compose -f {}/compose.yaml up --detach",
    }
    assert starts.keys() == forms.FORMS.keys()
    for form, start in starts.items():
        folder = tmp_path / f"a {form}"
        words = ["render", "run", "smoke", "--host", HOST, "--format", form, "-o", str(folder)]
        assert cli.main([*words, *([] if form == "compose" else ["--namespace", "load"])]) == 0
        out, errors = capsys.readouterr()
        assert {*out.splitlines()} == {str(path) for path in folder.rglob("*") if path.is_file()}
        assert errors.splitlines()[-1] == "start it: " + start.format(f"'{folder}'")


def test_without_a_folder_nothing_is_written(
    command: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refused = command("render", "run", "smoke", "--host", HOST, code=2).splitlines()[-1]
    assert refused == "inferload: -o: needs a folder for the files; give it, or check the options with --dry-run"
    checked = command("render", "run", "smoke", "--host", HOST, "--format", "compose", "--dry-run")
    assert "options: valid\n" in checked
    assert not [*tmp_path.iterdir()]


def test_a_run_needs_a_scenario_or_a_locustfile(command: Callable[..., str], tmp_path: Path) -> None:
    words = ("render", "run", "--host", HOST, "-o", tmp_path / "out")
    refused = command(*words, code=2).splitlines()[-1]
    assert refused == "inferload: SCENARIO: missing; give it, or a locustfile with own tasks (-f)"
    assert not (tmp_path / "out").exists()
    for more, name in (
        (("-f", own_locustfile()), "inferload-users"),
        (("--", "--scenario", "/image/own.yaml"), "inferload-run"),
    ):
        files = rendered("render", "run", "--host", HOST, *more)
        master = objects(files, "run.yaml")[1]
        assert master["metadata"]["name"] == f"{name}-master"
        words_of_master = master["spec"]["template"]["spec"]["containers"][0]["args"]
        assert words_of_master.count("--scenario") == more.count("--scenario")


def test_a_folder_with_other_yaml_files_is_refused(command: Callable[..., str], tmp_path: Path) -> None:
    """`kubectl apply` would apply them as well."""
    words = ("render", "run", "smoke", "--host", HOST, "-o", tmp_path)
    command(*words, "--results", "pvc:kept")
    command(*words, "--results", "pvc:kept")  # the same files again
    refused = command(*words, code=2).splitlines()[-1]
    assert refused == f"inferload: -o {tmp_path}: has other files (after/reader.yaml); empty it, or name another folder"
