"""The engines, each a function from a wanted server to its command line.

An engine is `simulator` (this package's own server), `vllm` (the vLLM of this machine, for its GPUs) or `vllm-cpu` (real
vLLM with a tiny model that is built on the spot). Flags after ours win, since all parsers take the last one.
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

# Not downloading and not telling anyone; a small KV cache (GiB); the server's own development endpoints, which answer
# what it runs with and empty its prefix cache. The user's environment wins.
VLLM_CPU_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_SERVER_DEV_MODE": "1",
}

# The most that a start on the CPU writes: a model of a few MB, and logs.
CPU_DISK_GIB = 0.5


@dataclass(frozen=True, slots=True)
class ServerSpec:
    """A server to start. `cores` None: all; `extra`: the engine's own flags."""

    engine: str = "simulator"
    model: str = "tiny"
    host: str = "127.0.0.1"
    port: int = 8000
    cores: tuple[int, ...] | None = None
    extra: tuple[str, ...] = ()
    variant: Variant | None = None
    model_path: Path | None = None  # a model's folder on this machine, instead of the variant's model


@dataclass(frozen=True, slots=True)
class Command:
    """A command line, the whole environment that it runs in, and how long it may take until it answers."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    ready_s: float


@dataclass(frozen=True, slots=True)
class CommandLine:
    """An engine's command line, without checks of this machine. `defaults`: variables that the environment overrides;
    `fixed`: the variant's, which override the environment."""

    argv: tuple[str, ...]
    defaults: Mapping[str, str]
    fixed: Mapping[str, str]

    def command(self, ready_s: float) -> Command:
        """With this process's environment between the two."""
        return Command(self.argv, {**self.defaults, **os.environ, **self.fixed}, ready_s)


def command_of(wanted: ServerSpec) -> Command:
    """The command of a server, after the checks of the machine and of the engine; UsageError for the first that fails."""
    engine = ENGINES.get(wanted.engine)
    if engine is None:
        raise UsageError(f"--engine {wanted.engine}: not known; choose from {', '.join(ENGINES)}")
    if wanted.model_path is not None and not (wanted.model_path / "config.json").is_file():
        raise UsageError(f"--model-path {wanted.model_path}: no config.json there; name a model's folder")
    check_extra(wanted.extra)
    if wanted.variant is not None:
        refuse_elsewhere(wanted.variant.argv, f"of {wanted.variant.name}")
        refuse_removed(wanted.variant.name, (), wanted.variant.environment)
    return engine(wanted)


def line_of(wanted: ServerSpec) -> CommandLine:
    """An engine's command line for a variant, even if it cannot run here."""
    return LINES[wanted.engine](wanted)


def program_argv(wanted: ServerSpec) -> tuple[str, ...]:
    """The command line of vllm or of the simulator for another machine, by the program's name."""
    argv = line_of(wanted).argv
    return argv if wanted.engine == "vllm" else ("inferload", "simulator", *argv[3:])


def simulator_line(wanted: ServerSpec) -> CommandLine:
    """This package's own server, run by this interpreter."""
    base = (sys.executable, "-m", "inferload.deploy.simulator", *_place(wanted), "--model", wanted.model)
    if wanted.variant is not None:
        base = (*base, "--hardware", wanted.variant.simulated_as, *wanted.variant.argv)
    return CommandLine((*base, *wanted.extra), {}, {})


def simulator(wanted: ServerSpec) -> Command:
    """The simulator, once it takes the flags."""
    if wanted.model_path is not None:
        raise UsageError(f"--model-path {wanted.model_path}: the simulator has no model; use --engine vllm or vllm-cpu")
    from ..simulator import flags, server_config  # not needed to list variants

    line = simulator_line(wanted)
    try:
        server_config.resolve(flags.read(line.argv[3:]))
    except UsageError as error:
        raise UsageError(f"{_name(wanted)}: {error} (the simulator)") from error
    return line.command(ready_s=30.0)


def vllm_line(wanted: ServerSpec, program: str = "vllm") -> CommandLine:
    """`vllm serve` with a variant's arguments."""
    if wanted.variant is None:
        raise UsageError(f"--engine vllm {wanted.model}: name a variant (inferload deploy list)")
    model = str(wanted.model_path or wanted.variant.model)
    own = (*wanted.variant.argv, *wanted.extra)
    argv = (program, "serve", model, *_place(wanted), *served_name(wanted.variant.model, own), *own)
    return CommandLine(argv, {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}, wanted.variant.environment)


def served_name(model: str, argv: Sequence[str]) -> tuple[str, ...]:
    """The flag for the name under which a model is served, unless the other arguments name one."""
    names = {word.partition("=")[0].replace("_", "-") for word in argv}
    return () if "--served-model-name" in names else ("--served-model-name", model)


def vllm(wanted: ServerSpec) -> Command:
    """The vLLM of this machine (`$VLLM`, else `vllm` in the path), after checks of GPUs and disk."""
    program = os.environ.get("VLLM") or shutil.which("vllm")
    command = vllm_line(wanted, program or "vllm").command(ready_s=1800.0)
    assert wanted.variant is not None  # or there was no line
    if wanted.model_path is None and is_made_here(wanted.variant.model):
        raise UsageError(
            f"{wanted.variant.name}: its model is made on the spot, for --engine vllm-cpu or simulator; else name a --model-path"
        )
    preflight.check(need_of(wanted), command.argv, command.environment)
    if program is None:
        raise UsageError(
            "vllm: not in the path; pip install vllm, or set VLLM to the program; --engine simulator needs none"
        )
    return command


def need_of(wanted: ServerSpec) -> Requirements:
    """What a variant needs of the machine that vLLM serves it on."""
    variant = wanted.variant
    assert variant is not None
    model = None if wanted.model_path is not None else variant.model
    return Requirements(variant.name, variant.hardware, variant.utilization, model)


def vllm_cpu_line(wanted: ServerSpec) -> CommandLine:
    """Real vLLM's build for the CPU, with a tiny model unless a model's folder is named."""
    folder = wanted.model_path or paths.cache() / "models" / digest() / wanted.model
    return _cpu_line(wanted, folder)


def _cpu_line(wanted: ServerSpec, folder: Path) -> CommandLine:
    python = paths.vllm_venv() / "bin" / "python"
    base = (str(python), "-m", "vllm.entrypoints.cli.main", "serve", str(folder), *_place(wanted))
    flags: tuple[str, ...] = (
        *served_name(wanted.model, (*(wanted.variant.argv if wanted.variant is not None else ()), *wanted.extra)),
        # The tiny model has random weights; a model of --model-path has its own.
        *(("--load-format", "dummy", "--max-model-len", str(CONTEXT)) if wanted.model_path is None else ()),
        "--enforce-eager",
    )
    variant = wanted.variant
    # Per-request times and cached tokens on each answer; every variant has these flags.
    own = ("--enable-per-request-metrics", "--enable-prompt-tokens-details") if variant is None else variant.argv
    return CommandLine(
        (*base, *flags, *own, *wanted.extra), VLLM_CPU_ENVIRONMENT, {} if variant is None else variant.environment
    )


def vllm_cpu(wanted: ServerSpec) -> Command:
    """Real vLLM on the CPU with the model made, after checks of the installation, memory and disk."""
    python = paths.vllm_venv() / "bin" / "python"
    if not (paths.vllm_venv() / ".ready").exists():
        raise UsageError(f"vllm-cpu: not installed in {paths.vllm_venv()}; {_remedy()}")
    variant = wanted.variant
    if variant is not None and variant.hardware.gpus and wanted.model_path is None:
        raise UsageError(
            f"{variant.name}: needs {variant.hardware}; on the CPU run a tiny-... variant, or name a --model-path"
        )
    machine_checks.check_memory(Hardware("", 0, 2) if variant is None else variant.hardware, wanted.model)
    machine_checks.check_disk(paths.cache(), CPU_DISK_GIB, "the tiny model and vLLM's caches")
    command = _cpu_line(wanted, wanted.model_path or tiny_model(python, wanted.model)).command(ready_s=600.0)
    refuse_removed(_name(wanted), command.argv, command.environment)
    return command


def _place(wanted: ServerSpec) -> tuple[str, ...]:
    return ("--host", wanted.host, "--port", str(wanted.port))


def _name(wanted: ServerSpec) -> str:
    return wanted.model if wanted.variant is None else wanted.variant.name


def _remedy() -> str:
    if paths.repository() is not None:
        return "run make setup-vllm"
    return f"run {sys.executable} -m inferload.deploy.vllm_cpu.install --venv {paths.vllm_venv()}"


def is_made_here(model: str) -> bool:
    """True for the name of a tiny model that is made on the spot; UsageError for one of an invalid size."""
    try:
        Shape.of(model)
    except ValueError as error:
        if re.fullmatch(r"tiny-\d+x\d+", model):
            raise UsageError(str(error)) from error
        return False
    return True


def tiny_model(python: Path, name: str) -> Path:
    """Folder of the tiny model of that name; vLLM's interpreter builds a missing one."""
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
