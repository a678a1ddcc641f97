"""Volumes of pods as folders: keys of Secrets and ConfigMaps as the kubelet lays them out, empty folders and claims."""

import base64
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_DATA = "..data"  # a link, which the kubelet sets to a folder with another content when the object changes


def contents(source: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the values of a Secret or a ConfigMap by key."""
    coded = source.get("data", {}) if source["kind"] == "Secret" else source.get("binaryData", {})
    texts = source.get("stringData", {}) if source["kind"] == "Secret" else source.get("data", {})
    return {key: base64.b64decode(value) for key, value in coded.items()} | {
        key: text.encode() for key, text in texts.items()
    }


def write_keys(folder: Path, values: Mapping[str, bytes], items: Any, group: int) -> None:
    """Write keys as files: all, or only `items` with their paths. `group`: the files' group, for a pod's fsGroup."""
    below = folder / "..2026_11_30_06_00_00.1"
    below.mkdir(parents=True)
    (folder / _DATA).symlink_to(below.name)
    for item in items or ({"key": key, "path": key} for key in values):
        file = below / item["path"]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(values[item["key"]])
        file.chmod(0o644)
        os.chown(file, 0, group)
        link = folder / Path(item["path"]).parts[0]
        if not link.is_symlink():
            link.symlink_to(f"{_DATA}/{link.name}")
    for path in (folder, *(each for each in below.rglob("*") if each.is_dir()), below):
        path.chmod(0o755)


def writable(folder: Path, group: int | None, mode: int) -> None:
    """Make a folder of an empty volume or of a claim. `group`: a pod's fsGroup, which may write."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(mode)
    if group is not None:
        os.chown(folder, -1, group)
        folder.chmod(mode | 0o2070)
