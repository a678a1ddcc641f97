"""Docker Compose: server, master, workers, Prometheus and, where there are GPUs, NVIDIA's exporter of their use, power and clocks.

Written to the Compose Specification; the tests hold it against the specification's own schema.
"""

from typing import Any

from .containers import (
    MASTER_PORT,
    MODELS,
    PORT,
    RUNS,
    SCENARIO,
    SHARED_MEMORY_GIB,
    START_S,
    VLLM_ENVIRONMENT,
    Plan,
    as_yaml,
)

SERVER = f"http://server:{PORT}"
_HEAD = """\
{variant}: {purpose} ({hardware}). Written by `inferload deploy render`.
docker compose up --detach; docker compose logs --follow master; docker compose wait master     (the last: the run's exit code)
docker compose cp master:{runs} runs     the run's files; docker compose down ends the rest
Keys are taken from the environment of this command where they are set: VLLM_API_KEY, OPENAI_API_KEY (the same), HF_TOKEN."""
_INTERVAL_MS = "1000"


def files(plan: Plan) -> dict[str, str]:
    """The files of the folder by name."""
    head = _HEAD.format(
        variant=plan.variant.name, purpose=plan.variant.purpose, hardware=plan.variant.hardware, runs=RUNS
    )
    made = {"compose.yaml": as_yaml(document(plan), head=head), "prometheus.yml": as_yaml(prometheus(plan))}
    if plan.scenario_text is not None:
        made["scenario.yaml"] = plan.scenario_text
    return made


def document(plan: Plan) -> dict[str, Any]:
    """compose.yaml."""
    services = {
        "server": _server(plan),
        "master": _master(plan),
        "worker": _worker(plan),
        "prometheus": _prometheus(plan),
    }
    volumes: dict[str, Any] = {"runs": {}, "prometheus": {}}
    if plan.engine == "vllm":
        volumes["models"] = {}
    if plan.gpus:
        services["dcgm"] = _dcgm(plan)
    return {"name": plan.name, "services": services, "volumes": volumes}


def _plain(words: list[str]) -> list[str]:
    """Words in which Compose finds no variable."""
    return [word.replace("$", "$$") for word in words]


def _environment(plan: Plan) -> dict[str, str]:
    return {name: _plain([str(value)])[0] for name, value in plan.variant.environment.items()}


def _server(plan: Plan) -> dict[str, Any]:
    command = plan.server_command()
    look = f"import urllib.request as r; r.urlopen('http://127.0.0.1:{PORT}/health', timeout=5)"
    service: dict[str, Any] = {
        "image": plan.server_image,
        "entrypoint": command[:1],
        "command": _plain(command[1:]),
        # Without a value: taken from the environment of `docker compose`, and not set where it is not set there.
        "environment": {**_environment(plan), "VLLM_API_KEY": None},
        "ports": [f"127.0.0.1:{PORT}:{PORT}"],
        "healthcheck": {
            "test": ["CMD", "python3", "-c", look],
            "interval": "5s",
            "timeout": "10s",
            "retries": 3,
            "start_period": f"{START_S}s",
            "start_interval": "2s",
        },
        "stop_grace_period": "60s",
        "init": True,
    }
    if plan.engine == "vllm":
        service["environment"] |= {**VLLM_ENVIRONMENT, "HF_TOKEN": None}
        service["volumes"] = [f"models:{MODELS}"]
        service["shm_size"] = f"{SHARED_MEMORY_GIB}gb"
    if plan.gpus:
        service["deploy"] = _reserved(plan.gpus)
    return service


def _reserved(gpus: int | str) -> dict[str, Any]:
    return {"resources": {"reservations": {"devices": [{"driver": "nvidia", "count": gpus, "capabilities": ["gpu"]}]}}}


def _master(plan: Plan) -> dict[str, Any]:
    volumes = [f"runs:{RUNS}"]
    if plan.scenario_text is not None:
        volumes.append(f"./scenario.yaml:{SCENARIO}:ro")
    return {
        "image": plan.images.inferload,
        "command": _plain(plan.master_command(SERVER)),
        "environment": {"OPENAI_API_KEY": None},
        "depends_on": {"server": {"condition": "service_healthy"}},
        "volumes": volumes,
        "expose": [str(MASTER_PORT)],
        "restart": "no",
        "init": True,
        "stop_grace_period": "120s",
    }


def _worker(plan: Plan) -> dict[str, Any]:
    return {
        "image": plan.images.inferload,
        "command": plan.worker_command("master"),
        "environment": {"OPENAI_API_KEY": None},
        "depends_on": {"master": {"condition": "service_started"}},
        "volumes": [f"runs:{RUNS}"],
        "deploy": {"mode": "replicated", "replicas": plan.workers},
        "restart": "no",
        "init": True,
        "stop_grace_period": "120s",
    }


def _prometheus(plan: Plan) -> dict[str, Any]:
    return {
        "image": plan.images.prometheus,
        "volumes": ["./prometheus.yml:/etc/prometheus/prometheus.yml:ro", "prometheus:/prometheus"],
        "ports": ["127.0.0.1:9090:9090"],
        "healthcheck": {
            "test": ["CMD", "wget", "-q", "--spider", "http://127.0.0.1:9090/-/healthy"],
            "interval": "10s",
            "timeout": "5s",
            "retries": 3,
        },
    }


def _dcgm(plan: Plan) -> dict[str, Any]:
    return {
        "image": plan.images.dcgm,
        "environment": {"DCGM_EXPORTER_INTERVAL": _INTERVAL_MS},  # its own default is every 30 s
        "cap_add": ["SYS_ADMIN"],
        "expose": ["9400"],
        "deploy": _reserved("all"),
    }


def prometheus(plan: Plan) -> dict[str, Any]:
    """prometheus.yml: the server's page, and the GPUs' where there are some."""
    jobs = [{"job_name": "server", "static_configs": [{"targets": [f"server:{PORT}"]}]}]
    if plan.gpus:
        jobs.append({"job_name": "dcgm", "static_configs": [{"targets": ["dcgm:9400"]}]})
    return {"global": {"scrape_interval": "1s", "scrape_timeout": "1s"}, "scrape_configs": jobs}
