"""Imports go to lower layers only: each import, lazy ones included, is checked against the table in pyproject.toml.

Within a package, imports form no cycle; imports under TYPE_CHECKING count.
"""

import ast
import subprocess
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from paths import ROOT

RULES = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["inferload"]
MOST_MODULES = 18
HOUSE = ("inferload", "analysis", "deploy", "locustfiles", "scenarios")


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


TIERS = {package: height for height, row in enumerate(reversed(RULES["layers"])) for package in row}


def package_of(module: str) -> str | None:
    """Return the longest entry of the table that is a prefix of the module's name."""
    return longest(module, TIERS)


def longest(module: str, names: Iterable[str]) -> str | None:
    return max((name for name in names if module == name or module.startswith(f"{name}.")), key=len, default=None)


def imports_of(source: str, module: str, is_package: bool) -> Iterator[tuple[int, str]]:
    """Yield (line, absolute module or module.name) for every import in a source text."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = module.split(".")
            base = parts[: len(parts) - node.level + is_package] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{origin}.{alias.name}") for alias in node.names)


def source_name(name: str) -> str:
    """Return the module's name in the source tree, for an import by its installed name too."""
    top, _, rest = name.partition(".")
    return rest if top == "inferload" and rest.partition(".")[0] in HOUSE[1:] else name


def faults_of(source: str, module: str, is_package: bool = False) -> list[str]:
    package = package_of(module)
    faults = []
    for line, name in imports_of(source, module, is_package):
        target = package_of(source_name(name))
        if package and target and target != package and TIERS[target] >= TIERS[package]:
            faults.append(f"{module}:{line}: {package} may not import {name}")
        rule = longest(f"inferload.{name}" if name.partition(".")[0] in HOUSE[1:] else name, RULES["only"])
        if rule is not None and longest(module, RULES["only"][rule]) is None:
            faults.append(f"{module}:{line}: only {', '.join(RULES['only'][rule])} may import {rule}")
    return faults


SOURCES = sorted(p for top in HOUSE for p in (ROOT / top).rglob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=[str(p.relative_to(ROOT)) for p in SOURCES])
def test_imports_go_to_lower_layers(path: Path) -> None:
    assert faults_of(path.read_text(), module_of(path), path.name == "__init__.py") == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("inferload.measure.tally", "from inferload.scenario import scenario"),
        ("inferload.measure.tally", "def f():\n    import inferload.locust.plugin"),
        ("inferload.client.turn", "from ..master import controller"),
        ("inferload.client.turn", "import locust"),
        ("inferload.locust.plugin", "from inferload.analysis import report"),
        ("inferload.workload.sessions", "import pandas as pd"),
        ("analysis.data.frames", "from inferload.worker import worker_run"),
        ("inferload.cli", "import deploy.simulator"),
        ("deploy.simulator.core.scheduler", "from ..engine import engine"),
        ("deploy.simulator.protocol.tools", "from ...servers.engines import ENGINES"),
        ("deploy.simulator.flags", "from ..servers import engines"),
        ("deploy.launcher.launch", "from ..variants.variant import Variant"),
    ],
)
def test_the_layer_check_detects_a_violation(module: str, source: str) -> None:
    assert faults_of(source, module)


SIMULATOR_MAY_IMPORT = ("deploy.simulator", "inferload.errors", "inferload.measure.clock")


def outside_of_simulator(source: str, module: str, is_package: bool = False) -> list[str]:
    """Return the imports of the project's modules that the simulator may not have."""
    names = [source_name(name) for _, name in imports_of(source, module, is_package)]
    return [each for each in names if each.partition(".")[0] in HOUSE and not longest(each, SIMULATOR_MAY_IMPORT)]


@pytest.mark.parametrize("path", [path for path in SOURCES if "simulator" in path.parts], ids=str)
def test_the_simulator_imports_itself_errors_and_the_clock(path: Path) -> None:
    assert outside_of_simulator(path.read_text(), module_of(path), path.name == "__init__.py") == []


@pytest.mark.parametrize(
    "source",
    ["from ..vllm.arguments import REFUSED", "import inferload.content.messages", "from inferload import numbers"],
)
def test_other_imports_of_the_simulator_are_found(source: str) -> None:
    assert outside_of_simulator(source, "deploy.simulator.flags")
    assert not outside_of_simulator("import json\nfrom inferload.measure import clock", "deploy.simulator.flags")


def cycle_of(sources: Mapping[str, str], packages: frozenset[str] = frozenset()) -> list[str]:
    """Return the modules of an import cycle; empty if there is none. `packages`: the sources of `__init__.py`."""
    graph = {
        module: {
            target
            for _, name in imports_of(source, module, module in packages)
            if (target := longest(source_name(name), sources)) not in (None, module)
        }
        for module, source in sources.items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        modules: list[str] = error.args[1]
        return modules
    return []


def test_modules_have_no_import_cycle() -> None:
    sources = {module_of(path): path.read_text() for path in SOURCES}
    assert cycle_of(sources, frozenset(module_of(path) for path in SOURCES if path.name == "__init__.py")) == []


@pytest.mark.parametrize(
    "source",
    [
        "from inferload.master.run import Run",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from inferload.master import run",
        "def f():\n    import inferload.master.run",
        "from . import run",
    ],
)
def test_a_cycle_is_detected(source: str) -> None:
    sources = {"inferload.master.run": "from inferload.master import steps", "inferload.master.steps": source}
    assert set(cycle_of(sources)) == set(sources)
    assert cycle_of(sources | {"inferload.master.steps": "import inferload.errors"}) == []


def test_every_module_has_a_layer() -> None:
    unlisted = {module_of(path) for path in SOURCES if package_of(module_of(path)) is None}
    assert unlisted == {"analysis", "deploy", "inferload", "inferload.__main__", "scenarios"}


def test_no_folder_has_more_than_eighteen_modules() -> None:
    counts = Counter(path.parent.relative_to(ROOT) for path in SOURCES if path.name != "__init__.py")
    assert {str(folder): count for folder, count in counts.items() if count > MOST_MODULES} == {}


def test_the_load_path_reads_the_clock_in_one_module() -> None:
    readers = [
        module_of(path)
        for path in SOURCES
        if module_of(path).startswith("inferload.")
        and any(name.split(".")[0] == "time" for _, name in imports_of(path.read_text(), module_of(path), False))
    ]
    assert readers == ["inferload.measure.clock"]


def test_no_ignored_file_is_committed() -> None:
    """A committed environment or link would replace that of every checkout."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a clone: there is nothing to commit to")
    listed = subprocess.run(
        ["git", "ls-files", "-ci", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    committed = listed.stdout.split()
    assert not committed, f"git rm --cached {' '.join(committed)}; then git commit --amend"
