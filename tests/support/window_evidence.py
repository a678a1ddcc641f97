"""Evidence of windows, by the names of fields of any of its parts."""

from typing import Any

from msgspec.structs import asdict, replace

from inferload.servers.bottleneck.evidence import Scrapes, WindowEvidence


def window_evidence(scrapes: Scrapes, lasts_s: float = 30.0, **figures: Any) -> WindowEvidence:
    """Return the evidence of a window of a server of which only these figures are known."""
    return changed(WindowEvidence(0.0, lasts_s, "http://x", scrapes), **figures)


def changed(evidence: WindowEvidence, **figures: Any) -> WindowEvidence:
    """Return the evidence with other figures."""
    own = {}
    for part, known in asdict(evidence).items():
        inner = {name: figures.pop(name) for name in getattr(known, "__struct_fields__", ()) if name in figures}
        own |= {part: replace(known, **inner)} if inner else {}
    return replace(evidence, **own, **figures)
