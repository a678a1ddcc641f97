"""Lookup and reading of scenario files: bundled scenarios by name, other files by path."""

import itertools
import re
import shlex
from importlib import resources
from pathlib import Path
from typing import Any

from inferload.base import rundir
from inferload.base.errors import UsageError, explained, instead, instead_of_file
from inferload.base.escaping import own_command
from inferload.scenario.files.yaml_text import ScenarioError, parse

MAX_BYTES = 1_000_000
_OF_DATA = (".csv", ".jsonl", ".parquet", ".gz", ".zst")


def folder() -> Path:
    """Return the folder of the bundled scenarios: that of the installed package, else of the source tree."""
    beside = Path(__file__).parents[3] / "scenarios"
    try:
        installed = Path(str(resources.files("inferload.scenarios")))
    except ModuleNotFoundError:
        return beside
    return installed if installed.is_dir() else beside


def names(kind: str = "") -> list[str]:
    """Return the names of the bundled scenarios. `kind`: folder of other bundled files: sweeps or studies."""
    return sorted(path.stem for path in (folder() / kind).glob("*.yaml"))


def bundled(name: str) -> Path:
    """Return the file of a bundled scenario. UsageError for an unknown name."""
    if name.removesuffix(".yaml") not in names():
        raise UsageError(f"scenario {name}: no bundled scenario of that name; {instead(name, names())}")
    return folder() / f"{name.removesuffix('.yaml')}.yaml"


def file_of(kind: str, path: Path) -> Path:
    """Return an existing file, else the bundled sweep or study of that name. `kind`: folder of the bundled ones."""
    if path.is_file():
        return path
    bundled_paths, name = _bundled(kind), path.name.removesuffix(".yaml")
    if name not in bundled_paths:
        if name in names():
            raise UsageError(f"{path}: is a scenario, and none of the {kind}; run it with: {own_command('run', name)}")
        meant = instead_of_file(path, instead(name, bundled_paths, f"bundled are {', '.join(bundled_paths)}"))
        raise UsageError(f"{path}: no such file, and none of the bundled {kind}; {meant}")
    return bundled_paths[name]


def _bundled(kind: str) -> dict[str, Path]:
    return {found.stem: found for found in sorted((folder() / kind).glob("*.yaml"))}


def description(name: str) -> str:
    """Return the first sentence of a bundled scenario's comment; empty for another file."""
    return first_sentence(read(bundled(name))) if name in names() else ""


def first_sentence(text: str) -> str:
    """Return the first sentence of a file's comment; empty without one."""
    comment = itertools.takewhile(lambda line: line.startswith("# "), text.splitlines())
    text = " ".join(line.removeprefix("# ").strip() for line in comment)
    return re.split(r"(?<=\.)\s", text, maxsplit=1)[0]


def resolve(name_or_path: str) -> Path:
    """Return an existing path, else the bundled scenario of that name. UsageError if there is neither."""
    path = Path(name_or_path)
    if not path.is_file() and name_or_path.removesuffix(".yaml") in names():
        return bundled(name_or_path)
    if other := _other_kind(path):
        raise UsageError(f"scenario {name_or_path}: {other}")
    if path.is_file():
        return path
    meant = instead_of_file(path, instead(path.stem, names(), f"bundled are {', '.join(names())}"))
    raise UsageError(f"scenario {name_or_path}: no such file, and no bundled scenario of that name; {meant}")


def _other_kind(path: Path) -> str | None:
    """Return what a path is that is no scenario, and the command that takes it; None for a scenario or nothing."""
    if path.suffix == ".py":
        return f"is Python code; run a locustfile with: {shlex.join(['locust', '-f', str(path)])}"
    run_dir = path.parent if path.name in (rundir.MANIFEST, rundir.SUMMARY) else path
    if (run_dir / rundir.MANIFEST).is_file() or (run_dir / rundir.SUMMARY).is_file():
        return f"is of a run; read its results with: {own_command('report', run_dir)}"
    if path.is_dir():
        found = [each for each in sorted(path.iterdir()) if each.suffix in (".yaml", ".yml")]
        return "is a directory; " + (f"name a file of it, such as {found[0]}" if found else "name a scenario file")
    if path.suffix in _OF_DATA:
        return "is data; name it in a scenario's workload: inferload init writes one"
    for kind, line in (("sweeps", own_command("sweep", path.stem)), ("studies", own_command("study", path.stem))):
        if not path.is_file() and path.name.removesuffix(".yaml") in _bundled(kind):
            return f"is no scenario, but one of the {kind}; run it with: {line}"
    return None


def read(path: Path, what: str = "scenario ", remedy: str = "name a readable file") -> str:
    """Read a YAML file as text. UsageError if it cannot be read or is not UTF-8. `what`: prefix of its path in errors."""
    with explained(f"{what}{path}", remedy), path.open("rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise UsageError(f"{what}{path}: larger than {MAX_BYTES} bytes; {remedy}")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{path}:{line}: not UTF-8; save the file as UTF-8") from error


def data(path: Path, what: str = "scenario ", remedy: str = "name a readable file") -> Any:
    """Read the data of a YAML file, within the limits of a scenario file. UsageError lists all faults with their lines."""
    parsed = parse(read(path, what, remedy))
    if parsed.faults:
        raise ScenarioError(str(path), parsed.faults)
    return parsed.data
