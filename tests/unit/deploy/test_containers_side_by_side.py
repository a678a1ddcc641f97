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
from inferload.deploy.launcher import probe
from inferload.deploy.render import compose, container_plan, kubernetes
from inferload.deploy.render.container_plan import ContainerImages, ContainerPlan, plan_of
from inferload.deploy.variants.variant import named
from paths import ROOT
from ports import unused_port

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


@pytest.fixture
def plan(tmp_path: Path) -> ContainerPlan:
    (tmp_path / "mine.yaml").write_text(SCENARIO)
    return plan_of(named("tiny-all"), "simulator", str(tmp_path / "mine.yaml"), 2, ContainerImages())


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
    """This machine instead of the image: replaces paths and host names."""

    def __init__(self, plan: ContainerPlan, folder: Path) -> None:
        self.folder, self.port, self.master_port = folder, unused_port(), unused_port()
        (folder / "scenario.yaml").write_text(plan.scenario_text or "")
        self.names = {
            container_plan.LOCUSTFILE: str(ROOT / "locustfiles" / "chat.py"),
            container_plan.SCENARIO: str(folder / "scenario.yaml"),
            f"server:{container_plan.PORT}": f"127.0.0.1:{self.port}",
            f"{plan.name}:{container_plan.PORT}": f"127.0.0.1:{self.port}",
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


def commands(plan: ContainerPlan, kind: str) -> tuple[list[str], list[str]]:
    """Return the arguments of the master and of a worker."""
    if kind == "compose":
        services = compose.document(plan)["services"]
        return services["master"]["command"], services["worker"]["command"]
    jobs = [thing for thing in kubernetes.run_objects(plan, True) if thing["kind"] == "Job"]
    master, worker = (job["spec"]["template"]["spec"]["containers"][0]["args"] for job in jobs)
    return master, worker


@pytest.mark.parametrize("kind", ["compose", "kubernetes"])
def test_a_run_with_the_commands_of_the_files_passes(plan: ContainerPlan, runs: Path, kind: str) -> None:
    machine = Machine(plan, runs)
    master, worker = commands(plan, kind)
    server = [str(machine.port) if word == str(container_plan.PORT) else word for word in plan.server_command()]
    to_master = ["--master-host", "127.0.0.1", "--master-port", str(machine.master_port)]
    with ExitStack() as stack:
        stack.enter_context(machine.run(server))
        until_healthy("127.0.0.1", machine.port)
        workers = [stack.enter_context(machine.run([*worker, *to_master])) for _ in range(plan.workers)]
        bound = ["--master-bind-port", str(machine.master_port)]
        first = stack.enter_context(machine.run([*master, *bound]))
        code = first.wait(240)
        assert [worker_process.wait(60) for worker_process in workers] == [0] * plan.workers
    assert code in (0, 3), (runs / "log").read_text()
    (run,) = (path for path in (runs / "runs").iterdir() if not path.is_symlink())
    summary = json.loads((run / "summary.json").read_text())
    assert (code, summary["verdict"]["gates"][0]["passed"]) == (summary["outcome"]["exit_code"], True)
    assert (summary["run"]["engine"], summary["run"]["scenario"]) == ("simulator", "side-by-side")
    assert (summary["turns"]["failed"], summary["percentiles_from"]) == (0, "records")
    assert summary["turns"]["ok"] > 0
