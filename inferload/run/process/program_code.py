"""Python code of a run's program: the locustfiles, live agents, and the modules that they import from their folders.

A file counts if it was imported before the load of the first run of the process: modules are not imported again, and what
tasks import later would make the second run of a process differ from the first. Files are compared byte for byte, by their
names relative to the folder of the locustfile or agent, so that two machines may keep them in different places. Libraries
(site-packages, the standard library, Locust, inferload) and other data than Python modules do not count.
"""

import hashlib
import os
import site
import sys
import sysconfig
from collections.abc import Collection, Iterable, Sequence
from functools import cache
from pathlib import Path

from msgspec import Struct

from inferload.scenario.schema.agent import FILE_MODULE

BUNDLED = ("__init__.py", "agent.py", "chat.py", "mixed.py", "replay.py", "toolagent.py")
_LIBRARIES = ("inferload", "locust")
_LIBRARY_FOLDERS = {"site-packages", "dist-packages"}
_LAUNCHERS = ("__main__", "__mp_main__")

# A file of the program: its name, and the SHA-256 (hex) of its bytes; "" if it cannot be read.
CodeFile = tuple[str, str]


class ProgramCode(Struct, frozen=True):
    """Files of a program, sorted. `mains`: names of its locustfiles and agents; they and `files` exclude those of inferload.

    `loaded`: names of all files that were imported with the locustfile; a listener may import others on the master only.
    `locustfiles`: by name and SHA-256 of the text as `-f -` sends it. `received`: this process got them so.
    """

    mains: tuple[str, ...] = ()
    files: tuple[CodeFile, ...] = ()
    bundled: tuple[CodeFile, ...] = ()
    loaded: tuple[str, ...] = ()
    locustfiles: tuple[CodeFile, ...] = ()
    received: bool = False

    @property
    def digest(self) -> str | None:
        """SHA-256 (hex) of names and contents, in the form of `sha256sum`; None without files, or if one is unreadable."""
        if not self.files or any(not sha256 for _name, sha256 in self.files):
            return None
        return hashlib.sha256("".join(f"{sha256}  {name}\n" for name, sha256 in self.files).encode()).hexdigest()

    @property
    def name(self) -> str:
        """Names of locustfiles and agents; empty if they are those of inferload."""
        return ", ".join(self.mains)

    def differences(self, worker: "ProgramCode") -> list[str]:
        """Return a text for each file in which a worker's program differs from this one, the master's."""
        if worker.received:
            here, there = self.locustfiles, worker.locustfiles
            required = {name for name, _sha256 in (*here, *there)}
        else:
            here, there = (*self.files, *self.bundled), (*worker.files, *worker.bundled)
            required = {*self.loaded, *worker.loaded}
        masters, workers = _by_name(here), _by_name(there)
        texts = []
        for name in sorted({*masters, *workers}):
            mine, theirs = masters.get(name), workers.get(name)
            if mine is None or theirs is None:
                if name in required:
                    texts.append(f"{name} (on the {'worker' if mine is None else 'master'} only)")
            elif mine != theirs or "" in mine:
                texts.append(f"{name} ({_short(theirs)}, the master's is {_short(mine)})")
        return texts


def _by_name(files: Iterable[CodeFile]) -> dict[str, tuple[str, ...]]:
    """Group digests by name: locustfiles of two folders may have one name."""
    grouped: dict[str, tuple[str, ...]] = {}
    for name, sha256 in files:
        grouped[name] = tuple(sorted((*grouped.get(name, ()), sha256)))
    return grouped


def _short(digests: Sequence[str]) -> str:
    return " and ".join(digest[:12] or "unreadable" for digest in digests)


class LoadedCode:
    """Code that this process has imported. `single`: locustfiles in a temporary folder, whose other files do not count.

    `received`: the locustfiles came from the master. `imported`: files that were imported with them (`imported_files`); None:
    those of now.
    """

    def __init__(
        self,
        locustfiles: Sequence[str | Path] = (),
        *,
        single: Collection[str | Path] = (),
        received: bool = False,
        imported: Iterable[str] | None = None,
    ) -> None:
        self._single = frozenset(os.path.abspath(file) for file in single)
        self._received = received
        self._locustfiles = tuple(dict.fromkeys(os.path.abspath(file) for file in locustfiles))
        self._digests: dict[str, str] = {}
        self._below: dict[str, frozenset[str]] = {}  # files by folder, from the first run on
        folders = self._folders(())
        files = (imported_files() if imported is None else imported) if folders else ()
        self._early = (*self._locustfiles, *(file for file in set(files) if _name_below(folders, file) is not None))
        for file in self._early:
            self._digest(file)
        self._sent = tuple(sorted((os.path.basename(file), _sha256(file, as_text=True)) for file in self._locustfiles))

    def of_run(self, agents: Iterable[str | Path] = ()) -> ProgramCode:
        """Return the code of a run that begins now. `agents`: files of its live agents."""
        mains = tuple(dict.fromkeys((*self._locustfiles, *(os.path.abspath(file) for file in agents))))
        folders = self._folders(mains[len(self._locustfiles) :])
        paths = {*mains, *self._early}
        for folder in folders:
            if folder not in self._below:
                self._below[folder] = frozenset(imported_files())
            paths |= {file for file in self._below[folder] if _name_below((folder,), file) is not None}
        named = {file: _name_below(folders, file) or os.path.basename(file) for file in paths}
        files = sorted({(name, self._digest(file)) for file, name in named.items() if not is_bundled(file)})
        bundled = sorted({(named[file], self._digest(file)) for file in mains if is_bundled(file)})
        return ProgramCode(
            mains=tuple(sorted({named[file] for file in mains if not is_bundled(file)})),
            files=tuple(files),
            bundled=tuple(bundled),
            loaded=tuple(sorted({named[file] for file in self._early})),
            locustfiles=self._sent,
            received=self._received,
        )

    def _folders(self, agents: Sequence[str]) -> tuple[str, ...]:
        mains = (*self._locustfiles, *agents)
        return tuple(dict.fromkeys(os.path.dirname(file) for file in mains if file not in self._single))

    def _digest(self, file: str) -> str:
        if file not in self._digests:
            self._digests[file] = _sha256(file)
        return self._digests[file]


def imported_files() -> frozenset[str]:
    """Return the absolute paths of the modules of this process, without launchers, libraries and agents loaded from a file."""
    files = set()
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in _LIBRARIES or name in _LAUNCHERS or name.startswith(FILE_MODULE):
            continue
        file = getattr(module, "__dict__", {}).get("__file__")
        if isinstance(file, str):
            files.add(os.path.abspath(file))
    return frozenset(files)


def is_bundled(file: str) -> bool:
    """Return True for a file of inferload's own locustfiles, whose version is compared."""
    folder, name = os.path.split(file)
    return name in BUNDLED and os.path.realpath(folder) in _bundled_folders()


@cache
def _bundled_folders() -> tuple[str, ...]:
    package = Path(__file__).parents[2]
    return tuple(os.path.realpath(folder / "locustfiles") for folder in (package, package.parent))


@cache
def _library_folders() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    known = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")] + [site.getusersitepackages()]
    return tuple(dict.fromkeys((*map(os.path.abspath, known), *map(os.path.realpath, known))))


def _name_below(folders: Sequence[str], file: str) -> str | None:
    """Return a file's name relative to the deepest of the folders that contains it; None if none does, or it is of a library."""
    names = [
        name for folder in folders if (name := _relative(folder, file)) is not None and not _of_library(folder, file)
    ]
    if not names and folders and not _of_library("", file):  # a link may lead to the folder, or into it
        real_file = os.path.realpath(file)
        real = [(folder, _relative(folder, real_file)) for folder in map(os.path.realpath, folders)]
        names = [name for folder, name in real if name is not None and not _of_library(folder, real_file)]
    return min(names, key=len, default=None)


@cache
def _of_library(folder: str, file: str) -> bool:
    """Return True for a file of a library, unless `folder` is itself inside of that library's folder."""
    if _LIBRARY_FOLDERS & set((_relative(folder, file) or "").split("/")):
        return True
    above = (library for library in _library_folders() if _relative(library, file) is not None)
    return any(folder != library and _relative(library, folder) is None for library in above)


def _relative(folder: str, file: str) -> str | None:
    """Return the path below a folder, with slashes; None if the file is not below it."""
    prefix = folder if folder.endswith(os.sep) else folder + os.sep
    return file[len(prefix) :].replace(os.sep, "/") if file.startswith(prefix) else None


def _sha256(file: str, *, as_text: bool = False) -> str:
    """Return the digest of a file. `as_text`: with the line ends of the receiver of `-f -`, to which Locust sends text."""
    try:
        content = Path(file).read_bytes()
    except OSError:
        return ""
    if as_text:
        content = content.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return hashlib.sha256(content).hexdigest()
