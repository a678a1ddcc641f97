"""The clients, ours and the reader: how each is called for a load, and how its own figures are read back."""

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
    """What a client is asked to do: so many streams in closed loop, so many turns each. `work` is an empty folder."""

    case: Case
    url: str
    port: int
    streams: int
    work: Path
    tokenizer: Path
    certificate: Certificate | None = None

    @property
    def turns_each(self) -> int:
        """Turns of one stream."""
        return self.case.turns_of(self.streams)

    @property
    def turns(self) -> int:
        """Turns of all streams together."""
        return self.streams * self.turns_each


@dataclass(frozen=True, slots=True)
class ClientCommand:
    """A command line, and what it wants in its environment."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LoadClient:
    """One client. `missing` says why it cannot be run at all (None: it can); `unable`: why not in this case.

    `parse` reads its figures from the folder that it worked in, where its output stands in `output.txt`.
    """

    name: str
    version: Callable[[], str]
    missing: Callable[[], str | None]
    call: Callable[[Load], ClientCommand]
    parse: Callable[[Load], Reported]
    unable: Callable[[Case], str | None] = lambda _case: None


def number(value: Any) -> float | None:
    """A figure of a result file; None where it is no number."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def count(value: Any) -> int | None:
    """A count of a result file; None where it is none."""
    found = number(value)
    return None if found is None else round(found)


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
    said = json.loads((load.work / "output.txt").read_text())
    return Reported(
        ttft_mean_ms=number(said["ttft_ms"]["mean"]),
        ttft_p99_ms=number(said["ttft_ms"]["p99"]),
        itl_p50_ms=number(said["itl_ms"]["p50"]),
        itl_p99_ms=number(said["itl_ms"]["p99"]),
        turns=count(said["turns"]),
        failed=count(said["failed"]),
        measured_s=number(said["measured_s"]),
    )


def _reader(name: str, stamps: str) -> LoadClient:
    return LoadClient(
        name,
        version=lambda: f"this tree, {stamps} stamps",
        missing=lambda: None if (PROGRAMS / "reader").exists() else "not built: make bench-programs",
        call=_reader_call(stamps),
        parse=_reader_parse,
    )


# ---- inferload, as anybody runs it

# Length of the bundled words with their blank, on average: only to size the large bodies, whose true size is reported.
_BYTES_PER_WORD = 6.6


def prompt_tokens(load: Load) -> int:
    """Tokens of a prompt whose body has the case's size."""
    return max(PROMPT_TOKENS, round(load.case.body_bytes / _BYTES_PER_WORD))


def measure_s(load: Load) -> float:
    """Window in which each user begins the wanted turns: half a turn before the next would begin, the last one has."""
    return (load.turns_each - 0.5) * load.case.turn_s + load.case.spread_ms / 1e3


def spawn_per_s(load: Load) -> float:
    """Users started per second."""
    return load.streams / (load.case.spread_ms / 1e3) if load.case.spread else load.streams


def scenario_text(load: Load) -> str:
    """The scenario: independent turns, users in closed loop, just long enough for the turns that are wanted."""
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


class Asking(InferenceUser):
    @task
    def ask(self):
        self.chat("word " * {words}, max_tokens={tokens})
"""


def _inferload_call(load: Load) -> ClientCommand:
    scenario = load.work / "scenario.yaml"
    scenario.write_text(scenario_text(load))
    return _locust_call(load, ROOT / "locustfiles" / "chat.py", "--scenario", str(scenario))


def _tasks_call(load: Load) -> ClientCommand:
    """The same load from a locustfile's own task."""
    locustfile = load.work / "asking.py"
    locustfile.write_text(TASKS.format(words=prompt_tokens(load), tokens=load.case.tokens))
    run_time_s = math.ceil(measure_s(load))
    return _locust_call(
        load, locustfile, "-u", str(load.streams), "-r", f"{spawn_per_s(load):.3f}", "-t", f"{run_time_s}s"
    )


def _locust_call(load: Load, locustfile: Path, *options: str) -> ClientCommand:
    argv = [sys.executable, "-m", "locust", "-f", str(locustfile), "--headless", *options]
    argv += ["--run-dir", str(load.work / "run"), "--host", load.url, "--seed", "1", "--on-invalid", "warn"]
    if load.certificate:
        argv += ["--ca-file", str(load.certificate.certificate)]
    return ClientCommand(tuple(argv))


def _inferload_parse(load: Load) -> Reported:
    said = json.loads((load.work / "run" / "summary.json").read_text())
    ttft, itl = said["latency"]["ttft_ms"] or {}, said["latency"]["itl_ms"] or {}
    verdict = said["verdict"]
    codes = ", ".join(reason["code"] for reason in verdict["reasons"])
    return Reported(
        ttft_mean_ms=number(ttft.get("mean")),
        ttft_p99_ms=number(ttft.get("p99")),
        itl_p50_ms=number(itl.get("p50")),
        itl_p99_ms=number(itl.get("p99")),
        turns=count(said["turns"]["ok"]),
        failed=count(said["turns"]["failed"]),
        measured_s=number(said["window_s"]),
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
INFERLOAD = LoadClient(
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
