"""Engines: functions from the specification of a server to its command line.

`simulator` is inferload's own server, `vllm` the vLLM of this machine on its GPUs, `vllm-cpu` vLLM on the CPU with a generated
tiny model. All parsers use the last of repeated flags, so flags of the user override those of the launcher.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from inferload.base.deployments import cache, repository
from inferload.base.errors import UsageError, instead

from ..launcher import machine_checks, weights
from ..launcher.machine_checks import Hardware
from ..variants.variant import Variant
from ..vllm.arguments import check_extra, refuse_elsewhere, refuse_removed, to_argv
from ..vllm_cpu.tiny_model import CONTEXT, Shape, digest

# No downloads, no telemetry, a small KV cache (GiB), and the development endpoints for the configuration and
# the prefix cache. The environment of the user overrides these.
VLLM_CPU_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_SERVER_DEV_MODE": "1",
}

# Upper bound of the data written by a start on the CPU: a model of a few MB, and logs.
CPU_DISK_GIB = 0.5


@dataclass(frozen=True, slots=True)
class ServerSpec:
    """Specification of a server to start. `cores` None: no pinning. `extra`: flags of the engine."""

    engine: str = "simulator"
    model: str = "tiny"
    host: str = "127.0.0.1"
    port: int = 8000
    cores: tuple[int, ...] | None = None
    extra: tuple[str, ...] = ()
    variant: Variant | None = None
    model_path: Path | None = None  # model folder on this machine, instead of the variant's model


@dataclass(frozen=True, slots=True)
class Command:
    """Command line, complete environment, and time limit for the start."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    ready_s: float


@dataclass(frozen=True, slots=True)
class CommandLine:
    """Command line of an engine, without checks of this machine.

    `defaults`: variables that the environment overrides. `fixed`: variables of the variant, which override the environment.
    """

    argv: tuple[str, ...]
    defaults: Mapping[str, str]
    fixed: Mapping[str, str]

    def command(self, ready_s: float) -> Command:
        return Command(self.argv, {**self.defaults, **os.environ, **self.fixed}, ready_s)


def command_of(spec: ServerSpec) -> Command:
    """Check machine and engine, and return the command of a server. Raise UsageError for the first failed check."""
    return _by_engine(spec, ENGINES)


def check(spec: ServerSpec) -> None:
    """Raise UsageError for what `command_of` refuses, without preparing a start."""
    _by_engine(spec, {**ENGINES, "vllm-cpu": _checked_cpu})


def _by_engine(spec: ServerSpec, engines: Mapping[str, Callable[[ServerSpec], Command]]) -> Command:
    if (engine := engines.get(spec.engine)) is None:
        raise UsageError(f"--engine {spec.engine}: unknown; {instead(spec.engine, ENGINES)}")
    if spec.model_path is not None and not (spec.model_path / "config.json").is_file():
        raise UsageError(f"--model-path {spec.model_path}: no config.json there; give a model folder")
    check_extra(spec.extra)
    if spec.variant is not None:
        refuse_elsewhere(spec.variant.argv, f"of {spec.variant.name}")
        refuse_removed(spec.variant.name, (), spec.variant.environment)
    return engine(spec)


def line_of(spec: ServerSpec) -> CommandLine:
    """Return the command line of an engine for a variant, without checks of this machine."""
    return LINES[spec.engine](spec)


def program_argv(spec: ServerSpec) -> tuple[str, ...]:
    """Return the command line for another machine, with the name of vllm or the simulator instead of its path."""
    argv = line_of(spec).argv
    return argv if spec.engine == "vllm" else ("inferload", "simulator", *argv[3:])


def shell_line(spec: ServerSpec) -> str:
    """Return a line for a shell that starts the server of a variant: `vllm serve`, without the arguments of measurements.

    Of a generated model, which exists only on the engines of `inferload deploy up`, it is that command.
    """
    assert spec.variant is not None
    model, words = spec.variant.model, (*to_argv(spec.variant.args), *spec.extra)
    start: tuple[str, ...] = ("vllm", "serve", model)
    if is_generated(model):
        start = ("inferload", "deploy", "up", model, "--engine", spec.engine, "--")
        start += ("--hardware", spec.variant.simulated_as) if spec.engine == "simulator" else ()
    variables = [f"{name}={shlex.quote(str(value))}" for name, value in spec.variant.environment.items()]
    return " ".join([*variables, shlex.join((*start, *words))])


def simulator_line(spec: ServerSpec) -> CommandLine:
    # -P: a folder "inferload" in the working directory is not the package.
    base = (sys.executable, "-Pm", "inferload.deploy.simulator", *_address(spec), "--model", spec.model)
    if spec.variant is not None:
        base = (*base, "--hardware", spec.variant.simulated_as, *spec.variant.argv)
        if (method := weights.method_of(spec.model)) and "quantization" not in spec.variant.args:
            base = (*base, "--quantization", method)  # which vLLM reads from the model's configuration
    return CommandLine((*base, *spec.extra), {}, {})


def simulator(spec: ServerSpec) -> Command:
    """Return the command of the simulator. Raise UsageError for flags that it refuses."""
    if spec.model_path is not None:
        raise UsageError(f"--model-path {spec.model_path}: the simulator has no model; use --engine vllm or vllm-cpu")
    from ..simulator import flags, server_config  # not needed to list variants

    line = simulator_line(spec)
    refuse_removed(_name(spec), line.argv, {})
    try:
        server_config.resolve(flags.read(line.argv[3:]))
    except UsageError as error:
        raise UsageError(f"{_name(spec)}: {error} (the simulator)") from error
    return line.command(ready_s=30.0)


def vllm_line(spec: ServerSpec, program: str = "vllm") -> CommandLine:
    """Return the command line of `vllm serve` with the arguments of a variant."""
    if spec.variant is None:
        raise UsageError(f"--engine vllm {spec.model}: needs a variant (inferload deploy list)")
    model = str(spec.model_path or spec.variant.model)
    arguments = (*spec.variant.argv, *spec.extra)
    argv = (program, "serve", model, *_address(spec), *served_name(spec.variant.model, arguments), *arguments)
    return CommandLine(argv, {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}, spec.variant.environment)


def served_name(model: str, argv: Sequence[str]) -> tuple[str, ...]:
    """Return the flag --served-model-name, unless the arguments contain it."""
    names = {word.partition("=")[0].replace("_", "-") for word in argv}
    return () if "--served-model-name" in names else ("--served-model-name", model)


def vllm(spec: ServerSpec) -> Command:
    """Check GPUs and disk, and return the command of vLLM on this machine (`$VLLM`, else `vllm` in the path)."""
    program = os.environ.get("VLLM") or shutil.which("vllm")
    command = vllm_line(spec, program or "vllm").command(ready_s=1800.0)
    assert spec.variant is not None  # vllm_line raises without a variant
    if spec.model_path is None and is_generated(spec.variant.model):
        raise UsageError(
            f"{spec.variant.name}: its model is generated, for --engine vllm-cpu or simulator only; give a --model-path for vllm"
        )
    _check_machine(spec.variant, command, fetches=spec.model_path is None)
    if program is None:
        raise UsageError("vllm: not in the path; pip install vllm, or set VLLM to the program")
    return command


def _check_machine(variant: Variant, command: Command, *, fetches: bool) -> None:
    """Raise UsageError for missing GPUs, flags removed from vLLM, and weights that are to be fetched and do not fit."""
    visible = command.environment.get("CUDA_VISIBLE_DEVICES")
    available = machine_checks.gpus(visible)
    machine_checks.check_gpus(variant.name, variant.hardware, available, visible, variant.utilization)
    refuse_removed(variant.name, command.argv, command.environment)
    if fetches:
        weights.check(variant.model, command.environment)


def vllm_venv() -> Path:
    """Return vLLM's environment for the CPU: `$VENV_VLLM`, else `.venv-vllm` of the clone, else in the cache folder."""
    override, root = os.environ.get("VENV_VLLM"), repository()
    if override:
        return Path(override).absolute()
    return root / ".venv-vllm" if root is not None else cache() / "venv-vllm"


def vllm_cpu_line(spec: ServerSpec) -> CommandLine:
    """Return the command line of vLLM on the CPU, with a generated tiny model unless a model folder is given."""
    python, variant = vllm_venv() / "bin" / "python", spec.variant
    folder = spec.model_path or cache() / "models" / digest() / spec.model
    base = (str(python), "-m", "vllm.entrypoints.cli.main", "serve", str(folder), *_address(spec))
    # Timings and cached tokens per request; variants always have these flags.
    arguments = ("--enable-per-request-metrics", "--enable-prompt-tokens-details") if variant is None else variant.argv
    name = served_name(spec.model, (*arguments, *spec.extra))
    # The tiny model has random weights.
    random = ("--load-format", "dummy", "--max-model-len", str(CONTEXT)) if spec.model_path is None else ()
    argv = (*base, *name, *random, "--enforce-eager", *arguments, *spec.extra)
    return CommandLine(argv, VLLM_CPU_ENVIRONMENT, {} if variant is None else variant.environment)


def vllm_cpu(spec: ServerSpec) -> Command:
    """Check as below, generate a missing tiny model, and return the command of vLLM on the CPU."""
    command = _checked_cpu(spec)
    if spec.model_path is None:
        tiny_model(Path(command.argv[0]), spec.model)  # in the folder that the command names
    return command


def _checked_cpu(spec: ServerSpec) -> Command:
    """Check installation, memory, disk and arguments, and return the command."""
    if not (vllm_venv() / ".ready").exists():
        raise UsageError(f"vllm-cpu: not installed in {vllm_venv()}; {_remedy()}")
    variant = spec.variant
    if variant is not None and variant.hardware.gpus and spec.model_path is None:
        raise UsageError(
            f"{variant.name}: needs {variant.hardware}; on the CPU use a tiny-... variant, or give a --model-path"
        )
    machine_checks.check_memory(Hardware("", 0, 2) if variant is None else variant.hardware, spec.model)
    machine_checks.check_disk(cache(), CPU_DISK_GIB, "the tiny model and vLLM's caches")
    if spec.model_path is None:
        try:
            Shape.of(spec.model)
        except ValueError as error:
            raise UsageError(str(error)) from error
    command = vllm_cpu_line(spec).command(ready_s=600.0)
    refuse_removed(_name(spec), command.argv, command.environment)
    return command


def _address(spec: ServerSpec) -> tuple[str, ...]:
    return ("--host", spec.host, "--port", str(spec.port))


def _name(spec: ServerSpec) -> str:
    return spec.model if spec.variant is None else spec.variant.name


def _remedy() -> str:
    if repository() is not None:
        return "run make setup-vllm"
    return f"run {sys.executable} -m inferload.deploy.vllm_cpu.install --venv {vllm_venv()}"


def is_generated(model: str) -> bool:
    """Return True for the name of a generated tiny model. Raise UsageError for an invalid size."""
    try:
        Shape.of(model)
    except ValueError as error:
        if re.fullmatch(r"tiny-\d+x\d+", model):
            raise UsageError(str(error)) from error
        return False
    return True


def tiny_model(python: Path, name: str) -> Path:
    """Return the folder of a tiny model, generated by vLLM's interpreter if missing."""
    script = Path(__file__).parents[1] / "vllm_cpu" / "tiny_model.py"
    argv = [str(python), str(script), "--into", str(cache() / "models"), "--name", name]
    process = subprocess.run(argv, capture_output=True, text=True, check=False)
    if process.returncode:
        raise UsageError(
            f"model {name}: could not be generated: {(process.stderr.strip().splitlines() or ['no reason'])[-1]}"
        )
    return Path(process.stdout.strip())


ENGINES: Mapping[str, Callable[[ServerSpec], Command]] = {"simulator": simulator, "vllm": vllm, "vllm-cpu": vllm_cpu}
LINES: Mapping[str, Callable[[ServerSpec], CommandLine]] = {
    "simulator": simulator_line,
    "vllm": vllm_line,
    "vllm-cpu": vllm_cpu_line,
}
