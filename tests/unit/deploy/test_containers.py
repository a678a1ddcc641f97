"""Compose and Kubernetes files against their schemas and each other; the container image and its entrypoint."""

import dataclasses
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from flow import leaves
from inferload.deploy.render import compose, dashboard, kubernetes, run_plan, yaml_files
from inferload.deploy.render.container_plan import Server
from inferload.deploy.render.run_plan import Key, Results, RunPlan
from inferload.deploy.variants.variant import bundled, named
from paths import ROOT
from rendered import check_kubernetes, compose_schema, objects, rendered

from inferload.base.errors import UsageError

BIN = Path(sys.executable).parent


RUN = RunPlan("inferload-v", "smoke", "http://server:8000", 3, token=Key("t", "token"), made_token="0" * 64)


def files_of(form: str, name: str = "llama3-tp2", engine: str = "vllm", *more: str) -> dict[str, str]:
    words = ("deploy", "render", name, "--format", form, "--engine", engine, "--scenario", "smoke", "--workers", "3")
    return rendered(*words, *more)


def services_of(name: str = "llama3-tp2", engine: str = "vllm") -> dict[str, Any]:
    return dict(yaml.safe_load(files_of("compose", name, engine)["compose.yaml"])["services"])


def server_container(server: Server) -> dict[str, Any]:
    found = kubernetes.server_objects(server, server.values(RUN))
    (deployment,) = [entry for entry in found if entry["kind"] == "Deployment"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return dict(container)


@pytest.mark.parametrize(
    ("name", "engine"), [("llama3-tp2", "vllm"), ("qwen36-mtp", "vllm"), ("tiny-ngram", "simulator")]
)
def test_compose_files_are_valid(name: str, engine: str) -> None:
    document = yaml.safe_load(files_of("compose", name, engine)["compose.yaml"])
    compose_schema().validate(document)
    document["services"]["server"]["helthcheck"] = {}
    with pytest.raises(jsonschema.ValidationError, match="helthcheck"):
        compose_schema().validate(document)


@pytest.mark.parametrize(
    ("name", "engine", "shared"), [("llama3-tp2", "vllm", True), ("tiny-ngram", "simulator", False)]
)
def test_kubernetes_objects_are_valid(name: str, engine: str, shared: bool) -> None:
    all_objects = objects(files_of("kubernetes", name, engine, *(["--shared-runs"] if shared else [])))
    kinds = {entry["kind"] for entry in all_objects}
    assert kinds >= {
        "Deployment",
        "Service",
        "Job",
        "ConfigMap",
        "Secret",
        "NetworkPolicy",
        "PersistentVolumeClaim",
        "Pod",
    }
    for entry in all_objects:
        check_kubernetes(entry)
    all_objects[-1]["metadata"]["lables"] = {}
    with pytest.raises(jsonschema.ValidationError, match="lables"):
        check_kubernetes(all_objects[-1])


# -- consistency with the variant and each other ------------------------------------------------------------


def test_every_variant_is_rendered_with_its_gpus_and_command() -> None:
    for variant in bundled().values():
        engine = "vllm" if variant.hardware.gpus else "simulator"
        server = Server(variant, engine)
        assert server.gpus == variant.hardware.gpus, variant.name
        service = compose.services(server, RUN)["services"]["server"]
        words = [word.replace("$$", "$") for word in (*service["entrypoint"], *service["command"])]
        assert words[-len(variant.argv) :] == list(variant.argv)
        container = server_container(server)
        assert [word.replace("$$(", "$(") for word in container["command"]] == words
        reserved = service.get("deploy", {}).get("resources", {}).get("reservations", {}).get("devices", [{}])[0]
        assert reserved.get("count", 0) == variant.hardware.gpus
        assert container.get("resources", {}).get("limits", {}).get("nvidia.com/gpu", 0) == variant.hardware.gpus


def test_variables_in_values_are_escaped() -> None:
    variant = named("llama3-tp2").with_args({"chat-template": "a $HOME $(HOST) b"})
    variant = dataclasses.replace(variant, environment={"MINE": "a $HOME $(HOST) b"})
    service, container = (
        compose.services(Server(variant, "vllm"), RUN)["services"]["server"],
        server_container(Server(variant, "vllm")),
    )
    assert "a $$HOME $$(HOST) b" in service["command"]
    assert "a $HOME $$(HOST) b" in container["command"]
    assert service["environment"]["MINE"] == "a $$HOME $$(HOST) b"
    assert {"name": "MINE", "value": "a $HOME $$(HOST) b"} in container["env"]


HOSTILE = "a\nkind: Evil\u2028services: {}\x85b $gpus"


def test_variant_text_is_not_read_as_yaml_or_placeholder() -> None:
    variant = named("llama3-tp2")
    plain, hostile = (Server(each, "vllm") for each in (variant, dataclasses.replace(variant, purpose=HOSTILE)))
    files = {
        **compose.files(hostile, RUN),
        **kubernetes.files(hostile, dataclasses.replace(RUN, results=Results("pvc", "c"))),
    }
    assert yaml.safe_load(files["compose.yaml"]) == compose.services(plain, RUN)
    assert [entry["kind"] for entry in objects(files, "server.yaml")][1:] == ["Deployment", "Service"]
    assert "b $gpus" in files["server.yaml"]


def test_names_and_volumes_of_compose_exist() -> None:
    files = files_of("compose")
    document = yaml.safe_load(files["compose.yaml"])
    services, volumes = document["services"], document["volumes"]
    for service in services.values():
        assert ":" in service["image"]
        assert not service["image"].endswith(":latest")
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert source in volumes or source.removeprefix("./") in files or source == "./files"
        assert all(network in document["networks"] for network in service["networks"])
        assert all(secret["source"] in document["secrets"] for secret in service.get("secrets", []))
        assert set(service.get("depends_on", {})) <= set(services)
    assert services["master"]["depends_on"]["server"]["condition"] == "service_healthy"
    words = services["master"]["command"]
    pages = [words[at + 1] for at, word in enumerate(words) if word == "--metrics-url"]
    jobs = {job["job_name"]: job["static_configs"] for job in yaml.safe_load(files["prometheus.yml"])["scrape_configs"]}
    exporter = words[words.index("--export-metrics") + 1]
    assert services["master"]["networks"]["metrics"]["aliases"] == [exporter.split(":")[0]]
    assert document["secrets"]["token"]["file"].removeprefix("./") in files
    assert exporter.endswith(services["master"]["expose"][-1])
    assert "--export-metrics" not in services["worker"]["command"]
    addresses = {name: found["targets"] for name, (found,) in jobs.items()}
    assert addresses == {"server": ["server:8000"], "inferload": [exporter], "dcgm": ["dcgm:9400"]}
    assert pages == [f"http://{addresses[name][0]}/metrics" for name in ("server", "dcgm")]
    without = files_of("compose", "tiny-all", "simulator")
    assert not [name for name, text in without.items() if "dcgm" in text.lower()]


@pytest.mark.parametrize("shared", [False, True])
def test_names_and_volumes_of_kubernetes_exist(shared: bool) -> None:
    all_objects = objects(files_of("kubernetes", "llama3-tp2", "vllm", *(["--shared-runs"] if shared else [])))
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
                data = by_kind["ConfigMap"][volume["configMap"]["name"]]["data"]
                assert {item["key"] for item in volume["configMap"]["items"]} == data.keys()
            if "secret" in volume:
                assert volume["secret"]["secretName"] in by_kind["Secret"]
        for container in pod["spec"]["containers"]:
            assert {mount["name"] for mount in container["volumeMounts"]} == set(volumes)
    for service in by_kind["Service"].values():
        (pod,) = [pod for pod in pods if service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()]
        ports = {port["name"]: port["containerPort"] for port in pod["spec"]["containers"][0]["ports"]}
        for port in service["spec"]["ports"]:
            assert ports.get(port["targetPort"], port["targetPort"]) == port["port"]
            assert port["port"] in ports.values()
    worker = by_kind["Job"]["inferload-llama3-tp2-worker"]["spec"]
    assert (worker["completions"], worker["parallelism"], worker["completionMode"]) == (3, 3, "Indexed")
    volumes = {volume["name"]: volume for volume in worker["template"]["spec"]["volumes"]}
    assert ("results" in volumes, "runs" in volumes) == (shared, not shared)
    assert by_kind["PersistentVolumeClaim"]["inferload-llama3-tp2-runs"]["spec"]["accessModes"] == [
        "ReadWriteMany" if shared else "ReadWriteOnce"
    ]


def test_commands_in_kubernetes_equal_those_of_compose() -> None:
    services = services_of()
    jobs = {
        entry["metadata"]["name"]: entry
        for entry in objects(files_of("kubernetes"), "run.yaml")
        if entry["kind"] == "Job"
    }
    pages = [
        "--metrics-url",
        "http://server:8000/metrics",
        "--metrics-url",
        "http://dcgm:9400/metrics",
    ]  # compose alone has GPUs' page
    for part in ("master", "worker"):
        (container,) = jobs[f"inferload-llama3-tp2-{part}"]["spec"]["template"]["spec"]["containers"]
        words = " ".join(container["args"])
        for theirs, ours in (
            ("//inferload-llama3-tp2:", "//server:"),
            ("inferload-llama3-tp2-token", "run"),
            ("0.0.0.0", "exporter"),
            ("inferload-llama3-tp2-master", "master"),
        ):
            words = words.replace(theirs, ours)
        wanted = " ".join(services[part]["command"]).replace(f" {' '.join(pages)}", "")
        assert words.removesuffix(" --termination-message /dev/termination-log") == wanted
        assert container["image"] == services[part]["image"]


def test_the_rendered_files(golden: Callable[[str, str], None]) -> None:
    written = {**files_of("compose"), **files_of("kubernetes")}
    assert "\n  smoke.yaml: |\n    # Smoke test" in written["files.yaml"]
    for name in ("compose.yaml", "prometheus.yml", "server.yaml", "policies.yaml", "run.yaml"):
        golden(f"llama3-tp2-{name}", leaves(written[name]))


# -- the command -------------------------------------------------------------------------------------------------------


def test_render_writes_files_to_the_output_folder(command: Callable[..., str]) -> None:
    words = ("tiny-all", "simulator", "--image", "registry/inferload:9")
    for form, name in (("compose", "compose.yaml"), ("kubernetes", "run.yaml")):
        assert "image: registry/inferload:9" in files_of(form, *words)[name]
    refused = "inferload: --format kubernetes: needs an output folder; give it with -o\n"
    assert command("deploy", "render", "tiny-all", "--format", "kubernetes", code=2) == refused


def test_plans_that_containers_cannot_run_are_refused(command: Callable[..., str], tmp_path: Path) -> None:
    words = ("deploy", "render", "--format", "compose", "-o", tmp_path)
    assert "tiny-all: its model is generated" in command(*words, "tiny-all", code=2)
    assert "--workers 0: must be 1 or more" in command(*words, "llama3-tp2", "--workers", "0", code=2)
    refused = command(*words, "llama3-tp2", "--scenario", "chat-sharegpt", code=2)
    assert "chat-sharegpt: reads ShareGPT_V3" in refused
    assert "not in the image" in refused
    assert not [*tmp_path.iterdir()]
    assert run_plan.scenario_of("replay-mooncake")[1:] == ("replay-mooncake", {})
    with pytest.raises(UsageError, match=r"-o /proc/1/none: "):
        yaml_files.write(Path("/proc/1/none"), {"x": ""})


# -- the container file ------------------------------------------------------------------------------------------------


def test_hadolint_and_shellcheck_pass() -> None:
    for command in ([BIN / "hadolint", "Containerfile"], [BIN / "shellcheck", "deploy/entrypoint.sh"]):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (0, "")


def test_an_edit_of_the_sources_leaves_the_layers_of_the_dependencies() -> None:
    stages = re.split(r"^FROM ", (ROOT / "Containerfile").read_text(), flags=re.MULTILINE)
    arguments, dependencies, build, image = stages
    assert "ARG BASE=" in arguments
    assert [stage.split()[:1] for stage in stages[1:]] == [["${BASE}"], ["dependencies"], ["${BASE}"]]
    assert re.findall(r"^COPY (.*)$", dependencies, re.MULTILINE) == ["constraints.txt pyproject.toml ./"]
    assert "COPY . .\n" in build
    copied = [line for line in image.splitlines() if line.startswith("COPY")]
    assert copied[0] == "COPY --from=dependencies /opt/inferload /opt/inferload"
    assert not [line for line in copied if "--from=build" in line], "a layer with all packages for each edit"


def test_dockerignore_includes_the_packaged_folders() -> None:
    included = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert all((ROOT / name).exists() for name in included)
    assert {"analysis", "deploy", "inferload", "locustfiles", "scenarios", "constraints.txt", "setup.py"} <= included


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
    grafana, files = services_of()["grafana"], files_of("compose")
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
