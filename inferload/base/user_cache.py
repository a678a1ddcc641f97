"""Folder of files that can be made again: indexes, calibrations, states of servers."""

import functools
import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path

CALIBRATION = "calibration.json"  # of this machine, by `inferload calibrate`


def user_cache(environment: Mapping[str, str] = os.environ) -> Path:
    """Return `inferload` in $XDG_CACHE_HOME, else in ~/.cache; in the temporary folder for a user without a writable home.

    Containers often run under a user id without a name, with no home or with / as home.
    """
    named = environment.get("XDG_CACHE_HOME") or ""
    if Path(named).is_absolute():
        return Path(named) / "inferload"
    home = _home(environment)
    if home is not None and _is_writable(home / ".cache"):
        return home / ".cache" / "inferload"
    return _temporary(os.getuid())


def _home(environment: Mapping[str, str]) -> Path | None:
    if environment.get("HOME"):
        return Path(environment["HOME"])
    try:
        return Path.home()
    except (RuntimeError, KeyError):
        return None


def _is_writable(folder: Path) -> bool:
    """Return True if a folder exists and is writable, or can be created."""
    nearest = next((place for place in (folder, *folder.parents) if place.exists()), None)
    return nearest is not None and nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)


@functools.cache
def _temporary(user: int) -> Path:
    """Return a folder that other users can neither read nor write, the same one for each process of the user if possible."""
    folder = Path(tempfile.gettempdir()) / f"inferload-{user}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
        if stat.S_ISDIR(found.st_mode) and found.st_uid == user and not found.st_mode & 0o077:
            return folder
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix="inferload-"))
