"""Data files of a scenario: lookup and digest; published data sets, of which another is one more row."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from inferload.base.errors import UsageError, instead_of_file
from inferload.base.escaping import own_command
from inferload.scenario.files import catalog


class DataSet(Struct, frozen=True):
    """One published file, known by its size and SHA-256 (hex). `urls`: its sources, in the order in which they are tried."""

    file: str
    content: str
    size_bytes: int
    sha256: str
    urls: tuple[str, ...]


DATA_SETS: Mapping[str, DataSet] = {
    "sharegpt": DataSet(
        file="ShareGPT_V3_unfiltered_cleaned_split.json",
        content="conversations of ShareGPT, as in vLLM's benchmarks",
        size_bytes=672_837_942,
        sha256="35f0e213ce091ed9b9af2a1f0755e9d39f9ccec34ab281cd4ca60d70f6479ba4",
        urls=(
            "https://huggingface.co/datasets/anon8231489123/ShareGPT_Vicuna_unfiltered/resolve/"
            "192ab2185289094fc556ec8ce5ce1e8e587154ca/ShareGPT_V3_unfiltered_cleaned_split.json",
            "https://modelscope.cn/datasets/gliang1001/ShareGPT_V3_unfiltered_cleaned_split/resolve/"
            "master/ShareGPT_V3_unfiltered_cleaned_split.json",
        ),
    ),
}


def name_of(file: str) -> str | None:
    """Return the data set with a file of this name; None if it is in none."""
    return next((name for name, data_set in DATA_SETS.items() if data_set.file == file), None)


class Missing(UsageError):
    """A data file of the scenario is not on this machine."""


def find(path: str, origin: str = "", or_folder: bool = False) -> Path:
    """Return the absolute path of a data file: relative to the current directory, else to the scenario's folder.

    `origin`: the scenario's file, or the name of a bundled one. `or_folder`: a folder of files is accepted. Missing if there
    is no such file.
    """
    name = Path(os.path.expanduser(path))  # unlike Path.expanduser it leaves ~ where there is no home
    candidates = [name] if name.is_absolute() or not origin else [name, _folder_of(origin) / name]
    for candidate in candidates:
        if candidate.is_file() or (or_folder and candidate.is_dir()):
            return candidate.absolute()
    folders = " or ".join(str(candidate.parent.absolute()) for candidate in candidates)
    is_folder = any(candidate.is_dir() for candidate in candidates)
    problem = "is a directory, not a file" if is_folder else f"no such file in {folders}"
    raise Missing(f"{path}: {problem}; {remedy(name)}")


def remedy(path: Path) -> str:
    """Return what to do about a file that is missing."""
    data_set = name_of(path.name)
    if data_set is None:
        return instead_of_file(path, "paths are relative to the current directory, then to the scenario's folder")
    into = [] if path.parent == Path() else ["--into", path.parent]
    return f"{own_command('fetch', data_set, *into)} downloads it"


def _folder_of(origin: str) -> Path:
    """Return the folder of a scenario file, or of the bundled scenarios."""
    bundled = not Path(origin).is_file() and origin.removesuffix(".yaml") in catalog.names()
    return catalog.folder() if bundled else Path(origin).parent


def sha256_of(path: Path) -> str:
    """Return the SHA-256 (hex) of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_of_all(paths: Sequence[Path]) -> str:
    """Return the SHA-256 (hex) of the names and digests of files, in the form of `sha256sum`."""
    lines = (f"{sha256_of(path)}  {path.name}\n" for path in paths)
    return hashlib.sha256("".join(lines).encode()).hexdigest()
