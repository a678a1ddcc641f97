"""Files of data that a scenario names: where they lie, and what tells that two machines have the same."""

import hashlib
from pathlib import Path

from inferload.errors import UsageError


def find(path: str, origin: str = "") -> Path:
    """The file that a scenario means: from the current directory, else from the folder of the scenario file.

    UsageError where there is none, or it cannot be read.
    """
    name = Path(path).expanduser()
    places = [name] if name.is_absolute() or not origin else [name, Path(origin).parent / name]
    for place in places:
        if place.is_file():
            return place.absolute()
    looked = " or ".join(str(place.parent.absolute()) for place in places)
    what = "is a directory, not a file" if any(place.is_dir() for place in places) else f"no such file in {looked}"
    raise UsageError(f"{path}: {what}; a path counts from the current directory, then from the scenario's folder")


def sha256_of(path: Path) -> str:
    """SHA-256 (hex) of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
