"""Simulated servers in words."""

from collections.abc import Iterable, Mapping
from typing import Any


def is_simulated(engine: object) -> bool:
    """Return True for an engine, or a list of engines, with the embedded simulator."""
    return "simulator" in str(engine or "")


def stands_for(manifest: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what the simulated servers of a run stand for; empty for other servers and runs that do not record it."""
    named = [target.get("stands_for") for target in manifest.get("targets") or ()]
    return tuple(dict.fromkeys(str(name) for name in named if name))


def simulated(names: Iterable[str]) -> str:
    """Return the sentence on simulated servers. `names`: of `stands_for`."""
    text = " and ".join(dict.fromkeys(names))
    return f"Simulated server: stands for {text}." if text else "Simulated server: what it stands for is not recorded."
