"""Commands of the container files on this machine without containers: server, master and workers."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import yaml
from inferload.deploy.launcher import probe
from inferload.deploy.render import container_plan, run_plan
from paths import ROOT
from ports import unused_port
from rendered import rendered

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]

ENTRYPOINT = ROOT / "deploy" / "entrypoint.sh"
SCENARIO = """\
schema: 1
name: side-by-side
workload: {kind: chat, turns: 1, think_time_s: 0, prompt_tokens: 20, output_tokens: 8}
arrivals: {kind: closed, users: 2, spawn_per_s: 2}
phases: {warmup_s: 0.5, measure_s: 2, drain_s: 10}
gates: ["failed_ratio < 0.01"]
"""


WORKERS = 2
VARIANT, NAME = "tiny-all", "inferload-tiny-all"


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """The working directory of the image."""
    (tmp_path / "data" / "runs").mkdir(parents=True)
    return tmp_path / "data"


def until_healthy(host: str, port: int) -> None:
    """Wait for the server like Compose and `kubectl rollout status`."""
    deadline_s = time.monotonic() + 60
    while not probe.healthy(host, port):
        assert time.monotonic() < deadline_s, "the server is not healthy"
        time.sleep(0.1)


class Machine:
    """This machine instead of the image: replaces paths and host names. The folders of secrets and files are made from `files`."""

    def __init__(self, files: dict[str, str], token: str, folder: Path) -> None:
        self.folder, self.port, self.master_port, self.metrics_port = (
            folder,
            unused_port(),
            unused_port(),
            unused_port(),
        )
        (folder / "token").write_text(token)
        (folder / "mine.yaml").write_text(
            files["files/mine.yaml"] if "files/mine.yaml" in files else config_map(files)["mine.yaml"]
        )
        self.names = {
            run_plan.LOCUSTFILE: str(ROOT / "locustfiles" / "chat.py"),
            f"{run_plan.FILES}/": f"{folder}/",
            f"{run_plan.SECRETS}/run/token": str(folder / "token"),
            f"{run_plan.SECRETS}/{NAME}-token/token": str(folder / "token"),
            f"server:{container_plan.PORT}": f"127.0.0.1:{self.port}",
            f"{NAME}:{container_plan.PORT}": f"127.0.0.1:{self.port}",
            run_plan.TERMINATION_LOG: str(folder / "termination-log"),
            f"exporter:{run_plan.METRICS_PORT}": f"127.0.0.1:{self.metrics_port}",
            f"0.0.0.0:{run_plan.METRICS_PORT}": f"127.0.0.1:{self.metrics_port}",
        }

    def here(self, word: str) -> str:
        for theirs, ours in self.names.items():
            word = word.replace(theirs, ours)
        return word

    @contextmanager
    def run(self, words: list[str]) -> Iterator[subprocess.Popen[bytes]]:
        environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        command = ["sh", str(ENTRYPOINT), *map(self.here, words)]
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(command, cwd=self.folder, env=environment, stdout=log, stderr=log)
        try:
            yield process
        finally:
            process.terminate()
            process.wait(60)


def config_map(files: dict[str, str]) -> dict[str, str]:
    return dict(yaml.safe_load(files["files.yaml"])["data"])


def commands(files: dict[str, str], kind: str) -> tuple[list[str], list[str], list[str], str]:
    """Return the commands of the server, the master and a worker, and the token."""
    if kind == "compose":
        services = yaml.safe_load(files["compose.yaml"])["services"]
        server = services["server"]
        parts = [
            server["entrypoint"] + server["command"],
            *(services[part]["command"] for part in ("master", "worker")),
        ]
        server, master, worker = ([word.replace("$$", "$") for word in words] for words in parts)
        return server, master, worker, files["secrets/token"]
    found = {}
    for entry in (*yaml.safe_load_all(files["server.yaml"]), *yaml.safe_load_all(files["run.yaml"])):
        if entry["kind"] in ("Deployment", "Job"):
            (container,) = entry["spec"]["template"]["spec"]["containers"]
            words = container["args"] if "args" in container else container["command"]
            found[container["name"]] = [word.replace("$$(", "$(") for word in words]
    token = yaml.safe_load(files["token.yaml"])["stringData"]["token"]
    return found["server"], found["master"], found["worker"], token


@pytest.mark.parametrize("kind", ["compose", "kubernetes"])
def test_a_run_with_the_commands_of_the_files_passes(tmp_path: Path, runs: Path, kind: str) -> None:
    (tmp_path / "mine.yaml").write_text(SCENARIO)
    words = ("--engine", "simulator", "--scenario", str(tmp_path / "mine.yaml"), "--workers", str(WORKERS))
    files = rendered("deploy", "render", VARIANT, "--format", kind, *words)
    server, master, worker, token = commands(files, kind)
    machine = Machine(files, token, runs)
    server = [str(machine.port) if word == str(container_plan.PORT) else word for word in server]
    to_master = ["--master-host", "127.0.0.1", "--master-port", str(machine.master_port)]
    with ExitStack() as stack:
        stack.enter_context(machine.run(server))
        until_healthy("127.0.0.1", machine.port)
        workers = [stack.enter_context(machine.run([*worker, *to_master])) for _ in range(WORKERS)]
        bound = ["--master-bind-port", str(machine.master_port)]
        first = stack.enter_context(machine.run([*master, *bound]))
        code = first.wait(240)
        assert [worker_process.wait(60) for worker_process in workers] == [0] * WORKERS
    assert code in (0, 3), (runs / "log").read_text()
    (run,) = (path for path in (runs / "runs").iterdir() if not path.is_symlink())
    summary = json.loads((run / "summary.json").read_text())
    assert (code, summary["verdict"]["gates"][0]["passed"]) == (summary["outcome"]["exit_code"], True)
    assert (summary["run"]["engine"], summary["run"]["scenario"]) == ("simulator", "side-by-side")
    assert (summary["turns"]["failed"], summary["percentiles_from"]) == (0, "records")
    assert summary["turns"]["ok"] > 0
    if kind == "kubernetes":
        message = (runs / "termination-log").read_text()
        assert "failed_ratio < 0.01" in message
