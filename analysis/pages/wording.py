"""Simulated servers in words."""

from collections.abc import Iterable

from inferload.results.documents.manifest_document import Manifest


def is_simulated(engine: object) -> bool:
    """Return True for an engine, or a list of engines, with the embedded simulator."""
    return "simulator" in str(engine or "")


def stands_for(manifest: Manifest) -> tuple[str, ...]:
    """Return what the simulated servers of a run stand for; empty for other servers and runs that do not record it."""
    return tuple(dict.fromkeys(target.stands_for for target in manifest.targets if target.stands_for))


def simulated(names: Iterable[str]) -> str:
    """Return the sentence on simulated servers. `names`: of `stands_for`."""
    text = " and ".join(dict.fromkeys(names))
    return f"Simulated server: stands for {text}." if text else "Simulated server: what it stands for is not recorded."
