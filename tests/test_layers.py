"""Imports go down: the table in pyproject.toml is held against every import of the tree, lazy ones included."""

import ast
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
RULES = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["inferload"]
HOUSE = ("inferload", "analysis", "deploy", "locustfiles", "scenarios")


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def room_of(module: str) -> str | None:
    """The entry of the table that a module belongs to: the longest that is a prefix of it."""
    fits = [room for room in RULES["layers"] if module == room or module.startswith(room + ".")]
    return max(fits, key=len, default=None)


def imports_of(source: str, module: str, is_package: bool) -> Iterator[tuple[int, str]]:
    """(line, absolute module or module.name) of every import in a source text."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = module.split(".")
            base = parts[: len(parts) - node.level + is_package] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{origin}.{alias.name}") for alias in node.names)


def target_room(name: str) -> str | None:
    """The room an imported name lies in; satellites are known by their installed name too."""
    for satellite in HOUSE[1:]:
        if name == f"inferload.{satellite}" or name.startswith(f"inferload.{satellite}."):
            return satellite
    top = name.partition(".")[0]
    return (room_of(name) or top) if top in HOUSE else None


def faults_of(source: str, module: str, is_package: bool = False) -> list[str]:
    room = room_of(module)
    faults = []
    for line, name in imports_of(source, module, is_package):
        target = target_room(name)
        if room and target and target != room and target not in RULES["layers"][room]:
            faults.append(f"{module}:{line}: {room} may not import {name}")
        allowed = RULES["only"].get(name.split(".")[0])
        if allowed is not None and not any(module == a or module.startswith(a + ".") for a in allowed):
            faults.append(f"{module}:{line}: only {', '.join(allowed)} may import {name.split('.')[0]}")
    return faults


SOURCES = sorted(p for top in HOUSE for p in (ROOT / top).rglob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=[str(p.relative_to(ROOT)) for p in SOURCES])
def test_imports_go_down(path: Path) -> None:
    assert faults_of(path.read_text(), module_of(path), path.name == "__init__.py") == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("inferload.measure.tally", "from inferload.workload import scenario"),
        ("inferload.measure.tally", "def f():\n    import inferload.swarm.plugin"),
        ("inferload.wire.turn", "from ..swarm import plugin"),
        ("inferload.wire.turn", "import locust"),
        ("inferload.swarm.plugin", "from inferload.analysis import report"),
        ("inferload.workload.sessions", "import pandas as pd"),
        ("analysis.frames", "from inferload.wire import sse"),
        ("inferload.cli", "import deploy.simulator"),
        ("deploy.simulator.core.scheduler", "from ..engine import engine"),
        ("deploy.simulator.protocol.tools", "from ...engines import ENGINES"),
    ],
)
def test_the_check_can_fail(module: str, source: str) -> None:
    assert len(faults_of(source, module)) == 1


def test_the_load_path_reads_the_clock_in_one_place() -> None:
    readers = [
        module_of(path)
        for path in SOURCES
        if module_of(path).startswith("inferload.")
        and any(name.split(".")[0] == "time" for _, name in imports_of(path.read_text(), module_of(path), False))
    ]
    assert readers == ["inferload.measure.clock"]


def test_nothing_that_git_ignores_is_committed() -> None:
    """An environment or a link to one, once committed, takes the place of everybody's own."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a clone: there is nothing to commit to")
    listed = subprocess.run(
        ["git", "ls-files", "-ci", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    committed = listed.stdout.split()
    assert not committed, f"git rm --cached {' '.join(committed)}; then git commit --amend"
