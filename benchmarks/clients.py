"""Clients of this tree: command lines of inferload and the C reader, and parsers of their results."""

import json
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.cases import Case
from benchmarks.reported import Reported
from benchmarks.server import PROGRAMS, ROOT, Certificate

MODEL = "paced"
PROMPT_TOKENS = 20


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
        """Turns per stream."""
        return self.case.turns_of(self.streams)

    @property
    def turns(self) -> int:
        """Turns of all streams."""
        return self.streams * self.turns_each


@dataclass(frozen=True, slots=True)
class ClientCommand:
    """Command line, and additional environment variables."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BenchClient:
    """Client program of the benchmark.

    `missing` returns the reason why it cannot run at all, `unable` why not in a case; None if it can. `parse` reads its
    results from the working folder, with its output in `output.txt`.
    """

    name: str
    version: Callable[[], str]
    missing: Callable[[], str | None]
    call: Callable[[Load], ClientCommand]
    parse: Callable[[Load], Reported]
    unable: Callable[[Case], str | None] = lambda _case: None


def number(value: Any) -> float | None:
    """Return the number of a result file; None if it is not a number."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def count(value: Any) -> int | None:
    """Return the count of a result file; None if it is not a number."""
    parsed = number(value)
    return None if parsed is None else round(parsed)


def latencies(ttft: Mapping[str, Any], itl: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the latencies of `Reported` from the statistics mean, p50 and p99 of a result file, in ms."""
    return {
        "ttft_mean_ms": number(ttft.get("mean")),
        "ttft_p99_ms": number(ttft.get("p99")),
        "itl_p50_ms": number(itl.get("p50")),
        "itl_p99_ms": number(itl.get("p99")),
    }


# ---- the C reader


def _reader_call(stamps: str) -> Callable[[Load], ClientCommand]:
    def call(load: Load) -> ClientCommand:
        case = load.case
        argv = [str(PROGRAMS / "reader"), "--port", str(load.port), "--streams", str(load.streams)]
        argv += ["--turns", str(load.turns_each), "--tokens", str(case.tokens), "--body-bytes", str(case.body_bytes)]
        argv += ["--spread-ms", str(case.spread_ms), "--stamps", stamps, "--tls", str(int(case.tls))]
        return ClientCommand(tuple(argv))

    return call


def _reader_parse(load: Load) -> Reported:
    result = json.loads((load.work / "output.txt").read_text())
    return Reported(
        **latencies(result["ttft_ms"], result["itl_ms"]),
        turns=count(result["turns"]),
        failed=count(result["failed"]),
        measured_s=number(result["measured_s"]),
    )


def _reader(name: str, stamps: str) -> BenchClient:
    return BenchClient(
        name,
        version=lambda: f"this tree, {stamps} stamps",
        missing=lambda: None if (PROGRAMS / "reader").exists() else "not built: make bench-programs",
        call=_reader_call(stamps),
        parse=_reader_parse,
    )


# ---- inferload

# Mean length of the bundled words with their space, to size the large bodies; their actual size is reported.
_BYTES_PER_WORD = 6.6


def prompt_tokens(load: Load) -> int:
    """Return the number of prompt tokens for the body size of the case."""
    return max(PROMPT_TOKENS, round(load.case.body_bytes / _BYTES_PER_WORD))


def measure_s(load: Load) -> float:
    """Return the measurement window in which each user starts the required turns, with a margin of half a turn."""
    return (load.turns_each - 0.5) * load.case.turn_s + load.case.spread_ms / 1e3


def spawn_per_s(load: Load) -> float:
    """Return the number of users to start per second."""
    return load.streams / (load.case.spread_ms / 1e3) if load.case.spread else load.streams


def scenario_text(load: Load) -> str:
    """Return a scenario of independent turns in closed loop, long enough for the required turns."""
    case = load.case
    return f"""schema: 1
name: accuracy
workload:
  kind: chat
  turns: 1
  think_time_s: 0
  prompt_tokens: {prompt_tokens(load)}
  output_tokens: {case.tokens}
  history: none
arrivals: {{kind: closed, users: {load.streams}, spawn_per_s: {spawn_per_s(load):.3f}}}
phases: {{warmup_s: 0, measure_s: {measure_s(load):.3f}, drain_s: 60}}
"""


TASKS = """
from inferload.users import InferenceUser
from locust import task


class BenchUser(InferenceUser):
    @task
    def ask(self):
        self.chat("word " * {words}, max_tokens={tokens})
"""


def _inferload_call(load: Load) -> ClientCommand:
    scenario = load.work / "scenario.yaml"
    scenario.write_text(scenario_text(load))
    return _locust_call(load, ROOT / "locustfiles" / "chat.py", "--headless", "--scenario", str(scenario))


def _tasks_call(load: Load) -> ClientCommand:
    """Same load from a task of a locustfile."""
    locustfile = load.work / "bench_user.py"
    locustfile.write_text(TASKS.format(words=prompt_tokens(load), tokens=load.case.tokens))
    run_time_s = math.ceil(measure_s(load))
    users = ("-u", str(load.streams), "-r", f"{spawn_per_s(load):.3f}", "-t", f"{run_time_s}s")
    return _locust_call(load, locustfile, "--headless", *users)


def _locust_call(load: Load, locustfile: Path, *options: str) -> ClientCommand:
    argv = [sys.executable, "-m", "locust", "-f", str(locustfile), *options]
    argv += ["--run-dir", str(load.work / "run"), "--host", load.url, "--seed", "1", "--on-invalid", "warn"]
    if load.certificate:
        argv += ["--ca-file", str(load.certificate.certificate)]
    return ClientCommand(tuple(argv))


def _inferload_parse(load: Load) -> Reported:
    summary = json.loads((load.work / "run" / "summary.json").read_text())
    verdict = summary["verdict"]
    codes = ", ".join(reason["code"] for reason in verdict["reasons"])
    return Reported(
        **latencies(summary["latency"]["ttft_ms"] or {}, summary["latency"]["itl_ms"] or {}),
        turns=count(summary["turns"]["ok"]),
        failed=count(summary["turns"]["failed"]),
        measured_s=number(summary["window_s"]),
        verdict=verdict["measurement"] + (f" ({codes})" if codes else ""),
    )


def _inferload_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("inferload")
    except PackageNotFoundError:
        return "unknown"


READER = _reader("C reader", "user")
READER_KERNEL = _reader("C reader, kernel stamps", "kernel")
INFERLOAD = BenchClient(
    "inferload",
    version=_inferload_version,
    missing=lambda: None if _inferload_version() != "unknown" else "not installed: make setup",
    call=_inferload_call,
    parse=_inferload_parse,
)
INFERLOAD_TASKS = replace(
    INFERLOAD,
    name="inferload, own tasks",
    call=_tasks_call,
    unable=lambda case: None if case.name == "base" else "measured in case base only",
)
