"""Writer of the Prometheus text format, version 0.0.4, and vLLM's bounds of buckets."""

from collections.abc import Mapping

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# Bounds of the buckets of vLLM 0.32's latency histograms in seconds, from its `v1/metrics/buckets.py`.
REQUEST_S = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
TTFT_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560),
)
ITL_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)  # and TPOT


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
