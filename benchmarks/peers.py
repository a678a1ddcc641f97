"""Other load generators: command lines, and parsers of their result files.

Each is installed in a separate folder below .cache/peers (`make bench-peers`), and skipped if it is missing.
"""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.cases import Case
from benchmarks.clients import MODEL, PROMPT_TOKENS, BenchClient, ClientCommand, Load, count, latencies, number
from benchmarks.reported import Reported
from benchmarks.server import ROOT

PEERS_DIR = ROOT / ".cache" / "peers"
VLLM_VENV = ROOT / ".venv-vllm"
BYTES_PER_TOKEN = 5  # four letters and a space, in the tokenizer of the benchmark

_OFFLINE = {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1", "VLLM_NO_USAGE_STATS": "1"}


def prompt_tokens(case: Case) -> int:
    """Return the prompt length in tokens of the benchmark's tokenizer."""
    return max(PROMPT_TOKENS, case.body_bytes // BYTES_PER_TOKEN)


def _absent(program: Path, target: str) -> Callable[[], str | None]:
    return lambda: None if program.exists() else f"not installed: make {target}"


def _version_of(venv: Path, package: str) -> Callable[[], str]:
    """Version from the name of the installed metadata folder, without starting a program."""

    def read() -> str:
        folders = sorted(venv.glob(f"lib/python3*/site-packages/{package}-*.dist-info"))
        return folders[-1].name.removesuffix(".dist-info").partition("-")[2] if folders else "unknown"

    return read


def _no_large_bodies(case: Case) -> str | None:
    return "generating prompts of this size takes minutes" if case.body_bytes else None


# ---- the two clients of vLLM: same command line and result file


def _vllm_call(program: tuple[str, ...]) -> Callable[[Load], ClientCommand]:
    def call(load: Load) -> ClientCommand:
        case = load.case
        argv = [*program, "bench", "serve", "--backend", "openai-chat", "--endpoint", "/v1/chat/completions"]
        argv += ["--base-url", load.url, "--model", MODEL, "--tokenizer", str(load.tokenizer)]
        argv += ["--dataset-name", "random", "--random-input-len", str(prompt_tokens(case))]
        argv += ["--random-output-len", str(case.tokens), "--ignore-eos", "--num-prompts", str(load.turns)]
        argv += ["--max-concurrency", str(load.streams), "--percentile-metrics", "ttft,itl"]
        argv += ["--metric-percentiles", "50,99", "--save-result", "--result-dir", str(load.work)]
        argv += ["--result-filename", "result.json", "--disable-tqdm"]
        return ClientCommand((*argv, "--insecure") if case.tls else tuple(argv), _OFFLINE)

    return call


def _vllm_parse(load: Load) -> Reported:
    result = json.loads((load.work / "result.json").read_text())
    ttft, itl = ({q: result.get(f"{q}_{name}_ms") for q in ("mean", "p50", "p99")} for name in ("ttft", "itl"))
    return Reported(
        **latencies(ttft, itl),
        turns=count(result.get("completed")),
        failed=count(result.get("failed")),
        measured_s=number(result.get("duration")),
    )


_RUST = PEERS_DIR / "vllm-rs" / "vllm-rs"


def _rust_version() -> str:
    words = subprocess.run([str(_RUST), "--version"], capture_output=True, text=True, check=False).stdout.split()
    return words[-1] if words else "unknown"


# ---- AIPerf


def _aiperf_call(load: Load) -> ClientCommand:
    case = load.case
    argv = [str(PEERS_DIR / "aiperf" / "bin" / "aiperf"), "profile", "-m", MODEL, "--url", load.url]
    argv += ["--endpoint-type", "chat", "--streaming", "--concurrency", str(load.streams)]
    argv += ["--request-count", str(load.turns), "--isl", str(prompt_tokens(case)), "--osl", str(case.tokens)]
    argv += ["--tokenizer", str(load.tokenizer), "--use-server-token-count", "--extra-inputs", "ignore_eos:true"]
    argv += ["--ui", "none", "--artifact-dir", str(load.work), "--export-level", "summary"]
    # Its offline mode searches the hub's cache for a local folder; an address without a listener prevents requests.
    env = {"HF_ENDPOINT": "http://127.0.0.1:9", "DO_NOT_TRACK": "1"}
    if load.certificate:
        env["SSL_CERT_FILE"] = str(load.certificate.certificate)
    return ClientCommand(tuple(argv), env)


def _aiperf_parse(load: Load) -> Reported:
    profile = json.loads((load.work / "profile_export_aiperf.json").read_text())

    def of(name: str) -> dict[str, Any]:
        statistics = profile.get(name) or {}
        return {**statistics, "mean": statistics.get("avg")}

    return Reported(
        **latencies(of("time_to_first_token"), of("inter_chunk_latency")),
        turns=count(of("request_count")["mean"]),
        failed=count(of("error_request_count")["mean"]) or 0,
        measured_s=number(of("benchmark_duration")["mean"]),
        remarks=("with --use-server-token-count; ITL is its inter-chunk latency",),
    )


# ---- GuideLLM


def _guidellm_call(load: Load) -> ClientCommand:
    case = load.case
    argv = [str(PEERS_DIR / "guidellm" / "bin" / "guidellm"), "run", "--disable-console"]
    argv += ["--backend", f"kind=openai_http,target={load.url},model={MODEL}"]
    argv += ["--profile", f"kind=concurrent,streams={load.streams}"]
    argv += ["--constraint", f"kind=max_requests,count={load.turns}"]
    argv += ["--tokenizer", f"kind=hf_auto,model={load.tokenizer}"]
    argv += ["--data", f"kind=synthetic_text,prompt_tokens={prompt_tokens(case)},output_tokens={case.tokens}"]
    argv += ["--output", f"kind=json,path={load.work / 'result.json'}"]
    return ClientCommand(tuple(argv), _OFFLINE)


def _guidellm_parse(load: Load) -> Reported:
    measured = json.loads((load.work / "result.json").read_text())["benchmarks"][0]
    metrics = measured["metrics"]

    def of(name: str) -> dict[str, Any]:
        successful = metrics[name]["successful"]
        return {"mean": successful["mean"], **successful["percentiles"]}

    return Reported(
        **latencies(of("time_to_first_token_ms"), of("inter_token_latency_ms")),
        turns=count(metrics["request_totals"]["successful"]),
        failed=count(metrics["request_totals"]["errored"]),
        measured_s=number(measured.get("duration")),
        remarks=("ITL percentiles of means per turn, not of single gaps",),
    )


# ---- genai-bench


def _genai_call(load: Load) -> ClientCommand:
    case = load.case
    argv = [str(PEERS_DIR / "genai-bench" / "bin" / "genai-bench"), "benchmark", "--api-backend", "openai"]
    argv += ["--api-base", load.url, "--api-key", "none", "--api-model-name", MODEL]
    argv += ["--model-tokenizer", str(load.tokenizer), "--task", "text-to-text"]
    argv += ["--traffic-scenario", f"D({prompt_tokens(case)},{case.tokens})"]
    argv += ["--num-concurrency", str(load.streams), "--max-requests-per-run", str(load.turns)]
    argv += ["--max-time-per-run", "2", "--experiment-base-dir", str(load.work), "--experiment-folder-name", "result"]
    env = dict(_OFFLINE)
    if load.certificate:
        env["REQUESTS_CA_BUNDLE"] = str(load.certificate.certificate)
    return ClientCommand(tuple(argv), env)


def _genai_parse(load: Load) -> Reported:
    file = next((load.work / "result").glob("D*_num_concurrency_*.json"))
    metrics = json.loads(file.read_text())["aggregated_metrics"]
    ttft = metrics["stats"]["ttft"]  # in seconds
    mean_s, p99_s = number(ttft["mean"]), number(ttft["p99"])
    return Reported(
        ttft_mean_ms=None if mean_s is None else mean_s * 1e3,
        ttft_p99_ms=None if p99_s is None else p99_s * 1e3,
        turns=count(metrics["num_completed_requests"]),
        failed=count(metrics["num_error_requests"]),
        measured_s=number(metrics["run_duration"]),
        remarks=("does not measure ITL",),
    )


def _package(
    name: str, package: str, title: str, call: Callable[[Load], ClientCommand], parse: Callable[[Load], Reported]
) -> BenchClient:
    """Client of a Python package in its own virtual environment below PEERS_DIR."""
    venv = PEERS_DIR / name
    missing = _absent(venv / "bin" / name, "bench-peers")
    return BenchClient(title, _version_of(venv, package), missing, call, parse, _no_large_bodies)


_VLLM = VLLM_VENV / "bin" / "vllm"
PEERS = {
    "vllm-rs": BenchClient(
        "vllm-rs bench serve", _rust_version, _absent(_RUST, "bench-peers"), _vllm_call((str(_RUST),)), _vllm_parse
    ),
    "vllm": BenchClient(
        "vllm bench serve",
        _version_of(VLLM_VENV, "vllm"),
        _absent(_VLLM, "setup-vllm"),
        _vllm_call((str(_VLLM),)),
        _vllm_parse,
        _no_large_bodies,
    ),
    "aiperf": _package("aiperf", "aiperf", "AIPerf", _aiperf_call, _aiperf_parse),
    "guidellm": _package("guidellm", "guidellm", "GuideLLM", _guidellm_call, _guidellm_parse),
    "genai-bench": _package("genai-bench", "genai_bench", "genai-bench", _genai_call, _genai_parse),
}
