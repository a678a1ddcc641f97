"""Run a sample of mutants and print the share that the tests kill: `make mutation`, part of `make soak`.

A mutant is one change by an operator of Cosmic Ray at one place of the code: another comparison, another number, another branch.
The sample is drawn by place, each with one operator, so that operators with many variants do not outweigh the others. Each mutant
is tested in a copy of the checkout; the working tree stays as it is.
"""

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from random import Random

import cosmic_ray.plugins
from cosmic_ray.ast import ast_nodes, get_ast_from_path
from cosmic_ray.mutating import mutate_code

ROOT = Path(__file__).parents[1]
COPIES = ROOT / ".cache" / "mutation"
# Folders of code, and folders of unit tests that must detect a fault in it; those that detect most are first.
TARGETS = {
    "inferload/figures": ("figures", "turns", "servers", "results", "run"),
    "inferload/turns": ("turns", "figures", "results", "run"),
    "inferload/results/statistics": ("results", "campaign", "analysis"),
    "inferload/results/verdict": ("results", "run", "analysis"),
    "inferload/run/live": ("run", "locust"),
}
# Equivalent mutants: types of annotations (`int | None`), and decorators, whose change affects speed or a property only.
EQUIVALENT = ("BitOr", "RemoveDecorator", "ExceptionReplacer", "Variable")
LIMIT_S = 900  # of the tests of a mutant; a mutant that exceeds it is killed


@dataclass(frozen=True, slots=True)
class Mutant:
    """Change of a module: the `occurrence`-th place of an operator."""

    module: str
    line: int
    operator: str
    occurrence: int

    def __str__(self) -> str:
        return f"{self.module}:{self.line} {self.operator.removeprefix('core/')}"

    def code(self) -> str:
        """Return the source text of the module with the change."""
        operator = cosmic_ray.plugins.get_operator(self.operator)()
        return str(mutate_code((ROOT / self.module).read_text(encoding="utf-8"), operator, self.occurrence))


def places(folder: str) -> Iterator[list[Mutant]]:
    """Yield the mutants of each place in the code of a folder."""
    names = [name for name in cosmic_ray.plugins.operator_names() if not any(part in name for part in EQUIVALENT)]
    for path in sorted((ROOT / folder).rglob("*.py")):
        tree, module = get_ast_from_path(path), str(path.relative_to(ROOT))
        lines = path.read_text(encoding="utf-8").splitlines()
        found: dict[tuple[int, int], list[Mutant]] = {}
        for name in sorted(names):
            operator = cosmic_ray.plugins.get_operator(name)()
            starts = (start for node in ast_nodes(tree) for start, _end in operator.mutation_positions(node))
            for occurrence, start in enumerate(starts):
                if lines[start[0] - 1].lstrip().startswith("@"):
                    continue
                found.setdefault(start, []).append(Mutant(module, start[0], name, occurrence))
        yield from found.values()


def sample(size: int, seed: int) -> list[Mutant]:
    """Draw mutants from all targets, each target in proportion to its places."""
    random = Random(seed)
    found = [place for folder in TARGETS for place in places(folder)]
    return [random.choice(place) for place in random.sample(found, min(size, len(found)))]


def killed(mutant: Mutant, copy: Path) -> bool:
    """Return True if a test fails with the mutant in the copy of the package."""
    folders = next(tests for folder, tests in TARGETS.items() if mutant.module.startswith(f"{folder}/"))
    module, original = copy / mutant.module, (ROOT / mutant.module).read_text(encoding="utf-8")
    module.write_text(mutant.code(), encoding="utf-8")
    try:
        return any(failure(f"tests/unit/{folder}", copy) for folder in folders)
    finally:
        module.write_text(original, encoding="utf-8")


def failure(tests: str, copy: Path) -> str:
    """Run the tests with the package in the copy; return the end of the output if they fail."""
    # The program `pytest`, not `python -m pytest`, which would put the working directory first.
    command = [str(Path(sys.executable).with_name("pytest")), "-x", "-q", "-p", "no:cacheprovider", tests]
    # Byte code is reused if a source file has the same second and size; the tests of a mutant take longer than a second.
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": ""}
    try:
        ran = subprocess.run(
            command, cwd=copy, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"{tests} did not end within {LIMIT_S} s"
    return (ran.stdout[-2000:] + ran.stderr[-1000:] or "no output") if ran.returncode else ""


def copies(number: int) -> SimpleQueue[Path]:
    """Copy the checkout; return a queue of so many copies."""
    shutil.rmtree(COPIES, ignore_errors=True)
    made: SimpleQueue[Path] = SimpleQueue()
    for index in range(number):
        copy = COPIES / str(index)
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".?*", "__pycache__", "*.egg-info"))
        for part in ("analysis", "deploy", "locustfiles", "scenarios"):  # the environment has those of the working tree
            (copy / "inferload" / part).symlink_to(copy / part)
        made.put(copy)
    return made


def main(arguments: Sequence[str]) -> int:
    """Test the sample; print the survivors and the score. Return 1 if the score is below the goal."""
    parser = argparse.ArgumentParser(description="Run a sample of mutants; print the survivors and the score.")
    parser.add_argument("--size", type=int, default=120, help="mutants (default: 120, about an hour)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the sample (default: 1)")
    parser.add_argument("--goal-percent", type=float, default=85.0, help="lowest score that passes (default: 85)")
    options = parser.parse_args(arguments)
    free, mutants = copies(2), sample(options.size, options.seed)
    for folder in sorted({folder for tests in TARGETS.values() for folder in tests}):
        if text := failure(f"tests/unit/{folder}", COPIES / "0"):
            sys.exit(f"{text}\ntests/unit/{folder} fails without a mutant; mend it first")
    print(f"{len(mutants)} mutants, seed {options.seed}", flush=True)

    def tested(mutant: Mutant) -> bool:
        copy = free.get()
        try:
            found = killed(mutant, copy)
        finally:
            free.put(copy)
        print(f"{'killed  ' if found else 'SURVIVED'} {mutant}", flush=True)
        return found

    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(tested, mutants))
    score = 100 * sum(results) / len(results)
    print(f"{sum(results)} of {len(results)} killed: {score:.1f} % (goal: {options.goal_percent:g} %)")
    return int(score < options.goal_percent)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
