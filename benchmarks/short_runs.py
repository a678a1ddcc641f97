"""`make bench-start`: CPU and wall time of short headless runs, and of the imports, beside another checkout in the same rounds.

A run of 5 s at 10 users with short answers against the simulator. `--against DIR`: a checkout with its own `.venv`, of an earlier
version. Bytecode of both is written before.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.machine import load_average, machine
from benchmarks.server import ROOT
from benchmarks.watched import on_cores
from inferload.campaign.calibrate import serving

LOAD_S = 5
_RUN = f"run --input-len 100 --output-len 20 --users 10 --duration {LOAD_S}s"
_IMPORTS = "import locust, inferload.users"
Spent = tuple[float, float]  # CPU and wall, s


def spent(command: Sequence[str], folder: Path) -> Spent:
    """Run a command in a folder; return its CPU time with that of its children, and its wall time. Raise SystemExit if it fails."""
    before, begun_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done = subprocess.run(command, env=env, cwd=folder, text=True, check=False, **output)
    wall_s, after = time.monotonic() - begun_s, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"{command[0]}: exit code {done.returncode}\n{done.stdout[-2000:]}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall_s


def main(argv: Sequence[str]) -> int:
    """Measure each checkout in each round; print the medians, and their ratios to those of `--against`."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench start", description=__doc__, allow_abbrev=False)
    parser.add_argument("--against", type=Path, metavar="DIR", help="another checkout with its own .venv")
    parser.add_argument("--rounds", type=int, default=5, help="rounds (%(default)s)")
    parser.add_argument(
        "--server-core", type=int, default=1, metavar="CORE", help="core of the simulator (%(default)s)"
    )
    arguments = parser.parse_args(argv)
    checkouts = [ROOT, *([arguments.against.resolve()] if arguments.against else [])]
    print(f"{machine()}; load average of others {load_average():.2f}")
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, on_cores(arguments.server_core), serving(()) as url:
        for name, measured in _kinds(url, Path(folder)).items():
            for checkout in checkouts:
                measured(checkout)  # writes bytecode
            _print(name, checkouts, [[measured(checkout) for checkout in checkouts] for _ in range(arguments.rounds)])
    return 0


def _kinds(url: str, folder: Path) -> dict[str, Callable[[Path], Spent]]:
    """Return what is measured for a checkout, by name. The wall time of a run is that beside its load."""

    def imports(checkout: Path) -> Spent:
        return spent([str(checkout / ".venv" / "bin" / "python"), "-c", _IMPORTS], checkout)

    def run(checkout: Path) -> Spent:
        program = str(checkout / ".venv" / "bin" / "inferload")
        own = ["--host", url, "--run-dir", str(folder / f"run-{time.time_ns()}")]
        cpu_s, wall_s = spent([program, *_RUN.split(), *own], checkout)
        return cpu_s, wall_s - LOAD_S

    return {_IMPORTS: imports, f"inferload {_RUN}, wall time without the {LOAD_S} s": run}


def _print(name: str, checkouts: Sequence[Path], rounds: Sequence[Sequence[Spent]]) -> None:
    medians = [
        [statistics.median(each[at][kind] for each in rounds) for kind in (0, 1)] for at in range(len(checkouts))
    ]
    print(f"{name}: {medians[0][0]:.2f} CPU s, {medians[0][1]:.2f} s", flush=True)
    for cpu_s, wall_s in medians[1:]:
        cpu, wall = (
            statistics.median(each[0][kind] / each[1][kind] for each in rounds if each[1][kind] > 0) for kind in (0, 1)
        )
        print(
            f"  against {cpu_s:.2f} CPU s, {wall_s:.2f} s: medians of the ratios {cpu:.2f} and {wall:.2f}", flush=True
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
