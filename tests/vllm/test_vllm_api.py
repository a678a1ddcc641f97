"""The simulator and vLLM on the CPU respond alike to the same requests."""

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import api_cases
import pytest
import simulator_process
import vllm_servers
from api_cases import ApiCase, shape
from e2e_runs import wait_until
from inferload.deploy.launcher import probe
from inferload.deploy.launcher.server_state import LocalServer
from inferload.deploy.servers.engines import tiny_model, vllm_venv
from simulator_process import Simulator
from test_vllm_server import chat, stream

pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module")
def simulated() -> Iterator[Simulator]:
    """The simulator with the same flags."""
    server = simulator_process.start("--ttft-ms", "2", "--itl-ms", "1", "--block-size", "128", *api_cases.FLAGS)
    yield server
    simulator_process.stop(server)


def outlines(case: ApiCase, simulated: Simulator, real: LocalServer) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the outlines of both responses. A busy server merges outputs into one event: then both are asked again."""
    for _ in range(5):
        ours, vllms = api_cases.counted(simulated.port, case), api_cases.counted(real.port, case)
        if ours.get("events") == vllms.get("events"):
            break
    return ours, vllms


@pytest.mark.parametrize("case", [*api_cases.answered(), *api_cases.refused()], ids=lambda case: case.name)
def test_simulator_and_vllm_respond_alike(case: ApiCase, vllm_features: LocalServer, simulated: Simulator) -> None:
    ours, vllms = outlines(case, simulated, vllm_features)
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
    ours, vllms = outlines(case, simulated, vllm_server)
    assert ours == vllms


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
    options: str, tokens: str, vllm_features: LocalServer, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(OWN.format(prompt=LOOPING, options=options.format(stop=_stop(vllm_features))))
    words = ("-u", "2", "-t", "2s", "--model", "tiny")
    run_dir = vllm_servers.run(vllm_features, tmp_path, *words, locustfile=tmp_path / "mine.py")
    found = vllm_servers.reconciled(run_dir)
    outcomes = [found[name]["outcome"] for name in ("requests", "prompt tokens", "output tokens")]
    assert outcomes == ["adds up", tokens, tokens], found
    assert ("accepted drafts behind" in found["output tokens"]["text"]) == ("stop" in options), found


def _stop(server: LocalServer) -> str:
    """Return the end of a looping answer within which accepted drafts go on."""
    asked = {"model": "tiny", "prompt": LOOPING, "max_tokens": 200, "temperature": 0, "ignore_eos": True}
    text = probe.ask(server.host, server.port, "/v1/completions", asked)["choices"][0]["text"]
    for length in range(20, 60, 2):
        case = ApiCase("stop", api_cases.TEXT, {**asked, "stop": text[-length:]})
        if api_cases.counted(server.port, case)["grown"]["output"] > 0:
            return str(text[-length:])
    raise AssertionError(text)


@pytest.mark.parametrize(("pause", "resume"), [("/pause", "/resume"), ("/sleep", "/wake_up")])
def test_a_paused_server_looks_idle(pause: str, resume: str, vllm_features: LocalServer, simulated: Simulator) -> None:
    """Requests hang, in no gauge and with a healthy server, and the pause is in their queue time."""
    servers = (vllm_features, simulated) if pause == "/pause" else (vllm_features,)
    ports, queued = [server.port for server in servers], "vllm:request_queue_time_seconds_sum{"
    before_s = [vllm_servers.value(server, queued) for server in servers]
    for port in ports:
        probe.text("127.0.0.1", port, pause, method="POST")
    with ThreadPoolExecutor() as pool:
        case = ApiCase("hangs", api_cases.TEXT, api_cases.text())
        answers = [pool.submit(api_cases.outline, port, case) for port in ports]
        for _ in range(60):  # longer than a busy machine takes to send the request
            time.sleep(0.05)
            for server in servers:
                assert vllm_servers.value(server, "vllm:num_requests_") == 0
            assert not any(answer.done() for answer in answers)
        for port in ports:
            probe.text("127.0.0.1", port, resume, method="POST")
        assert [answer.result(60)["status"] for answer in answers] == [200] * len(ports)
    for server, before in zip(servers, before_s, strict=True):
        wait_until(lambda each=server, least=before + 0.5: vllm_servers.value(each, queued) > least, "its queue time")


@pytest.mark.parametrize(
    ("fixture", "families", "file"),
    [
        ("vllm_features", "vllm:spec_decode", "vllm-metrics-0.32-speculation.txt"),
        ("vllm_server", "", "vllm-metrics-0.32.txt"),
    ],
)
def test_the_metrics_page_has_the_recorded_structure(
    fixture: str, families: str, file: str, request: pytest.FixtureRequest, golden: Callable[[str, str], None]
) -> None:
    """To record, run it alone with --update-golden: rows of the front end depend on earlier requests."""
    server = request.getfixturevalue(fixture)
    stream(server, chat("One request, so that every family has a sample", "shape"))
    golden(file, shape(vllm_servers.page(server), families))


@pytest.mark.parametrize("backend", ["openai-chat", "openai"])
def test_vllm_bench_serve_runs_against_the_simulator(backend: str, simulated: Simulator, tmp_path: Path) -> None:
    python = vllm_venv() / "bin" / "python"
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
