"""Simulated servers in words."""

from collections.abc import Iterable


def is_simulated(engine: object) -> bool:
    """Return True for an engine, or a list of engines, with the embedded simulator."""
    return "simulator" in str(engine or "")


def simulated(names: Iterable[str]) -> str:
    """Return the sentence on simulated servers. `names`: of `Manifest.stand_ins`."""
    text = " and ".join(dict.fromkeys(names))
    return f"Simulated server: stands for {text}." if text else "Simulated server: what it stands for is not recorded."
