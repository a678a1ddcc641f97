"""Imports go to lower layers only: each import, lazy ones included, is checked against the table in pyproject.toml.

Within a package, imports form no cycle; imports under TYPE_CHECKING count.
"""

import ast
import re
import subprocess
import time
import tomllib
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from paths import ROOT

RULES = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["inferload"]
MOST_MODULES = 18  # in a folder
MOST_ROWS, MOST_PACKAGES, MOST_ARROWS = 16, 13, 60
HOUSE = ("inferload", "analysis", "deploy", "locustfiles", "scenarios")


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


TIERS = {package: height for height, package in enumerate(reversed(RULES["layers"]))}


@cache
def package_of(module: str) -> str | None:
    """Return the longest entry of the table that is a prefix of the module's name."""
    return longest(module, TIERS)


def longest(module: str, names: Container[str]) -> str | None:
    while module and module not in names:
        module = module.rpartition(".")[0]
    return module or None


@cache
def nodes_of(source: str) -> list[ast.AST]:
    """Return the imports, attributes and constants of a source text."""
    kinds = (ast.Import, ast.ImportFrom, ast.Attribute, ast.Constant)
    return [each for each in ast.walk(ast.parse(source)) if isinstance(each, kinds)]


@cache
def imports_of(source: str, module: str, is_package: bool) -> list[tuple[int, str]]:
    """Return (line, absolute module or module.name) for every import in a source text, and for `module:name` of rows on use."""
    found: list[tuple[int, str]] = []
    for node in nodes_of(source):
        if isinstance(node, ast.Import):
            found += ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = module.split(".")
            base = parts[: len(parts) - node.level + is_package] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            found += ((node.lineno, f"{origin}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Constant) and re.fullmatch(r"inferload(\.\w+)+:\w+", str(node.value)):
            found.append((node.lineno, node.value.replace(":", ".")))
    return found


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
        for room, allowed in RULES["rooms"].items():
            inside = longest(module, [room]) is not None
            if inside and target and longest(source_name(name), [room, *allowed]) is None:
                faults.append(f"{module}:{line}: {room} may import only {', '.join(allowed)}")
        rule = longest(f"inferload.{name}" if name.partition(".")[0] in HOUSE[1:] else name, RULES["only"])
        if rule is not None and longest(module, RULES["only"][rule]) is None:
            faults.append(f"{module}:{line}: only {', '.join(RULES['only'][rule])} may import {rule}")
    return faults


SOURCES = sorted(p for top in HOUSE for p in (ROOT / top).rglob("*.py"))


def test_imports_go_to_lower_layers() -> None:
    assert [
        fault for path in SOURCES for fault in faults_of(path.read_text(), module_of(path), path.name == "__init__.py")
    ] == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("inferload.turns.tally", "from inferload.scenario import scenario"),
        ("inferload.turns.tally", "def f():\n    import inferload.locust.plugin"),
        ("inferload.turns.tally", "ROWS = OnUse({'a': 'inferload.locust.plugin:install'})"),
        ("inferload.client.turn", "from ..run.master import controller"),
        ("inferload.client.turn", "import locust"),
        ("inferload.locust.plugin", "from inferload.analysis import report"),
        ("inferload.workload.sessions", "import pandas as pd"),
        ("analysis.data.frames", "from inferload.run.worker import worker_run"),
        ("inferload.cli", "import deploy.simulator"),
        ("deploy.simulator.flags", "from ..servers import engines"),
        ("deploy.simulator.core.scheduler", "from inferload.turns import sketch"),
    ],
)
def test_the_layer_check_detects_a_violation(module: str, source: str) -> None:
    assert faults_of(source, module)


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
        "from inferload.run.master.run import Run",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from inferload.run.master import run",
        "def f():\n    import inferload.run.master.run",
        "from . import run",
    ],
)
def test_a_cycle_is_detected(source: str) -> None:
    sources = {
        "inferload.run.master.run": "from inferload.run.master import steps",
        "inferload.run.master.steps": source,
    }
    assert set(cycle_of(sources)) == set(sources)
    assert cycle_of(sources | {"inferload.run.master.steps": "import inferload.base.errors"}) == []


def test_every_module_has_a_layer() -> None:
    """Without a layer are the modules that processes begin with, and the one that each of these imports first."""
    unlisted = {module_of(path) for path in SOURCES if package_of(module_of(path)) is None}
    assert unlisted == {"inferload", "inferload.__main__", "inferload.own_package", "inferload.users", "scenarios"}


def faults_of_rows(rows: Sequence[str]) -> list[str]:
    """Return the rows of the table that are no package at the top level or directly below `inferload`."""
    tops = {path.name for path in ROOT.iterdir()}
    inside = {f"inferload.{path.name}" for path in (ROOT / "inferload").iterdir() if path.is_dir()}
    return [row for row in rows if row not in tops | inside or row == "inferload"]


def test_each_row_of_the_layers_is_one_whole_package() -> None:
    assert faults_of_rows(RULES["layers"]) == []
    assert len(RULES["layers"]) <= MOST_ROWS
    assert sum(row.startswith("inferload.") for row in RULES["layers"]) <= MOST_PACKAGES
    assert faults_of_rows(["inferload.run.master", "inferload", "inferload.base"]) == [
        "inferload.run.master",
        "inferload",
    ]


def test_packages_have_few_arrows() -> None:
    arrows = {
        (package, target)
        for path in SOURCES
        for _, name in imports_of(path.read_text(), module_of(path), path.name == "__init__.py")
        if (package := package_of(module_of(path))) and (target := package_of(source_name(name)))
        if package != target and package.startswith("inferload.") and target.startswith("inferload.")
    }
    assert len(arrows) <= MOST_ARROWS


def test_the_architecture_page_has_the_docstring_of_each_package() -> None:
    page = (ROOT / "docs" / "background" / "architecture.md").read_text()
    sentences = {
        row: ast.get_docstring(ast.parse((ROOT / row.replace(".", "/") / "__init__.py").read_text()))
        for row in RULES["layers"]
    }
    assert re.findall(r"^\| `([a-z_.]+)` \| (.*) \|$", page.partition("\n## A turn")[0], re.MULTILINE) == list(
        sentences.items()
    )


def test_no_folder_has_more_than_eighteen_modules() -> None:
    counts = Counter(path.parent.relative_to(ROOT) for path in SOURCES if path.name != "__init__.py")
    assert {str(folder): count for folder, count in counts.items() if count > MOST_MODULES} == {}


READINGS = {  # of a clock, by module
    "time": {
        name
        for name in vars(time)
        if re.fullmatch(r"(time|monotonic|perf_counter|process_time|thread_time)(_ns)?", name)
    }
    | {"gmtime", "localtime", "strftime", "ctime", "asctime", "clock_gettime", "clock_gettime_ns"},
    "datetime": {"now", "utcnow", "today"},
}
CLOCK_READERS = {
    "inferload.base.clock",
    "deploy.vllm_cpu.install",  # runs without the package, on the standard library alone
    "inferload.locust_adapters.process",  # asks for the clock of Locust, to replace it
    "inferload.run.virtual.start",  # replaces the readings of the process
    "locustfiles.toolagent",  # a program of a user
}


def clock_readings(source: str) -> list[str]:
    """Return the readings of a clock in a source: `time.monotonic`, `datetime.now`, `from time import ...`."""
    found = []
    for node in nodes_of(source):
        if isinstance(node, ast.Attribute):
            owner = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "")
            owner = "datetime" if owner == "date" else owner
            found += [f"{owner}.{node.attr}"] if node.attr in READINGS.get(owner, ()) else []
        elif isinstance(node, ast.ImportFrom) and node.module == "time":
            found += [f"time.{name.name}" for name in node.names if name.name in READINGS["time"]]
    return found


def test_one_module_reads_the_clock() -> None:
    readers = {module_of(path) for path in SOURCES if clock_readings(path.read_text())}
    assert readers == CLOCK_READERS


@pytest.mark.parametrize(
    "source",
    [
        "import time\nstart = time.monotonic()",
        "import time\nnow = time.time_ns",
        "from time import perf_counter",
        "from datetime import datetime\ndatetime.now()",
        "import datetime\ndatetime.datetime.utcnow()",
        "from datetime import date\ndate.today()",
    ],
)
def test_a_reading_of_a_clock_is_detected(source: str) -> None:
    assert clock_readings(source)
    assert not clock_readings("import time\ntime.sleep(1)\nfrom inferload.base import clock\nclock.now_ns()")


def test_the_wheel_has_every_package() -> None:
    folders = {".".join(path.parent.relative_to(ROOT).parts) for path in SOURCES if path.name == "__init__.py"}
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    assert sorted(map(source_name, listed)) == sorted(folders)


def test_no_ignored_file_is_committed() -> None:
    """A committed environment or link would replace that of every checkout."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a clone: there is nothing to commit to")
    listed = subprocess.run(
        ["git", "ls-files", "-ci", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    committed = listed.stdout.split()
    assert not committed, f"git rm --cached {' '.join(committed)}; then git commit --amend"


def test_unit_tests_are_in_the_folder_of_their_package() -> None:
    packages = {path.name for path in (ROOT / "inferload").iterdir() if path.is_dir()} | {
        "analysis",
        "deploy",
        "project",
    }
    folders = {
        path.parent.relative_to(ROOT / "tests/unit").parts[:1] for path in (ROOT / "tests/unit").rglob("test_*.py")
    }
    assert {name for (name,) in folders} <= packages
