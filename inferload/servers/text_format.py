"""Writer of the Prometheus text format, version 0.0.4."""

from collections.abc import Mapping

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def header(name: str, kind: str, text: str) -> list[str]:
    """Return the lines before the samples of a metric. `text`: without a backslash or a line break."""
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]


def pairs(labels: Mapping[str, str]) -> str:
    """Return labels without braces, with escaped values."""
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())


def number(value: float) -> str:
    """Format the value of a sample or a bound."""
    return repr(float(value))


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
