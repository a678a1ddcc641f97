"""What a Prometheus page is made of, without its values: names, types, labels, and bounds of buckets."""

import re

from prometheus_client.parser import text_string_to_metric_families

# Labels whose values are part of the form; of others only the name counts.
_CLOSED = (
    *("reason", "source", "finished_reason", "sleep_state", "position", "generation", "mode", "outcome"),
    "request_type",
)


def shape(page: str, families: str = "") -> str:
    """One line for each name that a sample or a type has, in order; `families`: only those that begin like this."""
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
            said = ",".join(f"{key}={sample.labels[key]}" if key in _CLOSED else key for key in labels)
            lines.add(f"{sample.name}{{{said}}}")
            if "le" in sample.labels:
                lines.add(f"{sample.name} le={float(sample.labels['le'])}")
    return "\n".join(sorted(lines, key=_by_name_and_bound)) + "\n"


def _by_name_and_bound(line: str) -> tuple[str, float, str]:
    name, _, bound = line.partition(" le=")
    return name, float(bound or 0), line
