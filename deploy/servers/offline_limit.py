"""The engine's own limit on a variant's arguments: all prompts at once, no server, no network, no think time."""

import json
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path

from inferload.campaign.process import begin
from inferload.errors import UsageError
from inferload.measure import clock

from ..launcher import paths
from ..launcher.launch import Say, tail
from ..launcher.signals import signals_interrupt
from ..vllm.log_cause import one_line
from .engines import Command, ServerSpec, command_of

_WAIT_S = 5.0
_HELP_S = 600.0  # a busy or slow machine loads all of vLLM for its help
# Of a server alone, and nothing that a bench would have.
_ADDRESS = ("--host", "--port", "--served-model-name")


@dataclass(frozen=True, slots=True)
class OfflineLoad:
    """How many prompts, and how long each and its answer are, in tokens; all of one length, nothing shared."""

    prompts: int
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class OfflineLimit:
    """What came of it. `left_out`: the variant's flags that only a server has."""

    engine: str
    load: OfflineLoad
    elapsed_s: float
    input_tokens: int
    output_tokens: int
    left_out: tuple[str, ...] = ()

    @property
    def requests_per_s(self) -> float:
        """Prompts answered a second."""
        return self.load.prompts / self.elapsed_s

    @property
    def output_tok_per_s(self) -> float:
        """Tokens generated a second."""
        return self.output_tokens / self.elapsed_s

    @property
    def total_tok_per_s(self) -> float:
        """Tokens of prompts and answers a second."""
        return (self.input_tokens + self.output_tokens) / self.elapsed_s


def measure(wanted: ServerSpec, load: OfflineLoad, say: Say) -> OfflineLimit:
    """The limit on an engine; UsageError where it cannot be had, with the cause."""
    command = command_of(wanted)
    return simulated(command, load) if wanted.engine == "simulator" else benched(wanted, command, load, say)


def simulated(command: Command, load: OfflineLoad) -> OfflineLimit:
    """By the simulator's scheduler on its own clock: nothing is waited for."""
    from ..simulator import flags, server_config
    from ..simulator.core import offline

    built = server_config.resolve(flags.read(command.argv[3:]))
    if built.cost is None:
        raise UsageError("--ttft-ms, --itl-ms: a paced simulator computes nothing, so it has no limit; leave them out")
    room = built.limits.max_model_len
    if load.input_tokens + load.output_tokens > room:
        raise UsageError(
            f"--input-len {load.input_tokens}, --output-len {load.output_tokens}: more than the {room} tokens of the model"
        )
    setting = offline.Offline(built.limits, built.cost, built.front_end, built.acceptance, built.seed)
    arrivals = [offline.Arrival(0.0, load.output_tokens, load.input_tokens) for _ in range(load.prompts)]
    results = offline.simulate(arrivals, setting)
    return OfflineLimit(
        "simulator",
        load,
        elapsed_s=float(results.last_s.max()),
        input_tokens=int(results.prompt_tokens.sum()),
        output_tokens=int(results.output_tokens.sum()),
    )


def benched(wanted: ServerSpec, command: Command, load: OfflineLoad, say: Say) -> OfflineLimit:
    """By `vllm bench throughput` of the very vLLM that would serve."""
    place = command.argv.index("serve")
    program, model, served = command.argv[:place], command.argv[place + 1], command.argv[place + 2 :]
    kept, left_out = known_to(served, _flags(program, command.environment))
    with tempfile.TemporaryDirectory(prefix="inferload-throughput-") as folder:
        out = Path(folder) / "result.json"
        argv = [*program, "bench", "throughput", "--model", model, *kept, "--dataset-name", "random"]
        argv += ["--random-input-len", str(load.input_tokens), "--random-output-len", str(load.output_tokens)]
        argv += ["--num-prompts", str(load.prompts), "--output-json", str(out)]
        log = paths.state_dir() / f"throughput-{_label(wanted)}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        _run(replace(command, argv=tuple(argv)), log, say)
        return read(wanted.engine, load, json.loads(out.read_text(encoding="utf-8")), tail(log), left_out)


def _flags(program: Sequence[str], environment: Mapping[str, str]) -> set[str]:
    """The flags that `vllm bench throughput` lists in its help."""
    words = [*program, "bench", "throughput", "--help=all"]
    wide = {**environment, "COLUMNS": "1000"}  # so that no name is broken over two lines
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=_HELP_S, check=False, env=wide)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"vllm bench throughput --help=all: {error}") from error
    flags = flags_of_help(done.stdout)
    if done.returncode or not flags:
        raise UsageError(f"vllm bench throughput --help=all: lists no flags: {one_line(done.stderr)}")
    return flags


def flags_of_help(text: str) -> set[str]:
    """Every name in the lines of an argparse help that begin an option."""
    options = (line.split("   ")[0] for line in text.splitlines() if re.match(r"  (?:-\w, )?--[a-z0-9]", line))
    return {name for option in options for name in re.findall(r"(?<![\w-])--[a-z0-9][\w.-]*", option)}


def known_to(words: Sequence[str], known: Set[str]) -> tuple[list[str], tuple[str, ...]]:
    """A command line without the flags that are not known, and those flags (without the address)."""
    kept: list[str] = []
    left_out: list[str] = []
    keep = True
    for word in words:
        if word.startswith("--"):
            name = word.partition("=")[0]
            keep = name in known and name not in _ADDRESS
            if not keep and name not in _ADDRESS:
                left_out.append(name)
        if keep:
            kept.append(word)
    return kept, tuple(dict.fromkeys(left_out))


def read(
    engine: str, load: OfflineLoad, result: Mapping[str, float], log: str, left_out: tuple[str, ...] = ()
) -> OfflineLimit:
    """What vLLM wrote and printed: its file has no tokens by kind, its last lines have."""
    asked, answered = (re.findall(rf"Total num {kind} tokens:\s+(\d+)", log) for kind in ("prompt", "output"))
    if not asked or not answered or not result.get("elapsed_time"):
        raise UsageError("vllm bench throughput: ended without its figures; is this version of vLLM known?")
    return OfflineLimit(engine, load, float(result["elapsed_time"]), int(asked[-1]), int(answered[-1]), left_out)


def _run(command: Command, log: Path, say: Say) -> None:
    began_ns = clock.now_ns()
    with signals_interrupt():
        process, begun = begin(command.argv, log, command.environment)
        try:
            while (code := _ended(process)) is None:
                say(f"vllm bench throughput: {(clock.now_ns() - began_ns) / clock.NS_PER_S:.0f} s so far (log: {log})")
        except BaseException:
            begun.end()
            raise
    if code:
        raise UsageError(f"vllm bench throughput: {one_line(tail(log))} (log: {log})")


def _ended(process: subprocess.Popen[bytes]) -> int | None:
    try:
        return process.wait(_WAIT_S)
    except subprocess.TimeoutExpired:
        return None


def _label(wanted: ServerSpec) -> str:
    return wanted.model if wanted.variant is None else wanted.variant.name
