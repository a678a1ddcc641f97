"""Evidence of windows, by the names of fields of any of its parts."""

from dataclasses import fields, is_dataclass, replace
from typing import Any

from inferload.servers.bottleneck.evidence import Scrapes, WindowEvidence


def window_evidence(scrapes: Scrapes, lasts_s: float = 30.0, **figures: Any) -> WindowEvidence:
    """Return the evidence of a window of a server of which only these figures are known."""
    return changed(WindowEvidence(0.0, lasts_s, "http://x", scrapes), **figures)


def changed(evidence: WindowEvidence, **figures: Any) -> WindowEvidence:
    """Return the evidence with other figures."""
    known = {part.name: getattr(evidence, part.name) for part in fields(evidence)}
    parts = {name: part for name, part in known.items() if is_dataclass(part) and name != "scrapes"}
    own = {name: value for name, value in figures.items() if name in known and name != "server"}
    for name, part in parts.items():
        of_part = {field: value for field, value in figures.items() if field in part.__slots__}
        own |= {name: replace(part, **of_part)} if of_part else {}
    assert figures.keys() <= known.keys() | {field for part in parts.values() for field in part.__slots__}
    return replace(evidence, **own)
