"""`make bench-peers`: install other load generators with pip, each in a separate folder. Failures do not stop the others.

Only the Rust client of the vLLM wheel is kept; `make setup-vllm` installs `vllm bench serve`.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

PACKAGES = {"aiperf": "aiperf==0.13.0", "guidellm": "guidellm==0.8.1", "genai-bench": "genai-bench==0.0.5"}
RUST_FROM = "vllm==0.33.0"
RUST_IN_WHEEL = "vllm/vllm-rs"


def install_rust(folder: Path) -> None:
    """Download the wheel and extract the Rust client."""
    program = folder / "vllm-rs" / "vllm-rs"
    if program.exists():
        return
    program.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as downloads:
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:", "-d", downloads]
        subprocess.run([*pip, RUST_FROM], check=True)
        wheel = next(Path(downloads).glob("vllm-*.whl"))
        part = program.with_suffix(".part")
        with zipfile.ZipFile(wheel) as archive, archive.open(RUST_IN_WHEEL) as source, part.open("wb") as target:
            shutil.copyfileobj(source, target)
        part.chmod(0o755)
        part.rename(program)


def install_package(folder: Path, name: str) -> None:
    """Install a peer into a virtual environment."""
    venv = folder / name
    if (venv / "bin" / name).exists():
        return
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    subprocess.run([str(venv / "bin" / "python"), "-m", "pip", "install", "-q", PACKAGES[name]], check=True)


def main(argv: Sequence[str]) -> int:
    """Install the selected peers. Return exit code 1 if one failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench peers", description=__doc__, allow_abbrev=False)
    parser.add_argument("--into", type=Path, required=True, metavar="DIR", help="folder of the installations")
    parser.add_argument("names", nargs="*", default=["vllm-rs", *PACKAGES], help="peers to install (%(default)s)")
    arguments = parser.parse_args(argv)
    arguments.into.mkdir(parents=True, exist_ok=True)
    failed = []
    for name in arguments.names:
        try:
            install_rust(arguments.into) if name == "vllm-rs" else install_package(arguments.into, name)
        except (OSError, KeyError, StopIteration, subprocess.CalledProcessError) as error:
            print(f"{name}: not installed ({error!r}); `make bench` skips it", file=sys.stderr)
            failed.append(name)
    return 1 if failed else 0
