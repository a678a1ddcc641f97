"""Structure of a Prometheus page without values: names, types, labels, and bucket bounds."""

import re

from prometheus_client.parser import text_string_to_metric_families

# Labels whose values are part of the structure.
_CLOSED = (
    *("reason", "source", "finished_reason", "sleep_state", "position", "generation", "mode", "outcome"),
    "request_type",
)


def shape(page: str, families: str = "") -> str:
    """Return a sorted line for each type, sample name with labels, and bucket bound. `families`: prefix of the names."""
    types = {
        name: kind
        for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", page, re.MULTILINE)
        if name.startswith(families)
    }
    lines = {f"{name} {kind}" for name, kind in types.items()}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if not sample.name.startswith(families):
                continue
            labels = sorted(set(sample.labels) - {"le"})
            text = ",".join(f"{key}={sample.labels[key]}" if key in _CLOSED else key for key in labels)
            lines.add(f"{sample.name}{{{text}}}")
            if "le" in sample.labels:
                lines.add(f"{sample.name} le={float(sample.labels['le'])}")
    return "\n".join(sorted(lines, key=_by_name_and_bound)) + "\n"


def _by_name_and_bound(line: str) -> tuple[str, float, str]:
    name, _, bound = line.partition(" le=")
    return name, float(bound or 0), line
