"""The bundled scenarios by name, and where a scenario that was asked for lies."""

import difflib
from importlib import resources
from pathlib import Path
from typing import Any

from inferload.errors import UsageError
from inferload.scenario.files.mistakes import ScenarioError
from inferload.scenario.files.yaml_text import parse

MAX_BYTES = 1_000_000


def folder() -> Path:
    """Where the bundled scenarios lie: the installed package's, else the folder beside the code in a bare clone."""
    beside = Path(__file__).parents[3] / "scenarios"
    try:
        installed = Path(str(resources.files("inferload.scenarios")))
    except ModuleNotFoundError:
        return beside
    return installed if installed.is_dir() else beside


def names() -> list[str]:
    """Names of the bundled scenarios, sorted."""
    return sorted(path.stem for path in folder().glob("*.yaml"))


def bundled(name: str) -> Path:
    """The file of a bundled scenario; UsageError where there is none of that name."""
    if name.removesuffix(".yaml") not in names():
        raise UsageError(f"scenario {name}: no bundled scenario of that name; {_choices(name)}")
    return folder() / f"{name.removesuffix('.yaml')}.yaml"


def resolve(name_or_path: str) -> Path:
    """The file that is meant: an existing path first, else a bundled scenario's name. UsageError where there is none."""
    path = Path(name_or_path)
    if path.is_file():
        return path
    if name_or_path.removesuffix(".yaml") in names():
        return bundled(name_or_path)
    what = "is a directory" if path.is_dir() else "no such file"
    raise UsageError(f"scenario {name_or_path}: {what}, and no bundled scenario of that name; {_choices(path.stem)}")


def _choices(name: str) -> str:
    near = difflib.get_close_matches(name, names(), n=1)
    return (f"did you mean {near[0]}? Bundled" if near else "bundled") + f" are {', '.join(names())}"


def read(path: Path, what: str = "scenario ", remedy: str = "name a file that can be read") -> str:
    """The text of a file in YAML; UsageError where it cannot be read or is no text. `what` stands before its path."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{what}{path}: {error.strerror}; {remedy}") from error
    if len(content) > MAX_BYTES:
        raise UsageError(f"{what}{path}: larger than {MAX_BYTES} bytes; {remedy}")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{path}:{line}: not UTF-8; save the file as UTF-8") from error


def data(path: Path, what: str = "scenario ", remedy: str = "name a file that can be read") -> Any:
    """The data of a file in YAML, within the limits of a scenario's; UsageError names every fault with its line."""
    parsed = parse(read(path, what, remedy))
    if parsed.faults:
        raise ScenarioError(str(path), parsed.faults)
    return parsed.data
