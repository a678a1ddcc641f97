"""Lookup and reading of scenario files: bundled scenarios by name, other files by path."""

import difflib
import itertools
import re
from importlib import resources
from pathlib import Path
from typing import Any

from inferload.base.errors import UsageError, explained
from inferload.scenario.files.yaml_text import ScenarioError, parse

MAX_BYTES = 1_000_000


def folder() -> Path:
    """Return the folder of the bundled scenarios: that of the installed package, else of the source tree."""
    beside = Path(__file__).parents[3] / "scenarios"
    try:
        installed = Path(str(resources.files("inferload.scenarios")))
    except ModuleNotFoundError:
        return beside
    return installed if installed.is_dir() else beside


def names() -> list[str]:
    return sorted(path.stem for path in folder().glob("*.yaml"))


def bundled(name: str) -> Path:
    """Return the file of a bundled scenario. UsageError for an unknown name."""
    if name.removesuffix(".yaml") not in names():
        raise UsageError(f"scenario {name}: no bundled scenario of that name; {_choices(name)}")
    return folder() / f"{name.removesuffix('.yaml')}.yaml"


def file_of(kind: str, path: Path) -> Path:
    """Return an existing file, else the bundled sweep or study of that name. `kind`: folder of the bundled ones."""
    if path.is_file():
        return path
    bundled_paths = {found.stem: found for found in sorted((folder() / kind).glob("*.yaml"))}
    name = path.name.removesuffix(".yaml")
    if name not in bundled_paths:
        raise UsageError(f"{path}: no such file, and none of the bundled {kind}: {', '.join(bundled_paths)}")
    return bundled_paths[name]


def description(name: str) -> str:
    """Return the first sentence of a bundled scenario's comment; empty for another file."""
    if name not in names():
        return ""
    lines = read(bundled(name)).splitlines()
    comment = itertools.takewhile(lambda line: line.startswith("# "), lines)
    text = " ".join(line.removeprefix("# ").strip() for line in comment)
    return re.split(r"(?<=\.)\s", text, maxsplit=1)[0]


def resolve(name_or_path: str) -> Path:
    """Return an existing path, else the bundled scenario of that name. UsageError if there is neither."""
    path = Path(name_or_path)
    if path.is_file():
        return path
    if name_or_path.removesuffix(".yaml") in names():
        return bundled(name_or_path)
    problem = "is a directory" if path.is_dir() else "no such file"
    raise UsageError(f"scenario {name_or_path}: {problem}, and no bundled scenario of that name; {_choices(path.stem)}")


def _choices(name: str) -> str:
    near = difflib.get_close_matches(name, names(), n=1)
    return (f"did you mean {near[0]}? Bundled" if near else "bundled") + f" are {', '.join(names())}"


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
