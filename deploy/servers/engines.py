"""Engines: each is a function from a server's specification to its command line.

`simulator` is inferload's own server, `vllm` the vLLM of this machine for its GPUs, `vllm-cpu` vLLM on the CPU with a tiny
generated model. All parsers take the last of equal flags, so flags of the user override those of the launcher.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from inferload.errors import UsageError

from ..launcher import machine_checks, paths, preflight
from ..launcher.machine_checks import Hardware
from ..launcher.preflight import Requirements
from ..variants.variant import Variant
from ..vllm.arguments import check_extra, refuse_elsewhere, refuse_removed
from ..vllm_cpu.tiny_model import CONTEXT, Shape, digest

# No downloads, no telemetry, a small KV cache (GiB), and the development endpoints, which return the configuration and empty
# the prefix cache. The user's environment overrides these.
VLLM_CPU_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_SERVER_DEV_MODE": "1",
}

# Upper bound of the data that a start on the CPU writes: a model of a few MB, and logs.
CPU_DISK_GIB = 0.5


@dataclass(frozen=True, slots=True)
class ServerSpec:
    """Specification of a server to start. `cores` None: no pinning; `extra`: flags of the engine."""

    engine: str = "simulator"
    model: str = "tiny"
    host: str = "127.0.0.1"
    port: int = 8000
    cores: tuple[int, ...] | None = None
    extra: tuple[str, ...] = ()
    variant: Variant | None = None
    model_path: Path | None = None  # a model's folder on this machine instead of the variant's model


@dataclass(frozen=True, slots=True)
class Command:
    """A command line, its complete environment, and the time limit until it answers."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    ready_s: float


@dataclass(frozen=True, slots=True)
class CommandLine:
    """Command line of an engine, without checks of this machine.

    `defaults`: variables that the environment overrides; `fixed`: variables of the variant, which override the environment.
    """

    argv: tuple[str, ...]
    defaults: Mapping[str, str]
    fixed: Mapping[str, str]

    def command(self, ready_s: float) -> Command:
        """The command with this process's environment."""
        return Command(self.argv, {**self.defaults, **os.environ, **self.fixed}, ready_s)


def command_of(spec: ServerSpec) -> Command:
    """Check the machine and the engine and return the command of a server; UsageError for the first check that fails."""
    engine = ENGINES.get(spec.engine)
    if engine is None:
        raise UsageError(f"--engine {spec.engine}: not known; choose from {', '.join(ENGINES)}")
    if spec.model_path is not None and not (spec.model_path / "config.json").is_file():
        raise UsageError(f"--model-path {spec.model_path}: no config.json there; name a model's folder")
    check_extra(spec.extra)
    if spec.variant is not None:
        refuse_elsewhere(spec.variant.argv, f"of {spec.variant.name}")
        refuse_removed(spec.variant.name, (), spec.variant.environment)
    return engine(spec)


def line_of(spec: ServerSpec) -> CommandLine:
    """The command line of an engine for a variant, without checks of this machine."""
    return LINES[spec.engine](spec)


def program_argv(spec: ServerSpec) -> tuple[str, ...]:
    """The command line of vllm or of the simulator for another machine, with the program's name instead of its path."""
    argv = line_of(spec).argv
    return argv if spec.engine == "vllm" else ("inferload", "simulator", *argv[3:])


def simulator_line(spec: ServerSpec) -> CommandLine:
    """The command line of the simulator, run by this interpreter."""
    base = (sys.executable, "-m", "inferload.deploy.simulator", *_address(spec), "--model", spec.model)
    if spec.variant is not None:
        base = (*base, "--hardware", spec.variant.simulated_as, *spec.variant.argv)
    return CommandLine((*base, *spec.extra), {}, {})


def simulator(spec: ServerSpec) -> Command:
    """The command of the simulator; UsageError for flags that it refuses."""
    if spec.model_path is not None:
        raise UsageError(f"--model-path {spec.model_path}: the simulator has no model; use --engine vllm or vllm-cpu")
    from ..simulator import flags, server_config  # not needed to list variants

    line = simulator_line(spec)
    try:
        server_config.resolve(flags.read(line.argv[3:]))
    except UsageError as error:
        raise UsageError(f"{_name(spec)}: {error} (the simulator)") from error
    return line.command(ready_s=30.0)


def vllm_line(spec: ServerSpec, program: str = "vllm") -> CommandLine:
    """The command line of `vllm serve` with a variant's arguments."""
    if spec.variant is None:
        raise UsageError(f"--engine vllm {spec.model}: name a variant (inferload deploy list)")
    model = str(spec.model_path or spec.variant.model)
    own = (*spec.variant.argv, *spec.extra)
    argv = (program, "serve", model, *_address(spec), *served_name(spec.variant.model, own), *own)
    return CommandLine(argv, {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}, spec.variant.environment)


def served_name(model: str, argv: Sequence[str]) -> tuple[str, ...]:
    """The flag --served-model-name, unless the arguments have one."""
    names = {word.partition("=")[0].replace("_", "-") for word in argv}
    return () if "--served-model-name" in names else ("--served-model-name", model)


def vllm(spec: ServerSpec) -> Command:
    """The command of this machine's vLLM (`$VLLM`, else `vllm` in the path), after checks of GPUs and disk."""
    program = os.environ.get("VLLM") or shutil.which("vllm")
    command = vllm_line(spec, program or "vllm").command(ready_s=1800.0)
    assert spec.variant is not None  # vllm_line raises without a variant
    if spec.model_path is None and is_generated(spec.variant.model):
        raise UsageError(
            f"{spec.variant.name}: its model is generated, for --engine vllm-cpu or simulator only; name a --model-path for vllm"
        )
    preflight.check(need_of(spec), command.argv, command.environment)
    if program is None:
        raise UsageError(
            "vllm: not in the path; pip install vllm, or set VLLM to the program; --engine simulator needs none"
        )
    return command


def need_of(spec: ServerSpec) -> Requirements:
    """The requirements of a variant on the machine that vLLM serves it on."""
    variant = spec.variant
    assert variant is not None
    model = None if spec.model_path is not None else variant.model
    return Requirements(variant.name, variant.hardware, variant.utilization, model)


def vllm_cpu_line(spec: ServerSpec) -> CommandLine:
    """The command line of vLLM on the CPU, with a tiny generated model unless a model's folder is named."""
    folder = spec.model_path or paths.cache() / "models" / digest() / spec.model
    return _cpu_line(spec, folder)


def _cpu_line(spec: ServerSpec, folder: Path) -> CommandLine:
    python = paths.vllm_venv() / "bin" / "python"
    base = (str(python), "-m", "vllm.entrypoints.cli.main", "serve", str(folder), *_address(spec))
    flags: tuple[str, ...] = (
        *served_name(spec.model, (*(spec.variant.argv if spec.variant is not None else ()), *spec.extra)),
        # The tiny model has random weights.
        *(("--load-format", "dummy", "--max-model-len", str(CONTEXT)) if spec.model_path is None else ()),
        "--enforce-eager",
    )
    variant = spec.variant
    # Times and cached tokens of each request; every variant has these flags.
    own = ("--enable-per-request-metrics", "--enable-prompt-tokens-details") if variant is None else variant.argv
    return CommandLine(
        (*base, *flags, *own, *spec.extra), VLLM_CPU_ENVIRONMENT, {} if variant is None else variant.environment
    )


def vllm_cpu(spec: ServerSpec) -> Command:
    """The command of vLLM on the CPU, after checks of installation, memory and disk. Generates a missing tiny model."""
    python = paths.vllm_venv() / "bin" / "python"
    if not (paths.vllm_venv() / ".ready").exists():
        raise UsageError(f"vllm-cpu: not installed in {paths.vllm_venv()}; {_remedy()}")
    variant = spec.variant
    if variant is not None and variant.hardware.gpus and spec.model_path is None:
        raise UsageError(
            f"{variant.name}: needs {variant.hardware}; on the CPU run a tiny-... variant, or name a --model-path"
        )
    machine_checks.check_memory(Hardware("", 0, 2) if variant is None else variant.hardware, spec.model)
    machine_checks.check_disk(paths.cache(), CPU_DISK_GIB, "the tiny model and vLLM's caches")
    command = _cpu_line(spec, spec.model_path or tiny_model(python, spec.model)).command(ready_s=600.0)
    refuse_removed(_name(spec), command.argv, command.environment)
    return command


def _address(spec: ServerSpec) -> tuple[str, ...]:
    return ("--host", spec.host, "--port", str(spec.port))


def _name(spec: ServerSpec) -> str:
    return spec.model if spec.variant is None else spec.variant.name


def _remedy() -> str:
    if paths.repository() is not None:
        return "run make setup-vllm"
    return f"run {sys.executable} -m inferload.deploy.vllm_cpu.install --venv {paths.vllm_venv()}"


def is_generated(model: str) -> bool:
    """Return True for the name of a tiny model, which is generated; UsageError for an invalid size."""
    try:
        Shape.of(model)
    except ValueError as error:
        if re.fullmatch(r"tiny-\d+x\d+", model):
            raise UsageError(str(error)) from error
        return False
    return True


def tiny_model(python: Path, name: str) -> Path:
    """The folder of a tiny model. vLLM's interpreter generates a missing one."""
    try:
        Shape.of(name)
    except ValueError as error:
        raise UsageError(str(error)) from error
    script = Path(__file__).parents[1] / "vllm_cpu" / "tiny_model.py"
    argv = [str(python), str(script), "--into", str(paths.cache() / "models"), "--name", name]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UsageError(f"model {name}: could not be built: {(done.stderr.strip().splitlines() or ['no reason'])[-1]}")
    return Path(done.stdout.strip())


ENGINES: Mapping[str, Callable[[ServerSpec], Command]] = {"simulator": simulator, "vllm": vllm, "vllm-cpu": vllm_cpu}
LINES: Mapping[str, Callable[[ServerSpec], CommandLine]] = {
    "simulator": simulator_line,
    "vllm": vllm_line,
    "vllm-cpu": vllm_cpu_line,
}
