"""Compose and Kubernetes files against their schemas and each other; the container image and its entrypoint."""

import dataclasses
import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import check_jsonschema
import jsonschema
import kubernetes_validate
import pytest
import referencing
import yaml
from flow import leaves
from inferload.deploy.render import compose, container_plan, dashboard, kubernetes
from inferload.deploy.render.container_plan import ContainerImages, ContainerPlan, plan_of
from inferload.deploy.variants.variant import bundled, named
from paths import ROOT

from inferload import cli
from inferload.base.errors import UsageError

BIN = Path(sys.executable).parent
KUBERNETES = "1.32"


@functools.cache
def plan(name: str = "llama3-tp2", engine: str = "vllm", scenario: str = "smoke", workers: int = 3) -> ContainerPlan:
    return plan_of(named(name), engine, scenario, workers, ContainerImages())


# -- schemas -----------------------------------------------------------------------------------------------------------


@functools.cache
def compose_schema() -> jsonschema.Draft202012Validator:
    """The schema of the Compose Specification, from check-jsonschema."""
    folder = Path(check_jsonschema.__file__).parent / "builtin_schemas" / "vendor"
    return jsonschema.Draft202012Validator(json.loads((folder / "compose-spec.json").read_text()))


@functools.cache
def kubernetes_schema(kind: str, version: str) -> jsonschema.Draft202012Validator:
    """The Kubernetes schema of a kind, from kubernetes-validate; unknown fields are errors."""
    folder = Path(kubernetes_validate.__file__).parent / "kubernetes-json-schema" / f"v{KUBERNETES}.0-local-strict"
    schema = json.loads((folder / f"{kind}-{version}.json".lower()).read_text())
    return jsonschema.Draft202012Validator(schema, registry=definitions(folder))


@functools.cache
def definitions(folder: Path) -> referencing.Registry[Any]:
    resource = referencing.Resource.from_contents(json.loads((folder / "_definitions.json").read_text()))
    return referencing.Registry().with_resources([(resource.id() or "", resource), ("_definitions.json", resource)])


def check_kubernetes(entry: dict[str, Any]) -> None:
    group, _, version = entry["apiVersion"].rpartition("/")
    kubernetes_schema(entry["kind"], f"{group}-{version}" if group else version).validate(entry)


def objects(files: dict[str, str], *names: str) -> list[dict[str, Any]]:
    return [entry for name in names or files for entry in yaml.safe_load_all(files[name])]


@pytest.mark.parametrize(
    ("name", "engine"), [("llama3-tp2", "vllm"), ("qwen36-mtp", "vllm"), ("tiny-ngram", "simulator")]
)
def test_compose_files_are_valid(name: str, engine: str) -> None:
    files = compose.files(plan(name, engine))
    document = yaml.safe_load(files["compose.yaml"])
    compose_schema().validate(document)
    document["services"]["server"]["helthcheck"] = {}
    with pytest.raises(jsonschema.ValidationError, match="helthcheck"):
        compose_schema().validate(document)


@pytest.mark.parametrize(
    ("name", "engine", "shared"), [("llama3-tp2", "vllm", True), ("tiny-ngram", "simulator", False)]
)
def test_kubernetes_objects_are_valid(name: str, engine: str, shared: bool) -> None:
    all_objects = objects(kubernetes.files(plan(name, engine), shared))
    assert {entry["kind"] for entry in all_objects} >= {"Deployment", "Service", "Job", "ConfigMap", "Pod"}
    for entry in all_objects:
        check_kubernetes(entry)
    all_objects[-1]["metadata"]["lables"] = {}
    with pytest.raises(jsonschema.ValidationError, match="lables"):
        check_kubernetes(all_objects[-1])


# -- consistency with the variant and each other ------------------------------------------------------------


def test_every_variant_is_rendered_with_its_gpus_and_command() -> None:
    for variant in bundled().values():
        engine = "vllm" if variant.hardware.gpus else "simulator"
        other_plan = dataclasses.replace(plan(), variant=variant, engine=engine)
        assert other_plan.gpus == variant.hardware.gpus, variant.name
        service = compose.document(other_plan)["services"]["server"]
        words = [word.replace("$$", "$") for word in (*service["entrypoint"], *service["command"])]
        assert words[-len(variant.argv) :] == list(variant.argv)
        (deployment,) = [entry for entry in kubernetes.server_objects(other_plan) if entry["kind"] == "Deployment"]
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        assert [word.replace("$$(", "$(") for word in container["command"]] == words
        reserved = service.get("deploy", {}).get("resources", {}).get("reservations", {}).get("devices", [{}])[0]
        assert reserved.get("count", 0) == variant.hardware.gpus
        assert container.get("resources", {}).get("limits", {}).get("nvidia.com/gpu", 0) == variant.hardware.gpus


def test_variables_in_values_are_escaped() -> None:
    variant = named("llama3-tp2").with_args({"chat-template": "a $HOME $(HOST) b"})
    variant = dataclasses.replace(variant, environment={"MINE": "a $HOME $(HOST) b"})
    other_plan = plan_of(variant, "vllm", "smoke", 1, ContainerImages())
    assert "a $$HOME $$(HOST) b" in compose.document(other_plan)["services"]["server"]["command"]
    (deployment,) = [entry for entry in kubernetes.server_objects(other_plan) if entry["kind"] == "Deployment"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert "a $HOME $$(HOST) b" in container["command"]
    assert compose.document(other_plan)["services"]["server"]["environment"]["MINE"] == "a $$HOME $$(HOST) b"
    assert {"name": "MINE", "value": "a $HOME $$(HOST) b"} in container["env"]


def test_variant_text_is_not_read_as_yaml_or_placeholder() -> None:
    plain = compose.document(plan())
    hostile = dataclasses.replace(named("llama3-tp2"), purpose="a\nkind: Evil\u2028services: {}\x85b $gpus")
    files = {
        **compose.files(other_plan := plan_of(hostile, "vllm", "smoke", 3, ContainerImages())),
        **kubernetes.files(other_plan, False),
    }
    assert yaml.safe_load(files["compose.yaml"]) == plain
    assert [entry["kind"] for entry in objects(files, "server.yaml")][1:] == ["Deployment", "Service"]
    assert "b $gpus" in files["server.yaml"]


def test_names_and_volumes_of_compose_exist() -> None:
    document = compose.document(plan())
    services, volumes = document["services"], document["volumes"]
    for service in services.values():
        assert ":" in service["image"]
        assert not service["image"].endswith(":latest")
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert source in volumes or source.removeprefix("./") in compose.files(plan())
        assert set(service.get("depends_on", {})) <= set(services)
    assert services["master"]["depends_on"]["server"]["condition"] == "service_healthy"
    words = services["master"]["command"]
    pages = [words[at + 1] for at, word in enumerate(words) if word == "--metrics-url"]
    jobs = {job["job_name"]: job["static_configs"] for job in compose.prometheus(plan())["scrape_configs"]}
    exporter = words[words.index("--export-metrics") + 1].replace("0.0.0.0", "master")
    assert exporter.endswith(services["master"]["expose"][-1])
    assert "--export-metrics" not in services["worker"]["command"]
    addresses = {name: found["targets"] for name, (found,) in jobs.items()}
    assert addresses == {"server": ["server:8000"], "inferload": [exporter], "dcgm": ["dcgm:9400"]}
    assert pages == [f"http://{addresses[name][0]}/metrics" for name in ("server", "dcgm")]
    without = compose.files(plan("tiny-all", "simulator"))
    assert not [name for name, text in without.items() if "dcgm" in text.lower()]


@pytest.mark.parametrize("shared", [False, True])
def test_names_and_volumes_of_kubernetes_exist(shared: bool) -> None:
    all_objects = objects(kubernetes.files(plan(), shared), "server.yaml", "results.yaml", "reader.yaml", "run.yaml")
    by_kind: dict[str, dict[str, Any]] = {}
    for entry in all_objects:
        name = entry["metadata"]["name"]
        assert len(name) <= 63
        by_kind.setdefault(entry["kind"], {})[name] = entry
    pods = [entry["spec"]["template"] for kind in ("Deployment", "Job") for entry in by_kind[kind].values()]
    pods += by_kind["Pod"].values()
    for pod in pods:
        volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
        for volume in volumes.values():
            if "persistentVolumeClaim" in volume:
                assert volume["persistentVolumeClaim"]["claimName"] in by_kind["PersistentVolumeClaim"]
            if "configMap" in volume:
                assert volume["configMap"]["name"] in by_kind["ConfigMap"]
        for container in pod["spec"]["containers"]:
            assert {mount["name"] for mount in container["volumeMounts"]} <= set(volumes)
    for service in by_kind["Service"].values():
        (pod,) = [pod for pod in pods if service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()]
        ports = {port["name"]: port["containerPort"] for port in pod["spec"]["containers"][0]["ports"]}
        assert all(ports[port["targetPort"]] == port["port"] for port in service["spec"]["ports"])
    worker = by_kind["Job"]["inferload-llama3-tp2-worker"]["spec"]
    assert (worker["completions"], worker["parallelism"], worker["completionMode"]) == (3, 3, "Indexed")
    runs = {volume["name"]: volume for volume in worker["template"]["spec"]["volumes"]}["runs"]
    assert ("emptyDir" in runs) is not shared


def test_commands_in_kubernetes_equal_those_of_compose() -> None:
    services = compose.document(plan())["services"]
    run = kubernetes.run_objects(plan(), False)
    jobs = {entry["metadata"]["name"]: entry for entry in run if entry["kind"] == "Job"}
    for part in ("master", "worker"):
        (container,) = jobs[f"inferload-llama3-tp2-{part}"]["spec"]["template"]["spec"]["containers"]
        words = [word.replace("inferload-llama3-tp2-master", "master") for word in container["args"]]
        words = [word.replace("//inferload-llama3-tp2:", "//server:") for word in words]
        assert words == services[part]["command"][: len(words)]  # compose alone has a page of the GPUs
        assert container["image"] == services[part]["image"]


def test_the_rendered_files(golden: Callable[[str, str], None]) -> None:
    rendered = {**compose.files(plan()), **kubernetes.files(plan(), False)}
    assert "\n  scenario.yaml: |\n    # Smoke test" in rendered["run.yaml"]
    for name in ("compose.yaml", "prometheus.yml", "server.yaml", "run.yaml"):
        golden(f"llama3-tp2-{name}", leaves(rendered[name]))


# -- the command -------------------------------------------------------------------------------------------------------


def test_render_writes_files_to_the_output_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for verb in ("compose", "kubernetes"):
        words = f"deploy render tiny-all --format {verb} --engine simulator --image registry/inferload:9".split()
        assert cli.main([*words, "-o", str(tmp_path / verb)]) == 0
    named_files = [Path(line) for line in capsys.readouterr().out.splitlines()]
    assert cli.main(words) == 2
    assert capsys.readouterr().err == "inferload: --format kubernetes: needs an output folder; give it with -o\n"
    assert all(path.is_file() for path in named_files)
    assert "image: registry/inferload:9" in (tmp_path / "compose" / "compose.yaml").read_text()


def test_plans_that_containers_cannot_run_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"tiny-all: its model is generated"):
        plan("tiny-all")
    with pytest.raises(UsageError, match=r"--workers 0: must be 1 or more"):
        plan(workers=0)
    assert plan(scenario="replay-mooncake").scenario_argument == "replay-mooncake"
    with pytest.raises(UsageError, match=r"chat-sharegpt: reads ShareGPT_V3.*not in the image"):
        plan(scenario="chat-sharegpt")
    with pytest.raises(UsageError, match=r"-o /proc/1/none: "):
        container_plan.write(Path("/proc/1/none"), {"x": ""})


# -- the container file ------------------------------------------------------------------------------------------------


def test_hadolint_and_shellcheck_pass() -> None:
    for command in ([BIN / "hadolint", "Containerfile"], [BIN / "shellcheck", "deploy/entrypoint.sh"]):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (0, "")


def test_dockerignore_includes_the_packaged_folders() -> None:
    included = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert all((ROOT / name).exists() for name in included)
    assert {"analysis", "deploy", "inferload", "locustfiles", "scenarios", "constraints.txt"} <= included


@pytest.fixture
def stubs(tmp_path: Path) -> Path:
    """A folder of programs that print their arguments."""
    for name in ("inferload", "locust"):
        (tmp_path / name).write_text(f'#!/bin/sh\necho {name} "$@"\n')
        (tmp_path / name).chmod(0o755)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "runs"),
    [
        ((), "inferload --help"),
        (("run", "smoke", "--host", "x"), "inferload run smoke --host x"),
        (("inferload", "plan", "smoke"), "inferload plan smoke"),
        (("locust", "--version"), "locust --version"),
        (("--master", "-f", "chat.py"), "locust --master -f chat.py"),
    ],
)
def test_the_entrypoint_selects_the_program_by_the_first_word(stubs: Path, words: tuple[str, ...], runs: str) -> None:
    command = ["sh", str(ROOT / "deploy" / "entrypoint.sh"), *words]
    environment = {"PATH": f"{stubs}:{os.defpath}"}
    out = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()
    assert out == [runs]


# -- Grafana


def test_grafana_reads_the_provisioned_files() -> None:
    other_plan = plan()
    services = compose.document(other_plan)["services"]
    grafana, files = services["grafana"], compose.files(other_plan)
    volumes = [volume.split(":") for volume in grafana["volumes"]]
    mounted = {source.removeprefix("./"): target for source, target, _mode in volumes}
    assert mounted.keys() == {name for name in files if name.startswith("grafana/")}
    (source,) = yaml.safe_load(files["grafana/datasources.yaml"])["datasources"]
    assert source["url"] == "http://prometheus:9090"
    (provider,) = yaml.safe_load(files["grafana/dashboards.yaml"])["providers"]
    assert str(Path(mounted["grafana/inferload.json"]).parent) == provider["options"]["path"]
    assert grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"] == mounted["grafana/inferload.json"]
    document = json.loads(files["grafana/inferload.json"])
    panels = document["panels"]
    uids = {part["datasource"]["uid"] for panel in panels for part in (panel, *panel["targets"])}
    assert uids == {source["uid"]}
    assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels)
    cells = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}
    assert len(cells) == len(panels)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels)


MADE = """\
vllm:spec_decode_num_drafts_total{engine="0"} 0+10x30
vllm:spec_decode_num_drafts_total{engine="1"} 0+30x30
vllm:spec_decode_num_draft_tokens_total{engine="0"} 0+160x30
vllm:spec_decode_num_accepted_tokens_total{engine="0"} 0+60x30
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 0+20x30
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="1",position="0"} 0+16x30
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="1"} 0+4x30
DCGM_FI_DEV_GPU_UTIL{Hostname="h",gpu="0",pod="a"} 97x30
DCGM_FI_DEV_GPU_UTIL{Hostname="h",gpu="0",pod="b"} 97x30
DCGM_FI_DEV_FB_USED{Hostname="h",gpu="0"} 40000x30
DCGM_FI_DEV_POWER_USAGE{Hostname="h",gpu="0"} 300x30
DCGM_FI_DEV_SM_CLOCK{Hostname="h",gpu="0"} 1980x30
"""
GPU = '{Hostname="h", gpu="0"}'
SHOWN = {
    "Draft acceptance rate": [[("{}", 60 / 160)]],
    "Draft tokens/s": [[("{}", 160)], [("{}", 60)]],
    "Mean acceptance length": [[("{}", 1 + 60 / 40)]],
    "Accepted by position": [[('{position="0"}', 0.9), ('{position="1"}', 0.1)]],
    "GPU utilisation": [[(GPU, 97)]],  # one GPU, twice on the page
    "GPU memory": [[(GPU, 40_000)]],
    "GPU power": [[(GPU, 300)]],
    "GPU SM clock": [[(GPU, 1.98e9)]],
}


def test_panels_have_the_values_of_their_series(tmp_path: Path) -> None:
    """promtool evaluates each expression over made series, of which those of speculation and GPUs have a known result."""
    panels = {panel["title"]: panel["targets"] for panel in dashboard.document(gpus=True)["panels"]}
    assert SHOWN.keys() <= panels.keys()
    tests = [
        {
            "expr": target["expr"].replace("$run", "r").replace("$__rate_interval", "15s"),
            "eval_time": "20s",
            "exp_samples": [{"labels": labels, "value": value} for labels, value in samples],
        }
        for title, targets in panels.items()
        for target, samples in zip(targets, SHOWN.get(title, [[]] * len(targets)), strict=True)
    ]
    series = [dict(zip(("series", "values"), line.rsplit(" ", 1), strict=True)) for line in MADE.splitlines()]
    suite = [{"interval": "1s", "input_series": series, "promql_expr_test": tests}]
    file = tmp_path / "test.yaml"
    file.write_text(json.dumps({"evaluation_interval": "1s", "tests": suite}))  # JSON is YAML
    done = subprocess.run(["promtool", "test", "rules", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
