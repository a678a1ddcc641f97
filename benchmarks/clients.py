"""Clients of the benchmark, one row each: those of this tree, and other load generators, which are skipped if they are missing."""

import json
import math
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.cases import Case
from benchmarks.reported import Reported
from benchmarks.server import PROGRAMS, ROOT, Certificate

PROMPT_TOKENS = 20
PEERS_DIR = ROOT / ".cache" / "peers"
_VLLM_VENV = ROOT / ".venv-vllm"
# Mean length of the bundled words with their space, to size the large bodies; their actual size is reported.
_BYTES_PER_WORD = 6.6
_BYTES_PER_TOKEN = 5  # four letters and a space, in the tokenizer of the benchmark
_PATHS = {"python": sys.executable, "root": ROOT, "programs": PROGRAMS, "peers": PEERS_DIR, "vllm": _VLLM_VENV}


@dataclass(frozen=True, slots=True)
class Load:
    """Load for a client: streams in closed loop, each with a number of turns. `work` is an empty folder."""

    case: Case
    url: str
    port: int
    streams: int
    work: Path
    tokenizer: Path
    certificate: Certificate | None = None

    @property
    def turns_each(self) -> int:
        return self.case.turns_of(self.streams)

    @property
    def turns(self) -> int:
        return self.streams * self.turns_each

    @property
    def words(self) -> int:
        """Words of a prompt of inferload for the body size of the case."""
        return max(PROMPT_TOKENS, round(self.case.body_bytes / _BYTES_PER_WORD))

    @property
    def prompt_tokens(self) -> int:
        """Length of a prompt in tokens of the benchmark's tokenizer."""
        return max(PROMPT_TOKENS, self.case.body_bytes // _BYTES_PER_TOKEN)

    @property
    def measure_s(self) -> float:
        """Window in which each user of inferload starts the required turns, with a margin of half a turn."""
        return (self.turns_each - 0.5) * self.case.turn_s + self.case.spread_ms / 1e3

    @property
    def run_s(self) -> int:
        """The window in whole seconds."""
        return math.ceil(self.measure_s)

    @property
    def spawn_per_s(self) -> float:
        """Users to start per second."""
        return self.streams / (self.case.spread_ms / 1e3) if self.case.spread else self.streams


@dataclass(frozen=True, slots=True)
class BenchClient:
    """Client program: a row of the benchmark. Texts have paths, and fields of `load` and `case`, in braces.

    `missing` returns the reason why it cannot run at all, `unable` why not in a case; None if it can. `figures`: fields of
    `Reported` by their path in the JSON of the result, with =VALUE for one that may be missing; `to_ms` converts its latencies.
    """

    name: str
    version: Callable[[], str]
    missing: Callable[[], str | None]
    arguments: str
    figures: Mapping[str, str]
    result: str = "result.json"  # file in the working folder, or a pattern; the output is in output.txt
    files: Mapping[str, str] = field(default_factory=dict)  # written before the start, by name
    env: Mapping[str, str] = field(default_factory=dict)
    tls_arguments: str = ""
    tls_variable: str = ""  # of the environment, for the certificate
    to_ms: float = 1.0
    verdict: Callable[[Any], str | None] = lambda _result: None
    remarks: tuple[str, ...] = ()
    unable: Callable[[Case], str | None] = lambda _case: None

    def call(self, load: Load) -> tuple[list[str], dict[str, str]]:
        """Write the files of a run; return its command line and additional environment variables."""
        for name, text in self.files.items():
            (load.work / name).write_text(text.format(load=load, case=load.case))
        words, env = self.arguments.split(), {**self.env}
        if load.certificate:
            words += self.tls_arguments.split()
            env |= {self.tls_variable: str(load.certificate.certificate)} if self.tls_variable else {}
        return [word.format(**_PATHS, load=load, case=load.case) for word in words], env

    def parse(self, load: Load) -> Reported:
        """Read the results of a run. Raise OSError, ValueError, LookupError or TypeError if there are none."""
        result = json.loads(next(load.work.glob(self.result), load.work / self.result).read_text())
        values: dict[str, Any] = {name: _at(result, path) for name, path in self.figures.items()}
        if values["turns"] is None:
            raise KeyError(self.figures["turns"])
        for name in [name for name, value in values.items() if value is not None]:
            values[name] *= self.to_ms if name.endswith("_ms") else 1
            values[name] = round(values[name]) if name in ("turns", "failed") else values[name]
        return Reported(**values, verdict=self.verdict(result), remarks=self.remarks)


def _at(document: Any, path: str) -> Any:
    """Return the number at a path of keys; None, or the default of the path, if it is missing."""
    path, _, default = path.partition("=")
    for key in path.split("."):
        own = (
            document if isinstance(document, dict) else dict(enumerate(document)) if isinstance(document, list) else {}
        )
        document = own.get(int(key) if key.isdigit() else key)
    if isinstance(document, int | float) and not isinstance(document, bool):
        return float(document)
    return float(default) if default else None


def _latencies(ttft: str, itl: str) -> dict[str, str]:
    """Return the paths of the latencies. `ttft`, `itl`: path with * in place of mean, p50 and p99."""
    ttft_paths = {f"ttft_{statistic}_ms": ttft.replace("*", statistic) for statistic in ("mean", "p99")}
    return ttft_paths | {f"itl_{statistic}_ms": itl.replace("*", statistic) for statistic in ("p50", "p99")}


def _absent(program: Path, target: str, what: str = "not installed") -> Callable[[], str | None]:
    return lambda: None if program.exists() else f"{what}: make {target}"


# -- clients of this tree

READER = BenchClient(
    "C reader",
    lambda: "this tree, user stamps",
    _absent(PROGRAMS / "reader", "bench-programs", "not built"),
    "{programs}/reader --port {load.port} --streams {load.streams} --turns {load.turns_each} --tokens {case.tokens} "
    "--body-bytes {case.body_bytes} --spread-ms {case.spread_ms} --stamps user --tls {case.tls:d}",
    {**_latencies("ttft_ms.*", "itl_ms.*"), "turns": "turns", "failed": "failed", "measured_s": "measured_s"},
    "output.txt",
)
_SCENARIO = """schema: 1
name: accuracy
workload:
  kind: chat
  turns: 1
  think_time_s: 0
  prompt_tokens: {load.words}
  output_tokens: {case.tokens}
  history: none
arrivals: {{kind: closed, users: {load.streams}, spawn_per_s: {load.spawn_per_s:.3f}}}
phases: {{warmup_s: 0, measure_s: {load.measure_s:.3f}, drain_s: 60}}
"""
_TASKS = """
from inferload.users import InferenceUser
from locust import task


class BenchUser(InferenceUser):
    @task
    def ask(self):
        self.chat("word " * {load.words}, max_tokens={case.tokens})
"""
_RUN = "--run-dir {load.work}/run --host {load.url} --seed 1 --on-invalid warn"


def _inferload_version() -> str:
    try:
        return metadata.version("inferload")
    except metadata.PackageNotFoundError:
        return "unknown"


def _verdict(summary: Any) -> str:
    codes = ", ".join(reason["code"] for reason in summary["verdict"]["reasons"])
    return summary["verdict"]["measurement"] + (f" ({codes})" if codes else "")


INFERLOAD = BenchClient(
    "inferload",
    _inferload_version,
    lambda: None if _inferload_version() != "unknown" else "not installed: make setup",
    "{python} -m locust -f {root}/locustfiles/chat.py --headless --scenario {load.work}/scenario.yaml " + _RUN,
    {
        **_latencies("latency.ttft_ms.*", "latency.itl_ms.*"),
        "turns": "turns.ok",
        "failed": "turns.failed",
        "measured_s": "window_s",
    },
    "run/summary.json",
    files={"scenario.yaml": _SCENARIO},
    tls_arguments="--ca-file {load.certificate.certificate}",
    verdict=_verdict,
)
OWN = {
    "reader": READER,
    "inferload": INFERLOAD,
    "inferload-tasks": replace(  # the same load from a task of a locustfile
        INFERLOAD,
        name="inferload, own tasks",
        arguments="{python} -m locust -f {load.work}/bench_user.py --headless -u {load.streams} -r {load.spawn_per_s:.3f} "
        "-t {load.run_s}s " + _RUN,
        files={"bench_user.py": _TASKS},
        unable=lambda case: None if case.name == "base" else "measured in case base only",
    ),
    "inferload-processes": replace(
        INFERLOAD,
        name="inferload, two processes",
        arguments=f"{INFERLOAD.arguments} --processes 2",
        unable=lambda case: None if case.client_cores > 1 else "the client has one core",
    ),
}

# -- other load generators, each installed in a separate folder below .cache/peers (`make bench-peers`)

_OFFLINE = {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1", "VLLM_NO_USAGE_STATS": "1"}


def _version_of(venv: Path, package: str) -> Callable[[], str]:
    """Version from the name of the installed metadata folder, without starting a program."""

    def read() -> str:
        folders = sorted(venv.glob(f"lib/python3*/site-packages/{package}-*.dist-info"))
        return folders[-1].name.removesuffix(".dist-info").partition("-")[2] if folders else "unknown"

    return read


def _rust_version() -> str:
    words = subprocess.run([str(_RUST), "--version"], capture_output=True, text=True, check=False).stdout.split()
    return words[-1] if words else "unknown"


def _no_large_bodies(case: Case) -> str | None:
    return "generating prompts of this size takes minutes" if case.body_bytes else None


def _package(name: str, title: str, arguments: str, figures: Mapping[str, str], **more: Any) -> BenchClient:
    """Return the row of a Python package in its own virtual environment below PEERS_DIR."""
    venv = PEERS_DIR / name
    version, missing = _version_of(venv, name.replace("-", "_")), _absent(venv / "bin" / name, "bench-peers")
    program = f"{{peers}}/{name}/bin/{name} "
    given = {"env": _OFFLINE, "unable": _no_large_bodies} | more
    return BenchClient(title, version, missing, program + arguments, figures, **given)


_RUST = PEERS_DIR / "vllm-rs" / "vllm-rs"
_VLLM_RS = BenchClient(
    "vllm-rs bench serve",
    _rust_version,
    _absent(_RUST, "bench-peers"),
    "{peers}/vllm-rs/vllm-rs bench serve --backend openai-chat --endpoint /v1/chat/completions --base-url {load.url} --model paced "
    "--tokenizer {load.tokenizer} --dataset-name random --random-input-len {load.prompt_tokens} "
    "--random-output-len {case.tokens} --ignore-eos --num-prompts {load.turns} --max-concurrency {load.streams} "
    "--percentile-metrics ttft,itl --metric-percentiles 50,99 --save-result --result-dir {load.work} "
    "--result-filename result.json --disable-tqdm",
    {**_latencies("*_ttft_ms", "*_itl_ms"), "turns": "completed", "failed": "failed", "measured_s": "duration"},
    env=_OFFLINE,
    tls_arguments="--insecure",
)
_GUIDELLM = "benchmarks.0.metrics."
PEERS = {
    "vllm-rs": _VLLM_RS,
    "vllm": replace(  # same command line and result file
        _VLLM_RS,
        name="vllm bench serve",
        version=_version_of(_VLLM_VENV, "vllm"),
        missing=_absent(_VLLM_VENV / "bin" / "vllm", "setup-vllm"),
        arguments=_VLLM_RS.arguments.replace("{peers}/vllm-rs/vllm-rs", "{vllm}/bin/vllm"),
        unable=_no_large_bodies,
    ),
    "aiperf": _package(
        "aiperf",
        "AIPerf",
        "profile -m paced --url {load.url} --endpoint-type chat --streaming --concurrency {load.streams} "
        "--request-count {load.turns} --isl {load.prompt_tokens} --osl {case.tokens} --tokenizer {load.tokenizer} "
        "--use-server-token-count --extra-inputs ignore_eos:true --ui none --artifact-dir {load.work} --export-level summary",
        {
            "ttft_mean_ms": "time_to_first_token.avg",
            "ttft_p99_ms": "time_to_first_token.p99",
            "itl_p50_ms": "inter_chunk_latency.p50",
            "itl_p99_ms": "inter_chunk_latency.p99",
            "turns": "request_count.avg",
            "failed": "error_request_count.avg=0",
            "measured_s": "benchmark_duration.avg",
        },
        result="profile_export_aiperf.json",
        # Its offline mode searches the hub's cache for a local folder; an address without a listener prevents requests.
        env={"HF_ENDPOINT": "http://127.0.0.1:9", "DO_NOT_TRACK": "1"},
        tls_variable="SSL_CERT_FILE",
        remarks=("with --use-server-token-count; ITL is its inter-chunk latency",),
    ),
    "guidellm": _package(
        "guidellm",
        "GuideLLM",
        "run --disable-console --backend kind=openai_http,target={load.url},model=paced "
        "--profile kind=concurrent,streams={load.streams} --constraint kind=max_requests,count={load.turns} "
        "--tokenizer kind=hf_auto,model={load.tokenizer} "
        "--data kind=synthetic_text,prompt_tokens={load.prompt_tokens},output_tokens={case.tokens} "
        "--output kind=json,path={load.work}/result.json",
        {
            "ttft_mean_ms": f"{_GUIDELLM}time_to_first_token_ms.successful.mean",
            "ttft_p99_ms": f"{_GUIDELLM}time_to_first_token_ms.successful.percentiles.p99",
            "itl_p50_ms": f"{_GUIDELLM}inter_token_latency_ms.successful.percentiles.p50",
            "itl_p99_ms": f"{_GUIDELLM}inter_token_latency_ms.successful.percentiles.p99",
            "turns": f"{_GUIDELLM}request_totals.successful",
            "failed": f"{_GUIDELLM}request_totals.errored",
            "measured_s": "benchmarks.0.duration",
        },
        remarks=("ITL percentiles of means per turn, not of single gaps",),
    ),
    "genai-bench": _package(
        "genai-bench",
        "genai-bench",
        "benchmark --api-backend openai --api-base {load.url} --api-key none --api-model-name paced "
        "--model-tokenizer {load.tokenizer} --task text-to-text --traffic-scenario D({load.prompt_tokens},{case.tokens}) "
        "--num-concurrency {load.streams} --max-requests-per-run {load.turns} --max-time-per-run 2 "
        "--experiment-base-dir {load.work} --experiment-folder-name result",
        {
            "ttft_mean_ms": "aggregated_metrics.stats.ttft.mean",
            "ttft_p99_ms": "aggregated_metrics.stats.ttft.p99",
            "turns": "aggregated_metrics.num_completed_requests",
            "failed": "aggregated_metrics.num_error_requests",
            "measured_s": "aggregated_metrics.run_duration",
        },
        result="result/D*_num_concurrency_*.json",
        to_ms=1e3,
        tls_variable="REQUESTS_CA_BUNDLE",
        remarks=("does not measure ITL",),
    ),
}
CLIENTS = {**OWN, **PEERS}
