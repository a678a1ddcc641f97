"""Offline throughput of an engine with a variant's arguments: all prompts at once, without server and network."""

import json
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence, Set
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from inferload.base import clock, deployments
from inferload.base.errors import UsageError
from inferload.campaign.process import awaited, begin
from inferload.campaign.signals import signals_interrupt
from inferload.deploy.launcher.launch import ProgressCallback, tail
from inferload.deploy.servers.engines import Command, ServerSpec, command_of
from inferload.deploy.vllm.log_cause import one_line

_WAIT_S = 5.0
_HELP_S = 600.0  # importing vLLM is slow on a busy machine
# Flags of a server that `vllm bench throughput` cannot use.
_ADDRESS = ("--host", "--port", "--served-model-name")


@dataclass(frozen=True, slots=True)
class OfflineLoad:
    """Number of prompts, and tokens per prompt and answer. Prompts share no prefix."""

    prompts: int
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class OfflineLimit:
    """Result of a measurement. `left_out`: omitted flags that only a server has."""

    engine: str
    load: OfflineLoad
    elapsed_s: float
    input_tokens: int
    output_tokens: int
    left_out: tuple[str, ...] = ()

    @property
    def rates(self) -> dict[str, float]:
        """Rates by name, as in the table and in JSON."""
        counts = {
            "requests/s": self.load.prompts,
            "output tok/s": self.output_tokens,
            "input + output tok/s": self.input_tokens + self.output_tokens,
        }
        return {name: count / self.elapsed_s for name, count in counts.items()}


def measure(spec: ServerSpec, load: OfflineLoad, progress: ProgressCallback) -> OfflineLimit:
    """Measure the limit of an engine. Raise UsageError with the cause on failure."""
    command = command_of(spec)
    return simulated(command, load) if spec.engine == "simulator" else benched(spec, command, load, progress)


def simulated(command: Command, load: OfflineLoad) -> OfflineLimit:
    """Compute the limit with the scheduler of the simulator in simulated time."""
    from inferload.deploy.simulator import flags, server_config
    from inferload.deploy.simulator.core import offline

    config = server_config.resolve(flags.read(command.argv[3:]))
    if config.cost is None:
        raise UsageError("--ttft-ms, --itl-ms: a paced simulator has no compute limit; remove them")
    context = config.limits.max_model_len
    if load.input_tokens + load.output_tokens > context:
        raise UsageError(
            f"--input-len {load.input_tokens}, --output-len {load.output_tokens}: more than the {context} tokens of the model"
        )
    acceptance, seed = config.arguments.spec_acceptance, config.arguments.seed
    settings = offline.Offline(config.limits, config.cost, config.front_end, acceptance, seed)
    requests = [offline.OfflineRequest(0.0, load.output_tokens, load.input_tokens) for _ in range(load.prompts)]
    results = offline.simulate(requests, settings)
    return OfflineLimit(
        "simulator",
        load,
        elapsed_s=float(results.last_s.max()),
        input_tokens=int(results.prompt_tokens.sum()),
        output_tokens=int(results.output_tokens.sum()),
    )


def benched(spec: ServerSpec, command: Command, load: OfflineLoad, progress: ProgressCallback) -> OfflineLimit:
    """Measure with `vllm bench throughput` of the vLLM installation that serves the variant."""
    position = command.argv.index("serve")
    program, model, served = command.argv[:position], command.argv[position + 1], command.argv[position + 2 :]
    arguments, left_out = known_to(served, _flags(program, command.environment))
    with tempfile.TemporaryDirectory(prefix="inferload-throughput-") as folder:
        out = Path(folder) / "result.json"
        argv = [*program, "bench", "throughput", "--model", model, *arguments, "--dataset-name", "random"]
        argv += ["--random-input-len", str(load.input_tokens), "--random-output-len", str(load.output_tokens)]
        argv += ["--num-prompts", str(load.prompts), "--output-json", str(out)]
        log = deployments.state_dir() / f"throughput-{spec.model if spec.variant is None else spec.variant.name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        _run(replace(command, argv=tuple(argv)), log, progress)
        return read(spec.engine, load, json.loads(out.read_text(encoding="utf-8")), tail(log), left_out)


def _flags(program: Sequence[str], environment: Mapping[str, str]) -> set[str]:
    """Flags in the help of `vllm bench throughput`."""
    words = [*program, "bench", "throughput", "--help=all"]
    wide = {**environment, "COLUMNS": "1000"}  # no line breaks within names
    try:
        process = subprocess.run(words, capture_output=True, text=True, timeout=_HELP_S, check=False, env=wide)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"vllm bench throughput --help=all: {error}") from error
    flags = flags_of_help(process.stdout)
    if process.returncode or not flags:
        raise UsageError(f"vllm bench throughput --help=all: lists no flags: {one_line(process.stderr)}")
    return flags


def flags_of_help(text: str) -> set[str]:
    options = (line.split("   ")[0] for line in text.splitlines() if re.match(r"  (?:-\w, )?--[a-z0-9]", line))
    return {name for option in options for name in re.findall(r"(?<![\w-])--[a-z0-9][\w.-]*", option)}


def known_to(words: Sequence[str], known: Set[str]) -> tuple[list[str], tuple[str, ...]]:
    """Split a command line: arguments without unknown flags and address, and names of the unknown flags."""
    arguments: list[str] = []
    left_out: list[str] = []
    is_known = True
    for word in words:
        if word.startswith("--"):
            name = word.partition("=")[0]
            is_known = name in known and name not in _ADDRESS
            if not is_known and name not in _ADDRESS:
                left_out.append(name)
        if is_known:
            arguments.append(word)
    return arguments, tuple(dict.fromkeys(left_out))


def read(
    engine: str, load: OfflineLoad, result: Mapping[str, float], log: str, left_out: tuple[str, ...] = ()
) -> OfflineLimit:
    """Parse vLLM's result file, and its log for separate counts of prompt and output tokens."""
    prompt_tokens, output_tokens = (
        re.findall(rf"Total num {kind} tokens:\s+(\d+)", log) for kind in ("prompt", "output")
    )
    if not prompt_tokens or not output_tokens or not result.get("elapsed_time"):
        raise UsageError("vllm bench throughput: no token counts in its output; check the version of vLLM")
    return OfflineLimit(
        engine, load, float(result["elapsed_time"]), int(prompt_tokens[-1]), int(output_tokens[-1]), left_out
    )


def _run(command: Command, log: Path, progress: ProgressCallback) -> None:
    start_ns = clock.now_ns()

    def poll() -> None:
        progress(f"vllm bench throughput: {(clock.now_ns() - start_ns) / clock.NS_PER_S:.0f} s so far (log: {log})")

    with signals_interrupt(), ExitStack() as undo:
        process, record = begin(command.argv, log, command.environment)
        undo.callback(record.end)  # after Ctrl-C too: the benchmark must not outlive this process
        code = awaited(process, poll, _WAIT_S)
        undo.pop_all()
    if code:
        raise UsageError(f"vllm bench throughput: {one_line(tail(log))} (log: {log})")
