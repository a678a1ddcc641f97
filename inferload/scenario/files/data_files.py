"""Files of data that a scenario names: where they lie, and what tells that two machines have the same."""

import hashlib
from pathlib import Path

from inferload.errors import UsageError
from inferload.scenario.files import catalog


class Missing(UsageError):
    """A file that a scenario names is not on this machine."""


def find(path: str, origin: str = "") -> Path:
    """The file that a scenario means: from the current directory, else from the folder of the scenario.

    `origin`: the scenario's file, or the name of a bundled one.

    Missing where there is none.
    """
    name = Path(path).expanduser()
    places = [name] if name.is_absolute() or not origin else [name, _folder_of(origin) / name]
    for place in places:
        if place.is_file():
            return place.absolute()
    looked = " or ".join(str(place.parent.absolute()) for place in places)
    what = "is a directory, not a file" if any(place.is_dir() for place in places) else f"no such file in {looked}"
    raise Missing(f"{path}: {what}; a path counts from the current directory, then from the scenario's folder")


def _folder_of(origin: str) -> Path:
    """The folder of a scenario: a file's, or that of the bundled ones."""
    bundled = not Path(origin).is_file() and origin.removesuffix(".yaml") in catalog.names()
    return catalog.folder() if bundled else Path(origin).parent


def sha256_of(path: Path) -> str:
    """SHA-256 (hex) of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
